"""Assignments of this node -> pods of its runtime.

Level-triggered: whatever wakes it (a change of this node's assignments, of its pods, of its
session, a time that is due), it takes the newest snapshot and the observed pods, asks
`core.reconcile` what to do, and has it done: in order within a pod, at once across pods, a few at
a time. A pod that is being worked on is left alone until that is done, so a call that hangs holds
up its own pod only. Failures are remembered with their reason and tried again after a while.

It never acts on a snapshot older than its session or its own last commit. Without a session it
makes, stops and removes nothing; it only starts again what ended, by its policy. Just before
anything is made, first started or stopped, session and assignment are checked once more.
"""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace

from ozymandias.core import memory as memories
from ozymandias.core.pods import pod_id, pod_of
from ozymandias.core.reconcile import Wanted, by_pod, reconcile
from ozymandias.core.vacate import plan_vacate
from ozymandias.daemon.events import EventLog
from ozymandias.daemon.keeping import Keeper
from ozymandias.daemon.local_pods import LocalPods, Wake
from ozymandias.daemon.membership import Membership, Session
from ozymandias.daemon.statuses import StatusWriter
from ozymandias.daemon.work import Abandoned, Worker
from ozymandias.model.instance import Assigned, Assignment, SlotState
from ozymandias.model.job import JobVersion
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Action, Plan
from ozymandias.model.pod import PodId
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Clock, Runtime, RuntimeFailed, RuntimeHung, StoreError
from ozymandias.problems import Problem
from ozymandias.store.commit import Committer
from ozymandias.store.mirror import Mirror
from ozymandias.telemetry import log, warn

RELIST_SECONDS = 10.0  # a net below the runtime's change events; how a hanging one is noticed
SETTLE_SECONDS = 1.5  # while we work on pods ourselves, listing them would be in the way
LIST_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
DRAIN_SECONDS = 0.5  # from names withdrawn to the stop, so that the edge has seen it
WITHDRAW_SECONDS_MAX = 5.0  # how long a stop waits for its names to be withdrawn
COMMIT_RETRY_SECONDS = 1.0
FOLLOW_RETRY_SECONDS = 1.0
GONE = "gone"  # the goal for a pod that is not assigned here

_Signature = tuple[tuple[Assignment, tuple[JobVersion | None, ...]], ...]


