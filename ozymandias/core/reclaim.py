"""What a node that was given up goes on with when it returns.

While it was away its instances were placed elsewhere, as far as there was room; the others are
pending. A pod that still runs and is exactly what is pending is taken over as it runs: stopping it,
to start the same again beside the place where it ran, would help nobody. Everything else that a
returning node still runs is stopped.

It is one decision with the registration, in one transaction, which compares the heads of the jobs
concerned: whoever places such an instance elsewhere at the same time wins or loses as a whole.
Where more runs than is wanted or fits, system jobs come first, then the higher priority; and room
that something of a higher priority lacks is left to it, as with everything that is placed.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet

from ozymandias.core.buckets import (
    Buckets,
    assignments_by_job,
    census,
    is_current,
    is_system,
    per_node,
    sort_job,
)
from ozymandias.core.placement import Room
from ozymandias.core.system import why_not
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Job, JobKey, JobRecord, NetworkMode
from ozymandias.model.node import Demand, Node
from ozymandias.model.pod import PodId
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
    keys = _lacking(snapshot, found)
    assignments = assignments_by_job(snapshot, keys)
    taken: set[PodId] = set()
    left: list[tuple[int, Demand, int]] = []  # priority, and what of it is still nowhere
    for record, job in _most_urgent_first(snapshot, keys):
        left = [(p, d, n) for p, d, n in left if p <= job.priority or _set_aside(room, d, n)]
        buckets = sort_job(snapshot, record.key, assignments[record.key])
        places = _places(record, job, buckets, node)
        used, demand = buckets.used_slots(), Demand.of(job)
        for pod in found.get(record.key, ()):
            is_missing = places > 0 and is_current(pod, record.head) and pod.slot not in used
            if is_missing and room.fits(demand, SlotState.WAITING):
                room.take(demand, SlotState.WAITING)
                taken.add(pod)
                places -= 1
        left.append((job.priority, demand, places))
    return frozenset(taken)


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


def _places(record: JobRecord, job: Job, buckets: Buckets, node: Node) -> int:
    """How many instances are wanted that are nowhere, and may be on this node."""
    if why_not(node, job):
        return 0
    if job.network is NetworkMode.HOST and not node.ledger.allows_host_network:
        return 0
    here = per_node(buckets.live)[node.name]
    if is_system(record):
        return 0 if here else 1
    if not node.ledger.takes_work:
        return 0  # given up, it is new work, and a cordoned node gets none
    missing, limit = record.head.wanted - len(buckets.live), job.placement.max_per_node
    return min(missing, limit - here) if limit else missing
