"""Health probes of the containers that run here.

One task per container with a healthcheck, from its start to its end: probe at once, weigh the
result by `core.health`, wait as that says, probe again. So there is never more than one probe of a
container under way, and a new run of it begins with a probe. Whoever is concerned by a change of
health is woken; nothing is decided here.
"""

import asyncio
from typing import NamedTuple

from ozymandias.core import memory as memories
from ozymandias.core.health import probe_after
from ozymandias.daemon.local_pods import LocalPods
from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.job import Container, HealthCheck, HealthKind
from ozymandias.model.pod import ContainerState, PodId
from ozymandias.ports import Clock, Runtime
from ozymandias.telemetry import probes

PROBES_AT_ONCE = 64


class RunKey(NamedTuple):
    """One run of one container: a restart is another one."""

    pod: PodId
    container: str
    started_at: float


class Prober:
    def __init__(self, *, local: LocalPods, runtime: Runtime, clock: Clock) -> None:
        self._local = local
        self._runtime = runtime
        self._clock = clock
        self._turns = asyncio.Semaphore(PROBES_AT_ONCE)
        self._tasks: dict[InstanceId, dict[RunKey, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for instance in sorted(self._local.probing.take()):
                    self._see_to(group, instance)
                await self._local.probing.wait()

    def _see_to(self, group: asyncio.TaskGroup, instance: InstanceId) -> None:
        """Probe what is to be probed of an instance, and nothing else of it."""
        wanted = self._wanted(instance)
        tasks = self._tasks.pop(instance, {})
        for key in [key for key in tasks if key not in wanted]:
            tasks.pop(key).cancel()
        for key, (container, check) in wanted.items():
            task = tasks.get(key)
            if task is None or task.done():
                tasks[key] = group.create_task(self._watch(key, container, check))
        if tasks:
            self._tasks[instance] = tasks

    def _wanted(self, instance: InstanceId) -> dict[RunKey, tuple[Container, HealthCheck]]:
        """Every run of an instance that is to be probed now."""
        found: dict[RunKey, tuple[Container, HealthCheck]] = {}
        for pod in self._local.pods_of(instance):
            want, observed = self._local.wanted.get(pod), self._local.observed.get(pod)
            if want is None or want.pod is None or want.state is not SlotState.RUNNING:
                continue
            if observed is None or not observed.infra_running:
                continue  # known without a probe
            memory = self._local.memory(pod)
            for container in want.pod.containers:
                check = container.healthcheck
                seen = observed.container(container.name)
                run = memory.run(container.name)
                if check is None or seen is None or seen.state is not ContainerState.RUNNING:
                    continue
                if run.is_running and (observed.address or check.kind is HealthKind.EXEC):
                    key = RunKey(pod, container.name, run.health.started_at)
                    found[key] = (container, check)
        return found

    async def _watch(self, key: RunKey, container: Container, check: HealthCheck) -> None:
        health = self._local.memory(key.pod).run(key.container).health
        if health.is_healthy:
            # Adopted: not all at once after a restart of the daemon.
            await asyncio.sleep(self._clock.random.random() * check.interval_seconds)
        while True:
            observed = self._local.observed.get(key.pod)
            if observed is None:
                return
            async with self._turns:
                result = await self._runtime.probe(key.pod, observed.address, key.container, check)
            probes("passed" if result.healthy else "failed").inc()
            before = self._local.memory(key.pod)
            health = before.run(key.container).health
            if health.started_at != key.started_at:
                return  # another run by now
            after = memories.probed(
                before,
                key.pod,
                container,
                passed=result.healthy,
                reason=result.reason,
                now=self._clock.boot(),
            )
            self._local.remember(key.pod, after)
            self._tell(before, after, key)
            await asyncio.sleep(probe_after(after.run(key.container).health, check))

    def _tell(self, before: memories.PodMemory, after: memories.PodMemory, key: RunKey) -> None:
        was, now = before.run(key.container).health, after.run(key.container).health
        if was.state is not now.state:
            self._local.execution.set()  # a dependant may start; an unhealthy one is due
        if (was.state, was.reason) != (now.state, now.reason):
            self._local.statuses.set()
