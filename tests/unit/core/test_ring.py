"""The ring of nodes: what its arcs hold is what one sorted list would."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ozymandias.core.ring import RING, Ring
from ozymandias.model.node import NodeName


class Seat(NamedTuple):
    place: int
    name: NodeName


# Few enough that the same come and go, and some have one place.
SEATS = [
    Seat(number // 2 * (RING // 30) + number % 2 * (number % 3), NodeName(f"n{number}"))
    for number in range(60)
]
MARKS = st.integers(0, RING) | st.sampled_from([seat.place for seat in SEATS])  # the end included


@given(
    st.sets(st.sampled_from(SEATS)),
    st.lists(st.sampled_from(SEATS), max_size=80),
    MARKS,
    MARKS,
    MARKS,
)
def test_arcs_are_one_sorted_list(
    known: set[Seat], changes: list[Seat], one: int, other: int, begin: int
) -> None:
    """Whoever came and went: in order, from any place around, and between any two."""
    ring = Ring[Seat]()
    ring.add_all(known)
    for seat in changes:
        if seat in known:
            ring.remove(seat)
        else:
            ring.add(seat)
        known ^= {seat}
    row, (start, end) = sorted(known), sorted((one, other))

    def around(seats: list[Seat], mark: int) -> list[Seat]:
        return [s for s in seats if s.place >= mark] + [s for s in seats if s.place < mark]

    assert (list(ring), len(ring), bool(ring)) == (row, len(row), bool(row))
    assert list(ring.around(start)) == around(row, start)
    assert list(ring.around(end)) == around(row, end)
    part = [seat for seat in row if start <= seat.place < end]
    assert list(ring.between(start, end, begin)) == around(part, begin)
