"""How well the cluster is laid out, in numbers: what a move has to make smaller.

Six sums over all instances of services; the first that differs decides, as in placing:

    breach   instances on nodes that a required rule speaks against since it was changed
    away     instances on burst nodes that should be at home, of which there are too few there
    unmet    weights of the wishes that instances do without
    alike    pairs of one job on nodes with the same value of its `spread` label
    crowd    pairs of one job on the same node
    heat     squares of the percent points by which nodes are fuller than the target

All are whole numbers, none is ever below 0, and a move is made only if the first that it changes
falls clearly. So moving comes to an end, and what was moved for a reason is not moved back for a
lesser one. The first four are wishes of job files: to have them is to be *healed*.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ozymandias.core.edits import step
from ozymandias.core.rules import Rules, at_home, rules_of
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import Job, JobKey, JobKind
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.plan import Edit
from ozymandias.model.snapshot import Snapshot


class Cost(NamedTuple):
    """Smaller is better, compared from left to right."""

    breach: int = 0
    away: int = 0
    unmet: int = 0
    alike: int = 0
    crowd: int = 0
    heat: int = 0

    def less(self, other: "Cost") -> "Cost":
        return Cost(*(one - two for one, two in zip(self, other, strict=True)))

    def more(self, other: "Cost") -> "Cost":
        return Cost(*(one + two for one, two in zip(self, other, strict=True)))


# The least that a sum must fall by: a node is worth relieving that is five points too full.
LEAST = Cost(breach=1, away=1, unmet=1, alike=1, crowd=1, heat=25)
HEALING = ("breach", "away", "unmet", "alike")


def is_clear(gain: Cost) -> bool:
    """Whether a gain is worth a move: the first sum that changes falls, and by enough."""
    return next((one >= least for one, least in zip(gain, LEAST, strict=True) if one), False)


def is_healing(gain: Cost) -> bool:
    return is_clear(gain) and any(getattr(gain, name) for name in HEALING)


class Layout:
    """Where the instances of services are, or would be after moves. A working copy."""

    def __init__(self, snapshot: Snapshot, gone: Iterable[Assigned] = ()) -> None:
        """``gone``: instances that are taken for gone already, as their moves will have it."""
        self.snapshot = snapshot
        self.counts: dict[JobKey, Counter[NodeName]] = {}
        self.memory: Counter[NodeName] = Counter()  # promised
        self.limits: dict[NodeName, int] = {}
        self._jobs: dict[JobKey, Job] = {}
        self._decided: list[Edit] = []
        self._rules: dict[JobKey, Rules] = {}
        self._namers: dict[JobKey, set[JobKey]] = {}
        self._read_jobs()
        self._read_places()
        self._gone = 0  # how many of the decided are those
        for assigned in gone:
            self._gone += 1
            self._decided.append(step(assigned, None, ""))
            if assigned.job in self.counts:
                self.counts[assigned.job][assigned.node] -= 1
            self.memory[assigned.node] -= assigned.demand.memory_bytes

    def _read_jobs(self) -> None:
        for key, record in self.snapshot.jobs.items():
            if record.current is None or record.current.job.kind is JobKind.SYSTEM:
                continue
            job = self._jobs[key] = record.current.job
            for other in (*job.placement.near, *job.placement.apart):
                self._namers.setdefault(other.job, set()).add(key)

    def _read_places(self) -> None:
        for (node, key), assignment in self.snapshot.assignments.items():
            for group in assignment.groups:
                if group.state is not SlotState.STOPPING:
                    count = len(group.slots)
                    self.memory[node] += count * group.demand.memory_bytes
                    if key in self._jobs:
                        self.counts.setdefault(key, Counter())[node] += count
        self.limits = {
            name: max(1, node.ledger.allocatable.memory_bytes)
            for name, node in self.snapshot.nodes.items()
            if node.is_alive
        }

    def rules(self, key: JobKey) -> Rules:
        """The job's rules, with its neighbours where they are now."""
        found = self._rules.get(key)
        if found is None:
            found = self._rules[key] = rules_of(self.snapshot, self._jobs[key], self._decided)
        return found

    def rules_meanwhile(self, key: JobKey) -> Rules:
        """The same as long as those taken for gone are there: who comes must suit them as well."""
        if not self._gone:
            return self.rules(key)
        return rules_of(self.snapshot, self._jobs[key], self._decided[self._gone :])

    def percent(self, node: NodeName) -> int:
        """How full a node is with what it promises."""
        return 100 * self.memory[node] // self.limits.get(node, 1)

    # Moves --------------------------------------------------------------------------------------

    def move(self, key: JobKey, from_: NodeName, to: NodeName) -> None:
        job, demand = self._jobs[key], Demand.of(self._jobs[key])
        version = self.snapshot.jobs[key].head.version
        for node, before, after, sign in (
            (from_, SlotState.RUNNING, None, -1),
            (to, None, SlotState.RUNNING, 1),
        ):
            self.counts[key][node] += sign
            self.memory[node] += sign * demand.memory_bytes
            self._decided.append(_edit(job.key, node, version, before, after, demand))
        for other in self._related(key):
            self._rules.pop(other, None)

    def gain(self, key: JobKey, from_: NodeName, to: NodeName) -> Cost:
        """By how much each sum falls if one instance moves."""
        jobs, nodes = {key, *self._related(key)}, (from_, to)
        before, kept = self._cost(jobs, nodes), dict(self._rules)
        self.move(key, from_, to)
        after = self._cost(jobs, nodes)
        self.move(key, to, from_)
        del self._decided[-4:]
        self._rules = kept
        return before.less(after)

    def _related(self, key: JobKey) -> set[JobKey]:
        """The other jobs that care where this one is: it is named by them, or keeps from them."""
        apart = {other.job for other in self._jobs[key].placement.apart}
        return ((self._namers.get(key, set()) | apart) & self.counts.keys()) - {key}

    # Sums ---------------------------------------------------------------------------------------

    def total(self) -> Cost:
        return self._cost(self.counts, self.limits)

    def _cost(self, jobs: Iterable[JobKey], nodes: Iterable[NodeName]) -> Cost:
        target = self.snapshot.settings.target_percent
        heat = sum(max(0, self.percent(node) - target) ** 2 for node in nodes)
        total = Cost(heat=heat)
        for key in jobs:
            total = total.more(self.cost_of(key))
        return total

    def cost_of(self, key: JobKey) -> Cost:
        """What one job adds to the sums."""
        rules, counts = self.rules(key), self.counts[key]
        alike: Counter[str] = Counter()
        for node, count in counts.items():
            if node in rules.groups:
                alike[rules.groups[node]] += count
        return Cost(
            breach=sum(count for node, count in counts.items() if node in rules.against),
            away=away(rules, counts),
            unmet=sum(count * unmet_weight(rules, node) for node, count in counts.items()),
            alike=_pairs(alike),
            crowd=_pairs(counts),
        )


def away(rules: Rules, counts: Counter[NodeName]) -> int:
    """How many are on burst nodes though home has fewer than it may have."""
    burst = rules.asked.burst
    if burst is None:
        return 0
    home = at_home(burst.nodes, counts)
    return min(counts.total() - home, max(0, burst.after - home))


def unmet_weight(rules: Rules, node: NodeName) -> int:
    """The weight of the wishes that an instance does without on this node."""
    return sum(wish.weight for wish in rules.wishes if node not in wish.nodes)


def _pairs(counts: Counter[NodeName] | Counter[str]) -> int:
    return sum(count * (count - 1) // 2 for count in counts.values())


def _edit(
    key: JobKey,
    node: NodeName,
    version: int,
    before: SlotState | None,
    after: SlotState | None,
    demand: Demand,
) -> Edit:
    """What a move would be to those who look at decided edits; its slot matters to nobody."""
    return Edit(
        node=node,
        job=key,
        slot=0,
        uid="",
        version=version,
        before=before,
        after=after,
        demand=demand,
        reason="",
    )
