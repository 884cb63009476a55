"""How the scheduler lays jobs out: which slots of each share a node.

The production's own decisions, one on top of the other, over nodes that are nowhere but here. What
etcd is given for a job depends on it: an assignment for every node that it is on.
"""

from bench.scaling.shapes import CAPACITY, job_of, node_name
from ozymandias.core.apply import apply
from ozymandias.core.routes import Names
from ozymandias.core.schedule import plan_submit
from ozymandias.model.instance import Slots
from ozymandias.model.node import Ledger, Node, NodeName, Presence
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot

JOBS_MAX = 100  # they repeat themselves after that

Layout = list[tuple[NodeName, Slots]]


def decided(nodes: int, instances: int, max_per_node: int) -> list[Layout]:
    """The layouts of the first jobs, as many as there is room for."""
    names = [node_name(number) for number in range(nodes)]
    snapshot = Snapshot(nodes={name: _node(name) for name in names})
    found: list[Layout] = []
    for number in range(JOBS_MAX):
        job = job_of(f"layout-{number:06d}", instances, max_per_node)
        plan = plan_submit(snapshot, job, uid=f"{number:016x}", names=Names())
        if not isinstance(plan, Plan):
            break
        layout = [(step.node, Slots.of(step.slots)) for step in plan.steps]
        if sum(len(slots) for _, slots in layout) < instances:
            break
        found.append(layout)
        snapshot = apply(snapshot, plan)
    assert found, "at least one of them fits"
    return found


def _node(name: NodeName) -> Node:
    presence = Presence(
        address="10.0.0.1", machine_id=name, session=name, daemon_version="0", api=""
    )
    return Node(name=name, ledger=Ledger(capacity=CAPACITY), ledger_revision=1, presence=presence)
