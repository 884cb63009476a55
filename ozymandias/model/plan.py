"""Decisions as values: what a schedule changes (Plan), and what a node does about it (Action).

A plan is a set of edits; an edit is one step of one slot on one node. `store/commit.py` turns the
edits into one transaction, `ozy plan` prints them. Each carries the reason in plain words.
"""

from dataclasses import dataclass
from enum import StrEnum

from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.job import JobHead, JobKey, JobVersion
from ozymandias.model.node import Demand, Drain, NodeName
from ozymandias.model.pod import Pod, PodId


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One slot's step on one node: ``before`` None creates the entry, ``after`` None removes it."""

    node: NodeName
    job: JobKey
    slot: int
    uid: str
    version: int
    generation: int = 0
    before: SlotState | None
    after: SlotState | None
    demand: Demand
    reason: str
    score: tuple[tuple[str, float], ...] = ()  # the terms that made this node the best

    @property
    def instance(self) -> InstanceId:
        return InstanceId(self.job, self.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What happens to the job itself in the same transaction as the edits."""

    key: JobKey
    head: JobHead | None  # None: the head is deleted (its last instance is gone)
    version: JobVersion | None = None  # a new version to write
    claim: frozenset[str] = frozenset()  # ingress "host/path" to take; must be free or ours
    disclaim: frozenset[str] = frozenset()
    drop_versions: tuple[int, ...] = ()  # old versions nobody names any more


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """What an operator sets in a node's ledger: these three as they shall be."""

    node: NodeName
    is_cordoned: bool
    drain: Drain | None
    set_labels: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An instance that is wanted and could not be placed, and why."""

    job: JobKey
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one transaction will change, and what it relied on beyond that."""

    reason: str
    edits: tuple[Edit, ...] = ()
    job: JobChange | None = None
    pending: tuple[Pending, ...] = ()
    nodes: tuple[NodeChange, ...] = ()
    # Nodes declared dead: compared to be absent; their statuses and names are deleted.
    dead: frozenset[NodeName] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.edits or self.job or self.nodes or self.dead)


class ActionKind(StrEnum):
    CREATE = "create"  # pull, make volumes and the pod, create its containers
    START = "start"  # start one container
    RESTART = "restart"  # stop one container that is unhealthy, and start it again
    STOP = "stop"  # stop the pod's containers with grace, then remove pod and volumes
    REMOVE = "remove"  # remove what is left of a pod that does not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing this node does to one pod."""

    kind: ActionKind
    pod: PodId
    spec: Pod | None = None  # create: what to make
    container: str = ""  # start, restart
    reason: str
