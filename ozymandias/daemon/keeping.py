"""Keeps the last lines of containers that end, with how they ended, before they are gone.

Called when a listing shows an end, after a container was stopped to be started again, and before a
pod is removed. It has two seconds and never fails: nothing that is to be stopped or started waits
longer for it, and nobody misses a line that could not be kept more than a pod that could not be
stopped. A container's log goes on over its restarts; what was kept of the run before is left out.
"""

import asyncio
from collections.abc import Container, Iterable

from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, PodId
from ozymandias.ports import Clock, EndedRun, EndedRuns, LogLine, Runtime, RuntimeFailed
from ozymandias.telemetry import warn

LINES_MAX = 200
BYTES_MAX = 64 * 2**10
DEADLINE_SECONDS = 2.0
AT_ONCE_MAX = 4

_Where = tuple[PodId, str]


class Keeper:
    def __init__(self, *, runtime: Runtime, ended: EndedRuns, clock: Clock) -> None:
        self._runtime = runtime
        self._ended = ended
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._kept: dict[_Where, float] = {}  # when the last run kept of a container ended
        self._last: dict[_Where, tuple[float, int]] = {}  # its last line's time, and their number

    def fresh(self, observed: Iterable[ObservedPod]) -> tuple[ObservedPod, ...]:
        """Those with an end that is not kept yet."""
        return tuple(
            seen for seen in observed if any(self._is_fresh(seen.id, c) for c in seen.containers)
        )

    def forget_others(self, there: Container[PodId]) -> None:
        """What is known of pods that are gone goes."""
        for known in (self._kept, self._last):
            for where in [where for where in known if where[0] not in there]:
                del known[where]

    async def observed(self, seen: ObservedPod) -> None:
        """A listing shows ends."""
        ends = [c for c in seen.containers if self._is_fresh(seen.id, c)]
        await self._keep_all(seen.id, ends, "")

    async def stopped(self, pod: PodId, seen: ObservedContainer | None, reason: str) -> None:
        """We have just stopped this container, for that reason."""
        if seen is not None:
            await self._keep_all(pod, [seen], reason)

    async def leaving(self, seen: ObservedPod | None, reason: str) -> None:
        """The pod is about to be removed: what ran until now was stopped for that reason."""
        if seen is not None:
            ends = [
                c
                for c in seen.containers
                if c.state is ContainerState.RUNNING or self._is_fresh(seen.id, c)
            ]
            await self._keep_all(seen.id, ends, reason)

    def _is_fresh(self, pod: PodId, seen: ObservedContainer) -> bool:
        has_ended = seen.state is ContainerState.EXITED
        return has_ended and self._kept.get((pod, seen.name), 0.0) < seen.finished_at

    async def _keep_all(self, pod: PodId, ends: Iterable[ObservedContainer], reason: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), self._turns:
                for seen in ends:
                    await self._keep(pod, seen, reason)
        except (TimeoutError, RuntimeFailed, OSError) as error:
            warn("logs.not_kept", pod=pod.name, reason=str(error) or "no answer in time")

    async def _keep(self, pod: PodId, seen: ObservedContainer, reason: str) -> None:
        where = (pod, seen.name)
        has_ended = seen.state is ContainerState.EXITED
        ended_at = seen.finished_at if has_ended else self._clock.wall()
        try:
            lines = await self._lines(where, seen.started_at)
            run = EndedRun(
                pod=pod,
                container=seen.name,
                started_at=seen.started_at,
                ended_at=ended_at,
                exit_code=seen.exit_code if has_ended else None,
                oom_killed=seen.oom_killed,
                reason=_cause(seen) if has_ended else f"stopped: {reason}",
                lines=_last_words(lines),
            )
            await self._ended.keep(run)
        finally:
            self._kept[where] = ended_at  # also when it failed: it is not tried again

    async def _lines(self, where: _Where, started_at: float) -> list[LogLine]:
        """The run's lines. The runtime's times may be whole seconds, hence the count."""
        pod, container = where
        last, count = self._last.get(where, (float(int(started_at)), 0))
        found = [
            line
            async for line in self._runtime.logs(pod, container, tail=LINES_MAX)
            if line.time >= last
        ]
        same = [line for line in found if line.time == last]
        fresh = found[min(count, len(same)) :]
        if fresh:
            newest = found[-1].time
            self._last[where] = (newest, sum(line.time == newest for line in found))
        return fresh


def _cause(seen: ObservedContainer) -> str:
    if seen.oom_killed:
        return "killed: out of memory"
    return f"ended with exit code {seen.exit_code}"


def _last_words(lines: list[LogLine]) -> tuple[LogLine, ...]:
    """As many of the last lines as may be kept."""
    kept: list[LogLine] = []
    left_bytes = BYTES_MAX
    for line in reversed(lines[-LINES_MAX:]):
        left_bytes -= len(line.text.encode(errors="replace"))
        if left_bytes < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))
