"""What a person asks for: a job, its containers, and how they are watched, stored and reached.

These values are complete: the job file's defaults are filled in before a Job exists, so nothing
downstream has to know a default. A Job is immutable and is what a version in the store holds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

from msgspec import Struct

from ozymandias.model.record import once

JobName = NewType("JobName", str)
Namespace = NewType("Namespace", str)

DEFAULT_NAMESPACE = Namespace("default")
DEFAULT_MEMORY_BYTES = 256 * 2**20
DEFAULT_GRACE_SECONDS = 10.0


class JobKey(NamedTuple):
    """A job's name is unique in its namespace."""

    namespace: Namespace
    name: JobName

    def __str__(self) -> str:
        return self.name if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{self.name}"


class HealthKind(StrEnum):
    HTTP = "http"
    TCP = "tcp"
    EXEC = "exec"


class RestartMode(StrEnum):
    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    UNLESS_STOPPED = "unless-stopped"
    NO = "no"


class PullPolicy(StrEnum):
    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


class VolumeKind(StrEnum):
    LOCAL = "local"
    SHARED = "shared"


class Condition(StrEnum):
    """What a container waits for in another one before it starts."""

    STARTED = "started"
    HEALTHY = "healthy"


class Protocol(StrEnum):
    TCP = "tcp"
    UDP = "udp"


class JobKind(StrEnum):
    SERVICE = "service"  # so many instances, anywhere
    SYSTEM = "system"  # one instance on every matching node, present and future


class NetworkMode(StrEnum):
    POD = "pod"  # an address of its own
    HOST = "host"  # the machine's own; system jobs only, where the node permits it


class OnPartition(StrEnum):
    """What becomes of an instance whose node has lost its lease."""

    KEEP = "keep"  # it goes on running
    STOP = "stop"  # it ends at the lease's deadline: it must never run twice


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    kind: HealthKind
    port: int = 0  # http, tcp: a port of the container
    path: str = "/"  # http
    command: tuple[str, ...] = ()  # exec: argv
    timeout_seconds: float = 5.0
    interval_seconds: float = 10.0
    healthy_threshold: int = 1
    unhealthy_threshold: int = 3
    start_period_seconds: float = 0.0


class RestartPolicy(Struct, frozen=True, kw_only=True, gc=False):
    mode: RestartMode = RestartMode.ALWAYS
    attempts_max: int | None = None  # on-failure:N


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """``"80:3000"``: port 80 of the pod's own address reaches 3000 of the container.

    ``host`` is a port of the machine itself, asked for in the long form; a scheduling resource.
    """

    pod: int  # the port on the pod's address
    container: int  # the port the process listens on
    host: int | None = None
    protocol: Protocol = Protocol.TCP


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    container: str
    condition: Condition = Condition.STARTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    kind: VolumeKind
    name: str  # unique in its container's job; derived from the path when not given
    path: str  # where the container sees it
    space_bytes: int
    keep: bool = False  # a local volume that outlives its instance on that node


@dataclass(frozen=True, slots=True, kw_only=True)
class Tmpfs:
    path: str
    space_bytes: int


class Container(Struct, frozen=True, kw_only=True, gc=False):
    name: str
    image: str
    pull_policy: PullPolicy = PullPolicy.MISSING
    entrypoint: tuple[str, ...] | None = None  # None: the image's own
    command: tuple[str, ...] | None = None  # None: the image's own
    environment: tuple[tuple[str, str], ...] = ()
    ports: tuple[Port, ...] = ()
    depends_on: tuple[Dependency, ...] = ()
    restart: RestartPolicy = RestartPolicy()
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    cpu: float | None = None  # a limit in cores, set aside where nodes count them
    healthcheck: HealthCheck | None = None
    volumes: tuple[Volume, ...] = ()
    user: str | None = None
    working_dir: str | None = None
    init: bool = False
    stop_signal: str | None = None
    stop_grace_seconds: float = DEFAULT_GRACE_SECONDS
    read_only: bool = False
    tmpfs: tuple[Tmpfs, ...] = ()
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressRule:
    """HTTP traffic for host + path prefix goes to this port of the pod's address."""

    host: str  # lower case; "" means the job's default host(s)
    path: str = "/"
    port: int  # a port of the pod's address (Port.pod)


class LabelTest(StrEnum):
    EQUAL = "=="
    UNEQUAL = "!="
    IN = "in"
    EXISTS = "exists"
    LESS = "<"
    MORE = ">"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRule:
    """``role == infra``, ``zone in [a, b]``, ``gpu exists``, ``cores > 4`` on a node's labels."""

    label: str
    test: LabelTest = LabelTest.EQUAL
    values: tuple[str, ...] = ()
    weight: int = 0  # of a preference; 0 in `require`


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another job to be near to or apart from."""

    job: JobKey
    weight: int = 0  # of a preference; 0: required


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Above ``after`` live instances the rest go to these nodes, until there is room at home."""

    after: int
    nodes: tuple[str, ...]


