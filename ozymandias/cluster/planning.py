"""What a local cluster is going to be: names, ports, addresses, none of them anybody else's.

Planned and written down before anything is started, under a lock of the whole machine, so that two
`ozy up` at the same moment choose different things.
"""

import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from ozymandias.cluster import addresses, programs, state
from ozymandias.cluster.state import LocalCluster, LocalNode, Processes
from ozymandias.model.units import parse_size
from ozymandias.problems import LOCAL_CLUSTER, ProblemError
from ozymandias.store.tokens import hashed, make_token

NODES_MAX = 32
SIZE_MIN_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What `ozy up` was asked for."""

    state_dir: Path
    nodes: int = 3
    memory: str = "4G"
    disk: str = "10G"
    ingress_port: int | None = None
    api_port: int | None = None


def check(wish: Wish) -> None:
    if not 1 <= wish.nodes <= NODES_MAX:
        raise ProblemError(LOCAL_CLUSTER(f"--nodes must be 1 to {NODES_MAX}, not {wish.nodes}."))
    for option, text in (("--memory", wish.memory), ("--disk", wish.disk)):
        try:
            size = parse_size(text)
        except ValueError as error:
            raise ProblemError(LOCAL_CLUSTER(f"{option}: {error}.")) from None
        if size < SIZE_MIN_BYTES:
            raise ProblemError(LOCAL_CLUSTER(f"{option} must be at least 64M, not {text}."))


def plan(wish: Wish) -> LocalCluster:
    """Ids, ports and addresses; written down before anything is started.

    Two of them at a time on one machine never choose the same port or subnet.
    """
    with state.locked_machine():
        reserved = state.reserved_ports()
        api_ports = addresses.choose_ports(
            wish.api_port, addresses.API_PORT, wish.nodes, "the API", "--api-port", reserved
        )
        [ingress_port] = addresses.choose_ports(
            wish.ingress_port,
            addresses.INGRESS_PORT,
            1,
            "the ingress",
            "--ingress-port",
            reserved | set(api_ports) if wish.ingress_port in (None, 0) else reserved,
        )
        if ingress_port in api_ports:
            raise ProblemError(LOCAL_CLUSTER(f"API and ingress both want port {ingress_port}."))
        avoid = reserved | {*api_ports, ingress_port}
        etcd_port, etcd_peer_port, dns_port = addresses.free_ports(3, avoid)
        taken = addresses.taken_subnets(programs.base_environment(), state.RUN_BASE)
        subnet = addresses.choose_subnet(taken, addresses.dns_is_free)
        cluster = LocalCluster(
            id=secrets.token_hex(4),
            state_dir=wish.state_dir,
            nodes=tuple(
                LocalNode(name=f"n{number}", api_port=port)
                for number, port in enumerate(api_ports, 1)
            ),
            memory=wish.memory,
            disk=wish.disk,
            subnet=str(subnet),
            gateway=addresses.gateway_of(subnet),
            etcd_port=etcd_port,
            etcd_peer_port=etcd_peer_port,
            ingress_port=ingress_port,
            dns_port=dns_port,
        )
        cluster.save()
        _reserve(cluster)
    token = make_token()
    _write_private(cluster.token_file, token)
    _write_private(cluster.token_hashes_file, str(hashed(token)))
    return cluster


def _write_private(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text + "\n")


def _reserve(cluster: LocalCluster) -> None:
    cluster.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    cluster.subnet_file.write_text(f"{cluster.subnet}\n")
    state.reserve_ports(cluster)


def refreshed(cluster: LocalCluster) -> LocalCluster:
    """The same cluster; ports that somebody took meanwhile are chosen anew, killed nodes return."""
    state.end(Processes.load(cluster.state_dir).alive(), grace_seconds=3.0)
    with state.locked_machine():
        reserved = state.reserved_ports()
        etcd_port, etcd_peer_port, dns_port, *spare = addresses.free_ports(
            4 + len(cluster.nodes), reserved
        )
        ports = (*(node.api_port for node in cluster.nodes), cluster.ingress_port)
        kept = [
            port if port not in reserved and addresses.is_free(port) else spare[i]
            for i, port in enumerate(ports)
        ]
        cluster = replace(
            cluster,
            nodes=tuple(
                LocalNode(name=node.name, api_port=port)
                for node, port in zip(cluster.nodes, kept, strict=False)
            ),
            etcd_port=etcd_port,
            etcd_peer_port=etcd_peer_port,
            dns_port=dns_port,
            ingress_port=kept[-1],
        )
        cluster.save()
        _reserve(cluster)
    return cluster
