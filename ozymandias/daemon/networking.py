"""The pods' network of this node: made, followed, and told when it is missing.

With `network_kind = "bridge"` it is made once. With "flannel" the subnet that flanneld leases is
followed for ever: it may come late, and change. Without a network the node says so in its record
(degraded) and takes no new work; whatever needs no network goes on.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable
from pathlib import Path

from ozymandias import telemetry
from ozymandias.daemon.config import Config
from ozymandias.ports import Network, NetworkFailed
from ozymandias.problems import CONFIG_INVALID, ProblemError
from ozymandias.runtime.flannel import FlannelNetwork
from ozymandias.runtime.network import PodmanNetwork

RETRY_SECONDS = 1.0
LOOK_SECONDS = 1.0  # between two looks at flanneld's file
KINDS = ("bridge", "flannel")

Report = Callable[[str], None]  # why there is no network; "" once there is


def check_kind(config: Config) -> str:
    if config.podman.network_kind not in KINDS:
        raise ProblemError(
            CONFIG_INVALID(
                f"[podman] network_kind: {config.podman.network_kind!r} is not known.",
                hint=f"Known kinds: {', '.join(KINDS)}.",
            )
        )
    return config.podman.network_kind


def dns_server(config: Config) -> str:
    """What pods ask: on one machine the network's gateway, with flannel the host itself.

    flannel's gateway is on a bridge that comes with the first pod; CoreDNS could not bind to it.
    """
    if config.podman.dns_server:
        return config.podman.dns_server
    if check_kind(config) == "flannel":
        return config.node.address
    try:
        return str(next(ipaddress.ip_network(config.podman.subnet).hosts()))
    except (ValueError, StopIteration) as error:
        raise ProblemError(CONFIG_INVALID(f"[podman] subnet: {error}")) from error


async def keep_network(config: Config, cluster: str, report: Report) -> None:
    """Until it is there, and for flannel as long as the daemon runs."""
    podman = config.podman
    if check_kind(config) == "bridge":
        bridge = PodmanNetwork(
            socket=Path(podman.socket), cluster=cluster, name=podman.network, subnet=podman.subnet
        )
        async with contextlib.aclosing(bridge):
            await ensure(bridge, report)
        return
    flannel = FlannelNetwork(
        socket=Path(podman.socket),
        cluster=cluster,
        name=podman.network,
        subnet_file=Path(podman.flannel_subnet_file),
        networks_dir=Path(podman.networks_dir),
    )
    async with contextlib.aclosing(flannel):
        done: tuple[int, int] | None = None
        while True:
            stamp = flannel.stamp()
            # A file that is gone (it is in /run) says nothing new: what it said holds.
            if done is None or stamp not in (done, None):
                await ensure(flannel, report)
                done = stamp
            await asyncio.sleep(LOOK_SECONDS)


async def ensure(network: Network, report: Report) -> None:
    """Until it is there; meanwhile pods wait with that reason."""
    told = ""
    while True:
        try:
            found = await network.ensure()
        except NetworkFailed as error:
            if str(error) != told:
                told = str(error)
                telemetry.warn("network.missing", reason=told)
            report(told)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            telemetry.log("network.ready", name=found.name, subnet=found.subnet)
            report("")
            return
