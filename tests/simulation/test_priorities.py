"""Stories of priorities and of hosts under pressure: who leaves, for whom, and who comes back."""

import asyncio

import pytest

from ozymandias.core.rebalance import STEADY_SECONDS
from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobKey, JobName, Namespace
from ozymandias.model.node import NodeName
from ozymandias.problems import ProblemError
from ozymandias.sim.world import World
from ozymandias.store.tokens import Right
from tests.simulation.test_stories import healthy, tell

N1, N2, N3 = (NodeName(f"n{number}") for number in (1, 2, 3))


def file(name: str, count: int, memory: str, *lines: str) -> bytes:
    text = (
        f"name: {name}\nnumInstances: {count}\ncontainers:\n  app:\n    image: image\n"
        f"    memory: {memory}\n    ports: ['80:8000']\n    stop_grace_period: 2\n"
        "    healthcheck: {type: http, port: 8000, interval: 2}\n"
    )
    return "\n".join([text, *lines, ""]).encode()


def live(world: World, name: str) -> list[NodeName]:
    key = JobKey(Namespace("default"), JobName(name))
    return sorted(world.truth.live(key).values())


def reasons(world: World, kind: str) -> list[str]:
    return [e.reason for e in world.ready()[0].mirror.events() if e.kind == kind]


def test_the_important_is_submitted_to_a_full_cluster() -> None:
    """Plan and submit say alike who leaves; the winner runs, the victim is pending and says why."""

    async def story(world: World) -> None:
        api = world.operations()
        await api.submit(file("low", 3, "3G", "priority: 100"))
        await healthy(world, 3)
        shop = file("shop", 1, "3G", "priority: platform-infrastructure")
        words = "displaced by shop (priority 9000 > 100), which fits nowhere else"
        plan = await api.plan(shop)
        assert plan["fits"] and [row["reason"] for row in plan["stop"]] == [words]
        with pytest.raises(ProblemError) as caught:
            await api.submit(file("shop", 1, "3G", "priority: 9000", "preempt: never"))
        assert caught.value.problem.kind.slug == "insufficient-memory"
        done = await api.submit(shop)
        assert done["plan"]["stop"] == plan["stop"]
        await world.until(lambda: len(live(world, "low")) == 2, 5, "one is displaced")
        await healthy(world, 3)
        assert len(live(world, "shop")) == 1
        low = JobKey(Namespace("default"), JobName("low"))
        for right, advice in (
            (Right.ADMIN, "add 1"),
            (Right.DEPLOY, "have an administrator add 1"),
        ):
            lines = (await api.why(low, right))["lines"]
            assert any(words in line for line in lines)
            assert any(f" would have a place if you {advice}" in line for line in lines)
        await api.stop(JobKey(Namespace("default"), JobName("shop")))
        await world.until(lambda: len(live(world, "low")) == 3, 30, "it comes back")
        assert any(words in reason for reason in reasons(world, "instance.stopping"))

    tell(story)


def test_a_refusal_reckons_with_those_who_wait() -> None:
    """Of plan, submit and scale alike: a node to add has room for them, who come first."""

    async def story(world: World) -> None:
        api = world.operations()
        await api.submit(file("low", 3, "3G", "priority: 100"))
        await api.submit(file("shop", 1, "3G", "priority: 9000"))
        await world.until(lambda: len(live(world, "low")) == 2, 10, "one is displaced")
        await healthy(world, 3)
        await api.submit(file("tiny", 3, "600M"))
        last, tiny = file("last", 1, "3G"), JobKey(Namespace("default"), JobName("tiny"))
        problems = [(await api.plan(last))["problem"]]
        for refused in (api.submit(last), api.scale(tiny, 9)):
            with pytest.raises(ProblemError) as caught:
                await refused
            problems.append(caught.value.problem.document())
        for problem, size in zip(problems, ("6G", "6G", "6672M"), strict=True):
            words = f"at least {size} of memory to allocate (3G for what comes first)"
            assert problem["suggestions"][-1]["text"] == f"add 1 node with {words}"
            assert words in problem["hint"]

    tell(story)


