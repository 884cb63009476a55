"""A whole cluster in one process: production daemons on simulated hosts around a simulated etcd.

Build it, break it, heal it, and look whether what must hold holds. After every revision of the
store the invariants are checked from ground truth; violations are collected with the time and
the revision. `World.history` is a readable account of what was done to the cluster.

Must run on a VirtualLoop: everything happens in virtual time and replays exactly from its seed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ozymandias.api.access import Document, Sink
from ozymandias.core.routes import Names
from ozymandias.daemon.daemon import Daemon, Ports
from ozymandias.daemon.membership import Identity
from ozymandias.model.instance import InstanceId, SlotState, instances_of
from ozymandias.model.node import NodeName, Resources
from ozymandias.model.pod import PodId
from ozymandias.ports import Compare, Event, Op, TxnResult
from ozymandias.problems import NODE_UNREACHABLE, ProblemError
from ozymandias.sim import invariants
from ozymandias.sim.clock import SimClock
from ozymandias.sim.etcd import SimEtcd
from ozymandias.sim.runtime import SimHost, SimRuntime
from ozymandias.sim.store import SimStore
from ozymandias.store import codec, keys

GIB = 2**30
RESTART_SECONDS = 1.0  # after which a daemon that ended by itself is started again
VIOLATIONS_MAX = 10  # more add nothing


class NamedServer:
    """A client's line to the server: tells it who is acting, so that zombies are found out."""

    def __init__(self, server: SimEtcd, world: "World", session: "list[str]", node: NodeName):
        self._server = server
        self._world = world
        self._session = session
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        self._world.acting = (self._node, self._session[0])
        try:
            return self._server.txn(compare, then, otherwise)
        finally:
            self._world.acting = None


class NoPeers:
    """Daemons of a simulated cluster do not call each other."""

    async def call(self, api: str, path: str, body: Document, *, timeout: float) -> Document:
        raise ProblemError(NODE_UNREACHABLE(f"{api} can't be reached in a simulation"))

    async def stream(self, api: str, path: str, query: Mapping[str, str], sink: Sink) -> None:
        raise ProblemError(NODE_UNREACHABLE(f"{api} can't be reached in a simulation"))


@dataclass(slots=True, kw_only=True)
class Machine:
    """One host, and the daemon process on it while there is one."""

    name: NodeName
    host: SimHost
    clock: SimClock
    store: SimStore | None = None
    daemon: Daemon | None = None
    task: asyncio.Task[None] | None = None
    is_partitioned: bool = False
    starts: int = 0


@dataclass(slots=True, kw_only=True)
class Violation:
    time: float
    revision: int
    what: str

    def __str__(self) -> str:
        return f"t={self.time:.3f} revision {self.revision}: {self.what}"


@dataclass(slots=True, kw_only=True)
class Settings:
    nodes: int = 3
    memory_bytes: int = 4 * GIB
    disk_bytes: int = 20 * GIB
    lease_ttl_seconds: int = 6
    breaker_seconds: float = 60.0
    names: Names = field(default_factory=Names)


