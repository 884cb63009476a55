"""A cluster lived through in the snapshot: the real planners at the real pace, moment by moment.

Here is what `core/outlook.py` foretells without waiting: a clock that goes on, the pace at which a
daemon looks for moves, statuses that say since when, and minutes in which nothing happens.
"""

from ozymandias.core.arbiter import propose
from ozymandias.core.preempt import Lately, displaced_in
from ozymandias.daemon.leisure import Pace
from ozymandias.model.instance import InstanceId, InstanceStatus, JobStatus
from ozymandias.model.job import JobKey
from ozymandias.model.node import Displaced, NodeName
from ozymandias.model.plan import LIVE, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import after, check, report, settled

MOMENT_SECONDS = 0.1  # from one plan to the next
QUIET_SECONDS = 200.0  # in which nothing was done: it rests
PLANS_MAX = 500

Done = tuple[str, str, str]  # an instance, where from, where to


class Lived:
    """``now`` is the cluster, ``done`` what was done to it in that order."""

    def __init__(self, snapshot: Snapshot, wall: float) -> None:
        self.now = snapshot
        self.done: list[Done] = []
        self.wall = wall
        self._pace = Pace()
        self._seen: dict[Displaced, float] = dict.fromkeys(displaced_in(snapshot), 0.0)
        self._told: dict[tuple[NodeName, JobKey], JobStatus] = {}
        self._report()
        self._let_pass(QUIET_SECONDS)
        self._pace.leisure(self.now, self.wall)
        self._let_pass(QUIET_SECONDS)

    def become(self, snapshot: Snapshot) -> None:
        """Somebody else changed it: a lease is gone, a node was added."""
        self.now = replace(snapshot, revision=snapshot.revision + 1)
        self._report()

    def carry_out(self, plan: Plan) -> None:
        before = _places(self.now)
        changed = after(self.now, plan)
        there = _places(changed)
        for instance in dict.fromkeys(edit.instance for edit in plan.edits):
            origin, to = before.get(instance, ""), there.get(instance, "")
            if origin != to:
                self.done.append((str(instance), origin, to))
        self.become(settled(changed))
        check(self.now)

    def rest(self) -> "Lived":
        """Until nothing was done for some minutes."""
        quiet = plans = 0.0
        while quiet < QUIET_SECONDS:
            if plan := self._next():
                plans, quiet = plans + 1, 0.0
                assert plans < PLANS_MAX, "does not come to rest"
                self.carry_out(plan)
                self._let_pass(MOMENT_SECONDS)
            else:
                self._let_pass(1.0)
                quiet += 1.0
        return self

    def lately(self) -> Lately:
        """What is known of displacements until now."""
        self._seen = {one: self._seen.get(one, self.wall) for one in displaced_in(self.now)}
        return Lately(wall=self.wall, boot=self.wall, seen=self._seen)

    def _next(self) -> Plan | None:
        dead = frozenset(name for name, node in self.now.nodes.items() if not node.is_alive)
        lately, leisure = self.lately(), self._pace.leisure(self.now, self.wall)
        found = propose(self.now, dead, self.wall, dead, lately, leisure)
        if found is None and leisure is not None:
            self._pace.looked(self.wall, self.wall)
        return found.plan if found else None

    def _let_pass(self, seconds: float) -> None:
        self.wall += seconds

    def _report(self) -> None:
        """All that runs is healthy, since it was first said to be."""
        told: dict[tuple[NodeName, JobKey], JobStatus] = {}
        for pair, status in report(self.now).statuses.items():
            before = self._told[pair].instances if pair in self._told else {}
            instances = {
                slot: replace(one, since=_since(before.get(slot), one, self.wall))
                for slot, one in status.instances.items()
            }
            told[pair] = replace(status, instances=instances)
        self._told = told
        self.now = replace(self.now, statuses=told)


def _since(before: InstanceStatus | None, one: InstanceStatus, wall: float) -> float:
    is_same = before is not None and replace(before, since=one.since) == one
    return before.since if before and is_same else wall


def _places(snapshot: Snapshot) -> dict[InstanceId, str]:
    return {a.instance: a.node for a in snapshot.instances() if a.state in LIVE}
