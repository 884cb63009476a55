"""Checks of whole mappings and lists, made of tables of fields.

A Field is one row: what it is called, how it is checked, what it is for, what it is when left out.
From the same rows come the parsing, the JSON Schema (`schema.py`) and the reference in the docs
(`reference.py`). A Record reads a mapping by its rows and hands what was given to a builder.
"""

import re
from collections.abc import Callable
from collections.abc import Mapping as Table
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ozymandias.jobspec.checks import WRONG, Check, Schema, attempt, expected, is_right
from ozymandias.jobspec.loader import Entry, Mapping, Node, Scalar, Sequence
from ozymandias.jobspec.report import Mark, Place, Wrong, did_you_mean, quoted

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str
    check: Check
    doc: str
    default: str = ""  # in words, for the reference; "" with is_required False: nothing
    aliases: tuple[str, ...] = ()
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Marked(Generic[T]):
    """A value that still knows where it stands, for checks that compare it with others."""

    value: T
    mark: Mark
    at: Place

    def wrong(self, detail: str, hint: str = "") -> None:
        self.at.wrong(self.mark, detail, hint)


@dataclass(slots=True)
class Given:
    """The fields of one mapping, by their names proper."""

    at: Place
    mark: Mark
    values: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    misspelt: set[str] = field(default_factory=set)  # fields that an unknown one probably means
    is_clean: bool = True  # nothing in it is unknown, wrong or missing

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def has(self, name: str) -> bool:
        """Given at all, rightly or not."""
        return name in self.entries

    def is_wrong(self, name: str) -> bool:
        return name in self.entries and name not in self.values

    def wrong(self, name: str, detail: str, hint: str = "") -> None:
        """A complaint about a field, at its value if it has one."""
        entry = self.entries.get(name)
        self.at.inside(name).wrong(entry.value.mark if entry else self.mark, detail, hint)

    def kept(self, *names: str) -> dict[str, Any]:
        """Those of the named fields that were given, as arguments of a constructor."""
        return {name: self.values[name] for name in names if name in self.values}


Build = Callable[[Given], Any]


def _briefly(doc: str) -> str:
    """The first words of a row's description, as part of a sentence."""
    return doc[0].lower() + re.split(r"[,;:.](?: |$)", doc[1:], maxsplit=1)[0]


