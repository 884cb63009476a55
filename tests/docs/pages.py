"""Reads the pages of the documentation: blocks, what they are for, links.

The convention of pages whose commands are run:

- a block `console` holds commands (after `$ `) and under each what it prints. `…` stands for
  whatever was left out: a line of its own for lines, inside a line for the rest of it.
- a block after `<!-- file: NAME -->` is written to that file before the commands that follow.
- a block after `<!-- output -->` is more output of the last command before it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^( *)```(\S*)\s*$")
_MARK = re.compile(r"^<!-- (file|output)(?:: (\S+))? -->$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
# What differs from one run to the next: times, addresses, ids, the node that was chosen.
_VOLATILE = re.compile(
    r"…|\b[0-9a-f]{8}\b|\bn\d\b|(?:/[\w.-]+)+/|https?://\S+?:\d+|\d+(?:[.:]\d+)*[smMG]?(?=\W|$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    mark: str = ""  # file, output, or nothing
    file: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(slots=True, kw_only=True)
class Command:
    where: str
    text: str
    expected: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToWrite:
    where: str
    name: str
    text: str


def pages() -> list[Path]:
    """README and everything below docs, but for what is made for man."""
    found = [*DOCS.rglob("*.md"), *DOCS.rglob("*.markdown")]
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *found])


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    number, mark, file = 0, "", ""
    while number < len(lines):
        line = lines[number]
        if found := _MARK.match(line):
            mark, file = found.group(1), found.group(2) or ""
        elif fence := _FENCE.match(line):
            indent, start = len(fence.group(1)), number + 1
            number = start
            while not lines[number].strip().startswith("```"):
                number += 1
            text = "".join(f"{part[indent:]}\n" for part in lines[start:number])
            yield Block(
                page=page, line=start, language=fence.group(2), text=text, mark=mark, file=file
            )
            mark = file = ""
        elif line.strip():
            mark = file = ""
        number += 1


def steps(page: Path) -> list[Command | FileToWrite]:
    """What the page has a reader do, in order."""
    found: list[Command | FileToWrite] = []
    last: Command | None = None
    for block in blocks(page):
        if block.mark == "file":
            found.append(FileToWrite(where=str(block), name=block.file, text=block.text))
        elif block.mark == "output":
            assert last is not None, f"{block}: output of nothing"
            last.expected += block.text.splitlines()
        elif block.language == "console":
            for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
                if line.startswith("$ "):
                    last = Command(where=f"{page.relative_to(ROOT)}:{number}", text=line[2:])
                    found.append(last)
                else:
                    assert last is not None, f"{block}: output of nothing"
                    last.expected.append(line)
    return found


def is_like(shown: str, printed: str) -> bool:
    """Whether a line of the page is such a line, apart from what differs from run to run."""
    pattern, end = "", 0
    for part in _VOLATILE.finditer(shown):
        pattern += _blank(shown[end : part.start()])
        pattern += ".*" if part.group() == "…" else r"\S+"
        end = part.end()
    return re.fullmatch(pattern + _blank(shown[end:]), printed.strip()) is not None


def missing_lines(expected: list[str], printed: str) -> list[str]:
    """Lines of the page that nothing printed is like; in any order, since instances race."""
    lines = printed.splitlines()
    return [
        shown
        for shown in expected
        if shown.strip() not in ("", "…")
        and not any(is_like(shown.strip(), line) for line in lines)
    ]


def _blank(text: str) -> str:
    return r"\s*".join(re.escape(word) for word in re.split(r"\s+", text))


def prose(page: Path) -> str:
    """The page without its blocks."""
    kept, inside = [], False
    for line in page.read_text().splitlines():
        if line.strip().startswith("```"):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def links(page: Path) -> list[str]:
    return [target for target in _LINK.findall(prose(page)) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """What headings are called by links, in GitHub's way."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        if heading := re.match(r"#+ (.*)", line):
            words = re.sub(r"[^\w\- ]", "", heading.group(1).replace("`", "").lower())
            found.add(words.strip().replace(" ", "-"))
    return found
