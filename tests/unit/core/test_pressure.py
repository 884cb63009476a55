"""When a host counts as under pressure, for how long, and what is told of it."""

from hypothesis import given
from hypothesis import strategies as st

from ozymandias.core.pressure import (
    CLEAR_SECONDS,
    HINT_SECONDS,
    NOTHING,
    SHED_DISK_SECONDS,
    SHED_SECONDS,
    TAINT_SECONDS,
    URGENT_SECONDS,
    Judgement,
    judge,
    pressure,
)
from ozymandias.core.rooms import load_class
from ozymandias.model.host import HostFacts
from ozymandias.model.node import Load
from ozymandias.model.record import replace
from ozymandias.store import codec

GIB = 2**30
WELL = HostFacts(
    load=1.0,
    processors=4,
    memory_total_bytes=16 * GIB,
    memory_available_bytes=10 * GIB,
    memory_stall_percent=0.0,
    disk_total_bytes=100 * GIB,
    disk_free_bytes=80 * GIB,
    inodes_total=1000,
    inodes_free=900,
)
SHORT = replace(WELL, memory_available_bytes=GIB // 2)
EVERY = 5.0


def lived(
    before: Judgement, facts: HostFacts, seconds: float, *, live: int = 3, start: float = 0.0
) -> tuple[Judgement, float]:
    """As measured every few seconds for so long; and what time it is then."""
    now = start
    while now < start + seconds:
        now += EVERY
        before = judge(before, facts, live=live, now=now, wall=now)
    return before, now


def test_each_limit_is_told_with_its_numbers() -> None:
    """What is short, how much there is, and what would be enough."""
    assert pressure(WELL) == ""
    assert pressure(SHORT) == "memory pressure: 3 % of 16G is available, less than 4 %"
    stalled = replace(WELL, memory_stall_percent=45.0, memory_available_bytes=2 * GIB)
    assert pressure(stalled) == (
        "memory pressure: tasks wait for memory 45 % of the time, and 12 % of 16G is available"
    )
    full = replace(WELL, disk_free_bytes=2 * GIB)
    assert pressure(full) == ("disk pressure: 2 % of 100G is free where volumes are, less than 5 %")
    assert pressure(replace(WELL, inodes_free=9)) == (
        "inode pressure: 1 % of 1000 inodes is free where volumes are, less than 5 %"
    )


def test_a_pod_at_its_own_limit_is_no_pressure_of_the_host() -> None:
    """Tasks that stall while the host has memory stall at a limit of theirs."""
    assert pressure(replace(WELL, memory_stall_percent=95.0)) == ""


def test_what_is_not_known_is_no_pressure() -> None:
    """Nor are facts that a kernel or a file system does not have."""
    assert pressure(HostFacts()) == ""
    assert pressure(replace(WELL, memory_stall_percent=None, inodes_total=0, inodes_free=0)) == ""


def test_a_moment_of_pressure_taints_nobody() -> None:
    """It has to last; what lasts is told with its numbers."""
    short, now = lived(NOTHING, SHORT, TAINT_SECONDS)
    assert not short.load.taint
    well, now = lived(short, WELL, EVERY, start=now)
    again, _ = lived(well, SHORT, TAINT_SECONDS, start=now)
    assert not again.load.taint
    lasting, _ = lived(short, SHORT, TAINT_SECONDS + EVERY, start=now)
    assert lasting.load.taint.startswith("memory pressure: 3 %")


def test_it_is_well_again_only_when_it_clearly_is() -> None:
    """Just above the limit nothing changes; well above it, for a while, does."""
    tainted, now = lived(NOTHING, SHORT, 30)
    nearly = replace(WELL, memory_available_bytes=GIB)
    still, now = lived(tainted, nearly, 600, start=now)
    assert still.load.taint
    still, now = lived(still, WELL, CLEAR_SECONDS - EVERY, start=now)
    assert still.load.taint
    clear, _ = lived(still, WELL, 2 * EVERY, start=now)
    assert not clear.load.taint


def test_instances_are_asked_to_leave_one_at_a_time() -> None:
    """Each gets its time; the next is asked when one has left and pressure lasts all the same."""
    tainted, now = lived(NOTHING, SHORT, TAINT_SECONDS + EVERY)
    early, now = lived(tainted, SHORT, SHED_SECONDS - EVERY, start=now)
    assert early.load.shed_to == -1
    asking, now = lived(early, SHORT, EVERY, start=now)
    assert asking.load.shed_to == 2
    waiting, now = lived(asking, SHORT, URGENT_SECONDS - EVERY, start=now)
    assert waiting.load == asking.load
    urgent, now = lived(waiting, SHORT, EVERY, start=now)
    assert urgent.load.is_urgent
    left, now = lived(urgent, SHORT, EVERY, start=now, live=2)
    assert left.load.shed_to == -1 and not left.load.is_urgent
    after, now = lived(left, SHORT, SHED_SECONDS, start=now, live=2)
    assert after.load.shed_to == 1
    relieved, _ = lived(after, WELL, EVERY, start=now, live=2)
    assert relieved.load.shed_to == -1 and relieved.load.taint


def test_a_full_disk_gives_more_time() -> None:
    """What runs can run on for a while, and somebody may make room."""
    full = replace(WELL, disk_free_bytes=GIB)
    early, now = lived(NOTHING, full, TAINT_SECONDS + SHED_DISK_SECONDS)
    assert early.load.taint.startswith("disk pressure") and early.load.shed_to == -1
    late, _ = lived(early, full, 2 * EVERY, start=now)
    assert late.load.shed_to == 2


def test_nobody_is_asked_where_nobody_is() -> None:
    """A host that is short for reasons of its own."""
    tainted, _ = lived(NOTHING, SHORT, 600, live=0)
    assert tainted.load.taint and tainted.load.shed_to == -1


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=60), st.floats(6.0, 6.7))
def test_an_idle_host_tells_nothing_new(loads: list[float], memory: float) -> None:
    """Within a class, and about its edge, nothing is written."""
    told, now = lived(NOTHING, replace(WELL, memory_available_bytes=6 * GIB), 120)
    assert told.load.memory_percent == 50
    for load in loads:
        facts = replace(WELL, load=load, memory_available_bytes=int(memory * GIB))
        after, now = lived(told, facts, EVERY, start=now)
        assert after.load == told.load
        told = after


