"""The shapes of what the API takes and gives: `/v1/openapi.json` is generated from these.

Requests are decoded into them. Answers are built by `api/documents.py` as plain documents, which is
quicker and reads better there; tests hold every real answer against its shape here, both ways.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ozymandias.model.node import LABEL_NAME, LABEL_VALUE

Name = Annotated[str, Meta(max_length=253)]
Count = Annotated[int, Meta(ge=0)]
Word = Annotated[str, Meta(max_length=32_768)]

LabelName = Annotated[str, Meta(pattern=f"^(?:{LABEL_NAME})$", max_length=63)]
LabelValue = Annotated[str, Meta(pattern=f"^(?:{LABEL_VALUE})$", max_length=63)]

JobState = Literal["stopping", "failed", "pending", "deploying", "idle", "healthy"]


# What is asked ----------------------------------------------------------------------------------


class ScaleRequest(Struct, forbid_unknown_fields=True):
    """How many instances the job shall have."""

    instances: Annotated[int, Meta(ge=0, le=100_000)]


class DrainRequest(Struct, forbid_unknown_fields=True):
    """How to empty a node."""

    deadline_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 0.0  # 0: none
    force: bool = False
    dry_run: bool = False
    reason: Annotated[str, Meta(max_length=500)] = ""


class LabelRequest(Struct, forbid_unknown_fields=True):
    """Labels to set on a node, and names of those to take away."""

    set: Annotated[dict[LabelName, LabelValue], Meta(max_length=100)] = {}
    remove: Annotated[list[LabelName], Meta(max_length=100)] = []


class WhatIfRequest(Struct, forbid_unknown_fields=True):
    """Steps to be supposed, one after the other: `lose n2; add n4 16G; scale web 12`."""

    steps: Annotated[str, Meta(max_length=4096)]


class ExecRequest(Struct, forbid_unknown_fields=True):
    """A command to run to its end in a container of the instance."""

    command: Annotated[list[Word], Meta(min_length=1, max_length=1024)]
    container: Name = ""
    timeout_seconds: Annotated[float, Meta(gt=0, le=3600)] = 60.0


# Problems ---------------------------------------------------------------------------------------


class Problem(Struct):
    """RFC 9457. Kinds have members of their own beside these (numbers, names)."""

    type: str
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    hint: str = ""
    instance: str = ""


# Instances, nodes, events -----------------------------------------------------------------------


class InstanceRow(Struct):
    instance: str
    job: str
    namespace: str
    node: str | None
    state: str
    healthy: bool
    address: str | None
    version: Count
    restarts: Count
    reason: str


class InstanceList(Struct):
    items: list[InstanceRow]
    next: str | None


class Amount(Struct):
    total: int
    reserved: int
    allocated: int


class Blocker(Struct):
    """An instance that a drain can't move now, and why."""

    instance: str
    job: str
    namespace: str
    reason: str


class NodeDrain(Struct):
    since: float
    deadline: float | None
    by: str
    reason: str
    blockers: list[Blocker]


class NodeRow(Struct):
    name: str
    state: Literal["ready", "tainted", "cordoned", "draining", "drained", "degraded", "lost"]
    schedules: bool
    cordoned: bool
    drain: NodeDrain | None
    allows_host_network: bool
    memory_bytes: Amount
    disk_bytes: Amount
    cpu_millis: Amount  # a total of 0: processors are not counted there
    labels: dict[str, str]
    instances: Count
    reason: str


class NodeList(Struct):
    items: list[NodeRow]
    next: str | None


class NodeChanged(Struct):
    """What became of a change of a node; ``revision`` is that of the store."""

    node: NodeRow
    changed: bool
    reason: str
    revision: Count


class Mover(Struct):
    """An instance that leaves a node: to another, or (null) because it is not needed any more."""

    instance: str
    job: str
    namespace: str
    to: str | None
    reason: str


class Drained(NodeChanged):
    """A drain, begun or foreseen."""

    movers: list[Mover]
    blockers: list[Blocker]


