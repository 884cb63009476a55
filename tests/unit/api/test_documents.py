"""Snapshots as documents: the contract with scripts, and that no old status outshines the truth."""

from typing import Any

import pytest

from ozymandias.api import documents
from ozymandias.core.routes import Names
from ozymandias.model.instance import (
    Assignment,
    Group,
    InstanceState,
    InstanceStatus,
    JobStatus,
    Slots,
    SlotState,
)
from ozymandias.model.job import (
    Container,
    Job,
    JobHead,
    JobKey,
    JobName,
    JobRecord,
    JobVersion,
    Namespace,
    Port,
)
from ozymandias.model.node import Demand, Ledger, Node, NodeName, Presence, Resources, Totals
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot

KEY = JobKey(Namespace("default"), JobName("web"))
N1, N2 = NodeName("n1"), NodeName("n2")
MIB = 2**20
DEMAND = Demand(memory_bytes=256 * MIB)
PRESENCE = Presence(
    address="127.0.0.1", machine_id="m", session="s", daemon_version="0", api="http://n"
)


def node(name: NodeName, presence: Presence | None = PRESENCE, free_mib: int = 4096) -> Node:
    used = Totals(resources=Resources(memory_bytes=(4096 - free_mib) * MIB))
    capacity = Resources(memory_bytes=4200 * MIB, disk_bytes=100 * MIB)
    reserve = Resources(memory_bytes=104 * MIB)
    ledger = Ledger(capacity=capacity, reserve=reserve, labels={"zone": "a"}, held=used)
    return Node(name=name, ledger=ledger, ledger_revision=1, presence=presence)


def record(wanted: int = 1, **head: Any) -> JobRecord:
    job = Job(
        name=KEY.name,
        instances=wanted,
        containers=(Container(name="app", image="demo", ports=(Port(pod=80, container=8000),)),),
    )
    version = JobVersion(uid="u", version=1, job=job, submitted_by="alice", message="first")
    found = JobHead(uid="u", version=1, wanted=wanted, **head)
    return JobRecord(key=KEY, head=found, head_revision=1, versions={1: version})


def group(state: SlotState, slots: str = "0", version: int = 1) -> Group:
    return Group(uid="u", version=version, state=state, slots=Slots.parse(slots), demand=DEMAND)


def status(slot: int = 0, state: InstanceState = InstanceState.HEALTHY, **more: Any) -> Any:
    return InstanceStatus(
        slot=slot,
        uid="u",
        version=1,
        state=state,
        healthy=state is InstanceState.HEALTHY,
        address="10.0.0.7",
        **more,
    )


def snapshot(
    *groups: Group, job: JobRecord | None = None, nodes: tuple[Node, ...] | None = None, **more: Any
) -> Snapshot:
    found = {n.name: n for n in (nodes or (node(N1),))}
    assignment = Assignment(node=N1, job=KEY, groups=groups)
    statuses = more.pop("statuses", {0: status()})
    return Snapshot(
        revision=7,
        nodes=found,
        jobs={KEY: job or record()},
        assignments={(N1, KEY): assignment} if groups else {},
        statuses={(N1, KEY): JobStatus(node=N1, job=KEY, instances=statuses)},
    )


def test_a_row_of_ps_has_the_members_that_scripts_rely_on() -> None:
    """The members and their order are a contract."""
    rows = documents.instance_rows(snapshot(group(SlotState.RUNNING)))
    assert rows == [
        {
            "instance": "web-0",
            "job": "web",
            "namespace": "default",
            "node": "n1",
            "state": "healthy",
            "healthy": True,
            "address": "10.0.0.7",
            "version": 1,
            "restarts": 0,
            "reason": "",
        }
    ]


@pytest.mark.parametrize(
    ("state", "presence", "shown"),
    [
        (SlotState.WAITING, PRESENCE, "waiting"),
        (SlotState.STOPPING, PRESENCE, "stopping"),
        (SlotState.RUNNING, None, "lost"),
        (SlotState.STOPPING, None, "lost"),
    ],
)
def test_an_old_healthy_status_does_not_outshine_the_truth(
    state: SlotState, presence: Presence | None, shown: str
) -> None:
    """What waits, stops or is lost with its node is shown as such, and not healthy."""
    found = snapshot(group(state), nodes=(node(N1, presence),))
    row = documents.instance_rows(found)[0]
    assert (row["state"], row["healthy"]) == (shown, False)
    assert row["reason"]


def test_an_instance_nobody_reported_on_is_starting() -> None:
    """Before its node's first word an instance is starting, and says that it was not heard of."""
    (row,) = documents.instance_rows(snapshot(group(SlotState.RUNNING), statuses={}))
    assert (row["state"], row["address"]) == ("starting", None)
    assert "not reported" in row["reason"]


def test_a_status_of_an_older_version_is_nobodys() -> None:
    """A status that names another version does not speak for this instance."""
    old = {0: replace(status(), version=4)}
    (row,) = documents.instance_rows(snapshot(group(SlotState.RUNNING), statuses=old))
    assert row["state"] == "starting"


