"""What a change will lead to, step by step, if all goes well: the second half of `ozy plan`.

Submitting a changed job only writes its new version; the replacing is done afterwards, one instance
at a time. This plays it through with the very steps of `core.rollout`, in a working copy in which
every new instance gets healthy and every stopping one is gone at the next step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ozymandias.core.apply import apply
from ozymandias.core.buckets import Buckets, FreeSlots, is_system, per_node, sort_job
from ozymandias.core.edits import new_instance, step
from ozymandias.core.placement import place
from ozymandias.core.rollout import Rolling, next_step, rolling_of, tied
from ozymandias.core.rooms import Rooms, rooms_of
from ozymandias.core.system import rooms_for_system, tend, tending_of
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobRecord
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.snapshot import Snapshot

ROUNDS_MAX = 3  # of a system job: what is new, what it replaces, and what is too many then
STEPS_MAX = 200  # of a long rollout only so many are played; the rest is shown as one step


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What a change leads to, and which old instances it leaves as they are, with the reason."""

    edits: Sequence[Edit]
    staying: tuple[tuple[Assigned, str], ...] = ()


def foresee(snapshot: Snapshot, plan: Plan) -> Foreseen:
    """The plan's own edits, and those that will follow from its change of a job."""
    if plan.job is None or plan.job.head is None or plan.job.head.deleting:
        return Foreseen(edits=plan.edits)
    after = apply(snapshot, plan)
    if is_system(after.jobs[plan.job.key]):
        return Foreseen(edits=(*plan.edits, *_tended(after, after.jobs[plan.job.key])))
    rolling = rolling_of(after, after.jobs[plan.job.key], sort_job(after, plan.job.key))
    if rolling.demand is None:
        return Foreseen(edits=plan.edits)
    rooms = _settled(rooms_of(after))
    _settle_present(rolling.buckets)
    edits = list(plan.edits)
    for _ in range(STEPS_MAX):
        steps = _fill(rolling, rooms) or next_step(rolling, rooms)
        if not steps:
            return Foreseen(edits=tuple(edits), staying=tuple(tied(rolling)))
        edits += steps
        _settle(rolling.buckets, rooms, steps)
    return Foreseen(edits=(*edits, *_finish(rolling, rooms)))


def _tended(after: Snapshot, record: JobRecord) -> Iterator[Edit]:
    """A system job: what comes and goes node by node, each new one in the place of the old."""
    rooms, buckets = _settled(rooms_for_system(after)), sort_job(after, record.key)
    _settle_present(buckets)
    for _ in range(ROUNDS_MAX):
        tending = tending_of(after, record, buckets, rooms)
        tending.is_foreseen = True
        steps = tend(tending)
        yield from steps
        _settle(buckets, rooms, steps)


def _settled(rooms: Rooms) -> Rooms:
    """Everything that stops is gone, everything that waits runs."""
    for room in rooms.values():
        room.memory_held, room.disk_held = room.memory_promised, room.disk_promised
        room.cpu_held = room.cpu_promised
        room.ports_held = set(room.ports_promised)
    return rooms


def _settle_present(buckets: Buckets) -> None:
    buckets.stopping.clear()
    buckets.ready += buckets.unready + buckets.waiting
    buckets.unready, buckets.waiting = [], []


def _fill(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    """What is missing is placed as soon as there is room, whatever the rollout waits for."""
    missing = rolling.head.wanted - len(rolling.buckets.live)
    if missing <= 0:
        return []
    return _place_new(rolling, rooms, missing)


def _place_new(rolling: Rolling, rooms: Rooms, count: int) -> list[Edit]:
    ask, slots = rolling.ask, FreeSlots(rolling.buckets.used_slots())
    placed = place(rooms, ask, count, per_node(rolling.buckets.current))
    return [new_instance(rolling.key, rolling.head, next(slots), ask.demand, p) for p in placed]


def _settle(buckets: Buckets, rooms: Rooms, steps: Sequence[Edit]) -> None:
    """New ones are healthy, waiting ones run, stopping ones are gone."""
    gone = {(e.node, e.slot, e.version, e.generation) for e in steps if e.before is not None}
    for name in ("ready", "serving", "idle", "stale"):
        kept = [
            a
            for a in getattr(buckets, name)
            if (a.node, a.slot, a.version, a.generation) not in gone
        ]
        setattr(buckets, name, kept)
    for edit in steps:
        room = rooms.get(edit.node)
        if edit.after is SlotState.STOPPING and room:
            room.give(edit.demand, SlotState.STOPPING)
        elif edit.before is None:
            buckets.ready.append(_running(edit))
            if edit.after is SlotState.WAITING and room:
                room.take(edit.demand, SlotState.STOPPING)  # it runs now: held, and promised before


def _running(edit: Edit) -> Assigned:
    return Assigned(
        node=edit.node,
        job=edit.job,
        slot=edit.slot,
        uid=edit.uid,
        version=edit.version,
        generation=edit.generation,
        state=SlotState.RUNNING,
        demand=edit.demand,
    )


def _finish(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    """The rest of a long rollout as if it were one step."""
    buckets = rolling.buckets
    edits: list[Edit] = []
    for old in buckets.outdated:
        if room := rooms.get(old.node):
            room.give(old.demand, SlotState.RUNNING)
        reason = f"replaced by version {rolling.head.version}, one at a time"
        edits.append(step(old, SlotState.STOPPING, reason))
    return edits + _place_new(rolling, rooms, rolling.head.wanted - len(buckets.current))
