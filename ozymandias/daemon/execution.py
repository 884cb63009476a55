"""Assignments of this node -> pods of its runtime.

Level-triggered: whatever wakes it (a change of this node's assignments, of its pods, of its
session, a time that is due), it takes the newest snapshot and the observed pods, asks
`core.reconcile` what to do, and has it done: in order within a pod, at once across pods, a few at
a time. A pod that is being worked on is left alone until that is done, so a call that hangs holds
up its own pod only. Failures are remembered with their reason and tried again after a while.

A look sees to the instances that something changed of, or whose time has come (LocalPods and
Timetable gather them); to all of them in a new session, and now and then in any case.

It never acts on a snapshot older than its session or its own last commit. Without a session it
makes, stops and removes nothing; it only starts again what ended, by its policy; nor before what
runs here is counted, where the node could not do so when it joined. Just before anything is made,
first started or stopped, session and assignment are checked once more.
"""

import asyncio
import itertools
from collections.abc import Collection, Iterable

from ozymandias.core import memory as memories
from ozymandias.core.pods import pod_id, pod_of
from ozymandias.core.reconcile import Wanted, by_pod, reconcile
from ozymandias.core.vacate import plan_vacate
from ozymandias.daemon.events import EventLog
from ozymandias.daemon.keeping import Keeper
from ozymandias.daemon.local_pods import LocalPods, Wake
from ozymandias.daemon.membership import Membership, Session
from ozymandias.daemon.own_jobs import OwnJobs
from ozymandias.daemon.statuses import StatusWriter
from ozymandias.daemon.timetable import Timetable
from ozymandias.daemon.work import Abandoned, Worker
from ozymandias.model.instance import (
    Assigned,
    InstanceId,
    InstanceStatus,
    SlotState,
)
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Action, Plan
from ozymandias.model.pod import ObservedPod, PodId
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Clock, Guard, Runtime, RuntimeFailed, RuntimeHung, StoreError
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
        guard: Guard,
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
            guard=guard,
            may_begin=self._may_begin,
            may_end=self._may_end,
        )
        self.degraded = ""  # why this node takes no new work
        self._list_at = 0.0  # when to list the runtime's pods (again); Clock.boot()
        self._list_failures = 0
        self._is_seeing = False  # the last listing succeeded; otherwise nothing is done
        self._unseen: set[PodId] = set()  # worked on since the last listing began
        self._jobs = OwnJobs(node, mirror)
        self._slots: dict[JobKey, frozenset[int]] = {}  # of each job, as far as it is read
        self._times = Timetable()
        self._all_at = 0.0  # when to look at everything, whatever has changed
        self._session: Session | None = None  # of the last look
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
            if self._jobs.has_changed() or self._is_behind:
                self._local.execution.set()
            if self._jobs.is_restless:
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
            for seen in self._keeper.fresh(await self._list()):
                group.create_task(self._keeper.observed(seen))
        session = self._membership.settled()
        if not self._is_seeing or not self._mirror.is_ready:
            return self._list_at
        snapshot = self._mirror.snapshot()
        self._is_behind = snapshot.revision < self._floor(session)
        if self._is_behind:
            return self._list_at
        now = self._clock.boot()
        self._refresh(snapshot)
        concerned = self._concerned(session, now)
        self._take_in(concerned, snapshot, now)
        if session:
            self._drain(concerned, now)
        self._worker.cancel_pulls(self._is_to_run)
        actions = self._reconcile(concerned, now, has_session=session is not None)
        for pod, steps in itertools.groupby(actions, key=lambda action: action.pod):
            self._local.begin(pod)
            self._unseen.add(pod)
            group.create_task(self._work(pod, tuple(steps)))
        local = self._local
        local.execution.take()  # our own changes just now; they are part of what we have seen to
        local.is_known = True
        for wake in (local.statuses, local.probing, self._vacating):
            wake.set()
        times = (self._list_at, self._times.first())
        return min(time for time in times if time is not None)

    def _concerned(self, session: Session | None, now: float) -> list[InstanceId]:
        """The instances to see to in this look."""
        local = self._local
        if session is not self._session or now >= self._all_at:
            self._session, self._all_at = session, now + RELIST_SECONDS
            self._keeper.forget_others(local.observed)
            local.touch_all()
        withdrawn = {
            pod.instance for pod in self._withdrawing if not self._statuses.shows_healthy(pod)
        }
        return sorted(local.execution.take() | self._times.take(now) | withdrawn)

    def _reconcile(
        self, concerned: Iterable[InstanceId], now: float, *, has_session: bool
    ) -> list[Action]:
        """What to do, pod by pod and in order; puts down when to look again."""
        local, found = self._local, list[Action]()
        for instance in concerned:
            pods = local.pods_of(instance)
            agenda = reconcile(
                [local.wanted[pod] for pod in pods if pod in local.wanted],
                {pod: local.observed[pod] for pod in pods if pod in local.observed},
                local.memories,
                now,
                has_session=has_session,
                busy=self._unseen,
            )
            self._settle(pods, {action.pod for action in agenda.actions}, now)
            found += agenda.actions
            times = [] if agenda.look_at is None else [agenda.look_at]
            if has_session:  # without one nothing is drained: there is nothing to be in time for
                waiting = [pod for pod in pods if pod in self._withdrawing]
                times += [self._withdrawing[pod] + WITHDRAW_SECONDS_MAX for pod in waiting]
            self._times.put(instance, min(times, default=None))
        return sorted(found, key=lambda action: action.pod)

    def _floor(self, session: Session | None) -> int:
        return max(session.revision if session else 0, self._committed)

    async def _list(self) -> list[ObservedPod]:
        """Observe the runtime; the pods of which something is new.

        What is being worked on stays as it is in our books, also what is done before the answer
        is here: the answer may be older than the work.
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
            return []
        self._list_failures = 0
        self._set_degraded("")
        self._is_seeing = True
        local = self._local
        for pod in sorted(local.observed.keys() - {seen.id for seen in found} - busy):
            local.observe(pod, None)
        for pod in self._unseen - busy:
            local.touch(pod.instance)
        self._unseen = set(busy)
        return [seen for seen in found if seen.id not in busy and local.observe(seen.id, seen)]

    def _set_degraded(self, reason: str) -> None:
        if bool(reason) != bool(self.degraded):
            kind = "node.degraded" if reason else "node.recovered"
            self._events.emit(kind, reason or "the container runtime answers again")
        if reason != self.degraded:
            self.degraded = reason
            self._membership.poke()

    def _refresh(self, snapshot: Snapshot) -> None:
        """What this node is to run, read anew where its assignments have changed."""
        for job in sorted(self._jobs.take()):
            assignment = snapshot.assignments.get((self._node, job))
            by_slot: dict[int, list[Assigned]] = {}
            for assigned in assignment.instances if assignment else ():
                by_slot.setdefault(assigned.slot, []).append(assigned)
            for slot in sorted(self._slots.get(job, frozenset()) | by_slot.keys()):
                there = tuple(by_slot.get(slot, ()))
                wanted = by_pod(self._wanted(snapshot, assigned) for assigned in there)
                self._local.assign(InstanceId(job, slot), there, wanted.values())
            self._slots[job] = frozenset(by_slot)
            if not by_slot:
                del self._slots[job]
        self._local.revision = snapshot.revision

    def _wanted(self, snapshot: Snapshot, assigned: Assigned) -> Wanted:
        record = snapshot.jobs.get(assigned.job)
        version = record.versions.get(assigned.version) if record else None
        pod = pod_of(assigned, version, host_ip=self._host_ip, api=self._api) if version else None
        return Wanted(id=pod_id(assigned), state=assigned.state, pod=pod)

    def _take_in(self, concerned: Iterable[InstanceId], snapshot: Snapshot, now: float) -> None:
        """Bring the memory up to what is observed; recall what a former daemon knew."""
        local, wall = self._local, self._clock.wall()
        for pod in (pod for instance in concerned for pod in local.pods_of(instance)):
            want, seen = local.wanted.get(pod), local.observed.get(pod)
            memory = local.memories.get(pod)
            if want is None and seen is None and pod not in self._unseen:
                local.remember(pod, None)
                continue
            spec = want.pod if want else None
            if pod not in self._unseen and seen is not None and spec is not None:
                if memory is None or memory.goal == GONE:
                    told = self._told(snapshot, pod)
                    memory = memories.recall(spec, seen, told, now=now, wall=wall)
                else:
                    memory = memories.take_in(memory, spec, seen, now=now, wall=wall)
            if memory is None and spec is None and want is not None:
                continue  # once its version can be read it is recalled
            goal = str(want.state) if want else GONE
            local.remember(pod, memories.aim(memory or memories.NOTHING, goal))

    def _told(self, snapshot: Snapshot, pod: PodId) -> InstanceStatus | None:
        """What this node has said of a pod before."""
        here = self._local.assigned.get(pod.instance, ())
        return next((snapshot.status(a) for a in here if pod_id(a) == pod), None)

    def _settle(self, pods: Iterable[PodId], acted_upon: Collection[PodId], now: float) -> None:
        """A failed attempt is forgotten once there is nothing left to attempt."""
        for pod in pods:
            memory = self._local.memory(pod)
            is_over = memory.trouble and memory.retry_at <= now
            if is_over and pod not in acted_upon and pod not in self._unseen:
                self._local.remember(pod, memories.succeeded(memory))

    def _drain(self, concerned: Iterable[InstanceId], now: float) -> None:
        """Let pods that are to stop leave names and routes first."""
        local = self._local
        for pod in (pod for instance in concerned for pod in local.pods_of(instance)):
            want, memory = local.wanted.get(pod), local.memory(pod)
            is_stopping = want is not None and want.state is SlotState.STOPPING
            if not is_stopping or pod not in local.observed or memory.drain_until is not None:
                self._withdrawing.pop(pod, None)
                continue
            since = self._withdrawing.setdefault(pod, now)
            if self._statuses.shows_healthy(pod) and now < since + WITHDRAW_SECONDS_MAX:
                continue  # looked at again once it is withdrawn, or has taken too long
            del self._withdrawing[pod]
            spec = want.pod if want else None
            was_healthy = spec is not None and memories.is_healthy(memory, spec)
            until = now + DRAIN_SECONDS if was_healthy else now
            local.remember(pod, replace(memory, drain_until=until))

    # Doing it -----------------------------------------------------------------------------------

    async def _work(self, pod: PodId, actions: tuple[Action, ...]) -> None:
        try:
            await self._worker.perform(pod, actions)
        except Abandoned as why:
            log("work.abandoned", pod=pod.name, reason=str(why))
        finally:
            self._local.end(pod)
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
        local = self._local
        is_worth_it = any(
            a.state is SlotState.WAITING
            or not ((pod := pod_id(a)) in local.observed or pod in local.busy)
            for a in self._jobs.restless()
        )
        plan = self._decide_vacate(snapshot) if is_worth_it else None
        return plan is not None and not plan.is_empty

    def _decide_vacate(self, snapshot: Snapshot) -> Plan | None:
        """A pod is gone that is not here, and that we have heard is to stop.

        The snapshot may hold commits of our own that the mirror has yet to show: by what we know a
        slot that they stop is to run, and its pod may be made at any moment.
        """
        present = frozenset(self._local.observed.keys() | self._local.busy)
        here, wanted = snapshot.instances_on(self._node), self._local.wanted
        stopping = (pod_id(a) for a in here if a.state is SlotState.STOPPING)
        unheard = {
            pod
            for pod in stopping
            if pod not in wanted or wanted[pod].state is not SlotState.STOPPING
        }
        return plan_vacate(snapshot, self._node, present | unheard)
