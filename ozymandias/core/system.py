"""System jobs: one instance on every matching node, present and future.

The nodes say how many there are to be, never the job's head. A node that joins, or gets a label,
gets its instance before anything else is placed there; one that matches no more gives it up. A
cordoned node keeps and gets its own: DNS and the network are needed by what still runs there. On a
node that is drained they leave last. A lost node's instance is not moved: it belongs there. For
whatever reason they leave, as many healthy ones stay as `min_available` says.

A change goes node by node, healthy before the next, always in place: the new instance waits in the
slot of the old one until that is gone, so a node never has two of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ozymandias.core.buckets import (
    Buckets,
    FreeSlots,
    assignments_by_job,
    is_system,
    sort_job,
)
from ozymandias.core.budget import budget_of
from ozymandias.core.edits import new_instance, stop
from ozymandias.core.fitting import describe, needs, shortfall
from ozymandias.core.freeze import holds_back
from ozymandias.core.labels import unmet, unmet_words
from ozymandias.core.placement import Placement
from ozymandias.core.rooms import Room, Rooms
from ozymandias.core.rules import outside, pools_of
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, JobRecord, NetworkMode
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.plan import Edit, Pending, Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import format_size


@dataclass(slots=True, kw_only=True)
class Tending:
    """One system job being looked after; rooms are shared with the others."""

    snapshot: Snapshot
    head: JobHead
    job: Job
    demand: Demand  # of one new instance
    buckets: Buckets
    rooms: Rooms
    # The same as in the buckets, to be asked for one by one.
    current: frozenset[Assigned]
    ready: frozenset[Assigned]
    serving: frozenset[Assigned]
    spare: int  # healthy ones that may be stopped; fewer with each that is
    is_frozen: bool = False  # nothing is replaced now
    is_foreseen: bool = (
        False  # all goes well: each is healthy by the time the next one's turn comes
    )


def tending_of(
    snapshot: Snapshot,
    record: JobRecord,
    buckets: Buckets,
    rooms: Rooms,
    now: float | None = None,
) -> Tending:
    assert record.current is not None, "a job that can't be read is not known to be a system job"
    job = record.current.job
    # Nodes are counted only where that number is asked for.
    wanted = wanted_of(snapshot, record) if job.min_available_percent else record.head.wanted
    return Tending(
        snapshot=snapshot,
        head=record.head,
        job=job,
        demand=Demand.of(job),
        buckets=buckets,
        rooms=rooms,
        current=frozenset(buckets.current),
        ready=frozenset(buckets.ready),
        serving=frozenset(buckets.serving),
        spare=budget_of(job, wanted, buckets).spare,
        is_frozen=holds_back(snapshot.settings, record.head, now),
    )


def plan_system(snapshot: Snapshot, now: float | None = None) -> Plan | None:
    """The next step of every system job: come, go, or be replaced.

    ``now`` is the wall clock, by which freeze windows go; None: as if there were none.
    """
    keys = _system_jobs(snapshot)
    if not keys:
        return None
    rooms = rooms_for_system(snapshot)
    assignments = assignments_by_job(snapshot, keys)
    edits: list[Edit] = []
    pending: list[Pending] = []
    for key in keys:
        record = snapshot.jobs[key]
        buckets = sort_job(snapshot, key, assignments[key])
        tending = tending_of(snapshot, record, buckets, rooms, now)
        steps = tend(tending)
        edits += steps
        pending += pending_on(tending, frozenset(e.node for e in steps if e.before is None))
    if not edits:
        return None
    names = ", ".join(sorted({str(edit.job) for edit in edits}))
    return Plan(
        reason=f"one on every matching node: {names}",
        edits=tuple(edits),
        pending=tuple(pending),
        heeds_settings=now is not None,
        is_divisible=True,
    )


def _system_jobs(snapshot: Snapshot) -> tuple[JobKey, ...]:
    """Those of the highest priority first."""
    found = [
        (-record.current.job.priority, key)
        for key, record in snapshot.jobs_where(is_system).items()
        if record.current is not None and not record.head.deleting
    ]
    return tuple(key for _, key in sorted(found))


def rooms_for_system(snapshot: Snapshot) -> Rooms:
    """A working copy of every node that can get an instance; cordoned ones are among them."""
    return {
        name: Room.of(node)
        for name, node in sorted(snapshot.nodes.items())
        if node.presence and not node.presence.degraded and not node.ledger.drain
    }


def keep_places(snapshot: Snapshot, rooms: Rooms) -> dict[NodeName, list[Demand]]:
    """Where a system job's last instance is still stopping, its next one's room is kept free.

    What is kept for them on each node that has such.
    """
    kept: dict[NodeName, list[Demand]] = {}
    for key in _system_jobs(snapshot):
        column = snapshot.of(key)
        buckets = sort_job(snapshot, key, [column[name] for name in rooms if name in column])
        tending = tending_of(snapshot, snapshot.jobs[key], buckets, rooms)
        live = {a.node for a in tending.buckets.live}
        for name in {a.node for a in tending.buckets.stopping} - live:
            node, room = snapshot.nodes.get(name), rooms.get(name)
            if node is None or room is None or why_not(snapshot, name, tending.job):
                continue
            if _is_allowed(node, tending.job) and room.fits(tending.demand, SlotState.WAITING):
                room.take(tending.demand, SlotState.WAITING)
                kept.setdefault(name, []).append(tending.demand)
    return kept


def wanted_of(snapshot: Snapshot, record: JobRecord) -> int:
    """How many instances there are to be: the head's number, or that of the matching nodes."""
    if record.current is None or not is_system(record) or record.head.deleting:
        return record.head.wanted
    return matching(snapshot, record.current.job)


