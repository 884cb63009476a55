"""Pods that a returning node still runs though they were moved, stopped, or forgotten."""

from ozymandias.model.node import Ledger, NodeName
from ozymandias.sim.world import GIB, World
from ozymandias.store import codec, keys
from tests.simulation.test_stories import WEB, all_joined, healthy, job_file, tell


def test_a_pod_of_a_job_that_is_gone_holds_its_room_until_it_is_stopped() -> None:
    """The job is stopped while its node is cut off; on return its memory is counted as held."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=1, memory="3G"))
        await healthy(world, 1)
        (node,) = world.assigned().values()
        world.partition(node)
        await world.until(lambda: node not in world.assigned().values(), 30, "loss noticed")
        others = [m for m in world.machines.values() if m.name != node and m.daemon]
        await others[0].daemon.operations.stop(WEB)  # type: ignore[union-attr]
        await world.until(
            lambda: not any(b"/jobs/" in key for key in world.etcd.snapshot_kvs()), 30, "job gone"
        )
        held: list[int] = []
        world.etcd.on_commit.append(lambda *_: held.append(held_by(world, node)))
        world.heal(node)
        await world.until(lambda: all_joined(world), 30, "joined again")
        await world.until(lambda: not world.machines[node].host.pods, 30, "stopped")
        await world.until(lambda: held_by(world, node) == 0, 10, "released")
        assert max(held) == 3 * GIB

    tell(story)


def held_by(world: World, node: NodeName) -> int:
    record = world.etcd.snapshot_kvs()[keys.ledger(node)]
    return codec.decode(Ledger, record.value).held.resources.memory_bytes
