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
    """What becomes of a job: `before` and `after` are its live instances.

    It `survives` with all that are wanted; `degrades`: it is left with some, and more are missing
    than before; `lacks`: some are missing, as before, and no more than then; `waits`: it has none.
    """

    job: str
    namespace: str
    priority: int
    outcome: Literal["survives", "lacks", "degrades", "waits"]
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
    """A step, the problem if the cluster would refuse it, and what follows in this order.

    A drain is played as with `--force`; `forced` is the problem that it would be without.
    """

    step: str
    problem: Problem | None
    forced: Problem | None
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
    """What a submit would do now and what follows from it, and what one instance takes.

    `others` is what becomes of other jobs meanwhile, in that order; `others_left_out` says why the
    rest of it is not foreseen, or is "". In the end `missing` instances have no place, `outdated`
    ones are not replaced, and the other jobs in `hurt` have fewer than they would have without it.
    """

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
    others: list[InstanceChange]
    others_left_out: str
    missing: Count
    outdated: Count
    hurt: list[Fate]
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


class Victim(Struct):
    job: str
    namespace: str
    instance: str
    priority: int
    serves: bool  # it is healthy, and would be missed at once


class NodeCost(Struct):
    """Who would have had to leave a node; or nobody, and what was against it.

    `waste_bytes` is how much more memory they would have freed than is needed.
    """

    node: str
    chosen: bool
    victims: list[Victim]
    waste_bytes: Count
    against: str


class CandidateRow(Struct):
    """Instances that could have been asked to leave, alike in that; `left` are those that did."""

    job: str
    namespace: str
    slots: str
    left: str
    priority: int
    serves: bool
    memory_bytes: Count


class StayingRow(Struct):
    job: str
    namespace: str
    slots: str
    reason: str


class Contest(Struct):
    """Who had to leave for an instance of `job` that fits nowhere, weighed again.

    `nodes` are those with the least cost, the least first. Of the chosen `node`, `candidates` are
    who could leave, in the order in which they would be missed, and `staying` who could not.
    `exact` says that those who left came out again, as the least.
    """

    job: str
    namespace: str
    priority: int
    node: str
    exact: bool
    nodes: list[NodeCost]
    nodes_left_out: Count
    candidates: list[CandidateRow]
    candidates_left_out: Count
    staying: list[StayingRow]


class Displacement(Struct):
    """The decision by which an instance had to leave."""

    id: str
    time: float
    by: str
    contest: Contest


class DecisionRow(Struct):
    """The decision that placed an instance, computed again from what it was made on.

    `exact` says that the recorded score of the chosen node came out again, and as the best. Of a
    large cluster `nodes` are the chosen ones and the best of the others; `feasible` is how many of
    all could have taken an instance of the job when the decision began (null: not counted), and
    `rejected` counts the others by reason. `contest` is null unless others had to leave for it, or
    where that is not on record.
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
    contest: Contest | None


class InstanceWhy(Lines):
    """Line by line; the decision is null if no record of it is left.

    `displaced` is of one that runs nowhere because it had to leave for another.
    """

    decision: DecisionRow | None
    displaced: Displacement | None
