"""Why a job does not fit, with numbers, and what would make it fit.

The numbers are those of bin-packing: "only 10G can be allocated" counts whole instances on real
nodes, not free bytes lying about. The resource to blame is found by asking again as if there were
no end of it. Every suggestion has been put to the scheduler and found to fit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ozymandias import problems
from ozymandias.core.labels import spelled, unmet
from ozymandias.core.placement import NOW_OR_SOON, Room, Rooms, eligible, most_that_fit
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Job, JobKey, PlacementRules, VolumeKind
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import format_size
from ozymandias.problems import Kind, NodeShortfall, Problem, Suggestion

MEBIBYTE = 2**20
FINE_STEP = 16 * MEBIBYTE  # sizes below 1G are suggested in these steps, larger ones in coarse
COARSE_STEP = 64 * MEBIBYTE
BLAMED = (problems.INSUFFICIENT_MEMORY, problems.INSUFFICIENT_DISK, problems.INSUFFICIENT_PORTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What was to be placed, and where: ``kept`` instances stay as they are, all are ``wanted``."""

    snapshot: Snapshot
    job: Job
    demand: Demand
    rooms: Rooms  # before the attempt
    wanted: int
    kept: int = 0
    there: Mapping[NodeName, int] = field(default_factory=dict)  # of those that are kept
    can_change_job: bool = True  # a new job file is being submitted, so its sizes can be changed

    @property
    def key(self) -> JobKey:
        return self.job.key

    def placeable(self, demand: Demand | None = None, rooms: Rooms | None = None) -> int:
        """How many instances there would be, up to all that are wanted."""
        places = self.rooms if rooms is None else rooms
        missing = self.wanted - self.kept
        return self.kept + most_that_fit(
            places,
            demand or self.demand,
            missing,
            NOW_OR_SOON,
            rules=self.job.placement,
            there=self.there,
        )

    def fits(self, demand: Demand | None = None, rooms: Rooms | None = None) -> bool:
        return self.placeable(demand, rooms) >= self.wanted


def reject(attempt: Attempt) -> Problem:
    """The problem of a job that does not fit."""
    placeable = attempt.placeable()
    assert placeable < attempt.wanted, "rejected a job that fits"
    suggestions = tuple(_suggestions(attempt, placeable))
    shortfalls = _shortfalls(attempt)
    if not attempt.rooms:
        return problems.does_not_fit(
            problems.NO_NODES,
            job=attempt.job.name,
            detail=f"No node takes work, so {attempt.key} can't be placed.",
            required=attempt.wanted,
            placeable=placeable,
            nodes=shortfalls,
            suggestions=suggestions,
        )
    if problem := _no_match(attempt, shortfalls, suggestions):
        return problem
    blamed = _blamed(attempt)
    detail, required, possible = _numbers(attempt, blamed[0], placeable)
    problem = problems.does_not_fit(
        blamed[0],
        job=attempt.job.name,
        detail=detail,
        required=required,
        placeable=possible,
        nodes=shortfalls,
        suggestions=suggestions,
    )
    others = [_numbers(attempt, kind, placeable)[0] for kind in blamed[1:]]
    return replace(problem, hint=" ".join((*others, problem.hint))) if others else problem


def _no_match(
    attempt: Attempt, shortfalls: list[NodeShortfall], suggestions: tuple[Suggestion, ...]
) -> Problem | None:
    """The problem, if the job's own rules would keep it out of nodes that had all the room."""
    rules = attempt.job.placement
    possible = attempt.placeable(Demand())
    if not (rules.require or rules.max_per_node) or possible >= attempt.wanted:
        return None
    matching = len(eligible(attempt.rooms, rules))
    asked = " and ".join(map(spelled, rules.require))
    if not matching:
        detail = f"{attempt.key} requires {asked}, and no node that takes work has that."
    else:
        which = f" with {asked}" if asked else ""
        detail = (
            f"{attempt.key} wants {attempt.wanted} instances, at most {rules.max_per_node} on a"
            f" node, and {_count(matching, 'node')}{which} can take {possible}."
        )
    return problems.does_not_fit(
        problems.NO_MATCHING_NODE,
        job=attempt.job.name,
        detail=detail,
        required=attempt.wanted,
        placeable=possible,
        nodes=shortfalls,
        suggestions=suggestions,
    )


