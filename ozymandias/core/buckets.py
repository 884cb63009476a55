"""Instances sorted into named buckets: the first step of every decision about a job.

`census` is one cheap pass over all jobs, to see which of them need thought at all; `sort_job`
then looks at every instance of one job. *Current* is an instance as the job's head wants it (uid,
version, generation), *live* is one that is running or waiting, *outdated* one to be replaced.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from msgspec import Struct

from ozymandias.model.assignments import OfJob
from ozymandias.model.instance import (
    Assigned,
    Assignment,
    InstanceState,
    SlotState,
    in_a_run,
)
from ozymandias.model.job import JobHead, JobKey, JobKind, JobRecord
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Edit
from ozymandias.model.pod import PodId
from ozymandias.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    live: Mapping[JobKey, int]  # running + waiting instances, of every version
    outdated: frozenset[JobKey]  # jobs with live instances to be replaced


def census(snapshot: Snapshot) -> Census:
    """Counted job by job from the sums of the table, once for all planners of a snapshot."""
    return snapshot.find("census", _count)


def _count(snapshot: Snapshot) -> Census:
    live: dict[JobKey, int] = {}
    outdated: set[JobKey] = set()
    stopping = SlotState.STOPPING
    jobs = snapshot.jobs
    for key, column in snapshot.assigned.by_job.items():
        assert isinstance(column, OfJob)
        record = jobs.get(key)
        head = record.head if record else None
        number = 0
        for kind, counted in column.kinds.items():
            if kind.state is stopping:
                continue
            number += counted
            if head is not None and (
                kind.version != head.version
                or kind.generation != head.restart
                or kind.uid != head.uid
            ):
                outdated.add(key)
        live[key] = number
    return Census(live=live, outdated=frozenset(outdated))


class Buckets(Struct, kw_only=True):
    """Every instance of one job, each in exactly one bucket. A working copy: it may be changed."""

    ready: list[Assigned] = []  # current and healthy (or completed)
    unready: list[Assigned] = []  # current: running, not healthy yet
    waiting: list[Assigned] = []  # current: its room is being vacated
    serving: list[Assigned] = []  # outdated and healthy
    idle: list[Assigned] = []  # outdated: running, without traffic
    stale: list[Assigned] = []  # outdated: waiting, will never run
    stopping: list[Assigned] = []
    # Live on a node whose ledger is missing or unreadable: counted, but nothing can be done there.
    beyond_reach: list[Assigned] = []

    @property
    def current(self) -> list[Assigned]:
        return [*self.ready, *self.unready, *self.waiting]

    @property
    def outdated(self) -> list[Assigned]:
        return [*self.serving, *self.idle, *self.stale]

    @property
    def live(self) -> list[Assigned]:
        return [*self.current, *self.outdated, *self.beyond_reach]

    def used_slots(self) -> set[int]:
        """Slots that are somewhere, if only stopping: none of them is free for another."""
        return {a.slot for a in self.live} | {a.slot for a in self.stopping}


def sort_job(
    snapshot: Snapshot, key: JobKey, assignments: Iterable[Assignment] | None = None
) -> Buckets:
    """The buckets of one job, each ordered by node and slot."""
    record = snapshot.jobs.get(key)
    head = record.head if record else None
    buckets = Buckets()
    for assignment in assignments_of(snapshot, key) if assignments is None else assignments:
        for assigned in assignment.instances:
            _bucket(snapshot, buckets, assigned, head).append(assigned)
    return buckets


def _bucket(
    snapshot: Snapshot, buckets: Buckets, assigned: Assigned, head: JobHead | None
) -> list[Assigned]:
    if assigned.state is SlotState.STOPPING:
        return buckets.stopping
    if assigned.node not in snapshot.nodes:
        return buckets.beyond_reach
    is_waiting = assigned.state is SlotState.WAITING
    if head is not None and is_current(assigned, head):
        if is_waiting:
            return buckets.waiting
        return buckets.ready if is_ready(snapshot, assigned) else buckets.unready
    if is_waiting:
        return buckets.stale
    status = snapshot.status(assigned)
    return buckets.serving if status and status.healthy else buckets.idle


def is_current(instance: Assigned | Edit | PodId, head: JobHead) -> bool:
    return (instance.uid, instance.version, instance.generation) == (
        head.uid,
        head.version,
        head.restart,
    )


def is_system(record: JobRecord) -> bool:
    """Whether it runs once on every matching node: the nodes say how many, not the head."""
    return record.current is not None and record.current.job.kind is JobKind.SYSTEM


def is_ready(snapshot: Snapshot, assigned: Assigned) -> bool:
    """Healthy on a node that is there, or ended well: what a rollout waits for."""
    node, status = snapshot.nodes.get(assigned.node), snapshot.status(assigned)
    if status is None or node is None or not node.is_alive:
        return False
    return status.healthy or status.state is InstanceState.COMPLETED


def assignments_of(snapshot: Snapshot, key: JobKey) -> list[Assignment]:
    """What the nodes have of one job, ordered by node."""
    return [assignment for _, assignment in sorted(snapshot.of(key).items())]


def assignments_by_job(
    snapshot: Snapshot, keys: Collection[JobKey]
) -> dict[JobKey, list[Assignment]]:
    """The same for many jobs."""
    return {key: assignments_of(snapshot, key) for key in keys}


def per_node(instances: Iterable[Assigned]) -> Counter[NodeName]:
    return Counter([a.node for a in instances])


class FreeSlots(Iterator[int]):
    """The lowest numbers that are nowhere in use, for ever."""

    def __init__(self, used: Collection[int]) -> None:
        self._used, self._next = used, 0

    def __next__(self) -> int:
        number = self._next
        while number in self._used:
            number += 1
        self._next = number + 1
        return number

    def take(self, counts: Iterable[int]) -> list[Sequence[int]]:
        """The next ones in order, so many at a time."""
        if self._used:
            return [in_a_run(tuple(islice(self, count))) for count in counts]
        ends = list(accumulate(counts, initial=self._next))
        self._next = ends[-1]
        return list(map(range, ends, ends[1:]))
