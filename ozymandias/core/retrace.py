"""A decision on record made again: what every node was to an instance, and why it came out so.

`explain` runs the very functions of placing over what `core/decision.py` has kept: filters and
score terms of every node at that moment, in the order in which they would have been chosen.
Planners differ in whom a new instance is kept apart from, and in who counts as there; the one that
gives the recorded score of the chosen node is the one that was at work. Some instances have their
node from the start: a system job's, and one that takes another's place. They have no score, and
all that can be asked is whether there was room.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from ozymandias.core.contest import DISPLACED, DISPLACES
from ozymandias.core.decision import LIVE, job_of
from ozymandias.core.fitting import describe, shortfall
from ozymandias.core.placement import Ask, ranked
from ozymandias.core.rebalance import MOVES_HERE
from ozymandias.core.ring import is_in
from ozymandias.core.rooms import Room, Rooms, rooms_of
from ozymandias.core.rules import Rules, rules_of
from ozymandias.core.survey import ELSEWHERE
from ozymandias.core.ways import Way
from ozymandias.model.decision import DecidedStep, Decision, SeenNode
from ozymandias.model.instance import Assigned, Assignment, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, JobRecord, JobVersion
from ozymandias.model.node import Ledger, Node, NodeName, Presence
from ozymandias.model.plan import Edit
from ozymandias.model.record import replace
from ozymandias.model.settings import Settings
from ozymandias.model.snapshot import Snapshot

DRAINED = "being drained"


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


def explain(decision: Decision, number: int) -> Explained:
    """Filters and score terms of every node for what one step placed, computed again.

    Several instances of a step are alike and were decided at once, on what was there before.
    """
    step, snapshot = decision.steps[number], snapshot_of(decision)
    earlier = list(edits_of(decision.steps[:number]))
    if not step.score:
        return _bound(snapshot, step, earlier)
    known = snapshot.jobs.get(step.job)
    version = known.versions.get(step.version) if known else None
    job = version.job if version else _bare(step.job)
    closed = {name: seen.closed for name, seen in decision.nodes.items()}
    seen = next((v for v in decision.jobs if (v.job, v.version) == (step.job, step.version)), None)
    if seen and (part := seen.part):
        closed = {n: why or ("" if is_in(part, n) else ELSEWHERE) for n, why in closed.items()}
    origin = _origin(step)
    if origin in closed:
        closed[origin] = closed[origin] or "where it moves from"
    state = step.after or SlotState.RUNNING
    first: Explained | None = None
    for way in _ways(decision, snapshot, job, step, earlier):
        ask = Ask(
            job=step.job,
            version=step.version,
            demand=step.demand,
            wanted=seen.wanted if seen and not origin else 0,  # a move heeds every single one
            rules=way.rules,
            there=way.view.there,
            lasting=way.view.lasting,
            is_tight=way.is_tight,
        )
        rooms = _rooms_then(snapshot, way.earlier)
        if way.keeps_free:
            _keep_free(decision, rooms)
        verdicts = judge(snapshot, closed, rooms, ask, way.view.apart_from, step.node, state)
        chosen = next((v for v in verdicts if v.is_chosen), None)
        found = Explained(
            step=step,
            verdicts=verdicts,
            is_exact=bool(chosen and _is_as_decided(decision, chosen, step)),
            feasible=seen.feasible if seen else None,
            rejected=seen.rejected if seen else {},
        )
        if found.is_exact:
            return found
        first = first or found
    assert first is not None
    return first


def _origin(step: DecidedStep) -> NodeName:
    """Where an instance that moves comes from; "" of all others."""
    _, _, words = step.reason.partition(MOVES_HERE)
    return NodeName(words.partition(":")[0])


def _is_as_decided(decision: Decision, chosen: Verdict, step: DecidedStep) -> bool:
    # In the place of what stops there, its predecessor, or of victims, which may only have waited.
    is_bound = step.reason.startswith(DISPLACES) or (
        step.after is SlotState.WAITING
        and any(
            s.node == step.node
            and (s.after is SlotState.STOPPING or s.reason.startswith(DISPLACED))
            for s in decision.steps
        )
    )
    if is_bound:
        return not chosen.against
    return chosen.rank == 1 and chosen.terms == step.score


def _bound(snapshot: Snapshot, step: DecidedStep, earlier: Iterable[Edit]) -> Explained:
    """Of an instance that had its node from the start: whether there was room."""
    against = dict.fromkeys(sorted(snapshot.nodes), f"not looked at: it was to be on {step.node}")
    node, chosen = snapshot.nodes.get(step.node), tuple[Verdict, ...]()
    if node is not None:
        room, state = Room.of(node), step.after or SlotState.RUNNING
        _go_on({step.node: room}, earlier)
        short = shortfall(node, room, step.demand, state=state)
        fits = room.fits(step.demand, state)
        why = "" if fits else describe(short).removeprefix(f"{step.node} is ")
        del against[step.node]
        chosen = (Verdict(node=step.node, rank=int(fits), is_chosen=True, against=why, terms=()),)
    others = (
        Verdict(node=name, rank=0, is_chosen=False, against=why, terms=())
        for name, why in against.items()
    )
    is_exact = any(not verdict.against for verdict in chosen)
    return Explained(step=step, verdicts=(*chosen, *others), is_exact=is_exact)


# The ways of planners -----------------------------------------------------------------------------


class _View(NamedTuple):
    """How a planner counts the job's own instances, node by node: as in `Ask`."""

    apart_from: Mapping[NodeName, int]
    there: Mapping[NodeName, int]
    lasting: Mapping[NodeName, int]


