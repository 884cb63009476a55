"""A table that decisions of ours were entered in is the mirror's own, if nobody else wrote."""

import asyncio

import pytest

from ozymandias.core.schedule import plan_scale, plan_stop, plan_tidy, plan_vacate
from ozymandias.model.assignments import Assignments
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import KV, Put
from ozymandias.sim.clock import SimClock
from ozymandias.store import keys
from ozymandias.store.batch import BYTES_MAX, COMPARES_ANYWHERE, Batch
from ozymandias.store.chain import Chain
from ozymandias.store.changes import Offered
from ozymandias.store.commit import Committed, Decide
from ozymandias.store.mirror import Mirror
from tests.unit.store.rig import Peer, creation, in_virtual_time, job, peers

NOTHING = Assignments.of({})


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

            def noted(mirror: Mirror, kv: KV, *, deleted: bool) -> None:
                if mirror is peer.mirror:
                    looked_at.append(kv.key)
                apply(mirror, kv, deleted=deleted)

            monkeypatch.setattr(Mirror, "_apply", noted)
            await committed(peer, "one")
            assert not looked_at
            await committed(other, "theirs")
            assert keys.ledger(other.node) in looked_at
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


@pytest.mark.parametrize("late", [False, True])
def test_what_others_wrote_meanwhile_is_not_lost(late: bool) -> None:
    """Offered before or after it is shown: with another's write beneath, it is not taken over."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (_, [peer, other]):
            await committed(peer, "one")
            peer.mirror.snapshot()
            seen = peer.mirror.others_revision
            theirs = await committed(other, "theirs")
            if late:
                await peer.mirror.reached(theirs)
            peer.mirror.offer(Offered(revision=theirs, others=seen, assignments=NOTHING))
            await peer.mirror.reached(theirs)
            assert names(peer.mirror.snapshot()) == {"one", "theirs"}

    in_virtual_time(main)


def test_an_older_table_is_not_taken_over() -> None:
    """The answer of the first of two commits may be heard of after the second is shown."""

    async def main() -> None:
        async with peers() as (_, [peer]):
            first = await committed(peer, "one")
            await committed(peer, "two")
            others = peer.mirror.others_revision
            peer.mirror.offer(Offered(revision=first, others=others, assignments=NOTHING))
            assert names(peer.mirror.snapshot()) == {"one", "two"}

    in_virtual_time(main)


def test_an_offer_waits_until_it_is_shown() -> None:
    """What is offered before the mirror has it is not shown before the mirror has it."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            await committed(peer, "one")
            before = peer.mirror.snapshot()
            offered = Offered(
                revision=before.revision + 10, others=before.revision, assignments=NOTHING
            )
            peer.mirror.offer(offered)
            etcd.txn((), [Put(keys.event(peer.node, 0), b"{}")])
            await peer.mirror.reached(before.revision + 1)
            assert peer.mirror.snapshot().assignments is before.assignments

    in_virtual_time(main)


def test_a_batch_knows_when_another_like_the_last_is_too_much() -> None:
    """It is full before it is too large, and not long before."""

    async def main() -> None:
        async with peers(memory_bytes=10_000 * 2**30) as (_, [peer]):
            batch = Batch(peer.mirror.snapshot(), "c" * 16, compares_max=7000)
            number = 0
            while not batch.is_full:
                plan = creation(job(f"j{number}"), "n1")
                assert batch.takes(plan)
                batch.add(plan)
                number += 1
            assert number > 100
            assert batch.reach.size_bytes(batch.reach) > BYTES_MAX

    in_virtual_time(main)


def test_what_was_laid_beneath_stays_there_though_nothing_was_decided_on_it() -> None:
    """Who decides next does not go on from a batch of before, which lacks what others wrote."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (_, [peer, other]):
            chain = Chain(peer.mirror, SimClock(asyncio.get_running_loop()))
            batch = chain.next_batch("first", COMPARES_ANYWHERE)
            batch.add(creation(job("ours"), "n1"))
            chain.add(batch)
            chain.broken()  # of late: what others do is looked at before every batch
            chain.links.append(batch)
            await peer.mirror.reached(await committed(other, "theirs"))
            nothing, another = (chain.next_batch("next", COMPARES_ANYWHERE) for _ in range(2))
            assert names(nothing.before) == names(another.before) == {"ours", "theirs"}
            assert another.others == peer.mirror.others_revision

    in_virtual_time(main)
