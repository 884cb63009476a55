"""Which jobs have changed for this node: each change is told once, and others' are not."""

import asyncio

from ozymandias.daemon.own_jobs import OwnJobs
from ozymandias.model.instance import SlotState
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.ports import Listing, Put
from ozymandias.store import keys
from tests.unit.daemon.one_node import NODE, WEB, OneNode, on_one_node


def test_a_change_is_told_once() -> None:
    """A new job, a larger one, a stopped one: each is taken, and then there is nothing."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        daemon = node.world.machines[NODE].daemon
        assert daemon is not None
        own, others = OwnJobs(NODE, daemon.mirror), OwnJobs(NodeName("n2"), daemon.mirror)
        assert own.has_changed()
        assert (own.take(), own.take()) == ({WEB}, set())
        await node.operations.scale(WEB, 2)
        assert (own.take(), own.take(), own.restless()) == ({WEB}, set(), [])
        await asyncio.sleep(10.0)  # statuses and events are written, which are no assignments
        assert not own.has_changed()
        await node.operations.stop(WEB)
        assert own.is_restless
        assert {a.state for a in own.restless()} == {SlotState.STOPPING}
        await node.until(lambda: not node.host.pods)
        await asyncio.sleep(1.0)
        assert (own.take(), own.is_restless, own.restless()) == ({WEB}, False, [])
        assert not others.has_changed()

    on_one_node(scenario)


def test_what_was_missed_is_told_after_a_new_listing() -> None:
    """A job that vanished while the watch was broken is among the changed ones."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        daemon = node.world.machines[NODE].daemon
        assert daemon is not None
        own = OwnJobs(NODE, daemon.mirror)
        own.take()
        found = node.world.etcd.select(keys.ROOT, keys.prefix_end(keys.ROOT))
        listing = Listing(kvs=found, revision=node.world.etcd.revision)
        gone = keys.assignment(NODE, WEB)
        daemon.mirror._restart(listing)
        assert own.take() == set()  # the same again is no change
        kept = tuple(kv for kv in listing.kvs if kv.key != gone)
        daemon.mirror._restart(replace(listing, kvs=kept))
        assert own.take() == {WEB}
        daemon.mirror._restart(listing)
        assert own.take() == {WEB}

    on_one_node(scenario)


def test_a_version_that_can_be_read_again_is_a_change() -> None:
    """The pod of an assignment depends on its version's record, so that counts too."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        daemon = node.world.machines[NODE].daemon
        assert daemon is not None
        own = OwnJobs(NODE, daemon.mirror)
        own.take()
        key = keys.version(WEB, 1)
        record = node.world.etcd.get(key)
        assert record is not None
        node.world.etcd.txn((), (Put(key, b"{"),))
        await node.until(own.has_changed)
        own.take()
        node.world.etcd.txn((), (Put(key, record.value),))
        await node.until(own.has_changed)
        await node.until(node.is_healthy)
        node.world.violations.clear()  # of our own making

    on_one_node(scenario)
