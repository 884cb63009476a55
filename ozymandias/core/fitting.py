"""Why a job does not fit, with numbers; what would make it fit is in `core/suggest.py`.

The numbers are those of bin-packing: "only 10G can be allocated" counts whole instances on real
nodes, not free bytes lying about. The resource to blame is found by asking again as if there were
no end of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from ozymandias import problems
from ozymandias.core.attempt import Attempt, why_closed
from ozymandias.core.placement import most_that_fit
from ozymandias.core.rooms import UNCOUNTED, Room
from ozymandias.core.rules import NO_RULES, Rules, unknown_burst_nodes
from ozymandias.core.suggest import suggestions_for
from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.record import replace
from ozymandias.model.units import counted, format_cores, format_size
from ozymandias.problems import Kind, NodeShortfall, Problem, Suggestion

BLAMED = (
    problems.INSUFFICIENT_MEMORY,
    problems.INSUFFICIENT_DISK,
    problems.INSUFFICIENT_PORTS,
    problems.INSUFFICIENT_CPU,
)


def reject(attempt: Attempt) -> Problem:
    """The problem of a job that does not fit."""
    placeable = attempt.placeable()
    assert placeable < attempt.wanted, "rejected a job that fits"
    suggestions = tuple(suggestions_for(attempt, placeable))
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
    if problem := _no_match(attempt, placeable, shortfalls, suggestions):
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
    attempt: Attempt,
    placeable: int,
    shortfalls: list[NodeShortfall],
    suggestions: tuple[Suggestion, ...],
) -> Problem | None:
    """The problem, if the job's own rules would keep it out of nodes that had all the room."""
    possible = attempt.placeable(Demand())
    if possible >= attempt.wanted:
        return None
    matching = len(attempt.rules.eligible(attempt.rooms))
    unknown = unknown_burst_nodes(attempt.snapshot, attempt.job)
    asked = " and ".join(attempt.rules.required)
    if not matching:
        detail = f"{attempt.key} requires {asked}, and no node that takes work has that."
    else:
        which = f" with {asked}" if asked else ""
        limits = "".join(f", {limit}" for limit in attempt.rules.limits)
        detail = (
            f"{attempt.key} wants {counted(attempt.wanted, 'instance')}{limits}, and"
            f" {counted(matching, 'node')}{which} can take {possible}"
            + (f", with room for {placeable} of them." if placeable < possible else ".")
        )
    detail += "".join(f" There is no node {name}." for name in unknown)
    return problems.does_not_fit(
        problems.NO_MATCHING_NODE,
        job=attempt.job.name,
        detail=detail,
        required=attempt.wanted,
        placeable=placeable,
        nodes=shortfalls,
        suggestions=suggestions,
    )


def _numbers(attempt: Attempt, kind: Kind, placeable: int) -> tuple[str, int, int]:
    demand, wanted = attempt.demand, attempt.wanted
    if kind is problems.INSUFFICIENT_PORTS:
        ports = ", ".join(map(str, demand.host_ports))
        return problems.insufficient_ports_detail(ports, wanted, placeable), wanted, placeable
    if kind is problems.INSUFFICIENT_CPU:
        millis = demand.cpu_millis
        detail = problems.insufficient_cpu_detail(millis * wanted, millis * placeable)
        return detail, millis * wanted, millis * placeable
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
        replace(demand, cpu_millis=0),
    )
    enough = [kind for kind, less in zip(BLAMED, without, strict=True) if attempt.fits(demand=less)]
    if enough:
        return enough[:1]
    alone = (
        Demand(memory_bytes=demand.memory_bytes),
        Demand(disk_bytes=demand.disk_bytes),
        Demand(host_ports=demand.host_ports),
        Demand(cpu_millis=demand.cpu_millis),
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
            rules=attempt.rules,
            there=attempt.there,
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
    rules: Rules = NO_RULES,
    there: Mapping[NodeName, int] | None = None,
) -> NodeShortfall:
    """What a node lacks for one instance in this state, beyond the ``most`` tried there.

    ``there`` is how many of the job each node has already, for the job's own limits.
    """
    known = dict(there or {})
    closed = why_closed(node) or rules.why_not(node.name, known)
    placed = 0
    if most and not closed:
        placed = most_that_fit({node.name: room}, demand, most, (state,), rules=rules, there=known)
        known[node.name] = known.get(node.name, 0) + placed
        closed = rules.why_not(node.name, known) if placed else ""
    free_memory = max(0, room.memory_left(state) - placed * demand.memory_bytes)
    free_disk = max(0, room.disk_left(state) - placed * demand.disk_bytes)
    free_cpu = max(0, room.cpu_left(state) - placed * demand.cpu_millis)
    taken = demand.host_ports if placed else room.taken(demand, state)
    return NodeShortfall(
        node=node.name,
        free_memory_bytes=free_memory,
        free_disk_bytes=free_disk,
        short_memory_bytes=max(0, demand.memory_bytes - free_memory),
        short_disk_bytes=max(0, demand.disk_bytes - free_disk),
        free_cpu_millis=None if room.cpu_limit == UNCOUNTED else free_cpu,
        short_cpu_millis=max(0, demand.cpu_millis - free_cpu),
        taken_ports=tuple(map(str, taken)),
        reason=closed or (f"with {placed} of {job} there" if placed else ""),
    )


def needs(demand: Demand) -> str:
    parts = [f"{format_size(demand.memory_bytes)} of memory"]
    if demand.disk_bytes:
        parts.append(f"{format_size(demand.disk_bytes)} of disk")
    if demand.cpu_millis:
        parts.append(format_cores(demand.cpu_millis))
    parts += [f"host port {port}" for port in demand.host_ports]
    return " and ".join(parts)


def tally(shortfalls: Sequence[NodeShortfall]) -> str:
    """How many nodes lack the room, and how many are out of the question and by what.

    Words that go on from what an instance needs; what is particular to one node is left out.
    """
    if not shortfalls:
        return ", and there are no nodes"
    reasons = Counter(short.reason.split(": ")[0] for short in shortfalls)
    few = reasons.pop("", 0)
    if not reasons:
        return ", and no node has that free"
    if not few and len(reasons) == 1:
        (why,) = reasons
        everybody = (
            "the only node is" if len(shortfalls) == 1 else f"all {len(shortfalls)} nodes are"
        )
        return f", and {everybody} {why}"
    parts = [f"{few} {'does' if few == 1 else 'do'} not have that free"] if few else []
    most = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    parts += [f"{count} {'is' if count == 1 else 'are'} {why}" for why, count in most]
    words = "; ".join(parts)
    return f". Of {counted(len(shortfalls), 'node')} {words}"


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
    if short.short_cpu_millis:
        free_cores = format_cores(short.free_cpu_millis or 0)
        parts.append(f"{format_cores(short.short_cpu_millis)} short ({free_cores} free)")
    parts += [f"without host port {port}, which is taken" for port in short.taken_ports]
    return f"{short.node} is " + (" and ".join(parts) or "free")
