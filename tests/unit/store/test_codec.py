"""Values as bytes: the quick way of an assignment is the way of everything else."""

import json

import pytest
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


@given(st.lists(GROUPS, max_size=6))
def test_an_assignment_is_the_bytes_of_its_groups(several: list[tuple[Group, ...]]) -> None:
    """Whatever its uid says, and whatever came before: made around its slots or whole, the same."""
    encode = codec.GroupsEncoder().encode
    for groups in (*several, *several):  # the second time they are known, if they are the last
        data = encode(groups)
        assert encode(groups) == data == codec.encode(groups)
        assert codec.decode_groups(data) == groups
        assert codec.decode_known_groups(data) == (groups, None)


GROUP = {"uid": "u", "version": 1, "state": "running", "slots": "0-2", "demand": {}}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([GROUP]),
        json.dumps([GROUP], separators=(",", ":")),
        json.dumps([GROUP | {"colour": "blue"}], separators=(",", ":")),
        json.dumps([GROUP, GROUP | {"colour": "blue", "slots": "4"}], separators=(",", ":")),
        codec.GroupsEncoder()
        .encode(codec.of_plain(tuple[Group, ...], [GROUP]))
        .decode()
        .replace("0-2", "\\u0030-2"),
        codec.GroupsEncoder()
        .encode(codec.of_plain(tuple[Group, ...], [GROUP]))
        .decode()
        .replace("0-2", '0","slots":"1'),
        "[]",
    ],
)
def test_an_assignment_is_read_as_every_record_is(text: str) -> None:
    """However it is spelled: its groups, and the members of a newer version."""
    data = text.encode()
    assert codec.decode_known_groups(data) == codec.decode_known(tuple[Group, ...], data)


@pytest.mark.parametrize("slots", ["\n0", "x", "0\\", "0-9999999"])
def test_slots_that_are_none_are_told_though_all_around_them_is_known(slots: str) -> None:
    """What is written around them was seen with good ones, and does not make them good."""
    good = codec.encode(codec.of_plain(tuple[Group, ...], [GROUP]))
    assert codec.decode_known_groups(good)
    data = good.replace(b"0-2", slots.encode())
    with pytest.raises(codec.Undecodable):
        codec.decode_known_groups(data)
    with pytest.raises(codec.Undecodable):
        codec.decode_groups(data)
