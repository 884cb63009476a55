"""Everything that may happen to a cluster, one method per kind of fault in `sim/schedule.py`.

A mishap draws what it needs (which node, for how long) from its step's own dice, says what it
does, and undoes itself after a while where that makes sense. `heal` ends whatever is left of them
on one node; `break_for_ever` leaves a node in a state from which it never returns.
"""

import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace

from ozymandias.model.job import Container, HealthCheck
from ozymandias.model.node import NodeName
from ozymandias.model.pod import PodId
from ozymandias.ports import ProbeResult, Put
from ozymandias.sim.gauge import BLIND, SHORT
from ozymandias.sim.host import Behaviour
from ozymandias.sim.schedule import Step
from ozymandias.sim.store import Cut, Faults
from ozymandias.sim.trace import FAULT, HEAL
from ozymandias.sim.world import VIEW_SECONDS, Machine, World
from ozymandias.store import keys

IMAGES = ("image", "crash", "stubborn", "hungry", "slow", "flaky")
FOR_EVER = ("off", "killed", "cut", "deaf", "mute", "frozen", "hung", "full")
LOST_ANSWERS = 0.15  # of the calls of users
DOUBT_SECONDS = 4.0  # from the last lost answer until what was in doubt has landed
GARBAGE = b'{"version": "from the future"'


