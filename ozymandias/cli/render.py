"""Values as text: aligned tables for people, JSON and YAML for programs.

Colours are drawn only on a terminal and never with NO_COLOR. Tables are plain text; nothing here
needs a library, because `ozy ps` should be over before one would be loaded.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from ozymandias.cli.options import settings

GREEN, YELLOW, RED, DIM, BOLD = "32", "33", "31", "2", "1"
_STATE_COLOURS = {
    "healthy": GREEN,
    "ready": GREEN,
    "completed": GREEN,
    "idle": DIM,
    "failed": RED,
    "lost": RED,
    "unhealthy": RED,
    "backoff": RED,
    "degraded": RED,
}
COLUMN_GAP = "  "


def show(document: Any, draw: Callable[[Any], None]) -> None:
    """Print a document as the user asked for it."""
    output = settings().output
    if output == "table":
        draw(document)
    else:
        print_document(document, output)


def print_document(document: Any, output: str) -> None:
    if output == "yaml":
        import yaml

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        sys.stdout.write(text)
    else:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def is_plain(stream: TextIO | None = None) -> bool:
    """No colours and no redrawing there."""
    chosen = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return True
    return not chosen.isatty()


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    if not text or not colour or is_plain(stream):
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def state_colour(state: str) -> str:
    return _STATE_COLOURS.get(state, YELLOW)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    indent: str = "",
    stream: TextIO | None = None,
    state: int | None = None,
) -> list[str]:
    """Aligned lines; ``state`` is the column to colour. On a terminal the last column is cut."""
    cells = [[_clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [paint(_line(header, widths, indent), BOLD, stream)]
    room = _width(stream) - len(indent) - sum(widths[:-1]) - len(COLUMN_GAP) * (len(widths) - 1)
    for row in cells:
        if len(row[-1]) > room >= 8:
            row[-1] = row[-1][: room - 1] + "…"
        line = _line(row, widths, indent)
        if state is not None and not is_plain(stream):
            start = len(indent) + sum(widths[:state]) + len(COLUMN_GAP) * state
            end = start + len(row[state])
            line = line[:start] + paint(row[state], state_colour(row[state]), stream) + line[end:]
        lines.append(line)
    return lines


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str, state: int | None = None
) -> None:
    if not rows:
        print(empty)
        return
    print("\n".join(table(header, rows, state=state)))


def _line(cells: Sequence[str], widths: Sequence[int], indent: str) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return (indent + COLUMN_GAP.join(padded)).rstrip()


def _clean(cell: object) -> str:
    """One line without control characters: what a container says must not steer a terminal."""
    text = "-" if cell is None or cell == "" else str(cell)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def clean(text: str) -> str:
    """Without control characters but for tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _width(stream: TextIO | None) -> int:
    """Columns of the terminal; without one nothing is cut."""
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns
    except (OSError, ValueError):
        return 10**6


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
