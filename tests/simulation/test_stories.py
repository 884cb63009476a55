"""The stories of the documentation, each told once in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.node import NodeName
from ozymandias.problems import ProblemError
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.rest import differences
from ozymandias.sim.world import Settings, World
from ozymandias.store.keys import job_key

WEB = job_key("default", "web")


def job_file(count: int = 3, memory: str = "1G", extra: str = "") -> bytes:
    return (
        f"name: web\nnumInstances: {count}\ncontainers:\n  app:\n    image: image\n"
        f"    memory: {memory}\n    ports: ['80:8000']\n    stop_grace_period: 2\n"
        f"    healthcheck: {{type: http, port: 8000, interval: 2}}\n{extra}"
    ).encode()


def tell(story: Callable[[World], Awaitable[None]], **settings: object) -> World:
    """Run a story on a cluster that has just come up; nothing may be violated in it."""

    async def run() -> World:
        world = World(1, Settings(**settings))  # type: ignore[arg-type]
        async with world.running():
            await world.until(lambda: all_joined(world), 30, "all nodes have a session")
            await story(world)
        return world

    world = VirtualLoop(1).run(run())
    assert not world.violations, "\n".join([*map(str, world.violations), *world.history])
    return world


def all_joined(world: World) -> bool:
    return all(m.daemon and m.daemon.membership.valid() for m in world.machines.values())


async def healthy(world: World, count: int, within: float = 30) -> None:
    await world.until(lambda: len(world.healthy()) == count, within, f"{count} healthy")


def starts(world: World) -> int:
    return sum(machine.host.started_total for machine in world.machines.values())


def test_a_job_runs_on_different_nodes_and_is_named() -> None:
    """Three instances on three nodes, healthy, with their names in DNS."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file())
        await healthy(world, 3)
        assert sorted(world.assigned().values()) == ["n1", "n2", "n3"]
        names = [k for k in world.etcd.snapshot_kvs() if k.startswith(b"/skydns/")]
        assert b"/skydns/internal/ozy/default/web/0" in names

    tell(story)


def test_a_lost_node_is_healed_within_its_lease_and_five_seconds() -> None:
    """Its instances run elsewhere; when it is back, nothing runs twice and nothing moves."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file())
        await healthy(world, 3)
        before = world.loop.time()
        await world.power_cut(NodeName("n2"))
        await world.until(
            lambda: len(world.healthy()) == 3 and "n2" not in world.assigned().values(), 60, "moved"
        )
        assert world.loop.time() - before <= world.settings.lease_ttl_seconds + 5
        world.boot(NodeName("n2"))
        await asyncio.sleep(20)
        assert not world.machines[NodeName("n2")].host.pods
        assert len(world.healthy()) == 3

    tell(story)


@pytest.mark.parametrize("away", [0.5, 30])
def test_a_killed_daemon_costs_no_restart_while_its_node_is_not_given_up(away: float) -> None:
    """Back within the lease it adopts; after losing it, what nobody could move is reclaimed."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=1, memory="3G"))
        await healthy(world, 1)
        before = starts(world)
        (node,) = world.assigned().values()
        await world.kill(node)
        await asyncio.sleep(away)
        world.start(node)
        await world.until(lambda: all_joined(world), 30, "joined again")
        await healthy(world, 1)
        assert starts(world) == before

    # With one node there is nowhere to move to.
    tell(story, nodes=1)


