"""A whole cluster in one process: production daemons on simulated hosts around a simulated etcd.

Build it, break it, heal it, and look whether what must hold holds. A witness is told of every
revision of the store and of everything done to pods, and checks what must hold from that alone;
violations are collected with the time and the revision. `World.trace` is an account of it all.

Must run on a VirtualLoop: everything happens in virtual time and replays exactly from its seed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ozymandias.api.access import Document, Sink
from ozymandias.core.routes import Names
from ozymandias.daemon.daemon import Daemon, Ports
from ozymandias.daemon.membership import Identity
from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.job import Job, OnPartition
from ozymandias.model.node import NodeName, Resources
from ozymandias.model.pod import ContainerState, PodId
from ozymandias.ports import Compare, Event, Op, TxnResult
from ozymandias.problems import NODE_UNREACHABLE, ProblemError
from ozymandias.sim import invariants
from ozymandias.sim import trace as traces
from ozymandias.sim.clock import MACHINE, SimClock, VirtualLoop
from ozymandias.sim.etcd import SimEtcd
from ozymandias.sim.gauge import SimGauge
from ozymandias.sim.guard import SimGuard
from ozymandias.sim.pools import Queue, SimWork
from ozymandias.sim.runtime import SimHost, SimRuntime
from ozymandias.sim.store import Cut, Faults, SimStore
from ozymandias.sim.trace import Trace
from ozymandias.sim.truth import Truth
from ozymandias.sim.witness import Rules, Witness
from ozymandias.store import keys

GIB = 2**30
RESTART_SECONDS = 1.0  # after which a daemon that ended by itself is started again
VIEW_SECONDS = 2.0  # for which a view may be old after its cause is over
VIOLATIONS_MAX = 10  # more add nothing


class NoPeers:
    """Daemons of a simulated cluster do not call each other."""

    async def call(self, api: str, path: str, body: Document, *, timeout: float) -> Document:
        raise ProblemError(NODE_UNREACHABLE(f"{api} can't be reached in a simulation"))

    async def stream(self, api: str, path: str, query: Mapping[str, str], sink: Sink) -> None:
        raise ProblemError(NODE_UNREACHABLE(f"{api} can't be reached in a simulation"))


@dataclass(slots=True, kw_only=True)
class Machine:
    """One host, and the daemon process on it while there is one."""

    name: NodeName  # of the node
    label: str  # of the machine: another one may have taken the node's name
    number: int
    host: SimHost
    clock: SimClock
    guard: SimGuard
    faults: Faults = field(default_factory=Faults)  # of its line to the store
    cut: Cut = Cut.NONE
    is_stuck: bool = False
    store: SimStore | None = None
    daemon: Daemon | None = None
    task: asyncio.Task[None] | None = None
    starts: int = 0
    lags_until: float = 0.0  # its view of the store may be old
    processes: list[str] = field(default_factory=list)  # ids of all its daemons

    @property
    def is_partitioned(self) -> bool:
        return self.cut is not Cut.NONE


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
    cpu_millis: int = 4000
    lease_ttl_seconds: int = 6
    breaker_seconds: float = 60.0
    steady_seconds: float = 60.0  # before anything is moved only to be better placed
    drift: float = 0.0
    names: Names = field(default_factory=Names)
    schedulers: int = 0  # of the nodes, the first ones; 0: all of them
    is_eager: bool = False  # transactions leave before the answer to the one before them


class World:
    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.seed = seed
        self.settings = settings or Settings()
        self.dice = random.Random(f"world {seed}")
        self.trace = Trace()
        self.violations: list[Violation] = []
        self.lost_races = 0
        self.acting: tuple[NodeName, str] | None = None
        self._sent_at = 0.0  # when what is being carried out was asked for
        rules = Rules(
            lease_ttl_seconds=self.settings.lease_ttl_seconds,
            breaker_seconds=self.settings.breaker_seconds,
        )
        self.witness = Witness(rules, loop.time, self.violate)
        self.witness.is_lagging = self._is_lagging
        self.tended: Counter[NodeName] = Counter()  # nodes that operators are asking about now
        self.witness.is_tended = lambda node: self.tended[node] > 0
        self.witness.adopted_at = self._adopted_at
        self.witness.running_on = self._running_on
        self.witness.is_up = self._is_up
        self.etcd = SimEtcd(seed)
        self.etcd.on_commit.append(self._on_commit)
        self.machines: dict[NodeName, Machine] = {}
        self.queues: dict[str, Queue] = {}  # sources of pools
        self._group: asyncio.TaskGroup | None = None
        self._made: list[Machine] = []  # also those that were given another's name
        for number in range(1, self.settings.nodes + 1):
            name = NodeName(f"n{number}")
            self.machines[name] = self.make_machine(name, name, number)

    def make_machine(self, name: NodeName, label: str, number: int) -> Machine:
        seed = self.seed * 1000 + number
        drift = self.dice.uniform(-1, 1) * self.settings.drift
        clock = SimClock(self.loop, seed, boot_offset=number * 1000.0, drift=drift)
        host = SimHost(seed=seed, subnet=f"10.200.{number}", wall=clock.wall)
        machine = Machine(
            name=name,
            label=label,
            number=number,
            host=host,
            clock=clock,
            guard=SimGuard(host, clock),
        )
        host.on_event = lambda pod, what, address: self._on_pod(machine, pod, what, address)
        self._made.append(machine)
        return machine

    def schedules(self, name: NodeName) -> bool:
        """Whether a node of that name decides for others, or follows its own part alone."""
        most = self.settings.schedulers
        return not most or name in list(self.machines)[:most]

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
                self._group = None  # nobody starts another one now
                for task in tuple(group._tasks):
                    task.cancel()
                for machine in self.machines.values():
                    self.loop.thaw(machine.label)

    # Making and breaking ------------------------------------------------------------------------

    def say(self, text: str, lane: str = "", kind: str = traces.NOTE) -> None:
        self.trace.add(self.loop.time(), lane, kind, text)

    @property
    def history(self) -> list[str]:
        return [str(entry) for entry in self.trace.story()]

    @property
    def truth(self) -> Truth:
        return self.witness.truth

    def start(self, name: NodeName) -> None:
        """Start the daemon of a machine that is up, as its service manager would."""
        self.start_machine(self.machines[name])

    def start_machine(self, machine: Machine) -> None:
        if machine.task is None and machine.host.is_up and self._group:
            context = copy_context()
            context.run(MACHINE.set, machine.label)
            machine.task = self._group.create_task(
                self._supervise(machine), name=f"daemon {machine.label}", context=context
            )

    async def _supervise(self, machine: Machine) -> None:
        task = asyncio.current_task()
        # Who is told to end as it ends of its own accord tells of the latter only, so it is asked
        # whether it was killed, switched off, or the world has ended.
        while machine.task is task and machine.host.is_up and self._group:
            try:
                await self._run_daemon(machine)
            except (ProblemError, ExceptionGroup) as error:
                leaves = _leaves(error)
                if not all(isinstance(leaf, ProblemError) for leaf in leaves):
                    self.violate(f"S0 the daemon of {machine.label} hit a bug: {leaves!r}")
                self.say(f"the daemon ended: {leaves}", machine.label)
            await asyncio.sleep(RESTART_SECONDS)

    async def _run_daemon(self, machine: Machine) -> None:
        machine.starts += 1
        session = [""]

        def txn(
            compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
        ) -> TxnResult:
            """The server is told who is acting, so that zombies are found out."""
            self.acting = (machine.name, session[0])
            self._sent_at = store.sent_at
            try:
                result = self.etcd.txn(compare, then, otherwise)
            finally:
                self.acting = None
            self.lost_races += not result.succeeded
            return result

        seed = machine.starts * 1_000_000 + machine.number + self.seed * 1000
        store = machine.store = SimStore(self.etcd, machine.clock, seed, machine.faults, txn)
        machine.store.partition(machine.cut)
        machine.store.stick(machine.is_stuck)
        settings = self.settings
        identity = Identity(
            name=machine.name,
            machine_id=_id_of(machine),
            address=f"{machine.host.subnet}.1",
            api=f"http://{machine.label}",
            daemon_version="0",
            capacity=Resources(
                memory_bytes=settings.memory_bytes,
                disk_bytes=settings.disk_bytes,
                cpu_millis=settings.cpu_millis,
            ),
            lease_ttl_seconds=settings.lease_ttl_seconds,
            schedules=self.schedules(machine.name),
        )
        ports = Ports(
            store=machine.store,
            runtime=SimRuntime(machine.host),
            clock=machine.clock,
            peers=NoPeers(),
            guard=machine.guard,
            gauge=SimGauge(machine.host),
            work=SimWork(queues=self.queues, dice=random.Random(f"work {seed}")),
        )
        machine.daemon = Daemon(
            identity,
            settings.names,
            ports,
            breaker_seconds=settings.breaker_seconds,
            steady_seconds=settings.steady_seconds,
            eager=settings.is_eager,
        )
        session[0] = machine.daemon.membership.process_id
        machine.processes.append(session[0])
        await machine.daemon.run()

    async def kill(self, name: NodeName) -> None:
        """kill -9 of the daemon: its pods run on."""
        await self.kill_machine(self.machines[name])

    async def kill_machine(self, machine: Machine) -> None:
        if machine.task is not None:
            self.say("daemon killed", machine.label, traces.FAULT)
            task, machine.task = machine.task, None
            task.cancel()
            self.loop.thaw(machine.label)
            await asyncio.gather(task, return_exceptions=True)
            machine.daemon = machine.store = None

    async def power_cut(self, name: NodeName) -> None:
        await self.cut_machine(self.machines[name])

    async def cut_machine(self, machine: Machine) -> None:
        await self.kill_machine(machine)
        self.say("power cut", machine.label, traces.FAULT)
        machine.host.power_cut()

    def boot(self, name: NodeName) -> None:
        if not self.machines[name].host.is_up:
            self.say("boots", name, traces.HEAL)
            self.machines[name].host.boot()
        self.start(name)

    def partition(self, name: NodeName, cut: Cut = Cut.BOTH) -> None:
        machine = self.machines[name]
        self.say(f"cut off from etcd: {cut}", name, traces.FAULT)
        machine.cut = cut
        if machine.store:
            machine.store.partition(cut)

    def heal(self, name: NodeName) -> None:
        machine = self.machines[name]
        if machine.cut or machine.is_stuck:
            self.say("reaches etcd again", name, traces.HEAL)
            machine.lags_until = self.loop.time() + VIEW_SECONDS
        machine.cut, machine.is_stuck = Cut.NONE, False
        if machine.store:
            machine.store.heal()
            machine.store.stick(False)

    def lose_lease(self, name: NodeName) -> None:
        """etcd revokes the lease though the node is well."""
        record = self.etcd.get(keys.node(name))
        if record:
            self.say("lease revoked early", name, traces.FAULT)
            self.witness.lose_lease(name)
            self.etcd.expire(record.lease)

    def set_faults(self, machine: Machine, faults: Faults) -> None:
        machine.lags_until = self.loop.time() + VIEW_SECONDS
        machine.faults = faults
        if machine.store:
            machine.store.faults = faults

    # Looking ------------------------------------------------------------------------------------

    def violate(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.say(f"VIOLATION {what}", "", traces.VIOLATION)
            self.violations.append(
                Violation(time=self.loop.time(), revision=self.etcd.revision, what=what)
            )

    def _on_commit(self, revision: int, events: list[Event]) -> None:
        actor = self.acting[0] if self.acting else ""
        self.trace.add_revision(self.loop.time(), revision, actor, events)
        self.witness.commit(revision, events, self.acting, self._sent_at)

    def _on_pod(self, machine: Machine, pod: PodId, what: str, address: str) -> None:
        if what not in traces.QUIET_PODS:
            self.say(f"{pod.name}: {what}", machine.label, traces.POD)
        self.witness.pod_event(pod, what, address)
        if what in ("start", "first start"):
            memory = sum(c.memory_bytes for c in machine.host.pods[pod].pod.containers)
            is_alone = pod not in machine.host.running()
            total = machine.host.memory_bytes() + memory * is_alone
            ledger = self.truth.ledgers.get(machine.name)
            for violation in invariants.check_processes(machine.name, total, ledger):
                self.violate(violation)
            self._check_alone(machine, pod, machine.host.pods[pod].pod.job)

    def _check_alone(self, here: Machine, pod: PodId, job: Job) -> None:
        """S4: of an instance that must never run twice no other pod is running anywhere.

        Two machines under one name may run pods that are called the same.
        """
        if job.on_partition is not OnPartition.STOP:
            return
        for machine in self._made:
            for other in machine.host.running():
                is_other = machine is not here or other != pod
                is_same = is_other and (other.instance, other.uid) == (pod.instance, pod.uid)
                # A version from before the job was made exclusive has no guard.
                policy = machine.host.pods[other].pod.job.on_partition
                if is_same and policy is OnPartition.STOP:
                    where = f"{other.name} runs on {machine.label}"
                    self.violate(f"S4 {pod.name} was started on {here.label} while {where}")

    def _running_on(self, machine_id: str) -> frozenset[PodId]:
        running = (m.host.running() for m in self.machines.values() if _id_of(m) == machine_id)
        return frozenset().union(*running)

    def _adopted_at(self, name: NodeName) -> float:
        """When the daemon of that name last went on with a lease that it found."""
        store = self.machines[name].store
        return store.adopted_at if store else -inf

    def _is_up(self, pod: PodId) -> bool:
        """Whether all of a pod really runs."""
        machine = self.machines.get(pod.node)
        found = machine.host.pods.get(pod) if machine and machine.host.is_up else None
        if found is None or not (found.is_complete and found.infra_running):
            return False
        return all(c.state is ContainerState.RUNNING for c in found.containers.values())

    def _is_lagging(self, name: NodeName) -> bool:
        """Whether a node's view of the store may be older than a well daemon's.

        A frozen one reads nothing, and yet answers: who calls it here does its work.
        """
        machine = self.machines[name]
        is_late = machine.faults.watch_lag[1] > 0.1 or self.loop.time() < machine.lags_until
        is_still = machine.is_stuck or self.loop.is_frozen(machine.label)
        return is_still or machine.is_partitioned or is_late or self.etcd.is_paused

    def thaw(self, machine: Machine, *, slept: bool = False) -> None:
        """Let a frozen daemon go on; it has yet to see what happened meanwhile."""
        machine.lags_until = self.loop.time() + VIEW_SECONDS
        self.loop.thaw(machine.label, slept=slept)

    def ready(self) -> list[Daemon]:
        """Daemons with a session, by their own word."""
        return [
            machine.daemon
            for machine in self.machines.values()
            if machine.daemon and machine.daemon.membership.valid()
        ]

    def operations(self, dice: random.Random | None = None) -> Any:
        """The API of some daemon that schedules and has a session; None when there is none.

        One that does not schedule passes its callers on to such a one.
        """
        ready = [daemon for daemon in self.ready() if daemon.own_part is None]
        return (dice or self.dice).choice(ready).operations if ready else None

    def assigned(self, state: SlotState = SlotState.RUNNING) -> dict[InstanceId, NodeName]:
        """Where each instance is assigned, by the store's word."""
        return {a.instance: a.node for a in self.truth.assigned() if a.state is state}

    def healthy(self) -> set[InstanceId]:
        """Instances whose status in the store says healthy."""
        return self.truth.healthy()

    def running_pods(self) -> dict[NodeName, frozenset[PodId]]:
        return {name: machine.host.running() for name, machine in self.machines.items()}

    async def until(
        self, condition: Callable[[], bool], timeout: float, what: str, every: float = 0.1
    ) -> bool:
        """Wait in virtual time until a condition holds; a violation when it does not."""
        end = self.loop.time() + timeout
        while not condition():
            if self.loop.time() >= end:
                self.violate(f"L2 not within {timeout:g} s: {what}")
                return False
            await asyncio.sleep(every)
        return True


def _id_of(machine: Machine) -> str:
    return f"machine-{machine.label}"


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
