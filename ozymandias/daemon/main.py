"""The daemon's composition root: settings in, adapters built, loops started.

SIGTERM and SIGINT end it and leave lease and pods as they are: a restart or an upgrade is no
reason for anything to move. `ozymandias --config FILE`.
"""

import argparse
import asyncio
import contextlib
import fcntl
import gc
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import uvloop

from ozymandias import __version__, telemetry
from ozymandias.api.app import serving
from ozymandias.api.audit import Audit
from ozymandias.api.callers import Tokens
from ozymandias.api.limits import Limits, Rate
from ozymandias.api.peers import HttpPeers
from ozymandias.api.relay import Others, Relay
from ozymandias.core.routes import Names
from ozymandias.daemon import config as settings
from ozymandias.daemon.config import Config
from ozymandias.daemon.connect import connect_store, settings_tls
from ozymandias.daemon.daemon import Daemon, Ports
from ozymandias.daemon.membership import Identity, Membership
from ozymandias.daemon.networking import dns_server, keep_network
from ozymandias.daemon.notify import notify, watchdog_seconds
from ozymandias.model.node import NodeName, Resources
from ozymandias.ports import Gauge, Store, StoreError
from ozymandias.problems import (
    ALREADY_RUNNING,
    CONFIG_INVALID,
    EXIT_FAILED,
    ProblemError,
)
from ozymandias.runtime.ended import EndedFiles
from ozymandias.runtime.gauge import HostGauge, NoGauge
from ozymandias.runtime.guard import PodGuard
from ozymandias.runtime.host import SystemClock, read_host, usual_reserve
from ozymandias.runtime.pending import OutsideWork
from ozymandias.runtime.podman import PodmanRuntime
from ozymandias.store.registration import ensure_format

PULSE_SECONDS = 5.0
RETRY_SECONDS = 2.0
GC_THRESHOLDS = (100_000, 50, 100)


def settle_memory() -> None:
    """Snapshots are large, shared, and without cycles: look for some seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="ozymandias", description="The daemon of every node.")
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--version", action="version", version=f"ozymandias {__version__}")
    arguments = parser.parse_args()
    telemetry.configure()
    try:
        config = settings.load(arguments.config or _default_file())
        with _only_one(Path(config.node.state_dir)), contextlib.suppress(KeyboardInterrupt):
            settle_memory()
            uvloop.run(_run_until_signal(config))
    except ProblemError as error:
        _end(error)
    except BaseExceptionGroup as group:
        problems, others = group.split(ProblemError)
        if others or problems is None:
            raise
        _end(_first(problems))


def _default_file() -> Path | None:
    return settings.DEFAULT_FILE if settings.DEFAULT_FILE.exists() else None


def _end(error: BaseException) -> None:
    problem = error.problem if isinstance(error, ProblemError) else None
    hint = f" {problem.hint}" if problem and problem.hint else ""
    print(f"ozymandias: {error}{hint}", file=sys.stderr)  # noqa: T201
    sys.exit(problem.kind.exit_code if problem else EXIT_FAILED)


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


@contextmanager
def _only_one(state_dir: Path) -> Iterator[None]:
    """One daemon per state directory; the lock goes with the process, however it ends."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (state_dir / "daemon.lock").open("a")
    except OSError as error:
        raise ProblemError(CONFIG_INVALID(f"[node] state_dir: {error}")) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ProblemError(
                ALREADY_RUNNING(
                    f"Another daemon holds {state_dir}.",
                    hint="Stop it first, or give this one another [node] state_dir.",
                )
            ) from error
        yield


async def _run_until_signal(config: Config) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await _run(config)


async def _run(config: Config) -> None:
    notify("STATUS=starting")
    tokens, key = _tokens(config), secrets.token_hex(16)
    listen = settings.host_port(config.api.listen, "[api] listen")
    store = connect_store(config.etcd)
    tls = settings_tls(config.api)
    peers = HttpPeers(_name(config), key, tls.client if tls else None)
    try:
        cluster = config.node.cluster or await _cluster_of(store, config)
        async with _runtime(config, cluster) as runtime, asyncio.TaskGroup() as group:
            names = Names(domain=config.names.domain, ingress_domain=config.names.ingress_domain)
            daemon = Daemon(
                _identity(config, cluster, key),
                names,
                Ports(
                    store=store,
                    runtime=runtime,
                    clock=SystemClock(),
                    peers=peers,
                    ended=EndedFiles(Path(config.node.state_dir) / "ended"),
                    work=OutsideWork(
                        node=_name(config),
                        commands=config.autoscale.commands,
                        user=config.autoscale.user,
                    ),
                    guard=PodGuard(Path(config.node.run_dir), _name(config), runtime.group_of),
                    gauge=_gauge(config),
                ),
                breaker_seconds=config.node.breaker_seconds,
                steady_seconds=config.node.steady_seconds,
            )
            group.create_task(keep_network(config, cluster, daemon.report_network))
            group.create_task(_pulse(daemon.membership))
            group.create_task(store.follow_members())
            relay = None if config.node.schedules else Relay(Others(store, daemon.node), peers)
            async with _api(config, daemon, relay, listen, tokens, tls.server if tls else None):
                notify("READY=1")
                group.create_task(daemon.run())
                # Told to end: what is under way is answered first, by a daemon that is all there.
                await asyncio.Event().wait()
    finally:
        await peers.aclose()
        await store.aclose()


