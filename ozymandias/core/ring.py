"""The ring of all nodes, on which different jobs begin their search at different places.

Every node has a place on it by a hash of its name, every job and version another one from where
the search for nodes begins, so that peers make the same plan for the same job and different jobs
start at different nodes. It is cut into parts where peers have their own (`core/parts.py`).
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import chain

from ozymandias.model.node import NodeName
from ozymandias.model.part import Part

RING = 2**64
ARCS = "0123456789abcdef"  # by the first digit of the place
OTHERS = {digit: ARCS[at + 1 :] + ARCS[:at] for at, digit in enumerate(ARCS)}  # from there on

Spot = str  # the place on the ring as text, then the node: sorted as the ring is, and no two alike


@lru_cache(maxsize=20_000)
def place_of(node: NodeName) -> int:
    """A node's place on the ring."""
    return int.from_bytes(blake2b(node.encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=20_000)
def spot_of(node: NodeName) -> Spot:
    return f"{mark_of(place_of(node))}{node}"


def mark_of(place: int) -> Spot:
    """Where the spots of a place begin; the end of the ring is beyond all of them."""
    return f"{place:016x}" if place < RING else "g"


@lru_cache(maxsize=1_000)
def start_of(job: str, version: int) -> int:
    """Where on the ring the search for nodes of a job begins."""
    return int.from_bytes(blake2b(f"{job}\0{version}".encode(), digest_size=8).digest(), "big")


def arc_of(part: Part) -> tuple[int, int]:
    """The places on the ring where a part begins and where the next one does."""
    return RING * part.number // part.of, RING * (part.number + 1) // part.of


def is_in(part: Part, node: NodeName) -> bool:
    first, last = arc_of(part)
    return first <= place_of(node) < last


class Ring:
    """Some spots in their order. Thousands come and go one by one, so each arc has its own list."""

    __slots__ = ("_arcs", "_length")

    def __init__(self) -> None:
        self._arcs: dict[str, list[Spot]] = {digit: [] for digit in ARCS}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Spot]:
        return chain(*self._arcs.values())

    def add(self, spot: Spot) -> None:
        insort(self._arcs[spot[0]], spot)
        self._length += 1

    def add_all(self, spots: list[Spot]) -> None:
        """Thousands are sorted at once sooner than put in one by one."""
        for spot in spots:
            self._arcs[spot[0]].append(spot)
        for arc in self._arcs.values():
            arc.sort()
        self._length += len(spots)

    def remove(self, spot: Spot) -> None:
        arc = self._arcs[spot[0]]
        del arc[bisect_left(arc, spot)]
        self._length -= 1

    def around(self, mark: Spot) -> Iterator[Spot]:
        """From a place on the ring on and around. Nothing may come or go meanwhile."""
        digit = min(mark[0], ARCS[-1])
        here, spot = self._arcs[digit], self._arcs[digit].__getitem__
        first = bisect_left(here, mark)
        others = chain.from_iterable(map(self._arcs.__getitem__, OTHERS[digit]))
        return chain(map(spot, range(first, len(here))), others, map(spot, range(first)))

    def between(self, first: Spot, last: Spot) -> list[Spot]:
        """Those of one part, which does not go around."""
        digits = ARCS[ARCS.index(first[0]) : ARCS.index(min(last[0], ARCS[-1])) + 1]
        row = list(chain(*(self._arcs[digit] for digit in digits)))
        return row[bisect_left(row, first) : bisect_left(row, last)]


def around(row: list[Spot], mark: Spot) -> Iterator[Spot]:
    """A few spots that are sorted, likewise."""
    first = bisect_left(row, mark)
    return chain(row[first:], row[:first])
