"""Which nodes to declare dead now: a lapsed lease is a strong hint, many at once are a weak one.

One node whose lease is gone is dead at once. But a store that pauses can let many leases lapse
though every host is well, and after a power cut the hosts come back one by one. So there are two
reasons to hold back (the mass-loss breaker), each for the same time:

- two or more, and over half, of the nodes expected are missing: from when each was first missed;
- this daemon never saw the node alive in its session: from the session's start.

Expected is a node that is alive or holds assignments, by the store's word and not from memory;
and one that went missing a short while ago, whose work may have been moved already.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from ozymandias.model.node import Node, NodeName
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Table

BREAKER_SECONDS = 60.0
FENCE_MARGIN = 0.25  # of a lease: what a replacement of something exclusive waits beyond it


def fence_seconds(lease_ttl: float) -> float:
    """How long after a node's record went its guard has surely ended what is exclusive.

    Nodes have like leases; the margin is for clocks that run at different speeds.
    """
    return lease_ttl * (1 + FENCE_MARGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    dead: frozenset[NodeName] = frozenset()  # to be declared now
    fenced: frozenset[NodeName] = frozenset()  # dead for so long that nothing exclusive runs there
    held: frozenset[NodeName] = frozenset()  # missing, and given more time
    look_again: float | None = None  # on the clock of ``now``; None: only when something changes
    reason: str = ""  # why some are held back, or which are dead


def missing_in(snapshot: Snapshot) -> Mapping[NodeName, Node]:
    """The nodes that are not there: few, and found by a look at those that changed."""
    return snapshot.nodes_where(_is_missing)


def alive_in(snapshot: Snapshot) -> frozenset[NodeName]:
    """The nodes that are there, found anew when one comes or goes."""
    return Table.of(snapshot.nodes).lasting("alive", _alive)


def _alive(nodes: Table[NodeName, Node]) -> frozenset[NodeName]:
    return frozenset(nodes).difference(nodes.where(_is_missing))


def _is_missing(node: Node) -> bool:
    return node.presence is None


def judge_loss(
    snapshot: Snapshot,
    *,
    missing_since: Mapping[NodeName, float],
    seen_alive: Set[NodeName],
    seen_there: Set[NodeName] = frozenset(),
    started: float,
    now: float,
    held_back: Set[NodeName] = frozenset(),
    breaker_seconds: float = BREAKER_SECONDS,
    fence_seconds: float = 0.0,
) -> Loss:
    """The dead among the missing, and when the others will have been missing for long enough.

    ``seen_there`` had a record in this session, if only an old one: when that goes too, it is one
    more that went, though nobody knows whether it was alive.
    ``fence_seconds`` after it went missing, a node's guard has surely ended what is exclusive.
    ``held_back`` are those held when this was last asked: when a mass loss ends, because some have
    come back, the others are about to, and keep the time they were given.
    """
    by_node = snapshot.assigned.by_node
    missing = {name for name in missing_in(snapshot) if name in by_node}
    if not missing:
        return Loss()
    holding, alive = by_node.keys() & snapshot.nodes.keys(), alive_in(snapshot)
    # Leases of one bad moment lapse one after the other: who went just before counts as well.
    known = (seen_alive | seen_there) - alive
    recent = {
        node
        for node, since in missing_since.items()
        if node in known and now - since < breaker_seconds
    }
    expected = len(holding | alive | recent)
    away = len(missing | recent)
    is_mass = away >= 2 and 2 * away > expected

    def due(node: NodeName) -> float:
        since = missing_since.get(node, now)
        when = since + breaker_seconds if is_mass or node in held_back else since
        return when if node in seen_alive else max(when, started + breaker_seconds)

    held = {node: due(node) for node in missing if due(node) > now}
    dead = frozenset(missing - held.keys())
    fences = {node: missing_since.get(node, now) + fence_seconds for node in dead}
    waits = [*held.values(), *(time for time in fences.values() if time > now)]
    return Loss(
        dead=dead,
        fenced=frozenset(node for node, time in fences.items() if time <= now),
        held=frozenset(held),
        look_again=min(waits, default=None),
        reason=_reason(dead, held, f"{away} of {expected}" if is_mass else "", now),
    )


def _reason(
    dead: frozenset[NodeName],
    held: Mapping[NodeName, float],
    mass: str,
    now: float,
) -> str:
    """``mass`` says how many are missing, also those whose work has been moved already."""
    parts = []
    if dead:
        parts.append(f"lost: {', '.join(sorted(dead))}")
    if held:
        names, seconds = ", ".join(sorted(held)), max(held.values()) - now
        why = (
            f"{mass} nodes are missing at once"
            if mass
            else "not seen alive since this daemon started"
        )
        parts.append(f"{names} held back for up to {seconds:.0f} s more: {why}")
    return "; ".join(parts)
