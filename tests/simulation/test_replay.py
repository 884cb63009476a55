"""Random lives again, exported at random moments: the same scheduler makes the same plan of a file.

What is exported is what some daemon sees just then: nodes that are half gone, jobs that are half
rolled out, records that can't be read. Each file is read by another process, with other hashes.
"""

import asyncio
import json
import os
import random
import subprocess
import sys

import pytest

from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.scenario import LIFE_SECONDS_MAX, Life
from ozymandias.sim.schedule import draw
from ozymandias.sim.search import be_quiet
from ozymandias.sim.world import Settings, World
from ozymandias.store.replay import canonical, load, plan_of

SEEDS = range(1, 13)
LOOK_SECONDS = 0.03  # of the cluster's time, at most from one look to the next
KINDS_MIN = 3  # of what there was to do
MOMENTS_MIN = 50  # with something to do

# One line in, one line out: a file, and the plan that this process makes of it.
AGAIN = """
import sys
from ozymandias.store.replay import canonical, load, replayed
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(canonical(replayed(load(line))))
"""


async def watch(world: World, dice: random.Random, files: list[bytes]) -> None:
    """By any daemon that sees the whole cluster, soon after a change: then there is work to do."""
    seen = 0
    while True:
        await asyncio.sleep(dice.uniform(0.0, LOOK_SECONDS))
        if world.etcd.revision == seen:
            continue
        seen = world.etcd.revision
        seeing = [d for d in world.ready() if d.mirror.is_ready and not d.own_part]
        if seeing:
            daemon = dice.choice(seeing)
            snapshot = daemon.mirror.snapshot()  # others go on while the file is made of it
            files.append(await daemon.operations.explaining.replay(with_environment=True))
            # What a file tells is what the daemon itself would do.
            found = load(files[-1])
            plan = plan_of(snapshot, found.wall, found.moment)
            assert found.plan == json.loads(canonical(plan))


async def life(seed: int, files: list[bytes]) -> None:
    schedule = draw(seed)
    options = schedule.options
    world = World(seed, Settings(nodes=options.nodes, schedulers=options.schedulers))
    async with world.running(), asyncio.TaskGroup() as group:
        watching = group.create_task(watch(world, random.Random(f"moments {seed}"), files))
        await Life(world, schedule).live()
        watching.cancel()


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    be_quiet()
    found: list[bytes] = []
    for seed in SEEDS:
        loop = VirtualLoop(seed)
        loop.seconds_max = LIFE_SECONDS_MAX
        loop.run(life(seed, found))
    return found


@pytest.mark.parametrize("hash_seed", ["1", "random"])
def test_a_file_of_any_moment_is_replayed_byte_for_byte(files: list[bytes], hash_seed: str) -> None:
    """Of lives in which everything breaks, as many moments as there were."""
    again = subprocess.run(
        [sys.executable, "-c", AGAIN],
        input=b"".join(files),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
    )
    assert again.stdout == b"".join(canonical(load(data).plan) for data in files)


def test_there_was_something_to_do_at_many_moments(files: list[bytes]) -> None:
    """Where nothing is ever planned, the same plan says nothing."""
    busy = [plan["what"].split()[0] for data in files if (plan := load(data).plan)]
    assert len(busy) >= MOMENTS_MIN
    assert len(set(busy)) >= KINDS_MIN, set(busy)
