"""How nodes come, return and change what they offer."""

import asyncio

from ozymandias.model.node import Ledger, NodeName
from ozymandias.sim.world import GIB, World
from ozymandias.store import codec, keys
from tests.simulation.test_stories import all_joined, healthy, job_file, starts, tell

N1 = NodeName("n1")


def test_a_restart_with_other_settings_changes_what_the_node_offers() -> None:
    """A daemon that adopts its lease writes its new capacity, and no container restarts."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=2))
        await healthy(world, 2)
        before = starts(world)
        await world.kill(N1)
        world.settings.memory_bytes = 8 * GIB
        world.start(N1)
        await world.until(lambda: all_joined(world), 30, "joined")
        record = world.etcd.snapshot_kvs()[keys.ledger(N1)]
        assert codec.decode(Ledger, record.value).capacity.memory_bytes == 8 * GIB
        assert starts(world) == before

    tell(story, nodes=2)


def test_a_node_that_lost_its_lease_keeps_what_nobody_moved() -> None:
    """The lease is revoked early; before peers act it registers again and nothing restarts."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=1))
        await healthy(world, 1)
        before = starts(world)
        (node,) = world.assigned().values()
        world.lose_lease(node)
        await asyncio.sleep(1)
        await world.until(lambda: all_joined(world), 30, "joined")
        await healthy(world, 1)
        assert starts(world) == before

    tell(story, nodes=1)
