"""What daemons do of their own accord, held against what they promised: S10, and who comes first.

Fed by the witness with every revision and with the pods that ceased to run in it, from the raw
store alone. What a user asked for in the same revision is not judged, nor what was decided on a
view of the cluster that may be old.

    S10  floor     an own action takes no healthy instance where `min_available` needs it
         drain     a drain stops what is healthy only where as many as are wanted are healthy, or
                   at home as many as a burst leaves there
         move      what moves to be better placed stops where it was only when it is healthy where
                   it goes; of one job never two at once
    F1   freeze    in a freeze window no instance is replaced, unless somebody said why, or a node
                   is drained; what changes the settings comes before or after, never in between
    L3   priority  room that appeared goes to the highest priority that fits into it, and so does
                   what is left after a loss

One revision may hold several decisions, in an order that it does not tell: what was decided before
or after something else that the same revision did there is not judged by that.

Statuses are not compared by a commit, so what was true half a second ago counts as true.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from ozymandias.core.pods import pod_id
from ozymandias.model.instance import Assigned, InstanceState, InstanceStatus, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, JobKind, OnPartition
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.pod import PodId
from ozymandias.sim import rest
from ozymandias.sim.precedence import Precedence
from ozymandias.sim.truth import LIVE, Change, Truth

VIEW_SECONDS = 0.5  # how far behind a well daemon's view of the store may be
NEVER = float("-inf")


class Conduct:
    def __init__(
        self, truth: Truth, now: Callable[[], float], is_tended: Callable[[NodeName], bool]
    ) -> None:
        self._truth = truth
        self._now = now
        self._is_tended = is_tended
        self._ready: dict[JobKey, dict[PodId, float]] = {}  # healthy, and since when
        self._ready_until: dict[JobKey, dict[PodId, float]] = {}  # no more, and until when
        self._lost: dict[JobKey, dict[PodId, float]] = {}  # ready on a node that was given up
        self._head_since: dict[JobKey, float] = {}
        self._live: dict[JobKey, Counter[NodeName]] = {}
        self._missing_since: dict[JobKey, float] = {}
        self._precedence = Precedence(truth, now, VIEW_SECONDS, is_tended)

    def check(
        self,
        change: Change,
        heads: Mapping[JobKey, JobHead | None],
        ended: Sequence[PodId],
        handed: Set[NodeName] = frozenset(),
        *,
        is_trusted: bool,
    ) -> list[str]:
        """``heads``: of jobs whose head was written, as it was before; ``ended``: to run no more.

        ``handed``: nodes that another machine stands for, whose pods are not those of the former.
        ``is_trusted``: a daemon wrote this, with a view that is not old.
        """
        for job in change.named:
            self._note_statuses(job)
        asked = {
            job for job, before in heads.items() if _differ(before, self._truth.heads.get(job))
        }
        for job in asked:
            self._head_since[job] = self._now()
        found = self._precedence.check(change, asked, is_trusted=is_trusted)
        stopped: dict[JobKey, list[PodId]] = {}
        there = self._truth.presences.keys() - handed
        for pod in ended:
            if pod.node in there:
                stopped.setdefault(pod.key, []).append(pod)
            elif (since := self._ready.get(pod.key, {}).get(pod)) is not None:
                self._lost.setdefault(pod.key, {})[pod] = max(since, self._now())
        if is_trusted:
            for job in stopped.keys() - asked:
                found += self._check_floor(job, stopped[job], change)
            for job in heads.keys() - asked:
                found += self._check_move(job, heads[job], stopped.get(job, ()))
        if change.is_schedule:
            found += self._check_freeze(change, asked, stopped)
            lost = {pod.key for pod in ended if pod.node not in there}
            outdated = {pod.key for pod in ended if not self._is_current(pod)}
            found += self._check_priority(change, asked, lost, outdated, is_trusted)
        return found

    # Healthy instances --------------------------------------------------------------------------

    def _note_statuses(self, job: JobKey) -> None:
        now, before = self._now(), self._ready.get(job, {})
        ready = {
            PodId(
                node=node,
                namespace=job.namespace,
                job=job.name,
                slot=slot,
                uid=status.uid,
                version=status.version,
                generation=status.generation,
            )
            for node, told in self._truth.statuses.get(job, {}).items()
            for slot, status in told.items()
            if _is_ready(status)
        }
        self._ready[job] = {pod: before.get(pod, now) for pod in ready}
        until = self._ready_until.setdefault(job, {})
        until.update((pod, now) for pod in before.keys() - ready)

    def _check_floor(self, job: JobKey, stopped: Sequence[PodId], change: Change) -> Iterator[str]:
        truth, now = self._truth, self._now()
        head, spec = truth.heads.get(job), truth.spec(job)
        if head is None or head.deleting or spec is None or self._is_new(job):
            return
        ready = self._ready.get(job, {})
        served = [pod for pod in stopped if ready.get(pod, now) < now - VIEW_SECONDS]
        if not served:
            return
        instances = list(truth.assigned(job))
        running = {pod_id(a) for a in instances if a.state is SlotState.RUNNING}
        late = [self._ready_until.get(job, {}), self._lost.get(job, {})]
        lately = {p for times in late for p, t in times.items() if t >= now - VIEW_SECONDS}
        lost = {p for p in lately if p.node not in truth.presences}
        serving = running & (ready.keys() | lately) | lost
        healthy = len(serving)
        floor, wanted = rest.floor_of(spec, head.wanted), head.wanted
        if healthy < floor:
            name = served[0].name
            yield f"S10 {name} was stopped: {healthy} of {job} are healthy, {floor} must be"
            return
        # Those that leave because a deadline is past need not be replaced, and others may not know.
        hurried = [pod for pod in served if self._is_hurried(pod.node, change)]
        drained = [
            pod
            for pod in served
            if self._is_moved(pod, instances, spec, head, change)
            and not _is_beyond_home(pod, spec, serving)
        ]
        if drained and healthy + len(hurried) < wanted:
            name = drained[0].name
            yield f"S10 {name} was drained: {healthy} of {job} are healthy, {wanted} are wanted"

    def _is_hurried(self, node: NodeName, change: Change) -> bool:
        """Whether its drain has a deadline, or had one before this revision."""
        ledgers = self._truth.ledgers.get(node), change.ledgers.get(node)
        return any(ledger and ledger.drain and ledger.drain.deadline for ledger in ledgers)

    def _is_moved(
        self,
        pod: PodId,
        instances: Sequence[Assigned],
        spec: Job,
        head: JobHead,
        change: Change,
    ) -> bool:
        """Whether a drain without a deadline is what stopped it: that one starts others first.

        A drain that begins in the same revision may have begun when it was to stop already, and
        one that loses its deadline there may have acted on it before.
        """
        ledger, before = self._truth.ledgers.get(pod.node), change.ledgers.get(pod.node)
        return (
            ledger is not None
            and ledger.drain is not None
            and before is not None
            and before.drain is not None
            and not self._is_hurried(pod.node, change)
            and (pod.uid, pod.version) == (head.uid, head.version)
            and spec.kind is JobKind.SERVICE
            and spec.on_partition is not OnPartition.STOP
            and all(rest.is_current(a, head) for a in instances if a.state in LIVE)
        )

    def _check_move(
        self, job: JobKey, before: JobHead | None, stopped: Sequence[PodId]
    ) -> Iterator[str]:
        """Judged by the notes that the job's head had and has, and by who is healthy."""
        after = self._truth.heads.get(job)
        if before is None or after is None or self._is_new(job):
            return
        old = before.move if before.move and not before.move.given_up else None
        new = after.move if after.move and not after.move.given_up else None
        if old and new and (old.slot, old.to_slot) != (new.slot, new.to_slot):
            yield f"S10 {job}-{new.slot} begins to move while {job}-{old.slot} is moving"
        elif new and not old and len(self._truth.live(job)) > after.wanted + 1:
            yield f"S10 {job} has {len(self._truth.live(job))} of {after.wanted} as it moves one"
        if old and after.move is None:
            served = [p for p in stopped if (p.node, p.slot) == (old.node, old.slot)]
            since = max((self._ready.get(job, {}).get(p, NEVER) for p in served), default=NEVER)
            was_served = NEVER < since < self._now() - VIEW_SECONDS
            if was_served and not self._was_ready(job, old.to, old.to_slot):
                yield f"S10 {served[0].name} was moved before it was healthy on {old.to}"

    def _was_ready(self, job: JobKey, node: str, slot: int) -> bool:
        """Whether it is healthy, or was a moment ago."""
        lately = self._now() - VIEW_SECONDS
        until = self._ready_until.get(job, {}).items()
        ready = {*self._ready.get(job, {}), *(pod for pod, end in until if end >= lately)}
        return any((pod.node, pod.slot) == (node, slot) for pod in ready)

    def _is_new(self, job: JobKey) -> bool:
        """Whether somebody changed it so lately that not all may have seen it."""
        return self._now() - self._head_since.get(job, NEVER) < VIEW_SECONDS

    # Freeze windows -----------------------------------------------------------------------------

    def _check_freeze(
        self, change: Change, asked: set[JobKey], stopped: Mapping[JobKey, Sequence[PodId]]
    ) -> Iterator[str]:
        """New beside old, or new for old: that is a rollout, whatever its planner says.

        The windows of a simulation hold at any time.
        """
        truth = self._truth
        if not truth.settings.freezes or change.settles:
            return
        for job in sorted(change.jobs - asked):
            head, live = truth.heads.get(job), Counter(truth.live(job).values())
            before = self._live.get(job, Counter())
            more = live - before
            for node in change.presences:
                more.pop(node, None)
            if not more or head is None or head.deleting or head.override_freeze:
                continue
            instances = list(truth.assigned(job))
            # What was on a drained node may have been stopped and be gone within one revision.
            nodes = {*before, *(a.node for a in instances)}
            if any(self._is_drained(change, node) for node in nodes):
                continue
            is_mixed = any(a.state in LIVE and not rest.is_current(a, head) for a in instances)
            old = [pod for pod in stopped.get(job, ()) if not rest.is_current(pod, head)]
            if old or (is_mixed and self._is_one_more(job, head, live.total())):
                yield f"F1 {job} is rolled out in a freeze window"

    def _is_drained(self, change: Change, node: NodeName) -> bool:
        """Whether it is, was until this revision, or may have been within it."""
        ledgers = change.ledgers.get(node), self._truth.ledgers.get(node)
        return self._is_tended(node) or any(ledger and ledger.drain for ledger in ledgers)

    def _is_one_more(self, job: JobKey, head: JobHead, live: int) -> bool:
        spec = self._truth.spec(job)
        return spec is not None and spec.kind is JobKind.SERVICE and live > head.wanted

    # Priority -----------------------------------------------------------------------------------

    def _is_current(self, pod: PodId) -> bool:
        head = self._truth.heads.get(pod.key)
        return head is not None and rest.is_current(pod, head)

    def _check_priority(
        self,
        change: Change,
        asked: set[JobKey],
        lost: set[JobKey],
        outdated: set[JobKey],
        is_trusted: bool,
    ) -> list[str]:
        """Who lacked instances and got some: did nobody more important lack them too?"""
        truth, now = self._truth, self._now()
        gained: dict[JobKey, Counter[NodeName]] = {}
        lacked: set[JobKey] = set()
        for job in change.jobs:
            head = truth.heads.get(job)
            before = self._live.get(job, Counter())
            live = self._live[job] = Counter(truth.live(job).values())
            more = live - before
            for node in change.presences:  # what it goes on with as it joins was not given to it
                more.pop(node, None)
            if more:
                gained[job] = more
            if job in self._missing_since:
                lacked.add(job)
            is_missing = head is not None and not head.deleting and live.total() < head.wanted
            if is_missing:
                self._missing_since.setdefault(job, now)
            else:
                self._missing_since.pop(job, None)
        if not is_trusted or change.settles:
            return []
        # A repair looks after those only that have just lost something.
        is_repair = bool(change.lost - truth.presences.keys())
        concerned, rivals = lacked, self._missing_since.keys() - lost
        if is_repair:
            concerned, rivals = lost, (self._missing_since.keys() & lost) - outdated
        lately = now - VIEW_SECONDS
        rivals = {r for r in rivals if is_repair or self._missing_since[r] <= lately}
        found: list[str] = []
        plain = {
            job: there
            for job, nodes in gained.items()
            if (
                there := Counter(
                    {n: c for n, c in nodes.items() if self._is_plainly_given(change, n)}
                )
            )
        }
        for job in sorted((plain.keys() & concerned) - asked):
            found += self._check_first(job, plain, rivals - gained.keys())
        return found

    def _is_plainly_given(self, change: Change, node: NodeName) -> bool:
        """Whether a revision did nothing else there that makes room, or lets others in."""
        before, after = change.ledgers.get(node), self._truth.ledgers.get(node)
        if before is None or after is None or node in change.lost | change.freed:
            return False
        return (before.takes_work, before.all_labels) == (after.takes_work, after.all_labels)

    def _check_first(
        self, job: JobKey, gained: Mapping[JobKey, Counter[NodeName]], rivals: set[JobKey]
    ) -> Iterator[str]:
        truth = self._truth
        head, spec = truth.heads.get(job), truth.spec(job)
        if head is None or spec is None or not self._is_plain(job, head, spec):
            return
        for other in sorted(rivals):
            rival = truth.spec(other)
            if (
                rival is None
                or rival.kind is not JobKind.SERVICE
                or rival.priority <= spec.priority
            ):
                continue
            if self._is_new(other) or gained.keys() & {n.job for n in rival.placement.near}:
                continue  # what it has to be near to came only now
            for node, count in sorted(gained[job].items()):
                if self._precedence.is_displaced(node, job):
                    continue  # others leave for it; its rival may not want that
                given = [Demand.of(spec)] * count
                there = self._live.get(other, Counter())
                if rest.may_have(truth, node, rival, there) and rest.fits_beside(
                    truth, node, Demand.of(rival), given
                ):
                    yield f"L3 {node} got {job}, though {other} comes first and would have fitted"

    def _is_plain(self, job: JobKey, head: JobHead, spec: Job) -> bool:
        """Neither in the middle of a change nor moved by a drain: those have their own order."""
        return spec.kind is JobKind.SERVICE and all(
            rest.is_current(a, head)
            and (ledger := self._truth.ledgers.get(a.node)) is not None
            and not ledger.drain
            for a in self._truth.assigned(job)
        )


def _is_beyond_home(pod: PodId, spec: Job, serving: Set[PodId]) -> bool:
    """Whether it was at home where a burst leaves no more than serve there without it.

    What is missing then waits for the burst's nodes, so nothing at home is missing.
    """
    burst = spec.placement.burst
    if burst is None or pod.node in burst.nodes:
        return False
    return sum(other.node not in burst.nodes for other in serving) >= burst.after


def _is_ready(status: InstanceStatus) -> bool:
    return status.healthy or status.state is InstanceState.COMPLETED


def _differ(before: JobHead | None, after: JobHead | None) -> bool:
    """Whether somebody asked for something: every commit rewrites heads."""
    if before is None or after is None:
        return True
    return (before.uid, before.version, before.wanted, before.restart, before.deleting) != (
        after.uid,
        after.version,
        after.wanted,
        after.restart,
        after.deleting,
    )
