"""The table of assignments: what its rows know of themselves follows every change."""

from hypothesis import given
from hypothesis import strategies as st

from ozymandias.model.assignments import SLOTS_MAX, Assignments
from ozymandias.model.instance import Assignment, Group, Slots, SlotState
from ozymandias.model.job import JobKey, JobName, Namespace
from ozymandias.model.node import Demand, NodeName

WEB = JobKey(Namespace("default"), JobName("web"))
NODES = st.sampled_from([NodeName(name) for name in ("n1", "n2", "n3")])
NUMBERS = st.frozensets(st.integers(0, 12) | st.just(SLOTS_MAX), max_size=4)
STATES = st.sampled_from([SlotState.RUNNING, SlotState.STOPPING])


def group(slots: frozenset[int], state: SlotState) -> Group:
    return Group(uid="u", version=1, state=state, slots=Slots.of(slots), demand=Demand())


GROUPS = st.lists(st.builds(group, NUMBERS, STATES), max_size=2).map(tuple)


@given(st.lists(st.dictionaries(NODES, GROUPS, max_size=3), max_size=6), st.data())
def test_whether_a_slot_is_in_two_places_is_known_after_any_change(
    changes: list[dict[NodeName, tuple[Group, ...]]], data: st.DataObject
) -> None:
    """Whoever asks, and whenever, is told what counting all of them would tell."""
    table = Assignments.of({})
    for change in changes:
        table = table.changed(
            {
                (node, WEB): Assignment(node=node, job=WEB, groups=groups) if groups else None
                for node, groups in change.items()
            }
        )
        column = table.of_job(WEB)
        found = [slot for a in column.values() for g in a.groups for slot in g.slots]
        is_distinct = len(set(found)) == len(found)
        if column.is_known_distinct:
            assert is_distinct
        if data.draw(st.booleans()):
            # Slots far beyond all others are not followed, and may be counted.
            assert column.is_distinct() == (is_distinct and SLOTS_MAX not in found)
