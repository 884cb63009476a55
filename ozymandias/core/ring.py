"""The ring of all nodes, on which different jobs begin their search at different places.

Every node has a place on it by a hash of its name, every job and version another one from where
the search for nodes begins, so that peers make the same plan for the same job and different jobs
start at different nodes. It is cut into parts where peers have their own (`core/parts.py`).
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from ozymandias.model.node import NodeName
from ozymandias.model.part import Part

RING = 2**64
ARCS = 16
ARC_BITS = 60
OTHERS = [[*range(arc + 1, ARCS), *range(arc)] for arc in range(ARCS)]  # from there on


@lru_cache(maxsize=20_000)
def place_of(node: NodeName) -> int:
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
    return first <= place_of(node) < last


class Placed(Protocol):
    @property
    def place(self) -> int: ...
    @property
    def name(self) -> NodeName: ...


T = TypeVar("T", bound=Placed)


class Ring(Generic[T]):
    """Some nodes in the order of their places. Thousands come and go one by one, so each arc has
    lists of its own: the places as numbers side by side, which are looked through, and who has
    them."""

    __slots__ = ("_arcs", "_length")

    def __init__(self) -> None:
        self._arcs: list[tuple[array[int], list[T]]] = [(array("Q"), []) for _ in range(ARCS)]
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable([there for _, there in self._arcs])

    def add(self, one: T) -> None:
        place = one.place
        places, there = self._arcs[place >> ARC_BITS]
        at = bisect_left(places, place)
        while at < len(places) and places[at] == place and there[at].name < one.name:
            at += 1
        places.insert(at, place)
        there.insert(at, one)
        self._length += 1

    def add_all(self, found: Iterable[T]) -> None:
        """Thousands are sorted at once sooner than put in one by one; nobody is there before."""
        for one in sorted(found, key=attrgetter("place", "name")):
            places, there = self._arcs[one.place >> ARC_BITS]
            places.append(one.place)
            there.append(one)
            self._length += 1

    def remove(self, one: T) -> None:
        place = one.place
        places, there = self._arcs[place >> ARC_BITS]
        at = there.index(one, bisect_left(places, place))  # no two places are alike, but by chance
        del places[at], there[at]
        self._length -= 1

    def around(self, start: int) -> Iterator[T]:
        """From a place on the ring on and around. Nobody may come or go meanwhile."""
        arc = min(start >> ARC_BITS, ARCS - 1)
        places, here = self._arcs[arc]
        first, one = bisect_left(places, start), here.__getitem__
        others = chain.from_iterable(map(self._there, OTHERS[arc]))
        return chain(map(one, range(first, len(here))), others, map(one, range(first)))

    def between(self, first: int, last: int, start: int) -> Iterator[T]:
        """Those of one part, which does not go around, from a place on and around in it."""
        arcs = self._arcs[first >> ARC_BITS : (last >> ARC_BITS) + 1]
        places = array("Q", b"".join([places.tobytes() for places, _ in arcs]))
        there = list(chain.from_iterable([there for _, there in arcs]))
        begin, end = bisect_left(places, first), bisect_left(places, last)
        middle = bisect_left(places, start, begin, end)
        return chain(there[middle:end], there[begin:middle])

    def _there(self, arc: int) -> list[T]:
        return self._arcs[arc][1]
