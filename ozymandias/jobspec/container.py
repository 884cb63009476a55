"""A container: its table of fields, and the draft that is made of what was given.

One row per field. What one container can tell by itself is checked here; what compares containers
with each other is in `rules.py`.
"""

from dataclasses import dataclass
from typing import Any

from ozymandias.jobspec.checks import (
    AbsolutePath,
    Choice,
    Duration,
    Flag,
    Known,
    Number,
    Size,
    Text,
)
from ozymandias.jobspec.forms import Command, DependsOn, Image, Pairs, PortForm, Restart, Tmpfs
from ozymandias.jobspec.parts import HEALTHCHECK, VOLUME
from ozymandias.jobspec.records import Field, Given, ListOf, Marked, Record
from ozymandias.jobspec.report import quoted
from ozymandias.jobspec.words import (
    CAPABILITIES,
    OTHER_CONTAINER_WORDS,
    RESERVED_LABELS,
    RESERVED_VARIABLES,
    SIGNALS,
    UNBUILT_CONTAINER_FIELDS,
)
from ozymandias.model.job import Container, Dependency, Port, PullPolicy, Volume, VolumeKind

PORTS_MAX = 100
VOLUMES_MAX = 50

MEMORY = Size(4 * 2**20, 16 * 2**40)
CPU = Number(0.01, 1024, "cores")
ENVIRONMENT = Pairs(
    "environment variable",
    "an environment variable",
    r"[A-Za-z_][A-Za-z0-9_]*",
    "letters, digits and _, not beginning with a digit,",
    RESERVED_VARIABLES,
    refuses_variables=True,
)
LABELS = Pairs(
    "label",
    "a label",
    r"[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?",
    "letters and digits, with _ . / - between them,",
    RESERVED_LABELS,
)
CAPABILITY = Known("a capability", CAPABILITIES, "CAP_", "NET_ADMIN", keeps_prefix=False)
CAPABILITY_LIST = ListOf(item=CAPABILITY, title="a list of capabilities", items_max=50)

