"""Values that people write in several forms, compose's among them, read into one.

Commands (text or list), environment and labels (mapping or list), ports ("80:3000", 3000 or a
mapping), restart policies, tmpfs mounts, what a container depends on, image references.
"""

import re
import shlex
from collections.abc import Iterator
from collections.abc import Mapping as Table
from dataclasses import dataclass, field
from typing import Any

from ozymandias.jobspec.checks import (
    PORT,
    AbsolutePath,
    Choice,
    Schema,
    Size,
    attempt,
    expected,
    is_right,
    text_of,
)
from ozymandias.jobspec.loader import Mapping, Node, Scalar, Sequence
from ozymandias.jobspec.records import Field, Given, ListOf, Marked, Record
from ozymandias.jobspec.report import Mark, Place, Wrong, did_you_mean, quoted
from ozymandias.model.job import Condition, Dependency, Port, Protocol, RestartMode, RestartPolicy
from ozymandias.model.job import Tmpfs as TmpfsMount

COMMAND_TEXT_MAX = 8 * 2**10  # of a command in one text, which has to be split
ARGUMENTS_MAX = 1000
PAIRS_MAX = 1000
RESTARTS_MAX = 1000

TMPFS_SPACE = Size(2**12, 2**40)
TMPFS_SPACE_DEFAULT = 64 * 2**20

# Image references: [registry[:port]/]path[:tag][@digest], as podman reads them.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REGISTRY = rf"(?:{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?/)?"
_TAG = r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
_DIGEST = r"(?:@sha256:[0-9a-f]{64}|@sha512:[0-9a-f]{128})?"
IMAGE_PATTERN = rf"{_REGISTRY}{_PART}(?:/{_PART})*{_TAG}{_DIGEST}"


@dataclass(frozen=True, slots=True)
class Image:
    expects: str = "an image reference such as postgres:13 or registry.example/team/app:1.2"

    def read(self, node: Node, at: Place) -> str:
        text = text_of(node, self.expects, length_max=512)
        if not re.fullmatch(IMAGE_PATTERN, text):
            lower = text.lower().strip()
            lower = re.sub(r"^\w+://", "", lower)
            hint = f'for example "{lower}"' if re.fullmatch(IMAGE_PATTERN, lower) else ""
            raise expected(self.expects, node, hint)
        return text

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{IMAGE_PATTERN}$", "maxLength": 512}


@dataclass(frozen=True, slots=True)
class Command:
    """A list of arguments, or one text that is split as a shell would (nothing is expanded)."""

    is_needed: bool = False  # an empty one makes no sense

    @property
    def expects(self) -> str:
        return "a command, as a text or a list of texts"

    def read(self, node: Node, at: Place) -> tuple[str, ...]:
        is_empty = (
            not node.items
            if isinstance(node, Sequence)
            else not text_of(node, self.expects).strip()
        )
        if self.is_needed and is_empty:
            raise Wrong("the command is empty")
        return self._list(node, at) if isinstance(node, Sequence) else self._split(node)

    def _list(self, node: Sequence, at: Place) -> tuple[str, ...]:
        if len(node.items) > ARGUMENTS_MAX:
            raise Wrong(f"{len(node.items)} arguments; at most {ARGUMENTS_MAX} are allowed")
        checked = [
            attempt(_ARGUMENT, item, at.inside(index)) for index, item in enumerate(node.items)
        ]
        return tuple(word for word in checked if is_right(word))

    def _split(self, node: Node) -> tuple[str, ...]:
        text = text_of(node, self.expects, length_max=COMMAND_TEXT_MAX)
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            raise Wrong(
                f"the command {quoted(text)} can't be split into words: {str(error).lower()}",
                'write it as a list, for example ["sh", "-c", "…"]',
            ) from None

    def schema(self) -> Schema:
        words = {"type": "array", "items": _ARGUMENT.schema(), "maxItems": ARGUMENTS_MAX}
        return {"anyOf": [{"type": "string"}, words]}


