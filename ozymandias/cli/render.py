"""Values as text: aligned tables for people, JSON and YAML for programs.

Colours are drawn only on a terminal and never with NO_COLOR. Tables are plain text; nothing here
needs a library, because `ozy ps` should be over before one would be loaded.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
    "tainted": RED,
}
COLUMN_GAP = "  "
NOTHING = "-"  # in a cell
UNBOUNDED = 10**6  # columns, where nothing looks at them
FOLD_COLUMNS_MIN = 24  # a narrower column is not worth reading
FOLD_INDENT = "    "


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


def is_terminal(stream: TextIO | None = None) -> bool:
    """Somebody looks at it, and what is written can be drawn over."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def is_plain(stream: TextIO | None = None) -> bool:
    """No colours there."""
    return bool(os.environ.get("NO_COLOR")) or not is_terminal(stream)


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
    colour: Callable[[str], str] = state_colour,
    is_cut: bool = False,
) -> list[str]:
    """Aligned lines; ``state`` is the column to colour.

    On a terminal a last column that is too wide goes on in the lines below, under itself or, where
    that would be too narrow, further left; ``is_cut`` cuts it instead. One that says nothing is
    left out there. Elsewhere a row is a line, and columns are what a script expects.
    """
    columns = terminal_columns(stream)
    cells = [[_clean(cell) for cell in row] for row in rows]
    if columns < UNBOUNDED and all(row[-1] == NOTHING for row in cells):
        header, cells = header[:-1], [row[:-1] for row in cells]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [paint(_line(header, widths, indent)[:columns], BOLD, stream)]
    start = len(indent) + sum(widths[:-1]) + len(COLUMN_GAP) * (len(widths) - 1)
    for row in cells:
        more: list[str] = []
        if start + len(row[-1]) > columns:
            row[-1], more = _folded(row[-1], start, columns, is_cut=is_cut)
        line = _line(row, widths, indent)
        if state is not None and not is_plain(stream):
            left = len(indent) + sum(widths[:state]) + len(COLUMN_GAP) * state
            right = left + len(row[state])
            line = line[:left] + paint(row[state], colour(row[state]), stream) + line[right:]
        lines += [line, *more]
    return lines


def _folded(text: str, start: int, columns: int, *, is_cut: bool) -> tuple[str, list[str]]:
    """What of a last cell stands in its row, and the lines below with the rest."""
    room = columns - start
    if is_cut:
        return (text[: room - 1] + "…" if room > 1 else ""), []
    if room >= FOLD_COLUMNS_MIN:
        first, *rest = _wrapped(text, room)
        return first, [" " * start + part for part in rest]
    room = max(columns - len(FOLD_INDENT), FOLD_COLUMNS_MIN)
    return "", [FOLD_INDENT + part for part in _wrapped(text, room)]


def _wrapped(text: str, room: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, room) or [""]


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    empty: str,
    state: int | None = None,
    colour: Callable[[str], str] = state_colour,
) -> None:
    if not rows:
        print(empty)
        return
    print("\n".join(table(header, rows, state=state, colour=colour)))


def _line(cells: Sequence[str], widths: Sequence[int], indent: str) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return (indent + COLUMN_GAP.join(padded)).rstrip()


def _clean(cell: object) -> str:
    """One line without control characters: what a container says must not steer a terminal."""
    text = NOTHING if cell is None or cell == "" else str(cell)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def clean(text: str) -> str:
    """Without control characters but for tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def sentence(reason: str, name: str = "") -> str:
    """A reason by itself; a name that it begins with is no word to be written large."""
    text = clean(reason)
    is_name = bool(name) and text.startswith(f"{name} ")
    return (text if is_name else text[:1].upper() + text[1:]) + "."


def when(seconds: float) -> str:
    """A wall-clock time in the reader's own zone; the date only if it is not today's."""
    found, now = time.localtime(seconds), time.localtime()
    is_today = found[:3] == now[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", found)


def terminal_columns(stream: TextIO | None = None) -> int:
    """Columns of the terminal; without one nothing is cut, nor where it does not know (0)."""
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or UNBOUNDED
    except (OSError, ValueError):
        return UNBOUNDED


def named(row: Mapping[str, Any], name: str = "") -> str:
    """An instance, or ``name`` of a row, as it is typed: with its namespace but for the default."""
    name = name or str(row["instance"])
    # Some rows have it in the name, and those of a daemon of an earlier version do not tell.
    if "/" in name or row.get("namespace", "default") in ("", "default"):
        return name
    return f"{row['namespace']}/{name}"


def job_name(document: Mapping[str, Any]) -> str:
    """As it is typed: the namespace is left out when it is the default one."""
    return named(document, str(document["job"]))
