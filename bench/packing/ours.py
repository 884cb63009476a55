"""The production planners on a drawn cluster: what they place, and where.

Nothing is imitated: the cluster becomes a snapshot, `core` makes plans of it, `core.apply` carries
them out and asserts that no node is promised beyond what it has.

    one by one    each job is submitted when it arrives; one that is refused asks for as many
                  instances as the refusal says would fit
    all at once   every job is known and nothing is placed, as when a cluster comes back
"""

from bench.packing.clusters import Cluster, Machine, Packing, Work
from ozymandias.core.apply import apply
from ozymandias.core.routes import Names
from ozymandias.core.schedule import plan_pending, plan_submit
from ozymandias.model.job import (
    Container,
    Job,
    JobHead,
    JobKey,
    JobName,
    JobRecord,
    JobVersion,
    LabelRule,
    Namespace,
    Neighbour,
    PlacementRules,
    Port,
    Volume,
    VolumeKind,
)
from ozymandias.model.node import Ledger, Node, NodeName, Presence, Resources
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem

MIB = 2**20
NAMES = Names()
NAMESPACE = Namespace("default")


def one_by_one(cluster: Cluster) -> Packing:
    snapshot = empty(cluster)
    for work in cluster.works:
        answer = _submitted(snapshot, job_of(work))
        if isinstance(answer, Problem):
            fewer = _suggested(answer)
            if not fewer:
                continue
            answer = _submitted(snapshot, replace(job_of(work), instances=fewer))
        assert isinstance(answer, Plan), answer
        snapshot = apply(snapshot, answer)
    return packing_of(snapshot)


def all_at_once(cluster: Cluster) -> Packing:
    return packing_of(settled(known(cluster)))


def settled(snapshot: Snapshot) -> Snapshot:
    """Until the planner has nothing left to place."""
    while plan := plan_pending(snapshot):
        snapshot = apply(snapshot, plan)
    return snapshot


def _submitted(snapshot: Snapshot, job: Job) -> Plan | Problem:
    return plan_submit(snapshot, job, uid=job.name, names=NAMES)


def _suggested(refusal: Problem) -> int:
    """How many instances the refusal says would fit; none if it is about something else."""
    changes = [suggestion["change"] for suggestion in refusal.fields.get("suggestions", ())]
    return next((change["numInstances"] for change in changes if "numInstances" in change), 0)


# From drawn clusters to the product's words -------------------------------------------------------


def empty(cluster: Cluster) -> Snapshot:
    nodes = (node_of(machine) for machine in cluster.machines)
    return Snapshot(revision=1, nodes={node.name: node for node in nodes})


def known(cluster: Cluster) -> Snapshot:
    """Every job is there, and no instance of any."""
    records = {}
    for work in cluster.works:
        job = job_of(work)
        version = JobVersion(uid=job.name, version=1, job=job)
        head = JobHead(uid=job.name, version=1, wanted=job.instances)
        records[job.key] = JobRecord(key=job.key, head=head, head_revision=1, versions={1: version})
    return replace(empty(cluster), jobs=records)


def node_of(machine: Machine) -> Node:
    return Node(
        name=NodeName(machine.name),
        ledger=Ledger(
            capacity=Resources(
                memory_bytes=machine.memory * MIB,
                disk_bytes=machine.disk * MIB,
                cpu_millis=machine.cpu,
            ),
            labels={"role": machine.role},
        ),
        ledger_revision=1,
        presence=Presence(
            address="127.0.0.1",
            machine_id=machine.name,
            session="bench",
            daemon_version="0",
            api="http://127.0.0.1:1",
        ),
        presence_revision=1,
    )


def job_of(work: Work) -> Job:
    disk = Volume(kind=VolumeKind.LOCAL, name="data", path="/data", space_bytes=work.disk * MIB)
    container = Container(
        name="app",
        image="image",
        memory_bytes=work.memory * MIB,
        cpu=work.cpu / 1000 if work.cpu else None,
        volumes=(disk,) if work.disk else (),
        ports=(Port(pod=80, container=80, host=work.port),) if work.port else (),
    )
    rules = PlacementRules(
        require=(LabelRule(label="role", values=(work.role,)),) if work.role else (),
        apart=(_neighbour(work.apart),) if work.apart else (),
        near=(_neighbour(work.near),) if work.near else (),
        max_per_node=work.per_node,
    )
    return Job(
        name=JobName(work.name),
        namespace=NAMESPACE,
        instances=work.instances,
        containers=(container,),
        ingress=(),
        placement=rules,
    )


def _neighbour(name: str) -> Neighbour:
    return Neighbour(job=JobKey(NAMESPACE, JobName(name)))


def packing_of(snapshot: Snapshot) -> Packing:
    packing: Packing = {}
    for instance in snapshot.instances():
        pair = str(instance.job.name), str(instance.node)
        packing[pair] = packing.get(pair, 0) + 1
    return packing
