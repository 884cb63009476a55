"""Ports of the pod's own address, and ports of the host."""

import asyncio
import socket
import subprocess
import urllib.request

import pytest

from ozymandias.model.job import NetworkMode, Port
from ozymandias.model.pod import ContainerState, Pod
from ozymandias.model.record import replace
from ozymandias.ports import PortTaken
from ozymandias.runtime.podspec import infra_name
from tests.integration.podman.conftest import PodmanKit, demo, leftovers, shell
from tests.runtime_contract import make_pod, observed, state_of, until


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


async def fetch(url: str) -> str:
    """Ask until the server is there."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await asyncio.to_thread(read, url)
            except OSError:
                await asyncio.sleep(0.05)


async def start(kit: PodmanKit, *ports: Port, slot: int = 0) -> tuple[Pod, str]:
    pod = make_pod(replace(demo(MESSAGE="hello"), ports=ports), slot=slot)
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    return pod, await address_of(kit, pod)


async def address_of(kit: PodmanKit, pod: Pod) -> str:
    found = await observed(kit.runtime, pod)
    assert found is not None
    return found.address


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_redirect(kit: PodmanKit) -> None:
    """Port 80 of the pod's address reaches 8000: from the host, another pod, and itself."""
    pod, address = await start(kit, Port(pod=80, container=8000))
    assert (await fetch(f"http://{address}/")).startswith("hello")
    url = f"http://{address}/"
    client = make_pod(shell(f"timeout 5 wget -qO- {url}"), slot=1)
    await kit.runtime.create_pod(client)
    await kit.runtime.start_container(client.id, "app")
    done = await until(kit.runtime, client, lambda p: state_of(p) is ContainerState.EXITED)
    assert done.containers[0].exit_code == 0
    for host in ("localhost", address):
        inside = await kit.runtime.exec(pod.id, "app", ["wget", "-qO-", f"http://{host}/"])
        assert inside.stdout.startswith(b"hello"), host


async def test_redirect_is_made_anew_with_the_network(kit: PodmanKit) -> None:
    """After the infra container was restarted, port 80 reaches 8000 again."""
    pod, address = await start(kit, Port(pod=80, container=8000))
    await fetch(f"http://{address}/")
    await kit.runtime.stop_pod(pod.id)
    again = kit.site.runtime()  # a daemon that knows nothing of the pod but what podman says
    await again.start_container(pod.id, "app")
    await again.aclose()
    assert (await fetch(f"http://{await address_of(kit, pod)}/")).startswith("hello")


async def test_a_deleted_interface_is_made_anew(kit: PodmanKit) -> None:
    """A pod whose interface was deleted has no network; its next start gives it another one."""
    pod, address = await start(kit, Port(pod=80, container=8000))
    await fetch(f"http://{address}/")
    infra = kit.site.service.podman("inspect", "-f", "{{.State.Pid}}", infra_name(pod.id))
    delete = ["nsenter", "-t", infra, "-n", "ip", "link", "delete", "eth0"]
    subprocess.run(delete, check=True)
    down = await observed(kit.runtime, pod)
    assert down is not None and not down.infra_running and down.address == ""
    await kit.runtime.start_container(pod.id, "app")
    assert (await fetch(f"http://{await address_of(kit, pod)}/")).startswith("hello")
    await kit.runtime.remove_pod(pod.id)
    assert leftovers(kit.site) == []


async def test_host_port(kit: PodmanKit) -> None:
    """A port of the host reaches the container, and a second owner is refused."""
    port = free_port()
    await start(kit, Port(pod=8000, container=8000, host=port))
    assert (await fetch(f"http://127.0.0.1:{port}/")).startswith("hello")
    second = make_pod(replace(demo(), ports=(Port(pod=8000, container=8000, host=port),)), slot=1)
    with pytest.raises(PortTaken, match=str(port)):
        await kit.runtime.create_pod(second)
    assert await observed(kit.runtime, second) is None


async def test_host_port_of_a_foreign_process(kit: PodmanKit) -> None:
    """A port that some process of the host listens on is refused, and nothing is left."""
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        port = foreign.getsockname()[1]
        pod = make_pod(replace(demo(), ports=(Port(pod=80, container=8000, host=port),)))
        with pytest.raises(PortTaken, match=str(port)):
            await kit.runtime.create_pod(pod)
    assert await observed(kit.runtime, pod) is None


async def test_a_pod_on_the_hosts_network(kit: PodmanKit) -> None:
    """It listens on the host itself, and its address is the node's; a taken port is told."""
    port = free_port()
    container = replace(
        demo(MESSAGE="hello", PORT=str(port)), ports=(Port(pod=port, container=port),)
    )
    pod = make_pod(container)
    pod = replace(pod, job=replace(pod.job, network=NetworkMode.HOST))
    runtime = kit.site.runtime(host_address="127.0.0.1")
    try:
        await runtime.create_pod(pod)
        await runtime.start_container(pod.id, "app")
        found = await observed(runtime, pod)
        assert found is not None
        assert found.address == "127.0.0.1" and found.infra_running
        assert (await fetch(f"http://127.0.0.1:{port}/")).startswith("hello")
        other = make_pod(container, slot=1)
        other = replace(other, job=replace(other.job, network=NetworkMode.HOST))
        with pytest.raises(PortTaken):
            await runtime.create_pod(other)
        await runtime.stop_pod(pod.id)
        await runtime.remove_pod(pod.id)
    finally:
        await runtime.aclose()
