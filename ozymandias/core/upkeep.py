"""What any peer does of its own accord: repair after losses, place what is pending, tidy up.

These go as far as they can: what does not fit stays pending, with its reason, until room appears.
Higher priority comes first; among equals the most starved job (the smallest part of what it wants
is live), so that after a loss a job with nothing left is served before one that lacks an instance
of ten; then by name. System jobs are not placed here: `core/system.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ozymandias.core.buckets import (
    Buckets,
    assignments_by_job,
    census,
    free_slots,
    is_current,
    is_system,
    per_node,
    sort_job,
)
from ozymandias.core.edits import new_instance, step
from ozymandias.core.fitting import describe, needs, shortfall
from ozymandias.core.placement import NOW, RUNNING, Ask, Room, Rooms, most_that_fit, place, rooms_of
from ozymandias.core.system import pending_system
from ozymandias.model.instance import Assigned, SlotState, instances_of
from ozymandias.model.job import Job, JobHead, JobKey, JobRecord, OnPartition
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.plan import Edit, JobChange, Pending, Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import NodeShortfall

VERSIONS_KEPT = 20


# Pending ------------------------------------------------------------------------------------------


def plan_pending(snapshot: Snapshot) -> Plan | None:
    """Place what is wanted and not live, as far as there is room now."""
    live = census(snapshot).live
    keys = _starved_first(snapshot, live)
    if not keys:
        return None
    rooms = rooms_of(snapshot)
    assignments = assignments_by_job(snapshot, keys)
    edits: list[Edit] = []
    pending: list[Pending] = []
    for key in keys:
        record = snapshot.jobs[key]
        missing = record.head.wanted - live.get(key, 0)
        buckets = sort_job(snapshot, key, assignments[key])
        placed = _place_missing(record, buckets, rooms, missing, "room appeared: ")
        edits += placed
        if len(placed) < missing:
            there = per_node(buckets.live)
            there.update(edit.node for edit in placed)
            pending.append(_pending(snapshot, record, missing - len(placed), rooms, there))
    if not edits:
        return None
    return Plan(
        reason=f"room appeared for {_names(edits)}", edits=tuple(edits), pending=tuple(pending)
    )


def _starved_first(snapshot: Snapshot, live: Mapping[JobKey, int]) -> list[JobKey]:
    """The jobs that lack instances and are known well enough to be given some."""
    starved = [
        (-record.current.job.priority, live.get(key, 0) / record.head.wanted, key)
        for key, record in snapshot.jobs.items()
        if live.get(key, 0) < record.head.wanted
        and not record.head.deleting
        and record.current is not None
        and not is_system(record)
    ]
    return [key for _, _, key in sorted(starved)]


def _place_missing(
    record: JobRecord, buckets: Buckets, rooms: Rooms, missing: int, why: str
) -> list[Edit]:
    assert record.current is not None
    demand = Demand.of(record.current.job)
    ask = Ask(
        job=record.key,
        version=record.head.version,
        demand=demand,
        rules=record.current.job.placement,
        there=per_node(buckets.live),
    )
    placed = place(rooms, ask, missing, per_node(buckets.current), NOW)
    slots = free_slots(buckets.used_slots())
    return [new_instance(record.key, record.head, next(slots), demand, p, why) for p in placed]


def pending_of(snapshot: Snapshot) -> tuple[Pending, ...]:
    """Every job with instances that are wanted and nowhere, with the numbers that say why."""
    live = census(snapshot).live
    rooms = rooms_of(snapshot)
    services = [
        _pending(snapshot, record, record.head.wanted - live.get(key, 0), rooms)
        for key, record in snapshot.jobs.items()
        if live.get(key, 0) < record.head.wanted
        and not record.head.deleting
        and not is_system(record)
    ]
    return tuple(sorted((*services, *pending_system(snapshot)), key=lambda p: p.job))


def _pending(
    snapshot: Snapshot,
    record: JobRecord,
    count: int,
    rooms: Rooms,
    there: Mapping[NodeName, int] | None = None,
) -> Pending:
    """``there``: how many of the job each node has, if not as in the snapshot."""
    if record.current is None:
        reason = f"the record of version {record.head.version} can't be read"
        return Pending(job=record.key, count=count, reason=reason)
    if there is None and record.current.job.placement.max_per_node:
        there = per_node(a for a in sort_job(snapshot, record.key).live)
    reason = _why_pending(snapshot, record.current.job, rooms, there or {})
    return Pending(job=record.key, count=count, reason=reason)


def _why_pending(snapshot: Snapshot, job: Job, rooms: Rooms, there: Mapping[NodeName, int]) -> str:
    demand = Demand.of(job)
    if most_that_fit(rooms, demand, 1, NOW, rules=job.placement, there=there):
        return "there is room; it is placed in a moment"
    lines = ", ".join(describe(s) for s in shortfalls(snapshot, job, rooms, there))
    return f"needs {needs(demand)}; " + (lines or "there are no nodes")


def shortfalls(
    snapshot: Snapshot, job: Job, rooms: Rooms, there: Mapping[NodeName, int]
) -> Iterator[NodeShortfall]:
    """Node by node, what one instance lacks for running there now."""
    for name, node in sorted(snapshot.nodes.items()):
        room = rooms.get(name) or Room.of(node)
        yield shortfall(
            node,
            room,
            Demand.of(job),
            state=RUNNING,
            rules=job.placement,
            there=there.get(name, 0),
        )


# Repair -------------------------------------------------------------------------------------------


def plan_repair(
    snapshot: Snapshot,
    dead: frozenset[NodeName],
    fenced: frozenset[NodeName] | None = None,
) -> Plan | None:
    """Everything on the dead nodes is lost; what was live there is placed elsewhere.

    What must never run twice (`on_partition: stop`) stays where it is until its node is among the
    ``fenced``: only then has the guard there surely ended it. None: all of them are.
    An instance keeps its number and its version: a node lost in the middle of a rollout must not
    decide the rollout. What does not fit is pending, and then it is the current version's turn.
    """
    gone = frozenset(n for n in dead if n in snapshot.nodes and not snapshot.nodes[n].is_alive)
    there = sorted(pair for pair in snapshot.assignments if pair[0] in gone)
    if fenced is not None:
        there = [p for p in there if p[0] in fenced or not _may_still_run(snapshot, p)]
    lost = [a for pair in there for a in instances_of(snapshot.assignments[pair])]
    if not lost and gone.isdisjoint(name for name, _ in snapshot.statuses):
        return None  # nobody is served there any more, and what is left waits for the fence
    lost_pairs = set(there)
    edits = [step(a, None, f"{a.node} was lost") for a in lost]
    lost_live: dict[JobKey, list[Assigned]] = {}
    for assigned in lost:
        if assigned.state is not SlotState.STOPPING:
            lost_live.setdefault(assigned.job, []).append(assigned)
    remaining = {k: n - len(lost_live.get(k, ())) for k, n in census(snapshot).live.items()}
    rooms = rooms_of(snapshot)
    assignments = assignments_by_job(snapshot, lost_live)
    pending: list[Pending] = []
    for key in _starved_first(snapshot, remaining):
        if key not in lost_live:
            continue
        record = snapshot.jobs[key]
        missing = record.head.wanted - remaining.get(key, 0)
        survivors = sort_job(
            snapshot, key, [a for a in assignments[key] if (a.node, key) not in lost_pairs]
        )
        moved = _move(record, lost_live[key], survivors, rooms, missing)
        edits += moved
        if len(moved) < missing:
            pending.append(_pending(snapshot, record, missing - len(moved), rooms))
    names = ", ".join(sorted(gone))
    reason = f"{names} {'was' if len(gone) == 1 else 'were'} lost"
    return Plan(reason=reason, edits=tuple(edits), pending=tuple(pending), dead=gone)


def _may_still_run(snapshot: Snapshot, pair: tuple[NodeName, JobKey]) -> bool:
    """Whether a node has something exclusive of a job, or something not known not to be."""
    record = snapshot.jobs.get(pair[1])
    versions = record.versions if record else {}
    numbers = {group.version for group in snapshot.assignments[pair].groups}
    return any(
        number not in versions or versions[number].job.on_partition is OnPartition.STOP
        for number in numbers
    )


def _move(
    record: JobRecord, lost: list[Assigned], survivors: Buckets, rooms: Rooms, missing: int
) -> list[Edit]:
    """Replacements for lost instances of one job, the current ones first."""
    used, apart_from = survivors.used_slots(), per_node(survivors.live)
    chosen = sorted(lost, key=lambda a: (not is_current(a, record.head), a.slot))[:missing]
    fresh = free_slots(used | {a.slot for a in lost})
    edits: list[Edit] = []
    for head, alike in _by_version(record, chosen):
        job = record.versions[head.version].job
        demand = Demand.of(job)
        ask = Ask(
            job=record.key,
            version=head.version,
            demand=demand,
            rules=job.placement,
            there=apart_from,
        )
        placed = place(rooms, ask, len(alike), apart_from, NOW)
        for assigned, there in zip(alike, placed, strict=False):
            # A slot that is still stopping somewhere else would be two pods of one name.
            slot = next(fresh) if assigned.slot in used else assigned.slot
            why = f"{assigned.node} was lost; "
            edits.append(new_instance(record.key, head, slot, demand, there, why))
            apart_from[there.node] += 1
    return edits


def _by_version(
    record: JobRecord, chosen: Iterable[Assigned]
) -> Iterator[tuple[JobHead, list[Assigned]]]:
    """Alike ones together, each with the head it was placed under; unknown versions as current."""
    alike: dict[tuple[int, int], list[Assigned]] = {}
    for assigned in chosen:
        version = record.versions.get(assigned.version)
        known = version is not None and version.uid == assigned.uid == record.head.uid
        kind = (assigned.version, assigned.generation)
        current = (record.head.version, record.head.restart)
        alike.setdefault(kind if known else current, []).append(assigned)
    for (number, generation), instances in alike.items():
        yield replace(record.head, version=number, restart=generation), instances


# Tidying ------------------------------------------------------------------------------------------


def plan_tidy(snapshot: Snapshot) -> Plan | None:
    """End a stopped job whose last instance is gone; forget versions that nobody names any more."""
    worth_a_look = [
        key
        for key, record in sorted(snapshot.jobs.items())
        if record.head.deleting or len(record.versions) > VERSIONS_KEPT
    ]
    assignments = assignments_by_job(snapshot, worth_a_look)
    for key in worth_a_look:
        record, found = snapshot.jobs[key], assignments[key]
        over = record.head.deleting and not found
        kept = {*sorted(record.versions)[-VERSIONS_KEPT:], record.head.version}
        kept |= {group.version for assignment in found for group in assignment.groups}
        forgotten = tuple(sorted(set(record.versions) - kept))
        if over or forgotten:
            return Plan(
                reason=f"{key} is gone" if over else f"{key} forgets {len(forgotten)} old versions",
                job=JobChange(key=key, head=None if over else record.head, drop_versions=forgotten),
            )
    return None


def _names(edits: Iterable[Edit]) -> str:
    return ", ".join(str(edit.instance) for edit in edits)
