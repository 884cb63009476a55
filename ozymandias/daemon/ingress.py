"""Composition root of `ozymandias-ingress`: follows routes in the store and serves them.

It only reads the store, and serves whatever that does: before the first answer every request gets
a 503 problem, and while the store is away the last table stays in force. SIGTERM stops accepting
and lets the requests in flight end.
"""

import argparse
import asyncio
import contextlib
import gc
import ipaddress
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from ozymandias import __version__, telemetry
from ozymandias.core.route_changes import RouteChanges
from ozymandias.core.routes import Names
from ozymandias.daemon import config as settings
from ozymandias.daemon.config import Config
from ozymandias.daemon.connect import connect_store
from ozymandias.daemon.notify import notify, watchdog_seconds
from ozymandias.edge.http import Ingress
from ozymandias.edge.last_good import LastKnownGood
from ozymandias.edge.limits import Limits
from ozymandias.edge.status_page import serve_pages
from ozymandias.edge.traffic import AccessLog, metrics
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.routing import RouteTable, Upstream
from ozymandias.ports import StoreError
from ozymandias.problems import CONFIG_INVALID, ProblemError
from ozymandias.store.mirror import Mirror

TABLE_INTERVAL_SECONDS = 0.02  # between two tables; changes come in bursts
RETRY_SECONDS = 2.0
# After an outage of the store all leases lapse, and with them what the nodes told. They join again
# and tell it anew, one by one: so long after one did, no job's last instance is taken for gone.
BLIND_SECONDS = 5.0
GC_THRESHOLDS = (20_000, 20, 50)  # requests make no cycles, connections few
FILES_WANTED = 65536
FILES_RESERVED = 128  # for all but clients and instances

Upstreams = dict[tuple[str, str], tuple[Upstream, ...]]


def main() -> None:
    run_process("ozymandias-ingress", "Host-header HTTP ingress.", serve)


def run_process(
    name: str, description: str, serve_: Callable[[Config], Coroutine[Any, Any, None]]
) -> None:
    """What the edge's processes have in common: flags, settings, event loop, exit codes."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    arguments = parser.parse_args()
    telemetry.configure()
    default = settings.DEFAULT_FILE if settings.DEFAULT_FILE.exists() else None
    try:
        with contextlib.suppress(KeyboardInterrupt):
            uvloop.run(serve_(settings.load(arguments.config or default)))
    except ProblemError as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.problem.kind.exit_code)


async def serve(config: Config) -> None:
    file = config.ingress.access_log
    log = AccessLog(Path(file)) if file else None
    ingress = Ingress(limits_of(config), _trusted(config), log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ingress.stop)
    await ingress.start(_listeners(config))
    store = connect_store(config.etcd)
    mirror = Mirror(store)
    names = Names(domain=config.names.domain, ingress_domain=config.names.ingress_domain)
    status = None
    try:
        if config.ingress.status_listen:
            status = await _serve_status(config, ingress, mirror)
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(follow_store(mirror.run)),
                group.create_task(store.follow_members()),
                group.create_task(follow_routes(mirror, ingress, names)),
                group.create_task(pulse()),
            ]
            notify("READY=1")
            telemetry.log("ingress.started", listen=config.ingress.listen)
            await ingress.run()
            telemetry.log("ingress.stopped")
            for task in others:
                task.cancel()
    finally:
        if status is not None:
            status.close()
        await store.aclose()


async def _serve_status(config: Config, ingress: Ingress, mirror: Mirror) -> asyncio.Server:
    text = config.ingress.status_listen
    try:
        return await serve_pages(
            *settings.host_port(text, "[ingress] status_listen"), pages(ingress, mirror)
        )
    except OSError as error:
        raise ProblemError(CONFIG_INVALID(f"[ingress] status_listen {text}: {error}")) from error


async def follow_store(follow: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A store that refuses us is asked again; what is known stays in force meanwhile."""
    while True:
        try:
            await follow()
        except StoreError as error:
            telemetry.warn("store.waiting", reason=str(error))
        await asyncio.sleep(RETRY_SECONDS)


async def pulse() -> None:
    """Tell systemd's watchdog that the event loop turns."""
    while interval := watchdog_seconds():
        notify("WATCHDOG=1")
        await asyncio.sleep(interval)


