"""Following the logs of a job: its instances as they are now, and those that join later.

An instance joins once its node has made it, with everything it has written since. A reader that
ends while its instance lives on (its node's daemon was restarted) is taken up again, from then on.
The whole ends when the job and its last instance are gone.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ozymandias.core.pods import pod_id
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.pod import PodId
from ozymandias.store.mirror import Mirror

PAUSE_SECONDS = 0.1  # a busy cluster is looked at now and then
AGAIN_SECONDS = 1.0

Read = Callable[[Assigned, int | None], Awaitable[None]]


class JobFollower:
    def __init__(self, mirror: Mirror, key: JobKey, read: Read) -> None:
        """``read`` follows one instance from its last so many lines on (None: all)."""
        self._mirror = mirror
        self._key = key
        self._read = read
        self._joined: set[PodId] = set()

    async def run(self, tail: int | None) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while not self._is_over():
                    revision = self._mirror.revision
                    for pod, assigned in self._there().items():
                        if pod not in self._joined:
                            self._joined.add(pod)
                            group.create_task(self._follow(assigned, tail))
                    tail = None
                    await asyncio.sleep(PAUSE_SECONDS)
                    await self._mirror.changed(revision)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _follow(self, assigned: Assigned, tail: int | None) -> None:
        pod = pod_id(assigned)
        while True:
            await self._read(assigned, tail)
            await asyncio.sleep(AGAIN_SECONDS)
            if pod not in self._there():
                return
            tail = 0

    def _there(self) -> dict[PodId, Assigned]:
        """The instances that have been made, by the word of their nodes."""
        snapshot = self._mirror.snapshot()
        found = {}
        for assigned in snapshot.instances(self._key):
            status = snapshot.status(assigned)
            is_made = status is not None and status.containers
            if assigned.state is not SlotState.WAITING and is_made:
                found[pod_id(assigned)] = assigned
        return found

    def _is_over(self) -> bool:
        snapshot = self._mirror.snapshot()
        return self._key not in snapshot.jobs and not any(snapshot.instances(self._key))
