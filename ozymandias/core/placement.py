"""Bin-packing: which nodes take the instances of one job. Feasible -> score -> fit.

*Feasible* is a node that takes work (`core/rooms.py`), has nothing against it (`core/rules.py`) and
has room: memory, disk, and the host ports. *Score* orders the feasible ones, the first that
differs decides:

1. what the job would like: the sum of the weights of its wishes that the node has,
2. `spread`: the fewest of the job on nodes with the same value of the label,
3. the fewest instances of the same job, in tenths of it, because losing one machine should cost
   one instance of a small job and no more than a tenth of a large one,
4. pack tightly up to the target (70 % of memory) and spread beyond, so that small clusters keep
   whole machines free for large jobs and full ones share the heat; in tenths, so that nodes about
   as full as each other are tied,
5. how busy the machine really is, in wide classes: it decides between tied ones and nothing more,
6. its place on a ring of all nodes, from where a hash of job and version points to. So every peer
   makes the same plan for the same job, and different jobs start at different nodes.

*Fit*: instances of one job are alike, hence greedy placement reaches the most that can be placed at
all, whatever is liked; a heap makes it O(n log m).
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ozymandias.core.ring import RING, place_of, start_of
from ozymandias.core.rooms import NOW, UNCOUNTED, Room, Rooms
from ozymandias.core.rules import NO_RULES, Rules, at_home
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Job, JobHead, JobKey
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.units import counted, format_size

Rank = tuple[int, int, int, int, int, int, int, NodeName]
TENTHS = 10  # of a job, by which a node's share of it is counted


class Ask(Struct, frozen=True, kw_only=True):
    """Instances of one job and version to be placed."""

    job: JobKey
    version: int
    demand: Demand
    wanted: int = 0  # instances of the job in all; 0: few, each of which counts
    kin: str = "other"  # what the instances to keep apart from are called
    rules: Rules = NO_RULES
    # How many of the job each node has, for the limits; None: those to keep apart from.
    there: Mapping[NodeName, int] | None = None
    # Of those the ones that stay, for the burst; None: all of them.
    lasting: Mapping[NodeName, int] | None = None
    # Room is so scarce that it comes before all that is liked: the fullest node that has it.
    is_tight: bool = False

    @classmethod
    def of(cls, job: Job, head: JobHead, rules: Rules, there: Mapping[NodeName, int]) -> "Ask":
        """For instances of a job as its head wants them, where ``there`` are."""
        return cls(
            job=job.key,
            version=head.version,
            demand=Demand.of(job),
            wanted=head.wanted,
            rules=rules,
            there=there,
        )


class Placement(Struct, frozen=True, kw_only=True, gc=False):
    """One instance's place, and why there."""

    node: NodeName
    state: SlotState
    reason: str
    score: tuple[tuple[str, float], ...]


