"""A plan applied to a snapshot: what one schedule transaction makes of the cluster.

`store/commit.py` asks this for the assignments and ledgers to write, simulations and `ozy plan`
ask it what would be. It trusts nobody: an edit that does not find what it expects, a node promised
beyond what it has, a slot alive in two places are our own mistakes, and end here as AssertionError
before anything is written. Ledger totals are always summed anew from the node's assignments.

Totals may shrink on a node that is over its limit (its capacity was lowered); they may not grow.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ozymandias.model.instance import Assignment, Group, InstanceId, Slots, SlotState
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import Demand, HostPort, Ledger, Node, NodeName, Resources, Totals
from ozymandias.model.plan import Edit, JobChange, Plan
from ozymandias.model.snapshot import Snapshot

Pair = tuple[NodeName, JobKey]
LIVE = frozenset({SlotState.RUNNING, SlotState.WAITING})


class _Kind(NamedTuple):
    """What the slots of one group share."""

    version: int
    generation: int
    state: SlotState
    uid: str
    demand: Demand


def touched(plan: Plan) -> tuple[frozenset[NodeName], frozenset[Pair]]:
    """The nodes whose ledgers a plan rewrites, and the (node, job) pairs it reassigns."""
    pairs = frozenset((edit.node, edit.job) for edit in plan.edits)
    changed = frozenset(change.node for change in plan.nodes)
    return frozenset(node for node, _ in pairs) | changed | plan.dead, pairs


def gaining(plan: Plan) -> frozenset[JobKey]:
    """The jobs for which a plan creates live slots: their heads are compared and rewritten."""
    return frozenset(e.job for e in plan.edits if e.before is None and e.after in LIVE)


def apply(snapshot: Snapshot, plan: Plan, commit: str = "") -> Snapshot:
    """The snapshot after the plan, at the same revision; ``commit`` marks what was rewritten."""
    nodes, _ = touched(plan)
    assignments = _edited_assignments(snapshot.assignments, plan.edits)
    jobs = _changed_jobs(snapshot, plan, commit)
    _check_slots(assignments, gaining(plan))
    return replace(
        snapshot,
        nodes=_rewritten_nodes(snapshot, assignments, plan, nodes, commit),
        jobs=jobs,
        assignments=assignments,
        statuses={k: v for k, v in snapshot.statuses.items() if k[0] not in plan.dead}
        if plan.dead
        else snapshot.statuses,
        claims=_changed_claims(snapshot.claims, plan.job) if plan.job else snapshot.claims,
        last_versions=_last_versions(snapshot, plan.job) if plan.job else snapshot.last_versions,
    )


# Assignments ------------------------------------------------------------------------------------


def _edited_assignments(
    assignments: Mapping[Pair, Assignment], edits: Iterable[Edit]
) -> dict[Pair, Assignment]:
    by_pair: dict[Pair, list[Edit]] = {}
    for edit in edits:
        by_pair.setdefault((edit.node, edit.job), []).append(edit)
    result = dict(assignments)
    for pair, steps in by_pair.items():
        groups = _edited_groups(result.get(pair), steps)
        if groups:
            result[pair] = Assignment(node=pair[0], job=pair[1], groups=groups)
        else:
            result.pop(pair, None)
    return result


def _edited_groups(before: Assignment | None, edits: Iterable[Edit]) -> tuple[Group, ...]:
    slots = _by_kind(before.groups if before else ())
    for edit in edits:
        if edit.before is not None:
            there = slots.get(_kind(edit, edit.before), set())
            if edit.slot not in there:
                raise AssertionError(f"{edit.instance} is not {edit.before} on {edit.node}: {edit}")
            there.remove(edit.slot)
        if edit.after is not None:
            there = slots.setdefault(_kind(edit, edit.after), set())
            if edit.slot in there:
                raise AssertionError(f"{edit.instance} is on {edit.node} already: {edit}")
            there.add(edit.slot)
    return _groups(slots)


def merged(groups: Iterable[Group]) -> tuple[Group, ...]:
    """The same slots in canonical form: one group per kind, in a stable order, none empty."""
    return _groups(_by_kind(groups))


def _by_kind(groups: Iterable[Group]) -> dict[_Kind, set[int]]:
    slots: dict[_Kind, set[int]] = {}
    for group in groups:
        kind = _Kind(group.version, group.generation, group.state, group.uid, group.demand)
        slots.setdefault(kind, set()).update(group.slots)
    return slots


def _groups(slots: Mapping[_Kind, set[int]]) -> tuple[Group, ...]:
    return tuple(
        Group(
            uid=kind.uid,
            version=kind.version,
            generation=kind.generation,
            state=kind.state,
            slots=Slots(tuple(sorted(slots[kind]))),
            demand=kind.demand,
        )
        for kind in sorted(slots, key=_order)
        if slots[kind]
    )


def _order(kind: _Kind) -> tuple[object, ...]:
    demand = kind.demand
    return (*kind[:4], demand.memory_bytes, demand.disk_bytes, demand.host_ports)


def _kind(edit: Edit, state: SlotState) -> _Kind:
    return _Kind(edit.version, edit.generation, state, edit.uid, edit.demand)


def _check_slots(assignments: Mapping[Pair, Assignment], jobs: frozenset[JobKey]) -> None:
    """No slot of these jobs may be running or waiting in two places."""
    seen: set[InstanceId] = set()
    for (node, key), assignment in assignments.items():
        if key in jobs:
            for group in assignment.groups:
                if group.state in LIVE:
                    ids = {InstanceId(key, slot) for slot in group.slots}
                    if not ids.isdisjoint(seen):
                        raise AssertionError(f"{seen & ids} of {node} would be alive twice")
                    seen |= ids


# Ledgers ----------------------------------------------------------------------------------------


def totals(assignments: Iterable[Assignment]) -> tuple[Totals, Totals]:
    """What the assignments of one node hold and promise: running + stopping, running + waiting."""
    memory = dict.fromkeys(SlotState, 0)
    disk = dict.fromkeys(SlotState, 0)
    ports: dict[SlotState, list[HostPort]] = {state: [] for state in SlotState}
    for assignment in assignments:
        for group in assignment.groups:
            count = len(group.slots)
            memory[group.state] += count * group.demand.memory_bytes
            disk[group.state] += count * group.demand.disk_bytes
            if group.demand.host_ports:
                ports[group.state] += group.demand.host_ports * count
    running = SlotState.RUNNING

    def with_running(other: SlotState) -> Totals:
        return Totals(
            resources=Resources(
                memory_bytes=memory[running] + memory[other],
                disk_bytes=disk[running] + disk[other],
            ),
            host_ports=tuple(sorted(ports[running] + ports[other])),
        )

    return with_running(SlotState.STOPPING), with_running(SlotState.WAITING)


def _rewritten_nodes(
    snapshot: Snapshot,
    assignments: Mapping[Pair, Assignment],
    plan: Plan,
    names: frozenset[NodeName],
    commit: str,
) -> dict[NodeName, Node]:
    there: dict[NodeName, list[Assignment]] = {name: [] for name in names}
    for (name, _), assignment in assignments.items():
        if name in there:
            there[name].append(assignment)
    gains = {e.node for e in plan.edits if e.after in LIVE}
    changes = {change.node: change for change in plan.nodes}
    nodes = dict(snapshot.nodes)
    for name in names:
        node = nodes.get(name)
        if node is None:
            raise AssertionError(f"{name} has no ledger")
        if name in plan.dead and node.is_alive:
            raise AssertionError(f"{name} is alive and can't be declared dead")
        held, promised = totals(there[name])
        ledger = replace(node.ledger, held=held, promised=promised, commit=commit)
        if change := changes.get(name):
            ledger = replace(
                ledger,
                is_cordoned=change.is_cordoned,
                drain=change.drain,
                set_labels=dict(change.set_labels),
            )
        if name in gains:
            _check_capacity(name, node.ledger, ledger)
        nodes[name] = replace(node, ledger=ledger)
    return nodes


def _check_capacity(name: NodeName, before: Ledger, after: Ledger) -> None:
    limit = after.allocatable
    for what, old, new in (
        ("hold", before.held, after.held),
        ("promise", before.promised, after.promised),
    ):
        for unit in ("memory_bytes", "disk_bytes"):
            amount = getattr(new.resources, unit)
            if amount > max(getattr(limit, unit), getattr(old.resources, unit)):
                raise AssertionError(
                    f"{name} would {what} {amount} {unit} of {getattr(limit, unit)}"
                )
        twice = _doubled(new.host_ports) - _doubled(old.host_ports)
        if twice:
            raise AssertionError(f"{name} would {what} host port {next(iter(twice))} twice")


def _doubled(ports: tuple[HostPort, ...]) -> Counter[HostPort]:
    return Counter(ports) - Counter(set(ports))


# Jobs and claims --------------------------------------------------------------------------------


def _changed_jobs(snapshot: Snapshot, plan: Plan, commit: str) -> Mapping[JobKey, JobRecord]:
    gains = gaining(plan)
    if plan.job is None and not gains:
        return snapshot.jobs
    jobs = dict(snapshot.jobs)
    if plan.job is not None:
        record = _changed_record(snapshot.jobs.get(plan.job.key), plan.job)
        if record is None:
            jobs.pop(plan.job.key, None)
        else:
            jobs[plan.job.key] = replace(record, head=replace(record.head, commit=commit))
    for key in gains:
        if key not in jobs:
            raise AssertionError(f"{key} has no head and can't gain instances")
        jobs[key] = replace(jobs[key], head=replace(jobs[key].head, commit=commit))
    return jobs


def _changed_record(record: JobRecord | None, change: JobChange) -> JobRecord | None:
    if change.head is None:
        return None
    versions = dict(record.versions) if record else {}
    if change.version is not None:
        if change.version.version in versions:
            raise AssertionError(f"version {change.version.version} of {change.key} exists")
        versions[change.version.version] = change.version
    for number in change.drop_versions:
        if versions.pop(number, None) is None:
            raise AssertionError(f"version {number} of {change.key} does not exist")
    return JobRecord(
        key=change.key,
        head=change.head,
        head_revision=record.head_revision if record else 0,
        versions=versions,
    )


def _changed_claims(claims: Mapping[str, JobKey], change: JobChange) -> Mapping[str, JobKey]:
    gone = {c for c in change.disclaim if claims.get(c) == change.key}
    result = {claim: owner for claim, owner in claims.items() if claim not in gone}
    for claim in change.claim:
        if result.get(claim, change.key) != change.key:
            raise AssertionError(f"{claim} belongs to {result[claim]}, not to {change.key}")
        result[claim] = change.key
    return result


def _last_versions(snapshot: Snapshot, change: JobChange) -> Mapping[JobKey, int]:
    last = snapshot.last_versions.get(change.key, 0)
    number = change.version.version if change.version else 0
    return (
        {**snapshot.last_versions, change.key: number} if number > last else snapshot.last_versions
    )
