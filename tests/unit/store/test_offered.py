"""A table that decisions of ours were entered in is the mirror's own, if nobody else wrote."""

import asyncio

import pytest

from ozymandias.core.schedule import plan_scale, plan_stop, plan_tidy, plan_vacate
from ozymandias.model.assignments import Assignments
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import KV, Put
from ozymandias.sim.clock import SimClock
from ozymandias.store import keys
from ozymandias.store.batch import BYTES_MAX, COMPARES_ANYWHERE, Batch
from ozymandias.store.chain import Chain
from ozymandias.store.changes import Written
from ozymandias.store.commit import Committed, Decide
from ozymandias.store.mirror import Mirror
from tests.unit.store.rig import Peer, creation, in_virtual_time, job, peers


async def committed(peer: Peer, name: str) -> int:
    outcome = await peer.committer.commit(lambda s: creation(job(name), str(peer.node)))
    revision: int = outcome.revision
    await peer.mirror.reached(revision)
    return revision


def names(snapshot: Snapshot) -> set[str]:
    return {key.name for _, key in snapshot.assignments}


async def fresh(peer: Peer) -> Snapshot:
    """What somebody reads who has read nothing before."""
    mirror = Mirror(peer.store)
    following = asyncio.create_task(mirror.run())
    await mirror.reached(peer.mirror.revision)
    following.cancel()
    return mirror.snapshot()


def test_what_was_decided_is_what_the_mirror_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very table, and it is what anybody else reads from the store."""

    async def main() -> None:
        async with peers() as (_, [peer]):
            decided: list[Batch] = []
            add = Chain.add
            monkeypatch.setattr(
                Chain, "add", lambda c, batch: (decided.append(batch), add(c, batch))
            )
            for name in ("one", "two"):
                await committed(peer, name)
            shown = peer.mirror.snapshot()
            assert shown.assignments is decided[-1].after.assignments
            assert dict(shown.assignments) == dict((await fresh(peer)).assignments)

    in_virtual_time(main)


def test_a_transaction_of_ours_is_entered_without_reading_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the mirror is that of somebody who has read all of it, stops and deletions included."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (_, [peer, other]):
            looked_at: list[bytes] = []
            apply = Mirror._apply

            def noted(mirror: Mirror, kv: KV, **how: bool) -> None:
                if mirror is peer.mirror:
                    looked_at.append(kv.key)
                apply(mirror, kv, **how)

            monkeypatch.setattr(Mirror, "_apply", noted)
            await committed(peer, "one")
            assert not looked_at
            await committed(other, "theirs")
            assert keys.job(job("theirs").key) in looked_at
            one = job("one").key
            decides: list[Decide] = [
                lambda s: plan_scale(s, one, 3),
                lambda s: plan_stop(s, one),
                lambda s: plan_vacate(s, peer.node, frozenset()),
                lambda s: plan_vacate(s, other.node, frozenset()),
                plan_tidy,
            ]
            for decide in decides:
                outcome = await peer.committer.commit(decide)
                assert isinstance(outcome, Committed) and not outcome.plan.is_empty
                await peer.mirror.reached(outcome.revision)
                assert peer.mirror.snapshot() == await fresh(peer)
            assert not peer.mirror._expected

    in_virtual_time(main)


def test_what_others_wrote_meanwhile_is_not_lost() -> None:
    """Where somebody else wrote after it was decided, its table lacks that and is not taken over.

    Nothing that they wrote is compared, so it is committed all the same.
    """

    async def main() -> None:
        async with peers(["n1", "n2"]) as (_, [peer, other]):
            await committed(peer, "one")
            theirs: list[asyncio.Task[int]] = []

            def decide(snapshot: Snapshot) -> Plan:
                if not theirs:
                    theirs.append(asyncio.create_task(committed(other, "theirs")))
                return creation(job("two"), str(peer.node))

            outcome = await peer.committer.commit(decide)
            assert isinstance(outcome, Committed)
            await peer.mirror.reached(await theirs[0])
            await peer.mirror.reached(outcome.revision)
            assert names(peer.mirror.snapshot()) == {"one", "two", "theirs"}
            assert dict(peer.mirror.snapshot().assignments) == dict((await fresh(peer)).assignments)

    in_virtual_time(main)


@pytest.mark.parametrize("others", [0, 1])
def test_a_table_is_taken_over_where_others_wrote_nothing_since(others: int) -> None:
    """By the revision of others that it was decided on; else what was written is entered."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            await committed(peer, "one")
            seen = peer.mirror.others_revision
            table = Assignments.of({})
            written = Written(assigned=table, others=seen - 1 + others)
            put = Put(keys.ledger(peer.node), b"{}")
            written.add(put, None)
            written.is_all = True
            peer.mirror.expect(written)
            etcd.txn((), [put])
            await peer.mirror.reached(peer.mirror.revision + 1)
            assert (peer.mirror.snapshot().assignments is table) == bool(others)

    in_virtual_time(main)


def test_a_batch_knows_when_another_like_the_last_is_too_much() -> None:
    """It is full before it is too large, and not long before."""

    async def main() -> None:
        async with peers(memory_bytes=10_000 * 2**30) as (_, [peer]):
            batch = Batch(peer.mirror.snapshot(), "c" * 16, compares_max=7000)
            number = 0
            while not batch.is_full:
                plan = creation(job(f"j{number}", 2**20), "n1", range(200))
                assert batch.takes(plan)
                batch.add(plan)
                number += 1
            assert number > 100
            assert 2 * batch.reach.size_bytes > BYTES_MAX

    in_virtual_time(main)


def test_what_was_laid_beneath_stays_there_though_nothing_was_decided_on_it() -> None:
    """Who decides next does not go on from a batch of before, which lacks what others wrote."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (_, [peer, other]):
            chain = Chain(peer.mirror, SimClock(asyncio.get_running_loop()))
            batch = chain.next_batch("first", COMPARES_ANYWHERE)
            batch.add(creation(job("ours"), "n1"))
            chain.add(batch)
            chain.broken(batch)  # of late: what others do is looked at before every batch
            chain.links.append(batch)
            await peer.mirror.reached(await committed(other, "theirs"))
            nothing, another = (chain.next_batch("next", COMPARES_ANYWHERE) for _ in range(2))
            assert names(nothing.before) == names(another.before) == {"ours", "theirs"}
            assert another.others == peer.mirror.others_revision

    in_virtual_time(main)
