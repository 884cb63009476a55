"""A simulated podman: the Runtime port over a SimHost, in the event loop's own time.

Calls take a while, and may fail or hang as the host's `faults` say. As with the real service, work
that was asked for goes on when the caller is cancelled or gives up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context

from ozymandias.model.job import Container, HealthCheck, HealthKind, PullPolicy
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, Pod, PodId
from ozymandias.ports import (
    ExecResult,
    ImageMissing,
    LogLine,
    ProbeResult,
    RuntimeFailed,
    RuntimeHung,
    RuntimeInfo,
)
from ozymandias.sim.clock import Deadline
from ozymandias.sim.host import Behaviour, Faults, SimHost, SimPod, behaving

__all__ = ["Behaviour", "Faults", "SimHost", "SimRuntime", "behaving"]


class SimRuntime:
    """The Runtime port over a SimHost. One per daemon process; the host outlives it."""

    def __init__(self, host: SimHost, *, deadline_seconds: float = 20.0) -> None:
        self._host = host
        self._deadline_seconds = deadline_seconds

    async def info(self) -> RuntimeInfo:
        await self._call("info")
        return RuntimeInfo(name="sim", version="1")

    async def list_pods(self) -> tuple[ObservedPod, ...]:
        await self._call("list_pods")
        return tuple(_observe(pod) for _, pod in sorted(self._host.pods.items()))

    async def ensure_image(self, image: str, policy: PullPolicy) -> None:
        def pull() -> None:
            host = self._host
            is_here = host.images is None or image in host.images
            if policy is PullPolicy.NEVER or (policy is PullPolicy.MISSING and is_here):
                if not is_here:
                    raise ImageMissing(f"{image} is not on this node and must not be pulled")
            elif host.images is not None and image not in host.registry:
                raise ImageMissing(f"{image} could not be pulled: manifest unknown")
            elif host.images is not None:
                host.images.add(image)

        await self._call("ensure_image", pull)

    async def create_pod(self, pod: Pod) -> None:
        if found := self._host.pods.get(pod.id):
            await self._call("create_pod", lambda: self._host.remove(pod.id, found))
        await self._call("create_pod", lambda: self._host.create_begin(pod))
        await self._call("complete_pod", lambda: self._host.create_end(pod))

    async def start_container(self, pod: PodId, container: str) -> None:
        self._host.on_event(pod, "asked to start", "")
        await self._call("start_container", lambda: self._host.start(pod, container))

    async def stop_container(self, pod: PodId, container: str) -> None:
        await self._call("stop_container")
        found = self._host.pods.get(pod)
        if found and container in found.containers:
            delay = self._host.signal_stop(pod, container, "restart")
            await self._until_exited(pod, container, delay)

    async def stop_pod(self, pod: PodId) -> None:
        self._host.on_event(pod, "asked to stop", "")
        await self._call("stop_pod")
        found = self._host.pods.get(pod)
        for name in _stop_order(found.pod.containers) if found else ():
            if found and name in found.containers:
                delay = self._host.signal_stop(pod, name)
                await self._until_exited(pod, name, delay)
        self._host.stop_end(pod)

    async def remove_pod(self, pod: PodId) -> None:
        self._host.on_event(pod, "asked to stop", "")
        found = self._host.pods.get(pod)
        await self._call("remove_pod", lambda: self._host.remove(pod, found))

    async def probe(
        self, pod: PodId, address: str, container: str, check: HealthCheck
    ) -> ProbeResult:
        await asyncio.sleep(min(self._latency(), check.timeout_seconds))
        try:
            found, process = self._host.find(pod, container)
        except RuntimeFailed as error:
            return ProbeResult(healthy=False, reason=str(error))
        is_reached = check.kind is HealthKind.EXEC or found.address == address
        if process.state is not ContainerState.RUNNING or not is_reached:
            self._host.on_event(pod, "failed", address)
            return ProbeResult(healthy=False, reason="connection refused")
        answer = self._host.probe(pod, process.spec, check)
        is_healthy = answer is None or answer.healthy
        self._host.on_event(pod, "passed" if is_healthy else "failed", address)
        if answer is not None:
            return answer
        words = {HealthKind.HTTP: "HTTP 200", HealthKind.TCP: "connected"}
        return ProbeResult(healthy=True, reason=words.get(check.kind, "exit code 0"))

    async def changes(self) -> AsyncIterator[None]:
        event = self._host.listen()
        try:
            while True:
                await event.wait()
                event.clear()
                yield
        finally:
            self._host.forget(event)

    async def logs(
        self, pod: PodId, container: str, *, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        _, found = self._host.find(pod, container)
        event = self._host.listen()
        try:
            position = 0 if tail is None else max(0, len(found.lines) - tail)
            while True:
                for line in found.lines[position:]:
                    position += 1
                    yield line
                if not follow or pod not in self._host.pods:
                    return
                await event.wait()
                event.clear()
        finally:
            self._host.forget(event)

    async def exec(
        self, pod: PodId, container: str, command: Sequence[str], *, timeout: float = 60.0
    ) -> ExecResult:
        await self._call("exec")
        _, found = self._host.find(pod, container)
        if found.state is not ContainerState.RUNNING:
            raise RuntimeFailed(f"container {container} is not running")
        words = command[command[0] == "echo" :]  # no program is run
        return ExecResult(exit_code=0, stdout=" ".join(words).encode() + b"\n", stderr=b"")

    async def aclose(self) -> None:
        pass

    def _latency(self) -> float:
        return self._host.random.uniform(*self._host.faults.latency_seconds)

    async def _call(self, operation: str, work: Callable[[], None] | None = None) -> None:
        """One call to the service: it takes its time, and may fail, hang, or outlive the caller."""
        host, faults, loop = self._host, self._host.faults, asyncio.get_running_loop()
        if not host.is_up:
            raise RuntimeFailed("podman is not there")
        done: asyncio.Future[None] = loop.create_future()
        odd = host.random.random()
        does_work = host.random.random() < 0.5  # of a call that fails or hangs
        fails = odd < faults.fail_rate or self._takes_failure(operation)
        hangs = faults.is_hung or 1 - odd < faults.hang_rate
        boots = host.boots

        def serve() -> None:
            error: RuntimeFailed | None = None
            if not host.is_up or host.boots != boots:  # a power cut ends podman's calls too
                error = RuntimeFailed("podman went away")
            elif work is not None and (does_work or not (fails or hangs)):
                try:
                    work()
                except RuntimeFailed as failure:
                    error = failure
            if fails and error is None:
                error = RuntimeFailed(f"{operation}: simulated failure")
            if hangs or done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        latency = self._latency()
        if hangs:
            latency += host.random.uniform(0.0, 2 * self._deadline_seconds)
        loop.call_later(latency, serve, context=Context())  # the service is not the daemon
        try:
            with Deadline(self._deadline_seconds):
                await done
        except TimeoutError:
            raise RuntimeHung(
                f"{operation}: no answer within {self._deadline_seconds:g} s"
            ) from None

    def _takes_failure(self, operation: str) -> bool:
        left = self._host.faults.fail_next.get(operation, 0)
        self._host.faults.fail_next[operation] = max(0, left - 1)
        return left > 0

    async def _until_exited(self, pod: PodId, name: str, delay: float) -> None:
        event = self._host.listen()
        try:
            async with asyncio.timeout(delay + self._deadline_seconds):
                while True:
                    found = self._host.pods.get(pod)
                    if found is None or name not in found.containers:
                        return
                    if found.containers[name].state is not ContainerState.RUNNING:
                        return
                    await event.wait()
                    event.clear()
        except TimeoutError:
            raise RuntimeHung(f"stop_pod: {name} is still running") from None
        finally:
            self._host.forget(event)


def _observe(pod: SimPod) -> ObservedPod:
    return ObservedPod(
        id=pod.pod.id,
        address=pod.address,
        is_complete=pod.is_complete,
        infra_running=pod.infra_running,
        containers=tuple(
            ObservedContainer(
                name=name,
                state=c.state,
                started_at=c.started_at,
                finished_at=c.finished_at,
                exit_code=c.exit_code,
                oom_killed=c.oom_killed,
            )
            for name, c in sorted(pod.containers.items())
        ),
    )


def _stop_order(containers: Sequence[Container]) -> list[str]:
    """Dependants before what they depend on; the job file forbids cycles."""
    order: list[str] = []
    by_name = {c.name: c for c in containers}

    def visit(name: str) -> None:
        if name in by_name and name not in order:
            for dependency in by_name[name].depends_on:
                visit(dependency.container)
            order.append(name)

    for container in containers:
        visit(container.name)
    return order[::-1]
