"""Bin-packing: which nodes take the instances of one job. Feasible -> score -> fit.

*Feasible* is a node that takes work and has room: memory, disk, and the host ports. *Score* orders
the feasible ones: fewest instances of the same job first, because losing one machine should cost
one instance; then pack tightly up to 70 % of memory and spread beyond, so that small clusters keep
whole machines free for large jobs and full ones share the heat. Fullness is compared in tenths:
nodes about as full as each other are tied, and a hash of job, version and node breaks the tie. So
every peer makes the same plan for the same job, and different jobs start at different nodes.

Instances of one job are alike, hence greedy placement reaches the most that can be placed at all;
a heap makes it O(n log m). Rooms are working copies that a placement changes as it goes.

A job's own rules come first: nodes without the required labels, and those with as many of the job
as it allows per node, are not feasible; nodes that it prefers are filled before any other.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from ozymandias.core.labels import matches, preference, spelled, unmet
from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobKey, PlacementRules
from ozymandias.model.node import Demand, HostPort, Node, NodeName
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import format_size

TARGET_TENTHS = 7  # pack up to this much of a node's memory, then spread

# Where a new instance may go: at once, or also where stopping ones still hold what it needs.
RUNNING = SlotState.RUNNING
NOW = (RUNNING,)
NOW_OR_SOON = (RUNNING, SlotState.WAITING)

Rank = tuple[int, int, int, int, bytes, NodeName]

NO_RULES = PlacementRules()


@dataclass(slots=True, kw_only=True)
class Room:
    """What one node holds (running + stopping) and promises (running + waiting); it changes."""

    node: NodeName
    memory_limit: int
    disk_limit: int
    memory_held: int = 0
    memory_promised: int = 0
    disk_held: int = 0
    disk_promised: int = 0
    ports_held: set[HostPort] = field(default_factory=set)
    ports_promised: set[HostPort] = field(default_factory=set)
    labels: Mapping[str, str] | None = field(default_factory=dict)  # None: whatever is asked for

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
            disk_held=held.disk_bytes,
            disk_promised=promised.disk_bytes,
            ports_held=set(ledger.held.host_ports),
            ports_promised=set(ledger.promised.host_ports),
            labels=ledger.all_labels,
        )

    def memory_left(self, state: SlotState = RUNNING) -> int:
        """What an instance in this state could have; negative on a node over its limit."""
        used = self.memory_promised
        return self.memory_limit - (max(used, self.memory_held) if state is RUNNING else used)

    def disk_left(self, state: SlotState = RUNNING) -> int:
        used = self.disk_promised
        return self.disk_limit - (max(used, self.disk_held) if state is RUNNING else used)

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
            if demand.host_ports:
                _update(self.ports_held, demand.host_ports, sign)
        if state is not SlotState.STOPPING:
            self.memory_promised += sign * demand.memory_bytes
            self.disk_promised += sign * demand.disk_bytes
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


def eligible(rooms: Rooms, rules: PlacementRules) -> Rooms:
    """The same rooms, but those without a required label."""
    if not rules.require:
        return rooms
    return {
        name: room
        for name, room in rooms.items()
        if room.labels is None or not unmet(rules.require, room.labels)
    }


def most_that_fit(
    rooms: Rooms,
    demand: Demand,
    most: int,
    states: Sequence[SlotState] = NOW,
    *,
    rules: PlacementRules = NO_RULES,
    there: Mapping[NodeName, int] | None = None,
) -> int:
    """How many instances alike could be placed; exactly what `place` would reach.

    ``there`` counts the instances per node that are part of the limit per node.
    """
    # What fits at once also fits among what is promised, so the wider state tells the sum.
    state, limit, known = states[-1], rules.max_per_node, there or {}
    return min(
        most,
        sum(
            room.count(
                demand, state, max(0, min(most, limit - known.get(name, 0))) if limit else most
            )
            for name, room in eligible(rooms, rules).items()
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Instances of one job and version to be placed."""

    job: JobKey
    version: int
    demand: Demand
    kin: str = "other"  # what the instances to keep apart from are called
    rules: PlacementRules = NO_RULES
    # How many of the job each node has, for the limit per node; None: those to keep apart from.
    there: Mapping[NodeName, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One instance's place, and why there."""

    node: NodeName
    state: SlotState
    reason: str
    score: tuple[tuple[str, float], ...]


def place(
    rooms: Rooms,
    ask: Ask,
    count: int,
    apart_from: Mapping[NodeName, int],
    states: Sequence[SlotState] = NOW,
) -> list[Placement]:
    """Up to ``count`` placements, best first; the rooms are changed accordingly.

    ``apart_from`` counts the instances per node from which the new ones should be kept apart.
    """
    if count <= 0:
        return []
    rooms = eligible(rooms, ask.rules)
    ties = {name: _tie(ask, name) for name in rooms}
    same = {name: apart_from.get(name, 0) for name in rooms}
    worth = _worth(rooms, ask.rules)
    left = _left(rooms, ask, apart_from)
    placements: list[Placement] = []
    for state in states:
        heap = [
            _rank(room, ask.demand, worth.get(name, 0), same[name], ties[name])
            for name, room in rooms.items()
            if left.get(name, 1) > 0 and room.fits(ask.demand, state)
        ]
        heapq.heapify(heap)
        while heap and len(placements) < count:
            name = heap[0][-1]
            room = rooms[name]
            placements.append(_placement(room, ask, state, same[name]))
            room.take(ask.demand, state)
            same[name] += 1
            if left:
                left[name] -= 1
            if left.get(name, 1) > 0 and room.fits(ask.demand, state):
                rank = _rank(room, ask.demand, worth.get(name, 0), same[name], ties[name])
                heapq.heapreplace(heap, rank)
            else:
                heapq.heappop(heap)
    return placements


def _worth(rooms: Rooms, rules: PlacementRules) -> dict[NodeName, int]:
    """What the job's preferences make of each node; nothing when it has none."""
    if not rules.prefer:
        return {}
    return {name: preference(rules, room.labels or {}) for name, room in rooms.items()}


def _left(rooms: Rooms, ask: Ask, apart_from: Mapping[NodeName, int]) -> dict[NodeName, int]:
    """How many more each node may have by the job's own limit; nothing when there is none."""
    limit = ask.rules.max_per_node
    if not limit:
        return {}
    there = apart_from if ask.there is None else ask.there
    return {name: limit - there.get(name, 0) for name in rooms}


def _tie(ask: Ask, node: NodeName) -> bytes:
    text = f"{ask.job.namespace}/{ask.job.name}\0{ask.version}\0{node}"
    return blake2b(text.encode(), digest_size=8).digest()


def _rank(room: Room, demand: Demand, worth: int, same: int, tie: bytes) -> Rank:
    """The smallest is the best."""
    tenths_times_limit = 10 * (room.memory_promised + demand.memory_bytes)
    limit = max(1, room.memory_limit)
    if tenths_times_limit <= TARGET_TENTHS * limit:
        return -worth, same, 0, -(tenths_times_limit // limit), tie, room.node
    return -worth, same, 1, tenths_times_limit // limit, tie, room.node


def _placement(room: Room, ask: Ask, state: SlotState, same: int) -> Placement:
    after = (room.memory_promised + ask.demand.memory_bytes) / max(1, room.memory_limit)
    wishes = [rule for rule in ask.rules.prefer if matches(rule, room.labels or {})]
    preferred = (("preferred", float(preference(ask.rules, room.labels or {}))),)
    liked = f", and {' and '.join(map(spelled, wishes))} as preferred" if wishes else ""
    return Placement(
        node=room.node,
        state=state,
        reason=_reason(room, ask, state, same) + liked,
        score=(
            *(preferred if ask.rules.prefer else ()),
            ("same_job", float(same)),
            ("memory_after", round(after, 4)),
            ("below_target", float(10 * after <= TARGET_TENTHS)),
        ),
    )


def _reason(room: Room, ask: Ask, state: SlotState, same: int) -> str:
    if same == 0:
        company = f"no {ask.kin} instance of {ask.job}"
    else:
        company = f"no more {ask.kin} instances of {ask.job} than any node with room ({same})"
    if state is SlotState.WAITING:
        soon = format_size(room.memory_left(state))
        return f"{room.node} has {company} and {soon} free once what stops there is gone"
    free, limit = format_size(room.memory_left()), format_size(room.memory_limit)
    return f"{room.node} has {company} and {free} of {limit} memory free"
