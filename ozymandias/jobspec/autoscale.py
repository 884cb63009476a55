"""Pools: how many instances at least and at most, where to ask for pending work, and when not to.

autoscale:
  min: 0
  max: 10
  pending: {url: "http://queue.example/stats", path: jobs.waiting}
  freeze: [{from: "22:00", to: "06:00", weekdays: mon-fri, timezone: Europe/Berlin}]
"""

import re
import shlex
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ozymandias.jobspec.checks import (
    WRONG,
    Duration,
    Integer,
    Schema,
    Text,
    expected,
    text_of,
)
from ozymandias.jobspec.forms import Command
from ozymandias.jobspec.loader import Node, Sequence
from ozymandias.jobspec.records import Field, Given, ListOf, Marked, Record
from ozymandias.jobspec.report import Place, Wrong, quoted
from ozymandias.model.job import Autoscale, Freeze, PendingSource
from ozymandias.model.week import (
    ALL_DAYS,
    WEEKDAYS,
    covers_week,
    parse_clock,
    parse_weekdays,
    zone_of,
)

POOL_MAX = 10_000
WINDOWS_MAX = 20
URL_LENGTH_MAX = 2048
KEY_LENGTH_MAX = 512
OWN_KEYS = "ozymandias"
_COUNT = Integer(0, POOL_MAX)


# When it is not scaled ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockTime:
    expects: str = 'a time of day such as "22:00"'

    def read(self, node: Node, at: Place) -> int:
        try:
            return parse_clock(text_of(node, self.expects, length_max=20))
        except ValueError:
            raise expected(self.expects, node) from None

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^([01]?[0-9]|2[0-4]):[0-5][0-9]$"}


@dataclass(frozen=True, slots=True)
class StartTime(ClockTime):
    def read(self, node: Node, at: Place) -> int:
        if text_of(node, self.expects, length_max=20).strip() == "24:00":
            raise Wrong("a day begins at 00:00", "24:00 is that of the next day")
        return ClockTime.read(self, node, at)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^([01]?[0-9]|2[0-3]):[0-5][0-9]$"}


@dataclass(frozen=True, slots=True)
class Weekdays:
    """One text, or a list of them."""

    expects: str = "weekdays such as mon-fri, or [sat, sun]"

    def read(self, node: Node, at: Place) -> Any:
        items = node.items if isinstance(node, Sequence) else [node]
        texts = [text_of(item, self.expects, length_max=100) for item in items]
        try:
            return parse_weekdays(",".join(texts))
        except ValueError as error:
            raise Wrong(str(error)) from None

    def schema(self) -> Schema:
        text = {"type": "string"}
        return {"anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": 7}]}


@dataclass(frozen=True, slots=True)
class TimeZone:
    expects: str = "a time zone such as Europe/Berlin, or UTC"

    def read(self, node: Node, at: Place) -> str:
        name = text_of(node, self.expects, length_max=100)
        if zone_of(name) is None:
            hint = "it must be known on this host; Debian has them in tzdata"
            raise Wrong(f"there is no time zone {quoted(name)}", hint)
        return name

    def schema(self) -> Schema:
        return {"type": "string", "maxLength": 100}


FREEZE = Record(
    title="a freeze window",
    fields=(
        Field(name="from", check=StartTime(), is_required=True, doc="When it begins."),
        Field(
            name="to",
            check=ClockTime(),
            is_required=True,
            doc="When it ends; on the next day if that is not after the beginning.",
        ),
        Field(
            name="weekdays",
            check=Weekdays(),
            default="all of " + ", ".join(WEEKDAYS),
            doc="On which it begins.",
        ),
        Field(name="timezone", check=TimeZone(), default="UTC", doc="By whose clocks."),
    ),
    build=lambda given: Freeze(
        start=given.values["from"],
        end=given.values["to"],
        weekdays=given.get("weekdays", ALL_DAYS),
        timezone=given.get("timezone", "UTC"),
    ),
)


# Where pending work is asked for ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Url:
    expects: str = "a URL such as http://queue.example/stats"

    def read(self, node: Node, at: Place) -> str:
        text = text_of(node, self.expects, length_max=URL_LENGTH_MAX)
        try:
            parts = urlsplit(text)
            is_whole = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port  # ValueError: no number
        except ValueError:
            is_whole = False
        if not is_whole or re.search(r"[\s\x00-\x1f\x7f]", text):
            raise expected(self.expects, node, "http or https, with a host")
        if parts.username or parts.password:
            raise Wrong("the URL has a password in it, which all could read in the job file")
        return text

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^https?://", "maxLength": URL_LENGTH_MAX}


