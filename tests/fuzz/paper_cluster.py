"""A cluster on paper: no daemon runs, but every write is the one that a daemon would make.

Nodes are entries in a simulated etcd, pods are names in a set, and time goes on when somebody says
so. What is real is all that decides and writes: planners (`core/`), batches, transactions and
registrations (`store/`). Every revision is judged by the simulator's witness, like in a whole
simulation, at a fraction of the cost. What daemons do on their hosts is not there: no probes, no
names, no events; nobody's view is old, and no answer is lost.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ozymandias.core.arbiter import Leisure, propose
from ozymandias.core.hindsight import Again, placements, stops
from ozymandias.core.loss import fence_seconds
from ozymandias.core.pods import pod_id
from ozymandias.core.routes import Names
from ozymandias.core.schedule import plan_vacate
from ozymandias.daemon.lately import Displacements
from ozymandias.model.instance import Assigned, InstanceState, InstanceStatus, SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.node import Demand, Load, NodeName, Presence, Resources
from ozymandias.model.plan import Plan
from ozymandias.model.pod import PodId
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Compare, Delete, Event, Listing, Op, Put
from ozymandias.problems import Problem
from ozymandias.sim.etcd import SimEtcd
from ozymandias.sim.witness import Rules, Witness
from ozymandias.store import codec, keys
from ozymandias.store.batch import Batch
from ozymandias.store.decisions import DecisionLog, decode
from ozymandias.store.mirror import Mirror
from ozymandias.store.registration import Offer, prepare_registration
from ozymandias.store.transaction import completed, drafted

NAMES = Names()
WALL = 1_800_000_000.0  # a Friday
LEASE_SECONDS = 6.0  # as daemons know it; fences are reckoned by it
FOR_EVER_SECONDS = 10**6  # of leases in etcd: they end when a life says so
DISK_BYTES, CPU_MILLIS = 20 * 2**30, 4000
OPERATIONS_MAX = 40  # of statuses in one transaction
REASON_CHARACTERS = 90  # of a step, in the story


@dataclass(slots=True)
class PaperClock:
    random: random.Random
    seconds: float = 0.0

    def wall(self) -> float:
        return WALL + self.seconds

    def boot(self) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Ask:
    """Something to be decided; ``tends`` is the node that an operator looks after with it."""

    what: str
    decide: Callable[[Snapshot], Plan | Problem | None]
    tends: NodeName | None = None


@dataclass(slots=True)
class Host:
    """A node as it is beside the store."""

    schedules: bool
    lease: int = 0  # 0: it has none
    lost_at: float = 0.0
    pods: set[PodId] = field(default_factory=set)  # that really are there


class PaperCluster:
    """Make it inside a running event loop, which the simulated etcd wants."""

    def __init__(
        self, dice: random.Random, *, nodes: int, schedulers: int, memory_bytes: int
    ) -> None:
        self.dice = dice
        self.clock = PaperClock(dice)
        self.story: list[str] = []
        self.violations: list[str] = []
        self._commits = 0
        self.hosts = {
            NodeName(f"n{number}"): Host(schedules=number <= schedulers)
            for number in range(1, nodes + 1)
        }
        self.etcd = SimEtcd()
        self.etcd.on_commit.append(self._committed)
        self.mirror = Mirror(None)  # type: ignore[arg-type]
        self.mirror._restart(Listing(self.etcd.revision, ()))
        # Nobody waits for others to come back, so there is no breaker to judge.
        rules = Rules(lease_ttl_seconds=LEASE_SECONDS, breaker_seconds=0.0)
        self.witness = Witness(rules, self.clock.boot, self.violate)
        self.witness.is_tended = lambda node: node in self._tended
        self.displacements = Displacements(self.clock)
        self._tended: set[NodeName] = set()
        self._actor: tuple[NodeName, str] | None = None
        self._records: dict[NodeName, DecisionLog] = {}
        self._memory_bytes = memory_bytes

    def violate(self, what: str) -> None:
        self.violations.append(f"t={self.clock.seconds:.2f}, revision {self.etcd.revision}: {what}")
        self.say(f"VIOLATED: {what}")

    def say(self, text: str) -> None:
        self.story.append(f"{self.clock.seconds:8.2f} {text}")

    @property
    def alive(self) -> list[NodeName]:
        return [name for name, host in self.hosts.items() if host.lease]

    @property
    def gone(self) -> list[NodeName]:
        return [name for name, host in self.hosts.items() if not host.lease]

    @property
    def schedulers(self) -> list[NodeName]:
        return [name for name in self.alive if self.hosts[name].schedules]

    # Writing ------------------------------------------------------------------------------------

    def _committed(self, revision: int, events: list[Event]) -> None:
        self.mirror._follow(events)
        self.witness.commit(revision, events, self._actor, self.clock.seconds)

    def _write(self, node: NodeName, compare: Sequence[Compare], then: Sequence[Op]) -> None:
        """As the daemon of that node; a lost race is a violation, for there is nobody to race."""
        self._actor = node, _session(node)
        result = self.etcd.txn(compare, then)
        self._actor = None
        if not result.succeeded:
            self.violate(f"S0 {node} compared what nobody else has changed, and lost")

    def _fence(self, node: NodeName) -> tuple[Compare, ...]:
        record = self.etcd.get(keys.node(node))
        assert record is not None, f"{node} is not there"
        return (
            Compare(record.key, "create", "=", record.create_revision),
            Compare(record.key, "lease", "=", record.lease),
        )

    def _commit_id(self) -> str:
        self._commits += 1
        return f"{self._commits:016x}"

    def commit(self, node: NodeName, asks: Sequence[Ask]) -> bool:
        """One node decides all this, each on what those before it leave.

        Whether there was anything to write, and all is well.
        """
        batch = Batch(self.mirror.snapshot(), self._commit_id())
        for ask in asks:
            plan = ask.decide(batch.after)
            if isinstance(plan, Problem):
                self.say(f"{node}, {ask.what}: {plan.kind.slug}")
            elif plan is not None and not plan.is_empty and batch.takes(plan):
                self.say("\n".join((f"{node}, {ask.what}: {plan.reason}", *_steps(plan))))
                try:
                    batch.add(plan)
                except AssertionError as error:
                    self.violate(f"S0 {ask.what} broke what every plan must hold: {error}")
                    return False
        return bool(batch.plans) and self._send(node, batch, asks)

    def _send(self, node: NodeName, batch: Batch, asks: Sequence[Ask]) -> bool:
        transaction = completed(drafted(batch, NAMES), batch, self._fence(node))
        if len(batch.plans) > 1:
            self.say(f"{node} commits these {len(batch.plans)} together")
        record = self._records[node].put(batch.before, batch.plans)
        then = (*transaction.then, record) if record else transaction.then
        for again in _made_again(record) if record else ():
            if again.is_same is False:
                self.violate(f"S18 {again.step.job}-{again.slot}, made again: {again.why}")
        self._tended = {ask.tends for ask in asks if ask.tends}
        self._write(node, transaction.compare, then)
        self._tended = set()
        return not self.violations

    def own(self, leisure: Leisure | None = None) -> Ask:
        """What the cluster does of its own accord, as any peer would decide it now."""
        return Ask("of its own accord", lambda snapshot: self._propose(snapshot, leisure))

    def _propose(self, snapshot: Snapshot, leisure: Leisure | None) -> Plan | None:
        self.displacements.look(snapshot)
        now, lately = self.clock.seconds, self.displacements.lately()
        dead = frozenset(name for name, node in snapshot.nodes.items() if not node.is_alive)
        fence = fence_seconds(LEASE_SECONDS)
        fenced = frozenset(name for name in dead if now - self.hosts[name].lost_at > fence)
        found = propose(snapshot, dead, self.clock.wall(), fenced, lately, leisure)
        return found.plan if found else None

    # Nodes come and go --------------------------------------------------------------------------

    def join(self, node: NodeName) -> None:
        """It counts its pods, and enters those that it did not know of."""
        host = self.hosts[node]
        host.lease, _ = self.etcd.grant(FOR_EVER_SECONDS)
        found = tuple(sorted(host.pods))
        self.say(f"{node} joins with {', '.join(pod.name for pod in found) or 'nothing'}")
        offer = Offer(
            node=node,
            presence=_presence(node, schedules=host.schedules),
            capacity=Resources(
                memory_bytes=self._memory_bytes, disk_bytes=DISK_BYTES, cpu_millis=CPU_MILLIS
            ),
            reserve=Resources(),
            labels={},
            found=found,
            # Who does not schedule can't see what others were given, and reclaims nothing.
            running=frozenset(found) if host.schedules else frozenset(),
        )
        demands = {pod: self._demand(pod) for pod in found}
        transaction, _ = prepare_registration(
            self.mirror.snapshot(), offer, demands, host.lease, self._commit_id()
        )
        self._write(node, transaction.compare, transaction.then)
        self._records[node] = DecisionLog(node=node, mirror=self.mirror, clock=self.clock)

    def _demand(self, pod: PodId) -> Demand:
        """What it takes, by the version that it was made from."""
        for version in self.mirror.versions(pod.key):
            if (version.version, version.uid) == (pod.version, pod.uid):
                return Demand.of(version.job)
        return Demand()

    def lose(self, node: NodeName) -> None:
        """Its lease lapses; its pods end with it, or run on."""
        host = self.hosts[node]
        lease, host.lease, host.lost_at = host.lease, 0, self.clock.seconds
        if self.dice.random() < 0.5:
            host.pods.clear()
        self.say(f"{node} is lost; {len(host.pods)} pods run on")
        self.etcd.expire(lease)

    def press(self, node: NodeName, load: Load) -> None:
        """The host tells how short of something it is."""
        self.say(f"{node} tells of {load.taint or 'no pressure'}, down to {load.shed_to}")
        put = Put(keys.load(node), codec.encode(load), self.hosts[node].lease)
        self._write(node, self._fence(node), [put])

    # What a node does with what it was given ----------------------------------------------------

    def work(self, node: NodeName, *, is_prompt: bool) -> None:
        """Pods are made and ended, what is gone is given up, and statuses are told.

        Who ``is_prompt`` does all of it, and all is healthy; others do some of it, now and then.
        """
        self._run_pods(node, is_prompt)
        self.commit(node, [self.vacate(node)])
        if not self.violations:
            self._tell(node, is_prompt)

    def _run_pods(self, node: NodeName, is_prompt: bool) -> None:
        pods = self.hosts[node].pods
        assigned = self.witness.truth.pods_of(node)
        for pod, state in assigned.items():
            if state is SlotState.RUNNING and self._does(0.7, is_prompt):
                pods.add(pod)
            elif state is SlotState.STOPPING and self._does(0.5, is_prompt):
                pods.discard(pod)
        for pod in sorted(pods - assigned.keys()):
            if self._does(0.5, is_prompt):
                pods.discard(pod)

    def _does(self, rate: float, is_prompt: bool) -> bool:
        return is_prompt or self.dice.random() < rate

    def vacate(self, node: NodeName) -> Ask:
        """The node gives up what was to stop and is not there any more."""
        there = frozenset(self.hosts[node].pods)
        return Ask("vacate", lambda snapshot: plan_vacate(snapshot, node, there))

    def _tell(self, node: NodeName, is_prompt: bool) -> None:
        """One status per job, under the node's lease; those of jobs that have left are deleted."""
        told: dict[JobKey, dict[int, InstanceStatus]] = {}
        snapshot = self.mirror.snapshot()
        for assigned in snapshot.instances_on(node):
            if assigned.state is not SlotState.WAITING:
                before = snapshot.status(assigned)
                status = self._status(assigned, before, is_prompt)
                told.setdefault(assigned.job, {})[assigned.slot] = status
        operations = list(self._status_writes(node, told))
        for start in range(0, len(operations), OPERATIONS_MAX):
            self._write(node, self._fence(node), operations[start : start + OPERATIONS_MAX])

    def _status(
        self, assigned: Assigned, before: InstanceStatus | None, is_prompt: bool
    ) -> InstanceStatus:
        pod = pod_id(assigned)
        is_there = assigned.state is SlotState.RUNNING and pod in self.hosts[assigned.node].pods
        is_healthy = is_there and self._is_well(before, is_prompt)
        if is_healthy:
            self.witness.pod_event(pod, "passed")
        is_same = before is not None and before.healthy == is_healthy
        return InstanceStatus(
            slot=assigned.slot,
            uid=assigned.uid,
            version=assigned.version,
            generation=assigned.generation,
            state=InstanceState.HEALTHY if is_healthy else InstanceState.STARTING,
            healthy=is_healthy,
            since=before.since if before and is_same else self.clock.wall(),
        )

    def _is_well(self, before: InstanceStatus | None, is_prompt: bool) -> bool:
        """Mostly it goes on as it was."""
        if is_prompt:
            return True
        if before is not None and self.dice.random() < 0.8:
            return before.healthy
        return self.dice.random() < 0.85

    def _status_writes(
        self, node: NodeName, told: dict[JobKey, dict[int, InstanceStatus]]
    ) -> Iterator[Op]:
        prefix = keys.statuses(node)
        stored = {kv.key: kv for kv in self.etcd.select(prefix, keys.prefix_end(prefix))}
        for job, statuses in sorted(told.items()):
            key, value = keys.status(node, job), codec.encode(dict(sorted(statuses.items())))
            known = stored.pop(key, None)
            if known is None or known.value != value:
                yield Put(key, value, self.hosts[node].lease)
        for key in stored:
            yield Delete(key)


def _session(node: NodeName) -> str:
    return f"session of {node}"


def _presence(node: NodeName, *, schedules: bool) -> Presence:
    return Presence(
        address="10.0.0.1",
        machine_id=f"machine of {node}",
        session=_session(node),
        daemon_version="0",
        api="",
        schedules=schedules,
    )


def _steps(plan: Plan) -> Iterator[str]:
    """Each step of a plan, as a line of the story."""
    for step in plan.steps:
        slots = ",".join(map(str, step.slots))
        which = f"{step.job}-{slots} v{step.version}.{step.generation}"
        change = f"{step.before or 'nothing'} -> {step.after or 'nothing'}"
        yield f"             {step.node} {which} {change}: {step.reason[:REASON_CHARACTERS]}"


def _made_again(record: Put) -> Iterator[Again]:
    """All that was decided, from what the store is given to keep of it."""
    decision = decode(record.value)
    yield from placements(decision)
    yield from stops(decision)