def test_an_outage_of_the_store_restarts_nothing() -> None:
    """A minute without etcd: pods go on, the API says why it can't help, nothing moves."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file())
        await healthy(world, 3)
        before, places = starts(world), world.assigned()
        operations = world.operations()
        world.etcd.pause()
        await asyncio.sleep(60)
        with pytest.raises(ProblemError) as problem:
            operations.check_session()
        assert problem.value.problem.kind.slug == "store-unavailable"
        assert len(world.running_pods()["n1"]) == 1
        world.etcd.resume()
        await world.until(lambda: all_joined(world), 30, "joined again")
        await asyncio.sleep(30)
        await healthy(world, 3)
        assert (starts(world), world.assigned()) == (before, places)

    tell(story)


def test_most_nodes_missing_at_once_is_not_believed_for_a_minute() -> None:
    """Leases of two of three nodes lapse, one just after the other: the second is held back."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(memory="256M"))
        await healthy(world, 3)
        before = starts(world)
        for name in ("n1", "n2"):
            world.partition(NodeName(name))
        await asyncio.sleep(50)
        assert len({"n1", "n2"} & set(world.assigned().values())) == 1
        for name in ("n1", "n2"):
            world.heal(NodeName(name))
        await world.until(lambda: all_joined(world), 30, "joined again")
        await healthy(world, 3)
        assert starts(world) == before + 1

    tell(story)


def test_after_a_short_power_cut_the_host_that_boots_last_is_waited_for() -> None:
    """All hosts are cut, two are back at once: that the third's lease lapses then is no news."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file())
        await healthy(world, 3)
        before = world.assigned()
        for name in ("n1", "n2", "n3"):
            await world.power_cut(NodeName(name))
        for name in ("n1", "n2"):
            world.boot(NodeName(name))
        await asyncio.sleep(world.settings.lease_ttl_seconds + 20)
        assert world.assigned() == before
        world.boot(NodeName("n3"))
        await world.until(lambda: all_joined(world), 30, "joined again")
        await healthy(world, 3)
        assert world.assigned() == before

    tell(story)


def test_what_does_not_fit_after_a_loss_waits_and_runs_when_room_appears() -> None:
    """As many as fit are placed, the rest is pending with a reason, and placed within a second."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(memory="3G"))
        await healthy(world, 3)
        await world.power_cut(NodeName("n3"))
        await world.until(lambda: "n3" not in world.assigned().values(), 30, "loss noticed")
        await healthy(world, 2)
        status = await world.operations().job_status(WEB)
        assert status["pending"] == 1 and "3G" in str(status["problem"])
        world.boot(NodeName("n3"))
        await world.until(lambda: all_joined(world), 30, "joined again")
        joined = world.loop.time()
        await world.until(lambda: len(world.assigned()) == 3, 5, "placed")
        assert world.loop.time() - joined <= 1.0
        await healthy(world, 3)

    tell(story)


def test_a_burst_comes_home_when_home_is_back() -> None:
    """Home was lost and all four ran on the burst's nodes; two return, and no more than two."""
    burst = "placement: {burst: {after: 2, nodes: [n2, n3]}}\n"

    async def story(world: World) -> None:
        await world.operations().submit(job_file(4, extra=burst))
        await healthy(world, 4)
        assert at_home(world) == 2
        await world.power_cut(NodeName("n1"))
        await world.until(lambda: len(world.healthy()) == 4 and not at_home(world), 60, "all away")
        world.boot(NodeName("n1"))
        await world.until(lambda: at_home(world) == 2 and is_calm(world, 4), 600, "two at home")
        starts_before = starts(world)
        await asyncio.sleep(600)
        assert (at_home(world), starts(world)) == (2, starts_before)

    tell(story)


def at_home(world: World) -> int:
    return sum(node == "n1" for node in world.assigned().values())


def is_calm(world: World, count: int) -> bool:
    return len(world.healthy()) == len(world.assigned()) == count


def test_a_change_replaces_one_at_a_time_and_never_dips() -> None:
    """With room to spare, no moment of a rollout has fewer healthy instances than wanted."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(memory="256M"))
        await healthy(world, 3)
        lowest = [3]
        world.etcd.on_commit.append(lambda *_: lowest.append(len(world.healthy())))
        await world.operations().submit(job_file(memory="512M"))
        await world.until(lambda: is_version(world, 2), 60, "all of version 2")
        await healthy(world, 3)
        assert min(lowest) >= 3
        assert max(len(world.assigned()), 3) == 3

    tell(story)


def is_version(world: World, version: int) -> bool:
    pods = [pod for machine in world.machines.values() for pod in machine.host.pods]
    return len(pods) == 3 and all(pod.version == version for pod in pods)


def test_a_stopped_job_leaves_nothing_but_its_history() -> None:
    """Instances, names, claims and head go; the versions stay."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file())
        await healthy(world, 3)
        await world.operations().stop(WEB)
        history = [b"/ozymandias/v1/versions/default/web/0000000001"]
        await world.until(
            lambda: [k for k in world.etcd.snapshot_kvs() if b"web" in k] == history, 30, "all gone"
        )
        assert not any(machine.host.pods for machine in world.machines.values())

    tell(story)


