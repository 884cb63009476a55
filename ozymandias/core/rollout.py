"""The next step of a rolling change: one instance of a job at a time, healthy before the next.

Start-first where there is room: a new instance in a free slot, and when it is healthy an old one
goes; never more than one above what is wanted. Where there is no room, stop-first: an old instance
stops and the new one waits in its place, promised but not yet running. Old instances that carry no
traffic are replaced without waiting for anybody's health. Volumes that are kept stay with their
slot and node, and so does the instance: stop-first, in place, or not at all where the new version
may not be. A job that can't go on never holds up another, and its old instances keep running. In a
freeze window nothing is replaced, unless the change says why it must be, or a node is drained: what
is on it is replaced elsewhere.

The order of the questions in `next_step` is the policy. It only ever replaces old by new, so it
comes to an end; a new version that never gets healthy leaves all but one old instance in place.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ozymandias.core.buckets import (
    Buckets,
    FreeSlots,
    assignments_by_job,
    census,
    is_system,
    per_node,
    sort_job,
)
from ozymandias.core.budget import floor_of
from ozymandias.core.choice import surplus_first
from ozymandias.core.drain import WAITS, jobs_on_drained, keeps_volumes
from ozymandias.core.edits import EDITS_MAX, new_instance, step, stop
from ozymandias.core.freeze import holds_back
from ozymandias.core.moves import moving_jobs
from ozymandias.core.placement import Ask, Placement, place
from ozymandias.core.rooms import NOW_OR_SOON, Room, Rooms, rooms_of
from ozymandias.core.rules import NO_RULES, Rules, rules_of
from ozymandias.core.shed import jobs_leaving
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobHead, JobKey, JobRecord, OnPartition
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot


def plan_rollout(snapshot: Snapshot, now: float | None = None) -> Plan | None:
    """One step for every job that has instances to replace, or more of them than wanted.

    ``now`` is the wall clock, by which freeze windows go; None: as if there were none.
    """
    seen = census(snapshot)
    drained = jobs_on_drained(snapshot)
    # Those have more than wanted for a while, on purpose.
    moving = drained | jobs_leaving(snapshot) | set(moving_jobs(snapshot))
    keys = sorted(
        key
        for key, record in snapshot.jobs.items()
        if (
            (key in seen.outdated and not _waits(snapshot, record, now, drained))
            or (
                key not in seen.outdated
                and seen.live.get(key, 0) > record.head.wanted
                and key not in moving
            )
        )
        and not record.head.deleting
        and not is_system(record)
    )
    if not keys:
        return None
    rooms = rooms_of(snapshot)
    assignments = assignments_by_job(snapshot, keys)
    edits: list[Edit] = []
    names: list[str] = []
    for key in keys:
        buckets = sort_job(snapshot, key, assignments[key])
        rolling = rolling_of(snapshot, snapshot.jobs[key], buckets, edits)
        if steps := next_step(rolling, rooms):
            edits += steps
            names.append(f"{key} to version {rolling.head.version}")
        if len(edits) >= EDITS_MAX:
            break  # the others have their turn next
    if not edits:
        return None
    reason = "rollout of " + ", ".join(names)
    return Plan(reason=reason, edits=tuple(edits), heeds_settings=now is not None)


def _waits(
    snapshot: Snapshot, record: JobRecord, now: float | None, drained: frozenset[JobKey]
) -> bool:
    """A drain is an operator's own word, and old instances leave a drained node by a rollout.

    Pressure and moves are nobody's word, and need none: what is shed is stopped as it is.
    """
    return record.key not in drained and holds_back(snapshot.settings, record.head, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """A job between two versions, or between two generations of one."""

    key: JobKey
    head: JobHead
    demand: Demand | None  # of one new instance; None: the wanted version can't be read
    buckets: Buckets
    keeps: bool = False  # it has volumes that outlive their instance, each on its node
    is_exclusive: bool = False  # it must never run twice: stop-first
    floor: int = 0  # healthy ones that must stay
    rules: Rules = NO_RULES

    @property
    def ask(self) -> Ask:
        assert self.demand is not None
        return Ask(
            job=self.key,
            version=self.head.version,
            demand=self.demand,
            wanted=self.head.wanted,
            kin="new",
            rules=self.rules,
            there=per_node(self.buckets.live),
            lasting=per_node(self.buckets.current),
        )

    def is_full(self, node: NodeName) -> bool:
        """Whether a node has as many new instances as one may have; the old ones there leave."""
        return bool(self.rules.why_not(node, per_node(self.buckets.current)))

    def why_not_in_place(self, old: Assigned) -> str:
        """What the rules have against a new instance where an old one leaves; empty if nothing.

        They count the new ones, for the old ones are to leave; but a burst's node is one for as
        long as there are enough of whatever version.
        """
        current, burst = per_node(self.buckets.current), self.rules.asked.burst
        is_away = burst is not None and old.node in burst.nodes
        lasting = per_node(self.buckets.live) if is_away else current
        return self.rules.why_not(old.node, current, lasting)

    def in_place_of(self, old: Assigned) -> Ask:
        """Where an old one leaves, the others there that are to leave count as little as it."""
        there, current = per_node(self.buckets.live), per_node(self.buckets.current)
        there[old.node] = current[old.node]
        return replace(self.ask, there=there)

    @property
    def spare(self) -> int:
        """How many healthy instances may be stopped before a new one is healthy."""
        return len(self.buckets.ready) + len(self.buckets.serving) - self.floor


def rolling_of(
    snapshot: Snapshot, record: JobRecord, buckets: Buckets, decided: Iterable[Edit] = ()
) -> Rolling:
    return Rolling(
        key=record.key,
        head=record.head,
        demand=Demand.of(record.current.job) if record.current else None,
        buckets=buckets,
        keeps=keeps_volumes(record.current.job) if record.current else False,
        is_exclusive=bool(record.current and record.current.job.on_partition is OnPartition.STOP),
        floor=floor_of(record.current.job, record.head.wanted) if record.current else 0,
        rules=rules_of(snapshot, record.current.job, decided) if record.current else NO_RULES,
    )


def next_step(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    """The edits of this step, none while there is something to wait for. Changes the rooms.

    The room of who leaves is given back also where the new version may not be: others may.
    """
    eligible = rolling.rules.eligible(rooms)
    steps = _next_step(rolling, eligible)
    for gone in steps:
        room = None if gone.node in eligible else rooms.get(gone.node)
        if room and gone.before is not None:
            room.give(gone.demand, SlotState.WAITING)
    return steps


def _next_step(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    buckets = rolling.buckets
    if rolling.demand is None:
        return []
    if buckets.stale:
        return list(_swap_stale(rolling, rooms))
    surplus = len(buckets.live) - rolling.head.wanted
    if surplus > 0:
        return list(_stop_surplus(rolling, rooms, min(surplus, EDITS_MAX)))
    if rolling.keeps:
        return _replace_in_place(rolling, rooms)
    if rolling.is_exclusive:
        return _replace_stopped(rolling, rooms)
    if buckets.idle:
        return _replace_idle(rolling, rooms)
    if buckets.unready or buckets.waiting:
        return []  # healthy before the next
    if buckets.serving:
        return _start_next(rolling, rooms) or _make_way(rolling, rooms)
    return []


def _swap_stale(rolling: Rolling, rooms: Rooms) -> Iterator[Edit]:
    """What waits with an old version never ran: the new one waits in its place, if it may be there.

    Where it may not it is missing, and placed as whatever is missing.
    """
    assert rolling.demand is not None
    there = per_node(rolling.buckets.current)
    surplus = len(rolling.buckets.live) - rolling.head.wanted
    for old in rolling.buckets.stale:
        room = rooms.get(old.node)
        if room:
            room.give(old.demand, old.state)
        yield step(old, None, f"version {old.version} is replaced before it ran")
        if surplus > 0:
            surplus -= 1
        elif (
            room
            and not rolling.rules.why_not(old.node, there)
            and room.fits(rolling.demand, SlotState.WAITING)
        ):
            there[old.node] += 1
            room.take(rolling.demand, SlotState.WAITING)
            reason = f"takes the place of version {old.version}, which was waiting on {old.node}"
            yield _new(rolling, room, old.slot, SlotState.WAITING, reason)


def _stop_surplus(rolling: Rolling, rooms: Rooms, surplus: int) -> Iterator[Edit]:
    """More than wanted: an old one goes, if enough others carry the traffic without it."""
    buckets, wanted = rolling.buckets, rolling.head.wanted
    if not (buckets.serving or buckets.idle):
        for extra, why in surplus_first(buckets, surplus, burst=rolling.rules.asked.burst):
            yield _stopping(extra, rooms, f"more instances than wanted ({wanted}): {why}")
        return
    without_traffic = buckets.idle[:surplus]
    for old in without_traffic:
        yield _stopping(old, rooms, f"replaced by version {rolling.head.version}, not healthy")
    spare = len(buckets.ready) + len(buckets.serving) - wanted
    healthy = min(surplus - len(without_traffic), max(0, spare))
    for old in _oldest_first(buckets, rooms)[:healthy]:
        yield _stopping(old, rooms, f"replaced by {_current_name(rolling)}, which is healthy")


def _replace_idle(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    """An old instance without traffic has nothing to lose: the new one starts as it stops."""
    old = rolling.buckets.idle[0]
    stopping = _stopping(old, rooms, f"replaced by {_current_name(rolling)}; it is not healthy")
    placed = _place_one(rolling, rooms)
    if placed:
        same_place = placed.state is SlotState.WAITING and placed.node == old.node
        slot = old.slot if same_place else next(FreeSlots(rolling.buckets.used_slots()))
        return [stopping, _placed(rolling, placed, slot)]
    if room := rooms.get(old.node):
        room.take(old.demand, SlotState.WAITING)  # it is not stopped after all
    is_halfway = rolling.buckets.unready or rolling.buckets.waiting
    return [] if is_halfway else _make_way(rolling, rooms)


def _replace_in_place(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    """Kept volumes stay with their slot and node, so the new instance must come there too."""
    assert rolling.demand is not None
    buckets = rolling.buckets
    if not buckets.idle and (buckets.unready or buckets.waiting):
        return []  # healthy before the next
    for old in (*buckets.idle, *_oldest_first(buckets, rooms)):
        room = rooms.get(old.node)
        if room is None or (old in buckets.serving and rolling.spare < 1):
            continue
        if rolling.why_not_in_place(old):
            continue  # its data keeps it here, and the new version's rules keep that from here
        reason = f"replaced by {_current_name(rolling)} where its kept volumes are"
        stopping = _stopping(old, rooms, reason)
        if room.fits(rolling.demand, SlotState.WAITING):
            room.take(rolling.demand, SlotState.WAITING)
            waits = f"waits on {room.node}, where its kept volumes are, for {old.instance} to stop"
            return [stopping, _new(rolling, room, old.slot, SlotState.WAITING, waits)]
        room.take(old.demand, SlotState.WAITING)  # it is not stopped after all
    return []


def tied(rolling: Rolling) -> Iterator[tuple[Assigned, str]]:
    """Old instances that stay as they are, kept by their data where no new one may be; and why."""
    for old in (*rolling.buckets.idle, *rolling.buckets.serving) if rolling.keeps else ():
        if why_not := rolling.why_not_in_place(old):
            where = f"its kept volumes are on {old.node}, which is {why_not}"
            yield old, f"version {old.version} stays: {where}"


def _replace_stopped(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    """It must never run twice: the old one stops, and the new one waits for that in its slot."""
    buckets = rolling.buckets
    if buckets.waiting or (buckets.unready and not buckets.idle):
        return []  # healthy before the next
    for old in (*buckets.idle, *_oldest_first(buckets, rooms)):
        if old in buckets.serving and rolling.spare < 1:
            continue
        stopping = _stopping(old, rooms, f"replaced by {_current_name(rolling)}, which waits")
        ask = rolling.in_place_of(old)
        for placed in place(rooms, ask, 1, per_node(buckets.current), WAITS):
            return [stopping, _placed(rolling, placed, old.slot)]
        if room := rooms.get(old.node):
            room.take(old.demand, SlotState.WAITING)  # it is not stopped after all
    return []


def _start_next(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    placed = _place_one(rolling, rooms)
    if placed is None:
        return []
    return [_placed(rolling, placed, next(FreeSlots(rolling.buckets.used_slots())))]


def _make_way(rolling: Rolling, rooms: Rooms) -> list[Edit]:
    """Stop-first: where the fewest old instances must stop so that a new one can wait there."""
    assert rolling.demand is not None
    best: tuple[tuple[int, int, int, str], Room, list[Assigned]] | None = None
    for name, count in sorted(per_node([*rolling.buckets.serving, *rolling.buckets.idle]).items()):
        room = rooms.get(name)
        leaving = _leaving(rolling, room) if room and not rolling.is_full(name) else []
        if room and leaving:
            missed = _missed(rolling, leaving)
            if missed > max(0, rolling.spare):
                continue
            rank = (missed, len(leaving), -count, name)
            if best is None or rank < best[0]:
                best = rank, room, leaving
    if best is None:
        return []
    _, room, leaving = best
    reason = f"no room for both: replaced by {_current_name(rolling)}"
    edits = [_stopping(old, rooms, reason) for old in leaving]
    room.take(rolling.demand, SlotState.WAITING)
    waits = f"waits on {room.node} for {_names(leaving)} to stop: there is no room for both"
    return [*edits, _new(rolling, room, leaving[0].slot, SlotState.WAITING, waits)]


def _leaving(rolling: Rolling, room: Room) -> list[Assigned]:
    """The old instances on a node that must go before a new one fits; none if it never does.

    In their order as many as it takes; or one alone, which may be larger than those before it.
    """
    buckets = rolling.buckets
    old = [a for a in (*buckets.idle, *_oldest_first(buckets, {})) if a.node == room.node]
    alone = filter(None, (_makes_room(rolling, room, [a]) for a in old))
    ways = (next(alone, []), _makes_room(rolling, room, old))
    found = [leaving for leaving in ways if leaving]
    return min(found, key=lambda leaving: (_missed(rolling, leaving), len(leaving)), default=[])


def _makes_room(rolling: Rolling, room: Room, old: list[Assigned]) -> list[Assigned]:
    """As many of them, from the first on, as it takes; none if all are not enough."""
    assert rolling.demand is not None
    leaving: list[Assigned] = []
    fits = False
    for assigned in old:
        room.give(assigned.demand, SlotState.WAITING)
        leaving.append(assigned)
        if fits := room.fits(rolling.demand, SlotState.WAITING):
            break
    for assigned in leaving:
        room.take(assigned.demand, SlotState.WAITING)
    return leaving if fits else []


def _missed(rolling: Rolling, leaving: Iterable[Assigned]) -> int:
    """How many of them carry traffic."""
    return sum(a in rolling.buckets.serving for a in leaving)


def _oldest_first(buckets: Buckets, rooms: Rooms) -> list[Assigned]:
    """Old and healthy ones in the order in which they go.

    From nodes that take no work (they may be drained), then from the most crowded one.
    """
    crowd = per_node(buckets.live)
    return sorted(
        buckets.serving,
        key=lambda a: (a.node in rooms, -crowd[a.node], a.version, -a.slot, a.node),
    )


def _place_one(rolling: Rolling, rooms: Rooms) -> Placement | None:
    apart_from = per_node(rolling.buckets.current)
    return next(iter(place(rooms, rolling.ask, 1, apart_from, NOW_OR_SOON)), None)


def _placed(rolling: Rolling, placed: Placement, slot: int) -> Edit:
    return new_instance(rolling.key, rolling.head, slot, rolling.ask.demand, placed)


def _new(rolling: Rolling, room: Room, slot: int, state: SlotState, reason: str) -> Edit:
    placed = Placement(node=room.node, state=state, reason=reason, score=())
    return _placed(rolling, placed, slot)


def _stopping(old: Assigned, rooms: Rooms, reason: str) -> Edit:
    """It goes on holding its room, but the room is no longer promised to it."""
    if room := rooms.get(old.node):
        room.give(old.demand, SlotState.WAITING)
    return stop(old, reason)


def _current_name(rolling: Rolling) -> str:
    restarted = f" (restart {rolling.head.restart})" if rolling.head.restart else ""
    return f"version {rolling.head.version}{restarted}"


def _names(instances: list[Assigned]) -> str:
    return ", ".join(str(a.instance) for a in instances)
