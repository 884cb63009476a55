"""Who asks for commits to real etcd, and goes away; and a daemon without a lease."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from ozymandias.model.node import NodeName
from ozymandias.ports import Compare, Lease, LeaseLost
from ozymandias.runtime.host import SystemClock
from ozymandias.store import keys
from ozymandias.store.commit import Committed, Committer
from ozymandias.store.etcd import EtcdStore
from ozymandias.store.mirror import Mirror
from ozymandias.store.registration import ensure_format, register
from tests.etcd_server import EtcdCluster
from tests.unit.store.rig import GIB, NAMES, job, offer
from tests.unit.store.test_batches import submission

NODE = NodeName("n1")


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(1) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def joined(
    etcd: EtcdCluster, *, eager: bool = False
) -> AsyncIterator[tuple[EtcdStore, Mirror, Committer, Lease]]:
    """A node with a lease of an hour, a mirror that follows, a committer that runs."""
    store = EtcdStore.connect(etcd.endpoints)
    mirror = Mirror(store)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(mirror.run())
        await ensure_format(store, "test")
        while not mirror.is_ready:
            await mirror.wait()
        lease = await store.grant(3600)
        done = await register(store, mirror, offer(NODE, 64 * GIB), lease.id, "join")
        assert done is not None
        await mirror.reached(done.revision)
        key = keys.node(NODE)
        fence = (Compare(key, "create", "=", done.revision), Compare(key, "lease", "=", lease.id))
        committer = Committer(
            store=store,
            mirror=mirror,
            fence=lambda: fence,
            names=NAMES,
            clock=SystemClock(),
            eager=eager,
        )
        committing = group.create_task(committer.run())
        yield store, mirror, committer, lease
        following.cancel()
        committing.cancel()
    await store.aclose()


async def test_who_goes_away_takes_nobody_along(etcd: EtcdCluster) -> None:
    """etcd is slow; of five whose changes are on their way together one gives up."""
    async with joined(etcd) as (_, mirror, committer, _lease):
        for gone in range(5):
            etcd.pause(0)
            names = [f"j{number}-{gone}" for number in range(5)]
            tasks = [asyncio.create_task(committer.commit(submission(name))) for name in names]
            while not committer._under_way:
                await asyncio.sleep(0)
            tasks[gone].cancel()
            await asyncio.wait([tasks[gone]])
            etcd.resume(0)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(outcomes.pop(gone), asyncio.CancelledError)
            revisions = {o.revision for o in outcomes if isinstance(o, Committed)}
            assert len(outcomes) == 4 and len(revisions) == 1
        assert set(mirror.snapshot().jobs) >= {job(f"j0-{gone}").key for gone in range(1, 5)}


async def test_two_under_way_are_there_once_though_neither_is_answered(etcd: EtcdCluster) -> None:
    """etcd is away for longer than an answer is waited for, with both of them, or with the next."""
    async with joined(etcd, eager=True) as (store, mirror, committer, _lease):
        for wave in range(3):
            etcd.pause(0)
            tasks = []
            for number in range(2):
                asking = committer.commit(submission(f"j{number}-{wave}"))
                tasks.append(asyncio.create_task(asking))
                while len(committer._under_way) <= number:
                    await asyncio.sleep(0)
            await asyncio.sleep(0.5 + wave)
            etcd.resume(0)
            outcomes = await asyncio.gather(*tasks)
            assert all(isinstance(outcome, Committed) for outcome in outcomes)
            assert not committer._under_way and not mirror._expected
        found = (await store.range(keys.LEDGERS)).kvs
        assert [kv.version for kv in found] == [1 + 6], "one by joining, one of each"
        again = Mirror(store)
        following = asyncio.create_task(again.run())
        await again.reached(mirror.revision)
        following.cancel()
        assert mirror.snapshot() == again.snapshot()


async def test_who_lost_its_lease_makes_nothing(etcd: EtcdCluster) -> None:
    """Whether its mirror shows that already or not: etcd compares, and all who asked are told."""
    async with joined(etcd) as (store, _, committer, lease):
        await store.revoke(lease)
        tasks = (committer.commit(submission(f"j{number}")) for number in range(5))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, LeaseLost) for outcome in outcomes)
        assert not (await store.range(keys.JOBS)).kvs
