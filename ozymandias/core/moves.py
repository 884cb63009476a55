"""The second step of a move: the new one is healthy, so the old one stops.

A move is begun by `core/rebalance.py`: one transaction starts an instance elsewhere and notes in
the job's head which one it is to replace. From then on everything is read from the snapshot, so
any peer goes on with it, whatever became of the one that began. The note says which of the two is
to go; without it the surplus rule of rollouts would stop the new one, which is not healthy yet.

    the new one is healthy        the old one stops if it is still better there than here; if not,
                                  the new one; either of them only if `min_available` bears it
    the new one takes too long    it stops, and the job is left in peace for a while
    one of the two is gone        (lost, drained, scaled away, replaced): the note goes, and who
                                  has to do with the rest finds it as if there had been no move
    a drain or a host under       the note goes as well: what is one too many is a replacement to
    pressure moves the job        them, and must not be counted as one by both

Never two of a job at a time: its head has room for one note, and every start rewrites the head.
"""

from collections.abc import Iterator

from ozymandias.core.buckets import Buckets, assignments_by_job, is_system, sort_job
from ozymandias.core.budget import budget_of
from ozymandias.core.drain import jobs_on_drained
from ozymandias.core.edits import stop
from ozymandias.core.layout import Cost, Layout
from ozymandias.core.shed import jobs_leaving
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobHead, JobKey, JobRecord, Move
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot

PATIENCE_SECONDS = 120.0  # for the new one to be healthy
PEACE_SECONDS = 600.0  # after a move that was given up


def is_moving(head: JobHead) -> bool:
    return head.move is not None and not head.move.given_up


def is_at_peace(head: JobHead, now: float) -> bool:
    """Whether a move was given up so lately that it would fail again.

    Also if that is still to come by our clock: peers whose clocks differ must not take turns in
    beginning and giving up.
    """
    return head.move is not None and 0 < head.move.given_up > now - PEACE_SECONDS


def moving_jobs(snapshot: Snapshot) -> tuple[JobKey, ...]:
    return tuple(sorted(snapshot.jobs_where(_moves)))


def _moves(record: JobRecord) -> bool:
    return is_moving(record.head)


def leaving(snapshot: Snapshot) -> Iterator[Assigned]:
    """The instances that moves under way will stop."""
    for key in moving_jobs(snapshot):
        move = snapshot.jobs[key].head.move
        assignment = snapshot.assignments.get((NodeName(move.node), key)) if move else None
        for assigned in assignment.instances if assignment else ():
            if move and assigned.slot == move.slot and assigned.state is not SlotState.STOPPING:
                yield assigned


def plan_moves(snapshot: Snapshot, now: float) -> Plan | None:
    """The next step of a move under way; ``now`` is the wall clock."""
    keys = moving_jobs(snapshot)
    if not keys:
        return None
    assignments = assignments_by_job(snapshot, keys)
    elsewhere = jobs_on_drained(snapshot) | jobs_leaving(snapshot)
    for key in keys:
        record = snapshot.jobs[key]
        if key in elsewhere:
            return _end(record, "its node, or another of the job's, is being emptied")
        buckets = sort_job(snapshot, key, assignments[key])
        if record.current and (plan := _next_step(snapshot, record, buckets, now)):
            return plan
    return None


def next_patience(snapshot: Snapshot, now: float) -> float | None:
    """When the next move under way runs out of time; wall clock."""
    moves = (record.head.move for record in snapshot.jobs.values() if is_moving(record.head))
    times = [move.since + PATIENCE_SECONDS for move in moves if move]
    return min((time for time in times if time > now), default=None)


def _next_step(snapshot: Snapshot, record: JobRecord, buckets: Buckets, now: float) -> Plan | None:
    head, move = record.head, record.head.move
    assert move is not None and record.current is not None
    old, new = _find(buckets, move.node, move.slot), _find(buckets, move.to, move.to_slot)
    is_surplus = len(buckets.live) > head.wanted
    is_plain = not (head.deleting or is_system(record) or buckets.outdated)
    if old is None or new is None or not is_surplus or not is_plain:
        return _end(record, _why_over(move, old, new))
    is_late = now >= move.since + PATIENCE_SECONDS
    if new not in buckets.ready:
        if not is_late:
            return None
        why = f"it was not healthy within {PATIENCE_SECONDS:g} s, and stays on {move.node}"
        return _end(record, why, stops=new, given_up=now)
    is_worse = _gain(snapshot, old, new) < Cost()
    stops = new if is_worse else old
    if stops in buckets.ready and budget_of(record.current.job, head.wanted, buckets).spare < 1:
        # Another instance fails meanwhile. It is what is too many, if that goes on.
        return _end(record, "too few others are healthy", given_up=now) if is_late else None
    if is_worse:
        why = f"{move.node} is the better place by now"
        return _end(record, why, stops=new, given_up=now)
    return _end(record, f"it is healthy on {move.to}: {move.reason}", stops=old)


def _find(buckets: Buckets, node: str, slot: int) -> Assigned | None:
    return next((a for a in buckets.live if (a.node, a.slot) == (node, slot)), None)


def _why_over(move: Move, old: Assigned | None, new: Assigned | None) -> str:
    if old is None:
        return f"it has left {move.node}"
    return "what was to replace it is gone" if new is None else "the job was changed meanwhile"


def _gain(snapshot: Snapshot, old: Assigned, new: Assigned) -> Cost:
    """What the move is worth now, with all others under way taken for done."""
    others = [a for a in leaving(snapshot) if a.job != old.job]
    return Layout(snapshot, [*others, new]).gain(old.job, old.node, new.node)


def _end(
    record: JobRecord, why: str, *, stops: Assigned | None = None, given_up: float = 0.0
) -> Plan:
    move = record.head.move
    assert move is not None
    note = replace(move, given_up=given_up) if given_up else None
    name = f"{record.key}-{move.slot}"
    words = "is given up" if given_up else "is over"
    return Plan(
        reason=f"the move of {name} from {move.node} to {move.to} {words}: {why}",
        edits=(stop(stops, _stop_words(move, stops, why)),) if stops else (),
        job=JobChange(key=record.key, head=replace(record.head, move=note)),
    )


def _stop_words(move: Move, stops: Assigned, why: str) -> str:
    if stops.slot == move.slot:
        return f"moved from {move.node} to {move.to}: {move.reason}"
    return f"the move from {move.node} to {move.to} is given up: {why}"
