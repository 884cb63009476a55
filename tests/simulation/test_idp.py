"""The platform of `jobspecs/idp/` in virtual time: either worker is lost and returns.

The production daemons decide; `scenarios/the_platform_loses_its_workers.txt` is what they did, and
can be read as a story. `OZY_RECORD=1` records it again.
"""

import asyncio
import os
import re
from pathlib import Path

from ozymandias.jobspec.parse import parse
from ozymandias.model.event import EventRecord
from ozymandias.model.job import Job, JobKind
from ozymandias.model.node import NodeName
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.trace import USER
from ozymandias.sim.world import World
from ozymandias.store import codec, keys

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "jobspecs" / "idp").glob("*.yaml"))
TOLD = Path(__file__).parent / "scenarios" / "the_platform_loses_its_workers.txt"
ROLES = {NodeName("n1"): "control", NodeName("n2"): "infra", NodeName("n3"): "apps"}
ARGO_CD = {file.stem for file in FILES if file.stem.startswith("argocd")}
MOVES_MAX = 7  # of 16 services
# What is told of all that the daemons say, in this order.
KINDS = (" was lost; ", "displaced by ", "so it displaces ", "room appeared: ", "moved from ")
FREE = re.compile(r" and \S+ (?:of \S+ memory )?free(?: once what stops there is gone)?")
SAID = re.compile("|".join(KINDS))
REST_SECONDS = 120.0  # in which nothing is scheduled any more


def jobs() -> list[Job]:
    found = [parse(file.read_bytes(), file.name) for file in FILES]
    return sorted(found, key=lambda j: (j.kind is not JobKind.SYSTEM, -j.priority, j.name))


PRIORITIES = {job.name: job.priority for job in jobs() if job.kind is JobKind.SERVICE}


