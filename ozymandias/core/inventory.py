"""The order in which nodes take instances of one size, kept from one snapshot to the next.

Nearly all instances of a large job go where nothing is given up for them: to nodes that have fewer
than a tenth of the job and are told apart by nothing but how full they are. Below the target the
best node stays the best until it reaches one of its limits (`core/placement.py`: there the fuller
is the better), so instances are placed in runs, node by node, in an order that is known before: by
fullness and load, and within alike ones around a ring from a place given by the hash of job and
version. Beyond the target, where the emptier is the better, a node stays the best until it is a
tenth fuller; then it comes again, among those that are as full.

That order is kept sorted. From one snapshot to the next only nodes that changed are put elsewhere
in it, so a decision costs what it places and not what the cluster has. It is a function of the
nodes alone, whatever came before: all peers find the same. What can't be placed this way is left
to the general one, which would have begun just so (a property test holds them to that).
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from heapq import heapify, heappop, heappush, merge
from typing import Any, TypeVar

from msgspec import Struct

from ozymandias.core.rooms import cpu_limit, load_class
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.part import Part
from ozymandias.model.tables import Table

T = TypeVar("T", bound=tuple[Any, ...])

ENDLESS = 2**62
RING = 2**64
KEPT_MAX = 8  # orders that are kept, for as many sizes of instances

# Whether it is beyond the target; tenths of memory that would be used, negative below it; load.
Class = tuple[int, int, int]
Spot = tuple[int, NodeName]  # the place on the ring


class Standing(Struct, frozen=True, gc=False):
    """Where a node is in the order, and how many it takes there before it is elsewhere or full."""

    kind: Class
    most: int
    fitting: int  # in all, until it is full


@lru_cache(maxsize=20_000)
def spot_of(node: NodeName) -> int:
    """A node's place on the ring."""
    return int.from_bytes(blake2b(node.encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=1_000)
def start_of(job: str, version: int) -> int:
    """Where on the ring the search for nodes of a job begins."""
    return int.from_bytes(blake2b(f"{job}\0{version}".encode(), digest_size=8).digest(), "big")


def arc_of(part: Part) -> tuple[int, int]:
    """The places on the ring where a part begins and where the next one does."""
    return RING * part.number // part.of, RING * (part.number + 1) // part.of


def is_in(part: Part, node: NodeName) -> bool:
    first, last = arc_of(part)
    return first <= spot_of(node) < last


class Inventory:
    """The nodes that take instances of one size, in order."""

    def __init__(self, demand: Demand, target_percent: int) -> None:
        self._demand = demand
        self._target = target_percent
        self._nodes: Mapping[NodeName, Node] = {}
        self._standings: dict[NodeName, Standing] = {}
        self._classes: dict[Class, list[Spot]] = {}

    def follow(self, nodes: Mapping[NodeName, Node]) -> None:
        """Become the order of these nodes."""
        before = self._nodes
        if nodes is before:
            return
        self._nodes = nodes
        for name in changed_between(before, nodes):
            old, new = before.get(name), nodes.get(name)
            if old is None or new is None or not _is_alike(old, new):
                self._put(name, new)

    def _put(self, name: NodeName, node: Node | None) -> None:
        old = self._standings.get(name)
        new = self._standing(node) if node is not None else None
        if new is None:
            if old is not None:
                self._take_out(name, old)
                del self._standings[name]
            return
        self._standings[name] = new
        kind = new.kind
        if old is not None:
            if old.kind == kind:
                return
            self._take_out(name, old)
        row = self._classes.get(kind)
        if row is None:
            row = self._classes[kind] = []
        insort(row, (spot_of(name), name))

    def _take_out(self, name: NodeName, standing: Standing) -> None:
        row = self._classes[standing.kind]
        del row[bisect_left(row, (spot_of(name), name))]

    def _standing(self, node: Node) -> Standing | None:
        """None for a node that takes none of them."""
        if not node.is_schedulable:
            return None
        ledger, demand = node.ledger, self._demand
        capacity, reserve = ledger.capacity, ledger.reserve
        held, promised = ledger.held.resources, ledger.promised.resources
        memory, used, in_use = demand.memory_bytes, promised.memory_bytes, held.memory_bytes
        limit = capacity.memory_bytes - reserve.memory_bytes
        most = _times(memory, limit - (used if used >= in_use else in_use))
        disk = capacity.disk_bytes - reserve.disk_bytes
        if demand.disk_bytes or promised.disk_bytes > disk or held.disk_bytes > disk:
            disk -= max(promised.disk_bytes, held.disk_bytes)
            most = min(most, _times(demand.disk_bytes, disk))
        if demand.cpu_millis or capacity.cpu_millis:
            cores = cpu_limit(ledger.allocatable) - max(promised.cpu_millis, held.cpu_millis)
            most = min(most, _times(demand.cpu_millis, cores))
        if most <= 0:
            return None
        limit = limit or 1
        below = _times(memory, self._target * limit // 100 - used)
        if below <= 0:
            return self._beyond(node, 0, most)
        load = load_class(node.load) if node.load else 0
        kind = (0, -(10 * (used + memory) // limit), load)
        return Standing(kind, most if most < below else below, most)

    def _beyond(self, node: Node, taken: int, fitting: int) -> Standing:
        """Where it is beyond the target once it has taken some, and ``fitting`` more are to fit."""
        ledger, memory = node.ledger, self._demand.memory_bytes
        limit = max(1, ledger.capacity.memory_bytes - ledger.reserve.memory_bytes)
        used = ledger.promised.resources.memory_bytes + taken * memory
        tenths = 10 * (used + memory) // limit
        alike = _times(10 * memory, (tenths + 1) * limit - 1 - 10 * used)
        return Standing((1, tenths, load_class(node.load)), min(alike, fitting), fitting)

    def has_room(self, name: NodeName) -> bool:
        """Whether it takes at least one."""
        return name in self._standings

    def in_order(self, start: int) -> Iterator[tuple[NodeName, int]]:
        """Nodes and how many each takes, the best first; one that is not full then comes again.

        Where it comes again is by all that it was to take: who gave it fewer has a reason to give
        it no more.
        """
        visited: list[tuple[NodeName, int, int]] = []  # how many it has taken, how many still fit
        below = sorted(kind for kind, row in self._classes.items() if row and not kind[0])
        for kind in below:
            for _, name in self._row(kind, start):
                standing = self._standings[name]
                most = standing.most
                yield name, most
                visited.append((name, most, standing.fitting - most))
        yield from self._in_order_beyond(start, visited)

    def in_part(self, part: Part, start: int) -> Iterator[tuple[NodeName, int]]:
        """Those of one part of the ring, in the same order, and none beyond the target.

        As full as that nodes are filled evenly, all over the cluster: a part is no reason to fill
        its own while others have room below the target.
        """
        first, last = arc_of(part)
        for kind in sorted(kind for kind, row in self._classes.items() if row and not kind[0]):
            row = self._classes[kind]
            arc = row[bisect_left(row, (first, "")) : bisect_left(row, (last, ""))]
            for _, name in _around(arc, start):
                yield name, self._standings[name].most

    def _in_order_beyond(
        self, start: int, again: list[tuple[NodeName, int, int]]
    ) -> Iterator[tuple[NodeName, int]]:
        """Class by class; what was taken makes a node's class higher, so none is missed."""
        come: dict[Class, list[tuple[int, NodeName, int, Standing]]] = {}
        kinds = [kind for kind, row in self._classes.items() if row and kind[0]]
        heapify(kinds)
        while True:
            for name, taken, fitting in again:
                if fitting > 0:
                    standing = self._beyond(self._nodes[name], taken, fitting)
                    if standing.kind not in come:
                        come[standing.kind] = []
                        heappush(kinds, standing.kind)
                    come[standing.kind].append((spot_of(name), name, taken, standing))
            if not kinds:
                return
            kind, again = heappop(kinds), []
            while kinds and kinds[0] == kind:
                heappop(kinds)
            here = ((*spot, 0, self._standings[spot[1]]) for spot in self._row(kind, start))
            back = _around(sorted(come.pop(kind, [])), start)
            for _, name, taken, standing in merge(
                here, back, key=lambda one: ((one[0] - start) % RING, one[1])
            ):
                yield name, standing.most
                again.append((name, taken + standing.most, standing.fitting - standing.most))

    def _row(self, kind: Class, start: int) -> Iterator[Spot]:
        return _around(self._classes.get(kind, []), start)


def _around(row: Sequence[T], start: int) -> Iterator[T]:
    """A row sorted by places on the ring, from one of them on and around."""
    first = bisect_left(row, (start, ""))
    for index in range(first, first + len(row)):
        yield row[index if index < len(row) else index - len(row)]


def changed_between(
    before: Mapping[NodeName, Node], nodes: Mapping[NodeName, Node]
) -> Collection[NodeName]:
    """The names of all nodes that are not the same in both."""
    if isinstance(nodes, Table) and (touched := nodes.touched_since(before)) is not None:
        return touched
    if list(before) == list(nodes):  # as in nearly all that have a common past
        both = zip(nodes.items(), before.values(), strict=True)
        return [name for (name, new), old in both if new is not old]
    changed = {name for name, node in nodes.items() if before.get(name) is not node}
    return changed | (before.keys() - nodes.keys())


def _is_alike(one: Node, other: Node) -> bool:
    """Whether they are the same in all that an order goes by."""
    return one.ledger is other.ledger and one.presence is other.presence and one.load is other.load


def _times(each: int, left: int) -> int:
    """How often it goes into what is left."""
    if left < 0:
        return 0
    return left // each if each else ENDLESS


class Kept:
    """The orders that were last asked for: each is what the next of its kind is made from."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Demand, int], Inventory] = {}

    def inventory_of(
        self, nodes: Mapping[NodeName, Node], demand: Demand, target_percent: int
    ) -> Inventory:
        key = (demand, target_percent)
        found = self._kept.pop(key, None) or Inventory(demand, target_percent)
        self._kept[key] = found  # the last is the one used last
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        found.follow(nodes)
        return found


# Surveys look at what was before a decision: one order for both would go back and forth.
PLACING, SURVEYING = Kept(), Kept()
