"""Checks of single values: each turns one node into a value or says what was expected instead.

A check also knows its words for people (`expects`, in complaints and in the reference) and its
JSON Schema (for editors), so that the three can't drift apart. What a field is called, and what it
is for, is not known here: see `fields.py`.
"""

import re
from collections.abc import Callable
from collections.abc import Mapping as Table
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from ozymandias.jobspec.loader import Broken, Mapping, Node, Scalar, Sequence
from ozymandias.jobspec.report import Place, Wrong, did_you_mean, nearest, quoted, shown
from ozymandias.model.units import format_size, parse_duration, parse_size

Schema = dict[str, Any]

TEXT_LENGTH_MAX = 32 * 2**10
DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class Check(Protocol):
    """Reads one node. Raises Wrong, or notes complaints about its parts at their own places."""

    @property
    def expects(self) -> str: ...

    def read(self, node: Node, at: Place) -> Any: ...

    def schema(self) -> Schema: ...


class _WrongValue:
    """Stands for a value that was already complained about."""

    def __repr__(self) -> str:
        return "WRONG"


WRONG = _WrongValue()


def is_right(value: Any) -> TypeGuard[Any]:
    return value is not WRONG


def attempt(check: Check, node: Node, at: Place) -> Any:
    """What the check reads; WRONG if it can't, which is then noted in the report."""
    if isinstance(node, Broken):
        return WRONG
    try:
        return check.read(node, at)
    except Wrong as wrong:
        at.wrong(wrong.mark or node.mark, wrong.detail, wrong.hint)
        return WRONG


def found(node: Node) -> str:
    """What stands there, in words: the second half of "expected …, found …"."""
    if isinstance(node, Sequence):
        return "a list" if node.items else "an empty list"
    if isinstance(node, Mapping):
        return "a mapping" if node.entries else "an empty mapping"
    if isinstance(node, Broken) or node.value is None:
        return "nothing"
    if isinstance(node.value, str):
        return f"the text {quoted(node.value)}" if node.value else "an empty text"
    return shown(node.text)


def expected(expects: str, node: Node, hint: str = "") -> Wrong:
    return Wrong(f"expected {expects}, found {found(node)}", hint)


def text_of(node: Node, expects: str, *, length_max: int = TEXT_LENGTH_MAX) -> str:
    """The text of a scalar, numbers and booleans as they are written."""
    if not isinstance(node, Scalar) or node.value is None:
        raise expected(expects, node, _one_text(node))
    if "\0" in node.text:
        raise Wrong("text must not contain a NUL character")
    if len(node.text) > length_max:
        raise Wrong(f"text of {len(node.text)} characters; at most {length_max} are allowed")
    return node.text


def _one_text(node: Node) -> str:
    """What to do where a colon made a mapping of a text: ``[curl, -H, Accept: text/html]``."""
    entries = list(node.entries.values()) if isinstance(node, Mapping) else []
    if len(entries) != 1 or entries[0].key.mark != node.mark:
        return ""  # it was written in braces
    key, value = entries[0].key, entries[0].value
    if not isinstance(value, Scalar) or value.mark.line != key.mark.line:
        return ""
    return f"if it is one text, write it in quotes: {quoted(f'{key.text}: {value.text}')}"


@dataclass(frozen=True, slots=True)
class Text:
    """Text that matches a pattern."""

    expects: str
    pattern: str = r"[^\0]+"
    length_max: int = 1024
    suggest: Callable[[str], str] | None = None
    reserved: Table[str, str] | None = None

    def read(self, node: Node, at: Place) -> str:
        text = text_of(node, self.expects, length_max=self.length_max)
        if not re.fullmatch(self.pattern, text):
            better = self.suggest(text) if self.suggest else ""
            raise expected(self.expects, node, better)
        if self.reserved and text in self.reserved:
            raise Wrong(self.reserved[text])
        return text

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "maxLength": self.length_max}


def dns_name_hint(text: str) -> str:
    """A valid name near to the one that was written."""
    better = re.sub(r"[^a-z0-9]+", "-", text[:200].lower()).strip("-")[:63].strip("-")
    return f'for example "{better}"' if better else ""


NAME = Text(
    expects="a name of at most 63 lower-case letters, digits and hyphens",
    pattern=DNS_LABEL,
    suggest=dns_name_hint,
)


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int
    accepts_quoted: bool = False

    @property
    def expects(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, node: Node, at: Place) -> int:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            if not self.accepts_quoted:
                bare = f"write {int(value)}" + ", without quotes" * (str(int(value)) == value)
                raise expected(self.expects, node, bare)
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise expected(self.expects, node)
        if not self.low <= value <= self.high:
            raise expected(self.expects, node)
        return value

    def schema(self) -> Schema:
        number = {"type": "integer", "minimum": self.low, "maximum": self.high}
        if self.accepts_quoted:
            return {"anyOf": [number, {"type": "string", "pattern": "^[0-9]{1,18}$"}]}
        return number


PORT = Integer(1, 65535, accepts_quoted=True)


@dataclass(frozen=True, slots=True)
class Number:
    low: float
    high: float
    unit: str

    @property
    def expects(self) -> str:
        return f"a number of {self.unit} from {self.low:g} to {self.high:g}"

    def read(self, node: Node, at: Place) -> float:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
            value = float(value)  # compose writes cpus: "0.5"
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise expected(self.expects, node)
        if not self.low <= value <= self.high:
            raise expected(self.expects, node)
        return float(value)

    def schema(self) -> Schema:
        number = {"type": "number", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [number, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}]}


