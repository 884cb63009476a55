"""One podman service, one network, one cluster id for all these tests; nothing is left behind."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ozymandias.model.job import Container
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.runtime.network import PodmanNetwork
from ozymandias.runtime.podman import PodmanRuntime
from ozymandias.runtime.podspec import infra_name
from tests.podman_service import PodmanService, podman_service

__all__ = ["podman_service"]

DEMO = "localhost/ozy-demo:1"
BUSYBOX = "localhost/ozy-busybox:1"
ROOT = Path(__file__).parents[3]
MEMORY_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Site:
    """What the runtime of a test node is made from."""

    service: PodmanService
    cluster: str
    network: str
    subnet: str
    directory: Path

    def runtime(
        self,
        node: str = "n1",
        *,
        deadline_seconds: float = 20.0,
        socket: Path | None = None,
        volume_dir: Path | None = None,
        host_address: str = "",
    ) -> PodmanRuntime:
        return PodmanRuntime(
            socket=socket or self.service.socket,
            cluster=self.cluster,
            node=node,
            network=self.network,
            dns_server="192.0.2.53",
            domain="ozy.internal",
            host_address=host_address,
            volume_dir=volume_dir or self.directory / "volumes",
            shared_dir=self.directory / "shared",
            deadline_seconds=deadline_seconds,
        )

    def pod_network(self) -> PodmanNetwork:
        return PodmanNetwork(
            socket=self.service.socket,
            cluster=self.cluster,
            name=self.network,
            subnet=self.subnet,
        )


@dataclass
class PodmanKit:
    runtime: PodmanRuntime
    site: Site

    def serving(self, name: str = "app") -> Container:
        script = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"
        return shell(script, name=name)

    def exiting(self, code: int, name: str = "app") -> Container:
        return shell(f"echo bye; exit {code}", name=name)

    def stubborn(self, name: str = "app") -> Container:
        script = "trap '' TERM; while :; do sleep 1; done"
        return replace(shell(script, name=name), stop_grace_seconds=1.0)

    def stop_infra(self, pod: PodId) -> None:
        self.site.service.podman("kill", "--signal=KILL", infra_name(pod))


def shell(script: str, *, name: str = "app", image: str = BUSYBOX) -> Container:
    return Container(
        name=name, image=image, command=("sh", "-c", script), memory_bytes=MEMORY_BYTES
    )


def demo(name: str = "app", **environment: str) -> Container:
    return Container(
        name=name,
        image=DEMO,
        environment=tuple(environment.items()),
        memory_bytes=MEMORY_BYTES,
        stop_grace_seconds=5.0,
    )


@pytest.fixture(scope="session")
def images() -> None:
    subprocess.run([sys.executable, str(ROOT / "deploy/images/build.py")], check=True)


@pytest.fixture(scope="session")
def site(
    images: None, podman_service: PodmanService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    cluster = uuid.uuid4().hex[:12]
    octet = int(cluster[:2], 16)
    made = Site(
        service=podman_service,
        cluster=cluster,
        network=f"ozy-test-{cluster}",
        subnet=f"10.213.{octet}.0/24",
        directory=tmp_path_factory.mktemp("site"),
    )
    try:
        yield made
    finally:
        sweep(made)


def sweep(site: Site) -> None:
    """Whatever failing tests have left; then the network."""
    label = f"label=ozymandias.cluster={site.cluster}"
    podman = site.service.podman
    for pod in podman("pod", "ls", "--quiet", "--filter", label).split():
        podman("pod", "rm", "--force", "--time=0", pod)
    for volume in podman("volume", "ls", "--quiet", "--filter", label).split():
        podman("volume", "rm", "--force", volume)
    bridges = []
    for network in podman("network", "ls", "--quiet", "--filter", label).split():
        bridges.append(podman("network", "inspect", network, "--format", "{{.NetworkInterface}}"))
        podman("network", "rm", "--force", network)
    left = leftovers(site) + [b for b in bridges if Path("/sys/class/net", b).exists()]
    assert not left, left


def leftovers(site: Site) -> list[str]:
    """Mounts and loop devices of this site; a moment is given to the kernel to detach them."""
    deadline = time.monotonic() + 5
    while (found := attached(site)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def attached(site: Site) -> list[str]:
    directory = os.fspath(site.directory)
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if directory in line]
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            text = backing.read_text().strip()
        except OSError:
            continue
        if text.startswith(directory):
            found.append(f"{backing.parent.parent.name}: {text}")
    return found


@pytest.fixture
async def kit(site: Site) -> AsyncIterator[PodmanKit]:
    """A runtime; every pod it has at the end of the test is removed."""
    network = site.pod_network()
    await network.ensure()
    await network.aclose()
    runtime = site.runtime()
    try:
        yield PodmanKit(runtime, site)
    finally:
        for pod in await runtime.list_pods():
            await runtime.remove_pod(pod.id)
        await runtime.volumes.remove_all()
        await runtime.aclose()
