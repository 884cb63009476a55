"""Decisions in words and documents: `ozy why`, and the plan as `ozy plan -o json` shows it.

Nothing here decides anything. `why` reads a snapshot and says of each instance that is not healthy
what it is waiting for, with numbers; `plan_document` spells a plan for programs.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ozymandias.core.advice import advice
from ozymandias.core.buckets import Buckets, is_system, per_node, sort_job
from ozymandias.core.budget import budget_of
from ozymandias.core.fitting import describe, needs, tally
from ozymandias.core.foresee import Foreseen
from ozymandias.core.placement import most_that_fit
from ozymandias.core.rollout import next_step, rolling_of, tied
from ozymandias.core.rooms import NOW, Room, rooms_of
from ozymandias.core.rules import (
    neighbours_away,
    rules_of,
    unknown_burst_nodes,
    unknown_neighbour,
)
from ozymandias.core.system import (
    held_up,
    needed_where_not_meant,
    pending_on,
    rooms_for_system,
    tend,
    tending_of,
    wanted_of,
)
from ozymandias.core.upkeep import shortfalls
from ozymandias.core.vacate import fits_held
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import Job, JobKey, JobRecord
from ozymandias.model.node import Demand
from ozymandias.model.plan import LIVE, Edit, Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted, is_or_are
from ozymandias.problems import Problem, Suggestion

_Run = tuple[JobKey, int, str, int, int]

# The plan as a document ---------------------------------------------------------------------------


def plan_document(
    decision: Plan | Problem, foreseen: Foreseen | None = None, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """``{fits, place, stop, move, stay, problem, notes}``; ``foreseen``: with what follows from it.

    Whoever is to ``stay`` is an old instance that no new one comes for. ``notes`` are in the way of
    nothing, and good to know.
    """
    if isinstance(decision, Problem):
        nothing: dict[str, Any] = {step: [] for step in ("place", "stop", "move", "stay")}
        document = decision.document()
        return {"fits": False, **nothing, "problem": document, "notes": list(notes)}
    foreseen = foreseen or Foreseen(edits=decision.edits)
    gone: dict[_Run, Edit] = {}
    stopped: list[Edit] = []
    placed: list[Edit] = []
    moved: list[tuple[Edit, Edit]] = []
    for edit in foreseen.edits:
        run = _run(edit)
        if edit.before in LIVE and edit.after not in LIVE:
            stopped.append(edit)
            gone[run] = edit
        elif edit.before is None and edit.after in LIVE:
            if old := gone.pop(run, None):
                moved.append((old, edit))
            else:
                placed.append(edit)
    left = {id(old) for old, _ in moved}
    return {
        "fits": True,
        "place": [_step_document(e) for e in placed],
        "stop": [_step_document(e) for e in stopped if id(e) not in left],
        "move": [
            {**_who(new), "from": old.node, "to": new.node, "reason": new.reason}
            for old, new in moved
        ],
        "stay": [
            {**_who(old), "node": old.node, "reason": why_stays}
            for old, why_stays in foreseen.staying
        ],
        "problem": None,
        "notes": list(notes),
    }


def _run(edit: Edit) -> _Run:
    """The same instance of the same version: gone here and then coming there, it moves."""
    return edit.job, edit.slot, edit.uid, edit.version, edit.generation


def _step_document(edit: Edit) -> dict[str, Any]:
    return {**_who(edit), "node": edit.node, "reason": edit.reason}


def _who(it: Edit | Assigned) -> dict[str, str]:
    return {
        "instance": f"{it.job.name}-{it.slot}",
        "job": it.job.name,
        "namespace": it.job.namespace,
    }


def _name(it: Edit | Assigned) -> str:
    return str(it.instance)


# Why ----------------------------------------------------------------------------------------------


def why(
    snapshot: Snapshot, key: JobKey, suggestions: Sequence[Suggestion] | None = None
) -> tuple[str, ...]:
    """Line by line, how a job stands and what each instance that is not healthy waits for.

    ``suggestions`` is the `advice` for it, where somebody has asked for it already.
    """
    record = snapshot.jobs.get(key)
    if record is None:
        return (f"There is no job {key}.",)
    buckets = sort_job(snapshot, key)
    return (
        _headline(snapshot, record, buckets),
        *(
            _system_lines(snapshot, record, buckets)
            if is_system(record)
            else (
                *_rollout_lines(snapshot, record, buckets),
                *_pending_lines(snapshot, record, buckets, suggestions),
            )
        ),
        *(_waiting_line(snapshot, a) for a in (*buckets.waiting, *buckets.stale)),
        *(_unready_line(snapshot, a) for a in (*buckets.unready, *buckets.idle)),
        *(f"{_name(a)} runs on {a.node} and is healthy." for a in (*buckets.ready,)),
        *(
            f"{_name(a)} of version {a.version} runs on {a.node} and is healthy."
            for a in buckets.serving
        ),
        *(f"{_name(a)} is stopping on {a.node}." for a in buckets.stopping),
        *(
            f"{_name(a)} is on {a.node}, whose ledger can't be read: nothing is changed there."
            for a in buckets.beyond_reach
        ),
    )


def _headline(snapshot: Snapshot, record: JobRecord, buckets: Buckets) -> str:
    head, key = record.head, record.key
    if head.deleting:
        left = len(buckets.live) + len(buckets.stopping)
        return f"{key} was stopped; {left} of its instances {is_or_are(left)} not gone yet."
    healthy = len(buckets.ready) + len(buckets.serving)
    if is_system(record):
        nodes = f"{healthy} of {counted(wanted_of(snapshot, record), 'node')}"
        return f"{key} is at version {head.version}, one on every matching node: {nodes} healthy."
    return f"{key} is at version {head.version}: {head.wanted} wanted, {healthy} healthy."


def _system_lines(snapshot: Snapshot, record: JobRecord, buckets: Buckets) -> Iterator[str]:
    if record.head.deleting:
        return
    tending = tending_of(snapshot, record, buckets, rooms_for_system(snapshot))
    for pending in pending_on(tending):
        yield f"Missing on {pending.count}: {pending.reason}."
    yield from needed_where_not_meant(tending)
    held = tuple(held_up(tending))
    steps = tend(tending)
    if buckets.outdated:
        old = f"{len(buckets.outdated)} to be replaced, node by node"
        yield f"A change to version {record.head.version} is under way: {old}."
        yield from held
    if steps:
        yield "Next: " + "; ".join(_step_words(edit) for edit in steps) + "."


def _rollout_lines(snapshot: Snapshot, record: JobRecord, buckets: Buckets) -> Iterator[str]:
    head = record.head
    if head.deleting or not buckets.outdated:
        return
    yield (
        f"A rollout to version {head.version} is under way: {len(buckets.current)} new,"
        f" {len(buckets.outdated)} to be replaced."
    )
    rolling = rolling_of(snapshot, record, buckets)
    staying = tuple(tied(rolling))
    yield from (f"{_name(old)} of {why_stays}." for old, why_stays in staying)
    steps = next_step(rolling, rooms_of(snapshot))
    halfway = (*buckets.unready, *buckets.waiting)
    if steps:
        yield "Next: " + "; ".join(_step_words(edit) for edit in steps) + "."
    elif halfway:
        yield f"It goes on when {', '.join(map(_name, halfway))} is healthy."
    elif record.current is None:
        yield f"It can't go on: the record of version {head.version} can't be read."
    elif len(staying) < len(buckets.outdated):
        job = record.current.job
        budget = budget_of(job, head.wanted, buckets)
        if budget.floor and budget.spare <= 0:
            yield f"Nothing is stopped before its turn: {budget.floor} must stay healthy."
        yield f"It can't go on: a new instance needs {needs(Demand.of(job))} and fits nowhere."
        yield from _node_lines(snapshot, job, buckets)


def _step_words(edit: Edit) -> str:
    if edit.before is None:
        verb = "wait on" if edit.after is SlotState.WAITING else "start on"
        return f"{_name(edit)} is to {verb} {edit.node}"
    return f"{_name(edit)} on {edit.node} is to stop"


def _pending_lines(
    snapshot: Snapshot,
    record: JobRecord,
    buckets: Buckets,
    suggestions: Sequence[Suggestion] | None,
) -> Iterator[str]:
    missing = record.head.wanted - len(buckets.live)
    if missing <= 0 or record.head.deleting:
        return
    count = f"{counted(missing, 'instance')} {is_or_are(missing)}"
    if record.current is None:
        yield f"{count} pending: the record of version {record.head.version} can't be read."
        return
    job = record.current.job
    demand, there, rules = Demand.of(job), per_node(buckets.live), rules_of(snapshot, job)
    if most_that_fit(rooms_of(snapshot), demand, 1, NOW, rules=rules, there=there):
        yield f"{count} pending: there is room, and they are placed in a moment."
        return
    who = "it" if missing == 1 else "each"
    short = list(shortfalls(snapshot, job, rooms_of(snapshot), rules, there))
    yield f"{count} pending: {who} needs {needs(demand)}{tally(short)}."
    if (neighbour := unknown_neighbour(snapshot, job)) is not None:
        yield f"There is no job {neighbour}, which it is to be near to."
    for other in neighbours_away(snapshot, job):
        yield f"{other}, which it is to be near to, has no place either (`ozy why {other}`)."
    for name in unknown_burst_nodes(snapshot, job):
        yield f"There is no node {name}, which its burst is to go to."
    yield from _displaced_lines(snapshot, record, buckets)
    yield from (f"  {describe(one)}" for one in short)
    every = "It" if missing == 1 else "All of them"
    for suggestion in advice(snapshot, record.key) if suggestions is None else suggestions:
        yield f"{every} would have a place if you {suggestion.text}."


def _displaced_lines(snapshot: Snapshot, record: JobRecord, buckets: Buckets) -> Iterator[str]:
    """Who of it had to leave for something more important, as far as ledgers remember."""
    live, key = {a.slot for a in buckets.live}, record.key
    for name, node in sorted(snapshot.nodes.items()):
        for one in node.ledger.displaced:
            if (one.namespace, one.job) == key and one.slot not in live:
                yield f"{one.job}-{one.slot} left {name}: {one.reason}."


def _node_lines(snapshot: Snapshot, job: Job, buckets: Buckets) -> Iterator[str]:
    rules, there = rules_of(snapshot, job), per_node(buckets.live)
    for short in shortfalls(snapshot, job, rooms_of(snapshot), rules, there):
        yield f"  {describe(short)}"


def _waiting_line(snapshot: Snapshot, assigned: Assigned) -> str:
    """A waiting instance waits for its own slot, for room, or for its node to notice."""
    stopping = SlotState.STOPPING
    own = [
        a
        for a in snapshot.instances(assigned.job)
        if a.state is stopping and a.instance == assigned.instance
    ]
    here = [a for a in snapshot.instances_on(assigned.node) if a.state is stopping]
    start = f"{_name(assigned)} waits on {assigned.node}"
    if own:
        return f"{start} until {_name(own[0])} of version {own[0].version} on {own[0].node} stops."
    if not fits_held(Room.of(snapshot.nodes[assigned.node]), assigned):
        names = ", ".join(_name(a) for a in here) or "nothing"
        return f"{start} for {needs(assigned.demand)}: what stops there still holds it ({names})."
    return f"{start}: all it needs is there, and {assigned.node} starts it in a moment."


def _unready_line(snapshot: Snapshot, assigned: Assigned) -> str:
    node, status = snapshot.nodes[assigned.node], snapshot.status(assigned)
    start = f"{_name(assigned)} on {assigned.node}"
    if not node.is_alive:
        return (
            f"{start} is not reachable: the node's lease is gone. It moves to where there is room,"
            " after up to a minute if most nodes are missing."
        )
    if status is None:
        return f"{start} has not been started yet."
    words = f"{start} is {status.state}"
    if status.restarts:
        words += f", restarted {counted(status.restarts, 'time')}"
    return f"{words}: {status.reason}" if status.reason else f"{words}."
