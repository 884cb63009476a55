"""When a peer has time for what can wait: moves that lay the cluster out better, and notes.

Nobody is in a hurry for those, and looking for them costs more than looking for anything else. So
it is done when nothing else is to be done, at most every few seconds, for at most a fiftieth of
the time; and as long after the last change as it takes for new nodes and new instances to count as
settled. In a cluster that is at rest nobody looks at all, but for moves that wait for their time.

A look that lasts lets others in between its steps. What could be suggested is looked for in one
go, and so in a part of a large cluster only, and the next time in the next part. While instances
come and go all the time nobody waits for a suggestion, and it is looked for now and then.
"""

import asyncio
from collections.abc import Mapping

from ozymandias.core.arbiter import Leisure
from ozymandias.core.moves import is_at_peace, next_patience
from ozymandias.core.rebalance import STEADY_SECONDS, TRIES_MAX, Search
from ozymandias.core.stepwise import Answer, Stepwise
from ozymandias.model.instance import Assignment
from ozymandias.model.job import JobKey
from ozymandias.model.node import Node, NodeName
from ozymandias.model.settings import RebalanceMode
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import changes_between

LOOK_SECONDS = 2.0  # between two looks
SHARE = 50  # a look of so long is followed by a pause so many times as long
BUSY_SECONDS_MAX = 60.0  # between two looks for what could be suggested, while much is going on
LOOKED_AT_MAX = 5_000  # instances, in a look for what could be suggested
ROOMS_MAX = 50_000  # nodes that such a look asks whether they would be better, all tries together
TRIES_MIN = 10
LATER_SECONDS = 30.0  # between two looks for what waits by the wall clock, which may be set
NEVER = (-1, 0.0)
SHORT = 20  # steps of a look, a few ms each at most, that are no reason to let others in


async def unhurried(steps: Stepwise[Answer]) -> tuple[Answer, bool]:
    """What a look comes to, and whether it was so long that others were let in."""
    number = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Answer = end.value
            return answer, number > SHORT
        number += 1
        if number > SHORT:
            await asyncio.sleep(0)


class Pace:
    def __init__(self, steady_seconds: float = STEADY_SECONDS) -> None:
        self._steady_seconds = steady_seconds
        self._there_since: dict[NodeName, tuple[int, float]] = {}  # epoch, and since when
        self._nodes: Mapping[NodeName, Node] = {}  # of which that was noted
        self._revision = -1
        self._changed = 0.0
        self._assignments: Mapping[tuple[NodeName, JobKey], Assignment] = {}
        self._moved = 0.0  # when those last changed
        self._suggesting = 0.0  # when it was last looked for what could be suggested
        self._next = 0.0
        self._suggested = ""
        self._from: JobKey | None = None  # where the next look for a suggestion begins; None: anew
        self._is_found = False  # a suggestion, since it last began anew

    def leisure(self, snapshot: Snapshot, now: float) -> Leisure | None:
        """What to look at, or None while it is not time for it; ``now`` is the boot clock."""
        self._note(snapshot, now)
        return None if now < self._next else self.at(snapshot, now)

    def at(self, snapshot: Snapshot, now: float) -> Leisure:
        """What there is to look at, whether it is time for it or not."""
        self._note(snapshot, now)
        settled = frozenset(
            name
            for name, (_, since) in self._there_since.items()
            if now - since >= self._steady_seconds
        )
        return Leisure(steady_seconds=self._steady_seconds, settled=settled)

    def _note(self, snapshot: Snapshot, now: float) -> None:
        if snapshot.revision == self._revision:
            return
        self._revision, self._changed = snapshot.revision, now
        if snapshot.assignments is not self._assignments:
            self._assignments, self._moved = snapshot.assignments, now
        before, self._nodes = self._nodes, snapshot.nodes
        for name, node in changes_between(before, snapshot.nodes).items():
            # One that was under pressure has to be well for a while too.
            if node is None or not node.is_schedulable:
                self._there_since.pop(name, None)
            elif self._there_since.get(name, NEVER)[0] != node.presence_revision:
                self._there_since[name] = (node.presence_revision, now)

    def may_suggest(self, now: float) -> bool:
        """Whether it is time to look for a suggestion, which is done then."""
        is_time = now >= min(self._moved + LOOK_SECONDS, self._suggesting + BUSY_SECONDS_MAX)
        if is_time:
            self._suggesting = now
        return is_time

    def looked(self, began: float, now: float) -> None:
        """There was nothing to do: not again for a moment."""
        self._next = now + max(LOOK_SECONDS, SHARE * (now - began))

    def look_again(self, snapshot: Snapshot, now: float, wall: float) -> float | None:
        """When to look though nothing changes; boot clock.

        A move that was begun has to end, whether others may begin or not.
        """
        if now < self._next:
            return self._next
        settings = snapshot.settings
        may_begin = settings.rebalance is not RebalanceMode.OFF or settings.rebalancing
        if may_begin and now < self._changed + self._steady_seconds + LOOK_SECONDS:
            return now + LOOK_SECONDS
        waits = next_patience(snapshot, wall) is not None or (
            may_begin and any(is_at_peace(record.head, wall) for record in snapshot.jobs.values())
        )
        return now + LATER_SECONDS if waits else None

    def suggestion(self, snapshot: Snapshot, leisure: Leisure, wall: float) -> str:
        """What would be moved if the setting were `on`, in words; "" if that is no news."""
        before = self._suggested
        if snapshot.settings.rebalance is not RebalanceMode.SUGGEST:
            self._suggested, self._from, self._is_found = "", None, False
            return ""
        search = Search(
            snapshot,
            now=wall,
            steady_seconds=self._steady_seconds,
            settled=leisure.settled,
            jobs=self._part(snapshot),
            tries_max=min(TRIES_MAX, max(TRIES_MIN, ROOMS_MAX // max(1, len(snapshot.nodes)))),
        )
        step = search.best()
        self._is_found |= step is not None
        if step is not None:
            old = step.instance
            self._suggested = f"{old.instance} from {old.node} to {step.placed.node}"
        elif self._from is None and not self._is_found:
            self._suggested = ""  # all of it was looked at
        if self._from is None:
            self._is_found = False
        return f"{self._suggested}: {step.reason}" if step and not before else ""

    def _part(self, snapshot: Snapshot) -> frozenset[JobKey] | None:
        """The jobs whose turn it is, in the order of their names; None: all, there are few."""
        wanted = {key: record.head.wanted for key, record in snapshot.jobs.items()}
        if sum(wanted.values()) <= LOOKED_AT_MAX:
            self._from = None
            return None
        first, self._from = self._from, None
        part: list[JobKey] = []
        count = 0
        for key in sorted(key for key in wanted if first is None or key >= first):
            if part and count + wanted[key] > LOOKED_AT_MAX:
                self._from = key
                break
            part.append(key)
            count += wanted[key]
        return frozenset(part)
