"""A random life of a cluster from one seed: jobs come and go, things break, everything heals.

Two phases. In the first, every few seconds something happens: a submit, a scale, a change, a stop,
and a fault (a daemon killed, a power cut, a partition, a lease revoked early, etcd without a
quorum, a compaction, containers that end), while calls are slow, fail, or lose their answers. In
the second everything is healed, and the cluster has to come to rest: what is wanted and fits runs
healthy, nothing else runs, names and statuses agree, and nobody writes any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ozymandias.daemon.scheduling import propose
from ozymandias.model.instance import InstanceId
from ozymandias.model.job import JobHead, JobKey
from ozymandias.problems import ProblemError
from ozymandias.sim import invariants
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.store import Faults
from ozymandias.sim.world import Settings, World
from ozymandias.store import codec, keys

TROUBLE_SECONDS = 120.0
CONVERGE_SECONDS = 240.0  # back-off of failed creations and the breaker included
SETTLE_SECONDS = 25.0  # what hung before the healing has run into its deadline
REST_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    violations: tuple[str, ...]
    history: tuple[str, ...]
    revisions: int
    faults: int
    seconds: float  # virtual


def run_seed(seed: int) -> Outcome:
    """One life, from its seed alone."""
    return VirtualLoop(seed).run(_life(seed))


async def _life(seed: int) -> Outcome:
    world = World(seed)
    dice = world.dice
    world = World(seed, Settings(nodes=dice.randint(2, 5), breaker_seconds=dice.choice([15, 60])))
    life = Life(world)
    async with world.running():
        await life.trouble()
        await life.heal()
        await life.come_to_rest()
    return Outcome(
        seed=seed,
        violations=tuple(str(v) for v in world.violations),
        history=tuple(world.history),
        revisions=world.etcd.revision,
        faults=life.faults,
        seconds=world.loop.time(),
    )


class Life:
    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = world.dice
        self.faults = 0
        self._is_odd = world.dice.random() < 0.8  # some lives have perfect networks
        self._versions = 0

    # Phase one ----------------------------------------------------------------------------------

    async def trouble(self) -> None:
        end = self.world.loop.time() + TROUBLE_SECONDS
        while self.world.loop.time() < end and not self.world.violations:
            self._shake()
            step = self.dice.choices(
                (self._submit, self._scale, self._stop, self._break), (4, 2, 1, 5)
            )[0]
            await step()
            await asyncio.sleep(self.dice.expovariate(1 / 4.0))

    def _shake(self) -> None:
        """The weather: how slow and unreliable calls are for now."""
        for machine in self.world.machines.values():
            if machine.store and self._is_odd:
                slow = self.dice.choice([0.0, 0.02, 0.3])
                machine.store.faults = Faults(
                    latency=(0.0, slow),
                    watch_lag=(0.0, slow * 3),
                    unavailable=self.dice.choice([0.0, 0.0, 0.05]),
                    ambiguous=self.dice.choice([0.0, 0.1, 0.3]),
                )
            faults = machine.host.faults
            faults.fail_rate = self.dice.choice([0.0, 0.0, 0.1]) if self._is_odd else 0.0
            faults.hang_rate = self.dice.choice([0.0, 0.0, 0.02]) if self._is_odd else 0.0

    async def _ask(self, what: str, call: Callable[..., Awaitable[object]], *args: object) -> None:
        """An API call by an impatient user: any problem will do, a bug will not."""
        try:
            async with asyncio.timeout(20):
                await call(*args)
            self.world.say(what)
        except ProblemError as error:
            self.world.say(f"{what}: {error.problem.kind.slug}")
        except TimeoutError:
            self.world.say(f"{what}: gave up waiting")

    async def _submit(self) -> None:
        operations = self.world.operations()
        if operations is None:
            return
        self._versions += 1
        name = f"job-{self.dice.randint(1, 5)}"
        memory = self.dice.choice(["256M", "1G", "3G"])
        count = self.dice.randint(1, 6)
        port = self.dice.choice(["", "", ", {host: 8080, container: 9000}"])
        text = (
            f"name: {name}\nnumInstances: {count}\ncontainers:\n  app:\n    image: image\n"
            f"    memory: {memory}\n    ports: ['80:8000'{port}]\n"
            f"    environment: {{VERSION: '{self._versions}'}}\n"
            "    stop_grace_period: 2\n"
            "    healthcheck: {type: http, port: 8000, interval: 2}\n"
        )
        what = f"submit {name}: {count} of {memory}"
        await self._ask(what, operations.submit, text.encode())

    async def _scale(self) -> None:
        operations, heads = self.world.operations(), self.heads()
        if operations and heads:
            key = self.dice.choice(sorted(heads))
            count = self.dice.randint(0, 8)
            await self._ask(f"scale {key} to {count}", operations.scale, key, count)

    async def _stop(self) -> None:
        operations, heads = self.world.operations(), self.heads()
        if operations and heads:
            key = self.dice.choice(sorted(heads))
            await self._ask(f"stop {key}", operations.stop, key)

    async def _break(self) -> None:
        world, dice = self.world, self.dice
        name = dice.choice(sorted(world.machines))
        machine = world.machines[name]
        self.faults += 1
        match dice.choice(("kill", "power", "partition", "lease", "quorum", "compact", "exit")):
            case "kill":
                await world.kill(name)
                world.loop.call_later(dice.uniform(0.1, 20), world.start, name)
            case "power" if machine.host.is_up:
                await world.power_cut(name)
                world.loop.call_later(dice.uniform(1, 40), world.boot, name)
            case "partition" if not machine.is_partitioned:
                world.partition(name)
                world.loop.call_later(dice.uniform(1, 30), world.heal, name)
            case "lease":
                world.lose_lease(name)
            case "quorum" if not world.etcd.is_paused:
                world.say("etcd: quorum lost")
                world.etcd.pause()
                world.loop.call_later(dice.uniform(0.5, 20), self._resume)
            case "compact" if world.etcd.compacted < world.etcd.revision:
                world.etcd.compact(world.etcd.revision)
            case "exit" if running := sorted(machine.host.running()):
                world.say(f"{name}: a container of {running[0].name} ends")
                machine.host.exit_container(dice.choice(running), "app", is_oom=dice.random() < 0.3)
            case _:
                self.faults -= 1

    def _resume(self) -> None:
        if self.world.etcd.is_paused:
            self.world.say("etcd: quorum again")
            self.world.etcd.resume()

    # Phase two ----------------------------------------------------------------------------------

    async def heal(self) -> None:
        world = self.world
        world.say("everything heals")
        self._is_odd = False
        self._resume()
        await asyncio.sleep(45)  # what was scheduled to come back has come back
        self._shake()
        for name, machine in world.machines.items():
            if not machine.host.is_up:
                world.boot(name)
            world.start(name)
            world.heal(name)
            if machine.store:
                machine.store.faults = Faults()

    async def come_to_rest(self) -> None:
        world = self.world
        if world.violations or not await world.until(
            self.is_converged, CONVERGE_SECONDS, "actual = wanted"
        ):
            for line in self.differences():
                world.say(f"  {line}")
            return
        await asyncio.sleep(SETTLE_SECONDS)
        before = world.etcd.revision
        await asyncio.sleep(REST_SECONDS)
        if world.etcd.revision != before:
            wrote = [e.kv.key.decode() for e in world.etcd.events(b"", before + 1)][:5]
            world.violate(f"not at rest: {world.etcd.revision - before} revisions, such as {wrote}")

    def heads(self) -> dict[JobKey, JobHead]:
        return {
            keys.job_key(*keys.parts(key, keys.JOBS)): codec.decode(JobHead, kv.value)
            for key, kv in self.world.etcd.snapshot_kvs().items()
            if key.startswith(keys.JOBS)
        }

    def is_converged(self) -> bool:
        return not self.differences()

    def differences(self) -> list[str]:
        """Everything that is not as it should be at rest, in words."""
        world = self.world
        kvs = world.etcd.snapshot_kvs()
        found: list[str] = []
        assigned, heads = world.assigned(), self.heads()
        for key, head in heads.items():
            slots = [i for i in assigned if i.job == key]
            if head.deleting:
                found.append(f"{key} is still there though it was stopped")
            if len(slots) > head.wanted:
                found.append(f"{key} has {len(slots)} instances of {head.wanted}")
        found += self._proposals()
        healthy = world.healthy()
        found += [f"{i} is not healthy" for i in assigned if i not in healthy]
        found += [f"{i} is healthy and not assigned" for i in healthy if i not in assigned]
        assignments = invariants.read_assignments(kvs).values()
        if any(g.state != "running" for a in assignments for g in a.groups):
            found.append("something is still waiting or stopping")
        wanted = {(node, instance) for instance, node in assigned.items()}
        really = {
            (name, InstanceId(pod.key, pod.slot))
            for name, machine in world.machines.items()
            for pod in machine.host.pods
        }
        found += [f"{i} is not running on {n}" for n, i in sorted(wanted - really)]
        found += [f"{i} runs on {n} and should not" for n, i in sorted(really - wanted)]
        records = sum(key.startswith(keys.SKYDNS) for key in kvs)
        if records < len(healthy):
            found.append(f"{records} DNS records for {len(healthy)} healthy instances")
        return found

    def _proposals(self) -> list[str]:
        """What the scheduler itself would still do: at rest, nothing."""
        daemons = [m.daemon for m in self.world.machines.values() if m.daemon]
        proposals = (propose(d.mirror.snapshot(), frozenset()) for d in daemons)
        return [f"{p.what} is still to be done" for p in proposals if p]
