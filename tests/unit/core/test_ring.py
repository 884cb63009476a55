"""The ring of nodes: what its arcs hold is what one sorted list would."""

from hypothesis import given
from hypothesis import strategies as st

from ozymandias.core.ring import RING, Ring, around, mark_of, spot_of
from ozymandias.model.node import NodeName

NODES = [NodeName(f"n{number}") for number in range(60)]
PLACES = st.integers(0, RING)  # the end of the ring included
CHANGES = st.lists(st.sampled_from(NODES), max_size=80)


@given(st.sets(st.sampled_from(NODES)), CHANGES, PLACES, PLACES)
def test_arcs_are_one_sorted_list(
    first: set[NodeName], changes: list[NodeName], one: int, other: int
) -> None:
    """Whoever came and went: in order, from any place around, and between any two."""
    ring, known = Ring(), {spot_of(name) for name in first}
    ring.add_all(list(known))
    for spot in map(spot_of, changes):
        if spot in known:
            ring.remove(spot)
        else:
            ring.add(spot)
        known ^= {spot}
    row = sorted(known)
    start, end = map(mark_of, sorted((one, other)))
    assert (list(ring), len(ring), bool(ring)) == (row, len(row), bool(row))
    assert list(ring.around(start)) == list(around(row, start))
    assert list(ring.around(end)) == [s for s in row if s >= end] + [s for s in row if s < end]
    assert ring.between(start, end) == [spot for spot in row if start <= spot < end]
