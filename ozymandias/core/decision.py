"""Decisions on record: what one was made on, and why it came out so.

`record` keeps what a placement looks at, and `explain` runs the very functions of placing over it
again: filters and score terms of every node at that moment, in the order in which they would have
been chosen. Planners differ in whom a new instance is kept apart from; the one that gives the
recorded score of the chosen node is the one that was at work.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ozymandias.core.attempt import why_closed
from ozymandias.core.fitting import describe, shortfall
from ozymandias.core.inventory import is_in
from ozymandias.core.placement import Ask, ranked
from ozymandias.core.rooms import Rooms, rooms_of
from ozymandias.core.rules import Rules, rules_of, wary_of
from ozymandias.core.survey import ELSEWHERE, survey
from ozymandias.model.decision import (
    DecidedStep,
    Decision,
    SeenAssignment,
    SeenNode,
    SeenVersion,
)
from ozymandias.model.instance import Assigned, Assignment, Slots, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, JobRecord, JobVersion
from ozymandias.model.node import Ledger, Node, NodeName, Presence
from ozymandias.model.part import Part
from ozymandias.model.plan import Edit, Plan, Step
from ozymandias.model.record import replace
from ozymandias.model.settings import Settings
from ozymandias.model.snapshot import Snapshot

NODES_MAX = 64  # in a record; of a larger cluster the chosen ones and the best of the others
WIDE_NODES_MAX = 16  # of a decision about very many instances
STEPS_MAX = 256  # a plan of more is kept to its first ones: a record must not cost it its speed
WIDE_STEPS = 64
JOBS_MAX = 16

LIVE = (SlotState.RUNNING, SlotState.WAITING)


def is_recorded(plans: Iterable[Plan]) -> bool:
    """Whether something was placed: only that is a decision between nodes."""
    return any(step.before is None and step.after in LIVE for plan in plans for step in plan.steps)


def record(
    snapshot: Snapshot, plans: Sequence[Plan], *, number: int, by: NodeName, time: float
) -> Decision:
    """What these plans were decided on, cut to what a record may hold."""
    steps = [step for plan in plans for step in plan.steps]
    kept = steps if len(steps) <= STEPS_MAX else steps[:WIDE_STEPS]
    versions = _versions_seen(snapshot, plans, kept)
    best: tuple[NodeName, ...] = ()
    is_wide = len(steps) > WIDE_STEPS
    if len(snapshot.nodes) > NODES_MAX and not is_wide:
        versions, best = _surveyed(snapshot, versions, kept)
    nodes = _nodes_seen(snapshot, kept, best, is_wide=is_wide)
    keys = {version.job for version in versions}
    return Decision(
        number=number,
        by=by,
        time=time,
        revision=snapshot.revision,
        reasons=tuple(plan.reason for plan in plans[:JOBS_MAX]),
        steps=tuple(map(_decided, kept)),
        left_out=len(steps) - len(kept),
        nodes={name: _seen(snapshot.nodes[name]) for name in nodes},
        nodes_total=len(snapshot.nodes),
        jobs=versions,
        assignments=tuple(
            SeenAssignment(node=name, job=key, groups=found.groups)
            for name in nodes
            for key, found in snapshot.on(name).items()
            if key in keys
        ),
        target_percent=snapshot.settings.target_percent,
        pools=snapshot.settings.pools,
    )


def _decided(step: Step) -> DecidedStep:
    return DecidedStep(
        node=step.node,
        job=step.job,
        slots=Slots(tuple(step.slots)),
        uid=step.uid,
        version=step.version,
        generation=step.generation,
        before=step.before,
        after=step.after,
        demand=step.demand,
        reason=step.reason,
        score=step.score,
    )


def _nodes_seen(
    snapshot: Snapshot, steps: Sequence[Step], best: Sequence[NodeName], *, is_wide: bool
) -> list[NodeName]:
    """All nodes, or those that were touched and the best of the others, or some if not known."""
    most = WIDE_NODES_MAX if is_wide else NODES_MAX
    if len(snapshot.nodes) <= most:
        return sorted(snapshot.nodes)
    chosen: dict[NodeName, None] = {}
    for step in steps:
        if len(chosen) < most and step.node in snapshot.nodes:
            chosen[step.node] = None
    for name in best or snapshot.nodes:
        if len(chosen) >= most:
            break
        chosen[name] = None
    return sorted(chosen)


def _surveyed(
    snapshot: Snapshot, versions: tuple[SeenVersion, ...], steps: Sequence[Step]
) -> tuple[tuple[SeenVersion, ...], tuple[NodeName, ...]]:
    """The versions, with counts at the one that was placed first, and the nodes best for that."""
    step = next((s for s in steps if s.before is None), None)
    seen = next(
        (v for v in versions if step and (v.job, v.version) == (step.job, step.version)), None
    )
    if step is None or seen is None:
        return versions, ()
    there = {
        name: sum(len(group.slots) for group in assignment.groups if group.state in LIVE)
        for name, assignment in snapshot.of(step.job).items()
    }
    ask = Ask(
        job=step.job,
        version=step.version,
        demand=step.demand,
        wanted=seen.wanted,
        rules=rules_of(snapshot, _job(seen)),
        there=there,
    )
    found = survey(snapshot, ask, there, step.after or SlotState.RUNNING, seen.part)
    if found.feasible or found.rejected:
        counted = replace(seen, feasible=found.feasible, rejected=dict(found.rejected))
        versions = tuple(counted if v is seen else v for v in versions)
    return versions, found.best


def _seen(node: Node) -> SeenNode:
    ledger = node.ledger
    return SeenNode(
        allocatable=ledger.allocatable,
        held=ledger.held,
        promised=ledger.promised,
        labels=ledger.all_labels,
        closed=why_closed(node),
        load=node.load,
    )


def _versions_seen(
    snapshot: Snapshot, plans: Sequence[Plan], steps: Sequence[Step]
) -> tuple[SeenVersion, ...]:
    """The versions that were placed, and those of the jobs that they heed or that heed them."""
    new = {plan.job.key: plan.job.version for plan in plans if plan.job and plan.job.version}
    wanted = {plan.job.key: plan.job.head.wanted for plan in plans if plan.job and plan.job.head}
    parts = {plan.job.key: plan.part for plan in plans if plan.job}
    placed: dict[tuple[JobKey, int], None] = {}
    for step in steps:
        if step.before is None and len(placed) < JOBS_MAX:
            placed[step.job, step.version] = None
    found: dict[tuple[JobKey, int], SeenVersion] = {}
    others: set[JobKey] = set()
    for key, number in placed:
        known = snapshot.jobs.get(key)
        version = known.versions.get(number) if known else None
        version = version or new.get(key)
        if version is None or version.version != number:
            continue
        head = known.head.version if known and key not in new else number
        now_wanted = wanted.get(key, known.head.wanted if known else 0)
        found[key, number] = _version(version, head, now_wanted, parts.get(key))
        rules = version.job.placement
        others |= {neighbour.job for neighbour in (*rules.near, *rules.apart)}
        others |= set(wary_of(snapshot, key))
    for key in sorted(others)[:JOBS_MAX]:
        neighbour_record = snapshot.jobs.get(key)
        for version in neighbour_record.versions.values() if neighbour_record else ():
            assert neighbour_record is not None
            now = neighbour_record.head
            found.setdefault((key, version.version), _version(version, now.version, now.wanted))
    return tuple(found.values())


def _version(
    version: JobVersion, current: int, wanted: int, part: Part | None = None
) -> SeenVersion:
    return SeenVersion(
        job=version.job.key,
        uid=version.uid,
        version=version.version,
        is_current=version.version == current,
        priority=version.job.priority,
        placement=version.job.placement,
        wanted=wanted,
        part=part,
    )


# The decision again -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one node was to one instance at the moment of the decision."""

    node: NodeName
    rank: int  # 1 is the best; 0: it was not feasible
    is_chosen: bool
    against: str  # why it was not feasible
    terms: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    step: DecidedStep
    verdicts: tuple[Verdict, ...]  # the best first, those that were not feasible last
    is_exact: bool  # the recorded score of the chosen node came out again, and it was the best
    # Of a large cluster, before any of the decision's steps; None where it was not counted.
    feasible: int | None = None
    rejected: Mapping[str, int] = field(default_factory=dict)


