"""The part of a store that one node follows, on real etcd and on the simulated one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from ozymandias.model.instance import Group, Slots, SlotState
from ozymandias.model.job import Container, Job, JobHead, JobKey, JobName, JobVersion
from ozymandias.model.node import Demand, Ledger, NodeName, Presence, Resources
from ozymandias.model.record import replace
from ozymandias.ports import Delete, Op, Put, Store
from ozymandias.sim.clock import SimClock
from ozymandias.sim.store import SimEtcd, SimStore
from ozymandias.store import codec, keys
from ozymandias.store.etcd import EtcdStore
from ozymandias.store.mirror import Mirror
from ozymandias.store.own_part import OwnPart
from tests.etcd_server import EtcdCluster

N1, N10 = NodeName("n1"), NodeName("n10")
LEDGER = Ledger(capacity=Resources(memory_bytes=2**30))
PRESENCE = Presence(address="", machine_id="m", session="s", daemon_version="0", api="")


@pytest.fixture(scope="module")
def own_etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(1) as cluster:
        yield cluster


@pytest.fixture(params=["etcd", "simulated"])
async def stores(
    request: pytest.FixtureRequest, own_etcd: EtcdCluster
) -> AsyncIterator[tuple[Store, Store]]:
    """Two clients of one store in which there is nothing."""
    if request.param == "simulated":
        server = SimEtcd()
        clock = SimClock(asyncio.get_running_loop())
        yield SimStore(server, clock, 1), SimStore(server, clock, 2)
        return
    one, other = (EtcdStore.connect(own_etcd.endpoints) for _ in range(2))
    await one.txn((), [Delete(keys.ROOT, keys.prefix_end(keys.ROOT))])
    yield one, other
    await one.aclose()
    await other.aclose()


@asynccontextmanager
async def following(store: Store, node: NodeName) -> AsyncIterator[tuple[OwnPart, Mirror]]:
    part = OwnPart(store, node)
    mirror = Mirror(part)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part.run()), group.create_task(mirror.run())]
        while not mirror.is_ready:
            await mirror.wait()
        yield part, mirror
        for task in tasks:
            task.cancel()


def key(name: str) -> JobKey:
    return JobKey("default", JobName(name))  # type: ignore[arg-type]


def job_puts(name: str, version: int = 1) -> list[Op]:
    job = Job(name=JobName(name), containers=(Container(name="app", image="x"),))
    head = JobHead(uid=name, version=version, wanted=1)
    made = JobVersion(uid=name, version=version, job=job)
    return [
        Put(keys.job(key(name)), codec.encode(head)),
        Put(keys.version(key(name), version), codec.encode(made)),
    ]


def entry(node: NodeName, name: str, slot: int, version: int = 1) -> Put:
    group = Group(
        uid=name,
        version=version,
        state=SlotState.RUNNING,
        slots=Slots.of([slot]),
        demand=Demand(memory_bytes=1),
    )
    return Put(keys.assignment(node, key(name)), codec.encode((group,)))


def ledger(node: NodeName, number: int) -> Put:
    return Put(keys.ledger(node), codec.encode(replace(LEDGER, commit=str(number))))


async def seen(mirror: Mirror, revision: int) -> None:
    await mirror.reached(revision, 20)


async def test_a_node_follows_what_is_its_own(stores: tuple[Store, Store]) -> None:
    """Its record, ledger and assignments, with the jobs of these; and nothing of another node."""
    store, other = stores
    presences = [Put(keys.node(n), codec.encode(PRESENCE)) for n in (N1, N10)]
    await store.txn((), [*presences, ledger(N1, 0), ledger(N10, 0)])
    async with following(other, N1) as (_, mirror):
        assert set(mirror.snapshot().nodes) == {N1}
        await store.txn((), [*job_puts("theirs"), entry(N10, "theirs", 0), ledger(N10, 1)])
        done = await store.txn((), [*job_puts("web"), entry(N1, "web", 0), ledger(N1, 1)])
        await seen(mirror, done.revision)
        snapshot = mirror.snapshot()
        assert set(snapshot.assignments) == {(N1, key("web"))}
        assert set(snapshot.jobs) == {key("web")}
        done = await store.txn((), [*job_puts("web", 2), entry(N1, "web", 0, 2), ledger(N1, 2)])
        await seen(mirror, done.revision)
        assert 2 in mirror.snapshot().jobs[key("web")].versions
        gone = Delete(keys.assignment(N1, key("web")))
        done = await store.txn((), [gone, ledger(N1, 3)])
        await seen(mirror, done.revision)
        assert not mirror.snapshot().assignments and not mirror.snapshot().jobs


async def test_a_ledger_and_its_assignments_are_of_one_revision(
    stores: tuple[Store, Store],
) -> None:
    """However quickly they change, what is followed was true at one moment."""
    store, other = stores
    await store.txn((), [*job_puts("web"), *job_puts("api"), ledger(N1, 0)])
    last = 60

    async def write() -> None:
        for number in range(1, last + 1):
            puts = [entry(N1, name, number) for name in ("web", "api")]
            await store.txn((), [*puts, ledger(N1, number)])

    async with (
        asyncio.timeout(30),
        following(other, N1) as (_, mirror),
        asyncio.TaskGroup() as group,
    ):
        group.create_task(write())
        number = 0
        while number < last:
            snapshot = mirror.snapshot()
            number = int(snapshot.nodes[N1].ledger.commit)
            slots = {slot for a in snapshot.assignments.values() for slot in a.groups[0].slots}
            assert slots == ({number} if number else set())
            if number < last:
                await mirror.told(mirror.revision)


async def test_jobs_are_known_for_the_asking(stores: tuple[Store, Store]) -> None:
    """Whoever joins with pods of a job has its head as it is now, also when it was read before."""
    store, other = stores
    await store.txn((), [*job_puts("web"), ledger(N1, 0)])
    async with following(other, N1) as (part, mirror):
        assert not mirror.snapshot().jobs
        await part.know([key("web")])
        first = mirror.snapshot().jobs[key("web")].head_revision
        done = await store.txn((), job_puts("web", 2))
        await part.know([key("web")])
        assert mirror.snapshot().jobs[key("web")].head_revision == done.revision > first
