"""Who would have to leave a node for something to fit there: the fewest, and of those the lowest.

Candidates stand in the order in which they would be missed: lower priority first, then those that
serve nobody, then the smaller ones. A set of victims is better the smaller it is, and of two alike
in size the one whose last member comes earlier in that order, then its last but one, and so on.
Sets are tried in just this order (it is called colexicographic), so the first that will do is the
best. What can be had at most from the candidates up to some place is summed up before, and cuts off
all that can't do: where only one resource is short, nothing is ever tried in vain. The effort is
bounded all the same; past the bound a larger set may be taken, or none.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from ozymandias.model.instance import Assigned
from ozymandias.model.node import HostPort, NodeName
from ozymandias.model.units import format_size

VICTIMS_MAX = 32  # that leave one node for one instance
REMEMBERED_MAX = 32  # displacements of one node within a minute; beyond, nobody has to leave it
TRIES_MAX = 5_000

Amounts = tuple[int, ...]  # of each resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An instance that could be asked to leave."""

    assigned: Assigned
    priority: int
    is_ready: bool  # healthy: it would be missed at once

    @property
    def frees(self) -> Amounts:
        demand = self.assigned.demand
        return demand.memory_bytes, demand.disk_bytes, demand.cpu_millis

    @property
    def order(self) -> tuple[object, ...]:
        a = self.assigned
        return self.priority, self.is_ready, *self.frees, a.job, -a.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The best victims on one node."""

    site: "Site"
    victims: tuple[Candidate, ...]
    waste: int  # bytes of memory freed beyond what is needed

    @property
    def node(self) -> NodeName:
        return self.site.node

    @property
    def rank(self) -> tuple[object, ...]:
        priorities = sorted((v.priority for v in self.victims), reverse=True)
        ready = sum(v.is_ready for v in self.victims)
        return len(self.victims), priorities, ready, self.waste, self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One node, as an instance that has no room there finds it."""

    node: NodeName
    candidates: tuple[Candidate, ...]  # who could be asked to leave, in order
    lack: tuple[int, int, int]  # of memory, disk and cores; below zero: more than enough is free
    ports: frozenset[HostPort]  # that it needs and others have
    displaced: int  # who had to leave lately

    def offer(self, priority: int) -> Offer | None:
        """The best victims for something of this priority; None if they would not do."""
        forced = self._forced()
        allowance = priority - sum(c.priority for c in forced)
        if not self.candidates or self._held_ports(forced) or allowance < 0:
            return None
        freed = [c.frees for c in forced]
        left = tuple(a - sum(f[i] for f in freed) for i, a in enumerate(self.lack))
        others = fewest([c for c in self.candidates if c not in forced], left, allowance)
        victims = (*forced, *(others or ()))
        if others is None or not victims:
            return None
        if self.displaced + len(victims) > REMEMBERED_MAX:
            return None
        waste = sum(v.frees[0] for v in victims) - max(0, self.lack[0])
        return Offer(site=self, victims=victims, waste=waste)

    def why_no_offer(self, priority: int) -> str:
        """Where there is none, what is wrong with those who could leave."""
        if ports := self._held_ports(self._forced()):
            return f"host port {min(ports)} is held by what stays"
        freed = [sum(c.frees[i] for c in self.candidates) for i in range(len(self.lack))]
        if freed[0] < self.lack[0]:
            short = format_size(self.lack[0] - freed[0])
            return f"all that may leave would free {short} of memory too little"
        if any(a < b for a, b in zip(freed, self.lack, strict=True)):
            return "all that may leave would free too little"
        if self.displaced:
            return f"{self.displaced} had to leave within the last minute: no more may for now"
        return f"those who would have to leave are together more important than {priority}"

    def _forced(self) -> list[Candidate]:
        """Those whose host ports it needs."""
        return [
            c for c in self.candidates if not self.ports.isdisjoint(c.assigned.demand.host_ports)
        ]

    def _held_ports(self, forced: Sequence[Candidate]) -> frozenset[HostPort]:
        """The ports that it can't have whoever leaves."""
        return self.ports.difference(p for c in forced for p in c.assigned.demand.host_ports)


def fewest(
    candidates: Sequence[Candidate], lack: Amounts, allowance: int
) -> tuple[Candidate, ...] | None:
    """The best set that frees what is lacking, in its order; None if there is none.

    ``candidates`` are in order. The priorities of the set sum up to ``allowance`` at most.
    """
    if max(lack) <= 0:
        return ()
    if not candidates:
        return None
    search = _Search(candidates)
    for count in range(1, min(len(candidates), VICTIMS_MAX) + 1):
        chosen = search.first(len(candidates), count, lack, allowance)
        if chosen is not None:
            return tuple(candidates[index] for index in chosen)
    return None


class _Search:
    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._frees = [c.frees for c in candidates]
        self._priorities = [c.priority for c in candidates]
        self._tries = 0
        # By count: of the first so many candidates, what so many of them free at most, and the
        # least that so many priorities sum up to.
        self._most: list[list[Amounts]] = [[(0,) * len(self._frees[0])] * (len(candidates) + 1)]
        self._least = [0]

    def first(self, end: int, count: int, lack: Amounts, allowance: int) -> tuple[int, ...] | None:
        """The first set of ``count`` among the candidates before ``end`` that will do."""
        if count == 0:
            return () if max(lack) <= 0 and allowance >= 0 else None
        self._prepare(count)
        if not self._may_do(end, count, lack):
            return None
        for last in range(count - 1, end):
            left = allowance - self._priorities[last]
            if left < self._least[count - 1]:
                return None  # those behind it are no lower
            self._tries += 1
            if self._tries > TRIES_MAX:
                return None
            rest = tuple(a - b for a, b in zip(lack, self._frees[last], strict=True))
            if self._may_do(last, count - 1, rest):
                found = self.first(last, count - 1, rest, left)
                if found is not None:
                    return *found, last
        return None

    def _may_do(self, end: int, count: int, lack: Amounts) -> bool:
        return all(
            most >= amount for most, amount in zip(self._most[count][end], lack, strict=True)
        )

    def _prepare(self, count: int) -> None:
        while len(self._most) <= count:
            size = len(self._most)
            self._most.append(self._top_sums(size))
            self._least.append(self._least[-1] + self._priorities[size - 1])

    def _top_sums(self, count: int) -> list[Amounts]:
        """For each beginning of the list, the sum of its ``count`` largest, by resource."""
        columns = []
        for resource in range(len(self._frees[0])):
            largest: list[int] = []
            total, sums = 0, [0]
            for frees in self._frees:
                insort(largest, frees[resource])
                total += frees[resource]
                if len(largest) > count:
                    total -= largest.pop(0)
                sums.append(total)
            columns.append(sums)
        return list(zip(*columns, strict=True))
