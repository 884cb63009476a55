"""The simulated runtime keeps the contract, and misbehaves only as it is told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from ozymandias.model.job import Container, Port
from ozymandias.model.pod import ContainerState, PodId
from ozymandias.model.record import replace
from ozymandias.ports import PortTaken, RuntimeFailed, RuntimeHung
from ozymandias.sim.runtime import Behaviour, Faults, SimHost, SimRuntime, behaving
from tests.runtime_contract import Kit, RuntimeContract, make_pod, observed, state_of, until

IMAGE = "localhost/ozy-busybox:1"
APP = Container(name="app", image=IMAGE)


@dataclass
class SimKit:
    runtime: SimRuntime
    host: SimHost

    def serving(self, name: str = "app") -> Container:
        return self._with(name, Behaviour(stop_seconds=0.01))

    def exiting(self, code: int, name: str = "app") -> Container:
        return self._with(name, Behaviour(exit_after_seconds=0.05, exit_code=code))

    def stubborn(self, name: str = "app") -> Container:
        container = self._with(name, Behaviour(ignores_stop=True))
        return replace(container, stop_grace_seconds=0.2)

    def stop_infra(self, pod: PodId) -> None:
        self.host.stop_infra(pod)

    def _with(self, name: str, behaviour: Behaviour) -> Container:
        self.host.behave = behaving(**self._behaviours | {name: behaviour})
        self._behaviours[name] = behaviour
        return Container(name=name, image=IMAGE)

    def __post_init__(self) -> None:
        self._behaviours: dict[str, Behaviour] = {}


def make_kit(deadline_seconds: float = 10.0) -> SimKit:
    host = SimHost(seed=1)
    host.images = {IMAGE}
    host.faults = Faults(latency_seconds=(0.0, 0.005))
    return SimKit(SimRuntime(host, deadline_seconds=deadline_seconds), host)


class TestSimRuntime(RuntimeContract):
    @pytest.fixture
    async def kit(self) -> AsyncIterator[Kit]:
        yield make_kit()


async def test_processes_outlive_the_daemon() -> None:
    """A new runtime over the same host finds the pod running and restarts nothing."""
    kit = make_kit()
    pod = make_pod(APP)
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    found = await observed(SimRuntime(kit.host), pod)
    assert found is not None and state_of(found) is ContainerState.RUNNING
    assert kit.host.started_total == 1 and kit.host.running() == {pod.id}
    assert kit.host.memory_bytes() == APP.memory_bytes


async def test_power_cut_ends_processes_and_keeps_pods() -> None:
    """After a power cut nothing runs, podman is not there until boot, then pods are down."""
    kit = make_kit()
    pod = make_pod(APP)
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    kit.host.power_cut()
    assert not kit.host.running()
    with pytest.raises(RuntimeFailed):
        await kit.runtime.list_pods()
    kit.host.boot()
    found = await observed(kit.runtime, pod)
    assert found is not None and not found.infra_running
    assert state_of(found) is ContainerState.CREATED


async def test_a_power_cut_ends_what_podman_was_asked_for() -> None:
    """A call that was slow before is not carried out after the boot (seed 3213083)."""
    kit = make_kit()
    kit.host.faults.latency_seconds = (0.05, 0.05)
    creating = asyncio.ensure_future(kit.runtime.create_pod(make_pod(APP)))
    await asyncio.sleep(0)
    kit.host.power_cut()
    kit.host.boot()
    with pytest.raises(RuntimeFailed, match="went away"):
        await creating
    assert not kit.host.pods


async def test_cancelled_start_still_happens() -> None:
    """What the service was asked for goes on though the daemon is gone."""
    kit = make_kit()
    pod = make_pod(APP)
    await kit.runtime.create_pod(pod)
    task = asyncio.ensure_future(kit.runtime.start_container(pod.id, "app"))
    await asyncio.sleep(0)
    task.cancel()
    await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.RUNNING)


async def test_hung_host_answers_nothing() -> None:
    """While it hangs every call ends with RuntimeHung at the deadline."""
    kit = make_kit(deadline_seconds=0.3)
    kit.host.faults.is_hung = True
    with pytest.raises(RuntimeHung):
        await kit.runtime.list_pods()


async def test_failures_come_as_ordered() -> None:
    """The next call fails if told so, and the one after it does not."""
    kit = make_kit()
    kit.host.faults.fail_next["info"] = 1
    with pytest.raises(RuntimeFailed):
        await kit.runtime.info()
    assert (await kit.runtime.info()).name == "sim"


async def test_out_of_memory_and_ports() -> None:
    """An OOM kill shows as such; a host port has one owner."""
    kit = make_kit()
    kit.host.behave = behaving(app=Behaviour(is_oom=True))
    app = replace(APP, ports=(Port(pod=80, container=80, host=8080),))
    pod = make_pod(app)
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    found = await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
    assert (found.containers[0].exit_code, found.containers[0].oom_killed) == (137, True)
    with pytest.raises(PortTaken):
        await kit.runtime.create_pod(make_pod(app, slot=1))


async def test_a_removal_that_hangs_ends_only_the_pod_that_it_meant() -> None:
    """It may come true when the next pod has the name: a removal goes by podman's own id."""
    kit = make_kit(deadline_seconds=0.05)
    pod = make_pod(APP)
    for _ in range(20):  # half of those that hang are carried out, up to two deadlines later
        await kit.runtime.create_pod(pod)
        kit.host.faults.is_hung = True
        with pytest.raises(RuntimeHung):
            await kit.runtime.remove_pod(pod.id)
        kit.host.faults.is_hung = False
        await kit.runtime.remove_pod(pod.id)
        await kit.runtime.create_pod(pod)
        await asyncio.sleep(0.1)
        assert pod.id in kit.host.pods
        await kit.runtime.remove_pod(pod.id)
