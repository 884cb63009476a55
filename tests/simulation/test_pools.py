"""Stories of pools: their sources are asked as often as the file says that is true now."""

import asyncio

from ozymandias.sim.pools import Queue
from ozymandias.sim.world import World
from ozymandias.store.keys import job_key
from tests.simulation.test_stories import tell

POOL = job_key("default", "agents")


def pool_file(every: str, most: int = 3, path: str = "jobs.waiting") -> bytes:
    return (
        f"name: agents\ncontainers: {{app: {{image: image, memory: 128M, stop_grace_period: 2}}}}\n"
        f"autoscale: {{min: 0, max: {most}, every: {every},"
        f" pending: {{url: http://queues/agents, path: {path}}}}}\n"
    ).encode()


def wanted(world: World) -> int:
    return world.truth.heads[POOL].wanted


def test_a_source_is_asked_as_often_as_the_file_says_now() -> None:
    """Once a day, and then every two seconds: the day is not waited for."""

    async def story(world: World) -> None:
        world.queues["agents"] = Queue(pending=5)
        await world.operations().submit(pool_file("24h"))
        await world.until(lambda: wanted(world) == 1, 10, "asked at once")
        await asyncio.sleep(60)
        assert wanted(world) == 1
        await world.operations().submit(pool_file("2s"))
        await world.until(lambda: wanted(world) == 3, 20, "asked every two seconds")

    tell(story)


def test_a_plan_tells_the_number_that_the_pool_has() -> None:
    """What the file begins with is over; a submit says the same."""

    async def story(world: World) -> None:
        world.queues["agents"] = Queue(pending=5)
        await world.operations().submit(pool_file("2s"))
        await world.until(lambda: wanted(world) == 3, 20, "it has its most")
        changed = pool_file("2s", most=5)
        planned = await world.operations().plan(changed)
        submitted = await world.operations().submit(changed)
        assert (planned["wanted"], submitted["wanted"]) == (3, 3)

    tell(story)


def test_an_idle_pool_writes_nothing() -> None:
    """Nothing is pending, or its source fails as it did: nothing is news, for an hour."""

    async def story(world: World) -> None:
        queue = world.queues["agents"] = Queue()
        await world.operations().submit(pool_file("5s"))
        for mode in ("honest", "fails"):
            queue.mode = mode
            await asyncio.sleep(30)
            before = world.truth.heads[POOL].commit
            await asyncio.sleep(3600)
            assert world.truth.heads[POOL].commit == before

    tell(story)