def _numbers(attempt: Attempt, kind: Kind, placeable: int) -> tuple[str, int, int]:
    demand, wanted = attempt.demand, attempt.wanted
    if kind is problems.INSUFFICIENT_PORTS:
        ports = ", ".join(map(str, demand.host_ports))
        return problems.insufficient_ports_detail(ports, wanted, placeable), wanted, placeable
    if kind is problems.INSUFFICIENT_DISK:
        size = demand.disk_bytes
        detail = problems.insufficient_disk_detail(size * wanted, size * placeable)
    else:
        size = demand.memory_bytes
        detail = problems.insufficient_memory_detail(size * wanted, size * placeable)
    return detail, size * wanted, size * placeable


def _blamed(attempt: Attempt) -> list[Kind]:
    """What limits: the one resource whose plenty would do, else all that fall short by themselves.

    Memory comes first when several would do, because it is what people think of first.
    """
    demand = attempt.demand
    without = (
        replace(demand, memory_bytes=0),
        replace(demand, disk_bytes=0),
        replace(demand, host_ports=()),
    )
    enough = [kind for kind, less in zip(BLAMED, without, strict=True) if attempt.fits(demand=less)]
    if enough:
        return enough[:1]
    alone = (
        Demand(memory_bytes=demand.memory_bytes),
        Demand(disk_bytes=demand.disk_bytes),
        Demand(host_ports=demand.host_ports),
    )
    short = [kind for kind, only in zip(BLAMED, alone, strict=True) if not attempt.fits(only)]
    return short or [problems.INSUFFICIENT_MEMORY]


# Node by node -----------------------------------------------------------------------------------


def _shortfalls(attempt: Attempt) -> list[NodeShortfall]:
    """By how much one more instance falls short, when as many as fit are there."""
    return [
        shortfall(
            node,
            attempt.rooms.get(name, Room.of(node)),
            attempt.demand,
            job=attempt.key,
            most=attempt.wanted - attempt.kept,
            rules=attempt.job.placement,
            there=attempt.there.get(name, 0),
        )
        for name, node in sorted(attempt.snapshot.nodes.items())
    ]


def shortfall(
    node: Node,
    room: Room,
    demand: Demand,
    *,
    state: SlotState = SlotState.WAITING,
    most: int = 0,
    job: JobKey | None = None,
    rules: PlacementRules | None = None,
    there: int = 0,
) -> NodeShortfall:
    """What a node lacks for one instance in this state, beyond the ``most`` tried there.

    ``there`` is how many of the job it has already, for the job's own limit per node.
    """
    closed = why_closed(node) or (why_not_matching(node, rules, there) if rules else "")
    if rules and rules.max_per_node:
        most = min(most, max(0, rules.max_per_node - there))
    placed = 0 if closed else room.count(demand, state, most)
    if rules and not closed and placed and placed + there == rules.max_per_node:
        closed = _at_limit(rules)
    free_memory = max(0, room.memory_left(state) - placed * demand.memory_bytes)
    free_disk = max(0, room.disk_left(state) - placed * demand.disk_bytes)
    taken = demand.host_ports if placed else room.taken(demand, state)
    return NodeShortfall(
        node=node.name,
        free_memory_bytes=free_memory,
        free_disk_bytes=free_disk,
        short_memory_bytes=max(0, demand.memory_bytes - free_memory),
        short_disk_bytes=max(0, demand.disk_bytes - free_disk),
        taken_ports=tuple(map(str, taken)),
        reason=closed or (f"with {placed} of {job} there" if placed else ""),
    )


