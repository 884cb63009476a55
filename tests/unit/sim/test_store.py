"""The faults of the simulated store, in virtual time: each does what its name says, no more."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import copy_context
from pathlib import Path

import pytest

from ozymandias.ports import (
    KV,
    Ambiguous,
    ClusterChanged,
    Compare,
    Event,
    Lease,
    LeaseLost,
    Listing,
    Put,
    Store,
    StoreError,
    Unavailable,
)
from ozymandias.sim.clock import MACHINE, SimClock, VirtualLoop
from ozymandias.sim.store import Faults, SimEtcd, SimStore

Scenario = Callable[[SimEtcd, SimStore, SimStore], Awaitable[None]]


def play(scenario: Scenario, seed: int = 0) -> None:
    """With a server and two clients, on a loop of their own."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = SimEtcd(seed)
        clients = [SimStore(server, SimClock(loop, n), seed * 2 + n) for n in range(2)]
        port: Store = clients[0]  # for the type checker
        assert port
        await scenario(server, clients[0], clients[1])

    VirtualLoop(seed).run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def keeping(store: Store, lease: Lease) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(store.keep(lease))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def follow(store: Store, prefix: bytes, into: list[Listing | Sequence[Event]]) -> None:
    async for piece in store.mirror(prefix):
        into.append(piece)  # noqa: PERF401 (seen while it grows)


def replay(pieces: Sequence[Listing | Sequence[Event]]) -> dict[bytes, KV]:
    state: dict[bytes, KV] = {}
    for piece in pieces:
        if isinstance(piece, Listing):
            state = {kv.key: kv for kv in piece.kvs}
            continue
        for event in piece:
            state.pop(event.kv.key, None)
            if not event.deleted:
                state[event.kv.key] = event.kv
    return state


def test_partition() -> None:
    """A cut client is told Unavailable at its deadline, the others notice nothing."""

    async def scenario(server: SimEtcd, store: SimStore, other: SimStore) -> None:
        store.partition()
        with pytest.raises(Unavailable):
            await store.txn((), (Put(b"a", b"1"),))
        assert now() == store.faults.timeout and store.is_partitioned
        await other.txn((), (Put(b"a", b"2"),))
        asyncio.get_running_loop().call_later(5, store.heal)
        kv = await store.get(b"a")
        assert kv and kv.value == b"2" and now() == store.faults.timeout + 5

    play(scenario)


def test_partition_while_the_answer_travels() -> None:
    """A write that arrived and whose answer was cut off is ambiguous, and was applied once."""

    async def scenario(server: SimEtcd, store: SimStore, _: SimStore) -> None:
        store.faults.latency = (1.0, 1.0)
        asyncio.get_running_loop().call_later(1.5, store.partition)
        with pytest.raises(Ambiguous):
            await store.txn((), (Put(b"a", b"1"),))
        assert server.snapshot_kvs()[b"a"].version == 1

    play(scenario)


def test_ambiguous_writes() -> None:
    """An ambiguous write was applied, or was not, or will be; never twice. Reads never are."""
    fates = {"applied": 0, "later": 0, "lost": 0}

    async def scenario(server: SimEtcd, store: SimStore, other: SimStore) -> None:
        store.faults.ambiguous = 1.0
        with pytest.raises(Ambiguous):
            await store.txn((), (Put(b"a", b"1"),))
        at_once = await other.get(b"a")
        assert await store.get(b"a") == at_once
        await asyncio.sleep(store.faults.timeout)
        in_the_end = server.snapshot_kvs().get(b"a")
        fates["applied" if at_once else "later" if in_the_end else "lost"] += 1
        assert in_the_end is None or in_the_end.version == 1

    for seed in range(60):
        play(scenario, seed)
    assert all(count > 5 for count in fates.values()), fates


def test_unavailable_calls_write_nothing() -> None:
    """Unavailable means that nothing was written."""

    async def scenario(server: SimEtcd, store: SimStore, _: SimStore) -> None:
        store.faults.unavailable = 0.5
        told = {"done": 0, "unavailable": 0}
        for number in range(200):
            try:
                await store.txn((), (Put(b"%d" % number, b""),))
                told["done"] += 1
            except Unavailable:
                told["unavailable"] += 1
        assert told["done"] == len(server.snapshot_kvs()) == server.revision - 1
        assert told["unavailable"] > 50

    play(scenario)


