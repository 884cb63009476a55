"""Stories of operators: drains, cancelled and cut short, and system jobs that follow the nodes."""

import asyncio

import pytest

from ozymandias.model.instance import SlotState
from ozymandias.model.node import NodeName
from ozymandias.problems import ProblemError
from ozymandias.sim.world import World
from tests.simulation.test_stories import all_joined, healthy, job_file, starts, tell

N1, N2, N3 = (NodeName(f"n{number}") for number in (1, 2, 3))
AGENT = b"""
name: agent
type: system
containers:
  app:
    image: image
    memory: 64M
    ports: ['80:8000']
    stop_grace_period: 2
    healthcheck: {type: http, port: 8000, interval: 2}
"""


def on(world: World, node: NodeName) -> int:
    return sum(1 for a in world.truth.assigned() if a.node == node)


async def empty(world: World, node: NodeName, within: float = 60) -> None:
    await world.until(lambda: on(world, node) == 0, within, f"{node} is empty")


async def watch_healthy(world: World, least: int) -> None:
    """At every moment so many instances of web have a name, which is where traffic goes."""
    while True:
        named = [k for k in world.etcd.snapshot_kvs() if k.startswith(b"/skydns/")]
        assert sum(b"/web/" in key and b"_tcp" not in key for key in named) >= least
        await asyncio.sleep(0.05)


def test_a_drained_node_is_emptied_without_a_gap() -> None:
    """Six instances, two of them on the node: six names stand at every moment."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=6, memory="512M"))
        await healthy(world, 6)
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(watch_healthy(world, 6))
            await world.operations().upkeep.drain(N2)
            await empty(world, N2)
            watch.cancel()
        await healthy(world, 6)
        before = starts(world)
        await asyncio.sleep(60)
        assert starts(world) == before  # and then it rests

    tell(story)


def test_a_drain_without_room_is_refused_and_stops_nothing() -> None:
    """The problem has the numbers; forced, it moves what can be moved."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=3, memory="3G"))
        await healthy(world, 3)
        with pytest.raises(ProblemError) as caught:
            await world.operations().upkeep.drain(N1)
        problem = caught.value.problem
        assert problem.kind.slug == "drain-blocked"
        assert "needs 3G of memory; n2 is 2G of memory short (1G free)" in problem.detail
        await asyncio.sleep(20)
        assert len(world.healthy()) == 3
        await world.operations().upkeep.drain(N1, force=True, deadline_seconds=20.0)
        await asyncio.sleep(15)
        assert on(world, N1) == 1
        await empty(world, N1, 20)
        await healthy(world, 2)

    tell(story)


def test_a_drain_is_cancelled_and_resumed() -> None:
    """Cancelled as soon as it began, all is as wanted; asked for again, it goes on to the end."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=6, memory="512M"))
        await healthy(world, 6)
        await world.operations().upkeep.drain(N3)
        await asyncio.sleep(1)
        await world.operations().upkeep.undrain(N3)
        await asyncio.sleep(30)
        assert len(world.assigned()) == 6
        await healthy(world, 6)
        await world.operations().upkeep.drain(N3)
        await empty(world, N3)
        await healthy(world, 6)

    tell(story)


def test_a_drain_goes_on_when_every_daemon_was_killed() -> None:
    """It is written in the ledger, not in anybody's memory."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=6, memory="512M"))
        await healthy(world, 6)
        await world.operations().upkeep.drain(N2)
        for name in tuple(world.machines):
            await world.kill(name)
        await asyncio.sleep(1)
        for name in tuple(world.machines):
            world.start(name)
        await world.until(lambda: all_joined(world), 30, "joined again")
        await empty(world, N2)
        await healthy(world, 6)

    tell(story)


def test_a_node_lost_during_its_drain_stays_drained() -> None:
    """What it had runs elsewhere in time; back again, it takes no work until it is undrained."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=6, memory="512M"))
        await healthy(world, 6)
        await world.operations().upkeep.drain(N2)
        await asyncio.sleep(0.5)
        await world.power_cut(N2)
        await world.until(lambda: on(world, N2) == 0 and len(world.healthy()) == 6, 60, "moved")
        world.boot(N2)
        await world.until(lambda: all_joined(world), 30, "joined again")
        await world.operations().upkeep.label(N2, {"role": "infra"}, [])
        await world.operations().scale(next(iter(world.truth.heads)), 8)
        await healthy(world, 8)
        assert on(world, N2) == 0
        world.lose_lease(N2)
        await asyncio.sleep(10)
        ledger = world.truth.ledgers[N2]
        assert ledger.drain and ledger.set_labels == {"role": "infra"}
        await world.operations().upkeep.undrain(N2)
        await world.operations().scale(next(iter(world.truth.heads)), 9)
        await healthy(world, 9)
        assert on(world, N2) == 1

    tell(story)


def test_a_system_job_comes_to_a_joining_node_and_leaves_a_drained_one_last() -> None:
    """Three nodes, then four; on the drained one it is stopped after everything else."""

    async def story(world: World) -> None:
        await world.operations().submit(AGENT)
        await world.operations().submit(job_file(count=3, memory="512M"))
        await healthy(world, 6)
        joined = NodeName("n4")
        world.machines[joined] = world.make_machine(joined, joined, 4)
        world.start(joined)
        await healthy(world, 7)
        assert on(world, joined) == 1
        await world.operations().upkeep.drain(N1)

        def states() -> dict[str, SlotState]:
            return {a.job.name: a.state for a in world.truth.assigned() if a.node == N1}

        await world.until(lambda: "web" not in states(), 60, "web has left n1")
        assert "agent" in states()
        await empty(world, N1)
        await healthy(world, 6)
        await world.operations().upkeep.undrain(N1)
        await healthy(world, 7)

    tell(story)


def test_a_system_job_changes_node_by_node() -> None:
    """Two of three are healthy at every moment, and no node ever has two."""

    async def story(world: World) -> None:
        await world.operations().submit(AGENT)
        await healthy(world, 3)
        await world.operations().submit(AGENT.replace(b"64M", b"128M"))

        def versions() -> list[int]:
            return [a.version for a in world.truth.assigned() if a.state is SlotState.RUNNING]

        while versions() != [2, 2, 2] or len(world.healthy()) < 3:
            live = [a for a in world.truth.assigned() if a.state is not SlotState.STOPPING]
            assert len({a.node for a in live}) == len(live) == 3
            assert len(world.healthy()) >= 2
            assert world.loop.time() < 120
            await asyncio.sleep(0.1)
        for machine in world.machines.values():
            assert len(machine.host.running()) == 1

    tell(story)
