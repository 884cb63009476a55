"""What the operators have settled for the whole cluster: one record, the same for every peer.

Decisions read it from the snapshot like everything else, so two peers never decide by different
settings; a change of it is one compare-and-swap of its key.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from ozymandias.model.job import LabelRule

PRIORITY_MAX = 10_000

# Classes that every cluster has; nobody can give them another number.
PRIORITY_CLASSES = {
    "platform-critical": 10_000,
    "platform-infrastructure": 9_000,
    "platform-observability": 8_000,
    "platform-security": 7_000,
    "platform-cicd": 6_000,
    "platform-low": 5_000,
}


class RebalanceMode(StrEnum):
    """How far the cluster moves instances of its own accord, only to be better placed."""

    OFF = "off"
    SUGGEST = "suggest"  # says what it would move; wishes of job files are still fulfilled
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Which nodes the jobs of a namespace are for."""

    namespace: str
    require: tuple[LabelRule, ...]
    is_hard: bool = True  # False: they would rather be there, and may be elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeWindow:
    """A time of the week in which nothing is changed that can wait.

    ``start`` and ``end`` are minutes after midnight by the clocks of its time zone; an end at or
    before the start is on the next day, so the same twice is a whole day. ``weekdays`` are those on
    which it begins, 0 is Monday. With ``until`` it is from one moment to another, and never again.
    """

    name: str
    start: int
    end: int
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    timezone: str = "UTC"
    reason: str = ""
    since: float = 0.0  # of one that is over for good afterwards: wall clock
    until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalancing:
    """An operator wants the cluster laid out anew, by at most so many moves from now on."""

    moves: int  # that may still begin
    since: float  # wall clock
    by: str = ""
    override_freeze: str = ""  # why its moves do not wait for the end of a freeze window


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    target_percent: int = 70  # of a node's memory: packed up to here, then spread
    rebalance: RebalanceMode = RebalanceMode.SUGGEST
    priority_classes: dict[str, int] = field(default_factory=dict)  # beside the predefined ones
    pools: tuple[NodePool, ...] = ()
    freezes: tuple[FreezeWindow, ...] = ()
    rebalancing: Rebalancing | None = None  # asked for, and worked off by whoever comes first
    commit: str = ""  # id of the transaction that wrote this