def why_closed(node: Node) -> str:
    """Why a node takes no work; empty if it does."""
    if node.presence is None:
        return "not alive"
    if node.presence.degraded:
        return f"degraded: {node.presence.degraded}"
    if node.ledger.drain:
        return "being drained"
    return "cordoned" if node.ledger.is_cordoned else ""


def why_not_matching(node: Node, rules: PlacementRules, there: int = 0) -> str:
    """What a job's rules have against a node; empty if nothing."""
    if rule := unmet(rules.require, node.ledger.all_labels):
        return f"without label {spelled(rule)}"
    return _at_limit(rules) if 0 < rules.max_per_node <= there else ""


def _at_limit(rules: PlacementRules) -> str:
    return f"at the job's limit of {rules.max_per_node} per node"


def needs(demand: Demand) -> str:
    parts = [f"{format_size(demand.memory_bytes)} of memory"]
    if demand.disk_bytes:
        parts.append(f"{format_size(demand.disk_bytes)} of disk")
    parts += [f"host port {port}" for port in demand.host_ports]
    return " and ".join(parts)


def describe(short: NodeShortfall) -> str:
    """``n1 is 512M of memory short (1.5G free)``; ``n2 is cordoned``."""
    if short.reason:
        return f"{short.node} is {short.reason}"
    parts = []
    for unit, amount, free in (
        ("memory", short.short_memory_bytes, short.free_memory_bytes),
        ("disk", short.short_disk_bytes, short.free_disk_bytes),
    ):
        if amount:
            parts.append(f"{format_size(amount)} of {unit} short ({format_size(free)} free)")
    parts += [f"without host port {port}, which is taken" for port in short.taken_ports]
    return f"{short.node} is " + (" and ".join(parts) or "free")


# What would make it fit -------------------------------------------------------------------------


def _suggestions(attempt: Attempt, placeable: int) -> Iterator[Suggestion]:
    yield from _fewer_instances(attempt, placeable)
    if attempt.can_change_job:
        yield from _less_memory(attempt)
        yield from _less_disk(attempt)
        yield from _no_host_port(attempt)
    yield from _started(attempt)
    yield from _uncordoned(attempt)
    yield from _more_nodes(attempt, placeable)


def _fewer_instances(attempt: Attempt, placeable: int) -> Iterator[Suggestion]:
    if placeable > attempt.kept and replace(attempt, wanted=placeable).fits():
        yield Suggestion(
            text=f"run {_count(placeable, 'instance')} instead of {attempt.wanted}",
            change={"numInstances": placeable},
        )


def _less_memory(attempt: Attempt) -> Iterator[Suggestion]:
    job, demand = attempt.job, attempt.demand
    largest = max(job.containers, key=lambda c: c.memory_bytes)
    others = demand.memory_bytes - largest.memory_bytes

    def with_memory(size: int) -> Demand:
        return replace(demand, memory_bytes=others + size)

    size = _largest_that_fits(attempt, with_memory, largest.memory_bytes)
    if size:
        yield Suggestion(
            text=f"give {largest.name} {exact_size(size)} of memory"
            f" instead of {format_size(largest.memory_bytes)}",
            change={f"containers.{largest.name}.memory": exact_size(size)},
        )


def _less_disk(attempt: Attempt) -> Iterator[Suggestion]:
    job, demand = attempt.job, attempt.demand
    volumes = [(v, c) for c in job.containers for v in c.volumes if v.kind is VolumeKind.LOCAL]
    if not volumes:
        return
    largest, container = max(volumes, key=lambda pair: pair[0].space_bytes)
    others = demand.disk_bytes - largest.space_bytes

    def with_disk(size: int) -> Demand:
        return replace(demand, disk_bytes=others + size)

    size = _largest_that_fits(attempt, with_disk, largest.space_bytes)
    if size:
        yield Suggestion(
            text=f"give the volume {largest.path} of {container.name} {exact_size(size)}"
            f" instead of {format_size(largest.space_bytes)}",
            change={f"containers.{container.name}.volumes.{largest.path}.space": exact_size(size)},
        )


