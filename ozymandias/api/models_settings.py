"""The shapes of the cluster's settings: what is asked for, and what is answered."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

Name = Annotated[str, Meta(max_length=63)]
RuleText = Annotated[str, Meta(max_length=1024)]
Rebalance = Literal["off", "suggest", "on"]


class NodePoolRequest(Struct, forbid_unknown_fields=True):
    """Which nodes the jobs of a namespace are for; ``hard``: no others, ever."""

    require: Annotated[list[RuleText], Meta(max_length=100)]
    hard: bool = True


class SettingsRequest(Struct, forbid_unknown_fields=True):
    """What shall be different; what is left out stays. A class or pool that is null goes."""

    target_percent: int | UnsetType = UNSET
    rebalance: Rebalance | UnsetType = UNSET
    priority_classes: Annotated[dict[Name, int | None], Meta(max_length=1000)] = {}
    pools: Annotated[dict[Name, NodePoolRequest | None], Meta(max_length=1000)] = {}


class NodePoolRow(Struct):
    require: list[str]
    hard: bool


class ClusterSettings(Struct):
    """``predefined_classes`` are the same in every cluster. ``revision`` 0: never changed."""

    target_percent: int
    rebalance: Rebalance
    priority_classes: dict[str, int]
    predefined_classes: dict[str, int]
    pools: dict[str, NodePoolRow]
    revision: int
    etag: str


class SettingsChanged(Struct):
    settings: ClusterSettings
    changed: bool
    reason: str
    revision: int


# Freeze windows -----------------------------------------------------------------------------------

Clock = Annotated[str, Meta(max_length=5)]


class FreezeRequest(Struct, forbid_unknown_fields=True):
    """Every week ``from`` to ``to`` by the clocks of ``timezone``, or once for ``for_seconds``.

    ``to`` at or before ``from`` is on the next day; ``weekdays`` are those on which it begins.
    """

    start: Clock = field(name="from", default="")
    end: Clock = field(name="to", default="")
    weekdays: Annotated[str, Meta(max_length=100)] = "daily"
    timezone: Annotated[str, Meta(max_length=100)] = "UTC"
    reason: Annotated[str, Meta(max_length=500)] = ""
    for_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 0.0


class FreezeRow(Struct):
    """``frozen``: it holds now. ``since`` and ``until`` are of one that happens once."""

    name: str
    start: str | None = field(name="from")
    end: str | None = field(name="to")
    weekdays: str | None
    timezone: str
    reason: str
    since: float | None
    until: float | None
    frozen: bool
    about: str


class FreezeList(Struct):
    """``frozen``: by which window everything is held now, and until when, in words."""

    items: list[FreezeRow]
    frozen: str | None
    revision: int
    etag: str


class FreezeChanged(Struct):
    freezes: FreezeList
    changed: bool
    reason: str
    revision: int
