"""The stories of the documentation as transcripts that anybody can read.

Each file under `scenarios/` is what a cluster in virtual time does when the story is told to it:
what users ask, what breaks, which revision of the store changes what, what happens to pods. After
a change of the product record them again with `OZY_RECORD=1`, and commit a changed line only when
it is understood.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ozymandias.model.node import NodeName
from ozymandias.problems import ProblemError
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.trace import FAULT, HEAL, USER, Entry
from ozymandias.sim.world import Settings, World
from ozymandias.store.keys import job_key

HERE = Path(__file__).parent / "scenarios"
WEB = job_key("default", "web")
N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")


def job_file(count: int = 3, memory: str = "1G") -> bytes:
    return (
        f"name: web\nnumInstances: {count}\ncontainers:\n  app:\n    image: image\n"
        f"    memory: {memory}\n    ports: ['80:8000']\n    stop_grace_period: 2\n"
        "    healthcheck: {type: http, port: 8000, interval: 2}\n"
    ).encode()


async def submit(world: World, count: int = 3, memory: str = "1G", healthy: int = 3) -> None:
    world.say(f"submit web: {count} of {memory}", "users", USER)
    try:
        await world.operations().submit(job_file(count, memory))
    except ProblemError as error:
        world.say(f"refused: {error.problem.detail}", "users", USER)
        return
    await settle(world, healthy)


async def settle(world: World, healthy: int, within: float = 120) -> None:
    await world.until(lambda: len(world.healthy()) == healthy, within, f"{healthy} healthy")
    await asyncio.sleep(5)


async def a_job_is_submitted(world: World) -> None:
    await submit(world)


async def a_job_changes(world: World) -> None:
    await submit(world, memory="256M")
    await submit(world, memory="512M")
    await asyncio.sleep(20)


async def a_job_is_scaled_down_and_stopped(world: World) -> None:
    await submit(world)
    world.say("scale web to 1", "users", USER)
    await world.operations().scale(WEB, 1)
    await settle(world, 1)
    world.say("stop web", "users", USER)
    await world.operations().stop(WEB)
    await settle(world, 0)


async def a_node_is_lost(world: World) -> None:
    await submit(world)
    await world.power_cut(N2)
    await asyncio.sleep(20)
    await settle(world, 3)
    world.boot(N2)
    await asyncio.sleep(20)


async def a_node_is_cut_off(world: World) -> None:
    await submit(world)
    world.partition(N3)
    await asyncio.sleep(30)
    world.heal(N3)
    await asyncio.sleep(20)


async def a_node_is_cut_off_and_nobody_has_room(world: World) -> None:
    await submit(world, memory="3G")
    world.partition(N3)
    await asyncio.sleep(30)
    world.heal(N3)
    await asyncio.sleep(20)


async def etcd_is_away(world: World) -> None:
    await submit(world)
    world.say("quorum lost", "etcd", FAULT)
    world.etcd.pause()
    await asyncio.sleep(60)
    world.say("quorum again", "etcd", HEAL)
    world.etcd.resume()
    await asyncio.sleep(30)


async def all_power_is_cut(world: World) -> None:
    await submit(world)
    for name in (N1, N2, N3):
        await world.power_cut(name)
    await asyncio.sleep(20)
    for seconds, name in ((0, N1), (5, N3), (20, N2)):
        await asyncio.sleep(seconds)
        world.boot(name)
    await settle(world, 3)


async def a_daemon_is_killed(world: World) -> None:
    await submit(world)
    await world.kill(N1)
    await asyncio.sleep(2)
    world.start(N1)
    await asyncio.sleep(20)


async def a_job_does_not_fit(world: World) -> None:
    await submit(world, count=3, memory="3G")
    await submit(world, count=4, memory="3G")
    await world.power_cut(N1)
    await asyncio.sleep(30)
    world.boot(N1)
    await asyncio.sleep(10)


SCENARIOS: list[Callable[[World], Awaitable[None]]] = [
    a_job_is_submitted,
    a_job_changes,
    a_job_is_scaled_down_and_stopped,
    a_node_is_lost,
    a_node_is_cut_off,
    a_node_is_cut_off_and_nobody_has_room,
    etcd_is_away,
    all_power_is_cut,
    a_daemon_is_killed,
    a_job_does_not_fit,
]


def line(entry: Entry) -> str:
    """Without what is drawn at random: uids of jobs."""
    text = re.sub(r"-[0-9a-f]{8}\b", "", entry.text).replace("internal/ozy/", "")
    return f"{entry.time:8.2f}  {entry.lane:6} {text}".rstrip()


def transcript(scenario: Callable[[World], Awaitable[None]]) -> str:
    async def run() -> World:
        world = World(1, Settings())
        async with world.running():
            await world.until(lambda: len(world.ready()) == 3, 30, "all nodes have a session")
            await scenario(world)
            lines = [line(entry) for entry in world.trace.story()]
        world.say("\n".join(lines), "transcript")
        return world

    world = VirtualLoop(1).run(run())
    assert not world.violations, "\n".join(map(str, world.violations))
    whole = next(e.text for e in world.trace.entries() if e.lane == "transcript")
    return f"{scenario.__name__.replace('_', ' ').capitalize()}.\n\n{whole}\n"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_story_goes_as_it_was_told(scenario: Callable[[World], Awaitable[None]]) -> None:
    """What happens now is what the transcript says, line by line."""
    file = HERE / f"{scenario.__name__}.txt"
    told = transcript(scenario)
    if os.environ.get("OZY_RECORD"):
        file.write_text(told)
    assert told == file.read_text(), f"{file.name} differs; OZY_RECORD=1 records it again"
