"""Several jobs are to be placed and not all fit: in which order, and how.

Higher priority first and the more starved first, always. Among equals the order is free, and it
matters: whoever comes early may take the last place that another could have used. First it is
tried as everybody would like it, jobs by name. What then stays pending is tried again in these
ways, and what places most is done (`core/upkeep.py`):

    PLAIN         the same order, and nobody's wishes are heard
    SMALL         those with few places to go first, then small before large: most instances fit
    SMALL_TIGHT   likewise, each on the fullest node that has room: larger holes stay for others
    LARGE_TIGHT   large before small: the small ones fill what is left

None of them is best everywhere; `make bench-packing` says how near to the optimum they come.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from ozymandias.core.rooms import Rooms
from ozymandias.core.rules import near_to
from ozymandias.model.job import Job, JobKey
from ozymandias.model.node import Demand

JOBS_MAX = 500  # beyond so many jobs at once one order has to do


class Way(Enum):
    AS_LIKED = auto()
    PLAIN = auto()
    SMALL = auto()
    SMALL_TIGHT = auto()
    LARGE_TIGHT = auto()

    @property
    def is_tight(self) -> bool:
        return self in (Way.SMALL_TIGHT, Way.LARGE_TIGHT)

    @property
    def note(self) -> str:
        """What is said of a placement made this way."""
        if self is Way.AS_LIKED:
            return ""
        if self is Way.PLAIN:
            return "more fits when nothing is preferred; "
        return "more fits when all are packed together; "


class Starved(NamedTuple):
    """A job that lacks instances; these sort as they are to be served."""

    priority: int  # negative: the highest first
    part: float  # of what is wanted, that is live
    key: JobKey
    job: Job


def ordered(starved: Sequence[Starved], way: Way, rooms: Rooms) -> list[JobKey]:
    """In which order they are placed; ``rooms`` are as before all of them."""
    if way in (Way.AS_LIKED, Way.PLAIN):
        return [job.key for job in starved]
    memory = sum(max(0, room.memory_left()) for room in rooms.values()) or 1
    disk = sum(max(0, room.disk_left()) for room in rooms.values()) or 1
    cpu = sum(max(0, room.cpu_left()) for room in rooms.values()) or 1
    sign = -1 if way is Way.LARGE_TIGHT else 1

    def rank(one: Starved) -> tuple[int, float, int, float, JobKey]:
        demand = Demand.of(one.job)
        # The part it takes of all there is, of whatever is scarcest for it.
        parts = (
            demand.memory_bytes / memory,
            demand.disk_bytes / disk,
            demand.cpu_millis / cpu,
        )
        return one.priority, one.part, _freedom(one.job, demand), sign * max(parts), one.key

    return _followed(sorted(starved, key=rank))


def _freedom(job: Job, demand: Demand) -> int:
    """Those with fewer places to go come first."""
    rules = job.placement
    is_apart = any(not neighbour.weight for neighbour in rules.apart)
    is_bound = demand.host_ports or rules.require or rules.max_per_node or rules.burst or is_apart
    return 0 if is_bound else 1


def _followed(jobs: Sequence[Starved]) -> list[JobKey]:
    """The same order, but those who are to be near another come right after it.

    Before it they would find no node at all, and long after it none with room. Of a circle nobody
    is first, so it is left at the end.
    """
    here = {one.key for one in jobs}
    awaited = {one.key: here.intersection(near_to(one.job)) for one in jobs}
    order: dict[JobKey, None] = {}  # remembers who came first

    def put(key: JobKey) -> None:
        order[key] = None
        for other in jobs:
            wants = awaited[other.key]
            if key in wants and other.key not in order and wants <= order.keys():
                put(other.key)

    for one in jobs:
        if not awaited[one.key]:
            put(one.key)
    return [*order, *(one.key for one in jobs if one.key not in order)]
