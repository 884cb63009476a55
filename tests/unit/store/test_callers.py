"""Whoever asks for a commit gets one answer, the right one, whatever becomes of the others."""

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from functools import partial
from random import Random

import pytest

from ozymandias.ports import (
    Ambiguous,
    Compare,
    Event,
    LeaseLost,
    Op,
    Put,
    StoreError,
    TooLarge,
    TxnResult,
    Unavailable,
)
from ozymandias.problems import PLAN_TOO_LARGE, Problem
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.etcd import SimEtcd
from ozymandias.sim.invariants import check_schedule
from ozymandias.sim.store import Cut
from ozymandias.store import keys
from ozymandias.store.commit import STUCK_SECONDS, Committed
from tests.unit.store.rig import GIB, Peer, creation, in_virtual_time, job, peers
from tests.unit.store.test_batches import submission

Outcome = Committed | Problem | BaseException | None  # None: who asked went away
Mishap = Callable[[SimEtcd, Peer], None]


async def asked(peer: Peer, name: str) -> Outcome:
    try:
        return await peer.committer.commit(submission(name))
    except StoreError as error:
        return error


def test_who_goes_away_takes_nobody_along() -> None:
    """Five are on their way in one transaction, one of them gives up: the others are answered."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (_, [peer]):
            peer.store.faults.latency = (0.05, 0.05)
            names = [f"j{number}" for number in range(5)]
            for gone in range(5):
                tasks = [asyncio.create_task(asked(peer, f"{n}-{gone}")) for n in names]
                await asyncio.sleep(0.06)  # it is carried out by now, and nobody knows
                tasks[gone].cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                assert isinstance(outcomes.pop(gone), asyncio.CancelledError)
                assert all(isinstance(outcome, Committed) for outcome in outcomes)
            assert len(peer.mirror.snapshot().jobs) == 25

    in_virtual_time(main)


def test_who_goes_away_while_it_waits_is_not_decided_for() -> None:
    """And those after it have their turn."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (_, [peer]):
            async with peer.committer.deciding:
                tasks = [asyncio.create_task(asked(peer, name)) for name in ("first", "second")]
                await asyncio.sleep(1)
                tasks[0].cancel()
            async with asyncio.timeout(10):
                assert isinstance(await tasks[1], Committed)
            assert tasks[0].cancelled()
            assert {key.name for key in peer.mirror.snapshot().jobs} == {"second"}

    in_virtual_time(main)


@pytest.mark.parametrize("eager", [False, True], ids=["in-turns", "ahead"])
@pytest.mark.parametrize("seed", range(100))
def test_whoever_goes_away_and_whenever_all_others_are_answered(seed: int, eager: bool) -> None:
    """Two peers that race, answers that take a while, some callers that do not wait for theirs."""

    async def main() -> None:
        draw = Random(seed)
        async with peers(["n1", "n2"], memory_bytes=64 * GIB, eager=eager) as (etcd, both):
            for peer in both:
                peer.store.faults.latency, peer.store.faults.watch_lag = (0.0, 0.02), (0.0, 0.02)

            async def ask(number: int) -> None:
                await asyncio.sleep(draw.choice((0.0, 0.0, 0.01, 0.03)))
                patience = draw.choice((60.0, 60.0, 60.0, 0.001, 0.005, 0.01, 0.02))
                peer = draw.choice(both)
                try:
                    async with asyncio.timeout(patience):
                        outcome = await peer.committer.commit(submission(f"j{number}"))
                except TimeoutError:
                    assert patience < 1, "nobody who has the patience waits in vain"
                    return
                assert isinstance(outcome, Committed)
                assert job(f"j{number}").key in peer.mirror.snapshot().jobs

            async with asyncio.TaskGroup() as group:
                for number in range(40):
                    group.create_task(ask(number))
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main, seed)


# At every single moment ---------------------------------------------------------------------------


def calm(etcd: SimEtcd, peer: Peer) -> None:
    """Nothing happens."""


