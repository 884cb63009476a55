"""A simulated store with registered nodes, and peers that commit to it, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from ozymandias.core.routes import Names
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Container, Job, JobHead, JobKey, JobName, JobVersion
from ozymandias.model.node import Demand, NodeName, Presence, Resources
from ozymandias.model.plan import Edit, JobChange, Plan
from ozymandias.ports import Compare, Lease
from ozymandias.sim.clock import SimClock, VirtualLoop
from ozymandias.sim.store import SimEtcd, SimStore
from ozymandias.store import keys
from ozymandias.store.commit import Committer
from ozymandias.store.mirror import Mirror
from ozymandias.store.registration import Offer, ensure_format, register

T = TypeVar("T")
NAMES = Names()
GIB = 2**30


@dataclass
class Peer:
    """One daemon's way to the store: its node is registered, its mirror follows."""

    node: NodeName
    store: SimStore
    mirror: Mirror
    committer: Committer
    lease: Lease
    committing: asyncio.Task[None]


def in_virtual_time(main: Callable[[], Awaitable[T]], seed: int = 0) -> T:
    async def run() -> T:
        return await main()

    return VirtualLoop(seed).run(run())


@asynccontextmanager
async def peers(
    names: Sequence[str] = ("n1",),
    *,
    memory_bytes: int = 4 * GIB,
    etcd: SimEtcd | None = None,
    eager: bool = False,
) -> AsyncIterator[tuple[SimEtcd, list[Peer]]]:
    etcd = etcd or SimEtcd()
    made = []
    async with asyncio.TaskGroup() as group:
        following = []
        for number, name in enumerate(names):
            clock = SimClock(asyncio.get_running_loop(), number)
            store = SimStore(etcd, clock, number)
            mirror = Mirror(store)
            following.append(group.create_task(mirror.run()))
            peer = await _join(group, NodeName(name), store, mirror, clock, memory_bytes, eager)
            following.append(peer.committing)
            made.append(peer)
        for peer in made:
            await peer.mirror.reached(etcd.revision)
        yield etcd, made
        for task in following:
            task.cancel()


async def _join(
    group: asyncio.TaskGroup,
    node: NodeName,
    store: SimStore,
    mirror: Mirror,
    clock: SimClock,
    memory_bytes: int,
    eager: bool,
) -> Peer:
    await ensure_format(store, "test")
    while not mirror.is_ready:
        await mirror.wait()
    lease = await store.grant(3600)
    done = await register(store, mirror, offer(node, memory_bytes), lease.id, "join")
    assert done is not None
    revision = done.revision
    await mirror.reached(revision)
    key = keys.node(node)
    fence = (Compare(key, "create", "=", revision), Compare(key, "lease", "=", lease.id))
    committer = Committer(
        store=store, mirror=mirror, fence=lambda: fence, names=NAMES, clock=clock, eager=eager
    )
    return Peer(node, store, mirror, committer, lease, group.create_task(committer.run()))


def offer(node: NodeName, memory_bytes: int) -> Offer:
    presence = Presence(
        address="10.0.0.1", machine_id=node, session=f"session-{node}", daemon_version="0", api=""
    )
    return Offer(
        node=node,
        presence=presence,
        capacity=Resources(memory_bytes=memory_bytes, disk_bytes=10 * GIB),
        reserve=Resources(),
        labels={},
        found=(),
    )


def job(name: str = "web", memory_bytes: int = GIB) -> Job:
    container = Container(name="app", image="image", memory_bytes=memory_bytes)
    return Job(name=JobName(name), containers=(container,))


def creation(spec: Job, node: str, slots: Sequence[int] = (0,)) -> Plan:
    """A new job with these slots placed on one node."""
    key = spec.key
    return Plan(
        reason="test",
        job=JobChange(
            key=key,
            head=JobHead(uid="u", version=1, wanted=len(slots)),
            version=JobVersion(uid="u", version=1, job=spec),
            claim=frozenset({f"{spec.name}.localhost/"}),
        ),
        edits=tuple(edit(spec, node, slot, None, SlotState.RUNNING) for slot in slots),
    )


def edit(
    spec: Job, node: str, slot: int, before: SlotState | None, after: SlotState | None
) -> Edit:
    return Edit(
        node=NodeName(node),
        job=spec.key,
        slot=slot,
        uid="u",
        version=1,
        before=before,
        after=after,
        demand=Demand.of(spec),
        reason="test",
    )


def web() -> JobKey:
    return job().key