class Executor:
    def __init__(
        self,
        *,
        node: NodeName,
        host_ip: str,
        api: str,
        local: LocalPods,
        mirror: Mirror,
        committer: Committer,
        membership: Membership,
        runtime: Runtime,
        clock: Clock,
        events: EventLog,
        statuses: StatusWriter,
        keeper: Keeper,
    ) -> None:
        self._node = node
        self._host_ip = host_ip
        self._api = api
        self._local = local
        self._mirror = mirror
        self._committer = committer
        self._membership = membership
        self._runtime = runtime
        self._clock = clock
        self._events = events
        self._statuses = statuses
        self._keeper = keeper
        self._worker = Worker(
            local=local,
            runtime=runtime,
            clock=clock,
            events=events,
            keeper=keeper,
            may_begin=self._may_begin,
            may_end=self._may_end,
        )
        self.degraded = ""  # why this node takes no new work
        self._list_at = 0.0  # when to list the runtime's pods (again); Clock.boot()
        self._list_failures = 0
        self._is_seeing = False  # the last listing succeeded; otherwise nothing is done
        self._unseen: set[PodId] = set()  # worked on since the last listing began
        self._signature: _Signature = ()
        self._is_behind = False  # the mirror has yet to show our own last write
        self._committed = 0
        self._withdrawing: dict[PodId, float] = {}  # since when a stop waits for its names
        self._vacating = Wake()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_mirror())
            group.create_task(self._follow_runtime())
            group.create_task(self._follow_session())
            group.create_task(self._vacate_slots())
            while True:
                look_at = await self._look(group)
                await self._local.execution.wait(max(0.0, look_at - self._clock.boot()))

    # What wakes it ------------------------------------------------------------------------------

    async def _follow_mirror(self) -> None:
        revision = -1
        while True:
            revision = await self._mirror.changed(revision)
            snapshot = self._mirror.snapshot()
            if self._is_behind or self._signature_of(snapshot) != self._signature:
                self._local.execution.set()
            if any(a.state is not SlotState.RUNNING for a in self._local.assigned):
                self._vacating.set()  # room elsewhere may be what a waiting slot waits for

    async def _follow_runtime(self) -> None:
        while True:
            try:
                async for _ in self._runtime.changes():
                    settle = SETTLE_SECONDS if self._local.busy else 0.0
                    self._list_soon(settle)
            except RuntimeFailed as error:
                warn("runtime.changes_lost", reason=str(error))
            await asyncio.sleep(FOLLOW_RETRY_SECONDS)
            self._list_soon()

    async def _follow_session(self) -> None:
        while True:
            await self._membership.changed()
            self._local.execution.set()
            self._vacating.set()

    def _list_soon(self, after_seconds: float = 0.0) -> None:
        if self._list_failures:
            return  # it is tried again at its own pace
        self._list_at = min(self._list_at, self._clock.boot() + after_seconds)
        self._local.execution.set()

    # One look -----------------------------------------------------------------------------------

    async def _look(self, group: asyncio.TaskGroup) -> float:
        """Make right what is wrong; the time of the next look, if nothing wakes us before."""
        if self._list_at <= self._clock.boot():
            await self._list()
            for seen in self._keeper.fresh(self._local.observed.values()):
                group.create_task(self._keeper.observed(seen))
        session = self._membership.valid()
        if not self._is_seeing or not self._mirror.is_ready:
            return self._list_at
        snapshot = self._mirror.snapshot()
        self._is_behind = snapshot.revision < self._floor(session)
        if self._is_behind:
            return self._list_at
        now = self._clock.boot()
        self._refresh(snapshot)
        self._local.revision = snapshot.revision
        self._take_in(snapshot, now)
        look_at = self._drain(now) if session else None
        self._worker.cancel_pulls(self._is_to_run)
        local = self._local
        agenda = reconcile(
            local.wanted.values(),
            local.observed,
            local.memories,
            now,
            has_session=session is not None,
            busy=self._unseen,
        )
        self._settle({action.pod for action in agenda.actions}, now)
        for pod, actions in itertools.groupby(_by_pod(agenda.actions), key=lambda a: a.pod):
            self._local.busy.add(pod)
            self._unseen.add(pod)
            group.create_task(self._work(pod, tuple(actions)))
        local.is_known = True
        for wake in (local.statuses, local.probing, self._vacating):
            wake.set()
        times = (self._list_at, agenda.look_at, look_at)
        return min(time for time in times if time is not None)

    def _floor(self, session: Session | None) -> int:
        return max(session.revision if session else 0, self._committed)

    async def _list(self) -> None:
        """Observe the runtime. What is being worked on stays as it is in our books.

        Also what is done before the answer is here: the answer may be older than the work.
        """
        busy = frozenset(self._local.busy)
        self._list_at = self._clock.boot() + RELIST_SECONDS
        try:
            found = await self._runtime.list_pods()
        except RuntimeFailed as error:
            pause = LIST_RETRY_SECONDS[min(self._list_failures, len(LIST_RETRY_SECONDS) - 1)]
            self._list_failures += 1
            self._list_at = self._clock.boot() + pause
            self._is_seeing = False
            if self._list_failures > 1 or isinstance(error, RuntimeHung):
                self._set_degraded(f"the container runtime does not answer: {error}")
            return
        self._list_failures = 0
        self._set_degraded("")
        kept = {pod: seen for pod, seen in self._local.observed.items() if pod in busy}
        fresh = {seen.id: seen for seen in found if seen.id not in busy}
        self._local.observed = kept | fresh
        self._unseen = set(busy)
        self._is_seeing = True

    def _set_degraded(self, reason: str) -> None:
        if bool(reason) != bool(self.degraded):
            kind = "node.degraded" if reason else "node.recovered"
            self._events.emit(kind, reason or "the container runtime answers again")
        if reason != self.degraded:
            self.degraded = reason
            self._membership.poke()

    def _refresh(self, snapshot: Snapshot) -> None:
        """What this node is to run, read anew when its assignments have changed."""
        signature = self._signature_of(snapshot)
        if signature == self._signature and self._local.is_known:
            return
        self._signature = signature
        self._local.assigned = tuple(snapshot.instances_on(self._node))
        wanted = (self._wanted(snapshot, assigned) for assigned in self._local.assigned)
        self._local.wanted = by_pod(wanted)

    def _signature_of(self, snapshot: Snapshot) -> _Signature:
        """Everything of a snapshot that this node's pods depend on."""
        own = {job: a for (node, job), a in snapshot.assignments.items() if node == self._node}
        found = []
        for job, assignment in sorted(own.items(), key=lambda item: item[0]):
            record = snapshot.jobs.get(job)
            versions = record.versions if record else {}
            found.append((assignment, tuple(versions.get(g.version) for g in assignment.groups)))
        return tuple(found)

    def _wanted(self, snapshot: Snapshot, assigned: Assigned) -> Wanted:
        record = snapshot.jobs.get(assigned.job)
        version = record.versions.get(assigned.version) if record else None
        pod = pod_of(assigned, version, host_ip=self._host_ip, api=self._api) if version else None
        return Wanted(id=pod_id(assigned), state=assigned.state, pod=pod)

    def _take_in(self, snapshot: Snapshot, now: float) -> None:
        """Bring the memory up to what is observed; recall what a former daemon knew."""
        local, wall = self._local, self._clock.wall()
        told = {pod_id(a): snapshot.status(a) for a in local.assigned}
        known: dict[PodId, memories.PodMemory] = {}
        for pod in sorted(local.wanted.keys() | local.observed.keys() | self._unseen):
            want, seen, memory = (
                local.wanted.get(pod),
                local.observed.get(pod),
                local.memories.get(pod),
            )
            spec = want.pod if want else None
            if pod not in self._unseen and seen is not None and spec is not None:
                if memory is None or memory.goal == GONE:
                    memory = memories.recall(spec, seen, told.get(pod), now=now, wall=wall)
                else:
                    memory = memories.take_in(memory, spec, seen, now=now, wall=wall)
            if memory is None and spec is None and want is not None:
                continue  # once its version can be read it is recalled
            goal = str(want.state) if want else GONE
            known[pod] = memories.aim(memory or memories.NOTHING, goal)
        local.memories = known

    def _settle(self, acted_upon: set[PodId], now: float) -> None:
        """A failed attempt is forgotten once there is nothing left to attempt."""
        for pod, memory in self._local.memories.items():
            is_over = memory.trouble and memory.retry_at <= now
            if is_over and pod not in acted_upon and pod not in self._unseen:
                self._local.memories[pod] = memories.succeeded(memory)

    def _drain(self, now: float) -> float | None:
        """Let pods that are to stop leave names and routes first; the time to look again."""
        local, look_at = self._local, None
        for pod, want in sorted(local.wanted.items()):
            memory = local.memory(pod)
            is_stopping = want.state is SlotState.STOPPING and pod in local.observed
            if not is_stopping or memory.drain_until is not None:
                self._withdrawing.pop(pod, None)
                continue
            since = self._withdrawing.setdefault(pod, now)
            if self._statuses.shows_healthy(pod) and now < since + WITHDRAW_SECONDS_MAX:
                give_up_at = since + WITHDRAW_SECONDS_MAX
                look_at = give_up_at if look_at is None else min(look_at, give_up_at)
                continue
            was_healthy = want.pod is not None and memories.is_healthy(memory, want.pod)
            until = now + DRAIN_SECONDS if was_healthy else now
            local.memories[pod] = replace(memory, drain_until=until)
        return look_at

    # Doing it -----------------------------------------------------------------------------------

    async def _work(self, pod: PodId, actions: tuple[Action, ...]) -> None:
        try:
            await self._worker.perform(pod, actions)
        except Abandoned as why:
            log("work.abandoned", pod=pod.name, reason=str(why))
        finally:
            self._local.busy.discard(pod)
            self._list_soon()

    def _may_begin(self, pod: PodId) -> str:
        """Why this pod must not be made or started now; "" when it may."""
        if self._membership.valid() is None:
            return "there is no session"
        return "" if self._is_to_run(pod) else "it is not to run here any more"

    def _may_end(self, pod: PodId) -> str:
        """Why this pod must not be stopped now; "" when it may."""
        session = self._membership.valid()
        if session is None:
            return "there is no session"
        if self._mirror.revision < self._floor(session):
            return "what is known of the cluster is too old"
        return "it is to run here after all" if self._is_to_run(pod) else ""

    def _is_to_run(self, pod: PodId) -> bool:
        """By the newest snapshot; a slot that is to stop first is not."""
        assignment = self._mirror.snapshot().assignments.get((self._node, pod.key))
        states = [
            group.state
            for group in (assignment.groups if assignment else ())
            if pod.slot in group.slots
            and (group.uid, group.version, group.generation)
            == (pod.uid, pod.version, pod.generation)
        ]
        return SlotState.RUNNING in states and SlotState.STOPPING not in states

    # Giving slots back --------------------------------------------------------------------------

    async def _vacate_slots(self) -> None:
        """Release stopping slots whose pods are gone, let waiting ones run that now may."""
        while True:
            await self._vacating.wait()
            while self._has_slots_to_vacate():
                try:
                    outcome = await self._committer.commit(self._decide_vacate)
                except StoreError as error:
                    warn("vacate.not_committed", reason=str(error))
                    await asyncio.sleep(COMMIT_RETRY_SECONDS)
                    continue
                if isinstance(outcome, Problem):
                    warn("vacate.not_committed", reason=outcome.detail)
                    await asyncio.sleep(COMMIT_RETRY_SECONDS)
                    continue
                self._committed = max(self._committed, outcome.revision)
                self._events.narrate(outcome.plan)
                self._local.execution.set()

    def _has_slots_to_vacate(self) -> bool:
        session = self._membership.valid()
        if session is None or not self._is_seeing or not self._local.is_known:
            return False
        snapshot = self._mirror.snapshot()
        if snapshot.revision < self._floor(session):
            return False
        plan = self._decide_vacate(snapshot)
        return plan is not None and not plan.is_empty

    def _decide_vacate(self, snapshot: Snapshot) -> Plan | None:
        present = frozenset(self._local.observed.keys() | self._local.busy)
        return plan_vacate(snapshot, self._node, present)


def _by_pod(actions: Iterable[Action]) -> list[Action]:
    """Actions of one pod side by side, their order kept."""
    return sorted(actions, key=lambda action: action.pod)
