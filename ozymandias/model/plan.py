"""Decisions as values: what a schedule changes (Plan), and what a node does about it (Action).

A plan is a set of edits; an edit is one step of one slot on one node. `store/commit.py` turns the
edits into one transaction, `ozy plan` prints them. Each carries the reason in plain words.

Instances of one job are alike, and a thousand new ones may go to a few nodes. Such a plan says how
many go where (`Runs`). Who looks at edits sees them slot by slot, who looks at steps sees a run for
all the slots on a node; each is made when somebody looks at it, and nobody does at most of them.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, islice, repeat
from typing import NamedTuple, TypeVar, overload

from msgspec import Struct, structs

from ozymandias.model.contest import Contest
from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.job import JobHead, JobKey, JobVersion
from ozymandias.model.node import Demand, Displaced, Drain, NodeName
from ozymandias.model.part import Part
from ozymandias.model.pod import Pod, PodId
from ozymandias.model.record import once
from ozymandias.model.settings import Settings

T = TypeVar("T")

LIVE = frozenset({SlotState.RUNNING, SlotState.WAITING})


class Edit(Struct, frozen=True, kw_only=True, gc=False):
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

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.slot,)


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """The same step of several slots on one node; the members are those of `Edit`."""

    node: NodeName
    job: JobKey
    slots: Sequence[int]
    uid: str
    version: int
    generation: int = 0
    before: SlotState | None
    after: SlotState | None
    demand: Demand
    reason: str
    score: tuple[tuple[str, float], ...] = ()

    def edit(self, slot: int) -> Edit:
        return Edit(
            node=self.node,
            job=self.job,
            slot=slot,
            uid=self.uid,
            version=self.version,
            generation=self.generation,
            before=self.before,
            after=self.after,
            demand=self.demand,
            reason=self.reason,
            score=self.score,
        )


Step = Edit | Run


Score = tuple[tuple[str, float], ...]
# A node, how many it takes, and what there is to say of why.
Portion = tuple[NodeName, int, object]
Tell = Callable[[object], tuple[str, Score]]  # the words after its name, and the terms of its score


class Runs(Sequence[Edit]):
    """New instances of one job, that may run at once: so many on each of some nodes.

    ``slots`` are their numbers, portion by portion; ``tell`` says what there is to say of each.
    """

    __slots__ = ("_runs", "demand", "head", "job", "portions", "slots", "tell")

    def __init__(
        self,
        job: JobKey,
        head: JobHead,
        demand: Demand,
        portions: Sequence[Portion],
        slots: Sequence[Sequence[int]],
        tell: Tell,
    ) -> None:
        self.job, self.head, self.demand = job, head, demand
        self.portions, self.slots, self.tell = portions, slots, tell
        self._runs: tuple[Run, ...] | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        if self._runs is None:
            self._runs = tuple(self.each_run())
        return self._runs

    def each_run(self) -> Iterator[Run]:
        """One by one, for who looks at the first of them."""
        told: dict[object, tuple[str, Score]] = {}  # of nodes that are alike
        for (node, _, why), slots in zip(self.portions, self.slots, strict=True):
            if why not in told:
                told[why] = self.tell(why)
            yield self._run(node, slots, *told[why])

    def _run(self, node: NodeName, slots: Sequence[int], words: str, score: Score) -> Run:
        return Run(
            node=node,
            job=self.job,
            slots=slots,
            uid=self.head.uid,
            version=self.head.version,
            generation=self.head.restart,
            before=None,
            after=SlotState.RUNNING,
            demand=self.demand,
            reason=f"{node} {words}",
            score=score,
        )

    def __len__(self) -> int:
        return sum(map(len, self.slots))

    def __iter__(self) -> Iterator[Edit]:
        return (run.edit(slot) for run in self.runs for slot in run.slots)

    @overload
    def __getitem__(self, index: int) -> Edit: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Edit]: ...
    def __getitem__(self, index: int | slice) -> Edit | Sequence[Edit]:
        if isinstance(index, slice):
            return tuple(self)[index]
        ends = list(accumulate(map(len, self.slots)))
        at = range(len(self))[index]
        place = bisect_right(ends, at)
        run = self.runs[place]
        return run.edit(run.slots[at - ends[place] + len(run.slots)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"Runs({self.runs!r})"


class Places(Set[tuple[NodeName, JobKey]]):
    """One job on each of some nodes, as pairs: each is made when somebody looks at it."""

    __slots__ = ("job", "nodes")

    def __init__(self, job: JobKey, nodes: Set[NodeName]) -> None:
        self.job, self.nodes = job, nodes

    @classmethod
    def _from_iterable(cls, pairs: Iterable[T]) -> Set[T]:
        return set(pairs)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[tuple[NodeName, JobKey]]:
        return zip(self.nodes, repeat(self.job))

    def __contains__(self, pair: object) -> bool:
        return isinstance(pair, tuple) and pair[1] == self.job and pair[0] in self.nodes


class Effect(NamedTuple):
    """What the steps of a plan come to."""

    pairs: Set[tuple[NodeName, JobKey]]  # what is reassigned, in the order of the steps
    nodes: Set[NodeName]  # of those
    entered: Set[NodeName]  # where there is a new entry
    live: Set[NodeName]  # where something is to run
    gaining: Set[JobKey]  # jobs that get live slots
    # Jobs that gain a slot, or stop a live one. Whoever counts a job's live slots relies on these.
    changing: Set[JobKey]

    @classmethod
    def of(cls, edits: Sequence[Edit]) -> "Effect":
        if isinstance(edits, Runs):
            nodes = dict.fromkeys([node for node, _, _ in edits.portions]).keys()
            job = {edits.job} if nodes else set()
            return cls(Places(edits.job, nodes), nodes, nodes, nodes, job, job)
        pairs = dict.fromkeys([(edit.node, edit.job) for edit in edits]).keys()
        return cls(
            pairs,
            nodes=dict.fromkeys([node for node, _ in pairs]).keys(),
            entered=dict.fromkeys([edit.node for edit in edits if edit.before is None]).keys(),
            live={edit.node for edit in edits if edit.after in LIVE},
            gaining={edit.job for edit in edits if edit.before is None and edit.after in LIVE},
            changing={
                edit.job
                for edit in edits
                if edit.before is None or (edit.before in LIVE and edit.after not in LIVE)
            },
        )


class JobChange(Struct, frozen=True, kw_only=True):
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


class Plan(Struct, frozen=True, kw_only=True, dict=True):
    """Everything that one transaction will change, and what it relied on beyond that."""

    reason: str
    edits: Sequence[Edit] = ()
    job: JobChange | None = None
    pending: tuple[Pending, ...] = ()
    nodes: tuple[NodeChange, ...] = ()
    # Nodes declared dead: compared to be absent; their statuses and names are deleted.
    dead: frozenset[NodeName] = frozenset()
    settings: Settings | None = None  # the cluster's, as they shall be
    # Decided on there being no freeze window: compared, so that none can have come in between.
    heeds_settings: bool = False
    # Of nodes where instances are displaced: what their ledgers shall remember of that.
    displaced: Mapping[NodeName, tuple[Displaced, ...]] = {}
    contests: tuple[Contest, ...] = ()  # how they were chosen, for the record
    part: Part | None = None  # only the nodes of this one were looked at
    is_divisible: bool = False  # what is left out of it will be decided again

    @property
    def steps(self) -> Sequence[Step]:
        """The edits, those that are runs as they are."""
        return self.edits.runs if isinstance(self.edits, Runs) else self.edits

    def each_step(self) -> Iterator[Step]:
        """The same, one by one, for who looks at the first of them."""
        return self.edits.each_run() if isinstance(self.edits, Runs) else iter(self.edits)

    @property
    def steps_number(self) -> int:
        return len(self.edits.portions) if isinstance(self.edits, Runs) else len(self.edits)

    @property
    def scattered(self) -> int:
        """How many slots, at most, are to be spelt one by one, and not as part of a run."""
        edits = self.edits
        if isinstance(edits, Runs):
            return sum([len(slots) for slots in edits.slots if type(slots) is not range])
        return len(edits)

    @once
    def effect(self) -> Effect:
        return Effect.of(self.edits)

    @property
    def pairs(self) -> Set[tuple[NodeName, JobKey]]:
        """What it reassigns, in its order."""
        return self.effect.pairs

    @once
    def touched(self) -> Set[NodeName]:
        """The nodes whose ledgers it rewrites, in its order."""
        nodes = self.effect.nodes
        if not (self.nodes or self.dead):
            return nodes
        others = dict.fromkeys([change.node for change in self.nodes])
        return (dict.fromkeys(nodes) | others | dict.fromkeys(sorted(self.dead))).keys()

    def first(self, most: int) -> "Plan":
        """As far as it is about so many places, a job on a node each, if it may be divided."""
        if not self.is_divisible or len(self.pairs) <= most:
            return self
        last = next(islice(self.pairs, most, None))
        end = next(n for n, edit in enumerate(self.edits) if (edit.node, edit.job) == last)
        return structs.replace(self, edits=self.edits[:end])

    @property
    def is_empty(self) -> bool:
        return not (self.edits or self.job or self.nodes or self.dead or self.settings)


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
