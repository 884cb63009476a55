"""Nodes that are not there yet: what they would have to be for a job to get its places on them.

They have labels that satisfy what the job and the pool of its namespace require, and room: for the
instances that are missing, for the system jobs that come to every node before anything else, and
where others wait beside the job, for those who are served first.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ozymandias.core.attempt import Attempt
from ozymandias.core.buckets import census, is_system
from ozymandias.core.labels import unmet
from ozymandias.core.rooms import Room, Rooms
from ozymandias.core.rules import label_demands, outside, pools_of, rules_of
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Burst, Job, LabelRule
from ozymandias.model.labels import labels_for, spelled
from ozymandias.model.node import Demand, Ledger, Node, NodeName, Presence, Resources
from ozymandias.model.record import replace
from ozymandias.model.units import counted, exact_size, format_cores, format_size
from ozymandias.problems import Suggestion

UNADDRESSED = Presence(address="", machine_id="", session="", daemon_version="", api="")


def nodes_of(change: Mapping[str, Any]) -> dict[NodeName, Node]:
    """The nodes that a suggestion words: so many, of that size, with those labels."""
    capacity = Resources(
        memory_bytes=change["memory_bytes"],
        disk_bytes=change["disk_bytes"],
        cpu_millis=change.get("cpu_millis", 0),
    )
    ledger = Ledger(capacity=capacity, labels=change.get("labels", {}))
    # No node that is there has a name like these.
    names = [NodeName(f"\0new-{number}") for number in range(change["nodes"])]
    return {name: present(Node(name=name, ledger=ledger, ledger_revision=1)) for name in names}


def present(node: Node) -> Node:
    """The node as it would be if it were there."""
    return replace(node, presence=node.presence or UNADDRESSED, presence_revision=1)


def more_nodes(
    attempt: Attempt, placeable: int, ahead: tuple[int, ...] = ()
) -> Iterator[Suggestion]:
    """Nodes with which all would fit, the smallest first.

    ``ahead``: priorities from which others who wait could be served before the job.
    """
    missing, asked = attempt.wanted - placeable, attempt.job.placement
    if any(not neighbour.weight for neighbour in asked.near):
        return  # a new node has nobody to be near to
    for rules in label_demands(attempt.snapshot.settings, attempt.job):
        labels = labels_for(rules)
        if labels is None:
            continue
        newcomers = _fewest(partial(_newcomers, attempt, rules, labels), missing, asked.burst)
        for others in newcomers.ahead(ahead):
            if suggestion := newcomers.suggestion(others):
                yield suggestion


def together(attempt: Attempt, missing: int, other: Attempt) -> Attempt:
    """The attempt of another job, each of whose instances brings those along that wait for it."""
    each = -(-missing // max(1, other.wanted - other.placeable()))
    size, own = _many(attempt.demand, each), other.demand
    demand = replace(
        own,
        memory_bytes=own.memory_bytes + size.memory_bytes,
        disk_bytes=own.disk_bytes + size.disk_bytes,
        cpu_millis=own.cpu_millis + size.cpu_millis,
        host_ports=(*own.host_ports, *attempt.demand.host_ports),
    )
    return replace(other, demand=demand)


def _fewest(made: Callable[[int], "_Newcomers"], missing: int, burst: Burst | None) -> "_Newcomers":
    """Those for all that are missing.

    Or for fewer, where the others have a place on the burst's nodes once home has its part.
    """
    if burst:
        numbers = range(1, missing)
        missing = 1 + bisect_left(numbers, True, key=lambda number: made(number).is_enough)
    return made(missing)


def _newcomers(
    attempt: Attempt, rules: tuple[LabelRule, ...], labels: Mapping[str, str], missing: int
) -> "_Newcomers":
    """As few as may be for so many instances, and no larger than they need to be."""
    limit = 1 if attempt.demand.host_ports else attempt.job.placement.max_per_node
    count = -(-missing // (limit or missing))
    each = -(-missing // count)
    return _Newcomers(attempt=attempt, count=count, each=each, rules=rules, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newcomers:
    """So many new nodes alike, each for so many instances of the job."""

    attempt: Attempt
    count: int
    each: int
    rules: tuple[LabelRule, ...]
    labels: Mapping[str, str]

    @property
    def is_enough(self) -> bool:
        """If nobody comes before the job."""
        return self.suggestion(Resources()) is not None

    def suggestion(self, ahead: Resources) -> Suggestion | None:
        """What to add, with room for who is ``ahead`` on each of them; None if it would not do."""
        snapshot, job, demand = self.attempt.snapshot, self.attempt.job, self.attempt.demand
        system = list(self._system_demands())
        own = _many(demand, self.each)
        others = sum((d.resources for d in system), ahead)
        size = own + others
        change = {
            "nodes": self.count,
            "memory_bytes": size.memory_bytes,
            "disk_bytes": size.disk_bytes,
            **({"cpu_millis": size.cpu_millis} if demand.cpu_millis else {}),
            **({"labels": dict(self.labels)} if self.labels else {}),
        }
        nodes = nodes_of(change)
        rooms: Rooms = {name: Room.of(node) for name, node in nodes.items()}
        for room in rooms.values():
            for one in system:
                room.take(one, SlotState.RUNNING)
        world = replace(snapshot, nodes={**snapshot.nodes, **nodes})
        if not self.attempt.fits(rooms=self.attempt.rooms | rooms, rules=rules_of(world, job)):
            return None
        system_bytes = others.memory_bytes - ahead.memory_bytes
        words = self._words(size, system_bytes, ahead.memory_bytes)
        return Suggestion(text=words, change=change)

    def _words(self, size: Resources, system_bytes: int, ahead_bytes: int) -> str:
        asked = "".join(f" {words}," for words in self._label_words())
        sizes = f"{exact_size(size.memory_bytes)} of memory"
        if size.disk_bytes:
            sizes += f" and {exact_size(size.disk_bytes)} of disk"
        if self.attempt.demand.cpu_millis:
            sizes += f" and {format_cores(size.cpu_millis)}"
        whom = [
            f"{format_size(amount)} for {what}"
            for amount, what in ((system_bytes, "system jobs"), (ahead_bytes, "what comes first"))
            if amount
        ]
        note = f" ({' and '.join(whom)})" if whom else ""
        return f"add {counted(self.count, 'node')} with{asked} at least {sizes} to allocate{note}"

    def _label_words(self) -> Iterator[str]:
        """``zone=b``; and the rules that hold of what has no such label."""
        yield from (f"{label}={value}" for label, value in self.labels.items())
        yield from (spelled(rule) for rule in self.rules if rule.label not in self.labels)

    def _system_demands(self) -> Iterator[Demand]:
        """What comes to every node with these labels, before anything else does."""
        snapshot, labels = self.attempt.snapshot, self.labels
        for record in snapshot.jobs_where(is_system).values():
            if record.current is None or record.head.deleting:
                continue
            job = record.current.job
            pools = pools_of(snapshot.settings, job.namespace, is_hard=True)
            if unmet(job.placement.require, labels) is None and not outside(pools, labels):
                yield Demand.of(job)

    def ahead(self, priorities: tuple[int, ...]) -> Iterator[Resources]:
        """What others could have on each node before the job: none, then those of a priority.

        Each of the latter shared out among the nodes, and then all of it on each.
        """
        yield Resources()
        waiting = list(self._waiting()) if priorities else []
        seen = {Resources()}
        for least in priorities:
            served = [(job, count) for job, count in waiting if job.priority >= least]
            for nodes in (self.count, 1):
                found = Resources()
                for job, count in served:
                    limit = job.placement.max_per_node or count
                    found += _many(Demand.of(job), min(-(-count // nodes), limit))
                if found not in seen:
                    seen.add(found)
                    yield found

    def _waiting(self) -> Iterator[tuple[Job, int]]:
        """Other jobs that lack instances and may be on such a node, with how many they lack."""
        snapshot, key = self.attempt.snapshot, self.attempt.key
        live = census(snapshot).live
        one = nodes_of({"nodes": 1, "memory_bytes": 0, "disk_bytes": 0, "labels": self.labels})
        world = replace(snapshot, nodes={**snapshot.nodes, **one})
        for other, record in snapshot.jobs.items():
            missing = record.head.wanted - live.get(other, 0)
            if missing <= 0 or other == key or record.head.deleting or record.current is None:
                continue
            job = record.current.job
            if not (is_system(record) or one.keys() & rules_of(world, job).against):
                yield job, missing


def _many(demand: Demand, count: int) -> Resources:
    return Resources(
        memory_bytes=count * demand.memory_bytes,
        disk_bytes=count * demand.disk_bytes,
        cpu_millis=count * demand.cpu_millis,
    )
