"""Real etcd's bad moments: members killed and paused, quorum lost, history and data gone."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator

import pytest

from ozymandias.ports import (
    Ambiguous,
    ClusterChanged,
    Compare,
    Delete,
    Event,
    LeaseLost,
    Listing,
    NoSpace,
    Put,
    Unavailable,
)
from ozymandias.store.etcd import EtcdStore, Timeouts
from ozymandias.store.etcd_calls import boot_time
from tests.etcd_server import EtcdCluster
from tests.integration.store.contract import (
    create,
    keeping,
    put,
    take,
    until_absent,
    until_refreshed,
    watching,
)

QUICK = Timeouts(attempt=1.0, call=3.0, heartbeat=0.5, silence=1.5)


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(3) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def connected(*endpoints: str, timeouts: Timeouts = QUICK) -> AsyncIterator[EtcdStore]:
    store = EtcdStore.connect(endpoints, timeouts=timeouts)
    try:
        yield store
    finally:
        await store.aclose()


class Writer:
    """Creates one key after another, and remembers what it was told about each."""

    def __init__(self, store: EtcdStore, prefix: bytes) -> None:
        self.acknowledged: set[bytes] = set()
        self.ambiguous: set[bytes] = set()
        self.refused: set[bytes] = set()
        self._store = store
        self._prefix = prefix

    async def run(self) -> None:
        number = 0
        while True:
            key = self._prefix + b"%06d" % number
            number += 1
            try:
                result = await self._store.txn((Compare(key, "create", "=", 0),), (Put(key, b"x"),))
                assert result.succeeded, "a write was sent twice"
                self.acknowledged.add(key)
            except (Ambiguous, asyncio.CancelledError) as error:
                self.ambiguous.add(key)
                if isinstance(error, asyncio.CancelledError):
                    raise
            except Unavailable:
                self.refused.add(key)

    async def more(self, count: int, seconds: float = 20.0) -> None:
        """Wait until so many more were acknowledged."""
        goal = len(self.acknowledged) + count
        async with asyncio.timeout(seconds):
            while len(self.acknowledged) < goal:
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(*coroutines: Coroutine[None, None, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
        for task in tasks:
            assert not task.done() or task.exception() is None, task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collect(store: EtcdStore, prefix: bytes, revision: int, events: list[Event]) -> None:
    async with watching(store, prefix, revision) as batches:
        async for batch in batches:
            events += batch


async def test_kill_of_each_member(cluster: EtcdCluster, prefix: bytes) -> None:
    """Over kill -9 of every member no write told done is lost and no event is missing or twice."""
    events: list[Event] = []
    async with connected(*cluster.endpoints) as store, connected(*cluster.endpoints) as other:
        start = await put(store, prefix + b"start")
        writer = Writer(store, prefix)
        async with running(writer.run(), collect(other, prefix, start + 1, events)):
            for member in range(3):
                await writer.more(20)
                cluster.kill(member)
                await writer.more(20)
                cluster.restart(member)
            await writer.more(20)
        listing = await store.range(prefix)
        written = sorted((kv.mod_revision, kv.key) for kv in listing.kvs[:-1])
        async with running(collect(other, prefix, events[-1].kv.mod_revision + 1, events)):
            async with asyncio.timeout(10):
                while len(events) < len(written):
                    await asyncio.sleep(0.05)
    assert [(e.kv.mod_revision, e.kv.key) for e in events] == written
    keys = {key for _, key in written}
    assert writer.acknowledged <= keys and not writer.refused & keys
    assert keys <= writer.acknowledged | writer.ambiguous


async def test_pause_of_the_leader(cluster: EtcdCluster, prefix: bytes) -> None:
    """A leader that falls silent costs an attempt: calls, watch and lease go on elsewhere."""
    leader = cluster.leader()
    endpoints = cluster.endpoints[leader:] + cluster.endpoints[:leader]
    timeouts = Timeouts(heartbeat=1.0, silence=3.0)
    async with connected(*endpoints, timeouts=timeouts) as store:
        lease = await store.grant(5)
        revision = await put(store, prefix + b"lease", b"", lease.id)
        async with watching(store, prefix, revision) as batches, keeping(store, lease) as kept:
            await take(batches, 1)
            await asyncio.sleep(0.5)
            cluster.pause(leader)
            paused = time.monotonic()
            try:
                assert await store.get(prefix + b"lease") is not None
                assert time.monotonic() - paused < 6.0
                await create(store, prefix + b"new")
                events = await take(batches, 1)
                assert [e.kv.key for e in events] == [prefix + b"new"]
                await asyncio.sleep(max(0.0, 7.5 - (time.monotonic() - paused)))
                assert lease.deadline > boot_time() and not kept.done()
            finally:
                cluster.resume(leader)
            await asyncio.sleep(1.0)  # time for an old leader to do what it should not
            if await store.get(prefix + b"lease") is not None:
                assert not kept.done()
                return
            # Before 3.4.31 and 3.5.13 it may revoke what it takes for lapsed (etcd#15247): seldom.
            # By our clock it is not, and whoever keeps it is told.
            version = tuple(map(int, (await store.status())[0].version.split(".")))
            assert version < (3, 4, 31) or (3, 5) <= version < (3, 5, 13)
            assert lease.deadline > boot_time()
            async with asyncio.timeout(5):
                with pytest.raises(LeaseLost):
                    await kept


async def test_lost_quorum(cluster: EtcdCluster, prefix: bytes) -> None:
    """Without a quorum calls end in time with the truth; afterwards all goes on by itself."""
    async with connected(*cluster.endpoints) as store:
        revision = await put(store, prefix + b"a", b"1")
        lease = await store.grant(60)
        async with watching(store, prefix, revision) as batches, keeping(store, lease) as kept:
            await take(batches, 1)
            cluster.kill(0)
            cluster.kill(1)
            began = time.monotonic()
            read, written, granted = await asyncio.gather(
                store.get(prefix + b"a"),
                put(store, prefix + b"b", b"2"),
                store.grant(60),
                return_exceptions=True,
            )
            assert isinstance(read, Unavailable) and isinstance(granted, Unavailable)
            assert isinstance(written, Unavailable | Ambiguous)
            assert time.monotonic() - began < QUICK.call + QUICK.attempt + 1.0
            stale = await store.get(prefix + b"a", stale_ok=True)
            assert stale and stale.value == b"1"
            statuses = await store.status()
            assert [bool(s.problem) for s in statuses] == [True, True, False]
            cluster.restart(0, wait=False)
            cluster.restart(1)
            last = await create(store, prefix + b"c", b"3")
            events = await take(batches, 1)
            while events[-1].kv.mod_revision < last:
                events += await take(batches, 1)
            expected = [kv for kv in (await store.range(prefix)).kvs if kv.mod_revision > revision]
            assert [e.kv for e in events] == expected and not kept.done()


async def test_nobody_there(prefix: bytes) -> None:
    """Refused connections are Unavailable, also for writes, which were never sent."""
    nobody = ("127.0.0.1:1", "http://127.0.0.1:2")
    async with connected(*nobody, timeouts=Timeouts(call=1.0)) as store:
        began = time.monotonic()
        calls = (store.get(prefix), put(store, prefix), store.grant(5), store.adopt(7))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(r, Unavailable) and "no answer in" in str(r) for r in results)
        assert time.monotonic() - began < 2.5


async def test_lease_is_lost_by_our_own_clock(prefix: bytes) -> None:
    """With nobody to ask, keep gives the lease up at its deadline, no later."""
    with EtcdCluster.start(1) as cluster:
        async with connected(*cluster.endpoints) as store:
            lease = await store.grant(2)
            async with keeping(store, lease) as kept:
                cluster.kill(0)
                with pytest.raises(LeaseLost, match="no answer within its TTL"):
                    await kept
                assert 0.0 <= boot_time() - lease.deadline < 0.7
                assert lease.lost.is_set()


async def test_blocked_event_loop(shared_etcd: EtcdCluster, prefix: bytes) -> None:
    """Leases live although the event loop stands still for more than their TTL."""
    async with connected(*shared_etcd.endpoints) as store:
        leases = [await store.grant(2), await store.grant(2)]
        for lease in leases:
            await put(store, prefix + b"%d" % lease.id, b"", lease.id)
        async with keeping(store, leases[0]) as one, keeping(store, leases[1]) as two:
            await asyncio.sleep(0)
            time.sleep(4.0)
            assert all(lease.deadline > boot_time() for lease in leases)
            assert len((await store.range(prefix)).kvs) == 2
            assert not one.done() and not two.done()


async def test_keep_alive_leaves_no_thread(shared_etcd: EtcdCluster) -> None:
    """Two leases share a thread; it ends promptly when the last is given up, and starts again."""

    def threads() -> int:
        return sum(thread.name == "keep-alive" for thread in threading.enumerate())

    async with connected(*shared_etcd.endpoints) as store:
        lease = await store.grant(2)
        for _ in range(3):
            async with keeping(store, lease), keeping(store, await store.grant(5)):
                await asyncio.sleep(0.2)
                assert threads() == 1
            async with asyncio.timeout(1.0):
                while threads():
                    await asyncio.sleep(0.01)
        async with keeping(store, lease) as kept:
            await until_refreshed(lease, kept)
    assert not threads()


async def test_compaction_while_away(cluster: EtcdCluster, prefix: bytes) -> None:
    """A mirror whose position was compacted away lists afresh."""
    async with connected(*cluster.endpoints) as store, connected(cluster.endpoints[0]) as away:
        await put(store, prefix + b"a", b"1")
        mirror = away.mirror(prefix)
        async with contextlib.aclosing(mirror), asyncio.timeout(30):
            assert isinstance(await anext(mirror), Listing)
            await put(store, prefix + b"a", b"2")
            assert not isinstance(await anext(mirror), Listing)
            cluster.kill(0)
            for name in (b"b", b"c", b"d"):
                revision = await create(store, prefix + name, b"1")
            await store.compact(revision)
            cluster.restart(0)
            listing = await anext(mirror)
            assert isinstance(listing, Listing) and listing.revision >= revision
            assert [kv.value for kv in listing.kvs] == [b"2", b"1", b"1", b"1"]
            await create(store, prefix + b"e")
            assert not isinstance(await anext(mirror), Listing)


async def test_mirror_lists_again_in_time(shared_etcd: EtcdCluster, prefix: bytes) -> None:
    """Even when nothing is amiss a mirror lists afresh now and then, and loses no event by it."""
    timeouts = Timeouts(relist=0.3)
    async with connected(*shared_etcd.endpoints, timeouts=timeouts) as store:
        await put(store, prefix + b"a", b"0")
        listings, events = 0, 0
        mirror = store.mirror(prefix)
        async with contextlib.aclosing(mirror), asyncio.timeout(20):
            async for piece in mirror:
                if isinstance(piece, Listing):
                    listings += 1
                    await put(store, prefix + b"a", b"%d" % listings)
                else:
                    events += len(piece)
                    assert piece[-1].kv.value == b"%d" % listings
                if listings == 4:
                    break
        assert events == 3


@pytest.mark.parametrize("token", ["", "another"])
async def test_another_cluster_answers(prefix: bytes, token: str) -> None:
    """Another cluster, or one whose revision went back, is told once, and a mirror lists anew."""
    with EtcdCluster.start(1) as cluster:
        async with connected(*cluster.endpoints) as store, connected(*cluster.endpoints) as other:
            for _ in range(5):
                revision = await put(store, prefix + b"a", b"1")
            mirror = other.mirror(prefix)
            async with contextlib.aclosing(mirror), asyncio.timeout(30):
                first = await anext(mirror)
                async with watching(store, prefix, revision) as batches:
                    await take(batches, 1)
                    waiting = asyncio.create_task(mirror.__anext__())
                    cluster.replace(token=token)
                    with pytest.raises(ClusterChanged):
                        await take(batches, 1)
                listing = await waiting
            assert isinstance(first, Listing) and len(first.kvs) == 1
            assert isinstance(listing, Listing) and listing.kvs == ()
            assert await store.get(prefix + b"a") is None
            await create(store, prefix + b"b")


async def test_no_space(prefix: bytes) -> None:
    """A full quota is NoSpace; reading, deleting and keeping leases go on, and status says why."""
    with EtcdCluster.start(1, options=["--quota-backend-bytes=4000000"]) as cluster:
        async with connected(*cluster.endpoints) as store:
            lease = await store.grant(2)
            await put(store, prefix + b"lease", b"", lease.id)
            async with keeping(store, lease) as kept:
                with pytest.raises(NoSpace):
                    # etcd notices at its next commit to disk, a tenth of a second later.
                    for number in range(200):
                        await put(store, prefix + b"large%d" % number, bytes(500_000))
                assert await store.get(prefix + b"large0") is not None
                await store.txn((), (Delete(prefix + b"large0"),))
                assert await store.get(prefix + b"large0") is None
                await until_refreshed(lease, kept)
            (status,) = await store.status()
            assert any("NOSPACE" in alarm for alarm in status.alarms)
            assert status.version.startswith("3.") and status.db_size_bytes > 1_000_000
            assert status.leader_id == status.member_id
            await until_absent(store, prefix + b"lease")


async def test_cancelled_calls_leave_the_store_usable(
    shared_etcd: EtcdCluster, prefix: bytes
) -> None:
    """Cancelling calls at any moment, watches too, harms nobody else."""
    async with connected(*shared_etcd.endpoints) as store:
        revision = await put(store, prefix + b"first")
        for turn in range(40):
            watch = asyncio.create_task(collect(store, prefix, revision, []))
            call = asyncio.create_task(put(store, prefix + b"%d" % turn))
            await asyncio.sleep(turn * 0.0005)
            call.cancel()
            watch.cancel()
            results = await asyncio.gather(watch, call, return_exceptions=True)
            assert all(isinstance(r, asyncio.CancelledError | int) for r in results), results
        await put(store, prefix + b"last")
        assert await store.get(prefix + b"last") is not None


async def test_closing_ends_what_is_under_way(shared_etcd: EtcdCluster, prefix: bytes) -> None:
    """aclose ends a watch and a keep that somebody forgot, with errors of ours."""
    store = EtcdStore.connect(shared_etcd.endpoints, timeouts=QUICK)
    lease = await store.grant(5)
    revision = await put(store, prefix + b"first")
    watch = asyncio.create_task(collect(store, prefix, revision, []))
    kept = asyncio.create_task(store.keep(lease))
    await asyncio.sleep(0.3)
    await store.aclose()
    async with asyncio.timeout(5):
        results = await asyncio.gather(watch, kept, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable, LeaseLost]
