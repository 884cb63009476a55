"""The simulated etcd against two versions of the real one, with Hypothesis drawing what is asked.

Beside what `test_differential.py` draws: history that is compacted, watches from any revision,
leases that run out or end early, transactions at and beyond the limits of size and of operations.
OZY_MACHINE_LIVES=500 draws others than the ones that `make test` always draws.
"""

import asyncio
import importlib.util
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from ozymandias.ports import Compare, Delete, Event, Get, Lease, Op, Put, StoreError, Txn
from ozymandias.sim.clock import SimClock
from ozymandias.sim.store import SimEtcd, SimStore
from ozymandias.store.etcd import EtcdStore
from tests.etcd_server import EtcdCluster
from tests.integration.store.contract import take, until_absent, watching
from tests.integration.store.test_differential import NAMES, OPERATORS, TARGETS, VALUES, Subject

LIVES = int(os.environ.get("OZY_MACHINE_LIVES", "0"))
LIVES_IN_TESTS = 25
STEPS = 30
BUILD = Path(__file__).resolve().parents[3] / "deploy" / "etcd" / "build.py"
NO_LEASE = 1_000
LARGE_BYTES = 700_000  # two fit into a request, three do not

names = st.sampled_from(NAMES)
spans = st.one_of(
    st.tuples(names, st.just(b"")),
    st.sampled_from([(b"d/", b"d0"), (b"a", b"d"), (b"b", b"zz"), (b"x", b"y")]),
)
leases = st.sampled_from((0, 1, 2, NO_LEASE, NO_LEASE))
revisions = st.integers(0, 60)


@st.composite
def compares(draw: st.DrawFn) -> Compare:
    key, end = draw(spans)
    target, op = draw(st.sampled_from(TARGETS)), draw(st.sampled_from(OPERATORS))
    operand: int | bytes = draw(revisions)
    if target == "value":
        operand = draw(st.sampled_from(VALUES))
    elif target == "version":
        operand = draw(st.integers(0, 3))
    elif target == "lease":
        operand, op = draw(leases), draw(st.sampled_from(OPERATORS[:2]))  # ids have no order
    return Compare(key, target, op, operand, end)


puts = st.builds(
    Put, names, st.sampled_from(VALUES), leases, st.sampled_from((False,) * 4 + (True,))
)
simple = st.one_of(
    puts,
    st.builds(lambda span: Delete(*span), spans),
    st.builds(lambda span: Get(*span), spans),
)


def _txns(inner: st.SearchStrategy[Op]) -> st.SearchStrategy[Op]:
    branch = st.lists(inner, max_size=3).map(tuple)
    return st.builds(Txn, st.lists(compares(), max_size=2).map(tuple), branch, branch)


operations = st.lists(st.recursive(simple, _txns, max_leaves=6), max_size=4)


