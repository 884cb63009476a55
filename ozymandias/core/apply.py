"""A plan applied to a snapshot: what one schedule transaction makes of the cluster.

`store/commit.py` asks this for the assignments and ledgers to write, simulations and `ozy plan`
ask it what would be. It trusts nobody: an edit that does not find what it expects, a node promised
beyond what it has, a slot alive in two places are our own mistakes, and end here as AssertionError
before anything is written. Ledger totals are always those of the node's assignments.

Totals may shrink on a node that is over its limit (its capacity was lowered); they may not grow.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby
from typing import NamedTuple

from msgspec import structs

from ozymandias.model.assignments import (
    NO_JOB,
    NO_NODE,
    NO_SUMS,
    NOTHING,
    Assignments,
    OnNode,
    sums_of,
)
from ozymandias.model.instance import (
    Assignment,
    Group,
    JobStatus,
    Slots,
    SlotState,
    slots_of_run,
)
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import Demand, HostPort, Ledger, Node, NodeName, Resources, Totals
from ozymandias.model.plan import JobChange, NodeChange, Plan, Runs, Step
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Pair, Pairs, Table


class _Kind(NamedTuple):
    """What the slots of one group share."""

    version: int
    generation: int
    state: SlotState
    uid: str
    demand: Demand


def apply(snapshot: Snapshot, plan: Plan, commit: str = "") -> Snapshot:
    """The snapshot after the plan, at the same revision; ``commit`` marks what was rewritten."""
    nodes: Mapping[NodeName, Node] | None = None
    if _is_plain(snapshot, plan):
        assigned, nodes = _placed(snapshot, plan, commit)
    else:
        assigned = _edited_assignments(snapshot.assigned, plan.steps)
    gains = plan.effect.gaining  # their heads are compared and rewritten
    jobs = _changed_jobs(snapshot, plan, gains, commit)
    _check_slots(assigned, gains)
    if nodes is None:
        nodes = _rewritten_nodes(snapshot, assigned, plan, commit)
    return structs.replace(
        snapshot,
        nodes=nodes,
        jobs=jobs,
        assignments=assigned,
        statuses=_forgotten(snapshot.told, plan.dead) if plan.dead else snapshot.statuses,
        claims=_changed_claims(snapshot.claims, plan.job) if plan.job else snapshot.claims,
        last_versions=_last_versions(snapshot, plan.job) if plan.job else snapshot.last_versions,
        settings=replace(plan.settings, commit=commit) if plan.settings else snapshot.settings,
    )


def _forgotten(statuses: Pairs[JobStatus], dead: Iterable[NodeName]) -> Pairs[JobStatus]:
    return statuses.changed(
        {(node, job): None for node in sorted(dead) for job in statuses.on(node)}
    )


# What nearly every plan makes --------------------------------------------------------------------


def _is_plain(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether it is about a job that was nowhere, once on each of some nodes, and nothing else."""
    edits = plan.edits
    return (
        isinstance(edits, Runs)
        and edits.job not in snapshot.assigned.by_job
        and len(plan.pairs) == len(edits.portions)  # else a node takes some twice
        and not (plan.nodes or plan.dead or plan.displaced)
    )


def _placed(
    snapshot: Snapshot, plan: Plan, commit: str
) -> tuple[Assignments, Mapping[NodeName, Node]]:
    """The same as below comes to, node by node: the assignment, its node's sums and its ledger."""
    runs, names, there = plan.edits, plan.touched, Table.of(snapshot.nodes)
    assert isinstance(runs, Runs), "it is plain"
    job, demand, head, running = runs.job, runs.demand, runs.head, SlotState.RUNNING
    uid, version, generation = head.uid, head.version, head.restart
    found: dict[NodeName, Assignment] = {}
    rows: dict[NodeName, OnNode] = {}
    nodes: dict[NodeName, Node] = {}
    before, count, after = NOTHING, 0, NOTHING  # nodes that are as full share their sums
    known = there.of_each(names), snapshot.assigned.by_node.of_each(names)
    for name, numbers, node, row in zip(names, runs.slots, *known, strict=True):
        if node is None:
            raise AssertionError(f"{name} has no ledger")
        slots = slots_of_run(numbers) if type(numbers) is range else Slots(numbers)
        group = Group(
            uid=uid,
            version=version,
            generation=generation,
            state=running,
            slots=slots,
            demand=demand,
        )
        found[name] = new = Assignment(node=name, job=job, groups=(group,))
        row = NO_NODE if row is None else row
        if row.running is not before or count != len(numbers):
            before, count = row.running, len(numbers)
            after = before.plus(demand, count)
        rows[name] = row = row.with_running(job, new, after)
        held, promised = row.sums()
        nodes[name] = _with_sums(node, held, promised, commit)
    return snapshot.assigned.with_job(job, found, rows), there.changed(nodes, lasts=True)


