"""What every Runtime promises, as tests that run against the real one and the simulated one.

A subclass brings a fixture `kit`: the runtime, and containers that behave in known ways there.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

import pytest

from ozymandias.model.job import (
    Container,
    Dependency,
    HealthCheck,
    HealthKind,
    Job,
    JobName,
    Namespace,
    PullPolicy,
)
from ozymandias.model.node import NodeName
from ozymandias.model.pod import ContainerState, ObservedPod, Pod, PodId
from ozymandias.model.record import replace
from ozymandias.ports import ImageMissing, Runtime, RuntimeFailed

WAIT_SECONDS = 15.0


class Kit(Protocol):
    runtime: Runtime

    def serving(self, name: str = "app") -> Container:
        """Runs until stopped, promptly."""

    def exiting(self, code: int, name: str = "app") -> Container:
        """Ends soon with this code."""

    def stubborn(self, name: str = "app") -> Container:
        """Ignores the stop signal; grace of 1 s."""

    def stop_infra(self, pod: PodId) -> None:
        """The pod's network dies, its containers do not."""


def make_pod(
    *containers: Container, job: str = "web", slot: int = 0, node: str = "n1", version: int = 1
) -> Pod:
    """A pod with an identity of its own."""
    spec = Job(name=JobName(job), namespace=Namespace("default"), containers=containers)
    pod_id = PodId(
        node=NodeName(node),
        namespace=spec.namespace,
        job=spec.name,
        slot=slot,
        uid=uuid.uuid4().hex[:8],
        version=version,
        generation=0,
    )
    return Pod(id=pod_id, job=spec, environment=(("OZY_JOB", job), ("OZY_NODE", node)))


async def observed(runtime: Runtime, pod: Pod) -> ObservedPod | None:
    return next((p for p in await runtime.list_pods() if p.id == pod.id), None)