class _Way(NamedTuple):
    """One of the ways in which planners look at what is there."""

    earlier: Sequence[Edit]
    rules: Rules
    view: _View
    keeps_free: bool  # what system jobs will need
    is_tight: bool  # all are packed together, whatever the rank


def _ways(
    decision: Decision, snapshot: Snapshot, job: Job, step: DecidedStep, earlier: Sequence[Edit]
) -> Iterator[_Way]:
    """Whom to keep apart from, with wishes or without, before others were stopped or after.

    Who is displaced is listed first, though all that fits without is placed before. And those of
    its own job that a rollout stops are counted as there, though their room is given back.
    """
    whole = tuple(earlier)
    placed = tuple(edit for edit in whole if edit.before is None)
    staying = tuple(edit for edit in whole if not edit.reason.startswith(DISPLACED))
    others = tuple(edit for edit in whole if edit.before is None or edit.job != step.job)
    known = ((whole, whole), (staying, staying), (placed, placed), (others, whole))
    keeping = (False, True) if any(n.kept_free for n in decision.nodes.values()) else (False,)
    for decided, then in dict.fromkeys(known):
        full = rules_of(snapshot, job, decided)
        views = list(dict.fromkeys(map(_hashable, _views(decision, snapshot, step, decided))))
        plain = full.without_wishes()
        kinds = [(full, False), (plain, False)]
        if any(way.is_tight and way.note in step.reason for way in Way):
            kinds.append((plain, True))
        for keeps_free, (rules, is_tight), view in product(keeping, kinds, views):
            yield _Way(then, rules, _View(*map(dict, view)), keeps_free, is_tight)


def _hashable(view: _View) -> tuple[frozenset[tuple[NodeName, int]], ...]:
    return tuple(frozenset(counts.items()) for counts in view)


def _views(
    decision: Decision, snapshot: Snapshot, step: DecidedStep, decided: Sequence[Edit]
) -> Iterator[_View]:
    there = [
        a for a in snapshot.instances(step.job) if a.state in LIVE and not _is_over(a, decided)
    ]
    fresh = [e.node for e in decided if e.job == step.job and e.before is None]
    live = Counter([*(a.node for a in there), *fresh])
    run = step.version, step.generation
    alike = (a.node for a in there if (a.version, a.generation) == run)
    current = Counter([*alike, *fresh])
    if (origin := _origin(step)) in live:
        moved = live - Counter([origin])
        yield _View(moved, moved, moved)
    yield _View(current, live, live)
    yield _View(live, live, live)
    yield _View(current, live, current)  # a rollout: the old ones leave
    closed = {n: seen.closed for n, seen in decision.nodes.items() if seen.closed and n in live}
    drained = {name for name, why in closed.items() if why == DRAINED}
    elsewhere = _without(live, drained)
    yield _View(elsewhere, live, elsewhere)
    for name in closed:  # one leaves a host that is short of something
        yield _View(_without(live, {name}), live, live)
    for edit in decided:  # in the slot of one that stops, with which others of its kind leave
        if edit.job == step.job and edit.slot in step.slots and edit.before is not None:
            here = {**live, edit.node: current[edit.node]}
            yield _View(current, here, current)


def _without(counts: Mapping[NodeName, int], nodes: Iterable[NodeName]) -> Counter[NodeName]:
    gone = set(nodes)
    return Counter({name: count for name, count in counts.items() if name not in gone})


def _is_over(assigned: Assigned, earlier: Iterable[Edit]) -> bool:
    return any(
        edit.node == assigned.node
        and edit.instance == assigned.instance
        and (edit.version, edit.generation) == (assigned.version, assigned.generation)
        and edit.before
        and edit.after not in LIVE
        for edit in earlier
    )


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


# Rooms and ranks ----------------------------------------------------------------------------------


def _rooms_then(snapshot: Snapshot, earlier: Iterable[Edit]) -> Rooms:
    rooms = rooms_of(snapshot)
    _go_on(rooms, earlier)
    return rooms


def _go_on(rooms: Rooms, edits: Iterable[Edit]) -> None:
    for edit in edits:
        if room := rooms.get(edit.node):
            if edit.before is not None:
                room.give(edit.demand, edit.before)
            if edit.after is not None:
                room.take(edit.demand, edit.after)


def _keep_free(decision: Decision, rooms: Rooms) -> None:
    for name, room in rooms.items():
        for demand in decision.nodes[name].kept_free:
            room.take(demand, SlotState.WAITING)


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
        why = closed[name] or ask.rules.why_not(name, ask.there or {}, ask.lasting)
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


# The cluster of a record --------------------------------------------------------------------------


def _bare(key: JobKey) -> Job:
    return Job(name=key.name, namespace=key.namespace, containers=())


def snapshot_of(decision: Decision) -> Snapshot:
    """The cluster as the record has it: enough for placing, and for nothing else."""
    jobs: dict[JobKey, JobRecord] = {}
    for seen in decision.jobs:
        version = JobVersion(uid=seen.uid, version=seen.version, job=job_of(seen))
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
