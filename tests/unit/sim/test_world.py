"""The simulated world, where it was wrong before."""

import asyncio

from ozymandias.model.node import NodeName
from ozymandias.problems import NODE_NAME_TAKEN, ProblemError
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.world import Machine, Settings, World

N1 = NodeName("n1")


class Contested(World):
    """A daemon that ends of its own accord while its name is taken."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, Settings(nodes=1))
        self.name_is_taken = asyncio.Event()

    async def _run_daemon(self, machine: Machine) -> None:
        machine.starts += 1
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._notice())

    async def _notice(self) -> None:
        await self.name_is_taken.wait()
        raise ProblemError(NODE_NAME_TAKEN("Another daemon has taken over the name n1."))


def test_a_daemon_killed_as_it_ends_of_its_own_accord_is_not_started_again() -> None:
    """Whichever comes first at that instant, which the seed says (seed 604984)."""

    async def run(seed: int) -> int:
        world = Contested(seed)
        async with world.running():
            await asyncio.sleep(1)
            world.name_is_taken.set()
            async with asyncio.timeout(60):
                await world.kill(N1)
            return world.machines[N1].starts

    for seed in range(8):
        assert VirtualLoop(seed).run(run(seed)) == 1


def test_a_daemon_that_ends_of_its_own_accord_is_started_again() -> None:
    """As a service manager does, for as long as nobody wants it to end."""

    async def run() -> int:
        world = Contested(1)
        async with world.running():
            await asyncio.sleep(1)
            world.name_is_taken.set()
            await asyncio.sleep(3)
            return world.machines[N1].starts

    assert VirtualLoop(1).run(run()) > 2
