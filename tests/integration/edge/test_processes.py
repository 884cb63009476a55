"""The two processes of the edge as they are in production, on real etcd, with etcd taken away."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import dns.asyncquery
import dns.exception
import dns.message
import dns.rcode
import pytest
from aiohttp import web

from ozymandias.model.instance import Group, InstanceState, InstanceStatus, Slots, SlotState
from ozymandias.model.job import Container, Job, JobHead, JobKey, JobName, JobVersion, Port
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.routing import DnsRecord
from ozymandias.ports import Delete, Put
from ozymandias.store import codec, keys
from ozymandias.store.etcd import EtcdStore
from ozymandias.store.names import value_of
from tests.etcd_server import EtcdCluster
from tests.integration.edge.conftest import closed_port, exchange, serving

NODE = NodeName("n1")


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(1) as cluster:
        yield cluster


@contextmanager
def process(module: str, directory: Path, tables: dict[str, dict]) -> Iterator[subprocess.Popen]:
    """A process of the edge with these settings; stopped and checked for a clean end."""
    file = directory / f"{module}.toml"
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    file.write_text("\n".join(lines))
    command = [sys.executable, "-m", f"ozymandias.daemon.{module}", "--config", str(file)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
    with (directory / f"{module}.log").open("wb") as log:
        running = subprocess.Popen(command, stderr=log, env=environment)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            code = running.wait(15)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            raise
    assert code == 0, (directory / f"{module}.log").read_text()


@asynccontextmanager
async def connected(etcd: EtcdCluster) -> AsyncIterator[EtcdStore]:
    store = EtcdStore.connect(etcd.endpoints)
    try:
        yield store
    finally:
        await store.aclose()


def job_puts(name: str, ports: list[int]) -> list[Put]:
    """A job of one port with an instance per address; all answer on loopback, ports aside."""
    key = JobKey("default", JobName(name))
    container = Container(name="app", image="x", ports=(Port(pod=ports[0], container=ports[0]),))
    job = Job(name=key.name, containers=(container,), instances=len(ports))
    group = Group(
        uid="u",
        version=1,
        state=SlotState.RUNNING,
        slots=Slots.of(range(len(ports))),
        demand=Demand(memory_bytes=1, disk_bytes=0),
    )
    return [
        Put(keys.job(key), codec.encode(JobHead(uid="u", version=1, wanted=len(ports)))),
        Put(keys.version(key, 1), codec.encode(JobVersion(uid="u", version=1, job=job))),
        Put(keys.assignment(NODE, key), codec.encode((group,))),
    ]


def status_put(name: str, slots: int, lease: int = 0) -> Put:
    statuses = {
        slot: InstanceStatus(
            slot=slot,
            uid="u",
            version=1,
            state=InstanceState.HEALTHY,
            healthy=True,
            address="127.0.0.1",
        )
        for slot in range(slots)
    }
    key = keys.status(NODE, JobKey("default", JobName(name)))
    return Put(key, codec.encode(statuses), lease=lease)


async def wait_for(ask, wanted, timeout: float = 15.0) -> None:
    """Ask until the answer is the wanted one."""
    deadline = time.monotonic() + timeout
    got = None
    while time.monotonic() < deadline:
        try:
            got = await ask()
        except OSError as error:
            got = repr(error)
        if got == wanted:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"wanted {wanted!r}, got {got!r}")


def http(port: int, host: str, path: str = "/"):
    async def ask() -> str:
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        reply = await exchange(port, request.encode())
        head, _, body = reply.partition(b"\r\n\r\n")
        status = head.split(b" ")[1].decode()
        return f"{status} {body.decode()}" if status == "200" else status

    return ask


async def test_ingress_follows_the_store(etcd: EtcdCluster, tmp_path: Path):
    """Serves at once, then by the store's routes, then without the store; and ends cleanly."""

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    port, status_port = closed_port(), closed_port()
    settings = {
        "etcd": {"endpoints": list(etcd.endpoints)},
        "ingress": {
            "listen": f"127.0.0.1:{port}",
            "status_listen": f"127.0.0.1:{status_port}",
        },
    }
    etcd.kill(0)
    async with serving(hello) as instance:
        with process("ingress", tmp_path, settings):
            await wait_for(http(port, "web.localhost"), "503")  # the store is not there yet
            await wait_for(http(status_port, "x", "/healthz"), "200 ok\n")
            await wait_for(http(status_port, "x", "/readyz"), "503")
            etcd.restart(0)
            await wait_for(http(port, "web.localhost"), "404")
            async with connected(etcd) as store:
                await store.txn((), job_puts("web", [instance]))
                await wait_for(http(port, "web.localhost"), "503")  # nobody is healthy
                start = time.monotonic()
                await store.txn((), [status_put("web", 1)])
                await wait_for(http(port, "web.localhost"), "200 hello")
                assert time.monotonic() - start < 1.0
                await wait_for(http(port, "web.default.localhost"), "200 hello")
            etcd.kill(0)
            await asyncio.sleep(1.0)
            for _ in range(20):
                assert await http(port, "web.localhost")() == "200 hello"
            metrics = await http(status_port, "x", "/metrics")()
            assert 'ozymandias_ingress_responses_total{job="web",class="2xx"}' in metrics
            etcd.restart(0)
            async with connected(etcd) as store:
                await store.txn((), [Delete(keys.job(JobKey("default", "web")))])
                await wait_for(http(port, "web.localhost"), "404")  # stopped: let go at once