def find(decisions: Iterable[Decision], assigned: Assigned) -> tuple[Decision, int] | None:
    """The newest decision that placed this very instance there, and the number of its step."""
    for decision in sorted(decisions, key=lambda d: (d.revision, d.time), reverse=True):
        for number, step in enumerate(decision.steps):
            if (
                step.before is None
                and (step.node, step.job, step.uid) == (assigned.node, assigned.job, assigned.uid)
                and (step.version, step.generation) == (assigned.version, assigned.generation)
                and assigned.slot in step.slots
            ):
                return decision, number
    return None


def explain(decision: Decision, number: int, slot: int) -> Explained:
    """Filters and score terms of every node for one placed instance, computed again."""
    step = decision.steps[number]
    snapshot = snapshot_of(decision)
    known = snapshot.jobs.get(step.job)
    version = known.versions.get(step.version) if known else None
    job = version.job if version else _bare(step.job)
    closed = {name: seen.closed for name, seen in decision.nodes.items()}
    seen = next((v for v in decision.jobs if (v.job, v.version) == (step.job, step.version)), None)
    if seen and (part := seen.part):
        closed = {n: why or ("" if is_in(part, n) else ELSEWHERE) for n, why in closed.items()}
    state = step.after or SlotState.RUNNING
    first: Explained | None = None
    for way in _ways(snapshot, job, step, list(_before(decision, number, slot))):
        ask = Ask(
            job=step.job,
            version=step.version,
            demand=step.demand,
            wanted=seen.wanted if seen else 0,
            rules=way.rules,
            there=way.live,
        )
        rooms = _rooms_then(snapshot, way.earlier)
        verdicts = judge(snapshot, closed, rooms, ask, way.apart_from, step.node, state)
        chosen = next((v for v in verdicts if v.is_chosen), None)
        is_exact = bool(chosen and _is_as_decided(decision, chosen, step))
        found = Explained(
            step=step,
            verdicts=verdicts,
            is_exact=is_exact,
            feasible=seen.feasible if seen else None,
            rejected=seen.rejected if seen else {},
        )
        if is_exact:
            return found
        first = first or found
    assert first is not None
    return first


