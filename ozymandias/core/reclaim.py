"""What a node that was given up goes on with when it returns.

While it was away its instances were placed elsewhere, as far as there was room; the others are
pending. A pod that still runs and is exactly what is pending is taken over as it runs: stopping it,
to start the same again beside the place where it ran, would help nobody. Everything else that a
returning node still runs is stopped.

It is one decision with the registration, in one transaction, which compares the heads of the jobs
concerned: whoever places such an instance elsewhere at the same time wins or loses as a whole.
Where more runs than is wanted or fits, system jobs come first, then the higher priority; and room
that something of a higher priority lacks is left to it, as with everything that is placed.

Where another machine had the node's name for a while, it was given work that knew nothing of these
pods: what does not fit beside them waits until they are gone (`make_way`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from ozymandias.core.apply import merged, totals
from ozymandias.core.buckets import (
    Buckets,
    assignments_by_job,
    census,
    is_current,
    is_system,
    per_node,
    sort_job,
)
from ozymandias.core.placement import most_that_fit
from ozymandias.core.pods import pod_id
from ozymandias.core.rooms import NOW, Room, cpu_limit
from ozymandias.core.rules import rules_of
from ozymandias.core.system import why_not_for
from ozymandias.core.vacate import fits_held
from ozymandias.model.instance import (
    Assigned,
    Assignment,
    Group,
    InstanceId,
    Slots,
    SlotState,
)
from ozymandias.model.job import Job, JobKey, JobRecord, NetworkMode
from ozymandias.model.node import Demand, Node
from ozymandias.model.plan import Edit
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot


def reclaim(
    snapshot: Snapshot, node: Node, strangers: Collection[PodId], running: AbstractSet[PodId]
) -> frozenset[PodId]:
    """The pods, of those found on a node and not assigned there, that go on as they run.

    ``node`` is as it will have joined, with what is assigned there still. Of the ``strangers`` only
    those that are ``running`` are worth keeping; all of them hold their room until they are gone,
    so it is what is promised there that a pod must fit into.
    """
    room = Room.of(node)
    found: dict[JobKey, list[PodId]] = {}
    twice = Counter(pod.instance for pod in strangers)
    for pod in sorted(running & set(strangers)):
        if twice[pod.instance] == 1:  # else another run of the same instance has to go first
            found.setdefault(pod.key, []).append(pod)
    snapshot = replace(snapshot, nodes={**snapshot.nodes, node.name: node})
    keys = _lacking(snapshot, found)
    assignments = assignments_by_job(snapshot, keys)
    taken: dict[PodId, Edit] = {}
    left: list[tuple[int, Demand, int]] = []  # priority, and what of it is still nowhere
    for record, job in _most_urgent_first(snapshot, keys):
        left = [(p, d, n) for p, d, n in left if p <= job.priority or _set_aside(room, d, n)]
        buckets = sort_job(snapshot, record.key, assignments[record.key])
        places = _places(snapshot, record, buckets, node, taken.values())
        used, demand = buckets.used_slots(), Demand.of(job)
        for pod in found.get(record.key, ()):
            is_missing = places > 0 and is_current(pod, record.head) and pod.slot not in used
            if is_missing and room.fits(demand, SlotState.WAITING):
                room.take(demand, SlotState.WAITING)
                taken[pod] = _taken(pod, node, demand)
                places -= 1
        left.append((job.priority, demand, places))
    return frozenset(taken)


def make_way(
    snapshot: Snapshot,
    node: Node,
    assignments: Mapping[JobKey, Assignment],
    found: Collection[PodId],
) -> dict[JobKey, Assignment]:
    """The assignments of a joining node that change: what has no room yet beside its pods waits.

    ``assignments`` are all that it will have, with what was ``found`` there. What is to run, was
    not found and fits only when something found has stopped could only be given to another machine
    of that name; and so could a system job's that has another pod of it beside it. Where too much
    is promised anyway, waiting would not end, and nothing is changed.
    """
    _, promised = totals(assignments.values())
    limit = node.ledger.allocatable
    if not promised.resources.fits_in(limit):
        return {}
    room = Room(
        node=node.name,
        memory_limit=limit.memory_bytes,
        disk_limit=limit.disk_bytes,
        cpu_limit=cpu_limit(limit),
    )
    here, stopping, absent = frozenset(found), set[InstanceId](), list[Assigned]()
    singles = {key for key in assignments if (r := snapshot.jobs.get(key)) and is_system(r)}
    for assigned in (a for key in sorted(assignments) for a in assignments[key].instances):
        if assigned.state is SlotState.RUNNING and pod_id(assigned) not in here:
            absent.append(assigned)
            continue
        room.take(assigned.demand, assigned.state)
        if assigned.state is SlotState.STOPPING:
            stopping.add(assigned.instance)
    waiting: dict[JobKey, set[PodId]] = {}
    for assigned in absent:
        waits = assigned.instance in stopping or (
            assigned.job in singles and any(other.job == assigned.job for other in stopping)
        )
        if not waits and fits_held(room, assigned):
            room.take(assigned.demand, SlotState.STOPPING)  # held; nobody asks what is promised
        else:
            waiting.setdefault(assigned.job, set()).add(pod_id(assigned))
    return {key: _with_waiting(assignments[key], pods) for key, pods in waiting.items()}


def _with_waiting(assignment: Assignment, pods: AbstractSet[PodId]) -> Assignment:
    groups = (
        Group(
            uid=a.uid,
            version=a.version,
            generation=a.generation,
            state=SlotState.WAITING if pod_id(a) in pods else a.state,
            slots=Slots.of([a.slot]),
            demand=a.demand,
        )
        for a in assignment.instances
    )
    return Assignment(node=assignment.node, job=assignment.job, groups=merged(groups))


def _set_aside(room: Room, demand: Demand, count: int) -> bool:
    """Leave room for what comes first and could start here; False: that is done."""
    while count > 0 and room.fits(demand, SlotState.WAITING):
        room.take(demand, SlotState.WAITING)
        count -= 1
    return False


def _lacking(snapshot: Snapshot, found: Collection[JobKey]) -> list[JobKey]:
    """The jobs of which pods were found, and those that lack instances beside."""
    live = census(snapshot).live
    others = (k for k, r in snapshot.jobs.items() if live.get(k, 0) < r.head.wanted)
    return [key for key in {*found, *others} if key in snapshot.jobs]


def _most_urgent_first(
    snapshot: Snapshot, keys: Collection[JobKey]
) -> Iterator[tuple[JobRecord, Job]]:
    """The jobs that are to run and can be read."""
    records = [snapshot.jobs[key] for key in keys]
    known = [
        (not is_system(record), -record.current.job.priority, record.key)
        for record in records
        if record.current is not None and not record.head.deleting
    ]
    for _, _, key in sorted(known):
        record = snapshot.jobs[key]
        if record.current is not None:
            yield record, record.current.job


def _taken(pod: PodId, node: Node, demand: Demand) -> Edit:
    """What it comes to that a pod goes on: its neighbours have to bear with it."""
    return Edit(
        node=node.name,
        job=pod.key,
        slot=pod.slot,
        uid=pod.uid,
        version=pod.version,
        generation=pod.generation,
        before=None,
        after=SlotState.RUNNING,
        demand=demand,
        reason="it goes on as it runs",
    )


def _places(
    snapshot: Snapshot, record: JobRecord, buckets: Buckets, node: Node, taken: Iterable[Edit]
) -> int:
    """How many instances are wanted that are nowhere, and may be on this node."""
    assert record.current is not None
    job = record.current.job
    if why_not_for(node, job, snapshot.settings):
        return 0
    if job.network is NetworkMode.HOST and not node.ledger.allows_host_network:
        return 0
    there = per_node(buckets.live)
    if is_system(record):
        return 0 if there[node.name] else 1
    if not node.ledger.takes_work:
        return 0  # given up, it is new work, and a cordoned node gets none
    missing, rules = record.head.wanted - len(buckets.live), rules_of(snapshot, job, taken)
    # Room is looked at by the caller; here it is only what the rules allow.
    only = {node.name: Room.of(node)}
    return most_that_fit(only, Demand(), max(0, missing), NOW, rules=rules, there=there)
