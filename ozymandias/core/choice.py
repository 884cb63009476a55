"""Which instances go when there are more than wanted: those that would be missed least.

Waiting ones never ran, unhealthy ones serve nobody; then outdated before current; then from a node
that is drained, then from one that only a burst goes to, else from the one with the most of the
job, so that what stays is spread, and there the highest slot.
"""

import heapq
from collections.abc import Iterator, Mapping, Set

from ozymandias.core.buckets import Buckets, per_node
from ozymandias.model.instance import Assigned
from ozymandias.model.job import Burst
from ozymandias.model.node import NodeName


def surplus_first(
    buckets: Buckets,
    count: int,
    drained: Set[NodeName] = frozenset(),
    burst: Burst | None = None,
) -> Iterator[tuple[Assigned, str]]:
    """Up to ``count`` instances to stop, each with the reason why it and not another."""
    remaining, away = per_node(buckets.live), frozenset(burst.nodes) if burst else frozenset()
    for bucket, why in (
        (buckets.stale, "it was waiting and never ran"),
        (buckets.waiting, "it was waiting and never ran"),
        (buckets.idle, "it is not healthy"),
        (buckets.unready, "it is not healthy"),
        (buckets.serving, "it is of an older version"),
        (buckets.ready, ""),
    ):
        for chosen in _from_most_crowded(bucket, remaining, count, (drained, away)):
            count -= 1
            crowd = remaining[chosen.node]
            remaining[chosen.node] -= 1
            if chosen.node in drained:
                why = why or f"{chosen.node} is being drained"
            here = f"{chosen.node} has the most instances of {chosen.job} ({crowd})"
            if chosen.node in away:
                here = f"{chosen.node} is for what is above {burst.after}" if burst else here
            yield chosen, why or here


def _from_most_crowded(
    bucket: list[Assigned],
    remaining: Mapping[NodeName, int],
    count: int,
    first: tuple[Set[str], Set[str]],
) -> Iterator[Assigned]:
    by_node: dict[NodeName, list[Assigned]] = {}
    for assigned in sorted(bucket, key=lambda a: a.slot):
        by_node.setdefault(assigned.node, []).append(assigned)
    drained, away = first

    def rank(node: NodeName) -> tuple[bool, bool, int, int, NodeName]:
        slot = by_node[node][-1].slot
        return node not in drained, node not in away, -remaining[node], -slot, node

    heap = [rank(node) for node in by_node]
    heapq.heapify(heap)
    while heap and count > 0:
        *_, node = heapq.heappop(heap)
        count -= 1
        yield by_node[node].pop()
        if by_node[node]:
            heapq.heappush(heap, rank(node))
