"""A look over the nodes of a large cluster, kept in a few lines with the record of a decision.

The record of a decision can't hold hundreds of nodes (`core/decision.py`). What people ask of it is
which nodes came next, and why the others were none: so it holds the best few, and of the others how
many were turned down for which reason. Counting costs a look at every node, a millisecond or less,
which is why very large clusters have only the best few: those the inventory knows without looking.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from ozymandias.core.attempt import why_closed
from ozymandias.core.inventory import SURVEYING
from ozymandias.core.placement import Ask, ranked, share_of
from ozymandias.core.ring import is_in, start_of
from ozymandias.core.rooms import RUNNING, Room, cpu_limit
from ozymandias.model.instance import SlotState
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.part import Part
from ozymandias.model.snapshot import Snapshot

BEST_MAX = 12
REASONS_MAX = 12  # the rarest are counted together
COUNTED_NODES_MAX = 1000
LOOKS_MAX = 1000  # along the order of nodes, where most of them are out of the question
ELSEWHERE = "outside the deciding peer's part of the nodes"
OTHER_REASONS = "out of the question for other reasons"


class Survey(NamedTuple):
    best: tuple[NodeName, ...]  # in the order in which they would have been chosen
    feasible: int = 0
    rejected: Mapping[str, int] = {}  # in words that follow "is", the most frequent first


def survey(
    snapshot: Snapshot,
    ask: Ask,
    apart_from: Mapping[NodeName, int],
    state: SlotState,
    part: Part | None = None,
) -> Survey:
    """What the nodes are to one instance that would be in this state; one of a ``part`` alone."""
    best = tuple(islice(_next_ones(snapshot, ask, apart_from, part), BEST_MAX))
    if len(snapshot.nodes) > COUNTED_NODES_MAX:
        return Survey(best)
    feasible: list[Node] = []
    rejected: Counter[str] = Counter()
    there = ask.there or {}
    has_room = _has_room(snapshot, ask, state)
    for name, node in snapshot.nodes.items():
        why = ask.rules.why_not(name, there)
        if not has_room(name):
            why = why_closed(node) or why or _short_of(node, ask.demand, state)
        if not why and part and not is_in(part, name):
            why = ELSEWHERE
        if why:
            rejected[why] += 1
        else:
            feasible.append(node)
    if len(best) < BEST_MAX:  # it has wishes, or room is scarce: nothing knows them beforehand
        order = ranked({node.name: Room.of(node) for node in feasible}, ask, apart_from)
        best = tuple(name for name, _ in order[:BEST_MAX])
    return Survey(best, len(feasible), _fewer(rejected))


def _has_room(snapshot: Snapshot, ask: Ask, state: SlotState) -> Callable[[NodeName], bool]:
    """Whether a node is known to take one of them; of the others it has to be found out."""
    if ask.demand.host_ports or state is not RUNNING:
        return lambda name: False
    return SURVEYING.inventory_of(snapshot.nodes, ask.demand, ask.rules.target_percent).has_room


def _next_ones(
    snapshot: Snapshot, ask: Ask, apart_from: Mapping[NodeName, int], part: Part | None
) -> Iterator[NodeName]:
    """The best nodes, as `core/runs.py` would go through them; none where that is not the way."""
    rules = ask.rules
    if rules.is_particular or rules.asked.burst or ask.demand.host_ports:
        return
    share, there = share_of(ask.wanted), ask.there or {}
    found: set[NodeName] = set()  # one that is fuller by then comes again
    order = SURVEYING.inventory_of(snapshot.nodes, ask.demand, rules.target_percent)
    start = start_of(str(ask.job), ask.version)
    ones = order.in_part(part, start) if part else order.in_order(start)
    for name, _ in islice(ones, LOOKS_MAX):
        is_fresh = name not in found and apart_from.get(name, 0) < share
        if is_fresh and not rules.why_not(name, there):
            found.add(name)
            yield name


def _short_of(node: Node, demand: Demand, state: SlotState) -> str:
    """The first thing that is too little; by how much, each node has its own number."""
    limit, ledger = node.ledger.allocatable, node.ledger
    promised = ledger.promised.resources
    # A running instance needs room in both sums, a waiting one in what is promised.
    held = ledger.held.resources if state is RUNNING else promised
    if demand.memory_bytes > limit.memory_bytes - max(promised.memory_bytes, held.memory_bytes):
        return "short of memory"
    if demand.disk_bytes > limit.disk_bytes - max(promised.disk_bytes, held.disk_bytes):
        return "short of disk"
    if demand.cpu_millis > cpu_limit(limit) - max(promised.cpu_millis, held.cpu_millis):
        return "short of cores"
    if demand.host_ports and Room.of(node).taken(demand, state):
        return "without a free host port"
    return ""


def _fewer(counts: Counter[str]) -> dict[str, int]:
    """At most so many reasons, in an order that is the same everywhere."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(most[: REASONS_MAX - 1] if len(most) > REASONS_MAX else most)
    if rest := sum(counts.values()) - sum(kept.values()):
        kept[OTHER_REASONS] = rest
    return kept