async def follow_routes(mirror: Mirror, ingress: Ingress, names: Names) -> None:
    guard: LastKnownGood[JobKey, Upstreams] = LastKnownGood()
    changes = RouteChanges(names)
    clock = asyncio.get_running_loop()
    served: RouteTable | None = None
    revision, blind_until = 0, 0.0
    epochs: dict[NodeName, int] = {}  # of each node when it was last there
    while True:
        release = guard.next_release
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(release):
                await mirror.changed(revision)
        revision = mirror.revision
        snapshot = mirror.snapshot()
        present = {n.name: n.presence_revision for n in snapshot.nodes.values() if n.is_alive}
        if not present or any(epochs.get(name, epoch) != epoch for name, epoch in present.items()):
            blind_until = clock.time() + BLIND_SECONDS
        epochs |= present
        is_blind = clock.time() < blind_until
        table = guarded(changes.table(snapshot), guard, clock.time(), is_blind=is_blind)
        if table != served:
            ingress.set_table(table)
            if served is None:
                settle_memory()
            served = table
            telemetry.log("ingress.routes", revision=revision, hosts=len(table.hosts))
            if guard.held:
                telemetry.warn(
                    "ingress.last_known_good",
                    jobs=",".join(sorted(map(str, guard.held))),
                    reason="most routes lost all their instances at once",
                )
        await asyncio.sleep(TABLE_INTERVAL_SECONDS)


def settle_memory() -> None:
    """What is there now stays: looking for cycles in it again and again would hold up requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def guarded(
    table: RouteTable,
    guard: LastKnownGood[JobKey, Upstreams],
    now: float,
    *,
    is_blind: bool = False,
) -> RouteTable:
    """The table with the last known instances of jobs that lost all theirs with most others."""
    found: dict[JobKey, Upstreams] = {}
    wanted: set[JobKey] = set()
    for routes in table.hosts.values():
        for route in routes:
            wanted.add(route.job)
            if route.upstreams:
                found.setdefault(route.job, {})[(route.host, route.path)] = route.upstreams
    serve_ = guard.admit(found, now, wanted, is_blind=is_blind)
    if not guard.held:
        return table
    hosts = {
        host: tuple(
            replace(r, upstreams=serve_[r.job].get((r.host, r.path), ()))
            if r.job in guard.held
            else r
            for r in routes
        )
        for host, routes in table.hosts.items()
    }
    return RouteTable(hosts=hosts)


def limits_of(config: Config) -> Limits:
    """The settings' limits, and no more connections than there are file descriptors for."""
    own = config.ingress
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_WANTED and soft < hard:
        soft = min(FILES_WANTED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # Most connections wait for a request and need no other to an instance.
    affordable = max(16, (soft - FILES_RESERVED) * 3 // 4)
    return Limits(
        body_bytes_max=settings.size(own.body_max, "[ingress] body_max") if own.body_max else 0,
        connections_max=min(own.connections_max, affordable),
        connections_per_address_max=own.connections_per_address_max,
    )


def _trusted(config: Config) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    try:
        return [ipaddress.ip_network(text) for text in config.ingress.trusted_proxies]
    except ValueError as error:
        raise ProblemError(CONFIG_INVALID(f"[ingress] trusted_proxies: {error}")) from error


def _listeners(config: Config) -> list[socket.socket]:
    sockets = []
    for text in config.ingress.listen.split(","):
        host, port = settings.host_port(text.strip(), "[ingress] listen")
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
        except OSError as error:
            raise ProblemError(CONFIG_INVALID(f"[ingress] listen {text}: {error}")) from error
        sockets.append(sock)
    return sockets


def pages(ingress: Ingress, mirror: Mirror) -> dict[str, Callable[[], tuple[int, str]]]:
    def ready() -> tuple[int, str]:
        if ingress.table is None:
            return 503, "the routes have not been read yet\n"
        return 200, "ready\n"

    return {
        "/healthz": lambda: (200, "ok\n"),
        "/readyz": ready,
        "/metrics": lambda: (200, metrics(ingress, mirror.revision)),
    }


if __name__ == "__main__":
    main()
