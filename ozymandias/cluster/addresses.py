"""Addresses for a local cluster: a subnet for its pods and ports on loopback, none in use.

Choosing is pure and gets what is taken as an argument; `taken_subnets` reads the machine's routes
and podman's networks.
"""

import ipaddress
import json
import socket
import struct
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from ozymandias.problems import LOCAL_CLUSTER, ProblemError

POOL = ipaddress.IPv4Network("10.89.64.0/18")
PREFIX = 24  # 253 pods on one machine are plenty; 64 clusters fit the pool
IP_FREEBIND = 15  # ip(7); the socket module has no name for it
API_PORT = 7400
INGRESS_PORT = 8080


def choose_subnet(
    taken: Iterable[ipaddress.IPv4Network],
    is_usable: Callable[[ipaddress.IPv4Network], bool] = lambda subnet: True,
) -> ipaddress.IPv4Network:
    """The first subnet of the pool that overlaps nothing taken and is usable."""
    avoid = [network for network in taken if network.prefixlen > 0 and network.overlaps(POOL)]
    free = [
        candidate
        for candidate in POOL.subnets(new_prefix=PREFIX)
        if not any(candidate.overlaps(network) for network in avoid)
    ]
    if not free:
        raise ProblemError(
            LOCAL_CLUSTER(
                f"No subnet of {POOL} is free for pods.",
                hint="`ip route` and `podman network ls` show who uses them.",
            )
        )
    for candidate in free:
        if is_usable(candidate):
            return candidate
    raise ProblemError(
        LOCAL_CLUSTER(
            "Port 53 can't be bound for the pods' DNS: a program of this machine has it on all"
            " addresses.",
            hint="`ss -lnup 'sport = :53'` shows which; let it listen on its own address only.",
        )
    )


def dns_is_free(subnet: ipaddress.IPv4Network) -> bool:
    """Whether port 53 of the subnet's gateway can be bound, before the address exists."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            probe.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((gateway_of(subnet), 53))
            except OSError:
                return False
    return True


def gateway_of(subnet: ipaddress.IPv4Network) -> str:
    return str(subnet.network_address + 1)


def taken_subnets(
    environment: Mapping[str, str], reservations: Path
) -> list[ipaddress.IPv4Network]:
    """Networks that this machine has routes to, podman's, and those of clusters being made."""
    reserved = [
        ipaddress.IPv4Network(file.read_text().strip()) for file in reservations.glob("*/subnet")
    ]
    routed = routes(Path("/proc/net/route").read_text())
    return [*routed, *_podman_subnets(environment), *reserved]


def routes(table: str) -> list[ipaddress.IPv4Network]:
    """The networks of /proc/net/route (hexadecimal, machine's byte order), less the default."""
    networks = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        address, netmask = (
            socket.inet_ntoa(struct.pack("=I", int(text, 16))) for text in (fields[1], fields[7])
        )
        network = ipaddress.IPv4Network(f"{address}/{netmask}", strict=False)
        if network.prefixlen > 0:
            networks.append(network)
    return networks


def _podman_subnets(environment: Mapping[str, str]) -> list[ipaddress.IPv4Network]:
    done = subprocess.run(
        ["podman", "network", "ls", "--format", "json"],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    try:
        documents = json.loads(done.stdout or "[]")
        texts = [s["subnet"] for network in documents for s in network.get("subnets") or ()]
    except (ValueError, KeyError, TypeError):
        return []
    parsed = [ipaddress.ip_network(text, strict=False) for text in texts]
    return [network for network in parsed if isinstance(network, ipaddress.IPv4Network)]


# Ports ------------------------------------------------------------------------------------------


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int, reserved: Collection[int] = ()) -> list[int]:
    """That many different free ports; all are held until the last one is found."""
    probes: list[socket.socket] = []
    found: list[int] = []
    try:
        while len(found) < count:
            probes.append(socket.socket())
            probes[-1].bind(("127.0.0.1", 0))
            port = probes[-1].getsockname()[1]
            found += [port] if port not in reserved else []
        return found
    finally:
        for probe in probes:
            probe.close()


def choose_ports(
    asked: int | None,
    usual: int,
    count: int,
    what: str,
    option: str,
    reserved: Collection[int] = (),
) -> list[int]:
    """`count` ports in a row from the one asked for; a taken one is a problem.

    Not asked for: the usual ones, or any free ones where those are taken. 0 asks for any.
    Reserved are those that another cluster is about to use.
    """
    if asked == 0:
        return free_ports(count, reserved)
    first = usual if asked is None else asked
    row = list(range(first, first + count))
    busy = [port for port in row if port > 65535 or port in reserved or not is_free(port)]
    if not busy:
        return row
    if asked is None:
        return free_ports(count, reserved)
    raise ProblemError(
        LOCAL_CLUSTER(
            f"Port {busy[0]} of 127.0.0.1, wanted for {what}, is taken.",
            hint=f"Choose another one with {option}, or leave the option out.",
            port=busy[0],
        )
    )
