"""The shapes of what the API says of futures and of reasons; the others are in `api/models.py`."""

from typing import Any, Literal

from msgspec import Struct, field

from ozymandias.api.models import (
    Amount,
    ContainerDemand,
    Count,
    Lines,
    NodeRow,
    PlanDocument,
    Problem,
)
from ozymandias.api.models_settings import Rebalance

# Futures ----------------------------------------------------------------------------------------


class Fate(Struct):
    """What becomes of a job: `before` and `after` are its live instances."""

    job: str
    namespace: str
    priority: int
    outcome: Literal["survives", "degrades", "waits"]
    wanted: Count
    before: Count
    after: Count
    waiting: list[str]


class InstanceChange(Struct):
    """An instance that comes (from nowhere), goes (to nowhere) or moves."""

    instance: str
    job: str
    namespace: str
    origin: str | None = field(name="from")
    to: str | None
    reason: str


class PlayedStep(Struct):
    """A step, the problem if the cluster would refuse it, and what follows in this order."""

    step: str
    problem: Problem | None
    changes: list[InstanceChange]
    hurt: list[Fate]


class WaitingRow(Struct):
    job: str
    namespace: str
    count: Count
    reason: str


class Outcome(Struct):
    """How the cluster would be in the end; `at_rest` is false if there was no end to it.

    `first` is what is under way and due anyway, before the first step. `frozen` names the freeze
    window that holds, or is "", and `thawed` is what happens when it ends. `suggested` are moves
    that only `ozy rebalance` would make, because the setting `rebalance` is not on. `with_moves` is
    false in a cluster so large that moves for a better layout were not looked for.
    """

    first: list[InstanceChange]
    steps: list[PlayedStep]
    survives: bool
    at_rest: bool
    jobs: list[Fate]
    waiting: list[WaitingRow]
    nodes: list[NodeRow]
    frozen: str
    thawed: list[InstanceChange]
    rebalance: Rebalance
    with_moves: bool
    suggested: list[InstanceChange]


class Loss(Struct):
    lost: list[str]
    hurt: list[Fate]


class Survival(Struct):
    """Of `ways` to lose so many nodes `played` were; null if that was not worked out.

    `with_moves` is false where looking for moves would have taken too long.
    """

    survives: bool | None
    text: str
    ways: Count
    played: Count
    with_moves: bool
    worst: Loss | None


class PendingInstance(Struct):
    instance: str
    job: str
    namespace: str
    reason: str


class ClusterStatus(Struct):
    """Counts by state, and whether the loss of a node would be survived."""

    cluster: str
    nodes: dict[str, Count]
    memory_bytes: Amount
    disk_bytes: Amount
    jobs: dict[str, Count]
    instances: dict[str, Count]
    pending: list[PendingInstance]
    drifting: Count  # instances that do without something they prefer: GET /v1/drift
    survival: Survival


class Planned(PlanDocument):
    """What a submit would do now, and what one instance takes."""

    job: str
    namespace: str
    version: Count
    wanted: Count
    changed: bool
    memory_bytes: Count
    disk_bytes: Count
    cpu_millis: Count
    host_ports: list[str]
    containers: list[ContainerDemand]
    frozen: str | None  # by which freeze window the replacing is held, and until when
    lose_node: Outcome | None = None  # if it was asked for
    lose_any: Survival | None = None


# Reasons ----------------------------------------------------------------------------------------


class SuggestionRow(Struct):
    """A change that was carried out on a copy of the cluster and found to do."""

    text: str
    change: dict[str, Any]


class JobWhy(Lines):
    """Line by line, and what would give a pending job all that it wants."""

    suggestions: list[SuggestionRow]


class NodeVerdict(Struct):
    """What a node was to an instance: its rank (1 is the best), or what spoke against it."""

    node: str
    rank: int | None
    chosen: bool
    against: str
    terms: dict[str, float]


class WhyNot(Lines):
    job: str
    namespace: str
    node: str
    nodes: list[NodeVerdict]
    suggestions: list[SuggestionRow]


class DecisionRow(Struct):
    """The decision that placed an instance, computed again from what it was made on.

    `exact` says that the recorded score of the chosen node came out again, and as the best. Of a
    large cluster `nodes` are the chosen ones and the best of the others; `feasible` is how many of
    all could have taken an instance of the job when the decision began (null: not counted), and
    `rejected` counts the others by reason.
    """

    id: str
    time: float
    by: str
    reason: str
    exact: bool
    nodes_total: Count
    feasible: Count | None
    rejected: dict[str, Count]
    nodes: list[NodeVerdict]


class InstanceWhy(Lines):
    """Line by line; the decision is null if no record of it is left."""

    decision: DecisionRow | None
