"""The pages hold together: links lead somewhere, every page is found, examples are valid."""

import os
import re
import shlex
from pathlib import Path

import pytest

from ozymandias.cli import manual
from ozymandias.daemon import config
from ozymandias.jobspec.parse import parse
from tests.docs.pages import DOCS, ROOT, Block, anchors, blocks, is_like, links, pages, prose

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
JOBS = [b for b in BLOCKS if b.language == "yaml" and re.search(r"^name:", b.text, re.M)]
SETTINGS = [b for b in BLOCKS if b.language == "toml"]
COMMANDS = {page.words[1:]: page for page in manual.pages()}
# `ozy …` in running text, and at the beginning of a line of a block.
_INLINE = re.compile(r"`(ozy [a-z][^`]*)`")
_TYPED = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(ozy [a-z].*)$", re.M)
# Commands that pages name as missing: the sentence must say so.
NOT_BUILT = {"rollback"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there, and a heading in it."""
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / path)) if path else page
        assert target.exists(), f"{name_of(page)}: {link}"
        if anchor and target.is_file():
            assert anchor in anchors(target), f"{name_of(page)}: {link}"


def test_every_page_is_found() -> None:
    """From the README, by links, one comes to each page."""
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix not in (".md", ".markdown"):
            continue
        seen.add(page)
        for link in links(page):
            path = link.partition("#")[0]
            target = Path(os.path.normpath(page.parent / path)) if path else page
            todo.append(target / "README.md" if target.is_dir() else target)
    assert {name_of(page) for page in PAGES} - {name_of(page) for page in seen} == set()


@pytest.mark.parametrize("block", JOBS, ids=str)
def test_examples_of_job_files_are_valid(block: Block) -> None:
    """A job in the documentation is one that the parser takes."""
    for document in re.split(r"^---$", block.text, flags=re.M):
        parse(document.encode(), str(block))


@pytest.mark.parametrize("block", SETTINGS, ids=str)
def test_examples_of_settings_are_valid(block: Block, tmp_path: Path) -> None:
    """A setting in the documentation is one that there is."""
    file = tmp_path / "ozymandias.toml"
    file.write_text(block.text)
    config.load(file, {})


@pytest.mark.parametrize("page", [p for p in PAGES if p != DOCS / "cli.md"], ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    """`ozy …` in a text or a block names a command that there is, with options that it has."""
    typed = [t for b in blocks(page) if b.language in ("sh", "console") for t in [b.text]]
    found = _INLINE.findall(prose(page))
    for text in typed:
        found += _TYPED.findall(text)
    for command in found:
        words = shlex.split(command.replace("…", "x"), comments=True)[1:]
        if words[0] in NOT_BUILT:
            continue
        known = COMMANDS.get((words[0], *words[1:2])) or COMMANDS.get((words[0],))
        assert known, f"{name_of(page)}: {command}"
        cut = words.index("--") if "--" in words else len(words)
        cut = min([cut, *(i for i, w in enumerate(words) if w in ("|", ">", ";", "||", "&&"))])
        options = " ".join(option for option, _ in known.options)
        for word in words[1:cut]:
            if word.startswith("-") and word != "-":
                name = re.escape(word.partition("=")[0])
                assert re.search(rf"(?<![\w-]){name}(?![\w-])", options), (
                    f"{name_of(page)}: {command}"
                )


@pytest.mark.parametrize(
    ("shown", "printed", "like"),
    [
        ("n1    ready  2          64M of 4G", "n2 ready 3 96M of 4G", True),
        ("web version 1 is up after 1.2s.", "web version 1 is up after 12s.", True),
        ("web version 1 is up after …", "web version 1 is up after all that", True),
        ("web is up", "web is down", False),
        ("  ingress  http://127.0.0.1:8080  (…)", "  ingress  http://127.0.0.1:51  (x)", True),
    ],
)
def test_what_counts_as_the_same_line(shown: str, printed: str, like: bool) -> None:
    """Times, numbers, nodes and addresses may differ; words may not."""
    assert is_like(shown, printed) is like
