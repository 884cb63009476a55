"""What a change will lead to, step by step, if all goes well: the second half of `ozy plan`.

Submitting a changed job only writes its new version; the replacing is done afterwards, one instance
at a time, by whichever peer comes first, and in between everything else that the cluster has to do:
a lost node's work, a drain, those that wait for the room that an old instance leaves, and what has
to leave for the job itself. A new job is placed at once, but whom it displaces looks for another
place. So it is played as the peers will do it (`core/outlook.py`), to the end of a freeze and
beyond. Moves for a better layout, which are made at leisure, are left out.

Where there is no end to it, or none to the freeze, the rest of the job's own steps is foreseen as
if it were alone, with the very steps of `core.rollout`, in rooms in which every new instance gets
healthy and every stopping one is gone at the next step. The answer says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ozymandias.core.buckets import Buckets, FreeSlots, is_system, per_node, sort_job
from ozymandias.core.edits import new_instance, step
from ozymandias.core.outlook import PLANS_MAX, Change, Fate, Future, fates
from ozymandias.core.placement import place
from ozymandias.core.rollout import Rolling, next_step, rolling_of, tied
from ozymandias.core.rooms import Rooms, rooms_of
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.system import rooms_for_system, tend, tending_of, wanted_of
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.snapshot import Snapshot

ROUNDS_MAX = 3  # of a system job: what is new, what it replaces, and what is too many then
STEPS_MAX = 200  # of a long rollout only so many are played alone; the rest is shown as one step

Staying = tuple[Assigned, str]  # an old instance that stays as it is, and why

LONG = "it would take too long to foresee"
FROZEN = "the freeze has no end in sight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """A plan's steps and those of its job that follow, and what others do between them."""

    edits: Sequence[Edit]
    others: tuple[Change, ...] = ()
    left_out: str = ""  # why what others do is left out, from some moment on
    missing: int = 0  # instances that would have no place in the end
    outdated: int = 0  # instances that would not be replaced
    hurt: tuple[Fate, ...] = ()  # other jobs that would be left with fewer than without the plan
    staying: tuple[Staying, ...] = ()  # those that no new one comes for


def foresee(
    snapshot: Snapshot, plan: Plan, wall: float = 0.0, *, plans_max: int = PLANS_MAX
) -> Foreseen:
    return at_once(foreseeing(snapshot, plan, wall, plans_max=plans_max))


def foreseeing(
    snapshot: Snapshot, plan: Plan, wall: float = 0.0, *, plans_max: int = PLANS_MAX
) -> Stepwise[Foreseen]:
    """What a plan does, and what follows from its change of a job, or from whom it displaces.

    ``wall`` is the wall clock. Beyond ``plans_max`` plans of the peers the job is foreseen alone.
    """
    change = plan.job
    if change is None or change.head is None or change.head.deleting:
        return Foreseen(edits=plan.edits)
    if change.key not in snapshot.jobs and not plan.displaced:
        return Foreseen(edits=plan.edits)
    future = Future(snapshot, wall)
    future.carry_out(plan)
    playing = _Playing(future.copy(), change.key, list(plan.edits))
    yield from playing.playing(plans_max)
    if playing.outdated and (thawed := playing.future.thawed()):
        playing.future = thawed
        yield from playing.playing(plans_max)
    now, left_out = playing.future.now, ""
    if not playing.future.is_at_rest:
        left_out = LONG
    elif playing.outdated and playing.future.frozen:
        left_out = FROZEN
    else:
        record, live = now.jobs[change.key], len(sort_job(now, change.key).live)
        return Foreseen(
            edits=playing.edits,
            others=tuple(playing.others),
            missing=max(0, wanted_of(now, record) - live),
            outdated=playing.outdated,
            hurt=(yield from _hurt(snapshot, playing.future, change.key, plans_max)),
            staying=_staying(now, change.key),
        )
    edits = (*playing.edits, *_alone(now, change.key))
    others, staying = tuple(playing.others), _staying(now, change.key)
    return Foreseen(edits=edits, others=others, left_out=left_out, staying=staying)


def _hurt(
    snapshot: Snapshot, end: Future, key: JobKey, plans_max: int
) -> Stepwise[tuple[Fate, ...]]:
    """The other jobs that have fewer in the end than they would have without the plan."""
    if not _worse(snapshot, end.now, key):
        return ()
    without = _Playing(Future(snapshot, end.wall), key, [])
    yield from without.playing(plans_max)
    return _worse(without.future.now, end.now, key)


def _worse(before: Snapshot, after: Snapshot, key: JobKey) -> tuple[Fate, ...]:
    return tuple(fate for fate in fates(before, after) if fate.job != key and fate.is_worse)


def _staying(now: Snapshot, key: JobKey) -> tuple[Staying, ...]:
    """Those whose data keeps them where the new version may not be."""
    record = now.jobs[key]
    if is_system(record):
        return ()
    rolling = rolling_of(now, record, sort_job(now, key))
    return () if rolling.demand is None else tuple(tied(rolling))


@dataclass(slots=True)
class _Playing:
    """What is seen of a future: the steps of one job, and what becomes of the others."""

    future: Future
    key: JobKey
    edits: list[Edit]
    others: list[Change] = field(default_factory=list)

    def playing(self, plans_max: int) -> Stepwise[None]:
        for _ in range(plans_max):
            plan = yield from self.future.advancing()
            if plan is None:
                break
            self.edits += (edit for edit in plan.edits if edit.job == self.key)
            yield
        self.others += (c for c in self.future.changes if c.instance.job != self.key)

    @property
    def outdated(self) -> int:
        """Those that are still to be replaced."""
        now = self.future.now
        return len(sort_job(now, self.key).outdated) - len(_staying(now, self.key))


# The job alone ------------------------------------------------------------------------------------


def _alone(after: Snapshot, key: JobKey) -> Sequence[Edit]:
    """What is still to come of it, whatever others wait for."""
    record = after.jobs[key]
    if is_system(record):
        return tuple(_tended(after, record))
    rolling = rolling_of(after, record, sort_job(after, key))
    if rolling.demand is None:
        return ()
    rooms = _settled(rooms_of(after))
    _settle_present(rolling.buckets)
    edits: list[Edit] = []
    for _ in range(STEPS_MAX):
        steps = _fill(rolling, rooms) or next_step(rolling, rooms)
        if not steps:
            return edits
        edits += steps
        _settle(rolling.buckets, rooms, steps)
    return edits + _finish(rolling, rooms)


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
