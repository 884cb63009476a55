"""Multiplexed streams are put together again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ozymandias.ports import RuntimeFailed
from ozymandias.runtime.podman_api import Frames


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=6),
    st.integers(min_value=1, max_value=50),
)
def test_any_cut_gives_the_same_frames(frames: list[tuple[int, bytes]], size: int) -> None:
    """However the stream was cut into pieces, the frames come out as they went in."""
    stream = b"".join(bytes([n, 0, 0, 0]) + len(c).to_bytes(4) + c for n, c in frames)
    parser = Frames()
    found = []
    for start in range(0, len(stream), size):
        found += parser.take(stream[start : start + size])
    assert found == frames


def test_absurd_size_is_a_failure() -> None:
    """A frame of four gigabytes is refused, not waited for."""
    with pytest.raises(RuntimeFailed):
        Frames().take(b"\x01\0\0\0\xff\xff\xff\xff")