def matching(snapshot: Snapshot, job: Job) -> int:
    """How many nodes a system job is for."""
    return sum(
        1
        for name, node in snapshot.nodes.items()
        if node.is_alive and not why_not(snapshot, name, job)
    )


def why_not(snapshot: Snapshot, name: NodeName, job: Job) -> str:
    """Why a node is none of those that a system job is for; empty if it is one."""
    return why_not_for(snapshot.nodes[name], job, snapshot.settings)


def why_not_for(node: Node, job: Job, settings: Settings) -> str:
    """The same of a node that may not be part of the cluster yet."""
    labels = node.ledger.all_labels
    if node.ledger.drain:
        return "is being drained"
    if rule := unmet(job.placement.require, labels):
        return f"is {unmet_words(rule)}"
    reason = outside(pools_of(settings, job.namespace, is_hard=True), labels)
    return f"is {reason}" if reason else ""


def _is_allowed(node: Node, job: Job) -> bool:
    return job.network is not NetworkMode.HOST or node.ledger.allows_host_network


# One job ------------------------------------------------------------------------------------------


def tend(tending: Tending) -> list[Edit]:
    """This step's edits; changes the rooms."""
    live: dict[NodeName, list[Assigned]] = {}
    buckets = tending.buckets
    for assigned in (*buckets.current, *buckets.outdated):
        live.setdefault(assigned.node, []).append(assigned)
    edits: list[Edit] = []
    to_replace: list[list[Assigned]] = []
    slots = FreeSlots(buckets.used_slots())
    for name, node in sorted(tending.snapshot.nodes.items()):
        here = live.get(name, [])
        if not node.is_alive:
            continue  # what is to be done about it, repair does
        reason = why_not(tending.snapshot, name, tending.job)
        if reason and not _stays_for_others(tending, node):
            edits += _give_up(tending, here, node, reason)
        elif any(a in tending.current for a in here):
            edits += _only_one(tending, here)
        elif reason:
            edits += _only_one_old(tending, here, f"{node.name} {reason}")
        elif here:
            to_replace.append(here)
        elif placed := _place(tending, node):
            why = f"one of {tending.job.key} on every matching node: "
            demand = tending.demand
            edits.append(
                new_instance(tending.job.key, tending.head, next(slots), demand, placed, why)
            )
    return edits if tending.is_frozen else edits + _replace(tending, to_replace)


def _stays_for_others(tending: Tending, node: Node) -> bool:
    """A node that is drained keeps its own until the others have left."""
    return bool(node.ledger.drain) and not only_system_left(tending.snapshot, node.name)


def _give_up(tending: Tending, here: list[Assigned], node: Node, reason: str) -> Iterator[Edit]:
    """A node that it is not for has none, as far as they can be missed."""
    for assigned in sorted(here, key=lambda a: _serves(tending, a)):
        if _may_go(tending, assigned, node) and _can_be_missed(tending, assigned):
            yield _stop(tending, assigned, f"{node.name} {reason}")


def _serves(tending: Tending, assigned: Assigned) -> bool:
    return assigned in tending.ready or assigned in tending.serving


def _can_be_missed(tending: Tending, assigned: Assigned) -> bool:
    """What serves nobody always; of the others as many as the job's budget has to spare."""
    return not _serves(tending, assigned) or tending.spare > 0


def _may_go(tending: Tending, assigned: Assigned, node: Node) -> bool:
    """That a new version does not want it there is a part of the rollout, which a freeze holds up.

    Not where the node is drained, nor where it was the node that changed.
    """
    return not tending.is_frozen or bool(node.ledger.drain) or assigned in tending.current