def _no_host_port(attempt: Attempt) -> Iterator[Suggestion]:
    ports = attempt.demand.host_ports
    if ports and attempt.fits(replace(attempt.demand, host_ports=())):
        names = ", ".join(map(str, ports))
        yield Suggestion(
            text=f"ask for no host port ({names}): pods have addresses of their own",
            change={"ports": "without host"},
        )


def _started(attempt: Attempt) -> Iterator[Suggestion]:
    """Nodes that are merely not there: one of them, or all."""
    away = rooms_if_started(attempt.snapshot)
    for names in (*([name] for name in away), list(away) if len(away) > 1 else []):
        back = {name: away[name] for name in names}
        if back and attempt.fits(rooms=attempt.rooms | back):
            yield Suggestion(text=start_words(names), change={"start": names})
            return


def rooms_if_started(snapshot: Snapshot) -> Rooms:
    """What the nodes that are not alive would offer, if they were."""
    return {
        name: Room.of(node)
        for name, node in sorted(snapshot.nodes.items())
        if not node.is_alive and node.ledger.takes_work
    }


def start_words(names: Sequence[NodeName]) -> str:
    command = "; ".join(f"ozy node start {name}" for name in names)
    return f"start {' and '.join(names)} (where `ozy up` made it: `{command}`)"


def _uncordoned(attempt: Attempt) -> Iterator[Suggestion]:
    for name, node in sorted(attempt.snapshot.nodes.items()):
        if why_closed(node) == "cordoned" and attempt.fits(
            rooms=attempt.rooms | {name: Room.of(node)}
        ):
            yield Suggestion(text=f"uncordon {name}", change={"uncordon": name})
            return


def _more_nodes(attempt: Attempt, placeable: int) -> Iterator[Suggestion]:
    missing = attempt.wanted - placeable
    demand, rules = attempt.demand, attempt.job.placement
    each = 1 if demand.host_ports else min(missing, rules.max_per_node or missing)
    nodes = -(-missing // each)
    memory, disk = (size * each for size in (demand.memory_bytes, demand.disk_bytes))
    virtual: Rooms = {}
    for number in range(nodes):
        name = NodeName(f"\0new-{number}")
        virtual[name] = Room(node=name, memory_limit=memory, disk_limit=disk, labels=None)
    if attempt.fits(rooms=attempt.rooms | virtual):
        asked = "".join(f" {spelled(rule)}," for rule in rules.require)
        size = f"{exact_size(memory)} of memory"
        if disk:
            size += f" and {exact_size(disk)} of disk"
        yield Suggestion(
            text=f"add {_count(nodes, 'node')} with{asked} at least {size} to allocate",
            change={"nodes": nodes, "memory_bytes": memory, "disk_bytes": disk},
        )


def _largest_that_fits(attempt: Attempt, demand_of: Callable[[int], Demand], size: int) -> int:
    """The largest human size below ``size`` with which everything fits; 0 if there is none."""
    low, high = 0, (size - 1) // FINE_STEP  # in fine steps; low fits or is 0, high + 1 does not
    while low < high:
        middle = (low + high + 1) // 2
        if attempt.fits(demand_of(middle * FINE_STEP)):
            low = middle
        else:
            high = middle - 1
    found = low * FINE_STEP
    if found > 2**30:
        found -= found % COARSE_STEP
    return found if found and attempt.fits(demand_of(found)) else 0


def exact_size(size_bytes: int) -> str:
    """A size as a job file spells it, never rounded: ``2G``, ``1600M``, ``12345``."""
    for suffix, factor in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{suffix}"
    return str(size_bytes)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
