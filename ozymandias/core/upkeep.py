"""What any peer does of its own accord: repair after losses, place what is pending, tidy up.

These go as far as they can: what does not fit stays pending, with its reason, until room appears.
Higher priority comes first; among equals the most starved job (the smallest part of what it wants
is live), so that after a loss a job with nothing left is served before one that lacks an instance
of ten; then by name. System jobs are not placed here: `core/system.py`.

Where something stays pending, all is tried again in other ways (`core/ways.py`), and what places
most is done: neither preferences nor the order of names ever cost an instance its place. Why
something stays pending is told node by node, which takes longer than to place it: so only what is
done is gone through once more for that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from ozymandias.core.buckets import (
    Buckets,
    FreeSlots,
    assignments_by_job,
    census,
    is_current,
    is_system,
    per_node,
    sort_job,
)
from ozymandias.core.edits import new_instance, step, stop
from ozymandias.core.fitting import describe, needs, shortfall
from ozymandias.core.placement import Ask, most_that_fit, place
from ozymandias.core.rescue import by_version, moved_in_runs
from ozymandias.core.rooms import NOW, RUNNING, Room, Rooms, rooms_of
from ozymandias.core.rules import Rules, rules_of
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.system import keep_places, pending_system
from ozymandias.core.ways import JOBS_MAX, Starved, Way, ordered
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, JobRecord, OnPartition
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.plan import Edit, JobChange, Pending, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import NodeShortfall

VERSIONS_KEPT = 20
LOST_AT_ONCE = 800  # instances that one plan moves: each may touch a node and a job of its own
LOST_IN_RUNS = 2000  # that it moves where they do not


# Pending ------------------------------------------------------------------------------------------


def plan_pending(snapshot: Snapshot) -> Plan | None:
    """Place what is wanted and not live, as far as there is room now."""
    return at_once(planning_pending(snapshot))


def planning_pending(snapshot: Snapshot) -> Stepwise[Plan | None]:
    """The same, job by job."""
    live = census(snapshot).live
    starved = _starved_first(snapshot.jobs, live)
    if not starved:
        return None
    assignments = assignments_by_job(snapshot, [s.key for s in starved])

    def attempt(way: Way, is_told: bool) -> Stepwise[Filling]:
        rooms = rooms_of(snapshot)
        keep_places(snapshot, rooms)
        filling = Filling(snapshot=snapshot, rooms=rooms, way=way, is_told=is_told)
        for key in ordered(starved, way, rooms):
            record = snapshot.jobs[key]
            missing = record.head.wanted - live.get(key, 0)
            buckets = sort_job(snapshot, key, assignments[key])
            placed = _place_missing(filling, record, buckets, missing, "room appeared: ")
            filling.edits += placed
            if len(placed) < missing:
                there = per_node(buckets.live)
                there.update(edit.node for edit in placed)
                filling.lack(record, missing - len(placed), there)
            yield
        return filling

    filling = yield from _best(attempt)
    if not filling.edits:
        return None
    return Plan(
        reason=f"room appeared for {_names(filling.edits)}",
        edits=tuple(filling.edits),
        pending=tuple(filling.pending),
        is_divisible=True,
    )


@dataclass(slots=True, kw_only=True)
class Filling:
    """A plan for several jobs while it is being made."""

    snapshot: Snapshot
    rooms: Rooms
    way: Way
    is_told: bool  # why something stays pending
    edits: list[Edit] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    jobs: set[JobKey] = field(default_factory=set)
    is_particular: bool = False  # somebody had preferences

    def ask(self, job: Job, head: JobHead, there: Mapping[NodeName, int]) -> Ask:
        rules = rules_of(self.snapshot, job, self.edits)
        self.jobs.add(job.key)
        self.is_particular |= rules.is_particular
        if self.way is not Way.AS_LIKED:
            rules = rules.without_wishes()
        return replace(Ask.of(job, head, rules, there), is_tight=self.way.is_tight)

    def lack(
        self, record: JobRecord, count: int, there: Mapping[NodeName, int] | None = None
    ) -> None:
        pending = Pending(job=record.key, count=count, reason="")
        if self.is_told:
            pending = _pending(self.snapshot, record, count, self.rooms, there, self.edits)
        self.pending.append(pending)

    def ways_left(self) -> Iterator[Way]:
        """Other ways that could place more than this one did."""
        if not (self.pending and self.placed()):
            return  # all are placed; or there is no room for anybody, which no order changes
        if self.is_particular:
            yield Way.PLAIN
        if 1 < len(self.jobs) <= JOBS_MAX:
            yield from (Way.SMALL, Way.SMALL_TIGHT, Way.LARGE_TIGHT)

    def placed(self) -> list[tuple[int, int]]:
        """How many are placed of each priority, the highest first: more is better."""
        found: Counter[int] = Counter()
        for edit in self.edits:
            record = self.snapshot.jobs.get(edit.job)
            if edit.before is None and record and record.current:
                found[record.current.job.priority] += 1
        return sorted(found.items(), reverse=True)


def _best(attempt: Callable[[Way, bool], Stepwise[Filling]]) -> Stepwise[Filling]:
    """What places most; of ways that place as many, the first."""
    best = yield from attempt(Way.AS_LIKED, False)
    for way in tuple(best.ways_left()):
        other = yield from attempt(way, False)
        if other.placed() > best.placed():
            best = other
        if not best.pending:
            break
    if best.pending and best.edits:
        best = yield from attempt(best.way, True)
    return best


def starved_first(snapshot: Snapshot, live: Mapping[JobKey, int]) -> list[JobKey]:
    """Those that lack instances, as they are to be served."""
    return [starved.key for starved in _starved_first(snapshot.jobs, live)]


def _starved_first(jobs: Mapping[JobKey, JobRecord], live: Mapping[JobKey, int]) -> list[Starved]:
    """Those of the jobs that lack instances and are known well enough to be given some."""
    return sorted(
        Starved(
            -record.current.job.priority,
            live.get(key, 0) / record.head.wanted,
            key,
            record.current.job,
        )
        for key, record in jobs.items()
        if live.get(key, 0) < record.head.wanted
        and not record.head.deleting
        and record.current is not None
        and not is_system(record)
    )


def _place_missing(
    filling: Filling, record: JobRecord, buckets: Buckets, missing: int, why: str
) -> list[Edit]:
    assert record.current is not None
    ask = filling.ask(record.current.job, record.head, per_node(buckets.live))
    placed = place(filling.rooms, ask, missing, per_node(buckets.current), NOW)
    slots, why = FreeSlots(buckets.used_slots()), why + filling.way.note
    return [new_instance(record.key, record.head, next(slots), ask.demand, p, why) for p in placed]


def pending_of(snapshot: Snapshot) -> tuple[Pending, ...]:
    """Every job with instances that are wanted and nowhere, with the numbers that say why."""
    return at_once(telling_pending(snapshot))


def telling_pending(snapshot: Snapshot) -> Stepwise[tuple[Pending, ...]]:
    """The same, job by job."""
    live = census(snapshot).live
    rooms = rooms_of(snapshot)
    found: list[Pending] = []
    for key, record in snapshot.jobs.items():
        missing = record.head.wanted - live.get(key, 0)
        if missing > 0 and not record.head.deleting and not is_system(record):
            found.append(_pending(snapshot, record, missing, rooms))
            yield
    return tuple(sorted((*found, *pending_system(snapshot)), key=lambda p: p.job))


def _pending(
    snapshot: Snapshot,
    record: JobRecord,
    count: int,
    rooms: Rooms,
    there: Mapping[NodeName, int] | None = None,
    decided: Iterable[Edit] = (),
) -> Pending:
    """``there``: how many of the job each node has, if not as in the snapshot."""
    if record.current is None:
        reason = f"the record of version {record.head.version} can't be read"
        return Pending(job=record.key, count=count, reason=reason)
    job = record.current.job
    if there is None and (job.placement.max_per_node or job.placement.burst):
        there = per_node(a for a in sort_job(snapshot, record.key).live)
    rules = rules_of(snapshot, job, decided)
    reason = _why_pending(snapshot, job, rooms, rules, there or {})
    return Pending(job=record.key, count=count, reason=reason)


def _why_pending(
    snapshot: Snapshot, job: Job, rooms: Rooms, rules: Rules, there: Mapping[NodeName, int]
) -> str:
    demand = Demand.of(job)
    if most_that_fit(rooms, demand, 1, NOW, rules=rules, there=there):
        return "there is room; it is placed in a moment"
    lines = ", ".join(describe(s) for s in shortfalls(snapshot, job, rooms, rules, there))
    return f"needs {needs(demand)}; " + (lines or "there are no nodes")


def shortfalls(
    snapshot: Snapshot, job: Job, rooms: Rooms, rules: Rules, there: Mapping[NodeName, int]
) -> Iterator[NodeShortfall]:
    """Node by node, what one instance lacks for running there now."""
    demand = Demand.of(job)
    for name, node in sorted(snapshot.nodes.items()):
        room = rooms.get(name) or Room.of(node)
        yield shortfall(node, room, demand, state=RUNNING, rules=rules, there=there)


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
    return at_once(planning_repair(snapshot, dead, fenced))


def planning_repair(
    snapshot: Snapshot,
    dead: frozenset[NodeName],
    fenced: frozenset[NodeName] | None = None,
) -> Stepwise[Plan | None]:
    """The same, job by job."""
    gone = frozenset(n for n in dead if n in snapshot.nodes and not snapshot.nodes[n].is_alive)
    many = _at_once(snapshot, _lost(snapshot, gone, fenced), LOST_IN_RUNS)
    if not many:
        return None  # nobody is served there any more, and what is left waits for the fence
    few = _at_once(snapshot, many.items(), LOST_AT_ONCE)
    if len(few) < len(many):
        plan = yield from _repaired(snapshot, many, is_in_runs=True)
        if plan is not None:
            return plan
    others = gone.difference(few)
    if not any(_lost(snapshot, others, fenced)):
        few |= dict.fromkeys(others, ())  # there is nothing on them: they go along
    return (yield from _repaired(snapshot, few))


def _repaired(
    snapshot: Snapshot, there: Mapping[NodeName, Sequence[JobKey]], *, is_in_runs: bool = False
) -> Stepwise[Plan | None]:
    """The plan for these of the dead, and what is lost there.

    ``is_in_runs``: None unless it is few runs on few nodes.
    """
    gone = frozenset(there)
    pairs = [(name, key) for name, keys in there.items() for key in keys]
    lost = [a for pair in pairs for a in snapshot.assignments[pair].instances]
    lost_on: dict[JobKey, set[NodeName]] = {}
    for name, key in pairs:
        lost_on.setdefault(key, set()).add(name)
    gone_edits = [step(a, None, f"{a.node} was lost") for a in lost]
    lost_live: dict[JobKey, list[Assigned]] = {}
    for assigned in lost:
        if assigned.state is not SlotState.STOPPING:
            lost_live.setdefault(assigned.job, []).append(assigned)
    remaining = {key: snapshot.of(key).live - len(went) for key, went in lost_live.items()}
    jobs = {key: snapshot.jobs[key] for key in lost_live if key in snapshot.jobs}
    starved = _starved_first(jobs, remaining)
    missing_of = {s.key: jobs[s.key].head.wanted - remaining[s.key] for s in starved}
    names = ", ".join(sorted(gone))
    reason = f"{names} {'was' if len(gone) == 1 else 'were'} lost"
    moves = moved_in_runs(snapshot, lost_live, lost_on, missing_of)
    if is_in_runs and (moves is None or _is_wide(moves)):
        return None
    if moves is not None:
        return Plan(reason=reason, edits=(*gone_edits, *moves), dead=gone)
    assignments = assignments_by_job(snapshot, lost_live)

    def attempt(way: Way, is_told: bool) -> Stepwise[Filling]:
        rooms = rooms_of(snapshot)
        filling = Filling(snapshot=snapshot, rooms=rooms, way=way, is_told=is_told)
        filling.edits += gone_edits
        for key in ordered(starved, way, filling.rooms):
            record, missing = snapshot.jobs[key], missing_of[key]
            survivors = sort_job(
                snapshot, key, [a for a in assignments[key] if a.node not in lost_on[key]]
            )
            moved = _move(filling, record, lost_live[key], survivors, missing)
            filling.edits += moved
            if len(moved) < missing:
                filling.lack(record, missing - len(moved))
            yield
        return filling

    filling = yield from _best(attempt)
    return Plan(
        reason=reason, edits=tuple(filling.edits), pending=tuple(filling.pending), dead=gone
    )


def _is_wide(moves: Iterable[Edit]) -> bool:
    """Whether they touch more than one transaction takes."""
    pairs = {(edit.node, edit.job) for edit in moves}
    return len(pairs) > LOST_AT_ONCE or len({node for node, _ in pairs}) > LOST_AT_ONCE // 2


def _lost(
    snapshot: Snapshot, gone: Set[NodeName], fenced: Set[NodeName] | None
) -> Iterator[tuple[NodeName, Sequence[JobKey]]]:
    """What may be moved from each of the dead, those that are to be seen to, by their names.

    Looked up as it is asked for: who moves a part of hundreds looks at no more than that part.
    """
    told = snapshot.told.by_node
    for name in sorted(gone):
        here = sorted(snapshot.on(name))
        if fenced is not None and name not in fenced:
            here = [key for key in here if not may_still_run(snapshot, (name, key))]
        if here or name in told:
            yield name, here


def _at_once(
    snapshot: Snapshot, lost: Iterable[tuple[NodeName, Sequence[JobKey]]], most: int
) -> dict[NodeName, Sequence[JobKey]]:
    """As many of the dead as one transaction can move; it is the others' turn right after."""
    chosen: dict[NodeName, Sequence[JobKey]] = {}
    instances = 0
    for name, keys in lost:
        here = sum(len(g.slots) for a in snapshot.on(name).values() for g in a.groups)
        if chosen and instances + here > most:
            break
        chosen[name] = keys
        instances += here
    return chosen


