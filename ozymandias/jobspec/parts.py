"""What a container is watched by and stores things in: the tables of health checks and volumes.

One row per field; the builder beside each table turns what was given into the model's value, with
the defaults filled in, and checks how the fields go together.
"""

import re
from dataclasses import dataclass
from typing import Any

from ozymandias.jobspec.checks import (
    NAME,
    PORT,
    WRONG,
    AbsolutePath,
    Choice,
    Duration,
    Flag,
    Integer,
    Schema,
    Size,
    attempt,
    expected,
    is_right,
    text_of,
)
from ozymandias.jobspec.forms import Argument, Command
from ozymandias.jobspec.loader import Node, Scalar, Sequence
from ozymandias.jobspec.records import Field, Given, Record
from ozymandias.jobspec.report import Place, Wrong, quoted
from ozymandias.jobspec.words import OTHER_HEALTHCHECK_WORDS, OTHER_VOLUME_WORDS
from ozymandias.model.job import HealthCheck, HealthKind, Volume, VolumeKind

THRESHOLD = Integer(1, 100)
SPACE = Size(2**20, 2**50)
_ARGUMENT = Argument()

# Health checks ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HealthTest:
    """Compose's test: ["CMD", …], ["CMD-SHELL", "…"], ["NONE"], or a text for the shell."""

    expects: str = '["CMD", …], ["CMD-SHELL", "…"] or a text for the shell'

    def read(self, node: Node, at: Place) -> Any:
        """The command; None for a check that is switched off."""
        if isinstance(node, Scalar):
            return ("/bin/sh", "-c", text_of(node, self.expects))
        if not isinstance(node, Sequence) or not node.items:
            raise expected(self.expects, node)
        texts = [attempt(_ARGUMENT, item, at.inside(i)) for i, item in enumerate(node.items)]
        if not all(is_right(text) for text in texts):
            return WRONG
        kind, *words = texts
        if kind == "NONE" and not words:
            return None
        if kind == "CMD" and words:
            return tuple(words)
        if kind == "CMD-SHELL" and len(words) == 1:
            return ("/bin/sh", "-c", words[0])
        if kind in ("CMD", "CMD-SHELL"):
            raise Wrong(
                f"{kind} is followed by {len(words)} texts",
                'write ["CMD", "prog", "arg"] or ["CMD-SHELL", "one text"]',
            )
        raise Wrong(f"the test begins with {quoted(kind)}", 'begin it with "CMD" or "CMD-SHELL"')

    def schema(self) -> Schema:
        texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        return {"anyOf": [{"type": "string"}, texts]}


@dataclass(frozen=True, slots=True)
class UrlPath:
    expects: str = 'a path that begins with "/"'

    def read(self, node: Node, at: Place) -> str:
        text = text_of(node, self.expects, length_max=1024)
        if not text.startswith("/"):
            raise expected(self.expects, node, f"for example {quoted('/' + text[:40])}")
        if not re.fullmatch(r"[!-~]+", text) or "#" in text:
            raise Wrong(
                f"path {quoted(text)} has a space, a # or a letter that URLs don't have",
                "write such letters as %20 and so on",
            )
        return text

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^/[!-~]*$", "maxLength": 1024}


def _build_healthcheck(given: Given) -> Any:
    """None: switched off."""
    test = given.get("test")
    if given.get("disable") or (given.has("test") and test is None):
        return None
    command = test or given.get("command")
    kind = given.get("type") or (HealthKind.EXEC if command else None)
    before = given.at.report.count
    if kind is None:
        given.wrong("type", "required, but missing: http, tcp or exec")
        return WRONG
    if given.has("test") and given.has("command"):
        given.wrong("test", '"command" and "test" mean the same', "remove one of the two")
    if kind is HealthKind.EXEC:
        if command is None:
            given.wrong("command", 'required for type "exec", but missing')
    elif not given.has("port"):
        hint = "the port that the process in the container listens on"
        given.wrong("port", f'required for type "{kind}", but missing', hint)
    belongs = {"path": ("http",), "port": ("http", "tcp"), "command": ("exec",), "test": ("exec",)}
    for name, kinds in belongs.items():
        if given.has(name) and kind not in kinds:
            given.wrong(name, f'belongs to type "{" or ".join(kinds)}", but type is "{kind}"')
    if given.at.report.count > before:
        return WRONG
    renamed = {f"{n}_seconds": given.get(n) for n in ("timeout", "interval", "start_period")}
    return HealthCheck(
        kind=kind,
        command=command or (),
        **{name: value for name, value in renamed.items() if value is not None},
        **given.kept("port", "path", "healthy_threshold", "unhealthy_threshold"),
    )


