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

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, merge

from msgspec import Struct, structs

from ozymandias.core.ring import Ring, arc_of, place_of
from ozymandias.core.rooms import cpu_limit, load_class
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.part import Part
from ozymandias.model.tables import changes_between

ENDLESS = 2**62
ALIKE_MAX = 2**14  # kinds of nodes that are remembered
KEPT_MAX = 8  # orders that are kept, for as many sizes of instances

# Whether it is beyond the target; tenths of memory that would be used, negative below it; load.
Class = tuple[int, int, int]


class Standing(Struct, frozen=True, gc=False, eq=False):
    """Where a node is in the order, and how many it takes there before it is elsewhere or full.

    Nodes that are as large and as full share one.
    """

    kind: Class
    most: int
    fitting: int  # in all, until it is full
    # Bytes of memory: what may be promised there, and what is.
    limit: int
    promised: int
    held: int
    load: int  # in classes


class Seat:
    """One node's place in the order, for as long as it takes any: who finds it has all there is."""

    __slots__ = ("name", "place", "standing")

    def __init__(self, name: NodeName, standing: Standing) -> None:
        self.name, self.place, self.standing = name, place_of(name), standing


EMPTY = Ring[Seat]()


class Inventory:
    """The nodes that take instances of one size, in order."""

    def __init__(self, demand: Demand, target_percent: int) -> None:
        self._demand = demand
        self._target = target_percent
        self._nodes: Mapping[NodeName, Node] = {}
        self._seats: dict[NodeName, Seat] = {}
        self._classes: dict[Class, Ring[Seat]] = {}
        self._alike: dict[tuple[int, ...], Standing | None] = {}  # by all that they go by

    def follow(self, nodes: Mapping[NodeName, Node]) -> None:
        """Become the order of these nodes."""
        before = self._nodes
        if nodes is before:
            return
        self._nodes = nodes
        if len(self._alike) > ALIKE_MAX:
            self._alike.clear()
        if not before:
            self._put_all(nodes)
            return
        seats, classes, standing_of = self._seats, self._classes, self._standing
        for name, node in changes_between(before, nodes).items():
            seat = seats.get(name)
            new = standing_of(node) if node is not None else None
            if seat is None or new is None:
                self._seat(name, seat, new)
            elif new is not (old := seat.standing):
                seat.standing = new
                if new.kind != old.kind:  # most are as full as before, by tenths
                    classes[old.kind].remove(seat)
                    (classes.get(new.kind) or self._ring(new.kind)).add(seat)

    def _put_all(self, nodes: Mapping[NodeName, Node]) -> None:
        """The first ones."""
        found: dict[Class, list[Seat]] = {}
        for name, node in nodes.items():
            if standing := self._standing(node):
                seat = self._seats[name] = Seat(name, standing)
                found.setdefault(standing.kind, []).append(seat)
        for kind, seats in found.items():
            self._ring(kind).add_all(seats)

    def _seat(self, name: NodeName, seat: Seat | None, standing: Standing | None) -> None:
        """One that takes some from now on, or none any more."""
        if seat is not None:
            del self._seats[name]
            self._classes[seat.standing.kind].remove(seat)
        if standing is not None:
            seat = self._seats[name] = Seat(name, standing)
            self._ring(standing.kind).add(seat)

    def _ring(self, kind: Class) -> Ring[Seat]:
        """Of nodes that are about as full."""
        ring = self._classes.get(kind)
        if ring is None:
            ring = self._classes[kind] = Ring()
        return ring

    def _standing(self, node: Node) -> Standing | None:
        """None for a node that takes none of them."""
        if not node.is_schedulable:
            return None
        ledger, demand = node.ledger, self._demand
        capacity, reserve = ledger.capacity, ledger.reserve
        held, promised = ledger.held.resources, ledger.promised.resources
        most = ENDLESS  # by all but memory
        disk = capacity.disk_bytes - reserve.disk_bytes
        if demand.disk_bytes or promised.disk_bytes > disk or held.disk_bytes > disk:
            disk -= max(promised.disk_bytes, held.disk_bytes)
            most = _times(demand.disk_bytes, disk)
        if demand.cpu_millis or capacity.cpu_millis:
            cores = cpu_limit(ledger.allocatable) - max(promised.cpu_millis, held.cpu_millis)
            most = min(most, _times(demand.cpu_millis, cores))
        limit = capacity.memory_bytes - reserve.memory_bytes
        load = load_class(node.load) if node.load else 0
        amounts = (limit, promised.memory_bytes, held.memory_bytes, load, most)
        known = self._alike.get(amounts)
        if known is None:  # or it takes none, which is found soon
            known = self._alike[amounts] = self._standing_of(*amounts)
        return known

    def _standing_of(
        self, limit: int, promised: int, held: int, load: int, most: int
    ) -> Standing | None:
        memory = self._demand.memory_bytes
        most = min(most, _times(memory, limit - max(promised, held)))
        if most <= 0:
            return None
        below = _times(memory, self._target * max(1, limit) // 100 - promised)
        kind = (0, -(10 * (promised + memory) // max(1, limit)), load)
        first = Standing(kind, min(most, below), most, limit, promised, held, load)
        return first if below > 0 else self._beyond(first, 0, most)

    def _beyond(self, known: Standing, taken: int, fitting: int) -> Standing:
        """Where it is beyond the target once it has taken some, and ``fitting`` more are to fit."""
        memory, limit = self._demand.memory_bytes, max(1, known.limit)
        used = known.promised + taken * memory
        tenths = 10 * (used + memory) // limit
        alike = _times(10 * memory, (tenths + 1) * limit - 1 - 10 * used)
        kind, most = (1, tenths, known.load), min(alike, fitting)
        return structs.replace(known, kind=kind, most=most, fitting=fitting)

    def has_room(self, name: NodeName) -> bool:
        """Whether it takes at least one."""
        return name in self._seats

    def in_order(self, start: int) -> Iterator[tuple[NodeName, Standing]]:
        """Each with how many it takes before it comes again, or is full.

        Where it comes again is by all that it was to take: who gave it fewer has a reason to give
        it no more.
        """
        classes = self._classes
        below = sorted([kind for kind, ring in classes.items() if ring and not kind[0]])
        for kind in below:
            for seat in classes[kind].around(start):
                yield seat.name, seat.standing
        seats = [seat for kind in below for seat in classes[kind]]
        yield from self._in_order_beyond(start, [(seat, seat.standing, 0) for seat in seats])

    def in_part(self, part: Part, start: int) -> Iterator[tuple[NodeName, Standing]]:
        """Those of one part of the ring, in the same order, and none beyond the target.

        As full as that nodes are filled evenly, all over the cluster: a part is no reason to fill
        its own while others have room below the target.
        """
        first, last = arc_of(part)
        for kind in sorted([kind for kind, ring in self._classes.items() if ring and not kind[0]]):
            for seat in self._classes[kind].between(first, last, start):
                yield seat.name, seat.standing

    def _in_order_beyond(
        self, start: int, again: list[tuple[Seat, Standing, int]]
    ) -> Iterator[tuple[NodeName, Standing]]:
        """Class by class; what was taken makes a node's class higher, so none is missed.

        ``again`` are those that were there already, and what they had taken before that.
        """

        def around(seat: Seat) -> tuple[bool, int, NodeName]:
            return seat.place < start, seat.place, seat.name

        come: dict[Class, dict[Seat, tuple[int, Standing]]] = {}  # how many each has taken
        kinds = [kind for kind, ring in self._classes.items() if ring and kind[0]]
        heapify(kinds)
        while True:
            for seat, last, before in again:
                if fitting := last.fitting - last.most:
                    taken = before + last.most
                    standing = self._beyond(last, taken, fitting)
                    if standing.kind not in come:
                        come[standing.kind] = {}
                        heappush(kinds, standing.kind)
                    come[standing.kind][seat] = taken, standing
            if not kinds:
                return
            kind, again = heappop(kinds), []
            while kinds and kinds[0] == kind:
                heappop(kinds)
            back = come.pop(kind, {})
            here = self._classes.get(kind, EMPTY).around(start)
            both = merge(here, sorted(back, key=around), key=around)
            for seat in both:
                taken, standing = back.get(seat, (0, seat.standing))
                yield seat.name, standing
                again.append((seat, standing, taken))


def _times(each: int, left: int) -> int:
    """How often it goes into what is left."""
    if left < 0:
        return 0
    return left // each if each else ENDLESS


class Kept:
    """The orders that were last asked for: each is what the next of its kind is made from."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Demand, int], Inventory] = {}
        self._last: tuple[tuple[Demand, int], Inventory] | None = None

    def inventory_of(
        self, nodes: Mapping[NodeName, Node], demand: Demand, target_percent: int
    ) -> Inventory:
        key = (demand, target_percent)
        if self._last is None or self._last[0] != key:
            found = self._kept.pop(key, None) or Inventory(demand, target_percent)
            self._kept[key] = found  # the last is the one used last
            self._last = key, found
            if len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]
        inventory = self._last[1]
        inventory.follow(nodes)
        return inventory


# Surveys look at what was before a decision: one order for both would go back and forth.
PLACING, SURVEYING = Kept(), Kept()
