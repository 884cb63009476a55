"""The simulated etcd against the real one: the same random operations, and every answer compared.

Revisions are compared relative to where each began, leases by the order in which they were granted.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest

from ozymandias.model.record import replace
from ozymandias.ports import (
    KV,
    Compare,
    Delete,
    Event,
    Get,
    Lease,
    Listing,
    Op,
    Put,
    Store,
    StoreError,
    Txn,
    TxnResult,
)
from ozymandias.sim.clock import SimClock
from ozymandias.sim.store import SimEtcd, SimStore
from ozymandias.store.etcd import EtcdStore
from tests.etcd_server import EtcdCluster
from tests.integration.store.contract import take, watching

OPERATIONS = 200
NAMES = (b"a", b"b", b"c", b"d/1", b"d/2", b"d/3", b"d/4", b"e", b"f")
VALUES = (b"", b"1", b"2", b"long" * 100)
TARGETS: tuple[Literal["version", "create", "mod", "value", "lease"], ...] = (
    *("version", "create", "mod", "value", "lease"),
)
OPERATORS: tuple[Literal["=", "!=", "<", ">"], ...] = ("=", "!=", "<", ">")


class Subject:
    """A store, with its revisions and lease ids made comparable."""

    def __init__(self, store: Store, prefix: bytes) -> None:
        self.store = store
        self.prefix = prefix
        self.base = 0
        self.leases: list[Lease] = []

    async def begin(self) -> None:
        self.base = (await self.store.range(self.prefix)).revision

    def kv(self, kv: KV) -> KV:
        numbers = {lease.id: number for number, lease in enumerate(self.leases, 1)}
        return replace(
            kv,
            key=kv.key.removeprefix(self.prefix),
            create_revision=kv.create_revision and kv.create_revision - self.base,
            mod_revision=kv.mod_revision and kv.mod_revision - self.base,
            lease=kv.lease and numbers[kv.lease],
        )

    def show(self, answer: object) -> object:
        match answer:
            case TxnResult():
                results = tuple(tuple(map(self.kv, kvs)) for kvs in answer.results)
                return replace(answer, revision=answer.revision - self.base, results=results)
            case Listing():
                return Listing(answer.revision - self.base, tuple(map(self.kv, answer.kvs)))
            case KV():
                return self.kv(answer)
            case Event():
                return Event(
                    self.kv(answer.kv), answer.deleted, answer.prev and self.kv(answer.prev)
                )
            case StoreError():
                return type(answer).__name__
            case _:
                return answer

    # Operations are drawn in relative terms; these make them the subject's own.

    def key(self, name: bytes) -> bytes:
        return self.prefix + name

    def end(self, name: bytes) -> bytes:
        return self.prefix + name if name else b""

    def lease(self, number: int) -> int:
        return self.leases[number].id if number < len(self.leases) else 0

    def op(self, op: Op) -> Op:
        match op:
            case Put():
                return replace(op, key=self.key(op.key), lease=self.lease(op.lease))
            case Delete() | Get():
                return replace(op, key=self.key(op.key), range_end=self.end(op.range_end))
            case Txn():
                return Txn(
                    tuple(map(self.compare, op.compare)),
                    tuple(map(self.op, op.then)),
                    tuple(map(self.op, op.otherwise)),
                )

    def compare(self, compare: Compare) -> Compare:
        operand = compare.operand
        if isinstance(operand, int):
            if compare.target in ("create", "mod"):
                operand = max(0, operand and operand + self.base)
            elif compare.target == "lease":
                operand = self.lease(operand)
        return replace(
            compare,
            key=self.key(compare.key),
            range_end=self.end(compare.range_end),
            operand=operand,
        )


class Dice:
    """Draws operations; NO_LEASE is a number that no lease has."""

    NO_LEASE = 1_000

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def lease(self) -> int:
        return self.random.choice((0, 1, 2, self.NO_LEASE, self.NO_LEASE, self.NO_LEASE))

    def span(self) -> tuple[bytes, bytes]:
        """One key, or a range of them."""
        if self.random.random() < 0.6:
            return self.random.choice(NAMES), b""
        return self.random.choice(((b"d/", b"d0"), (b"a", b"d"), (b"b", b"zz"), (b"x", b"y")))

    def compare(self, revision: int) -> Compare:
        key, end = self.span()
        op = self.random.choice(OPERATORS)
        target = self.random.choice(TARGETS)
        operand: int | bytes
        if target == "value":
            operand = self.random.choice(VALUES)
        elif target == "version":
            operand = self.random.randrange(4)
        elif target == "lease":
            operand, op = self.lease(), self.random.choice(OPERATORS[:2])  # ids have no order
        else:
            operand = self.random.choice((0, self.random.randint(1, revision + 1), revision))
        return Compare(key, target, op, operand, end)

    def op(self, revision: int, depth: int = 0) -> Op:
        kind = self.random.random()
        if kind < 0.5:
            keep = self.random.random() < 0.1
            lease = self.NO_LEASE if keep and self.random.random() < 0.8 else self.lease()
            value = self.random.choice(VALUES)
            return Put(self.random.choice(NAMES), value, lease, keep)
        if kind < 0.65:
            return Delete(*self.span())
        if kind < 0.85 or depth > 1:
            return Get(*self.span())
        return Txn(
            self.compares(revision),
            self.ops(revision, depth + 1),
            self.ops(revision, depth + 1),
        )

    def ops(self, revision: int, depth: int = 0) -> tuple[Op, ...]:
        return tuple(self.op(revision, depth) for _ in range(self.random.choice((0, 1, 1, 2, 3))))

    def compares(self, revision: int) -> tuple[Compare, ...]:
        return tuple(self.compare(revision) for _ in range(self.random.choice((0, 0, 1, 2))))


async def _perform(subject: Subject, step: tuple[Any, ...]) -> object:
    """One drawn step; errors are answers too."""
    store = subject.store
    try:
        match step:
            case ("txn", compares, then, otherwise):
                return await store.txn(
                    tuple(map(subject.compare, compares)),
                    tuple(map(subject.op, then)),
                    tuple(map(subject.op, otherwise)),
                )
            case ("get", bytes(name)):
                return await store.get(subject.key(name))
            case ("range", bytes(name), int(revision)):
                at = revision + subject.base if revision else 0
                return await store.range(subject.key(name), revision=at)
            case ("grant", int(ttl)):
                subject.leases.append(await store.grant(ttl))
                return subject.leases[-1].ttl
            case ("revoke", int(number)):
                await store.revoke(subject.leases[number % len(subject.leases)])
            case ("adopt", int(number)):
                lease = await store.adopt(subject.leases[number % len(subject.leases)].id)
                return lease and lease.ttl
    except StoreError as error:
        return error
    return None


def _draw(dice: Dice, number: int, revision: int) -> tuple[Any, ...]:
    kind = dice.random.random()
    if number < 3 or kind < 0.03:
        return ("grant", dice.random.choice((1, 60, 600)) if number >= 3 else 600)
    if kind < 0.06:
        return ("revoke", dice.random.randrange(100))
    if kind < 0.09:
        return ("adopt", dice.random.randrange(100))
    if kind < 0.15:
        return ("get", dice.random.choice(NAMES))
    if kind < 0.25:
        back = dice.random.randint(0, revision + 2) if dice.random.random() < 0.5 else 0
        return ("range", dice.random.choice((b"", b"d/", b"x")), back)
    return ("txn", dice.compares(revision), dice.ops(revision), dice.ops(revision))


@pytest.fixture(scope="module")
def quiet_etcd() -> Iterator[EtcdCluster]:
    """Nobody else writes to it, so that its revisions are ours."""
    with EtcdCluster.start(1) as cluster:
        yield cluster


@pytest.fixture
async def subjects(quiet_etcd: EtcdCluster, prefix: bytes) -> AsyncIterator[list[Subject]]:
    real = EtcdStore.connect(quiet_etcd.endpoints)
    simulated = SimStore(SimEtcd(), SimClock(asyncio.get_running_loop()))
    subjects = [Subject(real, prefix), Subject(simulated, prefix)]
    for subject in subjects:
        await subject.begin()
    yield subjects
    for subject in subjects:
        for lease in subject.leases:
            await subject.store.revoke(lease)
    await real.aclose()


@pytest.mark.parametrize("seed", range(10))
async def test_the_same_answers(subjects: list[Subject], seed: int) -> None:
    """Real and simulated etcd give the same answer to every one of the same operations."""
    dice, revision = Dice(seed), 1
    errors = 0
    for number in range(OPERATIONS):
        step = _draw(dice, number, revision)
        real, simulated = [s.show(await _perform(s, step)) for s in subjects]
        assert simulated == real, f"seed {seed}, step {number}: {step}"
        errors += isinstance(real, str)
        if isinstance(real, TxnResult):
            revision = max(1, real.revision)
    assert revision > OPERATIONS / 20 and 0 < errors < OPERATIONS / 2
    histories = []
    for subject in subjects:
        last = (await subject.store.range(subject.prefix)).revision
        async with watching(subject.store, subject.prefix, subject.base + 1, prev=True) as batches:
            events: list[Event] = []
            while not events or events[-1].kv.mod_revision < last:
                events += await take(batches, 1)
        histories.append([subject.show(event) for event in events])
    assert histories[1] == histories[0]