class Mishaps:
    def __init__(self, world: World, *, lasting: float = 1.0, jobs: int = 5) -> None:
        self.world = world
        self._lasting = lasting  # how long faults last, of what they would otherwise
        self._jobs = jobs  # whose names are drawn from
        self.is_calm = False
        self.counts: dict[str, int] = {}
        self._twin_machine: Machine | None = None
        self._flapping: dict[str, float] = {}  # job -> until when
        self._ambushed: set[str] = set()  # machines where something waits to strike
        for machine in world.machines.values():
            self._furnish(machine)

    def _furnish(self, machine: Machine) -> None:
        dice = random.Random(f"behaviour {self.world.seed} {machine.label}")
        machine.host.behave = lambda pod, container, start: self._behave(dice, container)
        machine.host.probe = lambda pod, container, check: self._probe(dice, pod, check)

    def _behave(self, dice: random.Random, container: Container) -> Behaviour:
        if self.is_calm:
            return Behaviour()
        match container.image:
            case "crash":
                return Behaviour(exit_after_seconds=dice.uniform(0.05, 5), exit_code=1)
            case "flaky":
                return Behaviour(exit_after_seconds=dice.choice([0.0, 70.0]), exit_code=0)
            case "hungry":
                return Behaviour(exit_after_seconds=dice.uniform(0.1, 9), is_oom=True)
            case "stubborn":
                return Behaviour(ignores_stop=True)
            case "slow":
                return Behaviour(stop_seconds=dice.uniform(0.5, 1.9))
        return Behaviour()

    def _probe(self, dice: random.Random, pod: PodId, check: HealthCheck) -> ProbeResult | None:
        until = self._flapping.get(pod.job, 0.0)
        if self.is_calm or self.world.loop.time() >= until or dice.random() < 0.5:
            return None
        return ProbeResult(healthy=False, reason="HTTP 503")

    async def happen(self, step: Step) -> None:
        """Carry a step out; it counts if it did anything."""
        dice = step.dice(self.world.seed)
        name = dice.choice(sorted(self.world.machines))
        method = getattr(self, "_" + step.kind.replace("-", "_"))
        machine = self.world.machines[name]
        if step.kind in ("kill", "power", "twin", "power-all"):
            done = await method(machine, dice)
        else:
            done = method(machine, dice)
        if done is not False:
            self.counts[step.kind] = self.counts.get(step.kind, 0) + 1

    def _say(self, machine: Machine | None, text: str, kind: str = FAULT) -> None:
        self.world.say(text, machine.label if machine else "etcd", kind)

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        """Undo it, unless everything was healed before; sooner in a short life."""
        self._at(seconds * self._lasting, undo)

    def _at(self, seconds: float, undo: Callable[[], object]) -> None:
        self.world.loop.call_later(
            seconds, lambda: None if self.is_calm else undo(), context=Context()
        )

    # Daemons and machines -----------------------------------------------------------------------

    async def _kill(self, machine: Machine, dice: random.Random) -> None:
        await self.world.kill_machine(machine)
        self._later(dice.choice([0.05, 1, 10, 25]) * dice.random(), lambda: self._start(machine))

    def _start(self, machine: Machine) -> None:
        if machine.task is None and machine.host.is_up:
            self._say(machine, "daemon started", HEAL)
            self.world.start(machine.name)

    async def _power(self, machine: Machine, dice: random.Random) -> bool:
        if not machine.host.is_up:
            return False
        await self.world.cut_machine(machine)
        self._later(dice.uniform(1, 40), lambda: self.world.boot(machine.name))
        return True

    async def _power_all(self, machine: Machine, dice: random.Random) -> None:
        for other in self.world.machines.values():
            await self._power(other, dice)

    def _freeze(self, machine: Machine, dice: random.Random) -> None:
        seconds = dice.choice([2, 8, 30]) * dice.random() * self._lasting
        self._say(machine, f"daemon stopped (SIGSTOP) for {seconds:.1f} s")
        self.world.loop.freeze(machine.label)
        self._at(seconds, lambda: self.world.thaw(machine))

    def _pressure(self, machine: Machine, dice: random.Random) -> bool:
        """The host is short of something, for less or more than it takes to be told.

        However short the life, and also while all else heals: instances leave only after a while.
        """
        if machine.host.lacks:
            return False
        what, seconds = dice.choice([*SHORT, BLIND]), dice.choice([8.0, 25.0, 90.0, 90.0])
        self._say(machine, f"short of {what} for {seconds:g} s")
        machine.host.lacks = what
        self.world.loop.call_later(seconds, self._relieve, machine, context=Context())
        return True

    def _relieve(self, machine: Machine) -> None:
        if machine.host.lacks:
            self._say(machine, "short of nothing", HEAL)
            machine.host.lacks = ""

    def _suspend(self, machine: Machine, dice: random.Random) -> None:
        seconds = dice.choice([2, 8, 30]) * dice.random() * self._lasting
        self._say(machine, f"machine suspended for {seconds:.1f} s")
        self.world.loop.freeze(machine.label)
        self._at(seconds, lambda: self.world.thaw(machine, slept=True))

    def _ambush(self, machine: Machine, dice: random.Random) -> bool:
        """The next time its daemon makes, starts or stops a pod, it is frozen or cut off just then.

        For about as long as a lease lives: what it goes on with then is decided anew.
        """
        if machine.label in self._ambushed:
            return False
        moment = dice.choice(["create", "asked to start", "first start", "asked to stop"])
        seconds = dice.uniform(0.5, 2.2) * self.world.settings.lease_ttl_seconds
        is_freeze = dice.random() < 0.7
        hear = machine.host.on_event
        self._ambushed.add(machine.label)

        def strike(pod: PodId, what: str, address: str) -> None:
            hear(pod, what, address)
            if what != moment:
                return
            machine.host.on_event = hear
            self._ambushed.discard(machine.label)
            if self.is_calm:
                return
            if is_freeze:
                self._say(machine, f"daemon stopped (SIGSTOP) amid its work for {seconds:.1f} s")
                self.world.loop.freeze(machine.label)
                self._at(seconds, lambda: self.world.thaw(machine))
            elif not machine.is_partitioned:
                self.world.partition(machine.name)
                self._at(seconds, lambda: self.world.heal(machine.name))

        machine.host.on_event = strike
        return True

    def _clock_step(self, machine: Machine, dice: random.Random) -> None:
        seconds = dice.choice([-3600.0, -5.0, 5.0, 3600.0])
        self._say(machine, f"wall clock set by {seconds:+g} s")
        machine.clock.step_wall(seconds)

    async def _twin(self, machine: Machine, dice: random.Random) -> bool:
        """Another machine is given the name of this node."""
        if self._twin_machine is not None:
            return False
        twin = self.world.make_machine(machine.name, machine.name + "'", 90 + machine.number)
        self._furnish(twin)
        self._twin_machine = twin
        self._say(twin, f"another machine starts under the name {machine.name}")
        self.world.start_machine(twin)
        self._later(dice.uniform(5, 40), self._end_twin_soon)
        return True

    def _end_twin_soon(self) -> None:
        twin, self._twin_machine = self._twin_machine, None
        if twin and twin.task:
            twin.task.cancel()
            twin.host.power_cut()
            self._say(twin, "is switched off", HEAL)
            if any(self.world.witness.has_held(twin.name, p) for p in twin.processes):
                # It had replaced the other for good.
                self.world.machines[twin.name].host.wipe()

    # The line to the store ----------------------------------------------------------------------

    def _cut(self, machine: Machine, dice: random.Random, cut: Cut) -> bool:
        if machine.is_partitioned:
            return False
        self.world.partition(machine.name, cut)
        # Often just about as long as a lease lives.
        ttl = self.world.settings.lease_ttl_seconds
        anyhow = dice.uniform(0.1, 30) * self._lasting
        seconds = dice.choice([anyhow, ttl + dice.uniform(-0.2, 0.6)])
        self._at(seconds, lambda: self.world.heal(machine.name))
        return True

    def _partition(self, machine: Machine, dice: random.Random) -> bool:
        return self._cut(machine, dice, Cut.BOTH)

    def _partitions(self, machine: Machine, dice: random.Random) -> bool:
        """Most nodes at once, as when a switch goes."""
        names = sorted(self.world.machines)
        chosen = dice.sample(names, len(names) // 2 + 1)
        done = [self._cut(self.world.machines[name], dice, Cut.BOTH) for name in chosen]
        return any(done)

    def _deaf(self, machine: Machine, dice: random.Random) -> bool:
        return self._cut(machine, dice, Cut.ANSWERS)

    def _mute(self, machine: Machine, dice: random.Random) -> bool:
        return self._cut(machine, dice, Cut.REQUESTS)

    def _stuck_watch(self, machine: Machine, dice: random.Random) -> None:
        self._say(machine, "its watch is stuck")
        machine.is_stuck = True
        if machine.store:
            machine.store.stick()
        self._later(dice.choice([1, 5, 15]) * dice.random(), lambda: self._unstick(machine))

    def _unstick(self, machine: Machine) -> None:
        machine.is_stuck = False
        machine.lags_until = self.world.loop.time() + VIEW_SECONDS
        if machine.store:
            machine.store.stick(False)

    def _slow(self, machine: Machine, dice: random.Random) -> None:
        slow = dice.choice([0.3, 1.0, 2.0])
        self._say(machine, f"its link takes up to {slow:g} s each way")
        self.world.set_faults(machine, Faults(latency=(0.0, slow), watch_lag=(0.0, slow)))
        self._later(dice.uniform(1, 20), lambda: self.world.set_faults(machine, Faults()))

    def _weather(self, machine: Machine, dice: random.Random) -> None:
        """How slow and unreliable calls are for now."""
        slow = dice.choice([0.0, 0.02, 0.3])
        faults = Faults(
            latency=(0.0, slow),
            watch_lag=(0.0, slow * 3),
            unavailable=dice.choice([0.0, 0.0, 0.05]),
            ambiguous=dice.choice([0.0, 0.1, 0.3, 0.5]),
        )
        self.world.set_faults(machine, faults)
        machine.host.faults.fail_rate = dice.choice([0.0, 0.0, 0.1])
        machine.host.faults.hang_rate = dice.choice([0.0, 0.0, 0.02])

    def lose_answers(self, operations: object, dice: random.Random) -> None:
        """Now and then the node that a user talks to hears nothing of what it has just written.

        What it sends again may land long after it was decided, so it counts as lagging.
        """
        machines = self.world.machines.values()
        machine = next(m for m in machines if m.daemon and m.daemon.operations is operations)
        store = machine.store
        if store is None or dice.random() > LOST_ANSWERS:
            return
        self._say(machine, "answers of etcd are lost for a moment")
        seconds = dice.uniform(0.5, 2.5)
        store.faults = replace(machine.faults, ambiguous=0.7)
        lagging = self.world.loop.time() + seconds + DOUBT_SECONDS
        machine.lags_until = max(machine.lags_until, lagging)
        self._at(seconds, lambda: setattr(store, "faults", machine.faults))

    # etcd ---------------------------------------------------------------------------------------

    def _lease(self, machine: Machine, dice: random.Random) -> None:
        self.world.lose_lease(machine.name)

    def _leases(self, machine: Machine, dice: random.Random) -> None:
        """Many at once, as a confused old leader revokes them (etcd#15247)."""
        names = sorted(self.world.machines)
        chosen = dice.sample(names, dice.randint((len(names) + 1) // 2, len(names)))
        for name in chosen:
            after = dice.choice([0.0, 0.0, 1.0]) * dice.random()
            self._at(after, lambda name=name: self.world.lose_lease(name))  # type: ignore[misc]

    def _quorum(self, machine: Machine, dice: random.Random) -> bool:
        if self.world.etcd.is_paused:
            return False
        self._say(None, "quorum lost")
        self.world.etcd.pause()
        self._later(dice.choice([2, 10, 25]) * dice.random(), self.resume)
        return True

    def resume(self) -> None:
        if self.world.etcd.is_paused:
            self._say(None, "quorum again", HEAL)
            self.world.etcd.resume()

    def _compact(self, machine: Machine, dice: random.Random) -> bool:
        etcd = self.world.etcd
        if etcd.compacted >= etcd.revision or etcd.is_paused:
            return False
        self._say(None, f"compacted at {etcd.revision}")
        etcd.compact(etcd.revision)
        return True

    def _poison(self, machine: Machine, dice: random.Random) -> None:
        key = dice.choice(
            [
                keys.JOBS + b"default/poison",
                keys.JOBS + b"odd",
                keys.VERSIONS + b"default/job-1/many",
                keys.ASSIGNMENTS + b"n9/default/job-1",
                keys.STATUS + b"n9/default/job-1",
                keys.NODES + b"n9",
                keys.LEDGERS + b"n9",
                keys.CLAIMS + b"odd.localhost/",
                keys.EVENTS + b"n9/000",
                keys.DECISIONS + b"n9/00",
                keys.ROOT + b"settings/\xff",
            ]
        )
        self._say(None, f"somebody writes garbage to {key.decode(errors='replace')}")
        self.world.etcd.txn((), (Put(key, GARBAGE),))

    # The runtime --------------------------------------------------------------------------------

    def _exit(self, machine: Machine, dice: random.Random) -> bool:
        running = sorted(machine.host.running())
        if not running:
            return False
        machine.host.exit_container(dice.choice(running), "app", is_oom=dice.random() < 0.3)
        return True

    def _network(self, machine: Machine, dice: random.Random) -> bool:
        running = sorted(machine.host.running())
        if not running:
            return False
        pod = dice.choice(running)
        self._say(machine, f"{pod.name} loses its network")
        machine.host.stop_infra(pod)
        return True

    def _flap(self, machine: Machine, dice: random.Random) -> None:
        job, seconds = f"job-{dice.randint(1, self._jobs)}", dice.uniform(2, 30) * self._lasting
        self._say(None, f"{job} fails every second probe for {seconds:.1f} s")
        self._flapping[job] = self.world.loop.time() + seconds

    def _hung(self, machine: Machine, dice: random.Random) -> None:
        self._say(machine, "podman hangs")
        machine.host.faults.is_hung = True
        self._later(dice.uniform(1, 50), lambda: setattr(machine.host.faults, "is_hung", False))

    def _full(self, machine: Machine, dice: random.Random) -> None:
        self._say(machine, "disk full")
        machine.host.faults.is_full = True
        self._later(dice.uniform(1, 40), lambda: setattr(machine.host.faults, "is_full", False))

    def _image(self, machine: Machine, dice: random.Random) -> None:
        missing = dice.choice(IMAGES)
        self._say(machine, f"the image {missing!r} can't be had")
        machine.host.images = set(IMAGES) - {missing}
        self._later(dice.uniform(1, 30), lambda: setattr(machine.host, "images", None))

    def _port(self, machine: Machine, dice: random.Random) -> None:
        self._say(machine, "somebody else listens on port 8080")
        machine.host.foreign_ports.add(8080)
        self._later(dice.uniform(1, 30), machine.host.foreign_ports.clear)

    # Healing ------------------------------------------------------------------------------------

    def heal(self, name: NodeName) -> None:
        machine, world = self.world.machines[name], self.world
        world.thaw(machine)
        world.set_faults(machine, Faults())
        host = machine.host
        host.faults.fail_rate = host.faults.hang_rate = 0.0
        host.faults.is_hung = host.faults.is_full = False
        host.images = None
        host.foreign_ports.clear()
        world.heal(name)
        world.boot(name)

    async def calm_down(self) -> None:
        """From now on nothing new goes wrong, and etcd and the containers are well."""
        self._end_twin_soon()
        self.is_calm = True
        for machine in self.world.machines.values():
            machine.host.calm()
        self.resume()

    async def break_for_ever(self, name: NodeName, dice: random.Random) -> str:
        """Heal a node, and then leave it broken; in which way."""
        self.heal(name)
        world, machine = self.world, self.world.machines[name]
        how = dice.choice(FOR_EVER)
        world.say(f"stays broken for ever: {how}", name, FAULT)
        match how:
            case "off":
                await world.cut_machine(machine)
            case "killed":
                await world.kill_machine(machine)
            case "cut":
                world.partition(name)
            case "deaf":
                world.partition(name, Cut.ANSWERS)
            case "mute":
                world.partition(name, Cut.REQUESTS)
            case "frozen":
                world.loop.freeze(machine.label)
            case "hung":
                machine.host.faults.is_hung = True
            case "full":
                machine.host.faults.is_full = True
        return how
