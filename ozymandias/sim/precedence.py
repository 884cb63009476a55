"""Who had to leave, for whom, and whether that was right: S11, and what pressure on hosts asks for.

Fed with every revision, from the raw store alone. An instance that ceases to be live on a node that
is there, neither drained nor shed, though its job lacks instances then and nobody asked for any of
it, was displaced. That is inferred from what happened to it, not from what anybody wrote about it.

    S11  reason     somebody of strictly higher priority waits on that node in the same revision, or
                    runs there where the same revision tells that something else is gone, where who
                    had to leave had only waited, or where less was held than was promised
         protected  it was not protected
         again      it had not been displaced within the minute before
    S14  closed     a node under pressure is given no new work
         order      who leaves it has no less priority left there that could have
"""

from collections.abc import Callable

from ozymandias.core.preempt import AGAIN_SECONDS
from ozymandias.model.instance import Assigned, InstanceId, SlotState
from ozymandias.model.job import Job, JobKey, JobKind
from ozymandias.model.node import Ledger, NodeName
from ozymandias.sim import rest
from ozymandias.sim.truth import LIVE, Change, Truth

DRIFT = 0.98  # of a time measured on a clock that may run fast
Lives = dict[InstanceId, Assigned]


class Precedence:
    def __init__(
        self,
        truth: Truth,
        now: Callable[[], float],
        view_seconds: float,
        is_tended: Callable[[NodeName], bool],
    ) -> None:
        self._truth = truth
        self._is_tended = is_tended
        self._now = now
        self._view_seconds = view_seconds
        self._live: dict[JobKey, Lives] = {}
        self._displaced_at: dict[InstanceId, float] = {}
        self._tainted_since: dict[NodeName, float] = {}
        self._shedding_until: dict[NodeName, float] = {}

    def check(self, change: Change, asked: set[JobKey], *, is_trusted: bool) -> list[str]:
        """``asked``: jobs of which somebody wanted something in this revision."""
        self._note_loads(change)
        came: dict[NodeName, list[Assigned]] = {}
        left: list[Assigned] = []
        moved: set[JobKey] = set()
        for job in change.jobs:
            before = self._live.get(job, {})
            after = {a.instance: a for a in self._truth.assigned(job) if a.state in LIVE}
            self._live[job] = after
            new = [a for i, a in after.items() if i not in before or before[i].node != a.node]
            for a in new:
                came.setdefault(a.node, []).append(a)
            if new:
                moved.add(job)
            left += [a for i, a in before.items() if i not in after]
        found: list[str] = []
        for a in left:
            if a.job not in asked | moved and a.node not in change.presences:
                is_free = a.node in change.lost or a.state is SlotState.WAITING
                there = [
                    other
                    for other in came.get(a.node, [])
                    if is_free
                    or other.state is SlotState.WAITING
                    or _was_short(change.ledgers.get(a.node), other)
                ]
                found += self._judge(a, there, change, is_trusted)
        if is_trusted:
            found += self._check_closed(change)
        return found

    def is_displaced(self, node: NodeName, job: JobKey) -> bool:
        """Whether a job waits on a node for what others leave: no room appeared for it."""
        return any(
            a.node == node and a.state is SlotState.WAITING
            for a in self._live.get(job, {}).values()
        )

    # Preemption ---------------------------------------------------------------------------------

    def _judge(
        self, a: Assigned, came: list[Assigned], change: Change, is_trusted: bool
    ) -> list[str]:
        truth, node = self._truth, a.node
        head, spec = truth.heads.get(a.job), truth.spec(a.job)
        ledger, before = truth.ledgers.get(node), change.ledgers.get(node)
        if head is None or spec is None or head.deleting or spec.kind is not JobKind.SERVICE:
            return []
        if node not in truth.presences or ledger is None or ledger.drain:
            return []  # lost with its node, or drained
        if self._is_tended(node) or (before and before.drain):
            return []  # a drain may begin, stop something and end within one revision
        if not rest.is_current(a, head) or len(self._live[a.job]) >= head.wanted:
            return []  # replaced, or one too many
        shed_until = self._shedding_until.get(node)
        if shed_until is not None and not is_trusted:
            return []  # it may have been decided back then
        if shed_until is not None and shed_until >= self._now() - self._view_seconds:
            return [] if came else self._check_order(a, spec)
        return self._check_displaced(a, spec, came)

    def _check_displaced(self, a: Assigned, spec: Job, came: list[Assigned]) -> list[str]:
        found, now = [], self._now()
        winners = [
            priority
            for other in came
            if other.job != a.job and (priority := self._priority(other.job)) is not None
        ]
        if not winners:
            found.append(f"S11 {a.instance} had to leave {a.node}, and nobody came for whom")
        elif max(winners) <= spec.priority:
            numbers = f"{max(winners)} is not above {spec.priority}"
            found.append(f"S11 {a.instance} had to leave {a.node} for its like: {numbers}")
        if spec.is_protected:
            found.append(f"S11 {a.instance} is protected, and had to leave {a.node}")
        last = self._displaced_at.get(a.instance)
        if last is not None and now - last < AGAIN_SECONDS * DRIFT:
            found.append(f"S11 {a.instance} had to leave again after {now - last:.1f} s")
        self._displaced_at[a.instance] = now
        return found

    def _priority(self, job: JobKey) -> int | None:
        spec = self._truth.spec(job)
        return spec.priority if spec else None

    # Pressure -----------------------------------------------------------------------------------

    def _note_loads(self, change: Change) -> None:
        now = self._now()
        for node in change.loads:
            load = self._truth.loads.get(node)
            if load and load.taint:
                self._tainted_since.setdefault(node, now)
            else:
                self._tainted_since.pop(node, None)
        for node, load in self._truth.loads.items():
            if load.shed_to >= 0:
                self._shedding_until[node] = now

    def _check_closed(self, change: Change) -> list[str]:
        found, lately = [], self._now() - self._view_seconds
        for node, job in sorted(change.given):
            spec = self._truth.spec(job)
            is_service = spec is not None and spec.kind is JobKind.SERVICE
            since = self._tainted_since.get(node)
            if is_service and since is not None and since < lately and job not in self._old(job):
                found.append(f"S14 {job} was given to {node}, which is under pressure")
        return found

    def _old(self, job: JobKey) -> set[JobKey]:
        """A change goes on where the old instances are: stop-first needs no new room."""
        head = self._truth.heads.get(job)
        live = self._truth.assigned(job)
        return {job} if head and any(not rest.is_current(a, head) for a in live) else set()

    def _check_order(self, a: Assigned, spec: Job) -> list[str]:
        if spec.is_protected:
            return [f"S14 {a.instance} is protected, and had to leave {a.node}"]
        for lives in self._live.values():
            for other in lives.values():
                lower = self._truth.spec(other.job)
                head = self._truth.heads.get(other.job)
                if (
                    other.node == a.node
                    and lower is not None
                    and head is not None
                    and not head.deleting
                    and lower.kind is JobKind.SERVICE
                    and lower.priority < spec.priority
                    and not lower.is_protected
                    and not rest.floor_of(lower, 1)
                    and all(rest.is_current(each, head) for each in lives.values())
                    and len(lives) <= head.wanted
                ):
                    return [f"S14 {a.instance} had to leave {a.node} before {other.instance}"]
        return []


def _was_short(ledger: Ledger | None, came: Assigned) -> bool:
    """Whether so much was promised that somebody had to leave, though it could run at once."""
    if ledger is None:
        return False
    both = ledger.promised.resources + came.demand.resources
    is_taken = not set(ledger.promised.host_ports).isdisjoint(came.demand.host_ports)
    return is_taken or not both.fits_in(ledger.allocatable)
