"""Emptying a node: its instances start elsewhere, get healthy, and only then stop where they were.

`plan_drain` is the next step of every drain that a ledger asks for, done by whichever peer comes
first. A job has a few more instances than wanted meanwhile; never fewer healthy ones. What it lacks
is placed first, where there is room, and never counts as a replacement. Those that must never run
twice (`on_partition: stop`) stop first and wait on their new node instead, if `min_available` bears
it. What is being replaced anyway, a rollout takes away; volumes that are kept stay, and so does
their instance. Past the deadline, which is the operator's own word, whatever is left is stopped and
becomes pending, as far as `min_available` allows.

Where a burst's nodes have no place, some of a job may be missing for good while all at home can
move. Their replacements fill the number that is wanted, but not the places that the missing ones
wait for: there it is the number at home that tells who is one too many.

What would move where, and what could not, `core/departures.py` tells beforehand.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from ozymandias.core.buckets import (
    Buckets,
    FreeSlots,
    assignments_by_job,
    is_system,
    per_node,
    sort_job,
)
from ozymandias.core.budget import Budget, budget_of
from ozymandias.core.edits import EDITS_MAX, new_instance, stop
from ozymandias.core.placement import Ask, Placement, place
from ozymandias.core.rooms import NOW, Rooms, rooms_of
from ozymandias.core.rules import Rules, at_home, rules_of
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import Burst, Job, JobHead, JobKey, OnPartition
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot

AT_ONCE_MAX = 4  # instances of one job that are started elsewhere at the same time

WAITS = (SlotState.WAITING,)


def plan_drain(snapshot: Snapshot, now: float) -> Plan | None:
    """The next step of every drain under way; ``now`` is the wall clock."""
    drained = drained_nodes(snapshot)
    keys = _jobs_on(snapshot, drained)
    if not keys:
        return None
    late = frozenset(name for name in drained if _is_late(snapshot, name, now))
    rooms = rooms_of(snapshot)
    assignments = assignments_by_job(snapshot, keys)
    edits: list[Edit] = []
    for key in by_priority(snapshot, keys):
        record = snapshot.jobs[key]
        assert record.current is not None
        moving = Moving(
            head=record.head,
            job=record.current.job,
            buckets=sort_job(snapshot, key, assignments[key]),
            drained=drained,
            late=late,
            rooms=rooms,
            rules=rules_of(snapshot, record.current.job, edits),
        )
        edits += moving.steps()
        if len(edits) >= EDITS_MAX:
            break  # the others have their turn next
    if not edits:
        return None
    nodes = ", ".join(sorted(drained))
    return Plan(reason=f"drain of {nodes}", edits=tuple(edits))


def drained_nodes(snapshot: Snapshot) -> frozenset[NodeName]:
    """Those that are to become empty and are there; what a lost one had, repair moves."""
    return frozenset(
        name for name, node in snapshot.nodes_where(_has_drain).items() if node.is_alive
    )


def _has_drain(node: Node) -> bool:
    return node.ledger.drain is not None


def jobs_on_drained(snapshot: Snapshot) -> frozenset[JobKey]:
    """The jobs that a drain is moving."""
    return _jobs_on(snapshot, drained_nodes(snapshot))


def _jobs_on(snapshot: Snapshot, nodes: frozenset[NodeName]) -> frozenset[JobKey]:
    """Jobs that live there, can be read, and are neither going nor bound to their nodes."""
    if not nodes:
        return frozenset()
    return frozenset(
        key
        for name in nodes
        for key, assignment in snapshot.on(name).items()
        if (record := snapshot.jobs.get(key)) is not None
        and record.current is not None
        and not record.head.deleting
        and not is_system(record)
        and any(group.state is not SlotState.STOPPING for group in assignment.groups)
    )


def by_priority(snapshot: Snapshot, keys: Iterable[JobKey]) -> list[JobKey]:
    def rank(key: JobKey) -> tuple[int, JobKey]:
        current = snapshot.jobs[key].current
        return (-current.job.priority if current else 0), key

    return sorted(keys, key=rank)


def _is_late(snapshot: Snapshot, name: NodeName, now: float) -> bool:
    drain = snapshot.nodes[name].ledger.drain
    return drain is not None and 0 < drain.deadline <= now


def next_deadline(snapshot: Snapshot, now: float) -> float | None:
    """When the next drain that is not done reaches its deadline; wall clock."""
    times = [
        drain.deadline
        for node in snapshot.nodes_where(_has_drain).values()
        if (drain := node.ledger.drain) and drain.deadline > now and node.is_alive
    ]
    return min(times, default=None)


@dataclass(slots=True, kw_only=True)
class Moving:
    """A job with instances on nodes that are drained."""

    head: JobHead
    job: Job
    buckets: Buckets
    drained: frozenset[NodeName]
    late: frozenset[NodeName]  # of these the deadline is past
    rooms: Rooms
    rules: Rules

    def steps(self) -> list[Edit]:
        buckets = self.buckets
        if buckets.outdated or keeps_volumes(self.job):
            edits: list[Edit] = []  # a rollout takes them away; or they stay where their data is
        elif missing := self._start_missing():
            edits = missing
        elif self.job.on_partition is OnPartition.STOP:
            edits = self._stop_first()
        else:
            edits = [*self._stop_replaced(), *self._start_elsewhere()] or self._leave_full_home()
        leaving = {(e.node, e.slot) for e in edits if e.before is not None}
        return [*edits, *self._stop_late(leaving)]

    def _here(self, bucket: Iterable[Assigned]) -> list[Assigned]:
        return [a for a in bucket if a.node in self.drained]

    @property
    def _surplus(self) -> int:
        return len(self.buckets.live) - self.head.wanted

    @property
    def _budget(self) -> Budget:
        return budget_of(self.job, self.head.wanted, self.buckets)

    def _stop_replaced(self) -> list[Edit]:
        """As many as there are more than wanted, if enough others carry the traffic."""
        spare = self._budget.healthy - self.head.wanted
        return self._stop_surplus(self._surplus, spare, "enough others are healthy")

    def _leave_full_home(self) -> list[Edit]:
        """Nothing more has a place, and home has more than a burst leaves there: as many go."""
        burst = self.rules.asked.burst
        if burst is None or self._surplus > 0:
            return []
        surplus = at_home(burst.nodes, per_node(self.buckets.live)) - burst.after
        ready = at_home(burst.nodes, per_node(self.buckets.ready))
        spare = min(ready - burst.after, self._budget.spare)
        return self._stop_surplus(surplus, spare, home_words(burst), frozenset(burst.nodes))

    def _stop_surplus(
        self, surplus: int, spare: int, why: str, away: Set[str] = frozenset()
    ) -> list[Edit]:
        """So many, first what serves nobody; ``spare``: of the healthy ones at most."""
        idle = self._here((*self.buckets.waiting, *self.buckets.unready))
        idle = [a for a in idle if a.node not in away][: max(0, surplus)]
        serving = [a for a in self._here(self.buckets.ready) if a.node not in away]
        serving = serving[: max(0, min(surplus - len(idle), spare))]
        gone = [stop(a, f"{a.node} is drained, and it serves nobody") for a in idle]
        return gone + [stop(a, f"{a.node} is drained, and {why}") for a in serving]

    def _start_missing(self) -> list[Edit]:
        """What the job lacks anyway, placed as whatever is pending, a few at a time."""
        missing = min(-self._surplus, AT_ONCE_MAX)
        ask = Ask.of(self.job, self.head, self.rules, per_node(self.buckets.live))
        placed = place(self.rooms, ask, missing, per_node(self.buckets.current), NOW)
        return self._new(placed, "room appeared: ")

    def _start_elsewhere(self) -> list[Edit]:
        """A replacement for each that is to leave, a few at a time."""
        leaving = len(self._here(self.buckets.live))
        extra = max(0, self._surplus)  # started already, or stopping in this very step
        count = min(leaving - extra, AT_ONCE_MAX - extra)
        placed = place(self.rooms, self._ask(), count, self._elsewhere(), NOW)
        names = ", ".join(sorted(self.drained))
        return self._new(placed, f"{names} {'is' if len(self.drained) == 1 else 'are'} drained: ")

    def _new(self, placed: Iterable[Placement], why: str) -> list[Edit]:
        slots, demand = FreeSlots(self.buckets.used_slots()), Demand.of(self.job)
        return [new_instance(self.job.key, self.head, next(slots), demand, p, why) for p in placed]

    def _stop_first(self) -> list[Edit]:
        """One at a time: it stops here and waits there, in the same slot."""
        buckets = self.buckets
        if buckets.waiting or self._surplus > 0:
            return []
        for old in self._here((*buckets.unready, *buckets.ready)):
            if old in buckets.ready and self._budget.spare < 1:
                continue
            for placed in place(self.rooms, self._ask(), 1, self._elsewhere(), WAITS):
                why = f"{old.node} is drained, and it must never run twice: "
                demand = Demand.of(self.job)
                return [
                    stop(old, f"{old.node} is drained; it moves to {placed.node}"),
                    new_instance(self.job.key, self.head, old.slot, demand, placed, why),
                ]
        return []

    def _stop_late(self, leaving: set[tuple[NodeName, int]]) -> Iterator[Edit]:
        """The deadline is past: what is still there stops, and is placed where there is room."""
        left = [a for a in self.buckets.live if a.node in self.late]
        left = [a for a in left if (a.node, a.slot) not in leaving]
        healthy = {*self.buckets.ready, *self.buckets.serving}
        spare = self._budget.spare
        spare -= sum((a.node, a.slot) in leaving for a in healthy)
        for assigned in left:
            if assigned in healthy:
                if spare <= 0:
                    continue
                spare -= 1
            yield stop(assigned, f"{assigned.node} is drained, and the deadline is past")

    def _ask(self) -> Ask:
        ask = Ask.of(self.job, self.head, self.rules, per_node(self.buckets.live))
        return replace(ask, lasting=self._elsewhere())

    def _elsewhere(self) -> Counter[NodeName]:
        return per_node(a for a in self.buckets.live if a.node not in self.drained)


def home_words(burst: Burst) -> str:
    serve = "other serves" if burst.after == 1 else "others serve"
    return f"{burst.after} {serve} at home, where no more are to be"


def keeps_volumes(job: Job) -> bool:
    return any(volume.keep for container in job.containers for volume in container.volumes)