class Machine(RuleBasedStateMachine):
    cluster: EtcdCluster

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        self.server = SimEtcd()
        prefix = b"/machine/" + secrets.token_hex(4).encode() + b"/"
        simulated = SimStore(self.server, SimClock(asyncio.get_running_loop()))
        self.real_store = EtcdStore.connect(self.cluster.endpoints)
        self.real = Subject(self.real_store, prefix)
        self.fake = Subject(simulated, prefix)
        await self.real.begin()
        await self.fake.begin()
        self.history: list[str] = []

    def same(self, what: str, *answers: Callable[[Subject], Any]) -> Any:
        """Ask both; what the real one said. One function for both, or one for each."""
        self.history.append(what)
        real, fake = (
            self._ask(s, a) for s, a in zip((self.real, self.fake), answers * 2, strict=False)
        )
        steps = "\n    ".join(self.history)
        assert fake == real, f"after\n    {steps}\netcd:      {real}\nsimulated: {fake}"
        return real

    def _ask(self, subject: Subject, answer: Callable[[Subject], Any]) -> object:
        async def ask() -> object:
            try:
                found = await answer(subject)
            except StoreError as error:
                found = error
            return (
                [subject.show(f) for f in found] if isinstance(found, list) else subject.show(found)
            )

        return self.runner.run(ask())

    @initialize()
    def some_leases(self) -> None:
        for _ in range(3):
            self.grant(600)

    @rule(ttl=st.sampled_from((60, 600)))
    def grant(self, ttl: int) -> None:
        async def grant(subject: Subject) -> int:
            subject.leases.append(await subject.store.grant(ttl))
            return subject.leases[-1].ttl

        self.same(f"grant {ttl}", grant)

    @rule(number=st.integers(0, 4))
    def end_early(self, number: int) -> None:
        """Revoked by somebody, before its time."""

        async def revoke(subject: Subject) -> None:
            lease = subject.leases[number % len(subject.leases)]
            await subject.store.revoke(Lease(lease.id, lease.ttl, lease.deadline))

        self.same(f"revoke {number}", revoke)

    @rule(number=st.integers(0, 4))
    def adopt(self, number: int) -> None:
        async def adopt(subject: Subject) -> int | None:
            lease = await subject.store.adopt(subject.leases[number % len(subject.leases)].id)
            return lease and lease.ttl

        self.same(f"adopt {number}", adopt)

    @rule(compare=st.lists(compares(), max_size=2), then=operations, otherwise=operations)
    def txn(self, compare: list[Compare], then: list[Op], otherwise: list[Op]) -> None:
        self._txn(f"txn {compare} {then} {otherwise}", compare, then, otherwise)

    def _txn(
        self,
        what: str,
        compare: Sequence[Compare],
        then: Sequence[Op],
        otherwise: Sequence[Op] = (),
    ) -> None:
        self.same(
            what,
            lambda s: s.store.txn(
                tuple(map(s.compare, compare)), tuple(map(s.op, then)), tuple(map(s.op, otherwise))
            ),
        )

    @rule(count=st.sampled_from((1, 2, 3)), is_taken=st.booleans())
    def large(self, count: int, is_taken: bool) -> None:
        """What is sent counts, also the branch that is not taken."""
        ops = [Put(name, bytes(LARGE_BYTES), NO_LEASE) for name in NAMES[:count]]
        never = Compare(NAMES[0], "version", "<", 0)
        self._txn(f"large {count} {is_taken}", () if is_taken else (never,), ops)
        self._txn("clean", (), [Delete(b"a", b"zz")])

    @rule(
        compare=st.sampled_from((0, 1, 64, 96, 127, 128, 129)),
        count=st.sampled_from((1, 127, 128, 129, 300)),
    )
    def many(self, compare: int, count: int) -> None:
        """As many compares and operations as etcd takes, and more."""
        guard = [Compare(b"many/%03d" % n, "version", ">", -1) for n in range(compare)]
        ops = [Put(b"many/%03d" % n, b"", NO_LEASE) for n in range(count)]
        self._txn(f"many {compare} {count}", guard, ops)

    @rule(name=st.sampled_from((b"", b"d/", b"a", b"x")), revision=revisions)
    def list(self, name: bytes, revision: int) -> None:
        self.same(
            f"range {name!r} {revision}",
            lambda s: s.store.range(s.key(name), revision=revision + s.base if revision else 0),
        )

    @rule(name=names)
    def get(self, name: bytes) -> None:
        self.same(f"get {name!r}", lambda s: s.store.get(s.key(name)))

    @rule()
    def delete_and_compact(self) -> None:
        """To the very revision of a deletion, which older etcds do not tell of any more."""
        self._txn("put", (), [Put(b"a", b"", NO_LEASE)])
        self._txn("delete", (), [Delete(b"a")])
        self.compact(0)
        self.watch(0, b"", False)

    @rule(back=st.integers(-1, 6))
    def compact(self, back: int) -> None:
        def at(subject: Subject) -> int:
            return subject.base + max(1, self._revision() - back)

        async def fake(subject: Subject) -> None:
            self.server.compact(at(subject))

        self.same(f"compact {back}", lambda s: self.real_store.compact(at(s)), fake)

    @rule(back=st.integers(-1, 12), name=st.sampled_from((b"", b"d/")), prev=st.booleans())
    def watch(self, back: int, name: bytes, prev: bool) -> None:
        """All that happened from a revision until now."""
        start = max(1, self._revision() - back)

        async def events(subject: Subject) -> list[Event]:
            mark = subject.key(name) + b"mark"
            last = (await subject.store.txn((), (Put(mark, b""),))).revision
            found: list[Event] = []
            async with watching(
                subject.store, subject.key(name), start + subject.base, prev=prev
            ) as batches:
                while not found or found[-1].kv.mod_revision < last:
                    found += await take(batches, 1)
            return found

        self.same(f"watch {name!r} from {start} prev={prev}", events)

    def _revision(self) -> int:
        return self.server.revision - self.fake.base

    def teardown(self) -> None:
        async def end() -> None:
            for lease in self.real.leases:
                await self.real_store.revoke(lease)
            await self.real_store.aclose()

        try:
            self.runner.run(end())
        finally:
            self.runner.close()


