"""What a decision was made on, kept with it: it can be explained when the cluster is another.

A record is written in the transaction that carries the decision out. It holds what placing looks
at and nothing more: of nodes the amounts, labels and what closed them, of jobs the rules, of
assignments those of the jobs in question. A large cluster's is cut to the nodes that were chosen
and the best of the others; ``nodes_total`` and ``left_out`` say what is missing, and of the job
that was placed first it is counted what the nodes were to it.
"""

from dataclasses import dataclass, field

from ozymandias.model.contest import Contest
from ozymandias.model.instance import Group, Slots, SlotState
from ozymandias.model.job import JobKey, PlacementRules
from ozymandias.model.node import Demand, Load, NodeName, Resources, Totals
from ozymandias.model.part import Part
from ozymandias.model.settings import NodePool


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    allocatable: Resources
    held: Totals
    promised: Totals
    labels: dict[str, str] = field(default_factory=dict)
    closed: str = ""  # why it took no work
    load: Load | None = None
    kept_free: tuple[Demand, ...] = ()  # for system jobs whose last instance is still stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVersion:
    """One version of a job that was placed, or that one of those is near to or apart from."""

    job: JobKey
    uid: str
    version: int
    is_current: bool
    priority: int
    placement: PlacementRules
    wanted: int = 0  # instances of the job in all
    part: Part | None = None  # of the nodes: only in this one a place was looked for
    # Of a large cluster: how many nodes could take one, and how many were what else, before any of
    # the decision's own steps.
    feasible: int | None = None
    rejected: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAssignment:
    node: NodeName
    job: JobKey
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedStep:
    """A run of slots that take the same step, as in `model/plan.py`."""

    node: NodeName
    job: JobKey
    slots: Slots
    uid: str
    version: int
    generation: int
    before: SlotState | None
    after: SlotState | None
    demand: Demand
    reason: str
    score: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    number: int  # of those that this node has committed
    by: NodeName  # whose daemon committed it
    time: float  # wall clock
    revision: int  # of the snapshot that it was decided on
    reasons: tuple[str, ...]  # of the plans
    steps: tuple[DecidedStep, ...]  # in the order in which they were decided
    left_out: int = 0  # steps that are not in the record
    nodes: dict[NodeName, SeenNode] = field(default_factory=dict)
    nodes_total: int = 0
    jobs: tuple[SeenVersion, ...] = ()
    assignments: tuple[SeenAssignment, ...] = ()
    target_percent: int = 70
    pools: tuple[NodePool, ...] = ()
    contests: tuple[Contest, ...] = ()  # how those were chosen who had to leave, of the first ones
    # Of several plans: some were decided on what those before them made of nodes, settings or
    # neighbours, and that is not in the record.
    is_shifted: bool = False

    @property
    def name(self) -> str:
        return f"{self.by}/{self.number}"