def test_pending_instances_take_the_free_slots_and_say_why() -> None:
    """What has no place is listed with the slots it would take and the numbers that are missing."""
    full = snapshot(
        group(SlotState.RUNNING, "0,2"), job=record(wanted=4), nodes=(node(N1, free_mib=100),)
    )
    rows = documents.instance_rows(full)
    pending = [row for row in rows if row["state"] == "pending"]
    assert [row["instance"] for row in pending] == ["web-1", "web-3"]
    assert {row["node"] for row in pending} == {None}
    assert "256M" in pending[0]["reason"]


def test_a_status_document_counts_what_is_healthy_and_what_is_pending() -> None:
    """Status carries the contract's members, the hosts, and a problem while something is amiss."""
    full = snapshot(group(SlotState.RUNNING), job=record(wanted=3), nodes=(node(N1, free_mib=1),))
    found = documents.status_document(full, full.jobs[KEY], Names())
    assert {
        k: found[k] for k in ("job", "namespace", "version", "wanted", "healthy", "pending")
    } == {
        "job": "web",
        "namespace": "default",
        "version": 1,
        "wanted": 3,
        "healthy": 1,
        "pending": 2,
    }
    assert found["state"] == "pending"
    assert found["hosts"] == ["web.localhost", "web.default.localhost"]
    assert found["problem"]["type"].endswith("#instances-pending")
    assert len(found["instances"]) == 3


@pytest.mark.parametrize(
    ("job", "statuses", "state"),
    [
        (record(), {0: status()}, "healthy"),
        (record(), {0: status(state=InstanceState.COMPLETED)}, "healthy"),
        (record(), {0: status(state=InstanceState.STARTING)}, "deploying"),
        (record(), {0: status(state=InstanceState.FAILED, reason="exit code 1")}, "failed"),
        (record(restart=1), {0: status()}, "deploying"),
        (record(wanted=0, deleting=True), {0: status()}, "stopping"),
    ],
)
def test_one_word_for_a_job(
    job: JobRecord, statuses: dict[int, InstanceStatus], state: str
) -> None:
    """A job is healthy only when every instance is up as the head wants it."""
    found = snapshot(group(SlotState.RUNNING), job=job, statuses=statuses)
    assert documents.status_document(found, job, Names())["state"] == state
    assert documents.job_rows(found, Names())[0]["state"] == state


def test_a_failed_instance_is_the_jobs_problem() -> None:
    """The problem names the instance, its node and the reason."""
    bad = {0: status(state=InstanceState.FAILED, reason="app: exit code 7; not tried again")}
    found = snapshot(group(SlotState.RUNNING), statuses=bad)
    problem = documents.status_document(found, found.jobs[KEY], Names())["problem"]
    assert problem["type"].endswith("#deploy-failed")
    assert "web-0 on n1: app: exit code 7" in problem["detail"]
    assert problem["hint"].startswith("`ozy logs web-0`")


def test_what_a_problem_tells_to_type_names_the_namespace() -> None:
    """Of a job elsewhere than in the default one: the command would find nothing without."""
    key = JobKey(Namespace("prod"), KEY.name)
    bad = {0: status(state=InstanceState.FAILED, reason="app: exit code 7; not tried again")}
    found = snapshot(group(SlotState.RUNNING), statuses=bad)
    (assignment,), (said,) = found.assignments.values(), found.statuses.values()
    theirs = replace(
        found,
        jobs={key: replace(found.jobs[KEY], key=key)},
        assignments={(N1, key): replace(assignment, job=key)},
        statuses={(N1, key): replace(said, job=key)},
    )
    problem = documents.status_document(theirs, theirs.jobs[key], Names())["problem"]
    assert "prod/web-0 on n1: app: exit code 7" in problem["detail"]
    assert problem["hint"].startswith("`ozy logs prod/web-0`")


def test_a_row_of_nodes() -> None:
    """Total, reserved and allocated bytes; allocated is what nobody else can have."""
    found = snapshot(group(SlotState.RUNNING), nodes=(node(N1, free_mib=3840),))
    row = documents.node_row(found, found.nodes[N1])
    assert row["memory_bytes"] == {
        "total": 4200 * MIB,
        "reserved": 104 * MIB,
        "allocated": 256 * MIB,
    }
    assert row["disk_bytes"] == {"total": 100 * MIB, "reserved": 0, "allocated": 0}
    assert (row["name"], row["state"], row["labels"], row["instances"]) == (
        "n1",
        "ready",
        {"zone": "a"},
        1,
    )


@pytest.mark.parametrize(
    ("presence", "cordoned", "state"),
    [
        (None, False, "lost"),
        (replace(PRESENCE, degraded="podman hangs"), True, "degraded"),
        (PRESENCE, True, "cordoned"),
        (PRESENCE, False, "ready"),
    ],
)
def test_states_of_nodes(presence: Presence | None, cordoned: bool, state: str) -> None:
    """The worst that is known of a node is its state, with the reason beside it."""
    found = node(N1, presence)
    found = replace(found, ledger=replace(found.ledger, is_cordoned=cordoned))
    row = documents.node_row(snapshot(nodes=(found,)), found)
    assert row["state"] == state
    assert bool(row["reason"]) == (state != "ready")