def lost_answers(etcd: SimEtcd, peer: Peer) -> None:
    peer.store.faults.ambiguous = 0.6


def unreachable(etcd: SimEtcd, peer: Peer) -> None:
    peer.store.faults.unavailable = 0.4


def late_watch(etcd: SimEtcd, peer: Peer) -> None:
    peer.store.faults.watch_lag = (0.5, 3.0)


def without_lease(etcd: SimEtcd, peer: Peer) -> None:
    asyncio.get_running_loop().call_later(0.02, etcd.expire, peer.lease.id)


def compacted(etcd: SimEtcd, peer: Peer) -> None:
    """It is cut off, and its mirror has to begin anew."""

    def back() -> None:
        etcd.compact(etcd.revision)
        peer.store.heal()

    loop = asyncio.get_running_loop()
    loop.call_later(0.015, peer.store.partition, Cut.BOTH)
    loop.call_later(0.5, back)


class Moment:
    """Calls something after so many rounds of the loop: between any two steps of anybody."""

    def __init__(self, rounds: int, then: Callable[[], object]) -> None:
        self.is_over = False
        self.left, self._then = rounds, then
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._run_once = loop._run_once
        loop._run_once = self._round  # type: ignore[method-assign]

    def _round(self) -> None:
        self._run_once()
        self.left -= 1
        if self.left == 0:
            self.is_over = True
            self._then()


async def life(
    mishap: Mishap,
    callers: int,
    gone: Collection[int],
    rounds: int,
    *,
    eager: bool,
    is_end: bool,
) -> bool:
    """Whether the moment came: some callers go away, or the daemon ends (``is_end``)."""
    async with peers(["n1", "n2"], memory_bytes=64 * GIB, eager=eager) as (etcd, [peer, other]):
        made: dict[bytes, list[int]] = {}

        def note(revision: int, events: list[Event]) -> None:
            for event in events:
                if event.kv.key.startswith(keys.VERSIONS):
                    made.setdefault(event.kv.key, []).append(revision)

        etcd.on_commit.append(note)
        peer.store.faults.latency = peer.store.faults.watch_lag = (0.0, 0.02)
        peer.store.faults.timeout = 1.0
        mishap(etcd, peer)
        tasks = [asyncio.create_task(asked(peer, f"j{number}")) for number in range(callers)]

        def break_off() -> None:
            if is_end:
                peer.committing.cancel()
            for number in gone:
                tasks[number].cancel()

        moment = Moment(rounds, break_off)
        racing = [asyncio.create_task(asked(other, f"r{number}")) for number in range(2)]
        async with asyncio.timeout(300):
            await asyncio.wait(tasks)
            moment.left = 0  # if it has not come, it does not any more
            await asyncio.wait(racing)
        await asyncio.sleep(30)  # what is applied late is applied by then
        for number, task in enumerate(tasks):
            revisions = made.get(keys.version(job(f"j{number}").key, 1), [])
            check_answer(None if task.cancelled() else task.result(), revisions, is_exact=not eager)
            assert not task.cancelled() or number in gone
        assert check_schedule(etcd.snapshot_kvs()) == []
        assert not peer.committer._unanswered
        peer.store.faults.ambiguous = peer.store.faults.unavailable = 0.0
        last = await asked(peer, "last")
        if is_end and moment.is_over:
            assert isinstance(last, Unavailable)
        elif mishap is without_lease:
            assert isinstance(last, LeaseLost)
        else:
            assert isinstance(last, Committed)
        return moment.is_over


def check_answer(outcome: Outcome, revisions: list[int], *, is_exact: bool) -> None:
    """Once at most, and as it was told.

    Of one that is known by the one on top of it alone, that it was there by then is all there is.
    """
    assert len(revisions) <= 1
    if isinstance(outcome, Committed):
        assert len(revisions) == 1
        assert revisions[0] <= outcome.revision
        assert revisions[0] == outcome.revision or not is_exact
    elif outcome is not None and not isinstance(outcome, Ambiguous):
        assert not revisions


