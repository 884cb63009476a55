"""Who is woken by what: loops by the cluster's changes, readers of the log by everything."""

import asyncio

from ozymandias.model.node import NodeName
from ozymandias.ports import Put
from ozymandias.store import keys
from ozymandias.store.mirror import PAUSE_SECONDS, PAUSE_SECONDS_MAX, Mirror
from tests.unit.store.rig import creation, in_virtual_time, job, peers, web


def test_the_log_of_events_wakes_only_who_reads_it() -> None:
    """A revision of the log alone leaves the loops asleep; the next change of a job does not."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            mirror = peer.mirror
            revision = mirror.revision
            told = asyncio.ensure_future(mirror.told(revision))
            changed = asyncio.ensure_future(mirror.changed(revision))
            record = b'{"number":0,"time":1.0,"node":"n1","kind":"test","reason":""}'
            etcd.txn((), [Put(keys.event(peer.node, 0), record)])
            await told
            await mirror.reached(revision + 1)
            assert not changed.done()
            assert [event.kind for event in mirror.events()] == ["test"]
            assert mirror.snapshot().revision == revision + 1
            await peer.committer.commit(lambda s: creation(job(), "n1"))
            assert await changed > revision + 1

    in_virtual_time(main)


def test_a_lost_node_wakes_the_loops_of_a_large_cluster_at_once() -> None:
    """Other changes are looked at now and then only, and nobody waits for that when one is lost."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with peers(["n1", "n2"]) as (etcd, [peer, other]):
            mirror = Mirror(peer.store, patient=True)
            following = asyncio.create_task(mirror.run())
            many = [Put(keys.assignment(NodeName(f"m{n}"), web()), b"[]") for n in range(2000)]
            for first in range(0, len(many), 100):
                etcd.txn((), many[first : first + 100])
            revision = etcd.revision
            await mirror.reached(revision)
            mirror.snapshot()  # its size is what the pause goes by
            await mirror.changed(mirror.revision - 1)
            await asyncio.sleep(PAUSE_SECONDS_MAX)
            etcd.txn((), [Put(keys.assignment(NodeName("m0"), web()), b"[ ]")])
            woken = await mirror.changed(revision)  # the first after a quiet moment
            began = loop.time()
            etcd.txn((), [Put(keys.assignment(NodeName("m1"), web()), b"[ ]")])
            await mirror.reached(woken + 1)
            assert mirror.snapshot().nodes[NodeName("n2")].presence is not None
            await peer.store.revoke(other.lease)
            await mirror.changed(woken)
            assert mirror.snapshot().nodes[NodeName("n2")].presence is None
            assert loop.time() - began <= 2 * PAUSE_SECONDS
            following.cancel()

    in_virtual_time(main)