HEALTHCHECK = Record(
    title="a health check",
    fields=(
        Field(
            name="type",
            check=Choice({k.value: k for k in HealthKind}),
            default="exec where there is a command",
            doc="How the container is asked: http (only status 200 is healthy), tcp (a connection"
            " is accepted) or exec (a command in the container ends with 0).",
        ),
        Field(name="port", check=PORT, doc="For http and tcp: the port of the container."),
        Field(name="path", check=UrlPath(), default="/", doc="For http: the path to ask for."),
        Field(name="command", check=Command(is_needed=True), doc="For exec: the command."),
        Field(
            name="test",
            check=HealthTest(),
            doc='Compose\'s spelling of command; ["NONE"] switches the check off.',
        ),
        Field(
            name="timeout",
            check=Duration(0.1, 3600),
            default="5s",
            doc="How long an answer may take.",
        ),
        Field(
            name="interval",
            check=Duration(0.1, 86400),
            default="10s",
            doc="The time from one check to the next.",
        ),
        Field(
            name="healthy_threshold",
            check=THRESHOLD,
            default="1",
            doc="So many good answers in a row make it healthy.",
        ),
        Field(
            name="unhealthy_threshold",
            aliases=("retries",),
            check=THRESHOLD,
            default="3",
            doc="So many bad answers in a row make it unhealthy.",
        ),
        Field(
            name="start_period",
            check=Duration(0, 86400),
            default="0s",
            doc="Bad answers do not count so long after the start.",
        ),
        Field(name="disable", check=Flag(), default="false", doc="Compose's way to have no check."),
    ),
    build=_build_healthcheck,
    unbuilt={"start_interval": "another interval while starting"},
    meant=OTHER_HEALTHCHECK_WORDS,
)

# Volumes ---------------------------------------------------------------------------------------


def _build_volume(given: Given) -> Any:
    kind: VolumeKind = given.get("type", VolumeKind.LOCAL)
    path: str = given.values["path"]
    name: str = given.get("name") or volume_name(path)
    if not name:
        given.wrong("name", f"no name can be made of the path {quoted(path)}", 'give a "name"')
        return WRONG
    if given.get("keep") and kind is not VolumeKind.LOCAL:
        given.wrong("keep", "only a local volume can be kept; a shared one always is")
        return WRONG
    return Volume(
        kind=kind,
        name=name,
        path=path,
        space_bytes=given.values["space"],
        keep=given.get("keep", False),
    )


def volume_name(path: str) -> str:
    """The name of a volume that was given none: /data/scratch -> data-scratch."""
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:63].strip("-")


VOLUME = Record(
    title="a volume",
    fields=(
        Field(
            name="type",
            check=Choice(
                {k.value: k for k in VolumeKind},
                hints={
                    "bind": "directories of the machine can't be mounted; use local",
                    "volume": 'did you mean "local"?',
                    "tmpfs": "a container has a field tmpfs for that",
                },
            ),
            default="local",
            doc="local: of one container of one instance, on its node. shared: one for all"
            " instances of the job, wherever they run.",
        ),
        Field(
            name="path",
            aliases=("target",),
            check=AbsolutePath(is_mount=True),
            is_required=True,
            doc="Where the container sees it.",
        ),
        Field(
            name="space",
            check=SPACE,
            is_required=True,
            doc="How much it may hold. Of a local volume writing more fails inside the container;"
            " a shared one has no limit of its own yet.",
        ),
        Field(
            name="name",
            aliases=("source",),
            check=NAME,
            default="made of the path: /data/scratch is data-scratch",
            doc="Shared volumes of one name are one volume, in all containers of the job.",
        ),
        Field(
            name="keep",
            check=Flag(),
            default="false",
            doc="A local volume that stays on its node when the instance goes.",
        ),
    ),
    build=_build_volume,
    meant=OTHER_VOLUME_WORDS,
)