def _with_sums(node: Node, held: Totals, promised: Totals, commit: str) -> Node:
    """With what its assignments come to, some of which are new."""
    before = node.ledger
    ledger = structs.replace(before, held=held, promised=promised, commit=commit)
    # Nearly all are one sum of what runs, and within the limit.
    is_well = held is promised and not held.host_ports and ledger.has_room_for(held.resources)
    if not is_well:
        _check_capacity(node.name, before, ledger)
    return structs.replace(node, ledger=ledger)


# Assignments ------------------------------------------------------------------------------------


def _edited_assignments(assigned: Assignments, steps: Sequence[Step]) -> Assignments:
    updates: dict[Pair, Assignment | None] = {}
    several: dict[Pair, list[Step]] = {}  # whatever is not the first of a job on a node
    last, there = None, NO_JOB  # a job, and where it is
    for step in steps:
        node, job = pair = (step.node, step.job)
        if job is not last:
            last, there = job, assigned.of_job(job)
        if step.before is None and pair not in updates and node not in there:
            groups = _first_group(step)
            updates[pair] = Assignment(node=node, job=job, groups=groups) if groups else None
        else:
            several.setdefault(pair, []).append(step)
    for pair, edits in several.items():
        node, job = pair
        before = updates[pair] if pair in updates else assigned.get(pair)
        groups = _edited_groups(before, edits)
        updates[pair] = Assignment(node=node, job=job, groups=groups) if groups else None
    return assigned.changed(updates) if updates else assigned


def _edited_groups(before: Assignment | None, steps: Sequence[Step]) -> tuple[Group, ...]:
    slots = _by_kind(before.groups if before else ())
    for _, run in groupby(steps, key=_likeness):
        alike = list(run)
        step = alike[0]
        numbers = [slot for one in alike for slot in one.slots]
        changed = set(numbers)
        if len(changed) != len(numbers):
            raise AssertionError(f"a slot is named twice: {step}")
        if step.before is not None:
            there = slots.get(_kind(step, step.before), set())
            if not changed <= there:
                raise AssertionError(f"{_name(step)} is not {step.before} on {step.node}: {step}")
            there -= changed
        if step.after is not None:
            there = slots.setdefault(_kind(step, step.after), set())
            if not changed.isdisjoint(there):
                raise AssertionError(f"{_name(step)} is on {step.node} already: {step}")
            there |= changed
    return _groups(slots)


def _likeness(step: Step) -> tuple[object, ...]:
    """What steps have in common that do the same to slots of one kind."""
    return (step.before, step.after, step.version, step.generation, step.uid, step.demand)


def _first_group(step: Step) -> tuple[Group, ...]:
    """What nearly every step makes: the first slots of a job on a node."""
    if type(step.slots) is range:
        slots = slots_of_run(step.slots)
    else:
        slots = Slots.of(step.slots)
        if len(slots) != len(step.slots):
            raise AssertionError(f"a slot is named twice: {step}")
    if step.after is None or not slots:
        return ()
    group = Group(
        uid=step.uid,
        version=step.version,
        generation=step.generation,
        state=step.after,
        slots=slots,
        demand=step.demand,
    )
    return (group,)


def _name(step: Step) -> str:
    return f"{step.job}-{Slots.of(step.slots)}"


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
    amounts = (demand.memory_bytes, demand.disk_bytes, demand.cpu_millis)
    return (*kind[:4], *amounts, demand.host_ports)


def _kind(step: Step, state: SlotState) -> _Kind:
    return _Kind(step.version, step.generation, state, step.uid, step.demand)


def _check_slots(assigned: Assignments, jobs: Set[JobKey]) -> None:
    """No slot of these jobs may be running or waiting in two places."""
    for job in jobs:
        column = assigned.of_job(job)
        if column.is_distinct():
            continue
        live = [
            group.slots.numbers
            for assignment in column.values()
            for group in assignment.groups
            if group.state is not SlotState.STOPPING
        ]
        if len(set().union(*live)) < sum(map(len, live)):
            times = Counter(slot for slots in live for slot in slots)
            twice = [slot for slot, number in times.items() if number > 1]
            raise AssertionError(f"{twice} of {job} would be alive twice")