def may_still_run(snapshot: Snapshot, pair: tuple[NodeName, JobKey]) -> bool:
    """Whether a node has something exclusive of a job, or something not known not to be."""
    record = snapshot.jobs.get(pair[1])
    versions = record.versions if record else {}
    numbers = {group.version for group in snapshot.assignments[pair].groups}
    return any(
        number not in versions or versions[number].job.on_partition is OnPartition.STOP
        for number in numbers
    )


def _move(
    filling: Filling, record: JobRecord, lost: list[Assigned], survivors: Buckets, missing: int
) -> list[Edit]:
    """Replacements for lost instances of one job, the current ones first."""
    used, apart_from = survivors.used_slots(), per_node(survivors.live)
    chosen = sorted(lost, key=lambda a: (not is_current(a, record.head), a.slot))[:missing]
    fresh = FreeSlots(used | {a.slot for a in lost})
    edits: list[Edit] = []
    for head, alike in by_version(record, chosen):
        job = record.versions[head.version].job
        ask = filling.ask(job, head, apart_from)
        placed = place(filling.rooms, ask, len(alike), apart_from, NOW)
        for assigned, there in zip(alike, placed, strict=False):
            # A slot that is still stopping somewhere else would be two pods of one name.
            slot = next(fresh) if assigned.slot in used else assigned.slot
            why = f"{assigned.node} was lost; "
            edits.append(
                new_instance(record.key, head, slot, ask.demand, there, why + filling.way.note)
            )
            apart_from[there.node] += 1
    return edits


