"""The shapes of drift and rebalance: what is given up, what would move, what that gains."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ozymandias.api.models_settings import Rebalance
from ozymandias.core.rebalance import MOVES_MAX


class RebalanceRequest(Struct, forbid_unknown_fields=True):
    """At most so many moves; 0 ends a rebalance that is under way."""

    max_moves: Annotated[int, Meta(ge=0, le=MOVES_MAX)] = MOVES_MAX


class DriftRow(Struct):
    """Something that instances of a job on one node do without.

    ``since`` null: noticed just now. ``to``: where one of them could move now to have it.
    """

    job: str
    namespace: str
    node: str
    instances: list[str]
    kind: Literal["require", "prefer", "near", "apart", "pool", "spread", "burst"]
    wish: str
    since: float | None
    why: str
    to: str | None


class DriftList(Struct):
    """``moves``: how far the cluster goes by itself. ``frozen``: why nothing moves now, or ""."""

    items: list[DriftRow]
    left_off: int
    rebalance: Rebalance
    frozen: str
    suggestion: str
    revision: int


class Sums(Struct):
    """Smaller is better, compared from top to bottom."""

    breach: int
    away: int
    unmet: int
    alike: int
    crowd: int
    heat: int


class MoveRow(Struct):
    """``from`` and ``to`` are nodes; ``gain`` is by how much each sum falls."""

    instance: str
    job: str
    namespace: str
    source: str
    to: str
    reason: str
    gain: Sums | None


class NodeFill(Struct):
    node: str
    percent_before: int
    percent_after: int


class RebalanceView(Struct):
    """What is under way, and what would be done."""

    rebalance: Rebalance
    frozen: str
    moves_left: int
    under_way: list[MoveRow]
    moves: list[MoveRow]
    before: Sums
    after: Sums
    nodes: list[NodeFill]
    revision: int


class RebalanceBegun(RebalanceView):
    changed: bool
    reason: str