def newer_etcd() -> str:
    spec = importlib.util.spec_from_file_location("etcd_build", BUILD)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Path = module.program()
    assert found.exists(), "the newer etcd is not built: run `make etcd`"
    return str(found)


@pytest.fixture(scope="module", params=("Debian's", "newer"))
def quiet_etcd(request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    """Nobody else writes to it, so that its revisions are ours."""
    program = "etcd" if request.param == "Debian's" else newer_etcd()
    with EtcdCluster.start(1, program=program) as cluster:
        yield cluster


@pytest.mark.timeout(180 + 10 * LIVES)
def test_the_simulated_etcd_answers_as_etcd_does(quiet_etcd: EtcdCluster) -> None:
    """Whatever is asked, in whatever order, real and simulated etcd give the same answers."""
    run_state_machine_as_test(
        type("Placed", (Machine,), {"cluster": quiet_etcd}),
        settings=settings(
            max_examples=LIVES or LIVES_IN_TESTS,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=not LIVES,
            phases=(Phase.generate, Phase.shrink) if LIVES else (Phase.generate,),
            suppress_health_check=tuple(HealthCheck),
        ),
    )


async def test_leases_run_out_alike(quiet_etcd: EtcdCluster, prefix: bytes) -> None:
    """Keys of a lease that nobody keeps go in one revision, in order; then it can't be adopted."""
    real = EtcdStore.connect(quiet_etcd.endpoints)
    simulated = SimStore(SimEtcd(), SimClock(asyncio.get_running_loop()))
    stories = []
    for subject in (Subject(real, prefix), Subject(simulated, prefix)):
        await subject.begin()
        store = subject.store
        subject.leases += [await store.grant(1), await store.grant(600)]
        ops = [Put(b"b", b"1", 0), Put(b"a", b"2", 0), Put(b"c", b"3", 1), Put(b"d/1", b"4", 0)]
        await store.txn((), tuple(map(subject.op, ops)))
        await store.txn((), (subject.op(Put(b"d/1", b"5", NO_LEASE)),))  # detached
        async with watching(store, prefix, subject.base + 1, prev=True) as batches:
            events = await take(batches, 7)
        await until_absent(store, subject.key(b"a"))
        late = await store.adopt(subject.leases[0].id)
        listing = subject.show(await store.range(prefix))
        stories.append((subject.leases[0].ttl, [subject.show(e) for e in events], late, listing))
        await store.revoke(subject.leases[1])
    await real.aclose()
    assert stories[1] == stories[0]
    assert [e.kv.key for e in stories[0][1][-2:]] == [b"a", b"b"]  # type: ignore[attr-defined]