def too_many(count: int, limit: int) -> Wrong:
    return Wrong(f"{count} entries; at most {limit} are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A mapping with known fields. `build` is called even if some are wrong, unless `is_strict`."""

    title: str  # "a container"
    fields: tuple[Field, ...]
    build: Build
    unbuilt: Table[str, str] = field(default_factory=dict)  # known, refused as not built yet
    meant: Table[str, str] = field(default_factory=dict)  # other tools' word -> a hint
    is_strict: bool = True

    @property
    def expects(self) -> str:
        needed = [f'"{f.name}"' for f in self.fields if f.is_required]
        return f"{self.title}, a mapping" + (f" with {' and '.join(needed)}" if needed else "")

    def read(self, node: Node, at: Place) -> Any:
        if not isinstance(node, Mapping):
            raise expected(self.expects, node)
        given = Given(at, node.mark)
        rows = {name: row for row in self.fields for name in (row.name, *row.aliases)}
        for entry in node.entries.values():
            self._read_entry(entry, rows, given)
        for row in self.fields:
            if row.is_required and not given.has(row.name):
                given.is_clean = False
                if node.is_whole and row.name not in given.misspelt:
                    given.wrong(row.name, f"required, but missing: {_briefly(row.doc)}")
        if self.is_strict and not given.is_clean:
            return WRONG
        return self.build(given)

    def _read_entry(self, entry: Entry, rows: Table[str, Field], given: Given) -> None:
        name = entry.key.text
        place = given.at.inside(name)
        row = rows.get(name)
        if row is None:
            given.is_clean = False
            detail, hint = self._unknown(name, rows, given)
            place.wrong(entry.key.mark, detail, hint)
            given.misspelt.update(re.findall(r'did you mean "(\w+)"', hint))
            return
        first = given.entries.get(row.name)
        if first is not None:
            given.is_clean = False
            both = f"{quoted(first.key.text)} and {quoted(name)}"
            place.wrong(entry.key.mark, f"{both} are the same field", "remove one of the two")
            return
        given.entries[row.name] = entry
        if isinstance(entry.value, Scalar) and entry.value.value is None:
            given.is_clean = False
            hint = "give a value" if row.is_required else "give a value or leave the field out"
            place.wrong(entry.value.mark, f"expected {row.check.expects}, found nothing", hint)
            return
        value = attempt(row.check, entry.value, place)
        if is_right(value):
            given.values[row.name] = value
        else:
            given.is_clean = False

    def _unknown(self, name: str, rows: Table[str, Field], given: Given) -> tuple[str, str]:
        if name in self.unbuilt:
            return f"{quoted(name)} is not built yet: {self.unbuilt[name]}", "leave it out for now"
        if name in self.meant:
            return f"unknown field {quoted(name)}", self.meant[name]
        may_guess = given.at.report.may_guess()
        hint = did_you_mean(name, [*rows, *self.unbuilt]) if may_guess else ""
        return f"unknown field {quoted(name)}", hint

    def schema(self) -> Schema:
        properties: Schema = {}
        needed: list[Schema] = []
        for row in self.fields:
            for name in (row.name, *row.aliases):
                words = row.doc if name == row.name else f"The same as {row.name}. {row.doc}"
                if row.default:
                    words += f" Default: {row.default}."
                properties[name] = row.check.schema() | {"description": words}
            if row.is_required:
                needed.append({"anyOf": [{"required": [n]} for n in (row.name, *row.aliases)]})
        document: Schema = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
        plain = [n["anyOf"][0]["required"][0] for n in needed if len(n["anyOf"]) == 1]
        if plain:
            document["required"] = plain
        several = [n for n in needed if len(n["anyOf"]) > 1]
        return document | ({"allOf": several} if several else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list of alike items, each Marked; where `accepts_single`, one item may stand alone."""

    item: Check
    title: str  # of all of them: "a list of ports"
    items_max: int
    accepts_single: bool = False

    @property
    def expects(self) -> str:
        return self.title

    def read(self, node: Node, at: Place) -> tuple[Marked[Any], ...] | Any:
        if self.accepts_single and not isinstance(node, Sequence):
            value = self.item.read(node, at)
            return (Marked(value, node.mark, at),) if is_right(value) else WRONG
        if not isinstance(node, Sequence):
            example = node.text if isinstance(node, Scalar) and len(node.text) < 40 else "…"
            raise expected(
                self.title, node, f'write it as a list: ["{example}"]' * (example != "…")
            )
        if len(node.items) > self.items_max:
            raise too_many(len(node.items), self.items_max)
        values = []
        is_clean = True
        for index, item in enumerate(node.items):
            place = at.inside(index)
            value = attempt(self.item, item, place)
            if is_right(value):
                values.append(Marked(value, item.mark, place))
            else:
                is_clean = False
        return tuple(values) if is_clean else WRONG

    def schema(self) -> Schema:
        many = {"type": "array", "items": self.item.schema(), "maxItems": self.items_max}
        return {"anyOf": [many, self.item.schema()]} if self.accepts_single else many


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf:
    """A mapping whose keys are names of the user's choice; values are Marked at their keys."""

    item: Check
    key: Check
    title: str
    items_max: int

    @property
    def expects(self) -> str:
        return self.title

    def read(self, node: Node, at: Place) -> dict[str, Marked[Any]]:
        """Keeps what is right: checks across items should still see the others."""
        if not isinstance(node, Mapping) or not node.entries:
            hint = 'write NAME: {…} in place of each "-"' if isinstance(node, Sequence) else ""
            raise expected(self.title, node, hint)
        if len(node.entries) > self.items_max:
            raise too_many(len(node.entries), self.items_max)
        values = {}
        for name, entry in node.entries.items():
            place = at.inside(name)
            attempt(self.key, entry.key, place)
            value = attempt(self.item, entry.value, place)
            if is_right(value):
                values[name] = Marked(value, entry.key.mark, place)
        return values

    def schema(self) -> Schema:
        return {
            "type": "object",
            "minProperties": 1,
            "maxProperties": self.items_max,
            "propertyNames": self.key.schema(),
            "additionalProperties": self.item.schema(),
        }
