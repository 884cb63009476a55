"""What jobs would rather have and do without: since when, why, and whether it can be healed now.

Preferences never block, so some of them are given up. `lacks` finds each of them in a snapshot by
the very rules that placed the instances. Since when is remembered in the job's head: a note per
node and wish, only where something is given up, written once when that is so and once when it is
over. Whoever looks first writes it; nobody writes while nothing changes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ozymandias.core.buckets import Buckets, assignments_by_job, sort_job
from ozymandias.core.drain import keeps_volumes
from ozymandias.core.moves import is_moving
from ozymandias.core.rebalance import Search, particular_jobs
from ozymandias.core.rules import rules_of
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.wishes import GivenUp, given_up
from ozymandias.model.instance import Assigned, Slots
from ozymandias.model.job import Drift, JobKey, JobRecord, OnPartition
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot

NOTES_MAX = 32  # per job: a head stays small


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Something that a job's instances on one node do without; they are alike."""

    job: JobKey
    node: NodeName
    slots: Slots
    given_up: GivenUp

    @property
    def key(self) -> tuple[str, str]:
        """What its note is found by."""
        return self.node, self.given_up.wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A lack with all that is known of it."""

    lack: Lack
    since: float  # wall clock; 0: it was noticed just now
    why: str
    heal_to: str = ""  # where it would move; "": it can't be healed now


# What is given up ---------------------------------------------------------------------------------


def lacks(snapshot: Snapshot) -> Iterator[Lack]:
    """Everything that is given up, job by job."""
    for found in _lacks_by_job(snapshot):
        yield from found


def _lacks_by_job(snapshot: Snapshot) -> Iterator[list[Lack]]:
    keys = particular_jobs(snapshot)
    assignments = assignments_by_job(snapshot, keys) if keys else {}
    for key in keys:
        buckets = sort_job(snapshot, key, assignments[key])
        yield list(_lacks_of(snapshot, snapshot.jobs[key], buckets))


def drifting(snapshot: Snapshot) -> int:
    """How many instances do without something that they prefer."""
    return len({(lack.job, lack.node, slot) for lack in lacks(snapshot) for slot in lack.slots})


def _lacks_of(snapshot: Snapshot, record: JobRecord, buckets: Buckets) -> Iterator[Lack]:
    """By node and wish, of the instances that are as the job's head wants them."""
    assert record.current is not None
    by_node: dict[NodeName, list[Assigned]] = {}
    for assigned in buckets.current:
        by_node.setdefault(assigned.node, []).append(assigned)
    rules = rules_of(snapshot, record.current.job) if by_node else None
    for node, here in sorted(by_node.items()):
        for found in given_up(snapshot, here[0], rules):
            slots = Slots.of(a.slot for a in here)
            yield Lack(job=record.key, node=node, slots=slots, given_up=found)


# Since when ---------------------------------------------------------------------------------------


def _is_noted(record: JobRecord) -> bool:
    return bool(record.head.drift)


def plan_drift(snapshot: Snapshot, now: float) -> Plan | None:
    """Note what is given up since now, and forget what no longer is; one job at a time."""
    return at_once(planning_drift(snapshot, now))


def planning_drift(snapshot: Snapshot, now: float) -> Stepwise[Plan | None]:
    """The same, job by job that is looked at."""
    keys = particular_jobs(snapshot)
    noted = snapshot.jobs_where(_is_noted)
    assignments = assignments_by_job(snapshot, keys) if keys else {}
    for key in sorted({*keys, *noted}):
        record = snapshot.jobs[key]
        if record.current is None or record.head.deleting or is_moving(record.head):
            continue
        found: set[tuple[str, str]] = set()
        if key in assignments:
            buckets = sort_job(snapshot, key, assignments[key])
            if buckets.outdated or buckets.waiting or buckets.stopping:
                continue  # in the middle of something: what it comes to is noted
            found = {lack.key for lack in _lacks_of(snapshot, record, buckets)}
        if (notes := _notes(record, found, now)) != record.head.drift:
            return _noted(record, notes)
        yield
    return None


def _notes(record: JobRecord, found: set[tuple[str, str]], now: float) -> tuple[Drift, ...]:
    kept = [note for note in record.head.drift if (note.node, note.what) in found]
    known = {(note.node, note.what) for note in kept}
    new = [Drift(node=node, what=what, since=now) for node, what in sorted(found - known)]
    return tuple((kept + new)[:NOTES_MAX])


def _noted(record: JobRecord, notes: tuple[Drift, ...]) -> Plan:
    before = {(note.node, note.what) for note in record.head.drift}
    new = [f"{n.what} on {n.node}" for n in notes if (n.node, n.what) not in before]
    reason = f"{record.key} does without {', '.join(new)}" if new else f"{record.key} has more now"
    head = replace(record.head, drift=notes)
    return Plan(reason=reason, job=JobChange(key=record.key, head=head))


# Shown --------------------------------------------------------------------------------------------


def drift_rows(snapshot: Snapshot, now: float) -> tuple[Row, ...]:
    """Every lack, since when, why, and the move that would heal it now."""
    return at_once(finding_rows(snapshot, now))


def finding_rows(snapshot: Snapshot, now: float) -> Stepwise[tuple[Row, ...]]:
    """The same, job by job and lack by lack."""
    found: list[Lack] = []
    for of_job in _lacks_by_job(snapshot):
        found += of_job
        yield
    if not found:
        return ()
    search = Search(snapshot, now=now, steady_seconds=0.0)
    notes = _since(snapshot, {lack.job for lack in found})
    rows: list[Row] = []
    for lack in found:
        rows.append(_row(snapshot, search, lack, notes.get((lack.job, *lack.key), 0.0)))
        yield
    return tuple(rows)


def _since(snapshot: Snapshot, keys: Iterable[JobKey]) -> Mapping[tuple[JobKey, str, str], float]:
    return {
        (key, note.node, note.what): note.since
        for key in keys
        for note in snapshot.jobs[key].head.drift
    }


def _row(snapshot: Snapshot, search: Search, lack: Lack, since: float) -> Row:
    record = snapshot.jobs[lack.job]
    move = record.head.move if is_moving(record.head) else None
    if move is not None and move.node == lack.node:
        return Row(lack=lack, since=since, why=f"moving to {move.to} now", heal_to=move.to)
    step = search.healing(lack.job, lack.node)
    if step is not None and (not lack.given_up.nodes or step.placed.node in lack.given_up.nodes):
        return Row(lack=lack, since=since, why=step.reason, heal_to=step.placed.node)
    bound = (
        _bound(record, lack)
        or search.why_not_movable(lack.job)
        or search.why_not_worth(lack.job, lack.node, lack.given_up.nodes)
    )
    return Row(lack=lack, since=since, why="; ".join(filter(None, (lack.given_up.reason, bound))))


def _bound(record: JobRecord, lack: Lack) -> str:
    """What else than room holds it where it is."""
    job = record.current.job if record.current else None
    if job is not None and keeps_volumes(job):
        return f"its kept volumes are on {lack.node}, and are not moved"
    if job is not None and job.on_partition is OnPartition.STOP:
        return "it must never run twice, so it would have to stop first: only a drain moves it"
    return ""
