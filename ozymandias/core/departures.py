"""What a drain would do with each instance of a node, told beforehand.

`foresee_drain` goes on in rounds as the drain itself does (`core/drain.py`), asks the same of the
same rooms and takes it that all goes well: so what is told is what is done. Whoever could not leave
is told with what is in the way.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ozymandias.core.buckets import Buckets, is_system, per_node, sort_job
from ozymandias.core.budget import Budget, budget_of, floor_of
from ozymandias.core.drain import (
    AT_ONCE_MAX,
    by_priority,
    drained_nodes,
    home_words,
    keeps_volumes,
)
from ozymandias.core.edits import new_instance
from ozymandias.core.fitting import describe, needs, shortfall
from ozymandias.core.placement import Ask, Placement, place
from ozymandias.core.rooms import NOW_OR_SOON, Room, Rooms, rooms_of
from ozymandias.core.rules import Rules, at_home, rules_of
from ozymandias.core.system import matching, why_not
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, OnPartition
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.plan import Edit
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted


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


def foresee_drain(snapshot: Snapshot, name: NodeName, *, has_deadline: bool = False) -> Outlook:
    """What a drain of this node would do with each instance on it, if all goes well.

    In rounds, as the drain itself goes on: a few of every job at a time, and who may only be beside
    one that leaves as well finds its place in a later round. ``has_deadline``: one that is about
    to begin will have one, as one under way may.
    """
    rooms = {n: room for n, room in rooms_of(snapshot).items() if n != name}
    here = [a for a in snapshot.instances_on(name) if a.state is not SlotState.STOPPING]
    by_job: dict[JobKey, list[Assigned]] = {}
    for assigned in here:
        by_job.setdefault(assigned.job, []).append(assigned)
    movers: list[Mover] = []
    blockers: list[Blocker] = []
    leaving: list[_Leaving] = []
    for key in by_priority(snapshot, [k for k in by_job if k in snapshot.jobs]):
        for found in _outlook(snapshot, key, by_job[key], name):
            if isinstance(found, Mover):
                movers.append(found)
            elif isinstance(found, Blocker):
                blockers.append(found)
            else:
                leaving.append(found)
    drain = snapshot.nodes[name].ledger.drain
    is_timed = has_deadline or (drain is not None and bool(drain.deadline))
    decided: list[Edit] = []
    while sum(one.go_on(snapshot, rooms, decided, movers) for one in leaving):
        pass  # every one of them has its turn in every round
    for one in leaving:
        movers += one.leave_full_home()
        rules = rules_of(snapshot, one.job, decided)
        for a in one.left:
            reason = one.why_left or _no_room(snapshot, one.job, a, rooms, rules, one.there)
            reason = f"{one.missing_words}{reason}{one.needed_words(a) if is_timed else ''}"
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
    budget: Budget
    needed: Set[Assigned]  # healthy, and stopped by no deadline
    came_first: int = 0  # of the missing ones
    why_left: str = ""

    @property
    def missing_words(self) -> str:
        came, verb = self.came_first, "is" if self.came_first == 1 else "are"
        first = "comes first" if came == 1 else "come first"
        return f"{came} of {self.job.key} {verb} missing and {first}; " if came else ""

    def needed_words(self, assigned: Assigned) -> str:
        if assigned not in self.needed:
            return ""
        return f"; past the deadline it stays as well: {_needs(self.job, self.budget)}"

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
                self.why_left = f"{self.job.key} needs {counted(self.floor, 'instance')}"
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
    buckets = sort_job(snapshot, key)
    if is_system(record):
        yield from _last_to_leave(snapshot, job, here, buckets, name)
        return
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
        budget=budget,
        needed=frozenset(_healthy(left, buckets)[max(0, budget.spare) :]),
    )


def _last_to_leave(
    snapshot: Snapshot, job: Job, here: Sequence[Assigned], buckets: Buckets, name: NodeName
) -> Iterator[Mover | Blocker]:
    """Those of a system job end when the others have left, as many as can be missed."""
    wanted = matching(snapshot, job) - (not why_not(snapshot, name, job))
    budget = budget_of(job, wanted, buckets)
    spare = budget.spare
    for a in here:
        if _healthy((a,), buckets):
            if spare <= 0:
                why = _needs(job, budget)
                yield Blocker(instance=str(a.instance), job=job.key, reason=why)
                continue
            spare -= 1
        yield Mover(instance=str(a.instance), job=job.key, to="", reason="ends after all others")


def _bound(job: Job, assigned: Assigned, buckets: Buckets, budget: Budget) -> str:
    """What else than room holds an instance where it is."""
    if keeps_volumes(job):
        return f"its kept volumes are on {assigned.node}, and are not moved"
    is_exclusive = job.on_partition is OnPartition.STOP
    if is_exclusive and assigned in buckets.ready and budget.spare < 1:
        return f"it has to stop first, and {_needs(job, budget)}"
    return ""


def _healthy(some: Sequence[Assigned], buckets: Buckets) -> list[Assigned]:
    return [a for a in some if a in buckets.ready or a in buckets.serving]


def _needs(job: Job, budget: Budget) -> str:
    return f"{job.key} needs {budget.floor} healthy, of which it has {budget.healthy}"


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
