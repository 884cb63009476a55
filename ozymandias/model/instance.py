"""Instances: slot *n* of a job. Where they are assigned, and what was observed of them."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr

from ozymandias.model.job import JobKey
from ozymandias.model.node import Demand, NodeName


class InstanceId(NamedTuple):
    job: JobKey
    slot: int

    def __str__(self) -> str:
        return f"{self.job}-{self.slot}"


class SlotState(StrEnum):
    RUNNING = "running"  # promised and may run
    WAITING = "waiting"  # promised, but its room or its predecessor is still being vacated
    STOPPING = "stopping"  # to be stopped; holds its resources until the pod is gone


SLOTS_MAX = 2**20  # of one job on one node


class Slots:
    """Sorted slot numbers; ``"0-7,9"`` in the store.

    Most are one run, and are kept as a range: a thousand are no more work than one.
    """

    __slots__ = ("_bytes", "numbers")

    def __init__(self, numbers: Sequence[int] = ()) -> None:
        self.numbers = numbers if type(numbers) is range else in_a_run(numbers)
        self._bytes = b""

    def spelled(self) -> bytes:
        """As the store has them; jobs that share a run share this."""
        if not self._bytes:
            self._bytes = str(self).encode()
        return self._bytes

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __contains__(self, slot: int) -> bool:
        return slot in self.numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slots) and self.numbers == other.numbers

    def __hash__(self) -> int:
        return hash(self.numbers)

    def __repr__(self) -> str:
        return f"Slots({str(self)!r})"

    @classmethod
    def of(cls, slots: Iterable[int]) -> "Slots":
        return cls(sorted(set(slots)))

    @classmethod
    def parse(cls, text: str) -> "Slots":
        """ValueError when it is no such text, or one that would fill the memory."""
        runs = [_run(part) for part in text.split(",") if part]
        if sum(max(0, run.stop - run.start) for run in runs) > SLOTS_MAX:
            raise ValueError(f"more than {SLOTS_MAX} slots")
        return cls.of(number for run in runs for number in run)

    def __str__(self) -> str:
        numbers = self.numbers
        if type(numbers) is range:
            return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
        return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in self._runs())

    def _runs(self) -> Iterator[tuple[int, int]]:
        start: int | None = None
        last = -1
        for n in self:
            if start is None:
                start = n
            elif n != last + 1:
                yield start, last
                start = n
            last = n
        if start is not None:
            yield start, last


@lru_cache(maxsize=4096)
def slots_of_run(run: range) -> Slots:
    """Jobs of one size have the same runs on their nodes, and share them."""
    return Slots(run)


def in_a_run(numbers: Sequence[int]) -> Sequence[int]:
    """Sorted numbers as a range if they are one, else as a tuple."""
    if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
        return range(numbers[0], numbers[-1] + 1)
    return tuple(numbers)


def _run(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


class Group(Struct, frozen=True, kw_only=True, gc=False):
    """Instances of one job, version and state on one node. Alike, so one entry serves them all."""

    uid: str
    version: int
    generation: int = 0  # JobHead.restart when it was placed
    state: SlotState
    slots: Slots
    demand: Demand  # of one instance


class Assignment(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """What one node has of one job. Never empty: an assignment without groups is deleted."""

    node: NodeName
    job: JobKey
    groups: tuple[Group, ...]
    # The instances of these groups, once somebody has asked for them.
    made: "tuple[tuple[Group, ...], tuple[Assigned, ...]] | None" = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Assignment) and self._said == other._said

    def __hash__(self) -> int:
        return hash(self._said)

    @property
    def _said(self) -> tuple[object, ...]:
        return self.node, self.job, self.groups

    @property
    def instances(self) -> "tuple[Assigned, ...]":
        """Made when they are first asked for: many look at an assignment before it changes."""
        made = self.made
        if made is None or made[0] is not self.groups:
            made = self.groups, self._instances()
            force_setattr(self, "made", made)
        return made[1]

    def _instances(self) -> "tuple[Assigned, ...]":
        return tuple(
            Assigned(
                node=self.node,
                job=self.job,
                slot=slot,
                uid=group.uid,
                version=group.version,
                generation=group.generation,
                state=group.state,
                demand=group.demand,
            )
            for group in self.groups
            for slot in group.slots
        )


class Assigned(Struct, frozen=True, kw_only=True, gc=False):
    """One instance on one node: an assignment seen slot by slot."""

    node: NodeName
    job: JobKey
    slot: int
    uid: str
    version: int
    generation: int
    state: SlotState
    demand: Demand

    @property
    def instance(self) -> InstanceId:
        return InstanceId(self.job, self.slot)


class InstanceState(StrEnum):
    """What a user sees of an instance."""

    PENDING = "pending"  # nowhere yet
    WAITING = "waiting"  # assigned, room not vacated yet
    PULLING = "pulling"
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    BACKOFF = "backoff"  # will be tried again
    FAILED = "failed"  # will not be tried again
    COMPLETED = "completed"  # ended with 0 and its policy lets it rest
    STOPPING = "stopping"
    LOST = "lost"  # its node is gone and it has not been moved yet


class ContainerStatus(Struct, frozen=True, kw_only=True, gc=False):
    name: str
    state: str  # created, running, exited
    healthy: bool = False
    restarts: int = 0
    exit_code: int | None = None
    oom_killed: bool = False
    reason: str = ""


class InstanceStatus(Struct, frozen=True, kw_only=True, gc=False):
    """Observed by the node that runs it; in the store under the node's longer lease."""

    slot: int
    uid: str
    version: int
    generation: int = 0
    state: InstanceState
    healthy: bool = False
    address: str = ""
    restarts: int = 0
    reason: str = ""
    since: float = 0.0  # wall clock, when the state was entered
    containers: tuple[ContainerStatus, ...] = ()


class JobStatus(Struct, frozen=True, kw_only=True, gc=False):
    """All statuses of one job on one node: one key in the store."""

    node: NodeName
    job: JobKey
    instances: dict[int, InstanceStatus] = {}
