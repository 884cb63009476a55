"""Which instances go when there are more than wanted: those that would be missed least.

Waiting ones never ran, unhealthy ones serve nobody; then outdated before current; then from a node
that is drained, else from the one with the most of the job, so that what stays is spread, and there
the highest slot.
"""

import heapq
from collections.abc import Iterator, Mapping, Set

from ozymandias.core.buckets import Buckets, per_node
from ozymandias.model.instance import Assigned
from ozymandias.model.node import NodeName


def surplus_first(
    buckets: Buckets, count: int, drained: Set[NodeName] = frozenset()
) -> Iterator[tuple[Assigned, str]]:
    """Up to ``count`` instances to stop, each with the reason why it and not another."""
    remaining = per_node(buckets.live)
    for bucket, why in (
        (buckets.stale, "it was waiting and never ran"),
        (buckets.waiting, "it was waiting and never ran"),
        (buckets.idle, "it is not healthy"),
        (buckets.unready, "it is not healthy"),
        (buckets.serving, "it is of an older version"),
        (buckets.ready, ""),
    ):
        for chosen in _from_most_crowded(bucket, remaining, count, drained):
            count -= 1
            crowd = remaining[chosen.node]
            remaining[chosen.node] -= 1
            if chosen.node in drained:
                why = why or f"{chosen.node} is being drained"
            yield chosen, why or f"{chosen.node} has the most instances of {chosen.job} ({crowd})"


def _from_most_crowded(
    bucket: list[Assigned], remaining: Mapping[NodeName, int], count: int, drained: Set[NodeName]
) -> Iterator[Assigned]:
    by_node: dict[NodeName, list[Assigned]] = {}
    for assigned in sorted(bucket, key=lambda a: a.slot):
        by_node.setdefault(assigned.node, []).append(assigned)
    heap = [
        (node not in drained, -remaining[node], -there[-1].slot, node)
        for node, there in by_node.items()
    ]
    heapq.heapify(heap)
    while heap and count > 0:
        *_, node = heapq.heappop(heap)
        count -= 1
        yield by_node[node].pop()
        if there := by_node[node]:
            rank = (node not in drained, -remaining[node], -there[-1].slot, node)
            heapq.heappush(heap, rank)