def _is_as_decided(decision: Decision, chosen: Verdict, step: DecidedStep) -> bool:
    is_bound = not step.score or (
        # In the place of what stops there: its predecessor, or its victims.
        step.after is SlotState.WAITING
        and any(s.node == step.node and s.after is SlotState.STOPPING for s in decision.steps)
    )
    if is_bound:
        return not chosen.against
    return chosen.rank == 1 and chosen.terms == step.score


class _Way(NamedTuple):
    """One of the ways in which planners look at what is there."""

    earlier: Sequence[Edit]
    rules: Rules
    apart_from: Counter[NodeName]
    live: Counter[NodeName]


def _ways(
    snapshot: Snapshot, job: Job, step: DecidedStep, earlier: Sequence[Edit]
) -> Iterator[_Way]:
    """Whom to keep apart from, with wishes or without, before others were stopped or after."""
    placed = [edit for edit in earlier if edit.before is None]
    for decided in (earlier, placed) if len(placed) < len(earlier) else (earlier,):
        full = rules_of(snapshot, job, decided)
        there = [
            a for a in snapshot.instances(step.job) if a.state in LIVE and not _is_over(a, decided)
        ]
        fresh = [e.node for e in decided if e.job == step.job and e.before is None]
        live = Counter([*(a.node for a in there), *fresh])
        current = Counter([*(a.node for a in there if a.version == step.version), *fresh])
        for rules in (full, full.without_wishes()):
            yield _Way(decided, rules, current, live)
            yield _Way(decided, rules, live, live)


def _is_over(assigned: Assigned, earlier: Iterable[Edit]) -> bool:
    return any(
        edit.node == assigned.node and edit.instance == assigned.instance and edit.before
        for edit in earlier
    )