@dataclass(frozen=True, slots=True)
class Argument:
    """One text; numbers and booleans are taken as they are written."""

    expects: str = "a text"

    def read(self, node: Node, at: Place) -> str:
        return text_of(node, self.expects)

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean"]}


_ARGUMENT = Argument()


# ${NAME}, ${NAME:-default}; not $${NAME}, which stands for the text itself.
_VARIABLE = re.compile(r"(?<!\$)\$\{[A-Za-z_][A-Za-z0-9_]*[^}]{0,30}\}?")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and texts: a mapping, a list of NAME=VALUE, or a list of {name, value}."""

    what: str  # "environment variable"
    a_what: str  # "an environment variable"
    key_pattern: str
    key_expects: str
    reserved: Table[str, str] = field(default_factory=dict)  # pattern of a name -> why not
    refuses_variables: bool = False  # in values, where somebody would expect them replaced

    @property
    def expects(self) -> str:
        return f"{self.what}s, as a mapping or a list of NAME=VALUE"

    def read(self, node: Node, at: Place) -> tuple[tuple[str, str], ...]:
        if not isinstance(node, Mapping | Sequence):
            raise expected(self.expects, node)
        items = node.entries if isinstance(node, Mapping) else node.items
        if len(items) > PAIRS_MAX:
            raise Wrong(f"{len(items)} {self.what}s; at most {PAIRS_MAX} are allowed")
        pairs: dict[str, str] = {}
        for name, key_node, value, place in self._pairs(node, at):
            problem = self._name_problem(name) or (
                f"{self.what} {quoted(name)} is given twice" if name in pairs else ""
            )
            if problem:
                place.wrong(key_node.mark, problem)
                continue
            text = value if isinstance(value, str) else attempt(_PAIR_VALUE, value, place)
            mark = key_node.mark if isinstance(value, str) else value.mark
            pairs[name] = self._literal(text, mark, place) if is_right(text) else ""
        return tuple(pairs.items())

    def _literal(self, text: str, mark: Mark, place: Place) -> str:
        """The text, unless a variable in it would have to be replaced by something."""
        if not self.refuses_variables or "${" not in text:
            return text
        if found := _VARIABLE.search(text):
            place.wrong(
                mark,
                f"{quoted(found[0])} would stay as it is: variables are not replaced",
                f"write its value, or for the text itself {quoted('$' + found[0])}",
            )
        return text.replace("$${", "${")

    def _pairs(self, node: Node, at: Place) -> Iterator[tuple[str, Node, Node | str, Place]]:
        if isinstance(node, Mapping):
            for name, entry in node.entries.items():
                yield name, entry.key, entry.value, at.inside(name)
            return
        assert isinstance(node, Sequence)
        for index, item in enumerate(node.items):
            place = at.inside(index)
            if isinstance(item, Mapping):
                pair = attempt(_NAME_AND_VALUE, item, place)
                if is_right(pair):
                    yield pair[0], item, pair[1], place
            elif isinstance(item, Scalar) and "=" in item.text:
                name, _, text = item.text.partition("=")
                yield name, item, Scalar(text, text, item.mark), place
            else:
                attempt(_NeverAPair(self.a_what), item, place)

    def _name_problem(self, name: str) -> str:
        if not re.fullmatch(self.key_pattern, name) or len(name) > 255:
            return f"expected {self.key_expects} as name of {self.a_what}, found {quoted(name)}"
        for pattern, why in self.reserved.items():
            if re.fullmatch(pattern, name):
                return f"{self.what} {quoted(name)} {why}"
        return ""

    def schema(self) -> Schema:
        name = {"type": "string", "pattern": f"^{self.key_pattern}$"}
        pair = {"type": "string", "pattern": "="}
        items = {"anyOf": [pair, _NAME_AND_VALUE.schema()]}
        mapping = {
            "type": "object",
            "propertyNames": name,
            "additionalProperties": _PAIR_VALUE.schema(),
        }
        return {"anyOf": [mapping, {"type": "array", "items": items, "maxItems": PAIRS_MAX}]}


@dataclass(frozen=True, slots=True)
class _PairValue:
    expects: str = "a text"

    def read(self, node: Node, at: Place) -> str:
        if isinstance(node, Scalar) and node.value is None:
            raise expected(self.expects, node, 'write "" for an empty text')
        return text_of(node, self.expects)

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean"]}


@dataclass(frozen=True, slots=True)
class _NeverAPair:
    a_what: str

    @property
    def expects(self) -> str:
        return f"{self.a_what} as NAME=VALUE or {{name: …, value: …}}"

    def read(self, node: Node, at: Place) -> str:
        raise expected(self.expects, node)

    def schema(self) -> Schema:
        return {}


_PAIR_VALUE = _PairValue()
_NAME_AND_VALUE = Record(
    title="a pair",
    fields=(
        Field(name="name", check=_ARGUMENT, doc="The name.", is_required=True),
        Field(name="value", check=_PAIR_VALUE, doc="The text.", is_required=True),
    ),
    build=lambda given: (given.values["name"], given.values["value"]),
)

PROTOCOLS = Choice({"tcp": Protocol.TCP, "udp": Protocol.UDP})


def _build_port(given: Given) -> Port:
    container: int = given.values["container"]
    return Port(
        pod=given.get("pod", container),
        container=container,
        host=given.get("host"),
        protocol=given.get("protocol", Protocol.TCP),
    )


PORT_RECORD = Record(
    title="a port",
    fields=(
        Field(
            name="container",
            aliases=("target",),
            check=PORT,
            is_required=True,
            doc="The port that the process in the container listens on.",
        ),
        Field(
            name="pod",
            check=PORT,
            default="the container's port",
            doc="The port of the pod's own address that reaches it.",
        ),
        Field(
            name="host",
            aliases=("published",),
            check=PORT,
            doc="A port of the machine itself. One instance at most fits on a node then.",
        ),
        Field(name="protocol", check=PROTOCOLS, default="tcp", doc="The protocol."),
    ),
    build=_build_port,
)


@dataclass(frozen=True, slots=True)
class PortForm:
    """``80:3000``, ``3000``, either with ``/udp``, or a mapping."""

    expects: str = 'a port such as 3000, "80:3000" or {host: 8080, container: 80}'

    def read(self, node: Node, at: Place) -> Any:
        if isinstance(node, Mapping):
            return PORT_RECORD.read(node, at)
        text = text_of(node, self.expects, length_max=200)
        match = re.fullmatch(r"(?:(\d{1,6}):)?(\d{1,6})(?:/(\w+))?", text, re.ASCII)
        if not match:
            raise expected(self.expects, node, _port_hint(text))
        pod, container, protocol = match.groups()
        if protocol not in (None, "tcp", "udp"):
            raise expected("/tcp or /udp after a port", node)
        for number in filter(None, (pod, container)):
            if not PORT.low <= int(number) <= PORT.high:
                raise Wrong(f"port {number} is not in {PORT.low} to {PORT.high}")
        return Port(
            pod=int(pod or container),
            container=int(container),
            protocol=Protocol(protocol or "tcp"),
        )

    def schema(self) -> Schema:
        number = {"type": "integer", "minimum": PORT.low, "maximum": PORT.high}
        text = {"type": "string", "pattern": r"^([0-9]{1,5}:)?[0-9]{1,5}(/(tcp|udp))?$"}
        return {"anyOf": [number, text, PORT_RECORD.schema()]}


def _port_hint(text: str) -> str:
    if text.count(":") >= 2:
        return "a port of the machine is asked for as {host: 8080, container: 80}"
    if re.search(r"\d-\d", text):
        return "ranges are not supported: list each port"
    return ""


@dataclass(frozen=True, slots=True)
class Restart:
    expects: str = "always, on-failure, on-failure:N, unless-stopped or no"

    def read(self, node: Node, at: Place) -> RestartPolicy:
        text = text_of(node, self.expects)
        mode, colon, count = text.partition(":")
        if mode not in {m.value for m in RestartMode} or (colon and mode != "on-failure"):
            is_never = text in ("never", "false", "False")
            hint = 'write "no" for never' if is_never else did_you_mean(mode, list(RestartMode))
            raise expected(self.expects, node, hint)
        attempts = None
        if colon:
            if not re.fullmatch(r"[0-9]{1,9}", count) or not 1 <= int(count) <= RESTARTS_MAX:
                raise expected(f"on-failure:N with N from 1 to {RESTARTS_MAX}", node)
            attempts = int(count)
        return RestartPolicy(mode=RestartMode(mode), attempts_max=attempts)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^(always|on-failure(:[0-9]+)?|unless-stopped|no)$"}


@dataclass(frozen=True, slots=True)
class Tmpfs:
    expects: str = "a path, or PATH:size=SIZE, such as /tmp:size=64M"

    def read(self, node: Node, at: Place) -> TmpfsMount:
        text = text_of(node, self.expects, length_max=1100)
        path_text, colon, options = text.partition(":")
        path = AbsolutePath(is_mount=True).read(Scalar(path_text, path_text, node.mark), at)
        if not colon:
            return TmpfsMount(path=path, space_bytes=TMPFS_SPACE_DEFAULT)
        name, _, size = options.partition("=")
        if name != "size":
            raise expected(self.expects, node, "size is the only option")
        space = TMPFS_SPACE.read(Scalar(size, size, node.mark), at)
        return TmpfsMount(path=path, space_bytes=space)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^/[^:]+(:size=[^:,]+)?$"}


CONDITIONS = Choice(
    {
        "started": Condition.STARTED,
        "healthy": Condition.HEALTHY,
        "service_started": Condition.STARTED,
        "service_healthy": Condition.HEALTHY,
    },
    unbuilt={"service_completed_successfully": "waiting for a container to end"},
)

_CONDITION_RECORD = Record(
    title="a dependency",
    fields=(
        Field(
            name="condition",
            check=CONDITIONS,
            is_required=True,
            doc="What to wait for in that container.",
        ),
    ),
    build=lambda given: given.values["condition"],
)


@dataclass(frozen=True, slots=True)
class DependsOn:
    """A list of containers, or a mapping of container to {condition}."""

    expects: str = "a list of containers, or a mapping of container to {condition: healthy}"

    def read(self, node: Node, at: Place) -> tuple[Marked[Dependency], ...]:
        if isinstance(node, Mapping):
            return tuple(self._conditions(node, at))
        if not isinstance(node, Sequence):
            raise expected(self.expects, node)
        names = ListOf(item=_ARGUMENT, title=self.expects, items_max=100).read(node, at)
        seen: dict[str, Marked[Dependency]] = {}
        for marked in names if is_right(names) else ():
            if marked.value in seen:
                marked.wrong(f"{quoted(marked.value)} is listed twice")
            seen[marked.value] = Marked(Dependency(container=marked.value), marked.mark, marked.at)
        return tuple(seen.values())

    def _conditions(self, node: Mapping, at: Place) -> Iterator[Marked[Dependency]]:
        for name, entry in node.entries.items():
            place = at.inside(name)
            condition = attempt(_CONDITION_RECORD, entry.value, place)
            if is_right(condition):
                dependency = Dependency(container=name, condition=condition)
                yield Marked(dependency, entry.key.mark, place)

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}, "maxItems": 100},
                {"type": "object", "additionalProperties": _CONDITION_RECORD.schema()},
            ]
        }
