"""Host first: when pressure on a host lasts, instances leave it, the lowest priority first.

A node under pressure says how many instances it wants to keep (`core/pressure.py`); while it has
more, the next one leaves: of the lowest priority, of those first what serves nobody, then what is
largest in what is short. One at a time, and its replacement is started elsewhere first where there
is room; where there is none it is stopped and becomes pending, within its job's `min_available`.
One that is asked for urgently does not wait for its replacement to be healthy, unless all that are
left are needed for a `min_available`.

Never asked: protected jobs, system jobs, and instances whose kept volumes are there. If nothing
else is left, the host has to bear it; limits of pods are real, and its own daemons are the last
that the kernel would kill. What is drained is left to the drain.

`plan_shed` is the next step of every node that asks; `foresee_shed` tells the whole order.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ozymandias.core.buckets import Buckets, FreeSlots, is_system, per_node, sort_job
from ozymandias.core.budget import Budget, budget_of
from ozymandias.core.drain import WAITS, keeps_volumes
from ozymandias.core.edits import new_instance, stop
from ozymandias.core.placement import Ask, Placement, place
from ozymandias.core.rooms import NOW, Rooms, rooms_of
from ozymandias.core.rules import Rules, rules_of
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, JobRecord, OnPartition
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.snapshot import Snapshot


def plan_shed(snapshot: Snapshot) -> Plan | None:
    """The next step of every node that asks for somebody to leave."""
    nodes = [node for node in _asking(snapshot) if _is_beyond(snapshot, node)]
    if not nodes:
        return None
    rooms = rooms_of(snapshot)
    edits: list[Edit] = []
    for node in nodes:
        edits += _next_step(snapshot, node, rooms, edits)
    if not edits:
        return None
    names = ", ".join(node.name for node in nodes)
    return Plan(reason=f"{names} under pressure: the lowest priority leaves", edits=tuple(edits))


def jobs_leaving(snapshot: Snapshot) -> frozenset[JobKey]:
    """Jobs of which one too many may be there for a while: it is about to leave a node."""
    return frozenset(key for node in _asking(snapshot) for key in snapshot.on(node.name))


def leavable(snapshot: Snapshot, name: NodeName) -> list[Assigned]:
    """The live instances of a node that do not belong to it by their kind."""
    return [
        a
        for key, assignment in sorted(snapshot.on(name).items())
        if (record := snapshot.jobs.get(key)) is not None
        and not is_system(record)
        and not record.head.deleting
        for a in assignment.instances
        if a.state is not SlotState.STOPPING
    ]


def _asking(snapshot: Snapshot) -> Iterator[Node]:
    for _, node in sorted(snapshot.nodes_where(_is_tainted).items()):
        load = node.load
        if node.is_alive and load and load.shed_to >= 0 and not node.ledger.drain:
            yield node


def _is_tainted(node: Node) -> bool:
    return bool(node.load and node.load.taint)


def _is_beyond(snapshot: Snapshot, node: Node) -> bool:
    assert node.load is not None
    return len(leavable(snapshot, node.name)) > node.load.shed_to


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaver:
    """An instance on the node, with all that is known of its job."""

    assigned: Assigned
    job: Job
    head: JobHead
    buckets: Buckets
    budget: Budget
    rules: Rules

    @property
    def is_ready(self) -> bool:
        return self.assigned in self.buckets.ready or self.assigned in self.buckets.serving

    @property
    def may_stop(self) -> bool:
        return not self.is_ready or self.budget.spare > 0

    @property
    def surplus(self) -> int:
        return len(self.buckets.live) - self.head.wanted

    @property
    def bound(self) -> str:
        """Why it stays whatever happens; "" if nothing holds it."""
        if self.job.is_protected:
            return "it is protected"
        if keeps_volumes(self.job):
            return f"its kept volumes are on {self.assigned.node}, and are not moved"
        return ""

    def ask(self) -> Ask:
        return Ask.of(self.job, self.head, self.rules, per_node(self.buckets.live))

    def elsewhere(self) -> Counter[NodeName]:
        return per_node(a for a in self.buckets.live if a.node != self.assigned.node)


def _leavers(snapshot: Snapshot, node: Node, decided: Sequence[Edit] = ()) -> list[_Leaver]:
    """In the order in which they leave; ``decided`` is what the plan has for others so far."""
    sorted_jobs: dict[JobKey, Buckets] = {}
    found: list[_Leaver] = []
    for a in leavable(snapshot, node.name):
        record: JobRecord = snapshot.jobs[a.job]
        if record.current is None:
            continue  # nobody knows what it needs
        if a.job not in sorted_jobs:
            sorted_jobs[a.job] = sort_job(snapshot, a.job)
        buckets = sorted_jobs[a.job]
        found.append(
            _Leaver(
                assigned=a,
                job=record.current.job,
                head=record.head,
                buckets=buckets,
                budget=budget_of(record.current.job, record.head.wanted, buckets),
                rules=rules_of(snapshot, record.current.job, decided),
            )
        )
    is_memory = bool(node.load and node.load.taint.startswith("memory"))

    def order(one: _Leaver) -> tuple[object, ...]:
        demand = one.assigned.demand
        sizes = demand.memory_bytes, demand.disk_bytes
        short, other = sizes if is_memory else sizes[::-1]
        a = one.assigned
        return one.job.priority, one.is_ready, -short, -other, a.job, -a.slot

    return sorted(found, key=order)


def _next_step(snapshot: Snapshot, node: Node, rooms: Rooms, decided: Sequence[Edit]) -> list[Edit]:
    """Of a job that another node's step changes in the same plan nothing leaves here: what its
    budget, its slots and its replacements are by then, only the next decision knows.
    """
    assert node.load is not None
    leavers = [one for one in _leavers(snapshot, node, decided) if not one.bound]
    changed, why = {edit.job for edit in decided}, f"{node.name} is under {node.load.taint}"
    if node.load.is_urgent and (steps := _step_of(leavers, changed, rooms, why, is_urgent=True)):
        return steps
    # Whoever could leave at once has left: the others need their replacements.
    return _step_of(leavers, changed, rooms, why, is_urgent=False)


def _step_of(
    leavers: Sequence[_Leaver], changed: Set[JobKey], rooms: Rooms, why: str, *, is_urgent: bool
) -> list[Edit]:
    for one in leavers:
        if one.job.key in changed:
            continue
        if one.surplus > 0 and not one.buckets.outdated:  # its replacement is somewhere
            if not one.is_ready or one.budget.healthy - 1 >= one.head.wanted:
                return [stop(one.assigned, f"{why}, and its replacement serves")]
            if not is_urgent:
                return []  # healthy before the next
    for one in leavers:
        if one.job.key in changed:
            return []  # it is next, and nobody more important leaves instead
        if steps := _leave(one, rooms, why, is_urgent):
            return steps
    return []


def _leave(one: _Leaver, rooms: Rooms, why: str, is_urgent: bool) -> list[Edit]:
    """What lets an instance go; nothing if its job can't do without it."""
    a, job = one.assigned, one.job
    words = f"{why}: of priority {job.priority}, it is the next to leave"
    if not one.is_ready or one.buckets.outdated or one.surplus > 0:
        return [stop(a, words)] if one.may_stop else []
    demand = Demand.of(job)
    if job.on_partition is OnPartition.STOP:
        if not one.may_stop:
            return []
        for placed in place(rooms, one.ask(), 1, one.elsewhere(), WAITS):
            new = new_instance(job.key, one.head, a.slot, demand, placed, f"{why}: ")
            return [stop(a, f"{words}, for {placed.node}"), new]
        return [stop(a, f"{words}, and no other node has room")]
    if not is_urgent:
        for placed in place(rooms, one.ask(), 1, one.elsewhere(), NOW):
            slot = next(FreeSlots(one.buckets.used_slots()))
            instead = f"{why}, and {a.instance} is the next to leave: "
            return [new_instance(job.key, one.head, slot, demand, placed, instead)]
    reason = "that can't wait for a replacement" if is_urgent else "no other node has room"
    return [stop(a, f"{words}, and {reason}")] if one.may_stop else []


