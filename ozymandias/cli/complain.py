"""Problems as people read them: what is wrong, where, by how much, and what to do about it.

Written to stderr. A job that does not fit shows every node with what is free and what is short,
and the changes that the scheduler itself has checked; a bad job file shows each mistake with its
line and a caret under it.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ozymandias.cli.render import BOLD, DIM, GREEN, RED, clean, paint, table
from ozymandias.model.units import format_cores, format_size
from ozymandias.problems import Problem

EXCERPT_CHARACTERS_MAX = 120
ERRORS_SHOWN_MAX = 20


def problem_text(problem: Problem, source: str | None = None) -> str:
    """``source`` is the job file's text, for excerpts."""
    lines = [paint(f"Error: {problem.kind.title}", f"{BOLD};{RED}", sys.stderr)]
    errors = problem.fields.get("errors")
    if isinstance(errors, list) and errors:
        lines += field_errors(str(problem.fields.get("file", "")), errors, source)
        return "\n".join(lines)
    if problem.detail:
        lines.append(clean(problem.detail))
    nodes, suggestions = problem.fields.get("nodes"), problem.fields.get("suggestions")
    if isinstance(nodes, list) and nodes:
        lines += ["", *_shortfalls(nodes)]
    if isinstance(suggestions, list) and suggestions:
        lines += ["", "It would fit if you:"]
        lines += [f"  {paint('*', GREEN, sys.stderr)} {clean(s['text'])}" for s in suggestions]
    elif problem.hint:
        lines.append(paint("Hint: ", BOLD, sys.stderr) + clean(problem.hint))
    return "\n".join(lines)


def field_errors(
    file: str, errors: Sequence[Mapping[str, Any]], source: str | None
) -> Iterable[str]:
    """Each complaint with its place, the line itself and a caret under the column."""
    text = source.splitlines() if source is not None else []
    for error in errors[:ERRORS_SHOWN_MAX]:
        line, column = int(error.get("line", 0)), int(error.get("column", 0))
        pointer = f"{error['pointer']}: " if error.get("pointer") else ""
        place = paint(f"{file}:{line}:{column}:", BOLD, sys.stderr)
        yield f"{place} {pointer}{clean(str(error.get('detail', '')))}"
        if 0 < line <= len(text):
            yield from _excerpt(text[line - 1], line, column)
        if error.get("hint"):
            yield f"  {paint('hint:', BOLD, sys.stderr)} {clean(str(error['hint']))}"
    if len(errors) > ERRORS_SHOWN_MAX:
        yield f"... and {len(errors) - ERRORS_SHOWN_MAX} more"


def _excerpt(text: str, line: int, column: int) -> Iterable[str]:
    """A long line is cut around the column."""
    shown = clean(text.replace("\t", " "))
    start = max(0, column - EXCERPT_CHARACTERS_MAX // 2) if column > EXCERPT_CHARACTERS_MAX else 0
    shown = shown[start : start + EXCERPT_CHARACTERS_MAX]
    margin = f"{line:>5} | "
    yield paint(margin, DIM, sys.stderr) + shown
    caret = " " * max(0, min(column - 1 - start, len(shown))) + "^"
    yield paint(" " * (len(margin) - 2) + "| ", DIM, sys.stderr) + paint(caret, RED, sys.stderr)


def _shortfalls(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            node.get("node"),
            format_size(node["free"]["memory_bytes"]),
            _short(node["short"]["memory_bytes"]),
            format_size(node["free"]["disk_bytes"]),
            _short(node["short"]["disk_bytes"]),
            _note(node),
        )
        for node in nodes
    ]
    header = ("NODE", "MEMORY FREE", "SHORT BY", "DISK FREE", "SHORT BY", "NOTE")
    return table(header, rows, indent="  ", stream=sys.stderr)


def _short(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes > 0 else "-"


def _note(node: Mapping[str, Any]) -> str:
    notes = [str(node["reason"])] if node.get("reason") else []
    if cores := node["short"].get("cpu_millis"):
        free = format_cores(node["free"].get("cpu_millis") or 0)
        notes.append(f"{format_cores(cores)} short ({free} free)")
    notes += [f"port {port} taken" for port in node.get("taken_ports", ())]
    return "; ".join(notes)
