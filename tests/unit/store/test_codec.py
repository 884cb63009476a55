"""Values as bytes: the quick way of an assignment is the way of everything else."""

from hypothesis import given
from hypothesis import strategies as st

from ozymandias.model.instance import Group, Slots, SlotState
from ozymandias.model.node import Demand, HostPort
from ozymandias.store import codec

GROUPS = st.lists(
    st.builds(
        Group,
        uid=st.sampled_from(["u", "", 'a"b', '"slots":"7"', "é", f"{codec._MARK}"]),
        version=st.integers(0, 3),
        generation=st.integers(0, 2),
        state=st.sampled_from(SlotState),
        slots=st.builds(Slots.of, st.sets(st.integers(0, 40), max_size=6)),
        demand=st.builds(
            Demand,
            memory_bytes=st.integers(0, 9),
            host_ports=st.sampled_from([(), (HostPort(port=80),)]),
        ),
    ),
    max_size=3,
).map(tuple)


@given(GROUPS)
def test_an_assignment_is_the_bytes_of_its_groups(groups: tuple[Group, ...]) -> None:
    """Whatever its uid says: made around the numbers of its slots or whole, they are the same."""
    assert codec.encode_groups(groups) == codec.encode(groups)
    assert codec.decode_groups(codec.encode_groups(groups)) == groups