def test_leases_live_and_die_in_virtual_time() -> None:
    """A lease is kept for hours; cut off, our clock gives it up before the server does."""

    async def scenario(server: SimEtcd, store: SimStore, _: SimStore) -> None:
        store.faults.latency = (0.001, 0.05)
        lease = await store.grant(15)
        await store.txn((), (Put(b"a", b"", lease.id),))
        async with keeping(store, lease) as kept:
            await asyncio.sleep(10 * 3_600 + 2.5)  # between two keep-alives
            assert b"a" in server.snapshot_kvs() and not kept.done()
            store.partition()
            with pytest.raises(LeaseLost):
                await kept
            assert now() == pytest.approx(lease.deadline, abs=0.01)
            assert lease.lost.is_set() and b"a" in server.snapshot_kvs()
            await asyncio.sleep(1.0)
            assert b"a" not in server.snapshot_kvs()

    for seed in range(5):
        play(scenario, seed)


def test_leases_of_a_frozen_daemon_lapse() -> None:
    """The server's clock goes on, whatever became of the daemon that asked it for the lease."""

    async def scenario(server: SimEtcd, store: SimStore, _: SimStore) -> None:
        async def daemon() -> None:
            lease = await store.grant(6)
            await store.txn((), (Put(b"a", b"", lease.id),))
            await store.keep(lease)

        loop, context = asyncio.get_running_loop(), copy_context()
        assert isinstance(loop, VirtualLoop)
        context.run(MACHINE.set, "n1")
        kept = loop.create_task(daemon(), context=context)
        await asyncio.sleep(60)
        assert b"a" in server.snapshot_kvs() and not kept.done()
        loop.freeze("n1")
        await asyncio.sleep(10)
        assert b"a" not in server.snapshot_kvs()
        loop.thaw("n1")
        with pytest.raises(LeaseLost):
            await kept

    play(scenario)


def test_early_expiry() -> None:
    """A lease that the server drops before its time is learnt of at the next keep-alive."""

    async def scenario(server: SimEtcd, store: SimStore, _: SimStore) -> None:
        lease = await store.grant(15)
        async with keeping(store, lease) as kept:
            await asyncio.sleep(7)
            server.expire(lease.id)
            with pytest.raises(LeaseLost, match="has expired"):
                await kept
            assert now() == pytest.approx(10.0)

    play(scenario)