class World:
    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        self.seed = seed
        self.settings = settings or Settings()
        self.dice = random.Random(f"world {seed}")
        self.loop = asyncio.get_running_loop()
        self.etcd = SimEtcd(seed)
        self.etcd.on_commit.append(self._check)
        self.acting: tuple[NodeName, str] | None = None
        self.violations: list[Violation] = []
        self.history: list[str] = []
        self.schedule_revisions = 0
        self.machines: dict[NodeName, Machine] = {}
        self._group: asyncio.TaskGroup | None = None
        for number in range(1, self.settings.nodes + 1):
            name = NodeName(f"n{number}")
            clock = SimClock(self.loop, seed * 1000 + number, boot_offset=number * 1000.0)
            host = SimHost(seed=seed * 1000 + number, subnet=f"10.200.{number}", wall=clock.wall)
            self.machines[name] = Machine(name=name, host=host, clock=clock)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        """All daemons started; all ended when the context is left."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name in self.machines:
                self.start(name)
            try:
                yield self
            finally:
                for machine in self.machines.values():
                    if machine.task:
                        machine.task.cancel()

    # Making and breaking ------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.history.append(f"{self.loop.time():9.3f}  {text}")

    def start(self, name: NodeName) -> None:
        """Start the daemon of a machine that is up, as its service manager would."""
        machine = self.machines[name]
        if machine.task is None and machine.host.is_up and self._group:
            machine.task = self._group.create_task(self._supervise(machine), name=f"daemon {name}")

    async def _supervise(self, machine: Machine) -> None:
        while True:
            try:
                await self._run_daemon(machine)
            except (ProblemError, ExceptionGroup) as error:
                leaves = _leaves(error)
                if not all(isinstance(leaf, ProblemError) for leaf in leaves):
                    self.violate(f"the daemon of {machine.name} hit a bug: {leaves!r}")
                self.say(f"{machine.name}: the daemon ended: {leaves}")
            await asyncio.sleep(RESTART_SECONDS)

    async def _run_daemon(self, machine: Machine) -> None:
        machine.starts += 1
        session = [""]
        server: Any = NamedServer(self.etcd, self, session, machine.name)
        seed = machine.starts * 1_000_000 + int(machine.name[1:]) + self.seed * 1000
        machine.store = SimStore(server, machine.clock, seed)
        if machine.is_partitioned:
            machine.store.partition()
        settings = self.settings
        identity = Identity(
            name=machine.name,
            machine_id=f"machine-{machine.name}",
            address=f"{machine.host.subnet}.1",
            api=f"http://{machine.name}",
            daemon_version="0",
            capacity=Resources(memory_bytes=settings.memory_bytes, disk_bytes=settings.disk_bytes),
            lease_ttl_seconds=settings.lease_ttl_seconds,
        )
        machine.daemon = Daemon(
            identity,
            settings.names,
            Ports(
                store=machine.store,
                runtime=SimRuntime(machine.host),
                clock=machine.clock,
                peers=NoPeers(),
            ),
            breaker_seconds=settings.breaker_seconds,
        )
        session[0] = machine.daemon.membership.process_id
        await machine.daemon.run()

    async def kill(self, name: NodeName) -> None:
        """kill -9 of the daemon: its pods run on."""
        machine = self.machines[name]
        if machine.task is not None:
            self.say(f"{name}: daemon killed")
            machine.task.cancel()
            await asyncio.gather(machine.task, return_exceptions=True)
            machine.task = machine.daemon = machine.store = None

    async def power_cut(self, name: NodeName) -> None:
        await self.kill(name)
        self.say(f"{name}: power cut")
        self.machines[name].host.power_cut()

    def boot(self, name: NodeName) -> None:
        self.say(f"{name}: boots")
        self.machines[name].host.boot()
        self.start(name)

    def partition(self, name: NodeName) -> None:
        machine = self.machines[name]
        self.say(f"{name}: cut off from etcd")
        machine.is_partitioned = True
        if machine.store:
            machine.store.partition()

    def heal(self, name: NodeName) -> None:
        machine = self.machines[name]
        self.say(f"{name}: reaches etcd again")
        machine.is_partitioned = False
        if machine.store:
            machine.store.heal()

    def lose_lease(self, name: NodeName) -> None:
        """etcd revokes the lease though the node is well."""
        record = self.etcd.get(keys.node(name))
        if record:
            self.say(f"{name}: lease revoked early")
            self.etcd.expire(record.lease)

    # Looking ------------------------------------------------------------------------------------

    def violate(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.say(f"VIOLATION {what}")
            self.violations.append(
                Violation(time=self.loop.time(), revision=self.etcd.revision, what=what)
            )

    def _check(self, revision: int, events: list[Event]) -> None:
        kvs = self.etcd.snapshot_kvs()
        found: list[str] = []
        if invariants.is_schedule(events):
            self.schedule_revisions += 1
            found += invariants.check_schedule(kvs)
            if self.acting:
                found += invariants.check_zombie(kvs, *self.acting)
        if any(e.kv.key.startswith((keys.STATUS, keys.SKYDNS)) for e in events):
            found += invariants.check_names(kvs)
        ledgers = invariants.read_ledgers(kvs)
        for name, machine in self.machines.items():
            memory = machine.host.memory_bytes()
            found += invariants.check_processes(name, memory, ledgers.get(name))
        for what in found:
            self.violate(what)

    def operations(self) -> Any:
        """The API of some daemon that has a session; None when there is none."""
        ready = [
            machine.daemon
            for machine in self.machines.values()
            if machine.daemon and machine.daemon.membership.valid()
        ]
        return self.dice.choice(ready).operations if ready else None

    def assigned(self, state: SlotState = SlotState.RUNNING) -> dict[InstanceId, NodeName]:
        """Where each instance is assigned, by the store's word."""
        found = invariants.read_assignments(self.etcd.snapshot_kvs())
        return {
            instance.instance: instance.node
            for assignment in found.values()
            for instance in instances_of(assignment)
            if instance.state is state
        }

    def healthy(self) -> set[InstanceId]:
        """Instances whose status in the store says healthy."""
        found = set()
        for key, kv in self.etcd.snapshot_kvs().items():
            if key.startswith(keys.STATUS):
                _, namespace, name = keys.parts(key, keys.STATUS)
                for slot, status in codec.decode_statuses(kv.value).items():
                    if status.healthy:
                        found.add(InstanceId(keys.job_key(namespace, name), slot))
        return found

    def running_pods(self) -> dict[NodeName, frozenset[PodId]]:
        return {name: machine.host.running() for name, machine in self.machines.items()}

    async def until(self, condition: Any, timeout: float, what: str) -> bool:
        """Wait in virtual time until a condition holds; a violation when it does not."""
        end = self.loop.time() + timeout
        while not condition():
            if self.loop.time() >= end:
                self.violate(f"not within {timeout:g} s: {what}")
                return False
            await asyncio.sleep(0.1)
        return True


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