# Beforehand ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """An instance that would leave, in this order; ``to`` is "" where no node has room."""

    assigned: Assigned
    priority: int
    to: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    assigned: Assigned
    priority: int
    reason: str


def foresee_shed(
    snapshot: Snapshot, name: NodeName
) -> tuple[tuple[Leaving, ...], tuple[Staying, ...]]:
    """Who would leave a node one after the other while pressure lasts, and who would not."""
    rooms = {n: room for n, room in rooms_of(snapshot).items() if n != name}
    leaving: list[Leaving] = []
    staying: list[Staying] = []
    gone: Counter[JobKey] = Counter()
    for one in _leavers(snapshot, snapshot.nodes[name]):
        a, priority = one.assigned, one.job.priority
        if one.bound:
            staying.append(Staying(assigned=a, priority=priority, reason=one.bound))
            continue
        placed = _target(one, rooms)
        if placed:
            reason = f"it starts there first: {placed.reason}"
            leaving.append(Leaving(assigned=a, priority=priority, to=placed.node, reason=reason))
        elif one.is_ready and one.budget.spare - gone[a.job] < 1:
            reason = (
                f"no other node has room, and {one.job.key} needs {one.budget.floor} healthy,"
                f" of which it has {one.budget.healthy - gone[a.job]}"
            )
            staying.append(Staying(assigned=a, priority=priority, reason=reason))
        else:
            gone[a.job] += one.is_ready
            reason = "no other node has room: it stops, and waits for some"
            leaving.append(Leaving(assigned=a, priority=priority, to="", reason=reason))
    staying += [
        Staying(assigned=a, priority=priority, reason="it belongs to every node, as a system job")
        for a, priority in _system_instances(snapshot, name)
    ]
    return tuple(leaving), tuple(staying)


def _target(one: _Leaver, rooms: Rooms) -> Placement | None:
    return next(iter(place(rooms, one.ask(), 1, one.elsewhere(), NOW)), None)


def _system_instances(snapshot: Snapshot, name: NodeName) -> Iterator[tuple[Assigned, int]]:
    for key, assignment in sorted(snapshot.on(name).items()):
        record = snapshot.jobs.get(key)
        if record and record.current and is_system(record):
            for a in assignment.instances:
                if a.state is not SlotState.STOPPING:
                    yield a, record.current.job.priority
