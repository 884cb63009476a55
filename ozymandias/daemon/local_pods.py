"""What the loops of one node share: its pods as wanted, as observed, as remembered.

Execution fills it, probing and statuses read it, probing adds what probes said. One event loop,
no locks: every change is a replacement of one immutable value. Each loop has a wake of its own.
"""

import asyncio

from ozymandias.core.memory import NOTHING, PodMemory
from ozymandias.core.reconcile import Wanted
from ozymandias.model.instance import Assigned
from ozymandias.model.pod import ObservedPod, PodId


class Wake:
    """Wakes one loop; any number of causes before it looks are one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout: float | None = None) -> None:
        """Until somebody calls `set`, or the seconds have passed."""
        if timeout is not None and timeout <= 0:
            await asyncio.sleep(0)
        elif not self._event.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._event.wait()
            except TimeoutError:
                pass
        self._event.clear()


class LocalPods:
    def __init__(self) -> None:
        self.assigned: tuple[Assigned, ...] = ()
        self.revision = 0  # of the snapshot in which they were assigned
        self.wanted: dict[PodId, Wanted] = {}
        self.observed: dict[PodId, ObservedPod] = {}
        self.memories: dict[PodId, PodMemory] = {}
        self.busy: set[PodId] = set()  # pods being worked on
        self.is_known = False  # the runtime was listed, and assignments were read
        self.execution = Wake()
        self.probing = Wake()
        self.statuses = Wake()

    def memory(self, pod: PodId) -> PodMemory:
        return self.memories.get(pod, NOTHING)
