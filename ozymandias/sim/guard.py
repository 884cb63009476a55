"""The guard of a simulated host: it ends exclusive pods at the deadline, frozen daemon or not.

It belongs to the machine, as the real one does: a daemon that is killed, frozen or started anew
finds it as it was. Its timers run in a context of their own, so freezing a daemon leaves it be.
"""

import asyncio
from contextvars import Context

from ozymandias.model.pod import ContainerState, PodId
from ozymandias.ports import RuntimeFailed
from ozymandias.sim.clock import SimClock
from ozymandias.sim.host import KILLED, SimHost

LATE_SECONDS = 0.5  # between two looks at pods that must not run


class SimGuard:
    def __init__(self, host: SimHost, clock: SimClock) -> None:
        self._host = host
        self._clock = clock
        self._deadline = 0.0
        self._pods: set[PodId] = set()
        self._timer: asyncio.TimerHandle | None = None

    def extend(self, deadline: float) -> None:
        self._deadline = deadline
        self._arm()

    async def cover(self, pod: PodId) -> None:
        if not self._host.is_up or self._clock.boot() >= self._deadline:
            raise RuntimeFailed("it must not outlive its node's lease, which has run out")
        self._pods.add(pod)
        self._arm()

    async def forget(self, pod: PodId) -> None:
        self._pods.discard(pod)

    def _arm(self, least: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pods:
            delay = max(least, self._deadline - self._clock.boot())
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay, self._look, context=Context())

    def _look(self) -> None:
        self._timer = None
        if self._clock.boot() >= self._deadline:
            self._pods &= self._host.pods.keys()
            for pod in sorted(self._pods):
                for name, container in self._host.pods[pod].containers.items():
                    if container.state is ContainerState.RUNNING:
                        self._host.exit_container(pod, name, exit_code=KILLED)
        self._arm(LATE_SECONDS)