@dataclass(frozen=True, slots=True)
class Size:
    low: int
    high: int

    @property
    def expects(self) -> str:
        return f"a size from {format_size(self.low)} to {format_size(self.high)}"

    def read(self, node: Node, at: Place) -> int:
        if not isinstance(node, Scalar) or isinstance(node.value, bool) or node.value is None:
            raise expected(self.expects, node)
        try:
            size = parse_size(node.text)
        except ValueError:
            raise expected(self.expects, node, "write for example 512M or 2G") from None
        if not self.low <= size <= self.high:
            with_unit = f"{node.text.strip()}M"
            bare = node.text.strip().isdigit() and len(node.text) <= 12
            meant = bare and self.low <= parse_size(with_unit) <= self.high
            hint = f'a bare number counts bytes; did you mean "{with_unit}"?' if meant else ""
            raise Wrong(f"expected {self.expects}, found {shown(node.text)}", hint)
        return size

    def schema(self) -> Schema:
        text = {
            "type": "string",
            "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[KMGTPkmgtp]?([iI]?[bB])?\s*$",
        }
        number = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [number, text]}


@dataclass(frozen=True, slots=True)
class Duration:
    low: float
    high: float

    @property
    def expects(self) -> str:
        return f"a duration from {_duration(self.low)} to {_duration(self.high)}"

    def read(self, node: Node, at: Place) -> float:
        if not isinstance(node, Scalar) or isinstance(node.value, bool) or node.value is None:
            raise expected(self.expects, node)
        value = node.text if isinstance(node.value, str) else node.value
        try:
            seconds = parse_duration(value)
        except (ValueError, OverflowError):
            raise expected(self.expects, node, "write for example 30, 30s or 1m30s") from None
        if not self.low <= seconds <= self.high:
            raise Wrong(f"expected {self.expects}, found {shown(node.text)}")
        return seconds

    def schema(self) -> Schema:
        text = {"type": "string", "pattern": r"^\s*([0-9]+(\.[0-9]+)?(ms|us|s|m|h|d)?)+\s*$"}
        number = {"type": "number", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [number, text]}


def _duration(seconds: float) -> str:
    """One unit, exact: bounds are round numbers."""
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= factor and seconds % factor == 0:
            return f"{seconds / factor:g}{unit}"
    return f"{seconds:g}s"


@dataclass(frozen=True, slots=True)
class Flag:
    @property
    def expects(self) -> str:
        return "true or false"

    def read(self, node: Node, at: Place) -> bool:
        value = node.value if isinstance(node, Scalar) else None
        if not isinstance(value, bool):
            meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}
            guess = meant.get(str(value).lower(), str(value).lower())
            hint = f"write {guess}, without quotes" if guess in ("true", "false") else ""
            raise expected(self.expects, node, hint)
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words; several spellings may mean the same."""

    choices: Table[str, Any]
    unbuilt: Table[str, str] | None = None  # word -> what it would be; refused as such
    hints: Table[str, str] | None = None  # a likely mistake -> what to do instead

    @property
    def expects(self) -> str:
        words = list(self.choices)
        return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]

    def read(self, node: Node, at: Place) -> Any:
        text = text_of(node, self.expects)
        if text in self.choices:
            return self.choices[text]
        if self.unbuilt and text in self.unbuilt:
            raise Wrong(f"{quoted(text)} is not built yet: {self.unbuilt[text]}")
        hint = (self.hints or {}).get(text) or did_you_mean(text, self.choices)
        raise expected(self.expects, node, hint)

    def schema(self) -> Schema:
        return {"enum": list(self.choices)}


@dataclass(frozen=True, slots=True)
class Known:
    """A word of a long list, in any case, with or without a prefix (signals, capabilities)."""

    what: str
    words: frozenset[str]
    prefix: str
    example: str
    keeps_prefix: bool

    @property
    def expects(self) -> str:
        return f"{self.what} such as {self.example}"

    def read(self, node: Node, at: Place) -> str:
        text = text_of(node, self.expects, length_max=100)
        bare = text.upper().removeprefix(self.prefix)
        if bare not in self.words:
            guess = nearest(bare, self.words)
            full = self.prefix + guess if self.keeps_prefix else guess
            raise expected(self.expects, node, f'did you mean "{full}"?' if guess else "")
        return self.prefix + bare if self.keeps_prefix else bare

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^[A-Za-z0-9_]+$"}


@dataclass(frozen=True, slots=True)
class AbsolutePath:
    """A path inside a container: absolute, without `.` or `..`, and not the root itself."""

    expects: str = "an absolute path such as /data"
    length_max: int = 1024
    accepts_root: bool = False
    is_mount: bool = False

    def read(self, node: Node, at: Place) -> str:
        text = text_of(node, self.expects, length_max=self.length_max)
        if not text.startswith("/"):
            raise expected(self.expects, node, f'for example "/{shown(text.lstrip("./"), 40)}"')
        parts = [part for part in text.split("/") if part]
        if "." in parts or ".." in parts:
            raise Wrong(f'path {quoted(text)} must not contain "." or ".." as a part')
        if not parts and not self.accepts_root:
            raise Wrong('path "/" is the whole container', "give a directory in it, such as /data")
        if self.is_mount and (parts[0] in ("proc", "sys") or parts == ["dev"]):
            raise Wrong(f"path {quoted(text)} belongs to the system", "choose one such as /data")
        if any(not c.isprintable() or c == ":" for c in text):
            raise Wrong(
                f"path {quoted(text)} contains a colon or a character that is not printable"
            )
        return "/" + "/".join(parts)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^/", "maxLength": self.length_max}
