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

`foresee_drain` tells beforehand what would move where, and what could not.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from ozymandias.core.buckets import (
    Buckets,
    FreeSlots,
    assignments_by_job,
    is_system,
    per_node,
    sort_job,
)
from ozymandias.core.budget import Budget, budget_of, floor_of
from ozymandias.core.edits import EDITS_MAX, new_instance, stop
from ozymandias.core.fitting import describe, needs, shortfall
from ozymandias.core.placement import Ask, Placement, place
from ozymandias.core.rooms import NOW, NOW_OR_SOON, Room, Rooms, rooms_of
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
    for key in _by_priority(snapshot, keys):
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


def _by_priority(snapshot: Snapshot, keys: Iterable[JobKey]) -> list[JobKey]:
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
    return f"{burst.after} others serve at home, where no more are to be"


def keeps_volumes(job: Job) -> bool:
    return any(volume.keep for container in job.containers for volume in container.volumes)


# Beforehand ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """An instance that would leave, and where to; ``to`` is "" for one that just ends."""

    instance: str
    job: JobKey
    to: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """An instance that could not leave now, and why."""

    instance: str
    job: JobKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    movers: tuple[Mover, ...] = ()
    blockers: tuple[Blocker, ...] = ()


def foresee_drain(snapshot: Snapshot, name: NodeName) -> Outlook:
    """What a drain of this node would do with each instance on it, if all goes well.

    In rounds, as the drain itself goes on: a few of every job at a time, and who may only be beside
    one that leaves as well finds its place in a later round.
    """
    rooms = {n: room for n, room in rooms_of(snapshot).items() if n != name}
    here = [a for a in snapshot.instances_on(name) if a.state is not SlotState.STOPPING]
    by_job: dict[JobKey, list[Assigned]] = {}
    for assigned in here:
        by_job.setdefault(assigned.job, []).append(assigned)
    movers: list[Mover] = []
    blockers: list[Blocker] = []
    leaving: list[_Leaving] = []
    for key in _by_priority(snapshot, [k for k in by_job if k in snapshot.jobs]):
        for found in _outlook(snapshot, key, by_job[key], name):
            if isinstance(found, Mover):
                movers.append(found)
            elif isinstance(found, Blocker):
                blockers.append(found)
            else:
                leaving.append(found)
    decided: list[Edit] = []
    while sum(one.go_on(snapshot, rooms, decided, movers) for one in leaving):
        pass  # every one of them has its turn in every round
    for one in leaving:
        movers += one.leave_full_home()
        rules = rules_of(snapshot, one.job, decided)
        for a in one.left:
            reason = one.why_left or _no_room(snapshot, one.job, a, rooms, rules, one.there)
            reason = f"{one.missing_words}{reason}"
            blockers.append(Blocker(instance=str(a.instance), job=a.job, reason=reason))
    return Outlook(movers=tuple(movers), blockers=tuple(blockers))


