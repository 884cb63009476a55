"""Decisions on record: what one was made on, cut to what a record may hold.

It holds what a placement looks at, so that `core/retrace.py` can make the decision again.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from ozymandias.core.attempt import why_closed
from ozymandias.core.contest import CONTESTS_MAX
from ozymandias.core.placement import Ask
from ozymandias.core.rooms import Room
from ozymandias.core.rules import rules_of, wary_of
from ozymandias.core.survey import survey
from ozymandias.core.system import keep_places
from ozymandias.model.decision import (
    DecidedStep,
    Decision,
    SeenAssignment,
    SeenNode,
    SeenVersion,
)
from ozymandias.model.instance import Slots, SlotState
from ozymandias.model.job import Job, JobKey, JobKind, JobVersion
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.part import Part
from ozymandias.model.plan import Plan, Step
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot

NODES_MAX = 64  # in a record; of a larger cluster the chosen ones and the best of the others
WIDE_NODES_MAX = 16  # of a decision about very many instances
STEPS_MAX = 256  # a plan of more is kept to its first ones: a record must not cost it its speed
WIDE_STEPS = 64
JOBS_MAX = 16

LIVE = (SlotState.RUNNING, SlotState.WAITING)


def is_recorded(plans: Iterable[Plan]) -> bool:
    """Whether something was placed: only that is a decision between nodes."""
    steps = chain.from_iterable(plan.each_step() for plan in plans)
    return any(step.before is None and step.after in LIVE for step in steps)


def record(
    snapshot: Snapshot, plans: Sequence[Plan], *, number: int, by: NodeName, time: float
) -> Decision:
    """What these plans were decided on, cut to what a record may hold."""
    number_of_steps = sum(plan.steps_number for plan in plans)
    steps = chain.from_iterable(plan.each_step() for plan in plans)
    kept = list(steps if number_of_steps <= STEPS_MAX else islice(steps, WIDE_STEPS))
    versions = _versions_seen(snapshot, plans, kept)
    best: tuple[NodeName, ...] = ()
    is_wide = number_of_steps > WIDE_STEPS
    if len(snapshot.nodes) > NODES_MAX and not is_wide:
        versions, best = _surveyed(snapshot, versions, kept)
    nodes = _nodes_seen(snapshot, kept, best, is_wide=is_wide)
    columns = [(key, snapshot.of(key)) for key in {version.job: None for version in versions}]
    kept_free = _kept_free(snapshot, plans, nodes)
    return Decision(
        number=number,
        by=by,
        time=time,
        revision=snapshot.revision,
        reasons=tuple(plan.reason for plan in plans[:JOBS_MAX]),
        steps=tuple(map(_decided, kept)),
        left_out=number_of_steps - len(kept),
        nodes={name: _seen(snapshot.nodes[name], kept_free.get(name, ())) for name in nodes},
        nodes_total=len(snapshot.nodes),
        jobs=versions,
        assignments=tuple(
            SeenAssignment(node=name, job=key, groups=found.groups)
            for name in nodes
            for key, column in columns
            if (found := column.get(name))
        ),
        target_percent=snapshot.settings.target_percent,
        pools=snapshot.settings.pools,
        contests=tuple(one for plan in plans for one in plan.contests)[:CONTESTS_MAX],
        is_shifted=_is_shifted(snapshot, plans),
    )


def _kept_free(
    snapshot: Snapshot, plans: Iterable[Plan], nodes: Iterable[NodeName]
) -> Mapping[NodeName, Sequence[Demand]]:
    """What peers leave free there for system jobs; people's own submits do not heed that."""
    if all(plan.job and plan.job.version for plan in plans):
        return {}
    seen = {name: snapshot.nodes[name] for name in nodes}
    return keep_places(
        snapshot, {n: Room.of(node) for n, node in seen.items() if node.is_schedulable}
    )


def _is_shifted(snapshot: Snapshot, plans: Sequence[Plan]) -> bool:
    """Whether some were decided on nodes, settings or jobs that those before them changed.

    Of jobs those count that keep others away, and those that room is kept free for.
    """
    settings = snapshot.settings
    return any(
        plan.nodes
        or (
            plan.settings
            and (plan.settings.target_percent, plan.settings.pools)
            != (settings.target_percent, settings.pools)
        )
        or (plan.job and plan.job.version and _counts_for_others(plan.job.version.job))
        for plan in plans[:-1]
    )


def _counts_for_others(job: Job) -> bool:
    return bool(job.placement.apart) or job.kind is JobKind.SYSTEM


def _decided(step: Step) -> DecidedStep:
    return DecidedStep(
        node=step.node,
        job=step.job,
        slots=Slots(step.slots),
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
        rules=rules_of(snapshot, job_of(seen)),
        there=there,
    )
    found = survey(snapshot, ask, there, step.after or SlotState.RUNNING, seen.part)
    if found.feasible or found.rejected:
        counted = replace(seen, feasible=found.feasible, rejected=dict(found.rejected))
        versions = tuple(counted if v is seen else v for v in versions)
    return versions, found.best


def _seen(node: Node, kept_free: Sequence[Demand]) -> SeenNode:
    ledger = node.ledger
    return SeenNode(
        allocatable=ledger.allocatable,
        held=ledger.held,
        promised=ledger.promised,
        labels=ledger.all_labels,
        closed=why_closed(node),
        load=node.load,
        kept_free=tuple(kept_free),
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


def job_of(seen: SeenVersion) -> Job:
    """As much of a job as placing looks at."""
    key = seen.job
    return Job(
        name=key.name,
        namespace=key.namespace,
        containers=(),
        priority=seen.priority,
        placement=seen.placement,
    )
