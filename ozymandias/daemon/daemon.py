"""One daemon, put together over the four ports: its loops and what its API offers.

`daemon/main.py` builds it over etcd and podman, `sim/world.py` over simulated ones; the code in
between is the same. All loops live in one TaskGroup: a bug in one ends the process, and whoever
started it starts it again, which harms no pod.
"""

import asyncio
from dataclasses import dataclass, field

from ozymandias.api.access import Access, Peers
from ozymandias.api.operations import Operations
from ozymandias.core.routes import Names
from ozymandias.daemon.autoscaling import Autoscaler
from ozymandias.daemon.events import EventLog
from ozymandias.daemon.execution import Executor
from ozymandias.daemon.keeping import Keeper
from ozymandias.daemon.lately import Displacements
from ozymandias.daemon.local_pods import LocalPods
from ozymandias.daemon.measuring import Measurer
from ozymandias.daemon.membership import Identity, Membership
from ozymandias.daemon.probing import Prober
from ozymandias.daemon.scheduling import Scheduler
from ozymandias.daemon.statuses import StatusWriter
from ozymandias.model.pod import PodId
from ozymandias.ports import Clock, EndedRuns, Gauge, Guard, PendingWork, Runtime, Store
from ozymandias.problems import ProblemError, store_unavailable
from ozymandias.runtime.ended import EndedInMemory
from ozymandias.runtime.gauge import NoGauge
from ozymandias.runtime.guard import NoGuard
from ozymandias.runtime.pending import OutsideWork
from ozymandias.store.commit import Committer
from ozymandias.store.decisions import DecisionLog
from ozymandias.store.mirror import Mirror
from ozymandias.store.own_part import OwnPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the daemon asks of the world, and its peers' APIs."""

    store: Store
    runtime: Runtime
    clock: Clock
    peers: Peers
    ended: EndedRuns = field(default_factory=EndedInMemory)
    guard: Guard = field(default_factory=NoGuard)
    work: PendingWork = field(default_factory=OutsideWork)
    gauge: Gauge = field(default_factory=NoGauge)


class Daemon:
    def __init__(
        self,
        identity: Identity,
        names: Names,
        ports: Ports,
        *,
        breaker_seconds: float = 60.0,
        steady_seconds: float = 60.0,
        eager: bool = False,
    ) -> None:
        store, clock, node = ports.store, ports.clock, identity.name
        self.node = node
        self._without_network = ""  # why pods can have none here
        self.own_part = None if identity.schedules else OwnPart(store, node)
        self.mirror = Mirror(self.own_part or store, patient=True)
        self.membership = Membership(
            identity=identity,
            store=store,
            mirror=self.mirror,
            runtime=ports.runtime,
            clock=clock,
            degraded=lambda: self._executor.degraded or self._without_network,
            guard=ports.guard,
            busy=lambda: local.busy,
            reclaimed=self._tell_reclaimed,
            know=self.own_part.know if self.own_part else None,
        )
        fence = self.membership.fence
        self.committer = self._make_committer(identity, names, ports, eager)
        self.events = EventLog(store=store, mirror=self.mirror, node=node, clock=clock, fence=fence)
        local = LocalPods()
        self._statuses = StatusWriter(
            node=node,
            names=names,
            local=local,
            store=store,
            membership=self.membership,
            clock=clock,
            events=self.events,
        )
        self._executor = self._make_executor(identity, ports, local)
        self._displacements = Displacements(clock)
        self._prober = Prober(local=local, runtime=ports.runtime, clock=clock)
        self._scheduler = Scheduler(
            node=node,
            mirror=self.mirror,
            committer=self.committer,
            membership=self.membership,
            events=self.events,
            clock=clock,
            breaker_seconds=breaker_seconds,
            displacements=self._displacements,
            steady_seconds=steady_seconds,
        )
        self._autoscaler = Autoscaler(
            node=node,
            mirror=self.mirror,
            committer=self.committer,
            membership=self.membership,
            events=self.events,
            clock=clock,
            store=store,
            work=ports.work,
        )
        self._measurer = self._make_measurer(ports)
        self.operations = self._make_operations(identity, names, ports)

    def _make_measurer(self, ports: Ports) -> Measurer:
        return Measurer(
            node=self.node,
            gauge=ports.gauge,
            store=ports.store,
            mirror=self.mirror,
            membership=self.membership,
            events=self.events,
            clock=ports.clock,
        )

    def _make_committer(
        self, identity: Identity, names: Names, ports: Ports, eager: bool
    ) -> Committer:
        decisions = DecisionLog(node=identity.name, mirror=self.mirror, clock=ports.clock)
        return Committer(
            store=ports.store,
            mirror=self.mirror,
            fence=self.membership.fence,
            names=names,
            clock=ports.clock,
            record=decisions.put,
            eager=eager,
        )

    def _make_executor(self, identity: Identity, ports: Ports, local: LocalPods) -> Executor:
        return Executor(
            node=identity.name,
            host_ip=identity.address,
            api=identity.api,
            local=local,
            mirror=self.mirror,
            committer=self.committer,
            membership=self.membership,
            runtime=ports.runtime,
            clock=ports.clock,
            events=self.events,
            statuses=self._statuses,
            guard=ports.guard,
            keeper=Keeper(runtime=ports.runtime, ended=ports.ended, clock=ports.clock),
        )

    def _make_operations(self, identity: Identity, names: Names, ports: Ports) -> Operations:
        return Operations(
            Access(
                mirror=self.mirror,
                committer=self.committer,
                runtime=ports.runtime,
                node=identity.name,
                cluster=identity.cluster,
                names=names,
                clock=ports.clock,
                emit=self.events.emit,
                narrate=self.events.narrate,
                session=self._check_session,
                peers=ports.peers,
                ended=ports.ended,
                lately=self._displacements.lately,
                leisure=self._scheduler.leisure,
            )
        )

    def _check_session(self) -> None:
        if self.membership.valid() is None:
            reason = f"this node is waiting for {self.membership.waiting_for}"
            raise ProblemError(store_unavailable(reason))

    def _tell_reclaimed(self, pod: PodId) -> None:
        reason = f"{pod.node} is back, and nobody else had room for what still runs there"
        self.events.emit(
            "instance.reclaimed", reason, job=pod.key, instance=f"{pod.job}-{pod.slot}"
        )

    def report_network(self, reason: str) -> None:
        """Why pods can have no network on this node; "" once they can."""
        if bool(reason) != bool(self._without_network):
            kind = "node.degraded" if reason else "node.recovered"
            self.events.emit(kind, reason or "the pods' network is there")
        if reason != self._without_network:
            self._without_network = reason
            self.membership.poke()

    @property
    def taint(self) -> str:
        """What this host is short of; "" if nothing."""
        return self._measurer.taint

    async def run(self) -> None:
        """Until cancelled, or until one of the loops hits a bug."""
        async with asyncio.TaskGroup() as group:
            for loop in (
                self.mirror,
                self.membership,
                self.committer,
                self.events,
                self._statuses,
                self._prober,
                self._executor,
                # One that does not schedule follows its own part, which is kept up to date instead.
                *((self.own_part,) if self.own_part else (self._scheduler, self._autoscaler)),
                self._measurer,
            ):
                group.create_task(loop.run(), name=type(loop).__name__)
