"""Small clusters in a line or two, and what must hold of every one of them.

cluster(n1="4G", n2="4G")                        two nodes, nothing on them
submitted(cluster(...), job("web", 3))           with a job, placed but not started
settled(snapshot)                                all that stops is gone, all that runs is healthy
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ozymandias.core.apply import apply, totals
from ozymandias.core.explain import plan_document
from ozymandias.core.foresee import foresee
from ozymandias.core.pods import pod_id
from ozymandias.core.routes import Names
from ozymandias.core.schedule import plan_submit, plan_vacate
from ozymandias.model.instance import (
    Assigned,
    InstanceState,
    InstanceStatus,
    JobStatus,
    SlotState,
)
from ozymandias.model.job import (
    Container,
    Job,
    JobKey,
    JobName,
    Namespace,
    Port,
    Volume,
    VolumeKind,
)
from ozymandias.model.node import Drain, Ledger, Node, NodeName, Presence, Resources
from ozymandias.model.plan import Plan
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import parse_size
from ozymandias.problems import Problem

NAMES = Names()
WEB = JobKey(Namespace("default"), JobName("web"))


def key(name: str, namespace: str = "default") -> JobKey:
    return JobKey(Namespace(namespace), JobName(name))


def node(
    name: str,
    memory: str = "4G",
    disk: str = "10G",
    *,
    alive: bool = True,
    cordoned: bool = False,
    degraded: str = "",
    labels: dict[str, str] | None = None,
    drain: Drain | None = None,
    host_network: bool = False,
    cpu: int = 0,
) -> Node:
    presence = Presence(
        address="10.0.0.1",
        machine_id=name,
        session="s",
        daemon_version="1",
        api="http://127.0.0.1:1",
        degraded=degraded,
    )
    capacity = Resources(
        memory_bytes=parse_size(memory), disk_bytes=parse_size(disk), cpu_millis=cpu
    )
    return Node(
        name=NodeName(name),
        ledger=Ledger(
            capacity=capacity,
            is_cordoned=cordoned,
            labels=labels or {},
            drain=drain,
            allows_host_network=host_network,
        ),
        ledger_revision=1,
        presence=presence if alive else None,
        presence_revision=1 if alive else 0,
    )


def cluster(*nodes: Node, **memory: str) -> Snapshot:
    """Nodes as given, and plain ones by name and memory."""
    every = (*nodes, *(node(name, size) for name, size in memory.items()))
    return Snapshot(revision=1, nodes={n.name: n for n in every})


def job(
    name: str = "web",
    instances: int = 1,
    memory: str = "1G",
    *,
    disk: str = "0",
    host_port: int | None = None,
    image: str = "image",
    cpu: float | None = None,
    **rest: object,
) -> Job:
    volumes = (
        Volume(kind=VolumeKind.LOCAL, name="data", path="/data", space_bytes=parse_size(disk)),
    )
    ports = (Port(pod=80, container=80, host=host_port),)
    container = Container(
        name="app",
        image=image,
        memory_bytes=parse_size(memory),
        volumes=volumes if parse_size(disk) else (),
        ports=ports if host_port else (),
        cpu=cpu,
    )
    return Job(name=JobName(name), instances=instances, containers=(container,), **rest)  # type: ignore[arg-type]


def submit(snapshot: Snapshot, wanted: Job) -> Plan | Problem:
    return plan_submit(snapshot, wanted, uid="u", names=NAMES)


def planned(decision: Plan | Problem | None) -> Plan:
    assert isinstance(decision, Plan), decision
    return decision


def refused(decision: Plan | Problem | None) -> Problem:
    assert isinstance(decision, Problem), decision
    return decision


def foretold(snapshot: Snapshot, decision: Plan | Problem) -> dict[str, Any]:
    """What `ozy plan` shows of a decision, and of what follows from it."""
    follows = foresee(snapshot, decision) if isinstance(decision, Plan) else None
    return plan_document(decision, follows)


def after(snapshot: Snapshot, decision: Plan | Problem | None) -> Snapshot:
    """The plan applied, and the result found sound."""
    result = apply(snapshot, planned(decision), "c")
    check(result)
    return result


def submitted(snapshot: Snapshot, *jobs: Job) -> Snapshot:
    for wanted in jobs:
        snapshot = after(snapshot, submit(snapshot, wanted))
    return snapshot


def lost(snapshot: Snapshot, *names: str) -> Snapshot:
    """The leases of these nodes are gone."""
    gone = {
        NodeName(n): replace(snapshot.nodes[NodeName(n)], presence=None, presence_revision=0)
        for n in names
    }
    return replace(snapshot, nodes={**snapshot.nodes, **gone})


def returned(snapshot: Snapshot, *names: str) -> Snapshot:
    back = {NodeName(n): node(n) for n in names}
    nodes = {
        n: replace(snapshot.nodes[n], presence=there.presence, presence_revision=1)
        for n, there in back.items()
    }
    return replace(snapshot, nodes={**snapshot.nodes, **nodes})


def report(snapshot: Snapshot, **changes: bool) -> Snapshot:
    """Statuses: every running instance is healthy, but those named as in ``web_1=False``."""
    statuses: dict[tuple[NodeName, JobKey], dict[int, InstanceStatus]] = {}
    for a in snapshot.instances():
        if a.state is SlotState.RUNNING:
            is_healthy = changes.get(f"{a.job.name}_{a.slot}", True)
            statuses.setdefault((a.node, a.job), {})[a.slot] = status_of(a, healthy=is_healthy)
    records = {
        (n, j): JobStatus(node=n, job=j, instances=found) for (n, j), found in statuses.items()
    }
    return replace(snapshot, statuses=records)


def status_of(a: Assigned, *, healthy: bool = True, reason: str = "") -> InstanceStatus:
    return InstanceStatus(
        slot=a.slot,
        uid=a.uid,
        version=a.version,
        generation=a.generation,
        state=InstanceState.HEALTHY if healthy else InstanceState.UNHEALTHY,
        healthy=healthy,
        reason=reason or ("" if healthy else "connection refused"),
    )


def vacated(snapshot: Snapshot) -> Snapshot:
    """Every pod that was to stop is gone, on every node that is there."""
    for _ in range(3):
        for name, there in snapshot.nodes.items():
            if there.is_alive and (plan := plan_vacate(snapshot, name, running_pods(snapshot))):
                snapshot = after(snapshot, plan)
    return snapshot


def running_pods(snapshot: Snapshot) -> frozenset[PodId]:
    return frozenset(pod_id(a) for a in snapshot.instances() if a.state is SlotState.RUNNING)


def settled(snapshot: Snapshot) -> Snapshot:
    return report(vacated(snapshot))


def where(snapshot: Snapshot, wanted: JobKey = WEB) -> dict[str, str]:
    """``{"0": "n1 v2 running", "0*": "n1 v1 stopping"}``: where the instances of a job are."""
    places = {}
    for a in snapshot.instances(wanted):
        mark = "*" if a.state is SlotState.STOPPING else ""
        places[f"{a.slot}{mark}"] = f"{a.node} v{a.version} {a.state}"
    return places


def spread(snapshot: Snapshot, wanted: JobKey = WEB) -> list[int]:
    """How many live instances of a job each node has that has any, most first."""
    live = (a.node for a in snapshot.instances(wanted) if a.state is not SlotState.STOPPING)
    return sorted(Counter(live).values(), reverse=True)


def check(snapshot: Snapshot) -> None:
    """Nothing beyond capacity, totals that are sums, and no slot alive in two places."""
    for name, there in snapshot.nodes.items():
        found = [a for (n, _), a in snapshot.assignments.items() if n == name]
        held, promised = totals(found)
        assert (there.ledger.held, there.ledger.promised) == (held, promised)
        for total in (held, promised):
            assert total.resources.fits_in(there.ledger.allocatable), name
            assert len(set(total.host_ports)) == len(total.host_ports), name
    unique(a.instance for a in snapshot.instances() if a.state is not SlotState.STOPPING)
    unique(pod_id(a) for a in snapshot.instances())
    assert all(assignment.groups for assignment in snapshot.assignments.values())


def unique(items: Iterable[object]) -> None:
    repeated = [item for item, count in Counter(items).items() if count > 1]
    assert not repeated, repeated