_LIMITS = Record(
    title="limits",
    fields=(
        Field(name="memory", check=MEMORY, doc="The same as memory of the container."),
        Field(name="cpus", check=CPU, doc="The same as cpu of the container."),
    ),
    build=lambda given: given,
)
_RESOURCES = Record(
    title="resources",
    fields=(Field(name="limits", check=_LIMITS, doc="Hard limits."),),
    build=lambda given: given.get("limits"),
    unbuilt={"reservations": "a soft limit beside the hard one"},
)
_DEPLOY = Record(
    title="compose's deploy section",
    fields=(Field(name="resources", check=_RESOURCES, doc="Limits of the container."),),
    build=lambda given: given.get("resources"),
    meant={"replicas": 'the job says how many: "numInstances"'},
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A container with the places of what is still to be compared with other containers."""

    container: Container  # without its name, which is its key
    ports: tuple[Marked[Port], ...]
    depends_on: tuple[Marked[Dependency], ...]
    volumes: tuple[Marked[Volume], ...]
    has_wrong_ports: bool


def _build_container(given: Given) -> Draft:
    """Always a draft, of whatever was right: the other containers are compared with it."""
    limits: Given | None = given.get("deploy")
    for name, theirs in (("memory", "memory"), ("cpu", "cpus")):
        if limits is not None and limits.has(theirs):
            if given.has(name):
                limits.wrong(theirs, f'the container has "{name}" as well', "remove one of the two")
            given.values[name] = limits.get(theirs)
    lists: dict[str, Any] = {
        name: given.get(name, ())
        for name in ("ports", "depends_on", "volumes", "tmpfs", "cap_add", "cap_drop")
    }
    _check_paths(lists["volumes"], lists["tmpfs"])
    if "stop_grace_period" in given.values:
        given.values["stop_grace_seconds"] = given.values["stop_grace_period"]
    values: dict[str, Any] = {
        name: tuple(m.value for m in marked) for name, marked in lists.items()
    }
    container = Container(
        name="",
        image=given.get("image", ""),
        **values,
        **({"memory_bytes": given.values["memory"]} if given.get("memory") else {}),
        **given.kept(
            *("pull_policy", "entrypoint", "command", "environment", "restart", "cpu", "user"),
            *("healthcheck", "working_dir", "init", "stop_signal", "stop_grace_seconds"),
            *("read_only", "labels"),
        ),
    )
    return Draft(
        container=container,
        ports=lists["ports"],
        depends_on=lists["depends_on"],
        volumes=lists["volumes"],
        has_wrong_ports=given.is_wrong("ports"),
    )


def _check_paths(volumes: tuple[Marked[Any], ...], tmpfs: tuple[Marked[Any], ...]) -> None:
    paths: set[str] = set()
    names: set[tuple[VolumeKind, str]] = set()
    for marked in (*volumes, *tmpfs):
        if marked.value.path in paths:
            marked.wrong(f"path {quoted(marked.value.path)} is already taken in this container")
        paths.add(marked.value.path)
    for marked in volumes:
        identity = (marked.value.kind, marked.value.name)
        if identity in names:
            marked.wrong(
                f"this container already has a {marked.value.kind} volume named"
                f" {quoted(marked.value.name)}",
                'give one of them another "name"',
            )
        names.add(identity)


CONTAINER = Record(
    title="a container",
    fields=(
        Field(name="image", check=Image(), is_required=True, doc="The image to run."),
        Field(
            name="pull_policy",
            check=Choice(
                {p.value: p for p in PullPolicy} | {"if_not_present": PullPolicy.MISSING},
                hints={"build": "build the image first"},
            ),
            default="missing",
            doc="When the image is fetched: if it is not there, before every start, or never.",
        ),
        Field(
            name="entrypoint",
            check=Command(),
            default="the image's",
            doc="The program, in place of the image's entry point.",
        ),
        Field(
            name="command",
            check=Command(),
            default="the image's",
            doc="Its arguments, in place of the image's command. A text is split as a shell would;"
            " nothing is expanded.",
        ),
        Field(name="environment", check=ENVIRONMENT, doc="Environment variables."),
        Field(
            name="ports",
            check=ListOf(item=PortForm(), title="a list of ports", items_max=PORTS_MAX),
            doc='Ports to reach it by. "80:3000": port 80 of the pod\'s address reaches 3000 of the'
            " container; 3000 alone exposes 3000.",
        ),
        Field(
            name="depends_on",
            check=DependsOn(),
            doc="Containers of this job that start first; with condition: healthy they must also"
            " have become healthy.",
        ),
        Field(
            name="restart",
            check=Restart(),
            default="always",
            doc="Whether it is started again when it ends.",
        ),
        Field(
            name="memory",
            aliases=("mem_limit",),
            check=MEMORY,
            default="256M",
            doc="A hard limit, and what the scheduler sets aside.",
        ),
        Field(
            name="cpu",
            aliases=("cpus",),
            check=CPU,
            default="no limit",
            doc="A limit of its use of processors, and what the scheduler sets aside on nodes that"
            " count theirs.",
        ),
        Field(
            name="healthcheck",
            check=HEALTHCHECK,
            default="healthy once it has run for a second",
            doc="How it is found out whether the container works.",
        ),
        Field(
            name="volumes",
            check=ListOf(item=VOLUME, title="a list of volumes", items_max=VOLUMES_MAX),
            doc="Directories with a size of their own.",
        ),
        Field(
            name="tmpfs",
            check=ListOf(
                item=Tmpfs(),
                title="a list of tmpfs mounts",
                items_max=VOLUMES_MAX,
                accepts_single=True,
            ),
            doc="Directories in memory: /tmp (64M) or /tmp:size=16M. They count as its memory.",
        ),
        Field(
            name="user",
            check=Text(
                "a user as NAME, UID, or either with :GROUP",
                r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?",
                length_max=100,
            ),
            default="the image's",
            doc="Who the process runs as.",
        ),
        Field(
            name="working_dir",
            check=AbsolutePath(accepts_root=True),
            default="the image's",
            doc="Where it starts.",
        ),
        Field(
            name="init",
            check=Flag(),
            default="false",
            doc="Run a small init as process 1, which reaps zombies and passes signals on.",
        ),
        Field(
            name="stop_signal",
            check=Known("a signal", SIGNALS, "SIG", "SIGTERM", keeps_prefix=True),
            default="the image's, else SIGTERM",
            doc="What asks it to end.",
        ),
        Field(
            name="stop_grace_period",
            check=Duration(0, 3600),
            default="10s",
            doc="How long it may take to end before it is killed.",
        ),
        Field(
            name="read_only",
            check=Flag(),
            default="false",
            doc="Its root file system can't be written to; volumes and tmpfs can.",
        ),
        Field(name="cap_add", check=CAPABILITY_LIST, doc="Capabilities it gets."),
        Field(name="cap_drop", check=CAPABILITY_LIST, doc="Capabilities it loses; ALL for all."),
        Field(name="labels", check=LABELS, doc="Labels of the container."),
        Field(
            name="deploy",
            check=_DEPLOY,
            doc="Compose's place of limits: deploy.resources.limits.memory and .cpus.",
        ),
    ),
    build=_build_container,
    unbuilt=UNBUILT_CONTAINER_FIELDS,
    meant=OTHER_CONTAINER_WORDS,
    is_strict=False,
)
