"""The hands of the executor: performs the actions of one pod, in order, and books the outcome.

A few calls of each kind are under way at once, each kind by its own count: a slow pull or a long
grace period must not keep other pods from starting. What a call did is booked at once, before the
runtime is observed again.
"""

import asyncio
from collections.abc import Callable

from ozymandias.core import memory as memories
from ozymandias.daemon.events import EventLog
from ozymandias.daemon.keeping import Keeper
from ozymandias.daemon.local_pods import LocalPods
from ozymandias.model.job import OnPartition
from ozymandias.model.plan import Action, ActionKind
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, Pod, PodId
from ozymandias.model.record import replace
from ozymandias.ports import Clock, Guard, ImageMissing, PortTaken, Runtime, RuntimeFailed
from ozymandias.telemetry import ACTIONS

AT_ONCE_MAX = 4  # calls of one kind
PULL_NOTICE_SECONDS = 0.3  # an image that takes longer to have is shown as being pulled

Check = Callable[[PodId], str]


class Abandoned(Exception):
    """The world changed while the work was waiting for its turn; why it is not done."""


class Worker:
    def __init__(
        self,
        *,
        local: LocalPods,
        runtime: Runtime,
        clock: Clock,
        events: EventLog,
        keeper: Keeper,
        guard: Guard,
        may_begin: Check,
        may_end: Check,
    ) -> None:
        self._local = local
        self._runtime = runtime
        self._clock = clock
        self._events = events
        self._keeper = keeper
        self._guard = guard
        self._may_begin = may_begin
        self._may_end = may_end
        self._pulls = asyncio.Semaphore(AT_ONCE_MAX)
        self._starts = asyncio.Semaphore(AT_ONCE_MAX)
        self._stops = asyncio.Semaphore(AT_ONCE_MAX)
        self._pulling: dict[PodId, asyncio.Timeout] = {}

    async def perform(self, pod: PodId, actions: tuple[Action, ...]) -> None:
        """All of them, until one fails; that is remembered with its reason."""
        for action in actions:
            try:
                await self._act(action)
            except RuntimeFailed as error:
                ACTIONS.labels(action.kind, "failed").inc()
                self._book_failure(action, error)
                return
            ACTIONS.labels(action.kind, "done").inc()
        self._update(pod, memories.succeeded(self._local.memory(pod)))

    async def _act(self, action: Action) -> None:
        match action.kind:
            case ActionKind.CREATE:
                assert action.spec is not None
                await self._create(action, action.spec)
            case ActionKind.START:
                await self._start(action)
            case ActionKind.RESTART:
                await self._restart(action)
            case ActionKind.STOP | ActionKind.REMOVE:
                await self._remove(action)

    async def _create(self, action: Action, spec: Pod) -> None:
        _unless(self._may_begin(spec.id))
        async with self._pulls:
            await self._have_images(spec)
        async with self._starts:
            _unless(self._may_begin(spec.id))
            try:
                await self._runtime.create_pod(spec)
            except RuntimeFailed:
                # It may be there, or half of it: it counts until a listing tells otherwise.
                if spec.id not in self._local.observed:
                    self._local.observe(spec.id, ObservedPod(id=spec.id, is_complete=False))
                raise
        created = tuple(
            ObservedContainer(name=c.name, state=ContainerState.CREATED) for c in spec.containers
        )
        self._local.observe(spec.id, ObservedPod(id=spec.id, containers=created))
        self._update(spec.id, replace(self._local.memory(spec.id), runs=memories.NO_RUNS))
        self._tell("instance.created", action)

    async def _have_images(self, spec: Pod) -> None:
        notice = asyncio.get_running_loop().call_later(
            PULL_NOTICE_SECONDS, self._set_pulling, spec.id, True
        )
        try:
            async with asyncio.timeout(None) as self._pulling[spec.id]:
                images = dict.fromkeys((c.image, c.pull_policy) for c in spec.containers)
                for image, policy in images:
                    await self._runtime.ensure_image(image, policy)
        except TimeoutError:
            raise Abandoned("it is not to run here any more") from None
        finally:
            del self._pulling[spec.id]
            notice.cancel()
            if self._local.memory(spec.id).is_pulling:
                self._set_pulling(spec.id, False)

    def cancel_pulls(self, is_to_run: Callable[[PodId], bool]) -> None:
        """Nobody waits for the image of a pod that is not to run here any more."""
        for pod, scope in self._pulling.items():
            if not is_to_run(pod) and not scope.expired():
                scope.reschedule(0.0)

    def _set_pulling(self, pod: PodId, is_pulling: bool) -> None:
        self._update(pod, replace(self._local.memory(pod), is_pulling=is_pulling))
        self._local.statuses.set()

    async def _start(self, action: Action) -> None:
        observed = self._local.observed.get(action.pod)
        seen = observed.container(action.container) if observed else None
        is_first = seen is None or seen.state is ContainerState.CREATED
        async with self._starts:
            await self._permit(action.pod, is_first=is_first)
            await self._runtime.start_container(action.pod, action.container)
        self._book_start(action)
        self._tell("instance.started" if is_first else "instance.restarted", action)

    async def _permit(self, pod: PodId, *, is_first: bool) -> None:
        """Just before a start. What is exclusive needs a guard and a session each time."""
        want = self._local.wanted.get(pod)
        spec = want.pod if want else None
        is_exclusive = spec is not None and spec.job.on_partition is OnPartition.STOP
        if is_exclusive:
            await self._guard.cover(pod)
        if is_first or is_exclusive:
            _unless(self._may_begin(pod))

    async def _restart(self, action: Action) -> None:
        async with self._stops:
            await self._runtime.stop_container(action.pod, action.container)
        observed = self._local.observed.get(action.pod)
        seen = observed.container(action.container) if observed else None
        await self._keeper.stopped(action.pod, seen, action.reason)
        async with self._starts:
            await self._permit(action.pod, is_first=False)
            await self._runtime.start_container(action.pod, action.container)
        self._book_start(action)
        self._tell("instance.restarted", action)

    async def _remove(self, action: Action) -> None:
        async with self._stops:
            _unless(self._may_end(action.pod))
            if action.kind is ActionKind.STOP:
                await self._runtime.stop_pod(action.pod)
            await self._keeper.leaving(self._local.observed.get(action.pod), action.reason)
            await self._runtime.remove_pod(action.pod)
        await self._guard.forget(action.pod)
        self._local.observe(action.pod, None)
        is_stop = action.kind is ActionKind.STOP
        self._tell("instance.stopped" if is_stop else "instance.removed", action)

    # Booking ------------------------------------------------------------------------------------

    def _update(self, pod: PodId, memory: memories.PodMemory) -> None:
        self._local.remember(pod, memory)

    def _book_start(self, action: Action) -> None:
        memory = self._local.memory(action.pod)
        now = self._clock.boot()
        self._update(action.pod, memories.began(memory, action.container, now))
        # In the books too: a listing that was under way meanwhile leaves this pod as we know it.
        seen = self._local.observed.get(action.pod)
        if seen is not None:
            running = ObservedContainer(name=action.container, state=ContainerState.RUNNING)
            containers = tuple(running if c.name == running.name else c for c in seen.containers)
            self._local.observe(action.pod, replace(seen, containers=containers))

    def _book_failure(self, action: Action, error: RuntimeFailed) -> None:
        trouble = _trouble(action, error)
        memory = self._local.memory(action.pod)
        self._update(action.pod, memories.failed(memory, action.pod, trouble, self._clock.boot()))
        if action.kind in (ActionKind.STOP, ActionKind.REMOVE):
            self._tell("instance.not_stopped", action, trouble)
        self._local.statuses.set()

    def _tell(self, kind: str, action: Action, reason: str = "") -> None:
        what = f"{action.container}: " if action.container else ""
        instance = f"{action.pod.job}-{action.pod.slot}"
        self._events.emit(
            kind, what + (reason or action.reason), job=action.pod.key, instance=instance
        )


def _trouble(action: Action, error: RuntimeFailed) -> str:
    """Why it failed, in words for people."""
    match error:
        case ImageMissing():
            return f"image missing: {error}"
        case PortTaken():
            return f"port taken: {error}"
        case _:
            what = f"{action.kind} {action.container}".strip()
            return f"{what} failed: {error}"


def _unless(reason: str) -> None:
    if reason:
        raise Abandoned(reason)