def _stop(tending: Tending, assigned: Assigned, reason: str) -> Edit:
    """Healthy ones are counted: each makes fewer of the others dispensable."""
    tending.spare -= _serves(tending, assigned)
    return stop(assigned, reason)


def only_system_left(snapshot: Snapshot, name: NodeName) -> bool:
    """Whether nothing is on a node, not even stopping, but instances of system jobs.

    What a job is now counts: instances from before it became one are nobody else's to stop.
    """
    return all(
        (record := snapshot.jobs.get(key)) is not None and is_system(record)
        for key in snapshot.on(name)
    )


def _only_one(tending: Tending, here: list[Assigned]) -> Iterator[Edit]:
    """A node has one of them; what is left of older versions goes when the new one is healthy."""
    node = tending.snapshot.nodes[here[0].node]
    current = [a for a in here if a in tending.current]
    kept = min(current, key=lambda a: (a not in tending.ready, a.slot))
    for extra in current:
        if extra is not kept and _can_be_missed(tending, extra):
            yield _stop(tending, extra, f"{extra.node} has another one of {extra.job}")
    for old in here:
        if old in current or not (_may_go(tending, old, node) and _can_be_missed(tending, old)):
            continue
        if kept in tending.ready or old not in tending.serving:
            yield _stop(tending, old, f"replaced by version {tending.head.version}")


def _only_one_old(tending: Tending, here: list[Assigned], why: str) -> Iterator[Edit]:
    """No new one can come for now, and still a node has one: of a former service it had several."""
    for extra in _best_first(tending, here)[1:]:
        if _can_be_missed(tending, extra):
            yield _stop(tending, extra, f"{why}, and one of {extra.job} is enough there")


def _best_first(tending: Tending, old: list[Assigned]) -> list[Assigned]:
    """One that serves, if there is any; then those that serve nobody."""
    best = min(old, key=lambda a: (a not in tending.serving, a.slot), default=None)
    others = sorted((a for a in old if a is not best), key=lambda a: a in tending.serving)
    return [best, *others] if best else []


def _place(tending: Tending, node: Node) -> Placement | None:
    """At once if there is room, else as soon as what stops there is gone."""
    room, demand = tending.rooms.get(node.name), tending.demand
    if room is None or not _is_allowed(node, tending.job):
        return None
    if any(a.node == node.name for a in tending.buckets.stopping):
        return None  # never two of them on a node, not even for a moment
    for state in (SlotState.RUNNING, SlotState.WAITING):
        if room.fits(demand, state):
            free = f"{format_size(room.memory_left(state))} of memory free"
            room.take(demand, state)
            soon = " once what stops there is gone" if state is SlotState.WAITING else ""
            reason = f"{node.name} has {free}{soon}"
            return Placement(node=node.name, state=state, reason=reason, score=())
    return None


def _newest_first(tending: Tending, old: list[Assigned]) -> list[Assigned]:
    """The one in whose place the next one comes; then those that serve nobody.

    The newest is what came there since it is a system job; what a former service left is older. If
    that made way instead, what is restarted would run on beside the one that it is restarted as.
    """
    newest = max(old, key=lambda a: (a.version, a.generation, a in tending.serving, -a.slot))
    others = sorted((a for a in old if a is not newest), key=lambda a: a in tending.serving)
    return [newest, *others]


def _replace(tending: Tending, places: list[list[Assigned]]) -> list[Edit]:
    """In place: those that serve nobody at once, of the others one, healthy before the next."""
    edits: list[Edit] = []
    is_halfway = bool(tending.buckets.unready or tending.buckets.waiting)
    for here in sorted(places, key=lambda found: any(a in tending.serving for a in found)):
        node = tending.snapshot.nodes[here[0].node]
        room = tending.rooms.get(node.name)
        if room is None:
            continue  # when it is well again
        leaving = _makes_room(tending, room, _newest_first(tending, here))
        if not _is_allowed(node, tending.job) or not leaving:
            why = f"{node.name} can't have version {tending.head.version}"
            edits += _only_one_old(tending, here, why)
            continue
        missed = sum(a in tending.serving for a in leaving)
        if missed and (is_halfway or missed > tending.spare):
            continue
        spare = tending.spare
        edits += _replace_one(tending, room, leaving)
        if tending.is_foreseen:
            tending.spare = spare
        else:
            is_halfway = True
    return edits


def needed_where_not_meant(tending: Tending) -> Iterator[str]:
    """Who stays on a node that the job is not for, because too few others are healthy."""
    floor = len(tending.ready) + len(tending.serving) - tending.spare
    for a in sorted(tending.ready | tending.serving, key=lambda a: (a.node, a.slot)):
        node = tending.snapshot.nodes[a.node]
        reason = why_not(tending.snapshot, a.node, tending.job)
        if reason and tending.spare <= 0 and not _stays_for_others(tending, node):
            yield f"{a.instance} stays on {a.node}, which {reason}: {floor} must stay healthy."


