"""Bytes -> a tree of plain values that know their line and column: a strict subset of YAML.

Built on the events of libyaml's parser, not on its objects: so depth and number of values are
bounded while reading, and anchors and tags are seen at all. Refused are aliases, anchors, merge
keys, tags, duplicate keys, a second document, and whatever is not UTF-8.

Plain words are read by the few rules below, none of YAML 1.1's surprises: `no` and `on` are text,
`22:22` is text, `010` is text; only true and false are booleans. JSON is a subset and is read too.
A scalar keeps its text as written, so `1.10` can still be "1.10" where text is wanted.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from ozymandias.jobspec.report import Mark, Place, Report, Wrong, quoted
from ozymandias.model.units import format_size

FILE_BYTES_MAX = 64 * 2**10
DEPTH_MAX = 20
VALUES_MAX = 5_000

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,299})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,300}\.[0-9]{0,300}|\.?[0-9]{1,300})(?:[eE][-+]?[0-9]{1,5})?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False}
_JSON_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_NULLS = ("", "~", "null", "Null", "NULL")

Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Scalar:
    value: Plain
    text: str  # as written
    mark: Mark


@dataclass(frozen=True, slots=True)
class Sequence:
    mark: Mark
    items: "list[Node]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    key: Scalar
    value: "Node"


@dataclass(frozen=True, slots=True)
class Mapping:
    mark: Mark
    entries: dict[str, Entry] = field(default_factory=dict)
    is_whole: bool = True  # False: there were keys that could not be read


@dataclass(frozen=True, slots=True)
class Broken:
    """Something already complained about; nobody need complain again."""

    mark: Mark


Node = Scalar | Sequence | Mapping | Broken


def load(data: bytes, report: Report) -> Node | None:
    """The document's tree; None if it can't be read at all. Complaints go to the report."""
    text = ""
    try:
        text = _text(data)
        return _Reader(text, report).document()
    except Wrong as wrong:
        report.add_last(wrong.mark or Mark(1, 1), wrong.detail, wrong.hint)
    except yaml.YAMLError as error:
        mark, detail, hint = _explained(error, text)
        report.add_last(mark, detail, hint)
    return None


def _text(data: bytes) -> str:
    if len(data) > FILE_BYTES_MAX:
        limit = format_size(FILE_BYTES_MAX)
        raise Wrong(f"the file has {format_size(len(data))}; at most {limit} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", errors="replace")
        raise Wrong(
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            "save the file as UTF-8",
            mark=_mark_after(before),
        ) from None
    strange = re.search(
        r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text
    )
    if strange:
        name = "a NUL byte" if strange[0] == "\0" else f"the control character {strange[0]!r}"
        raise Wrong(f"the file contains {name}", mark=_mark_after(text[: strange.start()]))
    if text.lstrip().startswith("{"):
        text = _JSON_PAIR.sub(_one_escape, text)
    return text


def _one_escape(pair: re.Match[str]) -> str:
    """JSON writes a rare letter as two escapes, YAML as one of eight digits."""
    letter = json.loads(f'"{pair[0]}"')
    return f"\\U{ord(letter):08x}"


def _mark_after(text: str) -> Mark:
    return Mark(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


class _Reader:
    """Turns events into nodes without recursing deeper than DEPTH_MAX."""

    def __init__(self, text: str, report: Report) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._report = report
        self._values = 0

    def document(self) -> Node:
        next(self._events)  # the stream's start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise Wrong("the file is empty", 'a job needs at least "name" and "containers"')
        root = self._node(next(self._events), Place(self._report), 0)
        next(self._events)  # the document's end
        more = next(self._events)
        if not isinstance(more, yaml.StreamEndEvent):
            raise Wrong("a second document begins here", "one file holds one job", mark=_mark(more))
        return root

    def _node(self, event: yaml.Event, at: Place, depth: int) -> Node:
        mark = _mark(event)
        self._values += 1
        if self._values > VALUES_MAX:
            raise Wrong(f"more than {VALUES_MAX} values in one file", mark=mark)
        if self._report.is_full:
            raise Wrong("so much is wrong that the rest of the file is not read", mark=mark)
        if isinstance(event, yaml.AliasEvent):
            at.wrong(mark, f"alias *{event.anchor} is not allowed", "write the value out again")
            return Broken(mark)
        assert isinstance(event, yaml.NodeEvent)
        if event.anchor is not None:
            at.wrong(mark, f"anchor &{event.anchor} is not allowed", "write the value out instead")
        tag: str | None = getattr(event, "tag", None)
        if tag is not None:
            short = tag.replace("tag:yaml.org,2002:", "!!")
            at.wrong(mark, f"tag {quoted(short)} is not allowed", "write the plain value")
            # Read on, so that the rest of the file is checked too, but judge nothing inside.
        if isinstance(event, yaml.ScalarEvent):
            return Broken(mark) if tag is not None else _scalar(event, mark)
        if depth >= DEPTH_MAX:
            raise Wrong(f"nested deeper than {DEPTH_MAX} levels", mark=mark)
        node = (
            self._sequence(mark, at, depth + 1)
            if isinstance(event, yaml.SequenceStartEvent)
            else self._mapping(mark, at, depth + 1)
        )
        return Broken(mark) if tag is not None else node

    def _sequence(self, mark: Mark, at: Place, depth: int) -> Sequence:
        node = Sequence(mark)
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            node.items.append(self._node(event, at.inside(len(node.items)), depth))
        return node

    def _mapping(self, mark: Mark, at: Place, depth: int) -> Mapping:
        entries: dict[str, Entry] = {}
        is_whole = True
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, at, depth)
            is_merge = (
                isinstance(event, yaml.ScalarEvent) and event.value == "<<" and not event.style
            )
            name = key.text if isinstance(key, Scalar) else ""
            value = self._node(next(self._events), at.inside(name) if name else at, depth)
            is_whole = is_whole and isinstance(key, Scalar) and not is_merge
            if is_merge:
                at.wrong(key.mark, 'the merge key "<<" is not allowed', "write the fields out")
            elif isinstance(key, Scalar):
                self._enter(entries, key, value, at)
            elif not isinstance(key, Broken):
                at.wrong(key.mark, "a key must be a plain word, not a list or a mapping")
        return Mapping(mark, entries, is_whole)

    def _enter(self, entries: dict[str, Entry], key: Scalar, value: Node, at: Place) -> None:
        first = entries.get(key.text)
        if first is not None:
            at.inside(key.text).wrong(
                key.mark,
                f"duplicate key {quoted(key.text)}; it is already given in line"
                f" {first.key.mark.line}",
                "remove one of the two",
            )
            return
        entries[key.text] = Entry(key, value)


def _mark(event: yaml.Event) -> Mark:
    start: Any = event.start_mark
    return Mark(start.line + 1, start.column + 1)


def _scalar(event: yaml.ScalarEvent, mark: Mark) -> Scalar:
    text: str = event.value
    is_plain = event.implicit[0]
    return Scalar(_plain_value(text) if is_plain else text, text, mark)


def _plain_value(text: str) -> Plain:
    """What a word without quotes means. Anything not listed here is text."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS or text == "FALSE":
        return _BOOLEANS.get(text, False)
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not _LEADING_ZERO.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def _explained(error: yaml.YAMLError, text: str) -> tuple[Mark, str, str]:
    """libyaml's complaint in our words, with what to do about the commonest ones."""
    where = getattr(error, "problem_mark", None)
    mark = Mark(where.line + 1, where.column + 1) if where is not None else Mark(1, 1)
    problem = str(getattr(error, "problem", None) or "cannot be read")
    context = str(getattr(error, "context", None) or "")
    detail = f"not valid YAML: {problem}" + (f" {context}" if context else "")
    hint = ""
    if "cannot start any token" in problem:
        hint = "indent with spaces, not tabs; put text that begins with @, ` or % in quotes"
    elif "mapping values are not allowed" in problem:
        hint = 'put text that contains ": " in quotes; check the indentation'
    elif "did not find expected" in problem:
        hint = _unquoted(error, mark, text.splitlines())
        hint = hint or "check the indentation, and that every bracket and quote is closed"
    elif "end of stream" in problem and "quoted" in context:
        hint = "a quotation mark is not closed"
    return mark, detail, hint


def _unquoted(error: yaml.YAMLError, mark: Mark, lines: list[str]) -> str:
    """What to put in quotes where a text seems to have ended before its end; "" if none seems to.

    Brackets and braces of a text end it, or begin another list, within a list on one line; so does
    what follows the bracket that a text begins with.
    """
    line = "".join(lines[mark.line - 1 : mark.line])
    before, after = line[: mark.column - 1].rstrip(), line[mark.column - 1 :]
    context = str(getattr(error, "context", None) or "")
    start = getattr(error, "context_mark", None)
    first = "".join(lines[start.line : start.line + 1]) if start is not None else ""
    if "anchor" in context or "alias" in context:
        return "put text with brackets in it, or that begins with & or *, in quotes"
    if (context and before.endswith(("]", "}"))) or (
        "flow" in context and after.startswith(tuple("[]{}"))
    ):
        return (
            'a text with brackets or braces in it is written in quotes, as in ["echo", "[x]"];'
            " check also the brackets and commas"
        )
    if "flow" in context and before.endswith(("'", '"')):
        return "a comma is missing, or quotes around the whole text and not a part of it"
    if "flow" in context and " #" in first:
        return '" #" begins a comment: put text with it in quotes, and close every bracket'
    return ""
