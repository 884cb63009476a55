"""The manual: every command is in it, with an example, and what is generated is up to date."""

import re
import subprocess
from pathlib import Path

import pytest

from ozymandias.cli import manual
from ozymandias.cli.main import SECTIONS

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = tuple(manual.pages())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_has_help_an_example_and_docs(page: manual.Page) -> None:
    """A sentence, an example that calls the command itself, and its options explained."""
    assert re.fullmatch(r"[A-Z].*[.:]?", page.summary)
    assert page.summary.endswith(".")
    assert any(page.command in example for example in page.examples)
    assert all(text.strip() for _, text in page.options), page.options
    if page.words != ("ozy",):
        assert f" {page.command}\n" in (DOCS / "cli.md").read_text()


def test_the_table_of_commands_says_what_their_help_says() -> None:
    """The one line of `ozy --help` is not at odds with the command's own first line."""
    said = {page.words[1]: page.summary for page in PAGES if len(page.words) == 2}
    for _, entries in SECTIONS:
        for name, _, _, text in entries:
            assert text.split()[0] == said[name].split()[0], name


def test_what_is_generated_is_up_to_date() -> None:
    """`make docs` would change nothing."""
    made = manual.files()
    there = {f"man/{file.name}" for file in (DOCS / "man").glob("*.1")}
    assert there == made.keys() - {"cli.md"}
    stale = [name for name, text in made.items() if (DOCS / name).read_text() != text]
    assert not stale, "run `make docs`"


def test_old_pages_go(tmp_path: Path) -> None:
    """Writing leaves no page of a command that is gone."""
    (tmp_path / "man").mkdir()
    (tmp_path / "man" / "ozy-gone.1").write_text("")
    manual.write(tmp_path)
    assert not (tmp_path / "man" / "ozy-gone.1").exists()
    assert (tmp_path / "man" / "ozy.1").exists()


def test_man_pages_are_set_without_a_warning() -> None:
    """groff has nothing to say about them, and hyphens can be copied to a shell."""
    files = sorted(str(file) for file in (DOCS / "man").glob("*.1"))
    command = ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", *files]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert "ozy exec web-0 -c app -- ls -l /data" in ran.stdout


def test_roff_is_told_nothing_by_accident() -> None:
    """Text that begins like a request, or holds a backslash, stays text."""
    page = manual.Page(words=("ozy",), summary=".so /etc/passwd", usage=r"a\fB", commands=())
    lines = manual.man_page(page).splitlines()
    assert not any(line.startswith((".so", "'")) for line in lines)
    assert r".B a\efB" in lines
