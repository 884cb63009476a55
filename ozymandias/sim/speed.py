"""How fast a simulation is: five nodes, fifty instances, one processor (`--speed`).

A cluster of the size that the goal figure is about lives for some minutes: every instance is
probed, all is written and checked as in any other life, and every half minute something happens: a
change, a restart, a killed daemon, a lease lost, a power cut. Printed is virtual time by processor
time, so what else the machine does changes little.
"""

import asyncio
import time
from dataclasses import dataclass

from ozymandias.model.node import NodeName
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.search import spare_garbage
from ozymandias.sim.world import Settings, World
from ozymandias.store.keys import job_key

NODES = 5
JOBS = 10
INSTANCES = 5  # of each job
LIFE_SECONDS = 600.0
EVERY_SECONDS = 30.0
REST_SECONDS = 120.0  # in which all must be healthy again


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    virtual_seconds: float
    busy_seconds: float
    revisions: int
    violations: tuple[str, ...]

    def __str__(self) -> str:
        ratio = self.virtual_seconds / max(self.busy_seconds, 1e-9)
        bad = f"; violated: {', '.join(self.violations)}" if self.violations else ""
        return (
            f"{NODES} nodes, {JOBS * INSTANCES} instances: {self.virtual_seconds:.0f} s of cluster"
            f" time in {self.busy_seconds:.1f} s of processor time ({ratio:.0f} x per core),"
            f" {self.revisions} revisions{bad}"
        )


def measure(life_seconds: float = LIFE_SECONDS) -> Speed:
    spare_garbage()
    before = time.process_time()
    loop = VirtualLoop(1)
    world = loop.run(_live(life_seconds))
    return Speed(
        virtual_seconds=loop.time(),
        busy_seconds=time.process_time() - before,
        revisions=world.etcd.revision,
        violations=tuple(str(violation) for violation in world.violations),
    )


async def _live(life_seconds: float) -> World:
    world = World(1, Settings(nodes=NODES))
    async with world.running():
        await world.until(lambda: len(world.ready()) == NODES, REST_SECONDS, "all have a session")
        for number in range(JOBS):
            await world.operations().submit(_job_file(number, 1))
        await _rest(world)
        for number in range(int(life_seconds / EVERY_SECONDS)):
            due = world.loop.time() + EVERY_SECONDS
            await _happen(world, number)
            await asyncio.sleep(max(0.0, due - world.loop.time()))
        await _rest(world)
    return world


async def _happen(world: World, number: int) -> None:
    name = NodeName(f"n{number % NODES + 1}")
    job = job_key("default", f"job-{number % JOBS}")
    match number % 5:
        case 0:
            await world.operations().submit(_job_file(number % JOBS, number))
        case 1:
            await world.kill(name)
            world.start(name)
        case 2:
            await world.operations().restart(job)
        case 3:
            world.lose_lease(name)
        case 4:
            await world.power_cut(name)
            await asyncio.sleep(EVERY_SECONDS / 2)
            world.boot(name)


async def _rest(world: World) -> None:
    await world.until(
        lambda: len(world.healthy()) == JOBS * INSTANCES, REST_SECONDS, "all are healthy"
    )


def _job_file(number: int, mark: int) -> bytes:
    return (
        f"name: job-{number}\nnumInstances: {INSTANCES}\ncontainers:\n  app:\n    image: image\n"
        f"    memory: 64M\n    ports: ['80:8000']\n    environment: {{MARK: '{mark}'}}\n"
        f"    healthcheck: {{type: http, port: 8000, interval: 10}}\n"
    ).encode()
