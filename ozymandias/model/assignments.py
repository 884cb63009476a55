"""The table of all assignments, whose rows know their sums.

What a node's assignments hold and promise, and how many instances of which kind a job has, is asked
for at every change. Both are kept with the rows and follow each change by its difference, so that
nobody adds up a thousand assignments to learn what one of them changed.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, Self

from ozymandias.model.instance import Assignment, Group, SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName, Totals
from ozymandias.model.tables import Column, Pairs, Row, Table

NOTHING = Totals()
NO_SUMS = (NOTHING, NOTHING)  # of what is held, and of what is promised
SLOTS_MAX = 2**20  # as far as they are kept as bits: a slot from the store may be any number


class Kind(NamedTuple):
    """What tells the instances of one job apart, but for their numbers and places."""

    uid: str
    version: int
    generation: int
    state: SlotState


# The thousands of a job that are counted one by one are of one kind.
_kind = lru_cache(maxsize=256)(Kind)


class OnNode(Row[JobKey, Assignment]):
    """What one node has, by job."""

    __slots__ = ("running", "stopping", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.running = self.stopping = self.waiting = NOTHING  # sums of the slots in each state

    def sums(self) -> tuple[Totals, Totals]:
        """What it holds, running and stopping, and what it promises, running and waiting."""
        running, stopping, waiting = self.running, self.stopping, self.waiting
        return (
            running if stopping is NOTHING else running.and_also(stopping),
            running if waiting is NOTHING else running.and_also(waiting),
        )

    def with_running(self, job: JobKey, new: Assignment, running: Totals) -> "OnNode":
        """The row with what a job has that had nothing there, all of which runs, and that sum."""
        row = self._successor(job, new)
        row._length = self._length + 1
        row.running, row.stopping, row.waiting = running, self.stopping, self.waiting
        return row

    def entered(self, key: JobKey, old: Assignment | None, new: Assignment | None) -> "OnNode":
        row = Row.entered(self, key, old, new)
        row.running, row.stopping, row.waiting = self.running, self.stopping, self.waiting
        if old is not None:
            row._count(old, -1)
        if new is not None:
            row._count(new, 1)
        return row

    def _count(self, assignment: Assignment, times: int) -> None:
        for group in assignment.groups:
            state, number = group.state, times * len(group.slots.numbers)
            if state is SlotState.RUNNING:
                self.running = self.running.plus(group.demand, number)
            elif state is SlotState.STOPPING:
                self.stopping = _or_nothing(self.stopping.plus(group.demand, number))
            else:
                self.waiting = _or_nothing(self.waiting.plus(group.demand, number))


def _or_nothing(totals: Totals) -> Totals:
    """The one that is told by what it is: nearly every node has it in two of three states."""
    return NOTHING if totals == NOTHING else totals


class OfJob(Column[Assignment]):
    """What is of one job, by node. What follows from all of it is found when somebody asks, and
    follows each change from then on."""

    __slots__ = ("_kinds", "_taken")

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[Kind, int] | None = None
        self._taken: int | None = None  # the slots as bits, if no two are the same

    def copy(self) -> "OfJob":
        new = OfJob()
        new.update(self)
        new._kinds = None if self._kinds is None else self._kinds.copy()
        new._taken = self._taken
        return new

    def enter(self, node: NodeName, old: Assignment | None, new: Assignment | None) -> None:
        Column.enter(self, node, old, new)
        if self._kinds is not None:
            _count_kinds(self._kinds, old.groups if old is not None else (), -1)
            _count_kinds(self._kinds, new.groups if new is not None else (), 1)
        if self._taken is not None:
            gone = _added(0, old.groups) if old is not None else 0
            assert gone is not None, "they were among the distinct ones"
            self._taken = _added(self._taken & ~gone, new.groups if new is not None else ())

    @property
    def kinds(self) -> Mapping[Kind, int]:
        """How many instances of each; none is 0."""
        if self._kinds is None:
            self._kinds = {}
            _count_kinds(self._kinds, (g for a in self.values() for g in a.groups), 1)
        return self._kinds

    @property
    def live(self) -> int:
        """How many are running or waiting."""
        stopping = SlotState.STOPPING
        return sum(n for kind, n in self.kinds.items() if kind.state is not stopping)

    @property
    def is_known_distinct(self) -> bool:
        """Whether somebody has found that no slot is in two places, and that is still so."""
        return self._taken is not None

    def is_distinct(self) -> bool:
        """Whether no slot is in two places, if only to be stopped in one of them."""
        if self._taken is None:
            self._taken = _added(0, [g for a in self.values() for g in a.groups])
        return self._taken is not None


NO_NODE = OnNode()
NO_JOB = OfJob()


class Assignments(Pairs[Assignment]):
    __slots__ = ()

    def with_job(
        self, job: JobKey, found: Mapping[NodeName, Assignment], rows: Mapping[NodeName, OnNode]
    ) -> Self:
        """A job that was nowhere, with the rows of the nodes where it is now."""
        assert job not in self._by_job, f"{job} is somewhere already"
        column = OfJob()
        column.update(found)
        by_job = self._by_job.changed({job: column or None})
        return type(self)(self._by_node.changed(rows), by_job, self._length + len(found))

    def _new_row(self) -> OnNode:
        return OnNode()

    def _new_column(self) -> OfJob:
        return OfJob()

    @property
    def by_node(self) -> Table[NodeName, OnNode]:
        return self._by_node  # type: ignore[return-value]  # of rows that are its own

    def on(self, node: NodeName) -> OnNode:
        row = self._by_node.get(node, NO_NODE)
        assert isinstance(row, OnNode)
        return row

    def of_job(self, job: JobKey) -> OfJob:
        column = self._by_job.get(job, NO_JOB)
        assert isinstance(column, OfJob)
        return column


def _added(taken: int, groups: Iterable[Group]) -> int | None:
    """With the slots of these groups; None where one is taken twice, or far beyond all others."""
    first = end = 0  # a run that goes on from group to group, as those of a new job do
    for group in groups:
        numbers = group.slots.numbers
        if type(numbers) is range and numbers.start == end:
            end = numbers.stop
            continue
        if not numbers:
            continue
        known = _with_run(taken, first, end)
        if known is None or numbers[0] < 0 or numbers[-1] >= SLOTS_MAX:
            return None
        taken, first, end = known, 0, 0
        if type(numbers) is range:
            first, end = numbers.start, numbers.stop
            continue
        for number in numbers:
            if taken >> number & 1:
                return None
            taken |= 1 << number
    return _with_run(taken, first, end)


def _with_run(taken: int, first: int, end: int) -> int | None:
    if end > SLOTS_MAX:
        return None
    bits = ((1 << end - first) - 1) << first
    return None if taken & bits else taken | bits


def _count_kinds(kinds: dict[Kind, int], groups: Iterable[Group], times: int) -> None:
    for group in groups:
        kind = _kind(group.uid, group.version, group.generation, group.state)
        left = kinds.get(kind, 0) + times * len(group.slots.numbers)
        if left:
            kinds[kind] = left
        else:
            kinds.pop(kind, None)


def sums_of(assignments: Iterable[Assignment]) -> tuple[Totals, Totals]:
    """What assignments of one node hold and promise, added up one by one."""
    row = NO_NODE
    for assignment in assignments:
        row = row.entered(assignment.job, None, assignment)
    return row.sums()
