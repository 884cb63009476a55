"""What machines offer: resources, the ledger of what was promised, presence under a lease."""

from dataclasses import dataclass, field
from typing import NewType, Self

from ozymandias.model.job import Job, NetworkMode, Protocol, VolumeKind

NodeName = NewType("NodeName", str)

# Labels of nodes, in settings, job files and requests.
LABEL_NAME = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?"
LABEL_VALUE = r"[A-Za-z0-9+-]([A-Za-z0-9._:/+-]{0,62})?"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class HostPort:
    """A port of the machine itself; one owner at a time."""

    port: int
    protocol: Protocol = Protocol.TCP

    def __str__(self) -> str:
        return f"{self.port}/{self.protocol}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    memory_bytes: int = 0
    disk_bytes: int = 0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            memory_bytes=self.memory_bytes + other.memory_bytes,
            disk_bytes=self.disk_bytes + other.disk_bytes,
        )

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(
            memory_bytes=self.memory_bytes - other.memory_bytes,
            disk_bytes=self.disk_bytes - other.disk_bytes,
        )

    def fits_in(self, other: "Resources") -> bool:
        return self.memory_bytes <= other.memory_bytes and self.disk_bytes <= other.disk_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one instance takes of a node."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    host_ports: tuple[HostPort, ...] = ()

    @classmethod
    def of(cls, job: Job) -> Self:
        volumes = [v for c in job.containers for v in c.volumes if v.kind is VolumeKind.LOCAL]
        # On the machine's own network every port that is listened on is one of the machine's.
        is_host = job.network is NetworkMode.HOST
        ports = {
            HostPort(port=port, protocol=p.protocol)
            for c in job.containers
            for p in c.ports
            if (port := p.container if is_host else p.host) is not None
        }
        return cls(
            memory_bytes=sum(c.memory_bytes for c in job.containers),
            disk_bytes=sum(v.space_bytes for v in volumes),
            host_ports=tuple(sorted(ports)),
        )

    @property
    def resources(self) -> Resources:
        return Resources(memory_bytes=self.memory_bytes, disk_bytes=self.disk_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A sum of demands."""

    resources: Resources = Resources()
    host_ports: tuple[HostPort, ...] = ()  # sorted

    def plus(self, demand: Demand) -> "Totals":
        return Totals(
            resources=self.resources + demand.resources,
            host_ports=tuple(sorted((*self.host_ports, *demand.host_ports))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An operator wants the node empty: its instances start elsewhere, then stop here."""

    since: float  # wall clock
    deadline: float = 0.0  # wall clock; past it what could not move is stopped. 0: never
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What may be promised on a node, and what is. Every change to a node compares and rewrites it.

    ``held`` sums running + stopping, ``promised`` sums running + waiting; neither ever exceeds
    ``allocatable``. A terminating pod therefore never makes room that is not there yet.
    """

    capacity: Resources
    reserve: Resources = Resources()
    labels: dict[str, str] = field(default_factory=dict)  # from the node's own settings
    set_labels: dict[str, str] = field(default_factory=dict)  # by the operator; these win
    is_cordoned: bool = False  # takes no new work
    drain: Drain | None = None  # its work leaves; implies cordoned
    allows_host_network: bool = False  # pods of system jobs may have the machine's own network
    held: Totals = Totals()
    promised: Totals = Totals()
    commit: str = ""  # id of the transaction that wrote this

    @property
    def allocatable(self) -> Resources:
        return self.capacity - self.reserve

    @property
    def all_labels(self) -> dict[str, str]:
        """What placement rules see; an operator's empty value takes a label away."""
        both = self.labels | self.set_labels
        return {name: value for name, value in both.items() if value or name not in self.set_labels}

    @property
    def takes_work(self) -> bool:
        return not (self.is_cordoned or self.drain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """A node's record under its lease: it is there while the lease lives."""

    address: str  # where its pods' host ports and its ingress are reached
    machine_id: str
    session: str  # of the daemon process that holds it
    daemon_version: str
    api: str  # URL of its API, for peers
    long_lease: int = 0  # of its statuses and names, which outlive a blink of the lease
    degraded: str = ""  # why it takes no new work, e.g. podman does not answer
    peer_key: str = field(default="", repr=False)  # what it shows to other daemons' APIs


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: NodeName
    ledger: Ledger
    ledger_revision: int
    presence: Presence | None = None
    presence_revision: int = 0  # create revision of the presence record; the node's epoch
    presence_lease: int = 0

    @property
    def is_alive(self) -> bool:
        return self.presence is not None

    @property
    def is_schedulable(self) -> bool:
        return self.presence is not None and not self.presence.degraded and self.ledger.takes_work
