"""Slot numbers: one run or many, however they came about, they are the same and spell the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ozymandias.core.buckets import FreeSlots
from ozymandias.model.instance import SLOTS_MAX, Slots, slots_of_run

NUMBERS = st.sets(st.integers(0, 30))


@given(NUMBERS)
def test_what_is_spelled_is_read_again(numbers: set[int]) -> None:
    slots = Slots.of(numbers)
    assert list(slots) == sorted(numbers)
    assert len(slots) == len(numbers)
    assert Slots.parse(str(slots)) == slots
    assert hash(Slots.parse(str(slots))) == hash(slots)
    assert Slots(tuple(sorted(numbers))) == slots


@given(st.integers(0, 20), st.integers(1, 20))
def test_a_run_is_what_its_numbers_are(first: int, count: int) -> None:
    run = range(first, first + count)
    assert slots_of_run(run) == Slots(run) == Slots(tuple(run)) == Slots.of(reversed(run))


@pytest.mark.parametrize("text", ["0-99999999999999999999", f"5-1,0-{SLOTS_MAX}", "x", "-3"])
def test_what_is_no_slots_is_refused_at_once(text: str) -> None:
    """A stray write to the store must not fill the memory of every daemon."""
    with pytest.raises(ValueError):
        Slots.parse(text)


@given(NUMBERS, st.lists(st.integers(0, 5), max_size=6))
def test_free_slots_are_the_lowest_that_are_not_used(used: set[int], takes: list[int]) -> None:
    """Taken one by one or several at a time, they are the same ones."""
    some, one_by_one = FreeSlots(used), FreeSlots(used)
    portions = [*some.take(takes[:1]), *some.take(takes[1:])]
    assert [len(portion) for portion in portions] == takes
    taken = [slot for portion in portions for slot in portion]
    assert taken == [next(one_by_one) for _ in taken]
    assert taken == [n for n in range(100) if n not in used][: len(taken)]
