"""A random life of a cluster from one seed: jobs come and go, things break, and it must recover.

Three phases. Trouble: the steps of the schedule happen at their times, users call the API, and
whatever is drawn breaks. Recovery: either everything heals, or only a core does and the rest stays
broken for ever; the cluster has to come to rest: what is wanted and fits runs healthy, nothing
else runs, names and statuses agree, and nobody writes any more. Drill, in some lives: one more
node is lost, and what fits must run elsewhere in time.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ozymandias.api.upkeep import NodeUpkeep
from ozymandias.core.loss import fence_seconds
from ozymandias.core.settings import SettingsChange
from ozymandias.model.job import JobKey, LabelRule, OnPartition
from ozymandias.model.node import NodeName
from ozymandias.model.settings import NodePool, RebalanceMode
from ozymandias.ports import Listing
from ozymandias.problems import ProblemError
from ozymandias.sim import rest
from ozymandias.sim.clock import Livelock, VirtualLoop
from ozymandias.sim.job_files import JobFiles
from ozymandias.sim.mishaps import Mishaps
from ozymandias.sim.pools import Pools
from ozymandias.sim.schedule import (
    MOVE_STEPS,
    OPERATOR_STEPS,
    POOL_STEPS,
    SETTLING_STEPS,
    SIZES,
    USER_STEPS,
    Options,
    Schedule,
    Step,
    draw,
)
from ozymandias.sim.trace import HEAL, USER, Entry
from ozymandias.sim.users import PATIENCE_SECONDS, Call, Users
from ozymandias.sim.world import Settings, World
from ozymandias.store import keys

INFRA = NodePool(namespace="default", require=(LabelRule(label="role", values=("infra",)),))
POOLS: dict[str, dict[str, NodePool | None]] = {  # what each step of settling makes of it
    "pool": {"default": INFRA},
    "prefer-pool": {"default": replace(INFRA, is_hard=False)},
    "unpool": {"default": None},
}
JOIN_SECONDS = 30.0  # a node that works again serves again
CONVERGE_SECONDS = 480.0  # with back-off, the breaker, and two moves that fail
TELL_SECONDS = 2.0  # an event is written a moment after what it tells of
SETTLE_SECONDS = 45.0  # what hung or was in doubt before the healing is over
LIFE_SECONDS_MAX = 1200.0  # all phases together
FULL_BYTES = 1536 * 2**20  # of memory, of a node in a life that is full
PLACE_SECONDS = 5.0  # what is nowhere and fits is placed
DRILL_SECONDS = 5.0  # beyond the lease, until what was lost runs elsewhere
MODE_TRIES_MAX = 20
FAULTLESS = ("hung", "full")  # broken in a way that keeps the lease alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    options: Options
    violations: tuple[str, ...]
    story: tuple[Entry, ...]
    fingerprint: str
    revisions: int
    faults: dict[str, int]
    calls: int
    seconds: float  # virtual

    @property
    def invariant(self) -> str:
        """The name of what was violated first: S7, L2, ..."""
        return self.violations[0].split(": ", 1)[1].split()[0] if self.violations else ""


def run_seed(seed: int) -> Outcome:
    """One life, from its seed alone."""
    return run(draw(seed))


def run(schedule: Schedule, *, keeps_story: bool = False) -> Outcome:
    loop = VirtualLoop(schedule.seed)
    loop.seconds_max = LIFE_SECONDS_MAX
    try:
        return loop.run(_life(schedule, keeps_story))
    except Livelock as error:
        return Outcome(
            seed=schedule.seed,
            options=schedule.options,
            violations=(f"t={loop.time():.3f}: S0 daemons that were told to end go on: {error}",),
            story=(),
            fingerprint="",
            revisions=0,
            faults={},
            calls=0,
            seconds=loop.time(),
        )


async def _life(schedule: Schedule, keeps_story: bool) -> Outcome:
    options = schedule.options
    world = World(
        schedule.seed,
        Settings(
            nodes=options.nodes,
            lease_ttl_seconds=options.lease_ttl_seconds,
            breaker_seconds=options.breaker_seconds,
            steady_seconds=options.steady_seconds,
            drift=options.drift,
            schedulers=options.schedulers,
            is_eager=options.is_eager,
            memory_bytes=FULL_BYTES if options.is_full else Settings().memory_bytes,
        ),
    )
    life = Life(world, schedule)
    async with world.running():
        await life.live()
    return Outcome(
        seed=schedule.seed,
        options=options,
        violations=tuple(str(v) for v in world.violations),
        story=world.trace.story() if world.violations or keeps_story else (),
        fingerprint=world.trace.fingerprint,
        revisions=world.etcd.revision,
        faults=life.mishaps.counts,
        calls=len(life.users.calls),
        seconds=world.loop.time(),
    )


class Life:
    def __init__(self, world: World, schedule: Schedule) -> None:
        self.world = world
        self.schedule = schedule
        self.size = SIZES[schedule.options.size]
        self.mishaps = Mishaps(world, lasting=self.size.lasting, jobs=schedule.options.jobs)
        self.users = Users(world.truth, lambda text: world.say(text, "users", USER), world.violate)
        world.witness.on_head.append(self.users.head_changed)
        self.pools = Pools(
            truth=world.truth,
            queues=world.queues,
            now=world.loop.time,
            say=lambda text: world.say(text, "users", USER),
            violate=world.violate,
        )
        world.witness.on_head.append(self.pools.head_changed)
        self.core: set[NodeName] = set(world.machines)
        self.leaving: set[NodeName] = set()  # broken for ever, their leases lapse
        self._files = JobFiles(
            seed=schedule.seed, options=schedule.options, nodes=sorted(world.machines)
        )
        self._dice = random.Random(f"life {schedule.seed}")
        self._placeable_since: float | None = None
        self._looked_at: object = None  # the state of the world that these differences are of
        self._found: list[str] = []

    async def live(self) -> None:
        async with asyncio.TaskGroup() as calls:
            await self._trouble(calls)
        for phase in (self._heal, self._come_to_rest, self._drill):
            if self.world.violations:
                return
            await phase()

    # Trouble ------------------------------------------------------------------------------------

    async def _trouble(self, calls: asyncio.TaskGroup) -> None:
        world = self.world
        calls.create_task(self._choose_mode())
        for step in self.schedule.steps:
            if world.violations:
                return
            await asyncio.sleep(max(0.0, step.at - world.loop.time()))
            if step.kind in USER_STEPS:
                calls.create_task(self._use(step))
            elif step.kind in OPERATOR_STEPS | SETTLING_STEPS | MOVE_STEPS:
                calls.create_task(self._operate(step))
            elif step.kind in POOL_STEPS:
                calls.create_task(self._pool(step))
            else:
                await self.mishaps.happen(step)
            if step.index % 4 == 0:
                self._check_mirrors(step.dice(self.schedule.seed))
        end = self.schedule.options.trouble_seconds
        await asyncio.sleep(max(0.0, end - world.loop.time()))

    async def _choose_mode(self) -> None:
        """How far instances are moved of the cluster's own accord, said as early as may be."""
        change = SettingsChange(rebalance=RebalanceMode(self.schedule.options.rebalance))
        dice = random.Random(f"mode {self.schedule.seed}")
        for _ in range(MODE_TRIES_MAX):
            await asyncio.sleep(0.5)
            if (operations := self.world.operations(dice)) is not None:
                try:
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await operations.settings.change(change)
                        return
                except (ProblemError, TimeoutError):
                    pass

    async def _use(self, step: Step) -> None:
        dice = step.dice(self.schedule.seed)
        key = keys.job_key("default", f"job-{dice.randint(1, self.schedule.options.jobs)}")
        call, request = self._request(step, key, dice)
        operations = self.world.operations(dice)
        if operations is None or (step.kind != "submit" and self._is_pointless(step.kind, key)):
            return
        answers = random.Random(f"{self.schedule.seed} {step.index}")
        self.mishaps.lose_answers(operations, answers)
        await self.users.ask(call, lambda: request(operations))
        if call.state == "unknown" and dice.random() < 0.5:
            await asyncio.sleep(dice.uniform(0.1, 5))
            operations = self.world.operations(dice)
            if operations and not self.users.is_asked(call.kind, key, but=call):
                await self.users.ask(call, lambda: request(operations))

    async def _pool(self, step: Step) -> None:
        """A pool is submitted, its queue fills or empties, or a freeze window comes or goes."""
        dice = step.dice(self.schedule.seed)
        operations = self.world.operations(dice)
        if step.kind == "queue":
            self.pools.fill(dice)
        elif operations is None:
            return
        elif step.kind == "agents":
            key, text, least = self.pools.job_file(step, dice)
            call = Call(kind="submit", key=key, wanted=least, mark=str(step.index))
            await self.users.ask(call, lambda: operations.submit(text))
        else:
            await self.pools.settle(step.kind, operations, dice)

    async def _operate(self, step: Step) -> None:
        """Somebody looks after a node; any problem will do as an answer, a bug will not."""
        dice = step.dice(self.schedule.seed)
        name = dice.choice(sorted(self.world.machines))
        operations = self.world.operations(dice)
        if operations is None:
            return
        upkeep: NodeUpkeep = operations.upkeep
        deadline, force = dice.choice([0.0, 2.0, 5.0, 15.0]), dice.random() < 0.5
        moves = dice.choice([0, 1, 3, 100])
        acts: dict[str, Callable[[], Awaitable[dict[str, object]]]] = {
            "drain": lambda: upkeep.drain(name, deadline_seconds=deadline, force=force),
            "undrain": lambda: upkeep.undrain(name),
            "cordon": lambda: upkeep.cordon(name),
            "uncordon": lambda: upkeep.uncordon(name),
            "label": lambda: upkeep.label(name, {"role": "infra"}, []),
            "unlabel": lambda: upkeep.label(name, {}, ["role"]),
            **{kind: partial(self._settle, operations, kind) for kind in SETTLING_STEPS},
            "rebalance": lambda: operations.moving.rebalance(moves),
        }
        self.world.tended[name] += 1
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                answer = await acts[step.kind]()
        except ProblemError as error:
            self.world.say(f"{step.kind} {name}: {error.problem.kind.slug}", "users", USER)
        except TimeoutError:
            self.world.say(f"{step.kind} {name}: gave up waiting", "users", USER)
        except AssertionError as error:
            self.world.violate(f"S0 {step.kind} {name} hit a bug: {error}")
        else:
            self.world.say(f"{step.kind} {name}: {answer['reason']}", "users", USER)
        finally:
            self.world.tended[name] -= 1

    async def _settle(self, operations: Any, kind: str) -> dict[str, object]:
        change = SettingsChange(pools=POOLS[kind])
        found: dict[str, object] = await operations.settings.change(change)
        return found

    def _is_pointless(self, kind: str, key: JobKey) -> bool:
        """Two calls that ask for the very same could not be told apart."""
        return key not in self.world.truth.heads or self.users.is_asked(kind, key)

    def _request(
        self, step: Step, key: JobKey, dice: random.Random
    ) -> tuple[Call, Callable[..., Awaitable[dict[str, object]]]]:
        match step.kind:
            case "scale":
                count = dice.randint(0, max(self.size.counts))
                call = Call(kind="scale", key=key, wanted=count)
                return call, lambda operations: operations.scale(key, count)
            case "stop":
                return Call(kind="stop", key=key), lambda operations: operations.stop(key)
            case "restart":
                return Call(kind="restart", key=key), lambda operations: operations.restart(key)
        text, count = self._files.draw(step, key, dice)
        call = Call(kind="submit", key=key, wanted=count, mark=str(step.index))
        return call, lambda operations: operations.submit(text)

    def _check_mirrors(self, dice: random.Random) -> None:
        """One daemon's copy of the cluster is compared with the store it is a copy of."""
        daemons = [d for d in self.world.ready() if d.mirror.is_ready]
        if not daemons:
            return
        daemon = dice.choice(daemons)
        mirror = daemon.mirror
        etcd = self.world.etcd
        if mirror.revision < max(etcd.compacted, etcd.revision - 50):
            return  # too far behind to be looked up cheaply
        kvs = etcd.select(keys.ROOT, keys.prefix_end(keys.ROOT), mirror.revision)
        node = daemon.node if daemon.own_part else None
        for what in rest.check_mirror(mirror, Listing(mirror.revision, kvs), node):
            self.world.violate(what)

    # Recovery -----------------------------------------------------------------------------------

    async def _heal(self) -> None:
        world = self.world
        await self.mishaps.calm_down()
        names = sorted(world.machines)
        if self.schedule.options.does_core_only:
            size = self._dice.randint(len(names) // 2 + 1, len(names) - 1)
            self.core = set(self._dice.sample(names, size))
            if not any(map(world.schedules, self.core)):
                self.core.add(names[0])  # somebody has to decide
        world.say(f"heals: {' '.join(sorted(self.core))}", "", HEAL)
        for name in names:
            if name in self.core:
                self.mishaps.heal(name)
            elif await self.mishaps.break_for_ever(name, self._dice) not in FAULTLESS:
                self.leaving.add(name)
        await world.until(self._is_joined, JOIN_SECONDS, "every node that works has a session (L5)")
        await self.pools.calm_down(lambda: world.operations(self._dice))

    def _is_joined(self) -> bool:
        machines = (self.world.machines[name] for name in self.core)
        return all(m.daemon and m.daemon.membership.valid() for m in machines)

    async def _come_to_rest(self) -> None:
        world = self.world
        for pause in (0.0, SETTLE_SECONDS):  # meanwhile a node may have become worth moving to
            await asyncio.sleep(pause)
            if not await world.until(self._is_converged, CONVERGE_SECONDS, "actual = wanted", 0.5):
                for line in self._differences():
                    world.say(f"  {line}")
                return
        await asyncio.sleep(TELL_SECONDS)
        before, scheduled = world.etcd.revision, world.witness.schedule_revisions
        await asyncio.sleep(self.size.rest_seconds)
        is_whole = not self.schedule.options.does_core_only
        if is_whole and world.etcd.revision != before:
            wrote = [e.kv.key.decode() for e in world.etcd.events(b"", before + 1)][:5]
            world.violate(f"L2 not at rest: {world.etcd.revision - before} revisions: {wrote}")
        elif world.witness.schedule_revisions != scheduled:
            world.violate("L2 not at rest: schedules are still changed")
        if differences := self._differences():
            world.violate(f"L2 did not stay at rest: {differences[0]}")
        self._check_mirrors(self._dice)
        leases, alive = world.etcd.lease_count, len(world.truth.presences)
        if is_whole and leases > 2 * alive:
            world.violate(f"L6 {leases} leases for {alive} nodes")

    def _differences(self) -> list[str]:
        """What is not as it should be; as long as a lost node's lease lives all only seems well.

        One that is broken for ever and keeps its lease is a place as well, once it is short of
        nothing any more: whatever is better placed there moves then.
        """
        world = self.world
        pods = {name: frozenset(m.host.pods) for name, m in world.machines.items()}
        staying = sorted(world.machines.keys() - self.leaving)
        daemons = [world.machines[name].daemon for name in staying]
        mirrored = [(id(d), d.mirror.revision, d.taint) for d in daemons if d]
        lacking = [name for name in staying if world.machines[name].host.lacks]
        state = (world.etcd.revision, pods, mirrored, lacking, sorted(self.leaving))
        if state != self._looked_at:  # nothing else is looked at, so the answer stays
            there = self.leaving & world.truth.presences.keys()
            unseen = [f"{name} is not missed" for name in sorted(there)]
            unseen += [f"{name} is short of something" for name in lacking]
            unseen += [f"a host is still under {d.taint}" for d in daemons if d and d.taint]
            unseen += rest.being_moved(world.truth)
            found = rest.differences(world.truth, pods, self.core)
            found += self.pools.differences()
            self._looked_at, self._found = state, unseen + found + self._proposals()
        return self._found

    def _is_converged(self) -> bool:
        """Looked at from time to time; what could be placed must not stay so for long."""
        now = self.world.loop.time()
        if rest.placeable(self.world.truth, self.core):
            self._placeable_since = self._placeable_since or now
            if now - self._placeable_since > PLACE_SECONDS:
                what = rest.placeable(self.world.truth, self.core)[0]
                self.world.violate(f"L3 for {PLACE_SECONDS:g} s: {what}")
                return True
        else:
            self._placeable_since = None
        return not self._differences()

    def _proposals(self) -> list[str]:
        """What the scheduler itself would still do: at rest, nothing."""
        machines = [self.world.machines[name] for name in sorted(self.core)]
        proposals = (
            rest.still_to_do(m.daemon.mirror.snapshot(), m.clock.wall())
            for m in machines
            if m.daemon and not m.daemon.own_part
        )
        return [f"{p.what} is still to be done" for p in proposals if p]

    # Drill --------------------------------------------------------------------------------------

    async def _drill(self) -> None:
        """One node is lost: within its lease and five seconds, what fits runs elsewhere (L1).

        What must never run twice may take another lease and a margin.
        """
        world = self.world
        if not self.schedule.options.does_drill:
            return
        if any(ledger.drain for ledger in world.truth.ledgers.values()):
            return  # room that appears is used by drains that had none, which takes longer
        name = self._dice.choice(sorted(world.machines))
        lost = len(list(world.truth.pods_of(name)))
        pods = world.machines[name].host.pods.values()
        is_exclusive = any(p.pod.job.on_partition is OnPartition.STOP for p in pods)
        started = world.loop.time()
        await world.power_cut(name)
        self.core.discard(name)
        self.leaving.add(name)
        ttl = world.settings.lease_ttl_seconds
        limit = ttl + DRILL_SECONDS
        if is_exclusive:  # its guard's time is waited out as well
            limit += fence_seconds(ttl)

        while self._differences() and world.loop.time() < started + limit:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        if left := self._differences():
            world.violate(f"L1 {limit:g} s after {name} with {lost} was lost: {left[0]}")