@asynccontextmanager
async def _api(
    config: Config,
    daemon: Daemon,
    relay: Relay | None,
    listen: tuple[str, int],
    tokens: Tokens | None,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[None]:
    path = config.api.socket or str(Path(config.node.state_dir) / "api.sock")
    async with AsyncExitStack() as stack:
        served = serving(
            daemon.operations,
            listen=listen,
            tokens=tokens,
            socket_path=Path(path),
            limits=_limits(config),
            hosts=frozenset({_name(config), socket.gethostname().lower(), *config.api.hosts}),
            audit=_audit(config),
            tls=tls,
            relay=relay,
        )
        try:
            await stack.enter_async_context(served)
        except OSError as error:
            raise ProblemError(CONFIG_INVALID(f"[api] {config.api.listen}: {error}")) from error
        yield


def _gauge(config: Config) -> Gauge:
    return HostGauge(Path(config.node.state_dir)) if config.node.pressure else NoGauge()


def _name(config: Config) -> str:
    return config.node.name or socket.gethostname().lower()


def _tokens(config: Config) -> Tokens | None:
    if not config.api.token_file:
        return None
    try:
        return Tokens(Path(config.api.token_file))
    except (OSError, ValueError) as error:
        raise ProblemError(CONFIG_INVALID(f"[api] token_file: {error}")) from error


def _limits(config: Config) -> Limits:
    per_second = float(config.api.requests_per_second)
    return Limits(
        caller=Rate(per_second=per_second, burst=4 * per_second),
        connections_max=config.api.connections_max,
    )


def _audit(config: Config) -> Audit:
    size = settings.size(config.api.audit_max, "[api] audit_max")
    return Audit(Path(config.node.state_dir) / "audit.log", size)


def _identity(config: Config, cluster: str, peer_key: str) -> Identity:
    node = config.node
    host = read_host(Path(node.state_dir), node.machine_id)
    if not host.machine_id:
        raise ProblemError(
            CONFIG_INVALID("This machine has no /etc/machine-id.", hint="Set [node] machine_id.")
        )
    memory = settings.size(node.memory, "[node] memory") if node.memory else host.memory_bytes
    disk = settings.size(node.disk, "[node] disk") if node.disk else host.disk_bytes
    cpu = settings.cores(node.cpu, "[node] cpu") if node.cpu else host.cpu_millis
    capacity = Resources(memory_bytes=memory, disk_bytes=disk, cpu_millis=cpu)
    return Identity(
        name=NodeName(_name(config)),
        cluster=cluster,
        machine_id=host.machine_id,
        address=node.address,
        api=f"{'https' if config.api.cert_file else 'http'}://{config.api.listen}",
        daemon_version=__version__,
        capacity=capacity,
        reserve=_reserve(node, capacity),
        allows_host_network=node.allow_host_network,
        labels=tuple(sorted(node.labels.items())),
        lease_ttl_seconds=node.lease_ttl_seconds,
        schedules=node.schedules,
        start_clean=node.start_clean,
        peer_key=peer_key,
    )


def _reserve(node: settings.NodeConfig, capacity: Resources) -> Resources:
    """What the host keeps for itself, by its settings or by the usual measure."""

    def reserve(given: str, where: str, total: int, is_chosen: bool) -> int:
        if given:
            return settings.size(given, where)
        return 0 if is_chosen else min(usual_reserve(total), total)

    cpu = settings.cores(node.reserve_cpu, "[node] reserve_cpu") if node.reserve_cpu else 0
    if cpu and cpu >= capacity.cpu_millis:
        detail = f"[node] reserve_cpu: {node.reserve_cpu} cores are all that this node has."
        raise ProblemError(CONFIG_INVALID(detail, hint='cpu = "0" does not count them.'))
    return Resources(
        memory_bytes=reserve(
            node.reserve_memory, "[node] reserve_memory", capacity.memory_bytes, bool(node.memory)
        ),
        disk_bytes=reserve(
            node.reserve_disk, "[node] reserve_disk", capacity.disk_bytes, bool(node.disk)
        ),
        cpu_millis=cpu,
    )


async def _cluster_of(store: Store, config: Config) -> str:
    """The cluster's id by the store's word; kept, so that the next start need not wait for it."""
    file = Path(config.node.state_dir) / "cluster-id"
    with contextlib.suppress(OSError):
        if kept := file.read_text().strip():
            return kept
    while True:
        try:
            found = (await ensure_format(store, os.urandom(6).hex())).cluster
        except StoreError as error:
            notify(f"STATUS=waiting for etcd: {error}")
            telemetry.warn("store.waiting", reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        else:
            file.write_text(found + "\n")
            return found


@asynccontextmanager
async def _runtime(config: Config, cluster: str) -> AsyncIterator[PodmanRuntime]:
    runtime = PodmanRuntime(
        socket=Path(config.podman.socket),
        cluster=cluster,
        node=config.node.name or socket.gethostname().lower(),
        network=config.podman.network,
        dns_server=dns_server(config),
        host_address=config.node.address,
        domain=config.names.domain,
        volume_dir=Path(config.node.state_dir) / "volumes",
        shared_dir=Path(config.node.shared_dir),
    )
    try:
        yield runtime
    finally:
        await runtime.aclose()


async def _pulse(membership: Membership) -> None:
    """Measure how late the event loop wakes, and tell systemd that it does."""
    period = min(PULSE_SECONDS, watchdog_seconds() or PULSE_SECONDS)
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period
        await asyncio.sleep(period)
        telemetry.LOOP_LAG.set(max(0.0, loop.time() - due))
        state = "member of the cluster" if membership.valid() else membership.waiting_for
        notify("WATCHDOG=1", f"STATUS={state}")
