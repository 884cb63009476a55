"""Waiting for each service of a host until it does what it is for, within a time.

A service that ends, or is not ready in time, becomes a problem that carries the end of its log.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ozymandias.cluster import reach
from ozymandias.cluster.doctor import service as podman
from ozymandias.cluster.founding import credentials
from ozymandias.cluster.founding.record import DOOR_PORT, HostRecord, Places
from ozymandias.cluster.founding.running import Runner
from ozymandias.cluster.founding.services import Service
from ozymandias.ports import StoreError
from ozymandias.problems import HOST_CLUSTER, Problem, ProblemError
from ozymandias.store.etcd_admin import Answering, EtcdAdmin
from ozymandias.store.etcd_calls import Timeouts

READY_SECONDS_MAX = 60.0
PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    record: HostRecord
    places: Places


def wait(host: Host, service: Service, runner: Runner, seconds: float = READY_SECONDS_MAX) -> float:
    """How long it took. ProblemError when it is not ready in time."""
    began = time.monotonic()
    is_ready = CHECKS.get(service.name)
    while is_ready is not None and not is_ready(host):
        if time.monotonic() - began > seconds:
            raise ProblemError(_not_ready(host, service, runner, seconds))
        time.sleep(PAUSE_SECONDS)
    return time.monotonic() - began


def _not_ready(host: Host, service: Service, runner: Runner, seconds: float) -> Problem:
    runs = "runs, but is not ready" if runner.is_running(service) else "does not run"
    where = (
        f"`journalctl -u {service.unit}`"
        if host.places.has_systemd
        else str(host.places.logs / f"{service.name}.log")
    )
    return HOST_CLUSTER(
        f"{service.name} {runs} after {seconds:.0f} s.",
        hint=f"{where} says why. What was done stays: put it right and run the same again.",
        program=service.name,
        log=runner.log_of(service),
    )


def answering(host: Host) -> Answering | None:
    """What this host's own etcd says; None when it says nothing."""
    return asyncio.run(_answering(host))


async def _answering(host: Host) -> Answering | None:
    quick = Timeouts(attempt=2.0, call=2.0)
    admin = EtcdAdmin([host.record.client_url], credentials.etcd_credentials(host.places), quick)
    try:
        return await admin.answering()
    except StoreError:
        return None
    finally:
        await admin.aclose()


def _etcd(host: Host) -> bool:
    found = answering(host)
    return found is not None and found.leader_id != 0


def _podman(host: Host) -> bool:
    try:
        return podman.get(host.places.podman_socket, f"{podman.PREFIX}/_ping")[0] == 200
    except OSError:
        return False


def _flanneld(host: Host) -> bool:
    try:
        return "FLANNEL_SUBNET=" in host.places.flannel_subnet.read_text()
    except OSError:
        return False


def _dns(host: Host) -> bool:
    name = f"ready.{host.record.cluster.domain}"
    return reach.dns_answers(host.record.address, 53, name)


def _daemon(host: Host) -> bool:
    try:
        return podman.get(host.places.api_socket, "/readyz")[0] == 200
    except OSError:
        return False


def _ingress(host: Host) -> bool:
    address, _, port = host.record.ingress_listen.partition(",")[0].rpartition(":")
    if address.strip("[]") in ("0.0.0.0", "::", ""):
        address = "127.0.0.1"
    return reach.answers(f"http://{address}:{port}/")


def _keeper(host: Host) -> bool:
    """Where it has a door, that stands open."""
    if not host.places.authority_key.exists():
        return True
    try:
        with socket.create_connection((host.record.address, DOOR_PORT), timeout=1.0):
            return True
    except OSError:
        return False


def _guard(host: Host) -> bool:
    return (host.places.run / "guard" / "socket").exists()


CHECKS: dict[str, Callable[[Host], bool]] = {
    "etcd": _etcd,
    "podman": _podman,
    "flanneld": _flanneld,
    "coredns": _dns,
    "dns": _dns,
    "daemon": _daemon,
    "ingress": _ingress,
    "keeper": _keeper,
    "guard": _guard,
}