@dataclass(frozen=True, slots=True)
class Key:
    expects: str = "a key of etcd such as /queues/builds"

    def read(self, node: Node, at: Place) -> str:
        text = text_of(node, self.expects, length_max=KEY_LENGTH_MAX)
        if not text or not text.isprintable():
            raise expected(self.expects, node)
        if text.lstrip("/").startswith(OWN_KEYS):
            raise Wrong("those keys are the cluster's own")
        return text

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH_MAX}


_PATH = Text("a path such as jobs.waiting", r"[^.\s]{1,63}(\.[^.\s]{1,63}){0,9}", 640)


def _build_pending(given: Given) -> Any:
    sources = [name for name in ("url", "command", "key") if given.has(name)]
    if len(sources) != 1:
        found = f"{len(sources)} are given" if sources else "none is given"
        raise Wrong(f"one of url, command and key says where to ask; {found}")
    value = given.get(sources[0])
    if value is None:
        return WRONG
    target = shlex.join(value) if sources[0] == "command" else value
    return PendingSource(sources[0]), target, given.get("path", "")


PENDING = Record(
    title="where to ask for pending work",
    fields=(
        Field(name="url", check=Url(), doc="Asked by GET; the answer is JSON."),
        Field(
            name="command",
            check=Command(is_needed=True),
            doc="Run on a node that lists it under [autoscale] commands; what it prints is JSON.",
        ),
        Field(name="key", check=Key(), doc="A key of the cluster's etcd; its value is JSON."),
        Field(
            name="path",
            check=_PATH,
            default="the answer is the number",
            doc="The way to the number in the answer: names and positions, with dots between.",
        ),
    ),
    build=_build_pending,
)


# The pool -----------------------------------------------------------------------------------------


def _build_autoscale(given: Given) -> Any:
    least, most = given.values["min"], given.values["max"]
    if most < max(1, least):
        lower = f"min, which is {least}" if least else "one instance"
        given.wrong("max", f"{most} is less than {lower}")
        return WRONG
    windows: tuple[Marked[Freeze], ...] = given.get("freeze", ())
    freezes = tuple(marked.value for marked in windows)
    for zone in {freeze.timezone for freeze in freezes}:
        alike = [f for f in freezes if f.timezone == zone]
        if covers_week((f.start, f.end, f.weekdays) for f in alike):
            given.wrong("freeze", "the windows leave no minute of the week free")
            return WRONG
    source, target, path = given.values["pending"]
    return Autoscale(
        min=least,
        max=most,
        source=source,
        target=target,
        path=path,
        every_seconds=given.get("every", 30.0),
        step=given.get("step", 1),
        freeze=freezes,
        **_named(given),
    )


def _named(given: Given) -> dict[str, str]:
    names = {"kind": given.get("type"), "agent_name": given.get("agent_name")}
    return {name: value for name, value in names.items() if value is not None}


AUTOSCALE = Record(
    title="autoscale",
    fields=(
        Field(name="min", check=_COUNT, is_required=True, doc="At least so many, when idle."),
        Field(name="max", check=_COUNT, is_required=True, doc="At most so many."),
        Field(
            name="pending",
            check=PENDING,
            is_required=True,
            doc="Where to ask how much work is waiting.",
        ),
        Field(
            name="every",
            check=Duration(1.0, 86_400.0),
            default="30s",
            doc="How often it is asked, and at most one step is made.",
        ),
        Field(
            name="step",
            check=Integer(1, POOL_MAX),
            default="1",
            doc="How many more while something is pending.",
        ),
        Field(
            name="freeze",
            check=ListOf(item=FREEZE, title="a list of freeze windows", items_max=WINDOWS_MAX),
            doc="When it is not scaled; the windows of `ozy freeze` hold beside.",
        ),
        Field(
            name="type",
            check=Text("a word such as build", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", 63),
            default="autoscale",
            doc="What instances find as POOL_TYPE.",
        ),
        Field(
            name="agent_name",
            check=Text("a name such as {pool}-{slot}", r"[A-Za-z0-9._{}-]{1,100}", 100),
            default="{pool}-{slot}",
            doc="What instances find as AGENT_NAME; {pool}, {namespace}, {slot} and {node} are"
            " replaced.",
        ),
    ),
    build=_build_autoscale,
    meant={"minimum": 'did you mean "min"?', "interval": 'did you mean "every"?'},
)
