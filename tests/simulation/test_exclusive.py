"""Stories of jobs that must never run twice, told in virtual time; S4 watches over every start."""

import asyncio

from ozymandias.core.loss import fence_seconds
from ozymandias.model.node import NodeName
from ozymandias.sim.world import Machine, World
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


# Another machine under a node's name ------------------------------------------------------------


def replaced(world: World, name: NodeName) -> Machine:
    """The node is cut off and its lease gone at once; another machine starts under its name."""
    world.partition(name)
    world.lose_lease(name)
    other = world.make_machine(name, f"{name}'", 90)
    world.start_machine(other)
    return other


def why_not(machine: Machine) -> str:
    """What a machine's daemon waits for; "" if it has a session."""
    assert machine.daemon is not None
    membership = machine.daemon.membership
    return "" if membership.valid() else membership.waiting_for


def test_another_machine_waits_before_it_takes_a_name_over() -> None:
    """Nothing runs twice though nobody else is there to wait; it says why, and then runs it."""

    async def story(world: World) -> None:
        await world.operations().submit(EXCLUSIVE)
        await healthy(world, 1)
        old, began = home(world), world.loop.time()
        other = replaced(world, old)
        await asyncio.sleep(2)
        assert running(world) == [old], "its guard still has time"
        assert "web, which must never run twice (7.5 s" in why_not(other)
        await world.until(lambda: bool(other.host.running()), 30, "the other machine runs it")
        waited = world.loop.time() - began
        assert not running(world)
        assert waited >= fence_seconds(world.settings.lease_ttl_seconds)

    tell(story, nodes=1)


def test_a_machine_that_returns_meanwhile_keeps_its_name() -> None:
    """The other one only waits: it has neither the name nor an instance, and nothing restarts."""

    async def story(world: World) -> None:
        await world.operations().submit(EXCLUSIVE)
        await healthy(world, 1)
        old, before = home(world), starts(world)
        other = replaced(world, old)
        await asyncio.sleep(2)
        world.heal(old)
        await asyncio.sleep(20)
        assert (running(world), starts(world)) == ([old], before)
        assert not other.host.running() and other.host.started_total == 0

    tell(story, nodes=1)


def test_a_waiting_machine_joins_when_peers_have_replaced_what_it_waits_for() -> None:
    """They have counted as long; it gets its name, and what was moved stays where it is."""

    async def story(world: World) -> None:
        await world.operations().submit(EXCLUSIVE)
        await healthy(world, 1)
        old = home(world)
        other = replaced(world, old)
        await world.until(lambda: home(world) != old, 30, "replaced")
        await world.until(lambda: not why_not(other), 30, "the other machine has joined")
        await healthy(world, 1)
        assert running(world) == [home(world)] != [old]
        assert not other.host.running()

    tell(story)


def test_what_may_run_twice_is_not_waited_for() -> None:
    """Of most jobs a lost machine is simply lost: another one takes its name at once."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(1))
        await healthy(world, 1)
        other = replaced(world, home(world))
        await world.until(lambda: bool(other.host.running()), 3, "the other machine runs it")

    tell(story, nodes=1)


def test_who_returns_after_another_machine_waits_in_turn() -> None:
    """The name is the other machine's now: when that one is lost, the first one waits for it."""

    async def story(world: World) -> None:
        await world.operations().submit(EXCLUSIVE)
        await healthy(world, 1)
        old = home(world)
        other = replaced(world, old)
        await world.until(lambda: bool(other.host.running()), 30, "the other machine runs it")
        await world.kill_machine(other)
        world.lose_lease(old)
        world.heal(old)
        await asyncio.sleep(1)
        assert other.host.running() and "must never run twice" in why_not(world.machines[old])
        await world.until(lambda: running(world) == [old], 30, "it runs where it was")
        assert not other.host.running()

    tell(story, nodes=1)
