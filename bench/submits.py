"""A thousand jobs submitted at once through one daemon's API, on real etcd.

Three production daemons, each a process of its own, hold the nodes; their containers are simulated
and start at podman's pace (starting a thousand real ones is podman's figure, not ours). The client
opens all connections at once and waits for every answer; then every job must exist, with its
instance placed.

    python -m bench.submits [number]
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections import Counter

import aiohttp
import psutil

from bench.figure import report
from tests.etcd_server import EtcdCluster

GOAL_SECONDS = 10.0
CONNECTIONS = 250
TOKEN = "bench"
NODES = ("n1", "n2", "n3")


# One daemon -------------------------------------------------------------------------------------


async def serve(name: str, port: int, endpoints: str) -> None:
    from ozymandias.api.app import serving
    from ozymandias.api.callers import Tokens
    from ozymandias.api.peers import HttpPeers
    from ozymandias.core.routes import Names
    from ozymandias.daemon.daemon import Daemon, Ports
    from ozymandias.daemon.membership import Identity
    from ozymandias.model.node import NodeName, Resources
    from ozymandias.runtime.host import SystemClock
    from ozymandias.sim.host import Faults, SimHost
    from ozymandias.sim.runtime import SimRuntime
    from ozymandias.store.etcd import Credentials, EtcdStore
    from ozymandias.store.tokens import hashed

    clock = SystemClock()
    number = NODES.index(name)
    host = SimHost(seed=number, subnet=f"10.200.{number}", wall=clock.wall)
    host.faults = Faults(latency_seconds=(0.2, 0.6))  # of each call, as podman takes
    identity = Identity(
        name=NodeName(name),
        machine_id=f"machine-{name}",
        address="127.0.0.1",
        api=f"http://127.0.0.1:{port}",
        daemon_version="0",
        cluster="bench",
        capacity=Resources(memory_bytes=2**40, disk_bytes=2**40),
        lease_ttl_seconds=30,
    )
    store = EtcdStore.connect(tuple(endpoints.split(",")), Credentials())
    ports = Ports(
        store=store, runtime=SimRuntime(host), clock=clock, peers=HttpPeers(name, "bench")
    )
    daemon = Daemon(identity, Names(), ports)
    tokens = Tokens(tokens=(hashed(TOKEN),))
    async with serving(daemon.operations, listen=("127.0.0.1", port), tokens=tokens):
        await daemon.run()


def start(name: str, port: int, endpoints: tuple[str, ...]) -> subprocess.Popen[bytes]:
    addresses = ",".join(e.removeprefix("http://") for e in endpoints)
    command = [sys.executable, "-m", "bench.submits", "serve", name, str(port), addresses]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet)


# The client -------------------------------------------------------------------------------------


async def measure(port: int, number: int) -> None:
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    base = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(base, connector=connector, headers=headers) as client:
        await until_ready(client)
        statuses: Counter[int] = Counter()
        delays: list[float] = []
        started = time.perf_counter()

        async def submit(index: int) -> None:
            container = {"image": "demo", "ports": ["80:8000"], "memory": "8M"}
            body = json.dumps({"name": f"job-{index}", "containers": {"app": container}})
            async with client.post("/v1/jobs", data=body) as response:
                statuses[response.status] += 1
                await response.read()
            delays.append(time.perf_counter() - started)

        await asyncio.gather(*(submit(index) for index in range(number)))
        took = time.perf_counter() - started
        async with client.get("/v1/instances") as response:
            placed = len({row["job"] for row in (await response.json())["items"] if row["node"]})
        async with client.get("/metrics") as response:
            lines = (await response.text()).splitlines()
    commits = {line for line in lines if line.startswith("ozymandias_commits_total")}
    how = f"{dict(statuses)}, {placed} placed, median {sorted(delays)[number // 2]:.1f} s"
    ok = took <= GOAL_SECONDS and statuses == {201: number} and placed == number
    report(f"{number} submits at once", took, "s", GOAL_SECONDS, how, ok=ok)
    print(*sorted(commits), sep="\n", file=sys.stderr)


async def until_ready(client: aiohttp.ClientSession) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            async with client.get("/v1/nodes") as response:
                if response.status == 200 and len((await response.json())["items"]) == len(NODES):
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)
    raise TimeoutError("the daemons did not come up")


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        import uvloop

        uvloop.run(serve(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
        return
    number = int(sys.argv[1]) if sys.argv[1:] else 1000
    ports = []
    for _ in NODES:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])
    with EtcdCluster.start(1) as etcd:
        daemons = [start(name, p, etcd.endpoints) for name, p in zip(NODES, ports, strict=True)]
        try:
            asyncio.run(measure(ports[0], number))
            used = [sum(psutil.Process(d.pid).cpu_times()[:2]) for d in daemons]
            print("CPU seconds of the daemons:", used, file=sys.stderr)
        finally:
            for daemon in daemons:
                daemon.kill()
                daemon.wait()


if __name__ == "__main__":
    main()
