"""What the loops of one node share: its pods as wanted, as observed, as remembered.

Execution fills it, probing and statuses read it, probing adds what probes said. One event loop,
no locks: every change is a replacement of one immutable value. Each loop has a wake of its own,
which also gathers the instances that something changed of: with a thousand pods here, a loop looks
at the few that are concerned. All changes go through the methods below, so none is overlooked.
"""

import asyncio
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from ozymandias.core.memory import NOTHING, PodMemory
from ozymandias.core.reconcile import Wanted
from ozymandias.model.instance import Assigned, InstanceId
from ozymandias.model.pod import ObservedPod, PodId


class Wake:
    """Wakes one loop; any number of causes before it looks are one."""

    def __init__(self) -> None:
        self._is_set = False
        self._sleeper: asyncio.Future[None] | None = None
        self._touched: set[InstanceId] = set()

    def set(self) -> None:
        self._is_set = True
        if self._sleeper is not None:
            _finish(self._sleeper)

    def touch(self, instance: InstanceId) -> None:
        """Something of this instance has changed: to be seen to when the loop looks next."""
        self._touched.add(instance)

    def take(self) -> AbstractSet[InstanceId]:
        """What was touched since the last time; it is the loop's to see to now."""
        taken, self._touched = self._touched, set()
        return taken

    async def wait(self, timeout: float | None = None) -> None:
        """Until somebody calls `set`, or the seconds have passed."""
        if timeout is not None and timeout <= 0:
            await asyncio.sleep(0)
        elif not self._is_set:
            await self._sleep(timeout)
        self._is_set = False

    async def _sleep(self, timeout: float | None) -> None:
        """As asyncio.timeout around an Event would; loops sleep so often that it counts."""
        loop = asyncio.get_running_loop()
        self._sleeper = sleeper = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, _finish, sleeper)
        try:
            await sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()


def _finish(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class LocalPods:
    """Read the mappings as you like; change them by the methods only."""

    def __init__(self) -> None:
        self.assigned: dict[InstanceId, tuple[Assigned, ...]] = {}
        self.revision = 0  # of the snapshot in which they were assigned
        self.wanted: dict[PodId, Wanted] = {}
        self.observed: dict[PodId, ObservedPod] = {}
        self.memories: dict[PodId, PodMemory] = {}
        self.busy: set[PodId] = set()  # pods being worked on
        self.is_known = False  # the runtime was listed, and assignments were read
        self.execution = Wake()
        self.probing = Wake()
        self.statuses = Wake()
        self._pods: dict[InstanceId, set[PodId]] = {}  # all of an instance that any of these know

    def memory(self, pod: PodId) -> PodMemory:
        return self.memories.get(pod, NOTHING)

    def pods_of(self, instance: InstanceId) -> tuple[PodId, ...]:
        """Every pod of this instance that is wanted, observed, remembered or worked on."""
        return tuple(sorted(self._pods.get(instance, ())))

    # Changing -----------------------------------------------------------------------------------

    def assign(
        self, instance: InstanceId, assigned: tuple[Assigned, ...], wanted: Iterable[Wanted]
    ) -> None:
        """What is assigned of an instance, and the pods that it wants; () when nothing is."""
        if assigned:
            self.assigned[instance] = assigned
        else:
            self.assigned.pop(instance, None)
        fresh = {want.id: want for want in wanted}
        for pod in self.pods_of(instance):
            if pod in self.wanted and pod not in fresh:
                del self.wanted[pod]
                self._note(pod)
        for pod, want in fresh.items():
            self.wanted[pod] = want
            self._note(pod)
        self.touch(instance)

    def observe(self, pod: PodId, seen: ObservedPod | None) -> bool:
        """What the runtime has of a pod, None when it is gone. Whether that is new."""
        if self.observed.get(pod) == seen:
            return False
        if seen is None:
            del self.observed[pod]
        else:
            self.observed[pod] = seen
        self._note(pod)
        return True

    def remember(self, pod: PodId, memory: PodMemory | None) -> None:
        """Keep what is known of a pod beside what is seen of it; None: forget it."""
        if self.memories.get(pod) is memory:
            return
        if memory is None:
            del self.memories[pod]
        else:
            self.memories[pod] = memory
        self._note(pod)

    def begin(self, pod: PodId) -> None:
        self.busy.add(pod)
        self._note(pod)

    def end(self, pod: PodId) -> None:
        self.busy.discard(pod)
        self._note(pod)

    def touch(self, instance: InstanceId) -> None:
        for wake in (self.execution, self.probing, self.statuses):
            wake.touch(instance)

    def touch_all(self) -> None:
        for instance in self._pods.keys() | self.assigned.keys():
            self.touch(instance)

    def _note(self, pod: PodId) -> None:
        instance = pod.instance
        is_known = (
            pod in self.wanted or pod in self.observed or pod in self.memories or pod in self.busy
        )
        if is_known:
            self._pods.setdefault(instance, set()).add(pod)
        elif pods := self._pods.get(instance):
            pods.discard(pod)
            if not pods:
                del self._pods[instance]
        self.touch(instance)