# Tidying ------------------------------------------------------------------------------------------


def plan_stopped(snapshot: Snapshot) -> Plan | None:
    """What still lives of jobs that were stopped.

    It was more than one transaction takes, or on a node whose ledger could not be read then.
    """
    going = [key for key in sorted(snapshot.jobs_where(_is_going)) if snapshot.of(key).live]
    edits = [edit for key in going for edit in stops_of(snapshot, key)]
    if not edits:
        return None
    names = ", ".join(map(str, going))
    return Plan(reason=f"{names}: stopped", edits=tuple(edits), is_divisible=True)


def stops_of(snapshot: Snapshot, key: JobKey) -> list[Edit]:
    """All that lives of a job ends, as far as it can be reached."""
    buckets = sort_job(snapshot, key)
    live = sorted((*buckets.current, *buckets.outdated), key=lambda a: a.slot)
    return [stop(assigned, f"{key} is stopped") for assigned in live]


def _is_going(record: JobRecord) -> bool:
    return record.head.deleting


def plan_tidy(snapshot: Snapshot) -> Plan | None:
    """End a stopped job whose last instance is gone; forget versions that nobody names any more."""
    worth_a_look = sorted(snapshot.jobs_where(_is_untidy))
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


def _is_untidy(record: JobRecord) -> bool:
    return record.head.deleting or len(record.versions) > VERSIONS_KEPT


def _names(edits: Iterable[Edit]) -> str:
    return ", ".join(str(edit.instance) for edit in edits)