def held_up(tending: Tending) -> Iterator[str]:
    """Why old instances that serve are not replaced, in words; nothing where it goes on."""
    version = f"version {tending.head.version}"
    old = sorted({a.node for a in tending.serving if a.node in tending.rooms})
    for name in old:
        node, room = tending.snapshot.nodes[name], tending.rooms[name]
        here = [a for a in tending.buckets.outdated if a.node == name]
        if not _is_allowed(node, tending.job):
            yield f"{_why_missing(tending, node)}: it keeps {here[0].instance} as it is."
        elif not _makes_room(tending, room, here):
            for assigned in here:
                room.give(assigned.demand, SlotState.WAITING)
            open_node = replace(node, ledger=replace(node.ledger, is_cordoned=False))
            short = describe(shortfall(open_node, room, tending.demand, state=SlotState.WAITING))
            for assigned in here:
                room.take(assigned.demand, SlotState.WAITING)
            yield f"{name} can't have {version}: without the old one, {short}."
    if old and tending.spare <= 0:
        floor = len(tending.ready) + len(tending.serving) - tending.spare
        yield f"Nothing is stopped before its turn: {floor} must stay healthy."


def _makes_room(tending: Tending, room: Room, here: list[Assigned]) -> list[Assigned]:
    """As many of them, in order, as have to go before a new one fits; none if it never does."""
    leaving: list[Assigned] = []
    fits = False
    for assigned in here:
        room.give(assigned.demand, SlotState.WAITING)
        leaving.append(assigned)
        if fits := room.fits(tending.demand, SlotState.WAITING):
            break
    for assigned in leaving:
        room.take(assigned.demand, SlotState.WAITING)
    return leaving if fits else []


def _replace_one(tending: Tending, room: Room, leaving: list[Assigned]) -> list[Edit]:
    """The first of them is replaced; the others have to go for that."""
    old = leaving[0]
    for assigned in leaving:
        room.give(assigned.demand, SlotState.WAITING)
    room.take(tending.demand, SlotState.WAITING)
    version = f"version {tending.head.version}"
    placed = Placement(
        node=old.node,
        state=SlotState.WAITING,
        reason=f"waits on {old.node} for {old.instance} of version {old.version} to stop",
        score=(),
    )
    no_room = f"{old.node} has no room for {version} beside it"
    return [
        _stop(tending, old, f"replaced by {version} in its place"),
        *(_stop(tending, a, no_room) for a in leaving[1:]),
        new_instance(tending.job.key, tending.head, old.slot, tending.demand, placed),
    ]


# What is missing ----------------------------------------------------------------------------------


def pending_system(snapshot: Snapshot) -> Iterator[Pending]:
    """Every system job that is missing on a matching node, with the reason on each."""
    keys = _system_jobs(snapshot)
    if not keys:
        return
    rooms, assignments = rooms_for_system(snapshot), assignments_by_job(snapshot, keys)
    for key in keys:
        record = snapshot.jobs[key]
        buckets = sort_job(snapshot, key, assignments[key])
        tending = tending_of(snapshot, record, buckets, rooms)
        yield from pending_on(tending)


def pending_on(tending: Tending, placed: frozenset[NodeName] = frozenset()) -> Iterator[Pending]:
    """One entry for all nodes of a job that lack it; not those where it is being placed."""
    there = {a.node for a in tending.buckets.live} | placed
    lacking = [
        node
        for name, node in sorted(tending.snapshot.nodes.items())
        if node.is_alive and name not in there and not why_not(tending.snapshot, name, tending.job)
    ]
    if lacking:
        reasons = "; ".join(_why_missing(tending, node) for node in lacking)
        yield Pending(job=tending.job.key, count=len(lacking), reason=reasons)


def _why_missing(tending: Tending, node: Node) -> str:
    if not _is_allowed(node, tending.job):
        return f"{node.name} does not allow pods on its own network ([node] allow_host_network)"
    if any(a.node == node.name for a in tending.buckets.stopping):
        return f"{node.name} is still stopping the one before"
    open_node = replace(node, ledger=replace(node.ledger, is_cordoned=False))
    room, demand = tending.rooms.get(node.name) or Room.of(node), tending.demand
    if node.is_alive and room.fits(demand, SlotState.WAITING) and node.name in tending.rooms:
        return f"there is room on {node.name}; it is placed in a moment"
    short = shortfall(open_node, room, demand, state=SlotState.WAITING)
    return f"needs {needs(demand)}; {describe(short)}"