@dataclass(slots=True, kw_only=True)
class _Leaving:
    """Instances of a job that need a place elsewhere."""

    job: Job
    head: JobHead
    left: list[Assigned]
    there: Counter[NodeName]  # all of the job
    lasting: Counter[NodeName]  # of those the ones that no drain takes away
    surplus: int  # live ones above those wanted; below 0: missing ones
    begun: int  # have a replacement, and are still there
    came_first: int = 0  # of the missing ones
    why_left: str = ""

    @property
    def missing_words(self) -> str:
        came, verb = self.came_first, "is" if self.came_first == 1 else "are"
        first = "comes first" if came == 1 else "come first"
        return f"{came} of {self.job.key} {verb} missing and {first}; " if came else ""

    def go_on(
        self, snapshot: Snapshot, rooms: Rooms, decided: list[Edit], movers: list[Mover]
    ) -> bool:
        """What would be under way at the same time; False when there is nothing more to do."""
        if not self.left:
            return False
        rules = rules_of(snapshot, self.job, decided)
        ask = Ask.of(self.job, self.head, rules, self.there)
        missing = place(rooms, ask, min(-self.surplus, AT_ONCE_MAX), self.there, NOW_OR_SOON)
        if missing:
            self.came_first += len(missing)
            for placed in missing:
                self._come(placed, decided)
            return True
        extra, count = max(0, self.surplus), min(1, len(self.left))
        if not self.is_exclusive:
            count = min(len(self.left), len(self.left) + self.begun - extra, AT_ONCE_MAX - extra)
        ask = replace(ask, lasting=self.lasting)
        found = place(rooms, ask, count, self.lasting, NOW_OR_SOON)
        for placed in found:
            spare = self._spare
            self._come(placed, decided)
            if spare < 0 and not self.is_exclusive:
                self.why_left = f"{self.job.key} needs {self.floor} instances"
                continue
            old, self.begun = self.left.pop(0), self.begun + 1
            movers.append(
                Mover(instance=str(old.instance), job=old.job, to=placed.node, reason=placed.reason)
            )
        self.begun -= extra
        self.surplus -= extra
        return bool(found or extra)

    def leave_full_home(self) -> Iterator[Mover]:
        """Those that go though nothing comes for them: the others are as many as stay at home."""
        burst = self.job.placement.burst
        if burst is None or self.is_exclusive:
            return
        home = [a for a in self.left if a.node not in burst.nodes]
        surplus = at_home(burst.nodes, self.lasting) + len(home) - burst.after
        for old in home[: max(0, min(surplus, self._spare))]:
            self.left.remove(old)
            yield Mover(
                instance=str(old.instance), job=old.job, to="", reason=f"ends: {home_words(burst)}"
            )

    @property
    def is_exclusive(self) -> bool:
        return self.job.on_partition is OnPartition.STOP

    @property
    def floor(self) -> int:
        return floor_of(self.job, self.head.wanted)

    @property
    def _spare(self) -> int:
        """How many may go when all are healthy, and those that are replaced are gone."""
        return self.head.wanted + self.surplus - self.begun - self.floor

    def _come(self, placed: Placement, decided: list[Edit]) -> None:
        self.surplus += 1
        self.there[placed.node] += 1
        self.lasting[placed.node] += 1
        demand = Demand.of(self.job)
        decided.append(new_instance(self.job.key, self.head, len(decided), demand, placed))


def _outlook(
    snapshot: Snapshot, key: JobKey, here: Sequence[Assigned], name: NodeName
) -> Iterator[Mover | Blocker | _Leaving]:
    record = snapshot.jobs[key]
    if record.head.deleting:
        return
    if record.current is None:
        reason = f"the record of version {record.head.version} can't be read"
        yield from (Blocker(instance=str(a.instance), job=key, reason=reason) for a in here)
        return
    job = record.current.job
    if is_system(record):
        for a in here:
            yield Mover(instance=str(a.instance), job=key, to="", reason="ends after all others")
        return
    buckets = sort_job(snapshot, key)
    surplus = len(buckets.live) - record.head.wanted  # replacements that are started already
    budget = budget_of(job, record.head.wanted, buckets)
    left: list[Assigned] = []
    for number, a in enumerate(here):
        if number < surplus:
            words = "ends when its replacement serves"
            yield Mover(instance=str(a.instance), job=key, to="", reason=words)
        elif reason := _bound(job, a, buckets, budget):
            yield Blocker(instance=str(a.instance), job=key, reason=reason)
        else:
            left.append(a)
    drained = drained_nodes(snapshot) | {name}
    yield _Leaving(
        job=job,
        head=record.head,
        left=left,
        there=per_node(buckets.live),
        lasting=per_node(a for a in buckets.live if a.node not in drained),
        surplus=surplus,
        begun=len(here) - len(left),
    )


def _bound(job: Job, assigned: Assigned, buckets: Buckets, budget: Budget) -> str:
    """What else than room holds an instance where it is."""
    if keeps_volumes(job):
        return f"its kept volumes are on {assigned.node}, and are not moved"
    is_exclusive = job.on_partition is OnPartition.STOP
    if is_exclusive and assigned in buckets.ready and budget.spare < 1:
        return (
            f"it has to stop first, and {job.key} needs {budget.floor} healthy,"
            f" of which it has {budget.healthy}"
        )
    return ""


def _no_room(
    snapshot: Snapshot,
    job: Job,
    assigned: Assigned,
    rooms: Rooms,
    rules: Rules,
    there: Counter[NodeName],
) -> str:
    demand = Demand.of(job)
    lines = ", ".join(
        describe(
            shortfall(node, rooms.get(name) or Room.of(node), demand, rules=rules, there=there)
        )
        for name, node in sorted(snapshot.nodes.items())
        if name != assigned.node
    )
    return f"needs {needs(demand)}; " + (lines or "there is no other node")
