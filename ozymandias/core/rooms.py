"""Working copies of nodes: what each holds and promises, and what would still fit.

A room is one node while a plan is being made: placing changes it as it goes, the snapshot stays as
it is. It knows amounts only; who may be there at all is said by `core/rules.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ozymandias.model.instance import SlotState
from ozymandias.model.node import Demand, HostPort, Load, Node, NodeName, Resources
from ozymandias.model.snapshot import Snapshot

# Where a new instance may go: at once, or also where stopping ones still hold what it needs.
RUNNING = SlotState.RUNNING
NOW = (RUNNING,)
NOW_OR_SOON = (RUNNING, SlotState.WAITING)

UNCOUNTED = 2**62  # thousandths of cores of a node that does not count them

# How busy a machine really is, in classes so wide that a load which swings does not swing plans.
BUSY_PERCENT = 75
OVERRUN_PERCENT = 150  # of load: more is waiting for processors than there are


@dataclass(slots=True, kw_only=True)
class Room:
    """What one node holds (running + stopping) and promises (running + waiting); it changes."""

    node: NodeName
    memory_limit: int
    disk_limit: int
    memory_held: int = 0
    memory_promised: int = 0
    cpu_limit: int = UNCOUNTED
    cpu_held: int = 0
    cpu_promised: int = 0
    disk_held: int = 0
    disk_promised: int = 0
    ports_held: set[HostPort] = field(default_factory=set)
    ports_promised: set[HostPort] = field(default_factory=set)
    load: int = 0  # how busy the machine really is, in classes

    @classmethod
    def of(cls, node: Node) -> "Room":
        ledger, limit = node.ledger, node.ledger.allocatable
        held, promised = ledger.held.resources, ledger.promised.resources
        return cls(
            node=node.name,
            memory_limit=limit.memory_bytes,
            disk_limit=limit.disk_bytes,
            memory_held=held.memory_bytes,
            memory_promised=promised.memory_bytes,
            cpu_limit=cpu_limit(limit),
            cpu_held=held.cpu_millis,
            cpu_promised=promised.cpu_millis,
            disk_held=held.disk_bytes,
            disk_promised=promised.disk_bytes,
            ports_held=set(ledger.held.host_ports),
            ports_promised=set(ledger.promised.host_ports),
            load=load_class(node.load),
        )

    def memory_left(self, state: SlotState = RUNNING) -> int:
        """What an instance in this state could have; negative on a node over its limit."""
        used = self.memory_promised
        return self.memory_limit - (max(used, self.memory_held) if state is RUNNING else used)

    def disk_left(self, state: SlotState = RUNNING) -> int:
        used = self.disk_promised
        return self.disk_limit - (max(used, self.disk_held) if state is RUNNING else used)

    def cpu_left(self, state: SlotState = RUNNING) -> int:
        used = self.cpu_promised
        return self.cpu_limit - (max(used, self.cpu_held) if state is RUNNING else used)

    def taken(self, demand: Demand, state: SlotState = RUNNING) -> tuple[HostPort, ...]:
        """The host ports it asks for and can't have."""
        return tuple(
            port
            for port in demand.host_ports
            if port in self.ports_promised or (state is RUNNING and port in self.ports_held)
        )

    def fits(self, demand: Demand, state: SlotState) -> bool:
        """A running instance needs room in both sums, a waiting one in what is promised."""
        return (
            demand.memory_bytes <= self.memory_left(state)
            and demand.disk_bytes <= self.disk_left(state)
            and demand.cpu_millis <= self.cpu_left(state)
            and not (demand.host_ports and self.taken(demand, state))
        )

    def count(self, demand: Demand, state: SlotState, most: int) -> int:
        """How many alike fit, up to ``most``."""
        if not self.fits(demand, state):
            return 0
        if demand.host_ports:
            return min(1, most)
        if demand.memory_bytes:
            most = min(most, self.memory_left(state) // demand.memory_bytes)
        if demand.disk_bytes:
            most = min(most, self.disk_left(state) // demand.disk_bytes)
        if demand.cpu_millis:
            most = min(most, self.cpu_left(state) // demand.cpu_millis)
        return most

    def take(self, demand: Demand, state: SlotState) -> None:
        self._add(demand, state, 1)

    def give(self, demand: Demand, state: SlotState) -> None:
        """Take back what an instance in this state holds and promises."""
        self._add(demand, state, -1)

    def _add(self, demand: Demand, state: SlotState, sign: int) -> None:
        if state is not SlotState.WAITING:
            self.memory_held += sign * demand.memory_bytes
            self.disk_held += sign * demand.disk_bytes
            self.cpu_held += sign * demand.cpu_millis
            if demand.host_ports:
                _update(self.ports_held, demand.host_ports, sign)
        if state is not SlotState.STOPPING:
            self.memory_promised += sign * demand.memory_bytes
            self.disk_promised += sign * demand.disk_bytes
            self.cpu_promised += sign * demand.cpu_millis
            if demand.host_ports:
                _update(self.ports_promised, demand.host_ports, sign)


def _update(ports: set[HostPort], changed: Iterable[HostPort], sign: int) -> None:
    if sign > 0:
        ports.update(changed)
    else:
        ports.difference_update(changed)


Rooms = dict[NodeName, Room]


def rooms_of(snapshot: Snapshot) -> Rooms:
    """A working copy of every node that takes work."""
    return {
        name: Room.of(node) for name, node in sorted(snapshot.nodes.items()) if node.is_schedulable
    }


def cpu_limit(limit: Resources) -> int:
    return limit.cpu_millis or UNCOUNTED


def load_class(load: Load | None) -> int:
    """0 to 3: idle enough, busy processors, overrun ones; and one more for memory really in use."""
    if load is None:
        return 0
    busy = (load.load_percent >= BUSY_PERCENT) + (load.load_percent >= OVERRUN_PERCENT)
    return busy + (load.memory_percent >= BUSY_PERCENT)
