"""What would make a job fit. Each suggestion has been put to the scheduler and found to fit.

First what whoever submits could change (fewer, smaller, less particular), then what an operator
could do: start a node, open it, label it, add one. Each is enough by itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from ozymandias.core.attempt import Attempt, counted, why_closed
from ozymandias.core.labels import spelled
from ozymandias.core.rooms import UNCOUNTED, Room, Rooms
from ozymandias.core.rules import pools_of, rules_of
from ozymandias.model.job import LabelRule, LabelTest, Neighbour, PlacementRules, VolumeKind
from ozymandias.model.node import Demand, NodeName, millis_of
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import format_cores, format_size
from ozymandias.problems import Suggestion

MEBIBYTE = 2**20
FINE_STEP = 16 * MEBIBYTE  # sizes below 1G are suggested in these steps, larger ones in coarse
COARSE_STEP = 64 * MEBIBYTE
CPU_STEP = 50  # thousandths of a core
NODES_TRIED_MAX = 100  # of those that could be labelled
WEIGHT = 10  # of what was required and would be preferred


def suggestions_for(attempt: Attempt, placeable: int) -> Iterator[Suggestion]:
    yield from _fewer_instances(attempt, placeable)
    if attempt.can_change_job:
        yield from _less_memory(attempt)
        yield from _less_disk(attempt)
        yield from _less_cpu(attempt)
        yield from _no_host_port(attempt)
        yield from _more_per_node(attempt)
        yield from _less_particular(attempt)
    yield from _started(attempt)
    yield from _uncordoned(attempt)
    yield from _labelled(attempt)
    yield from _more_nodes(attempt, placeable)


def _fewer_instances(attempt: Attempt, placeable: int) -> Iterator[Suggestion]:
    if placeable > attempt.kept and replace(attempt, wanted=placeable).fits():
        yield Suggestion(
            text=f"run {counted(placeable, 'instance')} instead of {attempt.wanted}",
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


def _less_cpu(attempt: Attempt) -> Iterator[Suggestion]:
    job, demand = attempt.job, attempt.demand
    if not demand.cpu_millis:
        return
    largest = max(job.containers, key=lambda c: c.cpu or 0.0)
    millis = millis_of(largest.cpu or 0.0)
    others = demand.cpu_millis - millis
    for steps in range((millis - 1) // CPU_STEP, 0, -1):
        if attempt.fits(replace(demand, cpu_millis=others + steps * CPU_STEP)):
            cores = steps * CPU_STEP / 1000
            yield Suggestion(
                text=f"give {largest.name} {format_cores(steps * CPU_STEP)}"
                f" instead of {format_cores(millis)}",
                change={f"containers.{largest.name}.cpu": cores},
            )
            return


def _no_host_port(attempt: Attempt) -> Iterator[Suggestion]:
    ports = attempt.demand.host_ports
    if ports and attempt.fits(replace(attempt.demand, host_ports=())):
        names = ", ".join(map(str, ports))
        yield Suggestion(
            text=f"ask for no host port ({names}): pods have addresses of their own",
            change={"ports": "without host"},
        )


def _more_per_node(attempt: Attempt) -> Iterator[Suggestion]:
    asked = attempt.job.placement
    if not 0 < asked.max_per_node < attempt.wanted:
        return
    low, high = asked.max_per_node, attempt.wanted + 1  # low does not fit, high is none
    while low + 1 < high:
        middle = (low + high) // 2
        if _fits_with(attempt, replace(asked, max_per_node=middle)):
            high = middle
        else:
            low = middle
    if high <= attempt.wanted:
        yield Suggestion(
            text=f"allow {high} on a node instead of {asked.max_per_node}",
            change={"placement.max_per_node": high},
        )


def _less_particular(attempt: Attempt) -> Iterator[Suggestion]:
    """One thing that is required about other jobs would be preferred instead."""
    asked = attempt.job.placement
    for one in asked.near:
        softer = replace(asked, near=_softened(asked.near, one))
        if not one.weight and _fits_with(attempt, softer):
            yield _preferred("near", f"near {one.job}", one)
    for one in asked.apart:
        softer = replace(asked, apart=_softened(asked.apart, one))
        if not one.weight and _fits_with(attempt, softer):
            yield _preferred("apart", f"apart from {one.job}", one)
    if asked.burst and _fits_with(attempt, replace(asked, burst=None)):
        yield Suggestion(text="leave out burst", change={"placement.burst": None})


def _softened(named: tuple[Neighbour, ...], one: Neighbour) -> tuple[Neighbour, ...]:
    return tuple(replace(n, weight=WEIGHT) if n is one else n for n in named)


def _preferred(field: str, words: str, one: Neighbour) -> Suggestion:
    return Suggestion(
        text=f"prefer to be {words} (weight: {WEIGHT}) instead of requiring it",
        change={f"placement.{field}": {"job": str(one.job), "weight": WEIGHT}},
    )


def _fits_with(attempt: Attempt, asked: PlacementRules) -> bool:
    job = replace(attempt.job, placement=asked)
    return attempt.fits(rules=rules_of(attempt.snapshot, job))


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


def _labelled(attempt: Attempt) -> Iterator[Suggestion]:
    """A node that takes work and lacks nothing but a label."""
    pools = pools_of(attempt.snapshot.settings, attempt.job.namespace, is_hard=True)
    wanted = _labels_for((*attempt.job.placement.require, *(pools[0].require if pools else ())))
    if not wanted:
        return
    against = attempt.rules.against
    for name in [n for n in attempt.rooms if n in against][:NODES_TRIED_MAX]:
        node = attempt.snapshot.nodes[name]
        labels = node.ledger.all_labels
        missing = {label: value for label, value in wanted.items() if labels.get(label) != value}
        ledger = replace(node.ledger, set_labels={**node.ledger.set_labels, **missing})
        nodes = {**attempt.snapshot.nodes, name: replace(node, ledger=ledger)}
        rules = rules_of(replace(attempt.snapshot, nodes=nodes), attempt.job)
        if missing and attempt.fits(rules=rules):
            words = " ".join(f"{label}={value}" for label, value in missing.items())
            yield Suggestion(
                text=f"label {name} {words} (`ozy node label {name} {words}`)",
                change={"label": {"node": name, "labels": missing}},
            )
            return


def _labels_for(rules: Sequence[LabelRule]) -> Mapping[str, str]:
    """Labels that satisfy the rules which name a value; none if one of them names none."""
    found: dict[str, str] = {}
    for rule in rules:
        if rule.test in (LabelTest.EQUAL, LabelTest.IN):
            found.setdefault(rule.label, rule.values[0])
        elif rule.test is not LabelTest.UNEQUAL:
            return {}
    return found


def _more_nodes(attempt: Attempt, placeable: int) -> Iterator[Suggestion]:
    missing = attempt.wanted - placeable
    demand, rules = attempt.demand, attempt.job.placement
    if any(not neighbour.weight for neighbour in rules.near):
        return  # a new node has nobody to be near to
    each = 1 if demand.host_ports else min(missing, rules.max_per_node or missing)
    nodes = -(-missing // each)
    memory, disk = (size * each for size in (demand.memory_bytes, demand.disk_bytes))
    millis = each * demand.cpu_millis
    virtual: Rooms = {}
    for number in range(nodes):
        name = NodeName(f"\0new-{number}")
        virtual[name] = Room(
            node=name,
            memory_limit=memory,
            disk_limit=disk,
            cpu_limit=millis or UNCOUNTED,
        )
    if attempt.fits(rooms=attempt.rooms | virtual):
        pools = pools_of(attempt.snapshot.settings, attempt.job.namespace, is_hard=True)
        both = (*rules.require, *(pools[0].require if pools else ()))
        asked = "".join(f" {spelled(rule)}," for rule in both)
        size = f"{exact_size(memory)} of memory"
        if disk:
            size += f" and {exact_size(disk)} of disk"
        if millis:
            size += f" and {format_cores(millis)}"
        yield Suggestion(
            text=f"add {counted(nodes, 'node')} with{asked} at least {size} to allocate",
            change={
                "nodes": nodes,
                "memory_bytes": memory,
                "disk_bytes": disk,
                **({"cpu_millis": millis} if millis else {}),
            },
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
