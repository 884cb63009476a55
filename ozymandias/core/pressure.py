"""Is a host under pressure? Facts of one moment -> what its node tells, with hysteresis.

A node is tainted when a limit has been crossed for a while, and is well again when it has been
clearly on the other side for a longer while; between the two nothing changes. While it is tainted
it takes no new work, and as long as a limit stays crossed it asks for its instances to leave, one
after the other, each with some grace: `Load.shed_to` says how many it wants to keep. Who leaves is
decided by `core/shed.py`, by whichever peer comes first.

What else is told (load, use of memory and disk) is a hint for placing, in coarse classes, and only
when another class has lasted: an idle cluster writes nothing. A node that joins tells its own once.
Times are on the node's own clock.
"""

from dataclasses import dataclass, field

from ozymandias.model.host import HostFacts
from ozymandias.model.node import Load
from ozymandias.model.record import replace
from ozymandias.model.units import format_size

TAINT_SECONDS = 10.0  # a limit crossed for so long taints
CLEAR_SECONDS = 60.0  # well for so long clears
SHED_SECONDS = 30.0  # from taint to the first that leaves, and from one to the next
# Memory is short at once and for everybody; a disk fills slowly, and what runs can run on.
SHED_DISK_SECONDS = 300.0
URGENT_SECONDS = 60.0  # who has not left by then has to, whether it is replaced or not
HINT_SECONDS = 300.0  # another class of use for so long is told

# Percent. The second of each pair is where it counts as well again.
MEMORY_LOW = (4.0, 8.0)  # available
STALLED = (30.0, 10.0)  # of the time, if memory is short as well
STALLED_MEMORY = (15.0, 20.0)  # tasks also stall at their own limit, which is not the host's matter
DISK_LOW = (5.0, 8.0)  # free
INODES_LOW = (5.0, 8.0)  # free

LOAD_CLASSES = (0, 50, 100, 200, 400, 800)  # percent of its processors
USE_CLASSES = (0, 25, 50, 70, 85, 95)
CLASS_MARGIN = 5  # so far beyond the edge of its class


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is told, and what it takes to tell something else."""

    load: Load = field(default_factory=Load)
    pressing_since: float | None = None  # a limit is crossed
    well_since: float | None = None  # tainted, and no limit is near
    differs_since: float | None = None  # the classes told are not those that are
    asked_at: float = 0.0  # for somebody to leave; or since when nobody is asked
    is_first: bool = True  # nothing was measured before: what is found is told at once


NOTHING = Judgement()


def judge(before: Judgement, facts: HostFacts, *, live: int, now: float, wall: float) -> Judgement:
    """``live``: instances that could leave; ``now`` is on the node's steady clock."""
    is_tainted = bool(before.load.taint)
    why = pressure(facts)
    near = why or (pressure(facts, is_tainted=True) if is_tainted else "")
    since = _since(before.pressing_since, bool(why), now)
    well = _since(before.well_since, is_tainted and not near, now)
    after = replace(before, pressing_since=since, well_since=well, is_first=False)
    if not is_tainted and since is not None and now - since >= TAINT_SECONDS:
        told = replace(_classes(facts, Load()), taint=why, tainted_at=wall)
        return replace(after, load=told, differs_since=None, asked_at=now)
    if well is not None and now - well >= CLEAR_SECONDS:
        return Judgement(load=_classes(facts, Load()), is_first=False)
    if is_tainted:
        return _ask(after, bool(why), live, now)
    if before.is_first:
        return replace(after, load=_classes(facts, Load()))
    return _hint(after, facts, now)


def _since(before: float | None, is_so: bool, now: float) -> float | None:
    return (now if before is None else before) if is_so else None


def _ask(before: Judgement, is_pressing: bool, live: int, now: float) -> Judgement:
    """How many it wants to keep now: one less from time to time, while the pressure lasts."""
    load, waited = before.load, now - before.asked_at
    if not is_pressing or not live:
        calm = replace(load, shed_to=-1, is_urgent=False)
        return before if calm == load else replace(before, load=calm, asked_at=now)
    if load.shed_to >= live:  # somebody has left: a while for that to show
        return replace(before, load=replace(load, shed_to=-1, is_urgent=False), asked_at=now)
    if load.shed_to < 0:
        if waited < (SHED_SECONDS if load.taint.startswith("memory") else SHED_DISK_SECONDS):
            return before
        return replace(before, load=replace(load, shed_to=live - 1), asked_at=now)
    if not load.is_urgent and waited >= URGENT_SECONDS:
        return replace(before, load=replace(load, is_urgent=True))
    return before


def _hint(before: Judgement, facts: HostFacts, now: float) -> Judgement:
    wanted = _classes(facts, before.load)
    if wanted == before.load:
        return replace(before, differs_since=None)
    since = before.differs_since
    if since is None:
        return replace(before, differs_since=now)
    if now - since < HINT_SECONDS:
        return before
    return replace(before, load=wanted, differs_since=None)


def _classes(facts: HostFacts, told: Load) -> Load:
    busy = 100 * facts.load / facts.processors if facts.processors else 0.0
    used = facts.memory_total_bytes - facts.memory_available_bytes
    full = facts.disk_total_bytes - facts.disk_free_bytes
    return replace(
        told,
        load_percent=_class(LOAD_CLASSES, busy, told.load_percent),
        memory_percent=_class(
            USE_CLASSES, _percent(used, facts.memory_total_bytes), told.memory_percent
        ),
        disk_percent=_class(USE_CLASSES, _percent(full, facts.disk_total_bytes), told.disk_percent),
    )


def _class(classes: tuple[int, ...], value: float, told: int) -> int:
    """The beginning of the class a value is in; just beyond an edge it is still in the one told."""
    for shifted in (value - CLASS_MARGIN, value + CLASS_MARGIN):
        if _begins(classes, shifted) == told:
            return told
    return _begins(classes, value)


def _begins(classes: tuple[int, ...], value: float) -> int:
    return max((begin for begin in classes if begin <= value), default=0)


def _percent(part: int, total: int) -> float:
    return 100 * part / total if total else 0.0


def pressure(facts: HostFacts, *, is_tainted: bool = False) -> str:
    """Which limit is crossed, with the numbers; "": none."""
    low = MEMORY_LOW[is_tainted]
    if facts.memory_total_bytes:
        available = _percent(facts.memory_available_bytes, facts.memory_total_bytes)
        left = f"{available:.0f} % of {format_size(facts.memory_total_bytes)} is available"
        if available < low:
            return f"memory pressure: {left}, less than {low:g} %"
        stalled = facts.memory_stall_percent
        if (
            stalled is not None
            and stalled >= STALLED[is_tainted]
            and available < STALLED_MEMORY[is_tainted]
        ):
            return f"memory pressure: tasks wait for memory {stalled:.0f} % of the time, and {left}"
    for what, total, free, (limit, well) in (
        ("disk", facts.disk_total_bytes, facts.disk_free_bytes, DISK_LOW),
        ("inode", facts.inodes_total, facts.inodes_free, INODES_LOW),
    ):
        low = well if is_tainted else limit
        if total and _percent(free, total) < low:
            size = format_size(total) if what == "disk" else f"{total} inodes"
            share = f"{_percent(free, total):.0f} % of {size} is free"
            return f"{what} pressure: {share} where volumes are, less than {low:g} %"
    return ""
