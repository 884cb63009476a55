"""Stories of jobs that must never run twice, told in virtual time; S4 watches over every start."""

import asyncio

from ozymandias.model.node import NodeName
from ozymandias.sim.world import World
from tests.simulation.test_stories import healthy, job_file, starts, tell

EXCLUSIVE = job_file(1, extra="on_partition: stop\n")


def home(world: World) -> NodeName:
    return next(iter(world.assigned().values()))


def running(world: World) -> list[NodeName]:
    return [name for name, machine in world.machines.items() if machine.host.running()]


def test_a_cut_off_node_lets_go_before_another_takes_over() -> None:
    """It ends by the deadline; the replacement starts later; healed, the node runs nothing."""

    async def story(world: World) -> None:
        await world.operations().submit(EXCLUSIVE)
        await healthy(world, 1)
        old, ttl, began = home(world), world.settings.lease_ttl_seconds, world.loop.time()
        world.partition(old)
        await world.until(lambda: not running(world), ttl + 1, "the guard has ended it")
        ended = world.loop.time()
        await world.until(lambda: bool(running(world)), 3 * ttl, "it runs elsewhere")
        assert began + ttl >= ended - 0.5 and running(world) != [old]
        await healthy(world, 1)
        world.heal(old)
        await asyncio.sleep(20)
        assert running(world) == [home(world)] != [old]

    tell(story)


def test_a_cut_off_node_with_a_dead_daemon_lets_go_as_well() -> None:
    """The daemon is killed, nobody starts it again, and the lease is not renewed."""

    async def story(world: World) -> None:
        await world.operations().submit(EXCLUSIVE)
        await healthy(world, 1)
        old = home(world)
        await world.kill(old)
        await world.until(lambda: running(world) not in ([], [old]), 60, "it runs elsewhere")

    tell(story)


def test_a_short_cut_ends_nothing() -> None:
    """Shorter than the lease, it goes unnoticed."""

    async def story(world: World) -> None:
        await world.operations().submit(EXCLUSIVE)
        await healthy(world, 1)
        before, old = starts(world), home(world)
        world.partition(old)
        await asyncio.sleep(2)
        world.heal(old)
        await asyncio.sleep(20)
        assert (starts(world), running(world)) == (before, [old])

    tell(story)


def test_a_node_that_returns_before_the_fence_starts_it_again() -> None:
    """Its lease is gone and its guard has ended the pod, but nobody has moved it: it is its own."""

    async def story(world: World) -> None:
        await world.operations().submit(EXCLUSIVE)
        await healthy(world, 1)
        old, ttl = home(world), world.settings.lease_ttl_seconds
        world.partition(old)
        await asyncio.sleep(ttl + 2)
        assert not running(world)
        assert not world.healthy(), "it has a name no longer"
        world.heal(old)
        await healthy(world, 1)
        assert running(world) == [old] == [home(world)]

    tell(story)
