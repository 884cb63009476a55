"""Pods that a returning node still runs though they were moved, stopped, or forgotten."""

from ozymandias.model.instance import SlotState
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


def test_what_another_machine_was_given_under_a_nodes_name_waits_for_its_old_pod() -> None:
    """They have the same host port: on the machine that returns it starts when the old pod ends."""

    def on_port(name: str) -> bytes:
        text = job_file(count=1).decode().replace("name: web", f"name: {name}")
        return text.replace("'80:8000'", "{host: 8080, container: 9000}").encode()

    async def story(world: World) -> None:
        await world.operations().submit(on_port("web"))
        await healthy(world, 1)
        (name,) = world.assigned().values()
        old, other = world.machines[name], world.make_machine(name, f"{name}'", 90)
        world.partition(name)
        world.lose_lease(name)
        world.start_machine(other)
        await world.until(lambda: bool(other.host.running()), 30, "the other machine runs it")
        assert other.daemon is not None
        await other.daemon.operations.stop(WEB)
        await world.until(lambda: not other.host.running(), 30, "stopped")
        await other.daemon.operations.submit(on_port("api"))
        await world.until(lambda: bool(other.host.running()), 30, "its port is the next one's")
        await world.cut_machine(other)
        world.heal(name)
        await world.until(lambda: bool(world.assigned(SlotState.WAITING)), 30, "it waits")
        assert [pod.job for pod in old.host.running()] == ["web"]
        await world.until(lambda: [p.job for p in old.host.running()] == ["api"], 30, "handed over")
        await healthy(world, 1)

    tell(story, nodes=1)