def moments(
    mishap: Mishap, callers: int, gone: Collection[int], *, eager: bool, is_end: bool = False
) -> None:
    """Every one there is until all are answered."""
    for rounds in itertools.count(1):
        lived = partial(life, mishap, callers, gone, rounds, eager=eager, is_end=is_end)
        if not in_virtual_time(lived):
            return


MISHAPS = [
    pytest.param(mishap, id=mishap.__name__)
    for mishap in (calm, lost_answers, unreachable, late_watch, without_lease, compacted)
]


@pytest.mark.parametrize("eager", [False, True], ids=["in-turns", "ahead"])
@pytest.mark.parametrize("callers", [2, 5])
@pytest.mark.parametrize("mishap", MISHAPS)
def test_whenever_one_goes_away_all_others_are_told_the_truth(
    mishap: Mishap, callers: int, eager: bool
) -> None:
    """The first of them goes: at every moment from its question to the last answer."""
    moments(mishap, callers, [0], eager=eager)


@pytest.mark.parametrize("eager", [False, True], ids=["in-turns", "ahead"])
@pytest.mark.parametrize("callers", [1, 5])
@pytest.mark.parametrize("mishap", MISHAPS)
def test_whenever_the_daemon_ends_all_are_told_the_truth(
    mishap: Mishap, callers: int, eager: bool
) -> None:
    """Nobody waits on, and nothing is sent any more."""
    moments(mishap, callers, [], eager=eager, is_end=True)


# What is not told to one after the other, and what nobody else pays for ---------------------------


def test_a_watch_that_is_stuck_is_told_to_all_at_once() -> None:
    """Not to one every ten seconds, as they have their turns."""

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB) as (_, [peer, other]):
            peer.store.stick()
            await asked(other, "unseen")
            loop = asyncio.get_running_loop()
            began = loop.time()
            outcomes = await asyncio.gather(*(asked(peer, f"j{number}") for number in range(20)))
            assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
            assert loop.time() < began + STUCK_SECONDS + 1
            peer.store.stick(False)
            assert isinstance(await asked(peer, "later"), Committed)

    in_virtual_time(main)


def test_nobody_is_refused_for_what_was_too_large_to_be_there() -> None:
    """Of two that are decided for together, the first takes all room, and the store refuses it."""

    async def main() -> None:
        async with peers(memory_bytes=8 * GIB) as (_, [peer]):
            real = peer.store.txn

            async def txn(
                compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
            ) -> TxnResult:
                if any(isinstance(op, Put) and op.key == keys.job(job("huge").key) for op in then):
                    raise TooLarge("request is too large")
                return await real(compare, then, otherwise)

            peer.store.txn = txn  # type: ignore[method-assign]
            async with peer.committer.deciding:
                huge = asyncio.create_task(
                    peer.committer.commit(lambda s: creation(job("huge"), "n1", range(8)))
                )
                await asyncio.sleep(1)
                small = asyncio.create_task(asked(peer, "small"))
                await asyncio.sleep(1)
            refused, taken = await huge, await small
            assert isinstance(refused, Problem) and refused.kind is PLAN_TOO_LARGE
            assert isinstance(taken, Committed)

    in_virtual_time(main)


def test_who_asked_before_the_store_was_set_back_is_answered() -> None:
    """What it could see then will not be shown again, so nobody waits for it."""

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB) as (etcd, [peer, other]):
            backup = etcd.revision
            for name in ("a", "b", "c"):
                await asked(other, name)
            await peer.mirror.reached(etcd.revision)
            async with peer.committer.deciding:
                nothing = asyncio.create_task(peer.committer.commit(lambda s: None))
                await asyncio.sleep(1)
                etcd.restore(backup)
                await asyncio.sleep(5)
                assert not peer.mirror.snapshot().jobs
            assert isinstance(await nothing, Committed)

    in_virtual_time(main)