def test_after_a_loss_the_important_goes_first() -> None:
    """What was lost with its node displaces what is less important, and nothing else moves."""

    async def story(world: World) -> None:
        api = world.operations()
        await api.submit(file("low", 2, "3G", "priority: 1"))
        await api.submit(file("shop", 1, "3G", "priority: 9"))
        await healthy(world, 3)
        home = live(world, "shop")[0]
        kept = live(world, "low")
        await world.power_cut(home)
        await world.until(lambda: live(world, "shop") not in ([], [home]), 30, "it moves")
        await healthy(world, 2)
        assert len(live(world, "low")) == 1 and set(live(world, "low")) < set(kept)

    tell(story)


def test_a_host_under_pressure_takes_no_work_and_then_sheds_some() -> None:
    """Tainted, with the numbers; then the lowest leaves, start-first; in the end all is well."""

    async def story(world: World) -> None:
        api = world.operations()
        await api.submit(file("low", 3, "512M"))
        await api.submit(file("high", 3, "512M", "priority: 9"))
        await healthy(world, 6)
        world.machines[N2].host.lacks = "memory"
        await asyncio.sleep(25)
        row = api.upkeep.node(N2)
        assert (row["state"], row["reason"]) == (
            "tainted",
            "takes no new work: memory pressure: 2 % of 16G is available, less than 4 %",
        )
        order = api.upkeep.shedding(N2)
        assert [row["job"] for row in order["leaving"]] == ["low", "high"]
        await world.until(lambda: N2 not in live(world, "low"), 60, "the lowest leaves")
        assert N2 in live(world, "high")
        assert len(live(world, "low")) == 3
        await world.until(lambda: N2 not in live(world, "high"), 90, "and then the next")
        world.machines[N2].host.lacks = ""
        await asyncio.sleep(75)
        assert api.upkeep.node(N2)["state"] == "ready"
        await healthy(world, 6)
        told = reasons(world, "node.tainted")
        assert told == [
            "n2 takes no new work: memory pressure: 2 % of 16G is available, less than 4 %"
        ]
        await asyncio.sleep(STEADY_SECONDS)  # till then it may suggest a move back
        revision = world.etcd.revision
        await asyncio.sleep(120)
        assert world.etcd.revision == revision  # and then it rests

    tell(story)


def test_a_host_under_pressure_whose_watch_is_stuck_goes_on() -> None:
    """Its word is written and not seen by itself; it says it again, and tells of it once."""

    async def story(world: World) -> None:
        machine = world.machines[N2]
        daemon = machine.daemon
        assert machine.store
        machine.is_stuck = True
        machine.store.stick()
        machine.host.lacks = "memory"
        await asyncio.sleep(45)
        machine.is_stuck = False
        machine.store.stick(False)
        await asyncio.sleep(30)
        assert machine.daemon is daemon and daemon in world.ready()
        assert world.operations().upkeep.node(N2)["state"] == "tainted"
        assert len(reasons(world, "node.tainted")) == 1

    tell(story)


def test_a_host_that_cant_be_measured_says_so_once() -> None:
    """It is not tainted, and goes on taking work."""

    async def story(world: World) -> None:
        world.machines[N3].host.lacks = "facts"
        await asyncio.sleep(60)
        api = world.operations()
        assert api.upkeep.node(N3)["state"] == "ready"
        await api.submit(file("web", 3, "3G"))
        await healthy(world, 3)
        assert reasons(world, "node.not_measured") == ["n3: /proc can't be read"]

    tell(story)


def test_protected_instances_stay_whatever_comes() -> None:
    """Neither a higher priority nor pressure on the host makes them leave."""

    async def story(world: World) -> None:
        api = world.operations()
        await api.submit(file("safe", 3, "3G", "protected: true"))
        await healthy(world, 3)
        with pytest.raises(ProblemError):
            await api.submit(file("shop", 1, "3G", "priority: 10000"))
        world.machines[N1].host.lacks = "disk"
        await asyncio.sleep(200)
        assert live(world, "safe") == [N1, N2, N3]
        states = {a.state for a in world.truth.assigned()}
        assert states == {SlotState.RUNNING}

    tell(story)