class PlacementRules(Struct, frozen=True, kw_only=True, gc=False):
    """Where a job's instances may be, and where they would rather be."""

    require: tuple[LabelRule, ...] = ()
    prefer: tuple[LabelRule, ...] = ()
    near: tuple[Neighbour, ...] = ()
    apart: tuple[Neighbour, ...] = ()
    spread: str = ""  # a label: as evenly over its values as may be
    max_per_node: int = 0  # 0: no limit
    burst: Burst | None = None

    @property
    def is_about_nodes(self) -> bool:
        """Whether it tells nodes apart by what they are, or by what else is on them."""
        return bool(self.require or self.prefer or self.near or self.apart or self.spread)


class PendingSource(StrEnum):
    """Where a pool asks how much work is waiting."""

    URL = "url"
    COMMAND = "command"
    KEY = "key"  # of etcd


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """A time of the week in which a job is not scaled; as a FreezeWindow of the cluster's."""

    start: int  # minutes after midnight
    end: int
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """A pool: more instances while something is pending, fewer when nothing is."""

    min: int
    max: int
    source: PendingSource
    target: str  # the URL, the command as one line of a shell's words, or the key
    path: str = ""  # into the JSON of the answer; "": it is the number itself
    every_seconds: float = 30.0
    step: int = 1
    freeze: tuple[Freeze, ...] = ()
    kind: str = "autoscale"  # what instances find as POOL_TYPE
    agent_name: str = "{pool}-{slot}"  # what they find as AGENT_NAME


class Job(Struct, frozen=True, kw_only=True, dict=True):
    name: JobName
    namespace: Namespace = DEFAULT_NAMESPACE
    instances: int = 1
    containers: tuple[Container, ...]
    # None: the default host to the first port, if there is one. Empty: not exposed at all.
    ingress: tuple[IngressRule, ...] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    kind: JobKind = JobKind.SERVICE  # a system job's `instances` says nothing
    network: NetworkMode = NetworkMode.POD
    on_partition: OnPartition = OnPartition.KEEP
    priority: int = 0  # the higher one is placed first
    min_available: int = 0  # healthy instances that we ourselves never go below
    placement: PlacementRules = PlacementRules()
    may_preempt: bool = True  # `preempt: never`: it displaces nobody, whatever its priority
    is_protected: bool = False  # `protected: true`: nobody displaces it
    autoscale: Autoscale | None = None
    min_available_percent: int = 0  # the same, of as many as are wanted; one of the two is 0

    @once
    def key(self) -> JobKey:
        return JobKey(self.namespace, self.name)

    def container(self, name: str) -> Container:
        return next(c for c in self.containers if c.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a pool's source said when it was last asked with something new to say."""

    pending: int | None  # None: the source could not be asked, or made no sense
    reason: str  # what came of it
    at: float = 0.0  # wall clock, for people
    by: str = ""  # the node that asked
    steps: int = 0  # how often the number of instances was changed for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One instance is to be elsewhere: it starts there, and stops here once that one is healthy.

    At most one of a job at a time, because its head has room for one.
    """

    slot: int  # the one that is to leave
    node: str  # where it is
    to_slot: int  # the one that takes its place
    to: str
    since: float  # wall clock
    reason: str = ""
    given_up: float = 0.0  # wall clock; 0: it is under way. The job rests for a while after this


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What the job's instances on one node do without, and since when."""

    node: str
    what: str  # in the words of its rules: "role == infra", "near db"
    since: float  # wall clock


class JobHead(Struct, frozen=True, kw_only=True):
    """The small, often rewritten part of a job in the store."""

    uid: str
    version: int  # the version that all instances should have
    wanted: int
    deleting: bool = False
    restart: int = 0  # raised by `ozy restart`: instances of an older generation are replaced
    commit: str = ""  # id of the transaction that wrote this
    idempotency: str = ""  # of the last change that came with a key: hashes of key and request
    # Why its instances are replaced though there is a freeze window; "": they wait for its end.
    override_freeze: str = ""
    look: Look | None = None  # of a pool
    move: Move | None = None  # under way, or the last one that was given up
    drift: tuple[Drift, ...] = ()  # what it would rather have, only where it does not


class JobVersion(Struct, frozen=True, kw_only=True, gc=False):
    """One immutable version of a job's specification."""

    uid: str
    version: int
    job: Job
    submitted_by: str = ""
    submitted_at: float = 0.0
    message: str = ""
    idempotency: str = ""  # hashes of the submit's Idempotency-Key and body
    override_freeze: str = ""  # why it did not wait for the end of a freeze window


class JobRecord(Struct, frozen=True, kw_only=True, dict=True):
    """A job as the cluster knows it: its head, the versions still kept, and the head's revision."""

    key: JobKey
    head: JobHead
    head_revision: int
    versions: dict[int, JobVersion] = {}

    @once
    def shuns(self) -> frozenset[JobKey]:
        """Whom some version would be apart from: asked of many jobs, mostly in vain."""
        apart = (version.job.placement.apart for version in self.versions.values())
        return frozenset(neighbour.job for found in apart if found for neighbour in found)

    @property
    def current(self) -> JobVersion | None:
        """The version that is wanted; None if its record is unreadable."""
        return self.versions.get(self.head.version)