# Ledgers ----------------------------------------------------------------------------------------


def totals(assignments: Iterable[Assignment]) -> tuple[Totals, Totals]:
    """What the assignments of one node hold and promise: running + stopping, running + waiting."""
    return sums_of(assignments)


def _rewritten_nodes(
    snapshot: Snapshot,
    assigned: Assignments,
    plan: Plan,
    commit: str,
) -> Mapping[NodeName, Node]:
    gains, touched = plan.effect.live, plan.touched
    changes = {change.node: change for change in plan.nodes}
    nodes: dict[NodeName, Node] = {}
    there, dead, displaced = Table.of(snapshot.nodes), plan.dead, plan.displaced
    rows = assigned.by_node.of_each(touched)
    for name, node, row in zip(touched, there.of_each(touched), rows, strict=True):
        if node is None:
            raise AssertionError(f"{name} has no ledger")
        if name in dead and node.is_alive:
            raise AssertionError(f"{name} is alive and can't be declared dead")
        before = node.ledger
        held, promised = NO_SUMS if row is None else row.sums()
        ledger = structs.replace(before, held=held, promised=promised, commit=commit)
        if name in changes:
            ledger = _as_set(ledger, changes[name])
        if name in displaced:
            ledger = replace(ledger, displaced=displaced[name])
        if name in gains:
            _check_capacity(name, before, ledger)
        nodes[name] = structs.replace(node, ledger=ledger)
    return there.changed(nodes, lasts=True) if nodes else there


def _as_set(ledger: Ledger, change: NodeChange) -> Ledger:
    return replace(
        ledger,
        is_cordoned=change.is_cordoned,
        drain=change.drain,
        set_labels=dict(change.set_labels),
    )


def _check_capacity(name: NodeName, before: Ledger, after: Ledger) -> None:
    for what, old, new in (
        ("hold", before.held, after.held),
        ("promise", before.promised, after.promised),
    ):
        if not after.has_room_for(new.resources):
            limit = after.allocatable
            _check_growth(f"{name} would {what}", limit, old.resources, new.resources)
        if new.host_ports and (twice := _doubled(new.host_ports) - _doubled(old.host_ports)):
            raise AssertionError(f"{name} would {what} host port {next(iter(twice))} twice")


def _check_growth(what: str, limit: Resources, old: Resources, new: Resources) -> None:
    """Beyond the limit an amount may be what it was, or less."""
    for unit in ("memory_bytes", "disk_bytes", "cpu_millis"):
        if unit == "cpu_millis" and not limit.cpu_millis:
            continue  # it is not counted there
        amount = getattr(new, unit)
        if amount > max(getattr(limit, unit), getattr(old, unit)):
            raise AssertionError(f"{what} {amount} {unit} of {getattr(limit, unit)}")


def _doubled(ports: tuple[HostPort, ...]) -> Counter[HostPort]:
    return Counter(ports) - Counter(set(ports))


# Jobs and claims --------------------------------------------------------------------------------


def _changed_jobs(
    snapshot: Snapshot, plan: Plan, gains: Set[JobKey], commit: str
) -> Mapping[JobKey, JobRecord]:
    if plan.job is None and not gains:
        return snapshot.jobs
    changed = {key: snapshot.jobs.get(key) for key in sorted(gains)}
    if plan.job is not None:
        changed[plan.job.key] = _changed_record(snapshot.jobs.get(plan.job.key), plan.job)
    for key, record in changed.items():
        if record is not None:
            head = structs.replace(record.head, commit=commit)
            changed[key] = structs.replace(record, head=head)
        elif key in gains:
            raise AssertionError(f"{key} has no head and can't gain instances")
    return Table.of(snapshot.jobs).changed(changed)


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
    changed: dict[str, JobKey | None] = {
        claim: None for claim in sorted(change.disclaim) if claims.get(claim) == change.key
    }
    for claim in sorted(change.claim):
        owner = claims.get(claim, change.key)
        if owner != change.key:
            raise AssertionError(f"{claim} belongs to {owner}, not to {change.key}")
        changed[claim] = change.key
    return Table.of(claims).changed(changed) if changed else claims


def _last_versions(snapshot: Snapshot, change: JobChange) -> Mapping[JobKey, int]:
    last = snapshot.last_versions.get(change.key, 0)
    number = change.version.version if change.version else 0
    known = snapshot.last_versions
    return Table.of(known).changed({change.key: number}) if number > last else known
