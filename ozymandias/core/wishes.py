"""What a placed instance does not have though its job would like it, and why.

Preferences never block, so what was given up has to be tellable: `given_up` compares where an
instance is with where its job would rather have it, by the rules as they are now. It also tells
what is required and does not hold any more (a label that was changed, a neighbour that has left):
rules count when an instance is placed, and nobody is stopped for them. What is done about it is
decided elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ozymandias.core.fitting import describe, shortfall
from ozymandias.core.rooms import RUNNING, Room
from ozymandias.core.rules import UNLABELLED, Rules, at_home, rules_of
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted, is_or_are

NODES_TOLD_MAX = 3  # of those that have what was given up

REQUIRED = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """One thing that an instance does not have."""

    kind: str  # prefer, near, apart, pool, spread, burst; require: it held once
    wish: str  # in words, as the job file has it
    weight: int  # of several the heaviest is missed most; 0: it has none
    nodes: frozenset[NodeName]  # those that it may be on, and that have it
    reason: str  # why it is not there


def given_up(
    snapshot: Snapshot, assigned: Assigned, rules: Rules | None = None
) -> tuple[GivenUp, ...]:
    """What this instance does without; ``rules`` of its version, where the caller has them."""
    record = snapshot.jobs.get(assigned.job)
    version = record.versions.get(assigned.version) if record else None
    if version is None:
        return ()
    rules = rules or rules_of(snapshot, version.job)
    missing = _Missing(snapshot, assigned, rules)
    return (*missing.required(), *missing.wishes(), *missing.spread(), *missing.burst())


def live_per_node(snapshot: Snapshot, key: JobKey) -> Counter[NodeName]:
    """How many of a job each node has, those that stop not counted."""
    return Counter(
        {
            node: live
            for node, assignment in snapshot.of(key).items()
            if (
                live := sum(
                    len(g.slots) for g in assignment.groups if g.state is not SlotState.STOPPING
                )
            )
        }
    )


class _Missing:
    def __init__(self, snapshot: Snapshot, assigned: Assigned, rules: Rules) -> None:
        self.snapshot, self.rules, self.node = snapshot, rules, assigned.node
        self.demand = assigned.demand
        self.others = live_per_node(snapshot, assigned.job)
        if assigned.state is not SlotState.STOPPING:
            self.others[assigned.node] -= 1

    def required(self) -> Iterator[GivenUp]:
        if reason := self.rules.against.get(self.node):
            words = " and ".join(self.rules.required)
            nodes = frozenset(self.snapshot.nodes) - self.rules.against.keys()
            yield self._given_up(REQUIRED, words, 0, nodes, f"{self.node} is {reason}; ")

    def wishes(self) -> Iterator[GivenUp]:
        for wish in self.rules.wishes:
            if self.node not in wish.nodes:
                yield self._given_up(wish.kind, wish.words, wish.weight, wish.nodes)

    def spread(self) -> Iterator[GivenUp]:
        """Uneven is what one instance less here and one more there would make more even."""
        groups, label = self.rules.groups, self.rules.asked.spread
        if self.node not in groups:
            return
        counts = Counter({groups[name]: 0 for name in self._open(groups)})
        for name, number in self.others.items():
            counts[groups.get(name, UNLABELLED)] += number
        here = groups[self.node]
        fewer = {value for value, number in counts.items() if number < counts[here]}
        if fewer:
            nodes = frozenset(name for name in self._open(groups) if groups[name] in fewer)
            numbers = ", ".join(f"{counts[v]} on {_value(label, v)}" for v in sorted(fewer)[:3])
            others = f"{counted(counts[here], 'other')} {is_or_are(counts[here])}"
            why = f"{others} on {_value(label, here)}, {numbers}; "
            yield self._given_up("spread", f"even over {label}", 0, nodes, why)

    def burst(self) -> Iterator[GivenUp]:
        burst = self.rules.asked.burst
        if burst is None or self.node not in burst.nodes:
            return
        home = at_home(burst.nodes, self.others)
        if home < burst.after:
            nodes = frozenset(self.snapshot.nodes) - frozenset(map(NodeName, burst.nodes))
            why = f"{home} of {burst.after} are at home; "
            yield self._given_up("burst", f"at home, not on {self.node}", 0, nodes, why)

    def _given_up(
        self, kind: str, wish: str, weight: int, nodes: frozenset[NodeName], why: str = ""
    ) -> GivenUp:
        allowed = frozenset(name for name in nodes if name not in self.rules.against)
        return GivenUp(
            kind=kind,
            wish=wish,
            weight=weight,
            nodes=allowed,
            reason=why + self._why_not_there(allowed),
        )

    def _open(self, names: Iterable[NodeName]) -> Iterator[NodeName]:
        """Those that take work and have nothing against them."""
        nodes, against = self.snapshot.nodes, self.rules.against
        return (n for n in names if n not in against and nodes[n].is_schedulable)

    def _why_not_there(self, names: frozenset[NodeName]) -> str:
        if not names:
            return "no node that it may be on has that"
        told = [self._lacks(name) for name in sorted(names)[:NODES_TOLD_MAX]]
        more = len(names) - len(told)
        return ", ".join((*told, *((f"and {more} more",) if more else ())))

    def _lacks(self, name: NodeName) -> str:
        node = self.snapshot.nodes[name]
        there: Mapping[NodeName, int] = self.others
        short = shortfall(
            node, Room.of(node), self.demand, state=RUNNING, rules=self.rules, there=there
        )
        amounts = (short.short_memory_bytes, short.short_disk_bytes, short.short_cpu_millis)
        is_short = any(amounts) or short.taken_ports or short.reason
        return describe(short) if is_short else f"{name} has room for it now"


def _value(label: str, value: str) -> str:
    return f"{label} {value}" if value else f"nodes without {label}"
