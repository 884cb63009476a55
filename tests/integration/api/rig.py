"""A small cluster behind a real API: production daemons on a simulated etcd and podman.

Time is real. Its event loop lives in a thread of its own, so that tests can run `ozy` as a user
does: as another process, over TCP, against a random port.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

from ozymandias.api.app import serving
from ozymandias.api.audit import Audit
from ozymandias.api.callers import Tokens
from ozymandias.api.limits import Limits
from ozymandias.api.peers import HttpPeers
from ozymandias.api.relay import Others, Relay
from ozymandias.core.routes import Names
from ozymandias.daemon.daemon import Daemon, Ports
from ozymandias.daemon.membership import Identity
from ozymandias.model.node import NodeName, Resources
from ozymandias.sim.clock import SimClock
from ozymandias.sim.etcd import SimEtcd
from ozymandias.sim.host import Faults, SimHost
from ozymandias.sim.runtime import SimRuntime
from ozymandias.sim.store import SimStore
from ozymandias.store.tokens import hashed

T = TypeVar("T")

TOKEN = "a-token-of-the-tests"
GIB = 2**30
LEASE_SECONDS = 6


class PromptRuntime(SimRuntime):
    """Ends when it is told to.

    In Python 3.11 `asyncio.wait_for` swallows a cancellation that comes together with its result,
    and a daemon that is being stopped would go on for ever.
    """

    async def _call(self, operation: str, work: Callable[[], None] | None = None) -> None:
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            await super()._call(operation, work)
        finally:
            if task.cancelling() > before:
                raise asyncio.CancelledError


@dataclass(kw_only=True)
class Machine:
    name: NodeName
    port: int
    host: SimHost
    store: SimStore
    daemon: Daemon
    task: asyncio.Task[None] | None = None
    peers: HttpPeers | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(kw_only=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(kw_only=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Cluster:
    """Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        memory_bytes: int = 4 * GIB,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        lease_seconds: int = LEASE_SECONDS,
        schedulers: int = 0,
    ) -> None:
        """``schedulers``: how many of the nodes schedule, the first ones; 0: all of them."""
        self.folder = folder
        self.machines: dict[str, Machine] = {}
        self.context_file = folder / "context.json"
        self.socket = folder / "api.sock"
        self.audit_file = folder / "audit.log"
        self.limits = limits
        self.tokens_file = folder / "tokens"
        self.tokens_file.write_text(f"{hashed(TOKEN)}\n")
        self.tokens = Tokens(self.tokens_file)
        self._nodes = nodes
        self._memory_bytes = memory_bytes
        self._lease_seconds = lease_seconds
        self._schedulers = schedulers or nodes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster")
        self._done: asyncio.Event

    # Life ---------------------------------------------------------------------------------------

    def __enter__(self) -> "Cluster":
        self._thread.start()
        self.call(self._prepare())
        self._main = asyncio.run_coroutine_threadsafe(self._run(), self._loop)
        until(lambda: all(m.daemon.membership.valid() for m in self.machines.values()), 20)
        until(lambda: self._is_listening(), 20)
        self._write_context()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        try:
            self._main.result(20)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def do(self, work: Callable[[], T]) -> T:
        """Call something in the cluster's own thread."""

        async def inside() -> T:
            return work()

        return self.call(inside())

    def _is_listening(self) -> bool:
        for machine in self.machines.values():
            try:
                socket.create_connection(("127.0.0.1", machine.port), 1).close()
            except OSError:
                return False
        return self.socket.exists()

    async def _prepare(self) -> None:
        self._done = asyncio.Event()
        self.etcd = SimEtcd(1)
        for number in range(1, self._nodes + 1):
            name = NodeName(f"n{number}")
            clock = SimClock(self._loop, number)
            host = SimHost(seed=number, subnet=f"10.200.{number}", wall=clock.wall)
            host.faults = Faults(latency_seconds=(0.0, 0.005))
            store = SimStore(self.etcd, clock, number)
            port, peers = free_port(), HttpPeers(name, f"key-of-{name}")
            identity = Identity(
                name=name,
                machine_id=f"machine-{name}",
                address="127.0.0.1",
                api=f"http://127.0.0.1:{port}",
                daemon_version="0",
                cluster="test",
                capacity=Resources(
                    memory_bytes=self._memory_bytes, disk_bytes=20 * GIB, cpu_millis=4000
                ),
                labels=(("zone", f"z{number}"),),
                lease_ttl_seconds=self._lease_seconds,
                peer_key=f"key-of-{name}",
                schedules=number <= self._schedulers,
            )
            ports = Ports(store=store, runtime=PromptRuntime(host), clock=clock, peers=peers)
            daemon = Daemon(identity, Names(), ports)
            self.machines[name] = Machine(
                name=name, port=port, host=host, store=store, daemon=daemon, peers=peers
            )

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, machine in enumerate(self.machines.values()):
                where = self.socket if number == 0 else None
                machine.task = group.create_task(self._live(machine, where))
            await self._done.wait()
            for machine in self.machines.values():
                if machine.task:
                    machine.task.cancel()

    async def _live(self, machine: Machine, where: Path | None) -> None:
        listen = ("127.0.0.1", machine.port)
        operations = machine.daemon.operations
        relay = None
        if machine.daemon.own_part is not None and machine.peers is not None:
            relay = Relay(Others(machine.store, machine.name), machine.peers)
        try:
            async with serving(
                operations,
                listen=listen,
                tokens=self.tokens,
                socket_path=where,
                limits=self.limits,
                audit=Audit(self.audit_file),
                relay=relay,
            ):
                await machine.daemon.run()
        finally:
            if machine.peers:
                await machine.peers.aclose()

    def kill(self, name: str) -> None:
        """The node is gone: its daemon, its API, its pods."""

        async def end() -> None:
            machine = self.machines[name]
            if machine.task:
                machine.task.cancel()
                await asyncio.gather(machine.task, return_exceptions=True)
            machine.host.power_cut()

        self.call(end())

    # Asking -------------------------------------------------------------------------------------

    def _write_context(self) -> None:
        local = {
            "endpoints": [m.endpoint for m in self.machines.values()],
            "token": TOKEN,
            "ingress": "http://127.0.0.1:8080",
        }
        self.context_file.write_text(json.dumps({"current": "local", "contexts": {"local": local}}))

    def request(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        node: str = "n1",
        headers: dict[str, str] | None = None,
        token: str = TOKEN,
    ) -> Answer:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection = HTTPConnection("127.0.0.1", self.machines[node].port, timeout=20)
        try:
            given = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request(method, path, data, given | (headers or {}))
            answer = connection.getresponse()
            found = {k.lower(): v for k, v in answer.getheaders()}
            return Answer(status=answer.status, headers=found, body=answer.read())
        finally:
            connection.close()

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
        return kept | {"OZY_CONTEXT": str(self.context_file), "USER": "alice"}

    def start_ozy(self, *arguments: str, **popen: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ozymandias.cli", *arguments],
            env=self.environment,
            text=True,
            stdin=popen.pop("stdin", subprocess.DEVNULL),
            stdout=popen.pop("stdout", subprocess.PIPE),
            stderr=popen.pop("stderr", subprocess.PIPE),
            cwd=self.folder,
            **popen,
        )

    def ozy(self, *arguments: str, stdin: str | None = None) -> Ran:
        process = self.start_ozy(
            *arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE
        )
        out, err = process.communicate(stdin, timeout=60)
        return Ran(code=process.returncode, out=out, err=err)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def job(self, name: str, **fields: Any) -> str:
        """A job file (JSON is YAML) with one container, and what is given beside."""
        container = {"image": "demo", "ports": ["80:8000"], "memory": "64M"}
        container |= fields.pop("container", {})
        document = {"name": name, "containers": {"app": container}} | fields
        return self.write(f"{name}.yaml", json.dumps(document))


@dataclass(kw_only=True)
class Deadline:
    seconds: float
    started: float = field(default_factory=time.monotonic)

    @property
    def is_past(self) -> bool:
        return time.monotonic() - self.started > self.seconds


def until(condition: Callable[[], Any], seconds: float = 15) -> Any:
    """Poll until something is true; what it was."""
    deadline = Deadline(seconds=seconds)
    while True:
        found = condition()
        if found:
            return found
        assert not deadline.is_past, "it did not happen in time"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
