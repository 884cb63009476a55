"""Lost instances placed elsewhere in runs: the quick way of a repair.

As in `core/runs.py`: where nothing has to be given up, for none of the jobs, this is what
`core/upkeep.py` would come to by looking at every node for every instance, and costs what is moved.
"""

from collections.abc import Iterable, Iterator, Mapping, Set

from ozymandias.core.buckets import FreeSlots, is_current
from ozymandias.core.edits import new_instance
from ozymandias.core.placement import Ask, Placement
from ozymandias.core.rules import rules_of
from ozymandias.core.runs import place_runs, why_of
from ozymandias.model.assignments import OfJob
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobHead, JobKey, JobRecord
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.plan import Edit, Portion
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Table


def moved_in_runs(
    snapshot: Snapshot,
    lost: Mapping[JobKey, list[Assigned]],
    lost_on: Mapping[JobKey, Set[NodeName]],
    missing: Mapping[JobKey, int],
) -> list[Edit] | None:
    """Replacements for what is ``missing`` of these jobs, in their order; None: not in this way."""
    nodes = snapshot.nodes
    edits: list[Edit] = []
    for key, number in missing.items():
        record = snapshot.jobs[key]
        there = Living(snapshot.of(key), lost_on[key])
        # Where no slot is in two places, none of the lost is in use elsewhere.
        used = set[int]() if snapshot.of(key).is_distinct() else there.slots()
        chosen = sorted(lost[key], key=lambda a: (not is_current(a, record.head), a.slot))[:number]
        if len(chosen) < number:
            return None  # more is missing than was lost: that is looked at one by one
        fresh = FreeSlots(used | {a.slot for a in lost[key]})
        for head, alike in by_version(record, chosen):
            job = record.versions[head.version].job
            ask = Ask.of(job, head, rules_of(snapshot, job, edits), there)
            portions = place_runs(nodes, ask, len(alike), there)
            if portions is None:
                return None
            places = (_place(ask, portion) for portion in portions for _ in range(portion[1]))
            for assigned, placed in zip(alike, places, strict=True):
                # A slot that is still stopping somewhere else would be two pods of one name.
                slot = next(fresh) if assigned.slot in used else assigned.slot
                why = f"{assigned.node} was lost; "
                edits.append(new_instance(key, head, slot, ask.demand, placed, why))
                there.add(placed.node)
            nodes = _with(nodes, portions, ask.demand)
    return edits


class Living(Mapping[NodeName, int]):
    """How many live ones of a job each node has, beside those that are lost.

    A job may be on hundreds of nodes of which a few are asked about, so these are counted then.
    """

    def __init__(self, column: OfJob, lost_on: Set[NodeName]) -> None:
        self._column, self._lost_on = column, lost_on
        self._new: dict[NodeName, int] = {}

    def add(self, node: NodeName) -> None:
        self._new[node] = self._new.get(node, 0) + 1

    def slots(self) -> set[int]:
        """Those in use where nothing was lost, if only by one that stops."""
        here = [a for node, a in self._column.items() if node not in self._lost_on]
        return set().union(*[group.slots.numbers for a in here for group in a.groups])

    def __getitem__(self, node: NodeName) -> int:
        live = self._new.get(node, 0)
        assignment = self._column.get(node)
        if assignment is not None and node not in self._lost_on:
            for group in assignment.groups:
                if group.state is not SlotState.STOPPING:
                    live += len(group.slots)
        return live

    def get(self, node: NodeName, default: int = 0) -> int:  # type: ignore[override]
        return self[node]

    def __bool__(self) -> bool:
        return bool(self._new) or not self._column.keys() <= self._lost_on

    def __iter__(self) -> Iterator[NodeName]:
        return iter((self._column.keys() - self._lost_on) | self._new.keys())

    def __len__(self) -> int:
        return len((self._column.keys() - self._lost_on) | self._new.keys())


def _place(ask: Ask, portion: Portion) -> Placement:
    node, _, why = portion
    words, score = why_of(ask, why)
    return Placement(node=node, state=SlotState.RUNNING, reason=f"{node} {words}", score=score)


def _with(
    nodes: Mapping[NodeName, Node], portions: Iterable[Portion], demand: Demand
) -> Mapping[NodeName, Node]:
    """The nodes once these run there."""
    changed: dict[NodeName, Node] = {}
    for name, count, _ in portions:
        node = changed.get(name) or nodes[name]  # it may have several
        ledger = node.ledger
        held, promised = ledger.held.plus(demand, count), ledger.promised.plus(demand, count)
        after = replace(ledger, held=held, promised=promised)
        changed[name] = replace(node, ledger=after)
    return Table.of(nodes).changed(changed)


def by_version(
    record: JobRecord, chosen: Iterable[Assigned]
) -> Iterator[tuple[JobHead, list[Assigned]]]:
    """Alike ones together, each with the head it was placed under; unknown versions as current."""
    alike: dict[tuple[int, int], list[Assigned]] = {}
    current = (record.head.version, record.head.restart)
    for assigned in chosen:
        version = record.versions.get(assigned.version)
        known = version is not None and version.uid == assigned.uid == record.head.uid
        kind = (assigned.version, assigned.generation)
        alike.setdefault(kind if known else current, []).append(assigned)
    for kind, instances in alike.items():
        is_current = kind == current
        head = record.head if is_current else replace(record.head, version=kind[0], restart=kind[1])
        yield head, instances