class Shed(Struct):
    """An instance that leaves a host under pressure: to a node, or (null) to wait for room."""

    instance: str
    job: str
    namespace: str
    priority: Count
    to: str | None
    reason: str


class Kept(Struct):
    """An instance that pressure does not make leave, and why."""

    instance: str
    job: str
    namespace: str
    priority: Count
    reason: str


class Shedding(Struct):
    """Who leaves a node while pressure lasts, in this order; ``pressure`` is "" if there is none.

    ``keeps`` is how many of them the node would keep now; null: nobody is asked to leave.
    """

    node: str
    pressure: str
    keeps: Count | None
    leaving: list[Shed]
    staying: list[Kept]


class EventRow(Struct):
    time: float
    node: str
    number: Count
    kind: str
    reason: str
    namespace: str
    job: str
    instance: str


class EventList(Struct):
    items: list[EventRow]
    next: str | None


# Jobs -------------------------------------------------------------------------------------------


class JobRow(Struct):
    job: str
    namespace: str
    type: Literal["service", "system"]
    priority: Count
    version: Count
    wanted: Count
    healthy: Count
    pending: Count
    state: JobState
    hosts: list[str]


class JobList(Struct):
    items: list[JobRow]
    next: str | None


class JobStatus(Struct):
    job: str
    namespace: str
    type: Literal["service", "system"]
    priority: Count
    uid: str
    version: Count
    wanted: Count
    healthy: Count
    pending: Count
    up_to_date: Count
    state: JobState
    hosts: list[str]
    instances: list[InstanceRow]
    problem: Problem | None
    revision: Count
    etag: str
    frozen: str | None  # by which freeze window its change is held, and until when


class VersionRow(Struct):
    version: Count
    uid: str
    current: bool
    instances: Count
    images: dict[str, str]
    submitted_by: str
    submitted_at: float
    message: str
    override_freeze: str


class VersionList(Struct):
    items: list[VersionRow]


class Step(Struct):
    instance: str
    job: str
    namespace: str
    node: str
    reason: str


class Move(Struct):
    instance: str
    job: str
    namespace: str
    origin: str = field(name="from")
    to: str
    reason: str


class PlanDocument(Struct):
    """`stay` are old instances that no new one comes for.

    `notes` say what of the job file changes nothing in this cluster, such as a preferred label
    that no node has, or a job to be apart from that is not there. They are in the way of nothing.
    """

    fits: bool
    place: list[Step]
    stop: list[Step]
    move: list[Move]
    stay: list[Step]
    problem: Problem | None
    notes: list[str]


class Changed(Struct):
    """What became of a change; ``revision`` is that of the store."""

    job: str
    namespace: str
    uid: str
    version: Count
    wanted: Count
    changed: bool
    created: bool
    plan: PlanDocument
    revision: Count
    etag: str


class ContainerDemand(Struct):
    name: str
    image: str
    memory_bytes: Count
    disk_bytes: Count
    restart: str
    healthcheck: str | None


# The rest ---------------------------------------------------------------------------------------


class Lines(Struct):
    lines: list[str]


class ExecAnswer(Struct):
    exit_code: int
    stdout: str
    stderr: str
    truncated: bool


class LogLine(Struct):
    """One line of the stream of logs. With `previous`: one ended run per line instead."""

    instance: str
    container: str
    time: float
    stream: Literal["stdout", "stderr"]
    text: str


class RunLine(Struct):
    time: float
    stream: Literal["stdout", "stderr"]
    text: str


class EndedRun(Struct):
    instance: str
    namespace: str
    container: str
    node: str
    version: Count
    started_at: float | None
    ended_at: float
    exit_code: int | None
    oom_killed: bool
    reason: str
    lines: list[RunLine]


class Info(Struct):
    """Which daemon answers, and the right of the token that it was asked with."""

    cluster: str
    node: str
    version: str
    right: Literal["admin", "deploy"]


class Pulse(Struct):
    status: Literal["alive", "ready"]