def _before(decision: Decision, number: int, slot: int) -> Iterator[Edit]:
    """What had been decided before this instance, slot by slot."""
    yield from edits_of(decision.steps[:number])
    for edit in edits_of(decision.steps[number : number + 1]):
        if edit.slot >= slot:
            return
        yield edit


def edits_of(steps: Iterable[DecidedStep]) -> Iterator[Edit]:
    """Slot by slot."""
    for step in steps:
        for slot in step.slots:
            yield Edit(
                node=step.node,
                job=step.job,
                slot=slot,
                uid=step.uid,
                version=step.version,
                generation=step.generation,
                before=step.before,
                after=step.after,
                demand=step.demand,
                reason=step.reason,
            )


def _rooms_then(snapshot: Snapshot, earlier: Iterable[Edit]) -> Rooms:
    rooms = rooms_of(snapshot)
    for edit in earlier:
        if room := rooms.get(edit.node):
            if edit.before is not None:
                room.give(edit.demand, edit.before)
            if edit.after is not None:
                room.take(edit.demand, edit.after)
    return rooms


def judge(
    snapshot: Snapshot,
    closed: Mapping[NodeName, str],  # why each node takes no work; "" for those that do
    rooms: Rooms,
    ask: Ask,
    apart_from: Mapping[NodeName, int],
    chosen: NodeName | str = "",
    state: SlotState = SlotState.RUNNING,
) -> tuple[Verdict, ...]:
    """What every node is to one more instance: its rank and terms, or what speaks against it."""
    against: dict[NodeName, str] = {}
    for name in closed:
        why = closed[name] or ask.rules.why_not(name, ask.there or {})
        if not why and not rooms[name].fits(ask.demand, state):
            short = shortfall(snapshot.nodes[name], rooms[name], ask.demand, state=state)
            why = describe(short).removeprefix(f"{name} is ")
        if why:
            against[name] = why
    feasible = {name: room for name, room in rooms.items() if name not in against}
    found = [
        Verdict(node=name, rank=rank, is_chosen=name == chosen, against="", terms=terms)
        for rank, (name, terms) in enumerate(ranked(feasible, ask, apart_from), 1)
    ]
    found += [
        Verdict(node=name, rank=0, is_chosen=name == chosen, against=why, terms=())
        for name, why in sorted(against.items())
    ]
    return tuple(found)


def _bare(key: JobKey) -> Job:
    return Job(name=key.name, namespace=key.namespace, containers=())


def _job(seen: SeenVersion) -> Job:
    """As much of a job as placing looks at."""
    return replace(_bare(seen.job), priority=seen.priority, placement=seen.placement)


def snapshot_of(decision: Decision) -> Snapshot:
    """The cluster as the record has it: enough for placing, and for nothing else."""
    jobs: dict[JobKey, JobRecord] = {}
    for seen in decision.jobs:
        job = _job(seen)
        version = JobVersion(uid=seen.uid, version=seen.version, job=job)
        known = jobs.get(seen.job)
        head = JobHead(uid=seen.uid, version=seen.version, wanted=seen.wanted)
        jobs[seen.job] = JobRecord(
            key=seen.job,
            head=head if known is None or seen.is_current else known.head,
            head_revision=0,
            versions={**(known.versions if known else {}), seen.version: version},
        )
    return Snapshot(
        revision=decision.revision,
        nodes={name: _node(name, seen) for name, seen in decision.nodes.items()},
        jobs=jobs,
        assignments={
            (seen.node, seen.job): Assignment(node=seen.node, job=seen.job, groups=seen.groups)
            for seen in decision.assignments
        },
        settings=Settings(target_percent=decision.target_percent, pools=decision.pools),
    )


def _node(name: NodeName, seen: SeenNode) -> Node:
    ledger = Ledger(
        capacity=seen.allocatable,
        labels=seen.labels,
        is_cordoned=bool(seen.closed),
        held=seen.held,
        promised=seen.promised,
    )
    presence = Presence(address="", machine_id="", session="", daemon_version="", api="")
    load = replace(seen.load, taint="") if seen.load else None
    return Node(name=name, ledger=ledger, ledger_revision=0, presence=presence, load=load)
