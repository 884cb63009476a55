"""What every Store keeps: one class of tests, run against real etcd and against the simulation.

Keys live under a prefix of the test's own, so that tests may share a server.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

import pytest

from ozymandias.ports import (
    Ambiguous,
    Compacted,
    Compare,
    Delete,
    Event,
    Get,
    Invalid,
    Lease,
    LeaseLost,
    Listing,
    Op,
    Put,
    Store,
    TooLarge,
    Txn,
    Unavailable,
)
from ozymandias.store.keys import prefix_end

Compact = Callable[[int], Awaitable[None]]

WAIT_SECONDS = 15.0


async def put(store: Store, key: bytes, value: bytes = b"", lease: int = 0) -> int:
    result = await store.txn((), (Put(key, value, lease),))
    return result.revision


async def create(store: Store, key: bytes, value: bytes = b"") -> int:
    """Create a key, again and again while members come and go; the revision it was created at."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with contextlib.suppress(Ambiguous, Unavailable):
                absent = Compare(key, "create", "=", 0)
                result = await store.txn((absent,), (Put(key, value),), (Get(key),))
                return result.revision if result.succeeded else result.results[0][0].mod_revision


async def until_refreshed(lease: Lease, kept: asyncio.Task[None]) -> None:
    """Until a keep-alive was answered."""
    deadline = lease.deadline
    async with asyncio.timeout(WAIT_SECONDS):
        while lease.deadline == deadline and not kept.done():
            await asyncio.sleep(0.05)
    assert not kept.done()


async def until_absent(store: Store, key: bytes) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await store.get(key) is not None:
            await asyncio.sleep(0.1)


async def take(batches: AsyncIterator[Sequence[Event]], count: int) -> list[Event]:
    """The next ``count`` events; whole batches, so maybe more."""
    events: list[Event] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(events) < count:
            events += await anext(batches)
    return events


@contextlib.asynccontextmanager
async def watching(
    store: Store, prefix: bytes, revision: int, *, prev: bool = False
) -> AsyncIterator[AsyncIterator[Sequence[Event]]]:
    batches = store.watch(prefix, revision, prev=prev)
    assert isinstance(batches, AsyncGenerator)
    async with contextlib.aclosing(batches):
        yield batches


@contextlib.asynccontextmanager
async def keeping(store: Store, lease: Lease) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(store.keep(lease))
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, LeaseLost):
            await task


