"""The table of all assignments, whose rows know their sums.

What a node's assignments hold and promise, and how many instances of which kind a job has, is asked
for at every change. Both are kept with the rows and follow each change by its difference, so that
nobody adds up a thousand assignments to learn what one of them changed.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ozymandias.model.instance import Assignment, SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName, Totals
from ozymandias.model.tables import Pairs

NOTHING = Totals()


class Kind(NamedTuple):
    """What tells the instances of one job apart, but for their numbers and places."""

    uid: str
    version: int
    generation: int
    state: SlotState


class OnNode(dict[JobKey, Assignment]):
    """What one node has, by job."""

    __slots__ = ("sums",)

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[SlotState, Totals] = {}  # of the slots in each state

    def copy(self) -> "OnNode":
        new = OnNode()
        new.update(self)
        new.sums = self.sums.copy()
        return new

    @property
    def held(self) -> Totals:
        """Running and stopping."""
        return self._with_running(SlotState.STOPPING)

    @property
    def promised(self) -> Totals:
        """Running and waiting."""
        return self._with_running(SlotState.WAITING)

    def _with_running(self, state: SlotState) -> Totals:
        running, other = self.sums.get(SlotState.RUNNING, NOTHING), self.sums.get(state)
        return running if other is None or other == NOTHING else running.and_also(other)


class OfJob(dict[NodeName, Assignment]):
    """What is of one job, by node."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[Kind, int] = {}  # how many instances of each; none is 0

    def copy(self) -> "OfJob":
        new = OfJob()
        new.update(self)
        new.kinds = self.kinds.copy()
        return new

    @property
    def live(self) -> int:
        """How many are running or waiting."""
        stopping = SlotState.STOPPING
        return sum(n for kind, n in self.kinds.items() if kind.state is not stopping)


NO_NODE = OnNode()
NO_JOB = OfJob()


class Assignments(Pairs[Assignment]):
    __slots__ = ()

    def _new_row(self) -> OnNode:
        return OnNode()

    def _new_column(self) -> OfJob:
        return OfJob()

    def on(self, node: NodeName) -> OnNode:
        row = self._by_node.get(node, NO_NODE)
        assert isinstance(row, OnNode)
        return row

    def of_job(self, job: JobKey) -> OfJob:
        column = self._by_job.get(job, NO_JOB)
        assert isinstance(column, OfJob)
        return column

    def _book(
        self,
        row: dict[JobKey, Assignment],
        column: dict[NodeName, Assignment],
        old: Assignment | None,
        new: Assignment | None,
    ) -> None:
        assert isinstance(row, OnNode) and isinstance(column, OfJob)
        if old is not None:
            _count(row.sums, column.kinds, old, -1)
        if new is not None:
            _count(row.sums, column.kinds, new, 1)


def _count(
    sums: dict[SlotState, Totals], kinds: dict[Kind, int], assignment: Assignment, sign: int
) -> None:
    for group in assignment.groups:
        number = sign * len(group.slots.numbers)
        sums[group.state] = sums.get(group.state, NOTHING).plus(group.demand, number)
        kind = Kind(group.uid, group.version, group.generation, group.state)
        left = kinds.get(kind, 0) + number
        if left:
            kinds[kind] = left
        else:
            kinds.pop(kind, None)


def sums_of(assignments: Iterable[Assignment]) -> tuple[Totals, Totals]:
    """What assignments of one node hold and promise, added up one by one."""
    row = OnNode()
    kinds: dict[Kind, int] = {}
    for assignment in assignments:
        _count(row.sums, kinds, assignment, 1)
    return row.held, row.promised
