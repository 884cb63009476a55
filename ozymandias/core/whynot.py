"""Why a job is not on a node, and what would let it: `ozy why-not JOB NODE`.

The same functions that place instances are asked about one more of them, now: what speaks against
the node, or by which term others beat it. Every suggestion has been carried out on a copy of the
snapshot and found to do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ozymandias.core.advice import Patience, carried_out
from ozymandias.core.attempt import why_closed
from ozymandias.core.buckets import is_system, per_node, sort_job
from ozymandias.core.placement import Ask
from ozymandias.core.retrace import Verdict, judge
from ozymandias.core.rooms import rooms_of
from ozymandias.core.rules import label_demands, rules_of
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.suggest import FINE_STEP, label_suggestion, start_words
from ozymandias.core.system import why_not as why_not_system
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Burst, Job, JobKey, JobRecord
from ozymandias.model.labels import labels_for
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import exact_size, format_size
from ozymandias.problems import Suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    job: JobKey
    node: NodeName
    lines: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    suggestions: tuple[Suggestion, ...]


def verdicts_now(snapshot: Snapshot, record: JobRecord) -> tuple[Verdict, ...]:
    """What every node is to one more instance of the job, at this moment."""
    assert record.current is not None
    job, buckets = record.current.job, sort_job(snapshot, record.key)
    ask = Ask.of(job, record.head, rules_of(snapshot, job), per_node(buckets.live))
    closed = {name: why_closed(node) for name, node in sorted(snapshot.nodes.items())}
    return judge(snapshot, closed, rooms_of(snapshot), ask, per_node(buckets.current))


def why_not(snapshot: Snapshot, key: JobKey, node: NodeName) -> WhyNot:
    """For a job and a node that are there."""
    return at_once(asking_why_not(snapshot, key, node))


def asking_why_not(snapshot: Snapshot, key: JobKey, node: NodeName) -> Stepwise[WhyNot]:
    """The same, step by step of what is played."""
    record = snapshot.jobs[key]
    here = [a for a in snapshot.instances_on(node) if a.job == key]
    lines = [
        f"{a.instance} is on {node}" + (", stopping." if a.state is SlotState.STOPPING else ".")
        for a in here
    ]
    if record.current is None:
        lines.append(f"The record of version {record.head.version} of {key} can't be read.")
        return WhyNot(job=key, node=node, lines=tuple(lines), verdicts=(), suggestions=())
    if is_system(record):
        lines += _system_lines(snapshot, record.current.job, node, bool(here))
        return WhyNot(job=key, node=node, lines=tuple(lines), verdicts=(), suggestions=())
    verdicts = verdicts_now(snapshot, record)
    verdict = next(v for v in verdicts if v.node == node)
    lines.append(_line(key, verdict, verdicts, record.current.job.placement.burst))
    suggestions: tuple[Suggestion, ...] = ()
    patience = Patience(snapshot)
    for suggestion in _candidates(snapshot, record, node) if verdict.against else ():
        if (yield from _is_enough(snapshot, record, node, suggestion, patience)):
            suggestions += (suggestion,)
    return WhyNot(
        job=key, node=node, lines=tuple(lines), verdicts=verdicts, suggestions=suggestions
    )


def _system_lines(snapshot: Snapshot, job: Job, node: NodeName, is_here: bool) -> Iterator[str]:
    found = snapshot.nodes[node]
    if reason := why_not_system(snapshot, node, job):
        yield f"{job.key} is not for {node}: it {reason}."
    elif not found.is_alive:
        yield f"{node} is not alive; {job.key} comes there when it is back."
    elif not is_here:
        yield f"{job.key} is for {node}, and is placed there as soon as there is room."


def _line(key: JobKey, verdict: Verdict, verdicts: tuple[Verdict, ...], burst: Burst | None) -> str:
    node = verdict.node
    if verdict.against:
        return f"Another instance of {key} can't go to {node}: it is {verdict.against}."
    if verdict.rank == 1:
        return f"The next instance of {key} would go to {node}."
    best = verdicts[0]
    count = sum(1 for v in verdicts if v.rank)
    words = _difference(best, verdict)
    if burst and node in burst.nodes and best.node not in burst.nodes:
        words = f"{node} is for the burst, and fewer than {burst.after} are at home"
    return (
        f"Another instance of {key} could go to {node}, but {best.node} comes before it:"
        f" {words}. {node} is number {verdict.rank} of {count}."
    )


def _difference(best: Verdict, other: Verdict) -> str:
    """The first term that differs: it decides."""
    theirs = dict(best.terms)
    for name, value in other.terms:
        if theirs.get(name, 0.0) != value:
            return f"{name} is {theirs.get(name, 0.0):g} there and {value:g} here"
    return "nothing that counts is different, and a hash of job and node decides"


# What would let it --------------------------------------------------------------------------------


def _is_enough(
    snapshot: Snapshot,
    record: JobRecord,
    node: NodeName,
    suggestion: Suggestion,
    patience: Patience,
) -> Stepwise[bool]:
    """Carried out alone, and what follows played to its end: there is one more, or may be."""
    yield
    key, world = record.key, carried_out(snapshot, record.key, suggestion.change)
    if world is None or world.jobs[key].current is None:
        return False
    yield
    world = yield from patience.playing(world)
    if world is None:
        return False
    if _live_on(world, key, node) > _live_on(snapshot, key, node):
        return True
    verdicts = verdicts_now(world, world.jobs[key])
    return any(v.node == node and not v.against for v in verdicts)


def _live_on(snapshot: Snapshot, key: JobKey, node: NodeName) -> int:
    here = snapshot.instances_on(node)
    return sum(1 for a in here if a.job == key and a.state is not SlotState.STOPPING)


def _candidates(snapshot: Snapshot, record: JobRecord, node: NodeName) -> Iterator[Suggestion]:
    assert record.current is not None
    found, job = snapshot.nodes[node], record.current.job
    closed = why_closed(found)
    if closed == "cordoned":
        yield Suggestion(text=f"uncordon {node}", change={"uncordon": node})
    if closed == "being drained":
        yield Suggestion(text=f"undrain {node}", change={"undrain": node})
    if closed == "not alive":
        yield Suggestion(text=start_words([node]), change={"start": [node]})
    for asked in label_demands(snapshot.settings, job):
        if labels := labels_for(asked, found.ledger.all_labels):
            yield label_suggestion(node, labels)
    if job.placement.max_per_node:
        more = _live_on(snapshot, record.key, node) + 1
        yield Suggestion(
            text=f"allow {more} on a node instead of {job.placement.max_per_node}",
            change={"placement.max_per_node": more},
        )
    yield from _smaller(snapshot, record, node)


def _smaller(snapshot: Snapshot, record: JobRecord, node: NodeName) -> Iterator[Suggestion]:
    """The largest container with as much memory as each would have that is there, and one more.

    A change replaces those that are there as well: what they have is shared out anew.
    """
    assert record.current is not None
    job = record.current.job
    largest = max(job.containers, key=lambda c: c.memory_bytes, default=None)
    room = rooms_of(snapshot).get(node)
    if largest is None or room is None:
        return
    demand = Demand.of(job)
    others = demand.memory_bytes - largest.memory_bytes
    there = [a for a in snapshot.instances_on(node) if a.job == record.key]
    free = room.memory_left() + sum(a.demand.memory_bytes for a in there)
    size = free // (len(there) + 1) - others
    size -= size % FINE_STEP
    if 0 < size < largest.memory_bytes:
        yield Suggestion(
            text=f"give {largest.name} {exact_size(size)} of memory"
            f" instead of {format_size(largest.memory_bytes)}",
            change={f"containers.{largest.name}.memory": exact_size(size)},
        )
