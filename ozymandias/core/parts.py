"""The part of a large cluster's nodes that a peer fills first for its own callers.

Packing prefers the fuller nodes, so peers that decide at once would choose the same ones, and all
but one of them would lose the race for a ledger and decide again. What exactly one peer decides, a
submit or a change of a number, is placed by it in a part of its own if all of it goes there without
anything being given up: the ring of nodes (`core/inventory.py`) is cut into as many arcs as there
are peers that schedule. What any peer may decide knows no parts, and is the same on each of them.

Only a cluster with many more nodes than peers that schedule is cut. In a smaller one, and wherever
every node schedules, packing well is worth more than a race that is lost now and then.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import NamedTuple

from ozymandias.model.node import Node, NodeName, Presence
from ozymandias.model.part import Part
from ozymandias.model.tables import Table, changes_between

PART_NODES = 32  # that a part has at least, on average


class Peers(NamedTuple):
    """Those that schedule, sorted, and how many nodes are there in all."""

    names: tuple[NodeName, ...]
    there: int

    def part_of(self, peer: NodeName) -> Part | None:
        peers = len(self.names)
        if peers < 2 or self.there < PART_NODES * peers:
            return None
        number = bisect_left(self.names, peer)
        is_one = number < peers and self.names[number] == peer
        return Part(number=number, of=peers) if is_one else None


class Roster:
    """Who is there, and who of them schedules; kept from one snapshot to the next."""

    def __init__(self) -> None:
        self._nodes: Mapping[NodeName, Node] = {}
        self._there: dict[NodeName, Presence] = {}
        self._peers: list[NodeName] = []  # sorted

    def follow(self, nodes: Mapping[NodeName, Node]) -> Peers:
        """Become that of these nodes."""
        before, self._nodes = self._nodes, nodes
        for name, node in changes_between(before, nodes).items():
            was, now = self._there.get(name), node.presence if node is not None else None
            if was is now:
                continue
            if now is not None:
                self._there[name] = now
            else:
                del self._there[name]
            did, does = was is not None and was.schedules, now is not None and now.schedules
            if does and not did:
                insort(self._peers, name)
            elif did and not does:
                del self._peers[bisect_left(self._peers, name)]
        return Peers(tuple(self._peers), len(self._there))


_kept = Roster()


def part_of(nodes: Mapping[NodeName, Node], peer: NodeName | None) -> Part | None:
    """The part of these nodes that is this peer's; None where there are none, or no peer."""
    return Table.of(nodes).lasting("peers", _kept.follow).part_of(peer) if peer else None
