"""The ingress's figures: against nginx and Envoy, under slow clients, and how soon a route works.

    python -m bench.ingress          all of it, some minutes
    python -m bench.ingress cpu      only some: cpu, latency, slow, route

Ratios are taken turn by turn, each proxy in its turn with the machine as it is then, and the median
turn counts. Requests are counted per second of the proxy's own CPU time, so that neighbours matter
less. p99 is taken with the same load offered to each, below what they could bear.
"""

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import load, proxies
from bench.figure import report
from bench.load import Load
from bench.proxies import Proxy
from ozymandias.store.etcd import EtcdStore
from tests.etcd_server import EtcdCluster

TURNS = 7
TURN_SECONDS = 2
PAUSE_MILLISECONDS = 30  # 64 clients: some two thousand requests a second
NGINX_GOAL = 0.6
ENVOY_GOAL = 2.0
P99_GOAL = 1.5
SLOW_CLIENTS = 10_000
SLOW_GOAL = 2.0
SLOW_TURNS = 3
SLOW_SECONDS = 13
SETTLE_SECONDS = 30.0
NEW_ROUTES = 30
ROUTE_MILLISECONDS_GOAL = 50.0

# name, kind of heads, path
CASES = (
    ("small answers, the same head", "same", "/"),
    ("small answers, no head twice", "varied", "/varied"),
    ("64 KiB, no head twice", "varied", "/large"),
)


def turns(
    found: Sequence[Proxy], directory: Path, kind: str, path: str, pause: int = 0
) -> dict[str, list[Load]]:
    loads: dict[str, list[Load]] = {proxy.name: [] for proxy in found}
    for turn in range(TURNS):
        for proxy in found if turn % 2 == 0 else reversed(found):
            seconds = TURN_SECONDS
            done = load.run(proxy, directory, kind, path, seconds=seconds, pause_milliseconds=pause)
            if done.errors:
                raise RuntimeError(f"{proxy.name} failed {done.errors} of {done.requests}")
            loads[proxy.name].append(done)
    return loads


def measure_cpu(found: Sequence[Proxy], directory: Path) -> None:
    for name, kind, path in CASES:
        loads = turns(found, directory, kind, path)
        ours = [done.per_cpu_second for done in loads["ours"]]
        for other, goal in (("nginx", NGINX_GOAL), ("envoy", ENVOY_GOAL)):
            figure = f"ingress / {other}, requests per CPU-second: {name}"
            if other not in loads:
                report(figure, 0.0, "ratio", goal, f"{other} could not be had", ok=False)
                continue
            theirs = [done.per_cpu_second for done in loads[other]]
            ratios = sorted(o / t for o, t in zip(ours, theirs, strict=True))
            value = statistics.median(ratios)
            how = (
                f"{statistics.median(ours):.0f} against {statistics.median(theirs):.0f} per second,"
                f" {proxies.ROUTES} routes, one core; {TURNS} turns from {ratios[0]:.2f}"
                f" to {ratios[-1]:.2f}"
            )
            report(figure, value, "ratio", goal, how, ok=value >= goal)


def measure_latency(found: Sequence[Proxy], directory: Path) -> None:
    loads = turns(found, directory, "varied", "/varied", PAUSE_MILLISECONDS)
    ratios = sorted(o.p99 / n.p99 for o, n in zip(loads["ours"], loads["nginx"], strict=True))
    value = statistics.median(ratios)
    ours, theirs = (statistics.median(d.p99 for d in loads[name]) for name in ("ours", "nginx"))
    rate = statistics.median(done.requests / done.seconds for done in loads["ours"])
    how = (
        f"{ours * 1000:.2f} ms against {theirs * 1000:.2f} ms at {rate:.0f} requests a second;"
        f" {TURNS} turns from {ratios[0]:.2f} to {ratios[-1]:.2f}"
    )
    report("ingress / nginx, p99", value, "ratio", P99_GOAL, how)


@contextlib.contextmanager
def slow_clients(proxy: Proxy) -> Iterator[None]:
    """All of them connected; afterwards the proxy has seen the last one go."""
    command = [sys.executable, "-m", "bench.slow_clients", str(proxy.port), str(SLOW_CLIENTS)]
    command = ["taskset", "-c", proxies.OTHER_CORES, *command]
    before = proxy.files()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as slow:
        try:
            assert slow.stdout is not None
            assert slow.stdout.readline() == b"ready\n"
            yield
        finally:
            slow.kill()
    deadline = time.monotonic() + SETTLE_SECONDS
    while proxy.files() > before + SLOW_CLIENTS // 100:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{proxy.name} still has {proxy.files()} files open")
        time.sleep(0.1)


