"""This node's place in the cluster: its leases, its presence record, and the fence of its writes.

On start, and again whenever the lease was lost while etcd answers:

- the record is there and its lease lives: take it over (a restart of the daemon); running pods are
  adopted as they are;
- the record is gone: register, one transaction that writes record and ledger. What is still
  assigned goes on, and so does a running pod that nobody could place elsewhere; every other one
  that is found here is marked as stopping. If the name was another machine's, what must never run
  twice has to be ended there before (`daemon/takeover.py`);
- the record belongs to another machine: refuse to start.

Past its lease's deadline, with etcd silent, the daemon goes on without a session: it commits and
starts nothing, stops nothing, answers 503, and joins again when it can. The pods keep running.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from ozymandias.core.loss import fence_seconds
from ozymandias.daemon.takeover import Vacancy
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName, Presence, Resources
from ozymandias.model.pod import ContainerState, ObservedPod, PodId
from ozymandias.model.record import replace
from ozymandias.model.units import counted
from ozymandias.ports import (
    Ambiguous,
    Clock,
    Compare,
    Guard,
    Lease,
    LeaseLost,
    PortError,
    Put,
    Runtime,
    RuntimeFailed,
    Store,
    Unavailable,
)
from ozymandias.problems import CONFIG_INVALID, NODE_NAME_TAKEN, Problem, ProblemError
from ozymandias.store import codec, keys
from ozymandias.store.mirror import Mirror
from ozymandias.store.registration import (
    Offer,
    Registered,
    ensure_format,
    recount,
    register,
    renew_offer,
)
from ozymandias.telemetry import log, warn

BLIND = "podman does not answer"  # why a node that could not list its pods takes no work
LONG_LEASE_FACTOR = 4  # statuses and names live this much longer than the presence
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is and what it offers; all of it from the configuration."""

    name: NodeName
    machine_id: str
    address: str
    api: str
    daemon_version: str
    capacity: Resources
    reserve: Resources = Resources()
    labels: tuple[tuple[str, str], ...] = ()
    lease_ttl_seconds: int = 15
    start_clean: bool = False
    allows_host_network: bool = False
    cluster: str = ""  # the cluster's id, where it is known before the store was asked
    peer_key: str = ""  # shown to other daemons, which find it in the presence record
    schedules: bool = True  # False: it runs what others decide, and follows nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A stretch of membership. ``epoch`` is the create revision of the presence record."""

    node: NodeName
    lease: Lease
    long_lease: Lease
    epoch: int
    revision: int  # nothing older than this may be acted upon
    # Who had a record when it began: it may go before the session is known to us.
    there: frozenset[NodeName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    """What is on this host: all of it, and what runs there and is left alone."""

    found: tuple[PodId, ...] = ()
    running: frozenset[PodId] = frozenset()


NO_PODS = _Pods()


class Membership:
    def __init__(
        self,
        *,
        identity: Identity,
        store: Store,
        mirror: Mirror,
        runtime: Runtime,
        clock: Clock,
        degraded: Callable[[], str] = lambda: "",
        busy: Callable[[], Collection[PodId]] = tuple,
        reclaimed: Callable[[PodId], None] = lambda pod: None,
        know: Callable[[Collection[JobKey]], Awaitable[None]] | None = None,
        guard: Guard,
    ) -> None:
        self._identity = identity
        self._store = store
        self._mirror = mirror
        self._runtime = runtime
        self._clock = clock
        self._degraded = degraded
        self._guard = guard
        self._busy = busy  # pods that are being worked on
        self._reclaimed = reclaimed  # told of every pod that goes on though it was given up
        self._know = know  # has jobs read that the mirror may not follow; None: it follows all
        self._vacancy = Vacancy(
            node=identity.name,
            machine=identity.machine_id,
            seconds=fence_seconds(identity.lease_ttl_seconds),
        )
        self._changed = asyncio.Event()
        self._poke = asyncio.Event()
        self.process_id = (
            f"{clock.random.getrandbits(64):016x}"  # tells it from the node's other daemons
        )
        self.session: Session | None = None
        self._blind = ""  # why the pods were not known when the node joined; "" once they are
        self.waiting_for = "the store"  # why there is no session, for people

    # For the other loops ------------------------------------------------------------------------

    def valid(self) -> Session | None:
        """The session, if its lease has not run out by our own clock."""
        session = self.session
        if session is not None and self._clock.boot() < session.lease.deadline:
            return session
        return None

    def settled(self) -> Session | None:
        """The same, once what runs here is counted: before, nobody knows what is to go."""
        return None if self._blind else self.valid()

    def fence(self) -> tuple[Compare, ...]:
        """What every write of this daemon compares; LeaseLost when there is no valid session."""
        session = self.valid()
        if session is None:
            raise LeaseLost(f"no session: waiting for {self.waiting_for}")
        key = keys.node(session.node)
        return (
            Compare(key, "create", "=", session.epoch),
            Compare(key, "lease", "=", session.lease.id),
        )

    async def wait_session(self) -> Session:
        while self.session is None:
            await self._changed.wait()
        return self.session

    async def changed(self) -> None:
        """Wait until a session begins or ends."""
        await self._changed.wait()

    def poke(self) -> None:
        """The node's health may have changed: look whether its record must say so."""
        self._poke.set()

    # The loop -----------------------------------------------------------------------------------

    async def run(self) -> None:
        attempt = 0
        while True:
            try:
                session = await self._join()
            except PortError as error:
                self._wait_for(f"etcd ({error})" if str(error) else "etcd")
                pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                attempt += 1
                await asyncio.sleep(pause * self._clock.random.uniform(0.75, 1.25))
                continue
            attempt = 0
            session.lease.heard = self._guard.extend
            self._guard.extend(session.lease.deadline)
            self._set(session)
            try:
                reason = await self._hold(session)
            finally:
                self._set(None)
            warn("session.lost", node=self._identity.name, reason=str(reason))
            self._wait_for(f"a new session ({reason})")

    def _wait_for(self, what: str) -> None:
        if what != self.waiting_for:
            log("session.waiting", node=self._identity.name, reason=f"waiting for {what}")
        self.waiting_for = what

    def _set(self, session: Session | None) -> None:
        self.session = session
        self._changed.set()
        self._changed = asyncio.Event()

    async def _hold(self, session: Session) -> PortError:
        """Keep both leases and watch the own record until one of them fails; why it did.

        Failures do not end the group: together with a cancellation they would hide it.
        """
        failed: asyncio.Future[PortError] = asyncio.get_running_loop().create_future()

        async def until_it_fails(work: Coroutine[Any, Any, object]) -> None:
            try:
                await work
            except PortError as error:
                if not failed.done():
                    failed.set_result(error)

        async with asyncio.TaskGroup() as group:
            works = (
                self._store.keep(session.lease),
                self._store.keep(session.long_lease),
                self._watch_record(session),
                self._report_health(session),
            )
            tasks = [group.create_task(until_it_fails(work)) for work in works]
            reason = await failed
            for task in tasks:
                task.cancel()
        return reason

    async def _watch_record(self, session: Session) -> None:
        """The mirror may know earlier than the next keep-alive that the record is gone."""
        revision = session.revision
        while True:
            await self._mirror.reached(session.revision)
            node = self._mirror.snapshot().nodes.get(session.node)
            presence = node.presence if node else None
            if node is None or presence is None or node.presence_revision != session.epoch:
                raise LeaseLost("the presence record is gone")
            if presence.session != self.process_id:
                raise ProblemError(
                    NODE_NAME_TAKEN(f"Another daemon has taken over the name {session.node}.")
                )
            if presence.degraded != self._degraded() and not self._blind:
                self.poke()  # a write whose answer never came may have come true only now
            revision = await self._mirror.changed(revision)

    async def _report_health(self, session: Session) -> None:
        """Write into the record why this node takes no new work, or that it does again."""
        while True:
            self._poke.clear()
            try:
                if self._blind:
                    await self._recount(session)
                else:
                    await self._tell_health(session)
            except LeaseLost:
                raise
            except PortError as error:
                warn("node.health_not_written", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS[-1])
                continue
            await self._poke.wait()

    async def _tell_health(self, session: Session) -> None:
        snapshot, key = self._mirror.snapshot(), keys.node(session.node)
        node = snapshot.nodes.get(session.node)
        presence = node.presence if node else None
        if presence is not None and presence.degraded != self._degraded():
            told = replace(presence, degraded=self._degraded())
            put = Put(key, codec.encode(told, snapshot.unknown.get(key)), session.lease.id)
            result = await self._store.txn(self.fence(), [put])
            await self._mirror.reached(result.revision)

    async def _recount(self, session: Session) -> None:
        """The pods can be listed now: count those that nobody knows of before taking work."""
        pods = await self._pods()
        await self._look_up(pods)
        offer = self._offer(self._presence(session.long_lease.id, self._degraded()), pods)
        done = await recount(
            self._store, self._mirror, offer, session.lease.id, self.fence(), self._commit_id()
        )
        if done is None:
            raise Unavailable("the ledger or a job was changed meanwhile")
        await self._mirror.reached(done.revision)
        self._blind = ""
        self._tell("session.recounted", pods, done)
        self._set(session)

    async def _pods(self) -> _Pods:
        """What is here, and what is being made: that may appear right after the listing."""
        busy = set(self._busy())
        listed = await self._runtime.list_pods()
        busy |= set(self._busy())
        found = busy | {pod.id for pod in listed}
        # What is being worked on may be about to end.
        running = {pod.id for pod in listed if _runs(pod)} - busy
        return _Pods(found=tuple(sorted(found)), running=frozenset(running))

    async def _look_up(self, pods: _Pods) -> None:
        """What is found may be of jobs that nobody has assigned here: their heads are compared."""
        if self._know is not None:
            await self._know({pod.key for pod in pods.found})

    def _tell(self, what: str, pods: _Pods, done: Registered) -> None:
        kept = f", {len(done.reclaimed)} reclaimed" if done.reclaimed else ""
        log(what, node=self._identity.name, reason=f"{counted(len(pods.found), 'pod')} found{kept}")
        for pod in sorted(done.reclaimed):
            self._reclaimed(pod)

    # Joining ------------------------------------------------------------------------------------

    async def _join(self) -> Session:
        identity = self._identity
        founder = identity.cluster or f"{self._clock.random.getrandbits(48):012x}"
        found = await ensure_format(self._store, founder)
        if identity.cluster and found.cluster != identity.cluster:
            raise ProblemError(_foreign(identity, found.cluster))
        while not self._mirror.is_ready:
            await self._mirror.wait()
        if identity.start_clean and self.session is None:
            await self._remove_all()
        while True:
            last = self._vacancy.holder(self._mirror.snapshot())
            record = await self._store.get(keys.node(identity.name))
            if record is None:
                self._vacancy.seen_gone(last, self._clock.boot())
                session = None if self._must_wait() else await self._register()
            else:
                presence = codec.decode(Presence, record.value)
                if presence.machine_id != identity.machine_id:
                    raise ProblemError(_taken(identity, presence))
                session = await self._take_over(presence, record.lease, record.create_revision)
            if session is not None:
                await self._mirror.reached(session.revision)
                return session
            await asyncio.sleep(RETRY_SECONDS[0])

    async def _take_over(self, presence: Presence, lease_id: int, epoch: int) -> Session | None:
        """The lease of a former process of this node still lives: go on with it."""
        identity = self._identity
        lease = await self._store.adopt(lease_id)
        if lease is None:
            return None  # its record is about to vanish; then register
        long_lease = await self._long_lease(presence.long_lease)
        mine = self._presence(long_lease.id, presence.degraded)
        key = keys.node(identity.name)
        compare = (Compare(key, "create", "=", epoch), Compare(key, "lease", "=", lease.id))
        try:
            result = await self._store.txn(compare, [Put(key, codec.encode(mine), lease.id)])
        except Ambiguous:
            return None  # look again: taking over twice is harmless
        if not result.succeeded:
            return None
        await self._mirror.reached(result.revision)
        there = self._there()
        offer = self._offer(mine, NO_PODS)
        revision = await renew_offer(self._store, self._mirror, offer, compare, self._commit_id())
        if revision is None:
            return None
        self._blind = presence.degraded if presence.degraded.startswith(BLIND) else ""
        log("session.adopted", node=identity.name, reason="the lease of the last run still lives")
        return Session(
            node=identity.name,
            lease=lease,
            long_lease=long_lease,
            epoch=epoch,
            revision=max(result.revision, revision),
            there=there,
        )

    def _must_wait(self) -> bool:
        """Whether the name was another machine's, which may still run what is exclusive."""
        wait = self._vacancy.wait(self._mirror.snapshot(), self._clock.boot())
        if wait is not None:
            self._wait_for(wait.reason)
        return wait is not None

    async def _register(self) -> Session | None:
        """The lease is gone: one transaction brings the node back with what really runs on it."""
        identity = self._identity
        degraded = ""
        try:
            pods = await self._pods()
        except RuntimeFailed as error:
            # Without the truth about its pods the node joins, but takes no work until it is known.
            pods, degraded = NO_PODS, f"{BLIND}: {error}"
        await self._look_up(pods)
        lease = await self._store.grant(identity.lease_ttl_seconds)
        long_lease = await self._long_lease(0)
        offer = self._offer(self._presence(long_lease.id, degraded), pods)
        there, done = self._there(), None
        if not self._must_wait():  # what has come meanwhile is in the mirror that we rely on
            done = await register(self._store, self._mirror, offer, lease.id, self._commit_id())
        if done is None:
            await self._store.revoke(lease)
            await self._store.revoke(long_lease)
            return None
        self._blind = degraded
        self._tell("session.registered", pods, done)
        return Session(
            node=identity.name,
            lease=lease,
            long_lease=long_lease,
            epoch=done.revision,
            revision=done.revision,
            there=there,
        )

    def _there(self) -> frozenset[NodeName]:
        nodes = self._mirror.snapshot().nodes
        return frozenset(name for name, node in nodes.items() if node.is_alive)

    def _offer(self, presence: Presence, pods: _Pods) -> Offer:
        identity = self._identity
        return Offer(
            node=identity.name,
            presence=presence,
            capacity=identity.capacity,
            reserve=identity.reserve,
            allows_host_network=identity.allows_host_network,
            labels=dict(identity.labels),
            found=pods.found,
            # Whether a job lacks what runs here though it was given up is for those to say who see
            # all of its instances; who does not see them lets it go.
            running=pods.running if identity.schedules else frozenset(),
        )

    def _commit_id(self) -> str:
        return f"{self._clock.random.getrandbits(64):016x}"

    async def _long_lease(self, lease_id: int) -> Lease:
        adopted = await self._store.adopt(lease_id) if lease_id else None
        ttl = self._identity.lease_ttl_seconds * LONG_LEASE_FACTOR
        return adopted or await self._store.grant(ttl)

    def _presence(self, long_lease: int, degraded: str) -> Presence:
        identity = self._identity
        return Presence(
            address=identity.address,
            machine_id=identity.machine_id,
            session=self.process_id,
            peer_key=identity.peer_key,
            daemon_version=identity.daemon_version,
            schedules=identity.schedules,
            api=identity.api,
            long_lease=long_lease,
            degraded=degraded,
        )

    async def _remove_all(self) -> None:
        for pod in await self._runtime.list_pods():
            log("pod.removed", pod=pod.id.name, reason="start_clean")
            await self._runtime.remove_pod(pod.id)
        self._identity = replace(self._identity, start_clean=False)


def _runs(pod: ObservedPod) -> bool:
    """Whether it is worth keeping as it is; whatever has ended can as well be made anew."""
    is_whole = pod.is_complete and pod.infra_running
    return is_whole and any(c.state is ContainerState.RUNNING for c in pod.containers)


def _taken(identity: Identity, presence: Presence) -> Problem:
    return NODE_NAME_TAKEN(
        f"A node named {identity.name} is alive on another machine, at {presence.address}.",
        hint="Give this node another name ([node] name), or stop the other one first.",
        node=identity.name,
    )


def _foreign(identity: Identity, cluster: str) -> Problem:
    return CONFIG_INVALID(
        f"The store belongs to cluster {cluster}, this node to {identity.cluster}.",
        hint="Check [etcd] endpoints; a node that is to join another cluster starts without its"
        " old state_dir.",
    )
