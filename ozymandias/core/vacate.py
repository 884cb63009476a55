"""What a node itself does with its entries: let go of what is gone, let run what has waited.

A stopping entry holds its room until the pod is really gone; only the node that ran it can tell. An
entry that waits may run once its slot is stopping nowhere in the cluster and everything it needs is
there. Both happen in one transaction, so that room is handed over without a gap.
"""

from collections.abc import Iterator

from ozymandias.core.edits import step
from ozymandias.core.placement import Room
from ozymandias.core.pods import pod_id
from ozymandias.model.instance import Assigned, SlotState, instances_of
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.pod import PodId
from ozymandias.model.snapshot import Snapshot


def plan_vacate(snapshot: Snapshot, node: NodeName, present: frozenset[PodId]) -> Plan | None:
    """Release what stops here and is not present; promote what waits here and may run now."""
    if node not in snapshot.nodes:
        return None
    here = list(_instances_on(snapshot, node))
    gone = [a for a in here if a.state is SlotState.STOPPING and pod_id(a) not in present]
    waiting = [a for a in here if a.state is SlotState.WAITING]
    if not gone and not waiting:
        return None
    room = Room.of(snapshot.nodes[node])
    for assigned in gone:
        room.give(assigned.demand, SlotState.STOPPING)
    edits = [step(a, None, f"its pod on {node} is gone") for a in gone]
    if waiting:
        edits += _promote(snapshot, waiting, room, {pod_id(a) for a in gone})
    return Plan(reason=f"{node} has room again", edits=tuple(edits)) if edits else None


def _promote(
    snapshot: Snapshot, waiting: list[Assigned], room: Room, gone: set[PodId]
) -> Iterator[Edit]:
    jobs = {a.job for a in waiting}
    still_stopping = {
        a.instance
        for (_, key), assignment in snapshot.assignments.items()
        if key in jobs
        for a in instances_of(assignment)
        if a.state is SlotState.STOPPING and pod_id(a) not in gone
    }
    for assigned in waiting:
        record = snapshot.jobs.get(assigned.job)
        if record is None or record.head.deleting or assigned.instance in still_stopping:
            continue
        if fits_held(room, assigned):
            room.take(assigned.demand, SlotState.STOPPING)  # held now; promised it was before
            reason = f"{assigned.node} has vacated what {assigned.instance} was waiting for"
            yield step(assigned, SlotState.RUNNING, reason)


def fits_held(room: Room, assigned: Assigned) -> bool:
    """Whether a waiting instance fits beside what still runs and stops there."""
    demand = assigned.demand
    return (
        room.memory_held + demand.memory_bytes <= room.memory_limit
        and room.disk_held + demand.disk_bytes <= room.disk_limit
        and room.ports_held.isdisjoint(demand.host_ports)
    )


def _instances_on(snapshot: Snapshot, node: NodeName) -> Iterator[Assigned]:
    found = (pair for pair in snapshot.assignments if pair[0] == node)
    for pair in sorted(found):
        yield from instances_of(snapshot.assignments[pair])