async def until(runtime: Runtime, pod: Pod, holds: Callable[[ObservedPod], bool]) -> ObservedPod:
    """Wait until what is observed of the pod satisfies a condition."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = await observed(runtime, pod)
            if found is not None and holds(found):
                return found
            await asyncio.sleep(0.05)


def state_of(pod: ObservedPod, name: str = "app") -> ContainerState:
    container = pod.container(name)
    assert container is not None
    return container.state


class RuntimeContract:
    @pytest.fixture
    async def kit(self) -> AsyncIterator[Kit]:
        raise NotImplementedError
        yield

    async def test_created_pod_is_complete_and_not_started(self, kit: Kit) -> None:
        """A created pod has an address and containers that have not run yet."""
        pod = make_pod(kit.serving())
        await kit.runtime.create_pod(pod)
        found = await observed(kit.runtime, pod)
        assert found is not None and found.is_complete and found.infra_running and found.address
        assert state_of(found) is ContainerState.CREATED

    async def test_start_is_idempotent(self, kit: Kit) -> None:
        """A started container runs, and starting it again does not restart it."""
        pod = make_pod(kit.serving())
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "app")
        first = await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.RUNNING)
        await kit.runtime.start_container(pod.id, "app")
        again = await observed(kit.runtime, pod)
        assert again is not None and again.containers == first.containers
        assert first.containers[0].started_at > 0

    async def test_create_again_replaces(self, kit: Kit) -> None:
        """Creating what is there already removes the earlier attempt first."""
        pod = make_pod(kit.serving())
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "app")
        await kit.runtime.create_pod(pod)
        found = await observed(kit.runtime, pod)
        assert found is not None and state_of(found) is ContainerState.CREATED

    async def test_exit_code_is_seen(self, kit: Kit) -> None:
        """A container that ends shows its exit code and was not out of memory."""
        pod = make_pod(kit.exiting(3))
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "app")
        found = await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
        container = found.containers[0]
        assert (container.exit_code, container.oom_killed) == (3, False)
        assert container.finished_at >= container.started_at > 0

    async def test_exited_container_starts_again(self, kit: Kit) -> None:
        """A container that ended can be started again, in the same pod."""
        pod = make_pod(kit.exiting(0))
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "app")
        first = await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
        await kit.runtime.start_container(pod.id, "app")
        began = first.containers[0].started_at
        await until(kit.runtime, pod, lambda p: p.containers[0].started_at > began)

    async def test_stop_ends_containers_and_twice_is_fine(self, kit: Kit) -> None:
        """Stopping ends every container, takes the network down, and may be repeated."""
        web = replace(kit.serving("web"), depends_on=(Dependency(container="db"),))
        pod = make_pod(web, kit.serving("db"))
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "db")
        await kit.runtime.start_container(pod.id, "web")
        await kit.runtime.stop_pod(pod.id)
        await kit.runtime.stop_pod(pod.id)
        found = await observed(kit.runtime, pod)
        assert found is not None and not found.infra_running and found.address == ""
        assert {state_of(found, n) for n in ("web", "db")} == {ContainerState.EXITED}
        assert found.container("web").finished_at <= found.container("db").finished_at  # type: ignore[union-attr]

    async def test_one_container_stops_without_the_others(self, kit: Kit) -> None:
        """Stopping one container leaves its neighbour running; doing it twice is fine."""
        pod = make_pod(kit.serving("app"), kit.serving("db"))
        await kit.runtime.create_pod(pod)
        for name in ("app", "db"):
            await kit.runtime.start_container(pod.id, name)
        await kit.runtime.stop_container(pod.id, "app")
        seen = await until(kit.runtime, pod, lambda p: state_of(p, "app") is ContainerState.EXITED)
        assert state_of(seen, "db") is ContainerState.RUNNING
        await kit.runtime.stop_container(pod.id, "app")

    async def test_stubborn_container_is_killed_after_its_grace(self, kit: Kit) -> None:
        """A container that ignores the signal is gone after its grace, with 137 and not OOM."""
        pod = make_pod(kit.stubborn())
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "app")
        await kit.runtime.stop_pod(pod.id)
        found = await observed(kit.runtime, pod)
        assert found is not None
        assert (found.containers[0].exit_code, found.containers[0].oom_killed) == (137, False)

    async def test_stopped_pod_starts_again_with_a_network(self, kit: Kit) -> None:
        """Starting a container of a stopped pod brings its network up anew."""
        pod = make_pod(kit.serving())
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "app")
        await kit.runtime.stop_pod(pod.id)
        await kit.runtime.start_container(pod.id, "app")
        found = await observed(kit.runtime, pod)
        assert found is not None and found.infra_running and found.address
        assert state_of(found) is ContainerState.RUNNING

    async def test_new_network_has_nobody_left_in_the_old_one(self, kit: Kit) -> None:
        """A pod whose network died starts anew: what still ran in the old one ends first."""
        pod = make_pod(kit.serving("web"), kit.serving("db"))
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "web")
        await kit.runtime.start_container(pod.id, "db")
        kit.stop_infra(pod.id)
        down = await until(kit.runtime, pod, lambda p: not p.infra_running)
        assert down.address == ""
        began = down.container("web").started_at  # type: ignore[union-attr]
        await kit.runtime.start_container(pod.id, "web")
        found = await observed(kit.runtime, pod)
        assert found is not None and found.infra_running and found.address
        assert found.container("web").started_at > began  # type: ignore[union-attr]
        assert state_of(found, "web") is ContainerState.RUNNING
        assert state_of(found, "db") is ContainerState.EXITED

    async def test_remove_is_final_and_twice_is_fine(self, kit: Kit) -> None:
        """A removed pod is not listed any more, and removing it again is fine."""
        pod = make_pod(kit.serving())
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "app")
        await kit.runtime.remove_pod(pod.id)
        await kit.runtime.remove_pod(pod.id)
        assert await observed(kit.runtime, pod) is None

    async def test_unknown_pod(self, kit: Kit) -> None:
        """Stopping or removing an unknown pod is fine; starting or exec in one fails."""
        pod = make_pod(kit.serving())
        await kit.runtime.stop_pod(pod.id)
        await kit.runtime.remove_pod(pod.id)
        with pytest.raises(RuntimeFailed):
            await kit.runtime.start_container(pod.id, "app")
        with pytest.raises(RuntimeFailed):
            await kit.runtime.exec(pod.id, "app", ["true"])
        with pytest.raises(RuntimeFailed):
            async with aclosing(kit.runtime.logs(pod.id, "app")) as lines:  # type: ignore[type-var]
                async for _ in lines:
                    pass
        check = HealthCheck(kind=HealthKind.TCP, port=1, timeout_seconds=1)
        assert not (await kit.runtime.probe(pod.id, "127.0.0.1", "app", check)).healthy

    async def test_missing_image(self, kit: Kit) -> None:
        """An image that is not here and must not be pulled is named."""
        with pytest.raises(ImageMissing, match="absent"):
            await kit.runtime.ensure_image("localhost/absent:1", PullPolicy.NEVER)

    async def test_create_with_missing_image_leaves_nothing(self, kit: Kit) -> None:
        """A create that fails leaves no pod behind."""
        broken = Container(name="app", image="localhost/absent:1", pull_policy=PullPolicy.NEVER)
        pod = make_pod(broken)
        with pytest.raises(ImageMissing):
            await kit.runtime.create_pod(pod)
        assert await observed(kit.runtime, pod) is None

    async def test_changes_fire(self, kit: Kit) -> None:
        """A container that ends by itself wakes whoever listens to changes."""
        pod = make_pod(kit.exiting(1))
        await kit.runtime.create_pod(pod)
        async with aclosing(kit.runtime.changes()) as changes:  # type: ignore[type-var]

            async def until_exited() -> None:
                async for _ in changes:
                    found = await observed(kit.runtime, pod)
                    if found and state_of(found) is ContainerState.EXITED:
                        return

            async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as group:
                group.create_task(until_exited())
                await kit.runtime.start_container(pod.id, "app")

    async def test_exec_needs_a_running_container(self, kit: Kit) -> None:
        """exec in a container that has not been started fails, in a running one it answers."""
        pod = make_pod(kit.serving())
        await kit.runtime.create_pod(pod)
        with pytest.raises(RuntimeFailed):
            await kit.runtime.exec(pod.id, "app", ["true"])
        await kit.runtime.start_container(pod.id, "app")
        assert (await kit.runtime.exec(pod.id, "app", ["true"])).exit_code == 0