class Platform:
    """The cluster, seen as its operators see it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told = 0.0  # wall clock: what happened until then was told

    def say(self, text: str) -> None:
        self.world.say(text, "told", USER)

    async def submit_all(self) -> None:
        operations = self.world.operations()
        for name, role in ROLES.items():
            await operations.upkeep.label(name, {"role": role}, [])
        for job in jobs():
            await operations.submit((ROOT / "jobspecs" / "idp" / f"{job.name}.yaml").read_bytes())
        self.say(f"{len(FILES)} jobs are submitted, the most important first")

    async def rest(self) -> None:
        """Until no schedule has changed for a while."""
        world = self.world

        async def quiet() -> None:
            seen = -1
            while seen != world.witness.schedule_revisions:
                seen = world.witness.schedule_revisions
                await asyncio.sleep(REST_SECONDS)

        async with asyncio.timeout(3600):
            await quiet()
        self.tell()

    def _news(self) -> list[EventRecord]:
        """What the daemons told since the last time about displacing and moving."""
        etcd = self.world.etcd
        found = etcd.select(keys.EVENTS, keys.prefix_end(keys.EVENTS), etcd.revision)
        records = [codec.decode(EventRecord, kv.value) for kv in found]
        fresh = [record for record in records if record.time > self.told]
        self.told = max((record.time for record in records), default=self.told)
        told = [r for r in fresh if r.job in PRIORITIES and SAID.search(r.reason)]
        return sorted(told, key=lambda r: (_kind(r), r.job))

    def places(self) -> dict[str, str]:
        """Job -> role of the node where it is healthy, of the services."""
        healthy = self.world.healthy()
        return {
            instance.job.name: ROLES[node]
            for instance, node in self.world.assigned().items()
            if instance in healthy and instance.job.name in PRIORITIES
        }

    def assigned(self) -> dict[str, str]:
        """Instance -> node, of all jobs."""
        return {str(instance): node for instance, node in self.world.assigned().items()}

    async def foreseen(self, steps: str) -> dict[str, str]:
        """The same after steps that are only supposed, as any of the daemons tells it now."""
        told = await self.world.ready()[0].operations.foresight.what_if(steps)
        there = self.assigned()
        for change in (*told["first"], *(c for step in told["steps"] for c in step["changes"])):
            name = f"{change['namespace']}/{change['instance']}".removeprefix("default/")
            if change["to"]:
                there[name] = change["to"]
            else:
                del there[name]
        return there

    def left_on(self, node: NodeName) -> set[str]:
        """The instances whose pods a machine still has on its disk, whether it is there or not."""
        return {str(pod.instance) for pod in self.world.machines[node].host.pods}

    def waiting(self) -> set[str]:
        return PRIORITIES.keys() - self.places().keys()

    def tell(self) -> None:
        """What was done to the services and why; then who is where, and how full each node is."""
        for record in self._news():
            words = re.sub(r"\bn[123]\b", lambda name: ROLES[NodeName(name[0])], record.reason)
            words = FREE.sub("", words)  # who is first of several changes these numbers
            self.say(f"  {record.job}: {words}")
        there = self.places()
        for node, role in ROLES.items():
            ledger = self.world.truth.ledgers[node]
            if node not in self.world.truth.presences:
                self.say(f"  {role}: lost")
                continue
            promised = ledger.promised.resources.memory_bytes
            percent = 100 * promised / ledger.allocatable.memory_bytes
            names = ", ".join(sorted(job for job, where in there.items() if where == role))
            self.say(f"  {role}, {percent:.0f} % full: {names}")
        if left := sorted(self.waiting(), key=lambda job: (-PRIORITIES[job], job)):
            self.say("  waiting: " + ", ".join(f"{job} ({PRIORITIES[job]})" for job in left))


def _kind(record: EventRecord) -> int:
    return next(number for number, words in enumerate(KINDS) if words in record.reason)


async def the_platform_loses_its_workers(world: World, *, with_empty_disks: bool = False) -> None:
    platform = Platform(world)
    await platform.submit_all()
    await platform.rest()
    check_normal(platform)
    for node in (NodeName("n2"), NodeName("n3")):
        platform.say(f"the {ROLES[node]} worker is lost")
        foreseen = await platform.foreseen(f"lose {node}")
        await world.power_cut(node)
        await platform.rest()
        assert platform.assigned() == foreseen
        check_alone(platform)
        platform.say(f"the {ROLES[node]} worker returns")
        before, foreseen = platform.places(), await platform.foreseen(f"start {node}")
        if with_empty_disks:
            world.machines[node].host.wipe()
        left = platform.left_on(node)
        assert bool(left) is not with_empty_disks
        world.boot(node)
        await platform.rest()
        check_foreseen(platform.assigned(), foreseen, left)
        check_normal(platform)
        after = platform.places()
        moved = sorted(job for job in before if after[job] != before[job])
        platform.say(f"  moved: {', '.join(moved) or 'nobody'}")
        assert len(moved) <= MOVES_MAX, moved


def check_foreseen(there: dict[str, str], foreseen: dict[str, str], left: set[str]) -> None:
    """The very instances are where they were foreseen.

    A number whose pod was ``left`` on the machine that returned is in use there until that pod is
    removed; who was placed before has the next one, on the node that was foreseen.
    """
    assert {instance for instance, _ in foreseen.items() - there.items()} <= left
    assert places_of_jobs(there) == places_of_jobs(foreseen)


def places_of_jobs(assigned: dict[str, str]) -> list[tuple[str, str]]:
    """Without the numbers of instances."""
    return sorted((instance.rpartition("-")[0], node) for instance, node in assigned.items())


def check_normal(platform: Platform) -> None:
    """All run; Prometheus and Loki are apart; the control node has what prefers it."""
    there = platform.places()
    assert platform.waiting() == set()
    assert {there["prometheus"], there["loki"]} == {"infra", "apps"}
    assert {there[job] for job in ("vault", "cert-manager", "external-secrets")} == {"control"}


def check_alone(platform: Platform) -> None:
    """One worker is left: what waits is less important than all that runs there."""
    there, left = platform.places(), platform.waiting()
    assert there.keys() >= ARGO_CD
    assert there.keys() & {"prometheus", "loki"}
    served = [PRIORITIES[job] for job, role in there.items() if role != "control"]
    assert max(PRIORITIES[job] for job in left) < min(served)


def lived(*, with_empty_disks: bool = False) -> World:
    async def run() -> World:
        world = World(1)
        async with world.running():
            await world.until(lambda: len(world.ready()) == 3, 30, "all nodes have a session")
            await the_platform_loses_its_workers(world, with_empty_disks=with_empty_disks)
        return world

    world = VirtualLoop(1).run(run())
    assert not world.violations, "\n".join(map(str, world.violations))
    return world


def test_workers_that_return_empty_are_as_foreseen_to_the_last_number() -> None:
    """What-if supposes that nothing is left on them: then it is right about every instance."""
    lived(with_empty_disks=True)


def test_the_platform_loses_its_workers() -> None:
    """What must hold holds at every rest, and the story goes as it was told."""
    world = lived()
    lines = [
        f"{entry.time:8.0f}  {entry.text}"
        for entry in world.trace.entries()
        if entry.lane == "told"
    ]
    told = "The platform loses its workers.\n\n" + "\n".join(lines) + "\n"
    if os.environ.get("OZY_RECORD"):
        TOLD.write_text(told)
    assert told == TOLD.read_text(), f"{TOLD.name} differs; OZY_RECORD=1 records it again"
