"""What a node itself does with its entries: let go of what is gone, let run what has waited.

A stopping entry holds its room until the pod is really gone; only the node that ran it can tell. An
entry that waits may run once its slot is stopping nowhere in the cluster and everything it needs is
there; of a system job, once no other one stops on its node. Both happen in one transaction, so that
room is handed over without a gap.

A node that does not schedule sees its own entries alone. It lets go; that something waiting may run
is for those to find who see where its slot is stopping (`plan_admit`). They also take back what
waits in vain: on a node that came back with less than it had promised.
"""

from collections.abc import Iterator

from ozymandias.core.buckets import is_system
from ozymandias.core.drain import keeps_volumes
from ozymandias.core.edits import step
from ozymandias.core.pods import pod_id
from ozymandias.core.rooms import Room
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.node import Node, NodeName
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.pod import PodId
from ozymandias.model.snapshot import Snapshot


def plan_vacate(snapshot: Snapshot, node: NodeName, present: frozenset[PodId]) -> Plan | None:
    """Release what stops here and is not present; promote what waits here and may run now."""
    if node not in snapshot.nodes:
        return None
    here = list(snapshot.instances_on(node))
    gone = [a for a in here if a.state is SlotState.STOPPING and pod_id(a) not in present]
    waiting = [a for a in here if a.state is SlotState.WAITING]
    if not gone and not waiting:
        return None
    room = Room.of(snapshot.nodes[node])
    for assigned in gone:
        room.give(assigned.demand, SlotState.STOPPING)
    edits = [step(a, None, f"its pod on {node} is gone") for a in gone]
    if waiting and not _is_narrow(snapshot.nodes[node]):
        edits += _promote(snapshot, waiting, room, {pod_id(a) for a in gone})
    return Plan(reason=f"{node} has room again", edits=tuple(edits)) if edits else None


def plan_admit(snapshot: Snapshot) -> Plan | None:
    """Let run what waits on nodes that can't tell by themselves; take back what waits in vain.

    Where nothing waits and nothing stops, what is held is what is promised. Both may add up to the
    same by chance: then the entry waits until what stops there is gone.
    """
    edits: list[Edit] = []
    for _, node in sorted(snapshot.nodes_where(_is_uneven).items()):
        here = snapshot.instances_on(node.name)
        waiting = [a for a in here if a.state is SlotState.WAITING]
        if not waiting or not node.is_alive:
            continue
        in_vain = _in_vain(snapshot, waiting, Room.of(node))
        edits += in_vain
        if _is_narrow(node) and not in_vain:
            edits += _promote(snapshot, waiting, Room.of(node), set())
    if not edits:
        return None
    return Plan(reason="what has waited long enough", edits=tuple(edits))


def _in_vain(snapshot: Snapshot, waiting: list[Assigned], room: Room) -> list[Edit]:
    """Those for which there would be no room if all were gone that stops: the lowest first.

    Whose kept volumes are there goes on waiting: nowhere else would it find them.
    """
    edits: list[Edit] = []
    for _, assigned in sorted(_movable(snapshot, waiting)):
        short = (
            (assigned.demand.memory_bytes, room.memory_left(SlotState.WAITING)),
            (assigned.demand.disk_bytes, room.disk_left(SlotState.WAITING)),
            (assigned.demand.cpu_millis, room.cpu_left(SlotState.WAITING)),
        )
        if any(amount and left < 0 for amount, left in short):
            room.give(assigned.demand, SlotState.WAITING)
            reason = f"{assigned.node} has less by now than it has promised: it would wait for ever"
            edits.append(step(assigned, None, reason))
    return edits


def _movable(
    snapshot: Snapshot, waiting: list[Assigned]
) -> Iterator[tuple[tuple[object, ...], Assigned]]:
    """Each with its rank: system jobs belong there, and leave last."""
    for a in waiting:
        record = snapshot.jobs.get(a.job)
        if record and record.current and not keeps_volumes(record.current.job):
            yield (is_system(record), record.current.job.priority, a.job, -a.slot), a


def _is_uneven(node: Node) -> bool:
    return node.ledger.held != node.ledger.promised


def _is_narrow(node: Node) -> bool:
    return node.presence is not None and not node.presence.schedules


def _promote(
    snapshot: Snapshot, waiting: list[Assigned], room: Room, gone: set[PodId]
) -> Iterator[Edit]:
    stopping = [
        a
        for job in {a.job for a in waiting}
        for assignment in snapshot.of(job).values()
        for a in assignment.instances
        if a.state is SlotState.STOPPING and pod_id(a) not in gone
    ]
    still_stopping = {a.instance for a in stopping}
    crowded = {(a.node, a.job) for a in stopping}
    for assigned in waiting:
        record = snapshot.jobs.get(assigned.job)
        if record is None or record.head.deleting or assigned.instance in still_stopping:
            continue
        if is_system(record) and (assigned.node, assigned.job) in crowded:
            continue  # never two of them on a node, not even for a moment
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
        and room.cpu_held + demand.cpu_millis <= room.cpu_limit
        and room.ports_held.isdisjoint(demand.host_ports)
    )