async def test_ingress_keeps_the_last_known_good(etcd: EtcdCluster, tmp_path: Path):
    """When the statuses of most jobs vanish at once, their instances are served on."""

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    port = closed_port()
    settings = {
        "etcd": {"endpoints": list(etcd.endpoints)},
        "ingress": {"listen": f"127.0.0.1:{port}"},
    }
    async with serving(hello) as instance, connected(etcd) as store:
        names = ("web", "api", "shop")
        for name in names:
            await store.txn((), [*job_puts(name, [instance]), status_put(name, 1)])
        with process("ingress", tmp_path, settings):
            for name in names:
                await wait_for(http(port, f"{name}.localhost"), "200 hello")
            await store.txn((), [Delete(keys.STATUS, keys.prefix_end(keys.STATUS))])
            await store.txn((), job_puts("marker", [instance]))
            await wait_for(http(port, "marker.localhost"), "503")
            for name in names:
                assert await http(port, f"{name}.localhost")() == "200 hello"


async def test_settings_that_are_wrong(tmp_path: Path):
    """A port that is taken or a bad setting ends the process with a problem, not a traceback."""

    def end_of(module: str, setting: str, value: str) -> tuple[int, str]:
        command = [sys.executable, "-m", f"ozymandias.daemon.{module}"]
        environment = os.environ | {f"OZY_{module}_{setting}".upper(): value}
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=30)
        return ended.returncode, ended.stderr.decode()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        cases = (
            ("ingress", "listen", listen, "Address already in use"),
            ("ingress", "trusted_proxies", "x", "trusted_proxies"),
            ("dns", "listen", listen, "Address already in use"),
            ("dns", "forwarders", "x", "forwarders"),
        )
        ends = await asyncio.gather(*(asyncio.to_thread(end_of, *case[:3]) for case in cases))
    for case, (code, text) in zip(cases, ends, strict=True):
        assert code == 2 and case[3] in text and "Traceback" not in text, (case, text)


def records(count: int) -> list[Put]:
    found = [
        DnsRecord(name=f"{slot}{port}.web.default.ozy.internal", address=f"10.1.0.{slot}", port=p)
        for slot in range(count)
        for port, p in (("", 0), ("._80._tcp", 80))
    ]
    return [Put(keys.dns(record.name), value_of(record)) for record in found]


async def test_dns_follows_the_store(etcd: EtcdCluster, tmp_path: Path):
    """Answers from CoreDNS's keys, soon after they change, and from memory without etcd."""
    port = closed_port()
    settings = {
        "etcd": {"endpoints": list(etcd.endpoints)},
        # An address that no interface has: it may come later.
        "dns": {"listen": f"10.255.254.253:{port}", "host_listen": f"127.0.0.1:{port}"},
    }

    def ask(name: str, kind: str = "A"):
        async def answer() -> list[str] | str:
            query = dns.message.make_query(f"{name}.ozy.internal", kind)
            try:
                reply = await dns.asyncquery.udp(query, "127.0.0.1", port=port, timeout=1)
            except dns.exception.Timeout:
                return "no answer"
            if reply.rcode() != dns.rcode.NOERROR:
                return dns.rcode.to_text(reply.rcode())
            return sorted(r.to_text() for rrset in reply.answer for r in rrset)

        return answer

    async with connected(etcd) as store:
        with process("dns", tmp_path, settings):
            await wait_for(ask("web.default"), "NXDOMAIN")
            await store.txn((), [*records(3), Put(b"/skydns/internal/ozy/default/bad", b"junk")])
            await wait_for(ask("web.default"), ["10.1.0.0", "10.1.0.1", "10.1.0.2"])
            assert await ask("2.web.default")() == ["10.1.0.2"]
            assert len(await ask("_80._tcp.web.default", "SRV")()) == 3
            await store.txn((), [Delete(keys.dns("1.web.default.ozy.internal"))])
            await store.txn((), [Delete(keys.dns("1._80._tcp.web.default.ozy.internal"))])
            await wait_for(ask("web.default"), ["10.1.0.0", "10.1.0.2"])
            etcd.kill(0)
            await asyncio.sleep(1.0)
            for _ in range(20):
                assert await ask("web.default")() == ["10.1.0.0", "10.1.0.2"]
            etcd.restart(0)
            await store.txn((), [Delete(keys.dns("0.web.default.ozy.internal"))])
            await store.txn((), [Delete(keys.dns("0._80._tcp.web.default.ozy.internal"))])
            await wait_for(ask("web.default"), ["10.1.0.2"])


async def test_ingress_ends_requests_before_itself(etcd: EtcdCluster, tmp_path: Path):
    """SIGTERM: the request in flight gets its answer, new connections are refused, exit code 0."""
    go = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await go.wait()
        return web.Response(text="hello")

    port = closed_port()
    settings = {
        "etcd": {"endpoints": list(etcd.endpoints)},
        "ingress": {"listen": f"127.0.0.1:{port}"},
    }
    async with serving(slow) as instance, connected(etcd) as store:
        await store.txn((), [*job_puts("web", [instance]), status_put("web", 1)])
        with process("ingress", tmp_path, settings) as running:
            await wait_for(http(port, "web.localhost"), "200 hello")
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(http(port, "web.localhost", "/slow")())
                await asyncio.sleep(0.2)
                running.send_signal(signal.SIGTERM)

                async def refused() -> bool:
                    with socket.socket() as probe:
                        return probe.connect_ex(("127.0.0.1", port)) != 0

                await wait_for(refused, True)
                go.set()
            assert asked.result() == "200 hello"
            await asyncio.to_thread(running.wait, 10)