def share_of(wanted: int) -> int:
    """How many of a job a node may have before it counts as a tenth of it."""
    return max(1, -(-wanted // TENTHS))


def most_that_fit(
    rooms: Rooms,
    demand: Demand,
    most: int,
    states: Sequence[SlotState] = NOW,
    *,
    rules: Rules = NO_RULES,
    there: Mapping[NodeName, int] | None = None,
) -> int:
    """How many instances alike could be placed; exactly what `place` would reach.

    ``there`` counts the instances per node that are part of the limits.
    """
    # What fits at once also fits among what is promised, so the wider state tells the sum.
    state, limit, known = states[-1], rules.asked.max_per_node, there or {}

    def fitting(among: Rooms, most: int) -> int:
        found = sum(
            room.count(
                demand, state, max(0, min(most, limit - known.get(name, 0))) if limit else most
            )
            for name, room in among.items()
        )
        return min(found, most)

    stages = Stages(rules, rooms, known)
    placed = fitting(stages.first, min(most, stages.first_most(most)))
    if stages.goes_on(placed):
        placed += fitting(stages.rest, most - placed)
    return placed


class Stages:
    """Which rooms are filled first, how far, and which then: home, and what a burst goes to.

    Below `after` live instances a burst's nodes are not used at all, and where home has no room for
    so many the others are pending. Without a burst there is one stage.
    """

    def __init__(self, rules: Rules, rooms: Rooms, lasting: Mapping[NodeName, int]) -> None:
        self.first, self.rest = rules.eligible(rooms), Rooms()
        self._burst = rules.asked.burst
        if self._burst:
            away = self._burst.nodes
            self._live = sum(lasting.values())
            self._home = at_home(away, lasting)
            self.rest = {name: room for name, room in self.first.items() if name in away}
            self.first = {name: room for name, room in self.first.items() if name not in away}

    def first_most(self, count: int) -> int:
        return max(0, self._burst.after - self._home) if self._burst else count

    def goes_on(self, placed: int) -> bool:
        return self._burst is not None and self._live + placed >= self._burst.after


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
    there = apart_from if ask.there is None else ask.there
    stages = Stages(ask.rules, rooms, there if ask.lasting is None else ask.lasting)
    fit = _Fit(ask, apart_from, there)
    fit.fill(stages.first, min(count, stages.first_most(count)), states)
    if stages.goes_on(len(fit.placements)):
        fit.is_beyond = True
        fit.fill(stages.rest, count - len(fit.placements), states)
    return fit.placements


def ranked(
    rooms: Rooms, ask: Ask, apart_from: Mapping[NodeName, int]
) -> list[tuple[NodeName, tuple[tuple[str, float], ...]]]:
    """These rooms in the order in which `place` would choose them for one, with what counted."""
    fit = _Fit(ask, apart_from, apart_from if ask.there is None else ask.there)
    burst = ask.rules.asked.burst

    def rank(room: Room) -> tuple[bool, Rank]:
        name = room.node
        is_away = burst is not None and name in burst.nodes  # home is filled first
        tie = _tie(ask, name)
        if ask.is_tight:
            same = apart_from.get(name, 0)
            return is_away, (0, 0, 0, 0, room.memory_left(), same, tie, name)
        worth = -ask.rules.worth(name)
        return is_away, (worth, *fit._crowd(name), *fit._heat(room), tie, name)

    return [(room.node, fit.terms(room)) for room in sorted(rooms.values(), key=rank)]


class _Fit:
    """The instances of one ask, being placed."""

    def __init__(
        self, ask: Ask, apart_from: Mapping[NodeName, int], there: Mapping[NodeName, int]
    ) -> None:
        self.ask = ask
        self.placements: list[Placement] = []
        self.is_beyond = False  # home has as many as it takes, and the burst has begun
        self._same = dict(apart_from)
        self._there = there
        self._limit = ask.rules.asked.max_per_node
        self._groups = ask.rules.groups
        self._alike: Counter[str] = Counter()  # of the job, by the label that it spreads over
        for node, number in apart_from.items():
            self._alike[self._groups.get(node, "")] += number

    def fill(self, rooms: Rooms, count: int, states: Sequence[SlotState]) -> None:
        """Place up to ``count`` of them in these rooms."""
        demand = self.ask.demand
        ties = {name: _tie(self.ask, name) for name in rooms}
        worth, left = self._worth(rooms), self._left(rooms)
        until = len(self.placements) + count

        def rank(room: Room) -> Rank:
            name = room.node
            if self.ask.is_tight:
                return (0, 0, 0, 0, room.memory_left(), self._same.get(name, 0), ties[name], name)
            return (-worth.get(name, 0), *self._crowd(name), *self._heat(room), ties[name], name)

        for state in states:
            heap = [
                rank(room)
                for name, room in rooms.items()
                if left.get(name, 1) > 0 and room.fits(demand, state)
            ]
            heapq.heapify(heap)
            while heap and len(self.placements) < until:
                room = rooms[heap[0][-1]]
                if self._groups and (now := rank(room)) != heap[0]:
                    heapq.heapreplace(heap, now)  # others of its group were placed since
                    continue
                self._take(room, state)
                if left:
                    left[room.node] -= 1
                if left.get(room.node, 1) > 0 and room.fits(demand, state):
                    heapq.heapreplace(heap, rank(room))
                else:
                    heapq.heappop(heap)

    def _worth(self, rooms: Rooms) -> dict[NodeName, int]:
        """What the wishes make of each node; nothing when there are none."""
        rules = self.ask.rules
        return {name: rules.worth(name) for name in rooms} if rules.wishes else {}

    def _left(self, rooms: Rooms) -> dict[NodeName, int]:
        """How many more each node may have by the job's own limit; nothing when there is none."""
        limit, there = self._limit, self._there
        return {name: limit - there.get(name, 0) for name in rooms} if limit else {}

    def _crowd(self, node: NodeName) -> tuple[int, int]:
        """How many of the job are on alike nodes, and on this one."""
        alike = self._alike[self._groups[node]] if node in self._groups else 0
        same, wanted = self._same.get(node, 0), self.ask.wanted
        return alike, same * TENTHS // wanted if wanted > TENTHS else same

    def _heat(self, room: Room) -> tuple[int, int, int]:
        """Below the target the fullest is best, beyond it the emptiest; then the least busy."""
        used = room.memory_promised + self.ask.demand.memory_bytes
        limit = max(1, room.memory_limit)
        tenths = 10 * used // limit
        if 100 * used <= self.ask.rules.target_percent * limit:
            return 0, -tenths, room.load
        return 1, tenths, room.load

    def _take(self, room: Room, state: SlotState) -> None:
        self.placements.append(
            Placement(
                node=room.node,
                state=state,
                reason=self._reason(room, state),
                score=self.terms(room),
            )
        )
        room.take(self.ask.demand, state)
        self._same[room.node] = self._same.get(room.node, 0) + 1
        if self._groups:
            self._alike[self._groups.get(room.node, "")] += 1

    def terms(self, room: Room) -> tuple[tuple[str, float], ...]:
        """Everything that counts for or against a node, in the order in which it counts."""
        rules, after = self.ask.rules, room.memory_promised + self.ask.demand.memory_bytes
        alike, same = self._crowd(room.node)[0], self._same.get(room.node, 0)
        share = after / max(1, room.memory_limit)
        return (
            *((w.words, float(w.weight if room.node in w.nodes else 0)) for w in rules.wishes),
            *(((f"same_{rules.asked.spread}", float(alike)),) if self._groups else ()),
            ("same_job", float(same)),
            ("memory_after", round(share, 4)),
            ("below_target", float(100 * share <= rules.target_percent)),
            *cpu_term(self.ask.demand, room.cpu_promised, room.cpu_limit),
            *((("load", float(room.load)),) if room.load else ()),
        )

    def _reason(self, room: Room, state: SlotState) -> str:
        ask = self.ask
        company = company_words(ask, self._same.get(room.node, 0))
        if state is SlotState.WAITING:
            soon = format_size(room.memory_left(state))
            words = f"{room.node} has {company} and {soon} free once what stops there is gone"
        else:
            free, limit = format_size(room.memory_left()), format_size(room.memory_limit)
            words = f"{room.node} has {company} and {free} of {limit} memory free"
        near = [str(n.job) for n in ask.rules.asked.near if not n.weight]
        words += f", beside {' and '.join(near)} as required" if near else ""
        if self.is_beyond and (burst := ask.rules.asked.burst):
            words += f", for what is above {counted(burst.after, 'instance')}"
        if value := self._groups.get(room.node):
            label, alike = ask.rules.asked.spread, self._alike[value]
            words += f", and {label} {value} has {alike} of {ask.job}"
        liked = [w for w in ask.rules.wishes if room.node in w.nodes]
        own = " and ".join(w.words for w in liked if not w.is_theirs)
        theirs = " and ".join(w.words for w in liked if w.is_theirs)
        words += f", and {own} as preferred" if own else ""
        return f"{words}, and {theirs}" if theirs else words


def _tie(ask: Ask, node: NodeName) -> int:
    """How far along the ring the node is from where the job begins."""
    return (place_of(node) - start_of(str(ask.job), ask.version)) % RING


def company_words(ask: Ask, same: int) -> str:
    """How many of the job are there already, and why that is all right."""
    if same == 0:
        return f"no {ask.kin} instance of {ask.job}"
    rules = ask.rules
    if rules.is_particular or rules.required or rules.asked.burst or ask.wanted > TENTHS:
        return f"{counted(same, f'{ask.kin} instance')} of {ask.job}"
    return f"no more {ask.kin} instances of {ask.job} than any node with room ({same})"


def cpu_term(demand: Demand, promised: int, limit: int) -> tuple[tuple[str, float], ...]:
    if not demand.cpu_millis or limit == UNCOUNTED:
        return ()
    return (("cpu_after", round((promised + demand.cpu_millis) / limit, 4)),)
