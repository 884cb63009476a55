"""Values as bytes: the quick way of an assignment is the way of everything else."""

from hypothesis import given
from hypothesis import strategies as st

from ozymandias.model.instance import Group, Slots, SlotState
from ozymandias.model.node import Demand, HostPort
from ozymandias.store import codec

DEMANDS = [
    Demand(),
    Demand(memory_bytes=9),
    Demand(memory_bytes=9, host_ports=(HostPort(port=80),)),
]
GROUPS = st.lists(
    st.builds(
        Group,
        uid=st.sampled_from(["u", "", 'a"b', '"slots":"7"', "é", f"{codec._MARK}"]),
        version=st.integers(0, 1),
        generation=st.integers(0, 1),
        state=st.sampled_from(SlotState),
        slots=st.builds(Slots.of, st.sets(st.integers(0, 40), max_size=6)),
        demand=st.sampled_from(DEMANDS),
    ),
    max_size=2,
).map(tuple)


@given(st.lists(GROUPS, max_size=5))
def test_an_assignment_is_the_bytes_of_its_groups(several: list[tuple[Group, ...]]) -> None:
    """Whatever its uid says, and whatever came before it in a row."""
    encoder = codec.GroupsEncoder()
    for groups in several:
        data = encoder.encode(groups)
        assert data == codec.encode(groups) and codec.decode_groups(data) == groups