def measure_slow(found: Sequence[Proxy], directory: Path) -> None:
    """Good traffic without and with ten thousand slow clients, in turns; nginx for comparison.

    A turn is longer than a slow client is suffered, so that cutting them off is part of it.
    """

    def p99(proxy: Proxy) -> float:
        done = load.run(
            proxy,
            directory,
            "varied",
            "/varied",
            seconds=SLOW_SECONDS,
            pause_milliseconds=PAUSE_MILLISECONDS,
        )
        assert not done.errors, done
        return done.p99

    pairs: dict[str, list[tuple[float, float]]] = {proxy.name: [] for proxy in found}
    for _ in range(SLOW_TURNS):
        for proxy in found:
            without = p99(proxy)
            with slow_clients(proxy):
                pairs[proxy.name].append((p99(proxy), without))
    ratios = {name: sorted(a / b for a, b in turns_) for name, turns_ in pairs.items()}
    ours = [statistics.median(side) * 1000 for side in zip(*pairs["ours"], strict=True)]
    how = (
        f"p99 of good traffic {ours[0]:.2f} ms with {SLOW_CLIENTS} slow connections,"
        f" {ours[1]:.2f} ms without; median of {SLOW_TURNS} turns of {SLOW_SECONDS} s each, "
        f"{ratios['ours'][0]:.2f} to {ratios['ours'][-1]:.2f}"
    )
    if "nginx" in ratios:
        how += f"; nginx likewise {statistics.median(ratios['nginx']):.2f}"
    value = statistics.median(ratios["ours"])
    report("ingress, p99 with slow clients / without", value, "ratio", SLOW_GOAL, how)


async def new_route_seconds(store: EtcdStore, port: int, backend: int, number: int) -> float:
    """From the commit's acknowledgement to the first 200 on a kept connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET / HTTP/1.1\r\nHost: {proxies.host_of(number)}\r\n\r\n".encode()

    async def ask() -> bytes:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        return head.split(b" ")[1]

    try:
        assert await ask() == b"404"
        await store.txn((), [*proxies.job_puts(number, backend), proxies.status_put(number)])
        started = time.perf_counter()
        while await ask() != b"200":
            await asyncio.sleep(0.001)
        return time.perf_counter() - started
    finally:
        writer.close()


def measure_routes(proxy: Proxy, directory: Path, backend: int, endpoints: Sequence[str]) -> None:
    """While other requests go on, none of which may fail."""

    async def add_routes() -> list[float]:
        store = EtcdStore.connect(endpoints)
        try:
            found = []
            for number in range(proxies.ROUTES, proxies.ROUTES + NEW_ROUTES):
                found.append(await new_route_seconds(store, proxy.port, backend, number))
                await asyncio.sleep(0.1)
            return found
        finally:
            await store.aclose()

    async def both() -> tuple[list[float], Load]:
        async with asyncio.TaskGroup() as group:
            routes = group.create_task(add_routes())
            traffic = group.create_task(
                asyncio.to_thread(
                    load.run,
                    proxy,
                    directory,
                    "varied",
                    "/varied",
                    seconds=8,
                    pause_milliseconds=PAUSE_MILLISECONDS,
                )
            )
        return routes.result(), traffic.result()

    found, traffic = asyncio.run(both())
    value = statistics.median(found) * 1000
    how = (
        f"commit to first 200, median of {NEW_ROUTES} beside {proxies.ROUTES} others, worst"
        f" {max(found) * 1000:.0f} ms; {traffic.errors} of {traffic.requests} other requests failed"
    )
    ok = value <= ROUTE_MILLISECONDS_GOAL and not traffic.errors
    report("ingress, new route effective", value, "ms", ROUTE_MILLISECONDS_GOAL, how, ok=ok)


def main() -> None:
    wanted = set(sys.argv[1:]) or {"cpu", "latency", "slow", "route"}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ozy-bench-")))
        directory.chmod(0o755)
        backend = stack.enter_context(proxies.backend(directory / "backend"))
        etcd = stack.enter_context(EtcdCluster.start(1))
        ours = stack.enter_context(proxies.ours(directory / "ours", backend, etcd.endpoints))
        if wanted & {"cpu", "latency", "slow"}:
            found = [ours, stack.enter_context(proxies.nginx(directory / "nginx", backend))]
            if "slow" in wanted:
                measure_slow(found, directory)
            if "latency" in wanted:
                measure_latency(found, directory)
            if "cpu" in wanted:
                with contextlib.suppress(OSError, RuntimeError, subprocess.SubprocessError):
                    found.append(stack.enter_context(proxies.envoy(directory / "envoy", backend)))
                measure_cpu(found, directory)
        if "route" in wanted:
            measure_routes(ours, directory, backend, etcd.endpoints)


if __name__ == "__main__":
    main()
