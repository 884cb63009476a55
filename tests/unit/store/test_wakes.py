"""Who is woken by what: loops by the cluster's changes, readers of the log by everything."""

import asyncio

from ozymandias.ports import Put
from ozymandias.store import keys
from tests.unit.store.rig import creation, in_virtual_time, job, peers


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