def test_scaling_down_drains_before_it_stops() -> None:
    """A stopped instance has left DNS before its process ends."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file())
        await healthy(world, 3)
        await world.operations().scale(WEB, 1)
        await world.until(lambda: len(world.assigned()) == 1, 5, "scaled")
        kept = set(world.assigned())
        gone = {InstanceId(WEB, slot) for slot in range(3)} - kept
        await world.until(lambda: world.healthy() == kept, 5, "drained")
        running = {p.instance for pods in world.running_pods().values() for p in pods}
        assert gone <= running, "stopped before its name was withdrawn"
        await world.until(lambda: sum(map(len, world.running_pods().values())) == 1, 10, "stopped")

    tell(story)


def test_a_node_that_returns_while_podman_hangs_takes_nothing_back() -> None:
    """Its old instance's name stays with the new home, and it takes no work before it can see."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file())
        await healthy(world, 3)
        machine = world.machines[NodeName("n2")]
        machine.host.faults.is_hung = True
        world.lose_lease(NodeName("n2"))
        await world.until(lambda: "n2" not in world.assigned().values(), 5, "moved")
        await healthy(world, 3)
        await world.until(lambda: "n2" in world.truth.presences, 60, "joined, blind")
        assert "podman" in world.truth.presences[NodeName("n2")].degraded
        machine.host.faults.is_hung = False
        nodes = set(world.machines)
        pods = lambda: {n: frozenset(m.host.pods) for n, m in world.machines.items()}  # noqa: E731
        await world.until(lambda: not differences(world.truth, pods(), nodes), 90, "at rest")
        record = world.truth.presences
        await world.until(lambda: not record[NodeName("n2")].degraded, 60, "takes work again")

    tell(story)


def test_peers_that_race_for_a_lost_node_agree_at_once() -> None:
    """Nine peers, one lost node: one plan wins, and few transactions are lost."""

    async def story(world: World) -> None:
        await world.operations().submit(job_file(count=20, memory="256M"))
        await healthy(world, 20)
        lost = next(iter(sorted(world.assigned().values())))
        await world.power_cut(lost)
        before = world.lost_races
        await world.until(lambda: lost not in world.assigned().values(), 30, "declared dead")
        await healthy(world, 20)
        assert world.lost_races - before <= 2 * len(world.machines)

    tell(story, nodes=10)


def test_what_is_being_made_counts_when_a_node_comes_back() -> None:
    """A pod that podman is still at work on is stopping in the books, not nothing."""

    async def story(world: World) -> None:
        n1, n2 = NodeName("n1"), NodeName("n2")
        for name in (n1, n2):
            world.machines[name].host.faults.latency_seconds = (3.0, 3.0)
        await world.operations().submit(job_file(2))
        creating = list(world.truth.pods_of(n1))
        await asyncio.sleep(4)  # images are looked for, then pods are made
        assert creating and not world.machines[n1].host.pods
        world.machines[n1].host.faults.latency_seconds = (0.1, 0.1)  # of what follows
        world.lose_lease(n1)
        await world.until(lambda: n1 not in world.assigned().values(), 5, "given to the other")
        await world.until(lambda: n1 in world.truth.presences, 5, "back")
        states = world.truth.pods_of(n1)
        assert states.get(creating[0]) is SlotState.STOPPING
        await healthy(world, 2)
        await world.until(lambda: not world.truth.pods_of(n1), 20, "given back")
        assert not world.machines[n1].host.pods

    tell(story, nodes=2)