def test_a_class_is_told_at_first_and_then_when_another_lasts() -> None:
    """So that an idle cluster writes nothing while the load of its hosts goes up and down."""
    told, now = lived(NOTHING, replace(WELL, load=8.0), EVERY)
    assert told.load.load_percent == 200
    still, now = lived(told, WELL, HINT_SECONDS, start=now)
    assert still.load.load_percent == 200
    after, _ = lived(still, WELL, EVERY, start=now)
    assert after.load.load_percent == 0


def test_memory_in_use_makes_a_node_less_liked_and_does_not_flap() -> None:
    """About an edge the class told stays, whichever it is; another counts once it has lasted."""

    def using(percent: int) -> HostFacts:
        return replace(
            WELL, memory_available_bytes=(100 - percent) * WELL.memory_total_bytes // 100
        )

    told, now = lived(NOTHING, using(75), EVERY)
    assert (told.load.memory_percent, load_class(told.load)) == (70, 0)
    for percent in (89, 84, 89):  # the edge is at 85
        told, now = lived(told, using(percent), 2 * HINT_SECONDS, start=now)
        assert load_class(told.load) == 0
    told, now = lived(told, using(91), HINT_SECONDS, start=now)
    assert load_class(told.load) == 0
    told, now = lived(told, using(91), EVERY, start=now)
    assert (told.load.memory_percent, load_class(told.load)) == (85, 1)
    for percent in (84, 89, 81):
        told, now = lived(told, using(percent), 2 * HINT_SECONDS, start=now)
        assert load_class(told.load) == 1
    told, now = lived(told, using(79), HINT_SECONDS + EVERY, start=now)
    assert (told.load.memory_percent, load_class(told.load)) == (70, 0)


def test_older_loads_ask_for_nobody() -> None:
    """A record without the newer members still decodes."""
    assert codec.decode(Load, b'{"taint":"disk pressure: x"}').shed_to == -1
