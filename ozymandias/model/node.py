"""What machines offer: resources, the ledger of what was promised, presence under a lease."""

from dataclasses import dataclass, field
from typing import NewType, Self

from msgspec import Struct

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


class Resources(Struct, frozen=True, kw_only=True, gc=False):
    """Amounts of what is shared out. Processors are optional: as a limit, 0 is "not counted"."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    cpu_millis: int = 0  # thousandths of a core

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            memory_bytes=self.memory_bytes + other.memory_bytes,
            disk_bytes=self.disk_bytes + other.disk_bytes,
            cpu_millis=self.cpu_millis + other.cpu_millis,
        )

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(
            memory_bytes=self.memory_bytes - other.memory_bytes,
            disk_bytes=self.disk_bytes - other.disk_bytes,
            cpu_millis=self.cpu_millis - other.cpu_millis,
        )

    def fits_in(self, other: "Resources") -> bool:
        return (
            self.memory_bytes <= other.memory_bytes
            and self.disk_bytes <= other.disk_bytes
            and (not other.cpu_millis or self.cpu_millis <= other.cpu_millis)
        )


class Demand(Struct, frozen=True, kw_only=True, gc=False):
    """What one instance takes of a node."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    host_ports: tuple[HostPort, ...] = ()
    cpu_millis: int = 0

    @classmethod
    def of(cls, job: Job) -> Self:
        memory_bytes = disk_bytes = cpu_millis = 0
        ports: set[HostPort] = set()
        # On the machine's own network every port that is listened on is one of the machine's.
        is_host = job.network is NetworkMode.HOST
        for container in job.containers:
            memory_bytes += container.memory_bytes
            cpu_millis += millis_of(container.cpu) if container.cpu else 0
            for volume in container.volumes:
                disk_bytes += volume.space_bytes if volume.kind is VolumeKind.LOCAL else 0
            for p in container.ports:
                if (port := p.container if is_host else p.host) is not None:
                    ports.add(HostPort(port=port, protocol=p.protocol))
        return cls(
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
            host_ports=tuple(sorted(ports)),
            cpu_millis=cpu_millis,
        )

    @property
    def resources(self) -> Resources:
        return Resources(
            memory_bytes=self.memory_bytes,
            disk_bytes=self.disk_bytes,
            cpu_millis=self.cpu_millis,
        )


def millis_of(cores: float) -> int:
    """Thousandths, at least one: what is asked for is never nothing."""
    return max(1, round(cores * 1000))


class Totals(Struct, frozen=True, kw_only=True, gc=False):
    """A sum of demands."""

    resources: Resources = Resources()
    host_ports: tuple[HostPort, ...] = ()  # sorted

    def plus(self, demand: Demand, times: int = 1) -> "Totals":
        """With so many more of what one instance takes, or so many fewer."""
        here, ports = self.resources, self.host_ports
        if demand.host_ports:
            ports = _changed_ports(ports, demand.host_ports, times)
        return Totals(
            resources=Resources(
                memory_bytes=here.memory_bytes + times * demand.memory_bytes,
                disk_bytes=here.disk_bytes + times * demand.disk_bytes,
                cpu_millis=here.cpu_millis + times * demand.cpu_millis,
            ),
            host_ports=ports,
        )

    def and_also(self, other: "Totals") -> "Totals":
        return Totals(
            resources=self.resources + other.resources,
            host_ports=tuple(sorted((*self.host_ports, *other.host_ports))),
        )


def _changed_ports(
    ports: tuple[HostPort, ...], changed: tuple[HostPort, ...], times: int
) -> tuple[HostPort, ...]:
    left = [*ports, *changed * max(0, times)]
    for port in changed * max(0, -times):
        left.remove(port)
    return tuple(sorted(left))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An operator wants the node empty: its instances start elsewhere, then stop here."""

    since: float  # wall clock
    deadline: float = 0.0  # wall clock; past it what could not move is stopped. 0: never
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced:
    """An instance that had to make room here for a more important one.

    It stands in the ledger of the node that it left: whoever sees the instance elsewhere sees this
    too, so nobody displaces it again at once. Its age is measured by who looks, on its own clock.
    """

    namespace: str
    job: str
    slot: int
    at: float  # wall clock, for people; and to tell two of the same instance apart
    reason: str


class Ledger(Struct, frozen=True, kw_only=True, gc=False):
    """What may be promised on a node, and what is. Every change to a node compares and rewrites it.

    ``held`` sums running + stopping, ``promised`` sums running + waiting; neither ever exceeds
    ``allocatable``. A terminating pod therefore never makes room that is not there yet.
    """

    capacity: Resources
    reserve: Resources = Resources()
    labels: dict[str, str] = {}  # from the node's own settings
    set_labels: dict[str, str] = {}  # by the operator; these win
    is_cordoned: bool = False  # takes no new work
    drain: Drain | None = None  # its work leaves; implies cordoned
    allows_host_network: bool = False  # pods of system jobs may have the machine's own network
    held: Totals = Totals()
    promised: Totals = Totals()
    commit: str = ""  # id of the transaction that wrote this
    machine: str = ""  # id of the one that last had this name; "": not known
    lease: int = 0  # of its presence when it last joined: another one is another stretch
    displaced: tuple[Displaced, ...] = ()  # of the last minute; older ones go with the next

    @property
    def allocatable(self) -> Resources:
        return self.capacity - self.reserve

    def has_room_for(self, sum_of_all: Resources) -> bool:
        """Whether so much in all is within what may be promised."""
        capacity, reserve = self.capacity, self.reserve
        return (
            sum_of_all.memory_bytes <= capacity.memory_bytes - reserve.memory_bytes
            and sum_of_all.disk_bytes <= capacity.disk_bytes - reserve.disk_bytes
            and (
                capacity.cpu_millis == reserve.cpu_millis  # not counted there
                or sum_of_all.cpu_millis <= capacity.cpu_millis - reserve.cpu_millis
            )
        )

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
    schedules: bool = True  # False: it follows what is its own, and leaves deciding to others


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a node really does, under its lease; written on notable change only.

    It is a hint: no transaction compares it. Shares are in hundredths of what the host has.
    """

    load_percent: int = 0  # load average of five minutes by processors
    memory_percent: int = 0
    disk_percent: int = 0
    # Why it takes no new work though it is well otherwise, e.g. "memory pressure: …".
    taint: str = ""
    tainted_at: float = 0.0  # wall clock
    # While pressure lasts: so many of its instances it would keep, the others leave one by one.
    shed_to: int = -1  # -1: nobody is asked to leave
    is_urgent: bool = False  # who was asked has not left: it does not wait for a replacement


class Node(Struct, frozen=True, kw_only=True, gc=False):
    name: NodeName
    ledger: Ledger
    ledger_revision: int
    presence: Presence | None = None
    presence_revision: int = 0  # create revision of the presence record; the node's epoch
    presence_lease: int = 0
    load: Load | None = None

    @property
    def is_alive(self) -> bool:
        return self.presence is not None

    @property
    def schedules(self) -> bool:
        """Whether its daemon is there and decides for the cluster."""
        return self.presence is not None and self.presence.schedules

    @property
    def is_schedulable(self) -> bool:
        return (
            self.presence is not None
            and not self.presence.degraded
            and self.ledger.takes_work
            and not (self.load and self.load.taint)
        )
