"""Parts of something that takes several transactions: one after the other, without a pause."""

import asyncio

from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Put
from ozymandias.sim.clock import SimClock
from ozymandias.sim.invariants import check_schedule
from ozymandias.sim.store import Cut
from ozymandias.store import keys
from ozymandias.store.batch import COMPARES_ANYWHERE
from ozymandias.store.chain import Chain
from ozymandias.store.commit import Committed, Decide
from tests.unit.store.rig import GIB, creation, in_virtual_time, job, peers


def noted(decided: list[str], name: str) -> Decide:
    def decide(snapshot: Snapshot) -> Plan:
        decided.append(name)
        return creation(job(name), "n1")

    return decide


def test_every_part_is_a_transaction_and_is_decided_once() -> None:
    """None is tried beside another, and none is thrown away for an answer that takes its time."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            peer.store.faults.latency = (0.5, 0.5)
            decided: list[str] = []
            outcomes = await asyncio.gather(
                *(peer.committer.commit(noted(decided, name), is_part=True) for name in "abcd")
            )
            revisions = sorted(o.revision for o in outcomes if isinstance(o, Committed))
            assert revisions == list(range(revisions[0], revisions[0] + 4))
            assert sorted(decided) == [*"abcd"]
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_a_part_that_waited_while_a_node_came_is_decided_again() -> None:
    """Who is there is not all compared: a part may wait long only while nobody comes or goes."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            decided: list[str] = []
            peer.store.partition(Cut.REQUESTS)
            async with asyncio.TaskGroup() as group:
                for name in "ab":
                    part = peer.committer.commit(noted(decided, name), is_part=True)
                    group.create_task(part)
                    await asyncio.sleep(0.01)
                await asyncio.sleep(5.0)
                assert decided == [*"ab"]
                presence = etcd.get(keys.node(peer.node))
                assert presence is not None
                etcd.txn((), [Put(keys.node(peer.node), presence.value, presence.lease)])
                await peer.mirror.reached(etcd.revision)
                peer.store.heal()
            assert decided == [*"abb"]
            assert {key.name for key in peer.mirror.snapshot().jobs} == {"a", "b"}

    in_virtual_time(main)


def test_what_the_mirror_shows_is_let_go_of() -> None:
    """A batch and all it holds is kept until the mirror shows it, and no longer."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            chain = Chain(peer.mirror, SimClock(asyncio.get_running_loop()))
            batch = chain.next_batch("commit", COMPARES_ANYWHERE)
            batch.add(creation(job(), "n1"))
            chain.add(batch)
            for revision in (0, etcd.revision + 1):  # on its way, and not shown yet
                batch.revision = revision
                chain.let_go()
                assert chain.links == [batch]
            batch.revision = etcd.revision
            chain.let_go()
            assert chain.links == []
            assert chain.next_batch("next", COMPARES_ANYWHERE).before is peer.mirror.snapshot()

    in_virtual_time(main)