class StoreContract:
    """Subclasses bring the fixtures store, other (a second client), prefix and compact."""

    # Reading and writing ------------------------------------------------------------------------

    async def test_a_key_counts_its_revisions(self, store: Store, prefix: bytes) -> None:
        """create, mod and version of a key start with its creation and go on until deletion."""
        key = prefix + b"k"
        assert await store.get(key) is None
        first = await put(store, key, b"1")
        second = await put(store, key, b"2")
        kv = await store.get(key)
        assert kv and (kv.value, kv.version, kv.lease) == (b"2", 2, 0)
        assert (kv.create_revision, kv.mod_revision) == (first, second)
        await store.txn((), (Delete(key),))
        third = await put(store, key, b"3")
        kv = await store.get(key, stale_ok=True) or await store.get(key)
        assert kv and (kv.create_revision, kv.version) == (third, 1)
        assert second == first + 1 and third == second + 2

    async def test_range_lists_a_prefix_in_order(self, store: Store, prefix: bytes) -> None:
        """A range holds exactly the keys under its prefix, sorted, and its revision."""
        for name in (b"a/2", b"a/1", b"a0", b"a", b"b/1", b"a/\xff\xff"):
            revision = await put(store, prefix + name, name)
        listing = await store.range(prefix + b"a/")
        assert [kv.value for kv in listing.kvs] == [b"a/1", b"a/2", b"a/\xff\xff"]
        assert listing.revision == revision
        assert (await store.range(prefix + b"none/")).kvs == ()

    async def test_range_at_a_revision(self, store: Store, prefix: bytes) -> None:
        """A range may look back, neither into the future nor before compaction."""
        one = await put(store, prefix + b"a", b"1")
        await store.txn((), (Delete(prefix + b"a"), Put(prefix + b"b", b"2")))
        back = await store.range(prefix, revision=one)
        assert back.revision == one and [kv.value for kv in back.kvs] == [b"1"]
        now = await store.range(prefix, revision=one + 1)
        assert [kv.value for kv in now.kvs] == [b"2"]
        with pytest.raises(Invalid):
            await store.range(prefix, revision=one + 1_000_000)

    async def test_compaction_ends_history(
        self, store: Store, prefix: bytes, compact: Compact
    ) -> None:
        """Before the compacted revision there is nothing to list or to watch; at it there is."""
        one = await put(store, prefix + b"a", b"1")
        await put(store, prefix + b"a", b"2")
        three = await put(store, prefix + b"a", b"3")
        await compact(three)
        with pytest.raises(Compacted):
            await store.range(prefix, revision=one)
        assert len((await store.range(prefix, revision=three)).kvs) == 1
        with pytest.raises(Compacted):
            async with watching(store, prefix, one) as batches:
                await take(batches, 1)
        async with watching(store, prefix, three + 1) as batches:
            await put(store, prefix + b"a", b"4")
            assert [e.kv.value for e in await take(batches, 1)] == [b"4"]
        with pytest.raises(Compacted):
            await compact(one)

    async def test_a_large_range_is_one_revision(self, store: Store, prefix: bytes) -> None:
        """A listing of several pages holds every key once, as of one revision."""
        for start in range(0, 12_000, 3_000):
            numbers = range(start, start + 3_000)
            await store.txn((), [Put(prefix + b"%05d" % n, b"%d" % n) for n in numbers])
        listing = await store.range(prefix)
        assert [kv.value for kv in listing.kvs] == [b"%d" % n for n in range(12_000)]

    # Transactions -------------------------------------------------------------------------------

    async def test_compares(self, store: Store, prefix: bytes) -> None:
        """Each target and operator decides as in etcd; an absent key is 0 and has no value."""
        here, absent = prefix + b"here", prefix + b"absent"
        lease = await store.grant(60)
        created = await put(store, here, b"1")
        changed = await put(store, here, b"m", lease.id)
        table = [
            (Compare(here, "version", "=", 2), True),
            (Compare(here, "version", "!=", 2), False),
            (Compare(here, "version", "<", 2), False),
            (Compare(here, "version", ">", 1), True),
            (Compare(here, "create", "=", created), True),
            (Compare(here, "mod", "=", changed), True),
            (Compare(here, "mod", "=", created), False),
            (Compare(here, "mod", "<", changed + 1), True),
            (Compare(here, "lease", "=", lease.id), True),
            (Compare(here, "lease", "=", 0), False),
            (Compare(here, "value", "=", b"m"), True),
            (Compare(here, "value", "<", b"n"), True),
            (Compare(here, "value", ">", b"lz"), True),
            (Compare(here, "value", "!=", b"m"), False),
            (Compare(absent, "create", "=", 0), True),
            (Compare(absent, "mod", "!=", 0), False),
            (Compare(absent, "version", "<", 1), True),
            (Compare(absent, "lease", "=", 0), True),
            (Compare(absent, "value", "=", b""), False),
            (Compare(absent, "value", "!=", b"x"), False),
        ]
        for compare, expected in table:
            assert (await store.txn((compare,), ())).succeeded is expected, compare
        assert not (await store.txn((table[0][0], table[1][0]), ())).succeeded
        await store.revoke(lease)

    async def test_range_compares(self, store: Store, prefix: bytes) -> None:
        """A compare over a range holds if it does for every key; an empty range is one 0."""
        one = await put(store, prefix + b"a")
        two = await put(store, prefix + b"b")
        end = prefix_end(prefix)
        table = [
            (Compare(prefix, "mod", "<", two + 1, end), True),
            (Compare(prefix, "mod", "<", two, end), False),
            (Compare(prefix, "create", ">", one - 1, end), True),
            (Compare(prefix, "version", "=", 1, end), True),
            (Compare(prefix + b"x", "mod", "<", 1, end), True),
            (Compare(prefix + b"x", "mod", ">", 0, end), False),
            (Compare(prefix + b"x", "value", "=", b"", end), False),
        ]
        for compare, expected in table:
            assert (await store.txn((compare,), ())).succeeded is expected, compare

    async def test_branches(self, store: Store, prefix: bytes) -> None:
        """One branch is carried out, whole; results are those of its reads, in order."""
        a, b = prefix + b"a", prefix + b"b"
        absent = Compare(a, "create", "=", 0)
        won = await store.txn((absent,), (Put(a, b"1"), Get(a), Put(b, b"2")), (Get(a),))
        assert won.succeeded and [[kv.value for kv in r] for r in won.results] == [[b"1"]]
        lost = await store.txn((absent,), (Put(a, b"x"),), (Get(prefix, prefix_end(prefix)),))
        assert not lost.succeeded and lost.revision == won.revision
        assert [[kv.value for kv in r] for r in lost.results] == [[b"1", b"2"]]
        none = await store.txn((), (Get(prefix + b"none"), Delete(prefix + b"none")))
        assert none.results == ((),) and none.revision == won.revision

    async def test_nested_transactions(self, store: Store, prefix: bytes) -> None:
        """Nested compares see the state before the transaction; their reads come out flat."""
        a, b = prefix + b"a", prefix + b"b"
        a_is_absent = Compare(a, "create", "=", 0)
        inner = Txn((a_is_absent,), (Put(b, b"absent"), Get(a)), (Put(b, b"present"), Get(b)))
        result = await store.txn((), (Put(a, b"1"), inner, Get(b)))
        assert [[kv.value for kv in r] for r in result.results] == [[b"1"], [b"absent"]]
        result = await store.txn((), (inner, Get(a)))
        assert [[kv.value for kv in r] for r in result.results] == [[b"present"], [b"1"]]

    async def test_refused_transactions_change_nothing(self, store: Store, prefix: bytes) -> None:
        """A transaction that etcd refuses as such is Invalid and leaves no trace."""
        a = prefix + b"a"
        before = await put(store, a, b"1")
        refused: list[tuple[Op, ...]] = [
            (Put(a, b"2"), Put(a, b"3")),
            (Put(a, b"2"), Delete(prefix, prefix_end(prefix))),
            (Put(a, b"2"), Txn((), (Put(a, b"3"),))),
            (Put(a, b"2"), Put(b"", b"3")),
            (Put(a, b"2"), Put(prefix + b"absent", b"3", keep_lease=True)),
            (Put(a, b"2"), Put(prefix + b"large", bytes(2_000_000))),
        ]
        for ops in refused:
            with pytest.raises(Invalid):
                await store.txn((), ops)
        kv = await store.get(a)
        assert kv and (kv.value, kv.mod_revision) == (b"1", before)

    async def test_too_much_at_once_is_told_as_such(self, store: Store, prefix: bytes) -> None:
        """Too many bytes, more than is read at all, or too many compares: TooLarge, no trace."""
        a, large = prefix + b"a", bytes(1_700_000)
        many = [Compare(prefix + b"%d" % n, "version", "=", 0) for n in range(9000)]
        values = [Compare(a, "value", "!=", large)]
        for compare, value in (([], large), ([], bytes(4_000_000)), (many, b"1"), (values, b"1")):
            with pytest.raises(TooLarge):
                await store.txn(compare, (Put(a, value),))
        assert await store.get(a) is None

    async def test_branches_exclude_each_other(self, store: Store, prefix: bytes) -> None:
        """The same key may be written in both branches of a nested transaction."""
        a = prefix + b"a"
        either = Txn((Compare(a, "create", "=", 0),), (Put(a, b"then"),), (Put(a, b"else"),))
        result = await store.txn((), (either, Get(a)))
        assert [kv.value for kv in result.results[0]] == [b"then"]

    @pytest.mark.parametrize(("count", "compares"), [(129, 0), (1_000, 100), (5_000, 1)])
    async def test_many_operations_are_one_revision(
        self, store: Store, prefix: bytes, count: int, compares: int
    ) -> None:
        """More operations than etcd takes in one level are one transaction all the same."""
        keys = [prefix + b"%05d" % n for n in range(count)]
        guard = [Compare(key, "create", "=", 0) for key in keys[:compares]]
        result = await store.txn(guard, [Put(key, key) for key in keys])
        assert result.succeeded
        assert {kv.mod_revision for kv in (await store.range(prefix)).kvs} == {result.revision}
        read = await store.txn((), [Get(key) for key in keys])
        assert [r[0].key for r in read.results] == keys
        again = await store.txn(guard or [Compare(keys[0], "create", "=", 0)], [], [Get(keys[0])])
        assert not again.succeeded and len(again.results) == 1

    async def test_one_of_many_rivals_wins(self, store: Store, other: Store, prefix: bytes) -> None:
        """Of concurrent compare-and-swaps on one key exactly one succeeds."""
        key = prefix + b"k"
        for turn in range(5):
            kv = await store.get(key)
            guard = Compare(key, "mod", "=", kv.mod_revision if kv else 0)
            results = await asyncio.gather(
                *(
                    (store, other)[rival % 2].txn((guard,), (Put(key, b"%d" % rival),))
                    for rival in range(10)
                )
            )
            assert sum(result.succeeded for result in results) == 1, turn

    # Leases -------------------------------------------------------------------------------------

    async def test_revoked_lease_takes_its_keys(self, store: Store, prefix: bytes) -> None:
        """Revoking deletes the keys under a lease in one revision, and is idempotent."""
        lease = await store.grant(60)
        assert lease.ttl == 60 and not lease.lost.is_set()
        for name in (b"b", b"a"):
            revision = await put(store, prefix + name, b"", lease.id)
        async with watching(store, prefix, revision + 1) as batches:
            await store.revoke(lease)
            await store.revoke(lease)
            events = await take(batches, 2)
        assert [(e.kv.key, e.deleted) for e in events] == [
            (prefix + b"a", True),
            (prefix + b"b", True),
        ]
        assert {e.kv.mod_revision for e in events} == {revision + 1}
        assert lease.lost.is_set()

    async def test_dead_lease_fails_the_whole_transaction(
        self, store: Store, prefix: bytes
    ) -> None:
        """A put under a lease that is gone is LeaseLost, and nothing of it is written."""
        lease = await store.grant(60)
        await store.revoke(lease)
        with pytest.raises(LeaseLost):
            await store.txn((), (Put(prefix + b"a", b""), Put(prefix + b"b", b"", lease.id)))
        assert (await store.range(prefix)).kvs == ()

    async def test_attaching_and_detaching(self, store: Store, prefix: bytes) -> None:
        """A put moves a key to its lease, to none without one, and nowhere with keep_lease."""
        one, two = await store.grant(60), await store.grant(60)
        kept, moved, detached = prefix + b"kept", prefix + b"moved", prefix + b"detached"
        for key in (kept, moved, detached):
            await put(store, key, b"", one.id)
        await store.txn(
            (),
            (Put(kept, b"1", keep_lease=True), Put(moved, b"1", two.id), Put(detached, b"1")),
        )
        leases = {kv.key: kv.lease for kv in (await store.range(prefix)).kvs}
        assert leases == {kept: one.id, moved: two.id, detached: 0}
        await store.revoke(one)
        assert {kv.key for kv in (await store.range(prefix)).kvs} == {moved, detached}
        await store.revoke(two)
        assert {kv.key for kv in (await store.range(prefix)).kvs} == {detached}

    async def test_a_kept_lease_lives_and_an_abandoned_one_expires(
        self, store: Store, other: Store, prefix: bytes
    ) -> None:
        """keep carries a lease beyond its TTL and moves its deadline; without, its keys go."""
        lease, abandoned = await store.grant(2), await store.grant(2)
        await put(store, prefix + b"kept", b"", lease.id)
        await put(store, prefix + b"abandoned", b"", abandoned.id)
        deadline = lease.deadline
        async with keeping(store, lease) as task:
            await until_absent(store, prefix + b"abandoned")
            assert await store.get(prefix + b"kept") is not None
            assert lease.deadline > deadline and not lease.lost.is_set() and not task.done()
            assert await other.adopt(abandoned.id) is None
        adopted = await other.adopt(lease.id)
        assert adopted and adopted.ttl == 2 and adopted.deadline >= lease.deadline
        await other.revoke(adopted)
        assert await store.get(prefix + b"kept") is None

    async def test_keep_learns_of_a_revoked_lease(self, store: Store, other: Store) -> None:
        """keep raises LeaseLost when etcd no longer knows the lease, and sets its flag."""
        lease = await store.grant(3)
        async with keeping(store, lease) as task:
            adopted = await other.adopt(lease.id)
            assert adopted
            await other.revoke(adopted)
            with pytest.raises(LeaseLost):
                async with asyncio.timeout(WAIT_SECONDS):
                    await task
        assert lease.lost.is_set()

    async def test_adopting_nothing(self, store: Store) -> None:
        """A lease that never was can't be adopted."""
        assert await store.adopt(0x1234_5678) is None

    # Watching -----------------------------------------------------------------------------------

    async def test_watch_tells_all_from_a_revision(
        self, store: Store, other: Store, prefix: bytes
    ) -> None:
        """Past and future events of a prefix, whole revisions, in order, and nothing else."""
        await put(store, prefix + b"a", b"0")
        first = await put(store, prefix + b"a", b"1")
        await put(store, prefix[:-1] + b"~", b"elsewhere")
        async with watching(other, prefix, first) as batches:
            seen = await take(batches, 1)
            await store.txn((), (Put(prefix + b"b", b"2"), Put(prefix + b"c", b"3")))
            last = await store.txn((), (Delete(prefix, prefix_end(prefix)),))
            seen += await take(batches, 6 - len(seen))
        assert [(e.kv.key[-1:], e.kv.value, e.deleted) for e in seen] == [
            (b"a", b"1", False),
            (b"b", b"2", False),
            (b"c", b"3", False),
            (b"a", b"", True),
            (b"b", b"", True),
            (b"c", b"", True),
        ]
        assert [e.kv.mod_revision for e in seen][-3:] == [last.revision] * 3
        assert all(e.prev is None for e in seen)

    async def test_watch_with_previous_values(self, store: Store, prefix: bytes) -> None:
        """With prev an event brings what was there before; a creation brings nothing."""
        key = prefix + b"a"
        first = await put(store, key, b"1")
        await put(store, key, b"2")
        await store.txn((), (Delete(key),))
        async with watching(store, prefix, first, prev=True) as batches:
            seen = await take(batches, 3)
        assert [e.prev.value if e.prev else None for e in seen] == [None, b"1", b"2"]
        assert seen[2].kv.create_revision == 0 and seen[2].kv.version == 0

    async def test_previous_means_the_revision_before(self, store: Store, prefix: bytes) -> None:
        """A key written and deleted in one revision: both events bring what was before it."""
        key = prefix + b"a"
        first = await put(store, key, b"1")
        await store.txn((), (Txn((), (Put(key, b"2"),)), Txn((), (Delete(key),))))
        async with watching(store, prefix, first + 1, prev=True) as batches:
            seen = await take(batches, 2)
        assert [(e.deleted, e.prev and e.prev.value) for e in seen] == [(False, b"1"), (True, b"1")]

    async def test_watch_needs_a_start(self, store: Store, prefix: bytes) -> None:
        """Revision 0 would mean "from now" to etcd and lose events: it is refused."""
        with pytest.raises(ValueError, match="revision 1"):
            async with watching(store, prefix, 0) as batches:
                await anext(batches)

    async def test_mirror_lists_and_goes_on(
        self, store: Store, other: Store, prefix: bytes
    ) -> None:
        """A mirror is a listing and all that follows; replayed it equals the store."""
        await put(store, prefix + b"a", b"1")
        state: dict[bytes, bytes] = {}
        mirror = other.mirror(prefix)
        assert isinstance(mirror, AsyncGenerator)
        async with contextlib.aclosing(mirror), asyncio.timeout(WAIT_SECONDS):
            listing = await anext(mirror)
            assert isinstance(listing, Listing)
            state = {kv.key: kv.value for kv in listing.kvs}
            await put(store, prefix + b"b", b"2")
            await store.txn((), (Delete(prefix + b"a"), Put(prefix + b"c", b"3")))
            while prefix + b"c" not in state:
                events = await anext(mirror)
                assert not isinstance(events, Listing)
                for event in events:
                    state.pop(event.kv.key, None)
                    if not event.deleted:
                        state[event.kv.key] = event.kv.value
        assert state == {kv.key: kv.value for kv in (await store.range(prefix)).kvs}

    async def test_mirror_of_a_key_alone(self, store: Store, other: Store, prefix: bytes) -> None:
        """Of one key there is what becomes of it, and nothing of those that it is the start of."""
        await put(store, prefix + b"n1", b"1")
        await put(store, prefix + b"n10", b"1")
        mirror = other.mirror(prefix + b"n1", alone=True)
        assert isinstance(mirror, AsyncGenerator)
        async with contextlib.aclosing(mirror), asyncio.timeout(WAIT_SECONDS):
            listing = await anext(mirror)
            assert isinstance(listing, Listing)
            assert [kv.key for kv in listing.kvs] == [prefix + b"n1"]
            await put(store, prefix + b"n10", b"2")
            await put(store, prefix + b"n1", b"2")
            events = await anext(mirror)
            assert not isinstance(events, Listing)
            assert [(e.kv.key, e.kv.value) for e in events] == [(prefix + b"n1", b"2")]

    async def test_closed_store_is_unavailable(self, other: Store, prefix: bytes) -> None:
        """After aclose every call says so."""
        await other.aclose()
        with pytest.raises(Unavailable):
            await other.get(prefix)