def test_suspended_machine() -> None:
    """After a sleep longer than the TTL the lease is lost, whatever the server may say."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock = SimClock(loop)
        store = SimStore(SimEtcd(), clock)
        lease = await store.grant(15)
        async with keeping(store, lease) as kept:
            await asyncio.sleep(1)
            clock.suspend(60)
            with pytest.raises(LeaseLost):
                await kept

    VirtualLoop().run(main())


def test_lost_quorum() -> None:
    """While the server is paused nobody is answered, nothing expires; then TTLs begin anew."""

    async def scenario(server: SimEtcd, store: SimStore, other: SimStore) -> None:
        lease = await store.grant(10)
        await store.txn((), (Put(b"a", b"", lease.id),))
        server.pause()
        for client in (store, other):
            with pytest.raises(Unavailable):
                await client.txn((), (Put(b"b", b""),))
        assert await other.get(b"a", stale_ok=True) is not None
        await asyncio.sleep(1_000)
        assert set(server.snapshot_kvs()) == {b"a"}
        server.resume()
        await asyncio.sleep(9.5)
        assert server.lease_keys(lease.id) == frozenset({b"a"})
        await asyncio.sleep(1.1)
        assert server.lease_keys(lease.id) is None and server.snapshot_kvs() == {}

    play(scenario)


def test_mirror_through_everything() -> None:
    """Lag, cuts, pauses, compaction, restored backups: a mirror ends up equal to the server."""

    async def scenario(server: SimEtcd, store: SimStore, other: SimStore) -> None:
        dice = random.Random(server.revision)
        store.faults.watch_lag = (0.0, 2.0)
        pieces: list[Listing | Sequence[Event]] = []
        task = asyncio.create_task(follow(store, b"k/", pieces))
        for step in range(300):
            await asyncio.sleep(dice.uniform(0.0, 0.5))
            action = dice.choice(("put", "put", "put", "cut", "heal", "compact", "pause"))
            with contextlib.suppress(StoreError):
                if action == "put":
                    key = b"k/%d" % dice.randrange(5)
                    await other.txn((), (Put(key, b"%d" % step), Put(b"else%d" % step, b"")))
                elif action == "compact":
                    server.compact(server.revision)
                elif action == "pause":
                    server.pause()
                    asyncio.get_running_loop().call_later(1.0, server.resume)
                else:
                    (store.partition if action == "cut" else store.heal)()
            if step == 150:
                server.restore(max(server.compacted, server.revision - 10))
        store.heal()
        await asyncio.sleep(30)
        wanted = {k: kv for k, kv in server.snapshot_kvs().items() if k.startswith(b"k/")}
        assert replay(pieces) == wanted
        assert sum(isinstance(piece, Listing) for piece in pieces) > 1
        task.cancel()

    for seed in range(10):
        play(scenario, seed)


def test_watch_is_complete_under_lag() -> None:
    """Events come late but all, once, in order and by whole revisions."""

    async def scenario(server: SimEtcd, store: SimStore, other: SimStore) -> None:
        store.faults.watch_lag = (0.0, 1.0)
        committed: list[int] = []
        server.on_commit.append(lambda revision, events: committed.extend([revision] * len(events)))

        async def write() -> None:
            for number in range(100):
                await other.txn((), (Put(b"a", b"%d" % number), Put(b"b", b"%d" % number)))
                await asyncio.sleep(0.1)

        writing = asyncio.create_task(write())
        seen: list[int] = []
        async with contextlib.aclosing(store.watch(b"", 2)) as batches:
            async for batch in batches:
                seen += [event.kv.mod_revision for event in batch]
                if len(seen) == 200:
                    break
        await writing
        assert seen == committed == sorted(seen)

    play(scenario)


def test_restored_backup_is_noticed() -> None:
    """After a backup is restored every client is told once."""

    async def scenario(server: SimEtcd, store: SimStore, other: SimStore) -> None:
        await store.txn((), (Put(b"a", b"1"),))
        await store.txn((), (Put(b"a", b"2"),))
        server.restore(2)
        for client in (store, other):
            with pytest.raises(ClusterChanged):
                await client.get(b"a")
            kv = await client.get(b"a")
            assert kv and kv.value == b"1"

    play(scenario)


def test_hooks_see_every_revision() -> None:
    """At each commit a hook finds the server's state to be that of the revision."""

    async def scenario(server: SimEtcd, store: SimStore, _: SimStore) -> None:
        state: dict[bytes, KV] = {}
        revisions = []

        def check(revision: int, events: list[Event]) -> None:
            revisions.append(revision)
            for event in events:
                state.pop(event.kv.key, None)
                if not event.deleted:
                    state[event.kv.key] = event.kv
            assert state == server.snapshot_kvs() and server.revision == revision

        server.on_commit.append(check)
        lease = await store.grant(5)
        for number in range(10):
            await store.txn((), (Put(b"%d" % number, b"", lease.id),))
        await asyncio.sleep(10)
        assert revisions == list(range(2, 13)) and state == {}

    play(scenario)


async def _busy(seed: int, txns: int) -> tuple[list[object], int]:
    """Rivals on a few keys, with every fault; what each was told."""
    loop = asyncio.get_running_loop()
    server = SimEtcd(seed)
    told: list[object] = []
    faults = {"latency": (0.001, 0.05), "unavailable": 0.02, "ambiguous": 0.05}

    async def rival(number: int) -> None:
        clock = SimClock(loop, number, drift=0.001 * number)
        store = SimStore(server, clock, seed + number, Faults(**faults))  # type: ignore[arg-type]
        for _ in range(txns):
            key = b"%d" % clock.random.randrange(3)
            try:
                kv = await store.get(key)
                guard = Compare(key, "mod", "=", kv.mod_revision if kv else 0)
                result = await store.txn((guard,), (Put(key, b"%d" % number),))
                told.append((number, result.succeeded, result.revision))
            except StoreError as error:
                told.append((number, type(error).__name__, round(loop.time(), 9)))

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(rival(number))
    return told, server.revision


def test_replay() -> None:
    """The same seed gives the same history, in another process with another hash seed too."""
    code = (
        "from tests.unit.sim.test_store import VirtualLoop, _busy\n"
        "print([VirtualLoop(seed).run(_busy(seed, 40)) for seed in range(3)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1 and "Ambiguous" in outputs.pop()


def test_it_is_fast() -> None:
    """Thousands of transactions in a second of CPU, faults and all."""
    began = time.process_time()
    told, _ = VirtualLoop(1).run(_busy(1, 500))
    assert len(told) / (time.process_time() - began) > 1_000
