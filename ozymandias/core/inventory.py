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

from ozymandias.core.ring import Ring, Spot, arc_of, around, mark_of, spot_of
from ozymandias.core.rooms import cpu_limit, load_class
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.part import Part
from ozymandias.model.tables import changes_between

ENDLESS = 2**62
ALIKE_MAX = 2**14  # kinds of nodes that are remembered
KEPT_MAX = 8  # orders that are kept, for as many sizes of instances
EMPTY = Ring()

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


class Inventory:
    """The nodes that take instances of one size, in order."""

    def __init__(self, demand: Demand, target_percent: int) -> None:
        self._demand = demand
        self._target = target_percent
        self._nodes: Mapping[NodeName, Node] = {}
        self._standings: dict[NodeName, Standing] = {}
        self._classes: dict[Class, Ring] = {}
        self._names: dict[Spot, NodeName] = {}
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
        standings, standing_of = self._standings, self._standing
        for name, node in changes_between(before, nodes).items():
            old = standings.get(name)
            new = standing_of(node) if node is not None else None
            if new is old:
                continue
            if new is None or old is None or new.kind != old.kind:
                self._put(name, old, new)
            else:
                standings[name] = new  # most are as full as before, by tenths

    def _put_all(self, nodes: Mapping[NodeName, Node]) -> None:
        """The first ones."""
        spots: dict[Class, list[Spot]] = {}
        for name, node in nodes.items():
            if standing := self._standing(node):
                spot = spot_of(name)
                self._standings[name], self._names[spot] = standing, name
                spots.setdefault(standing.kind, []).append(spot)
        for kind, found in spots.items():
            ring = self._classes[kind] = Ring()
            ring.add_all(found)

    def _put(self, name: NodeName, old: Standing | None, new: Standing | None) -> None:
        """Among nodes that are about as full as it is now."""
        spot = spot_of(name)
        if old is not None:
            self._classes[old.kind].remove(spot)
        if new is None:
            del self._standings[name], self._names[spot]
            return
        self._standings[name] = new
        self._names[spot] = name
        ring = self._classes.get(new.kind)
        if ring is None:
            ring = self._classes[new.kind] = Ring()
        ring.add(spot)

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
        return name in self._standings

    def in_order(self, start: int) -> Iterator[tuple[NodeName, Standing]]:
        """Each with how many it takes before it comes again, or is full.

        Where it comes again is by all that it was to take: who gave it fewer has a reason to give
        it no more.
        """
        names, standings, mark = self._names, self._standings, mark_of(start)
        below = sorted([kind for kind, ring in self._classes.items() if ring and not kind[0]])
        for kind in below:
            for spot in self._classes[kind].around(mark):
                name = names[spot]
                yield name, standings[name]
        spots = [spot for kind in below for spot in self._classes[kind]]
        yield from self._in_order_beyond(mark, [(s, standings[names[s]], 0) for s in spots])

    def in_part(self, part: Part, start: int) -> Iterator[tuple[NodeName, Standing]]:
        """Those of one part of the ring, in the same order, and none beyond the target.

        As full as that nodes are filled evenly, all over the cluster: a part is no reason to fill
        its own while others have room below the target.
        """
        first, last = map(mark_of, arc_of(part))
        for kind in sorted([kind for kind, ring in self._classes.items() if ring and not kind[0]]):
            arc = self._classes[kind].between(first, last)
            for spot in around(arc, mark_of(start)):
                name = self._names[spot]
                yield name, self._standings[name]

    def _in_order_beyond(
        self, mark: Spot, again: list[tuple[Spot, Standing, int]]
    ) -> Iterator[tuple[NodeName, Standing]]:
        """Class by class; what was taken makes a node's class higher, so none is missed.

        ``again`` are those that were there already, and what they had taken before that.
        """
        come: dict[Class, dict[Spot, tuple[int, Standing]]] = {}  # how many each has taken
        kinds = [kind for kind, ring in self._classes.items() if ring and kind[0]]
        heapify(kinds)
        while True:
            for spot, last, before in again:
                if fitting := last.fitting - last.most:
                    taken = before + last.most
                    standing = self._beyond(last, taken, fitting)
                    if standing.kind not in come:
                        come[standing.kind] = {}
                        heappush(kinds, standing.kind)
                    come[standing.kind][spot] = taken, standing
            if not kinds:
                return
            kind, again = heappop(kinds), []
            while kinds and kinds[0] == kind:
                heappop(kinds)
            back = come.pop(kind, {})
            here = self._classes.get(kind, EMPTY).around(mark)
            both = merge(here, around(sorted(back), mark), key=lambda s: (s < mark, s))
            for spot in both:
                name = self._names[spot]
                taken, standing = back[spot] if spot in back else (0, self._standings[name])
                yield name, standing
                again.append((spot, standing, taken))


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
