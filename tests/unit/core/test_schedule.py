"""What people ask for: submit, scale, stop, restart."""

import pytest

from ozymandias import problems
from ozymandias.core.schedule import (
    plan_restart,
    plan_scale,
    plan_stop,
    plan_submit,
    plan_tidy,
)
from ozymandias.model.instance import SlotState
from ozymandias.model.job import IngressRule, Job, JobName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import (
    NAMES,
    WEB,
    after,
    cluster,
    job,
    key,
    lost,
    node,
    planned,
    refused,
    report,
    settled,
    spread,
    submit,
    submitted,
    vacated,
    where,
)

THREE = cluster(n1="4G", n2="4G", n3="4G")


def test_new_job_is_placed_as_a_whole_and_apart() -> None:
    """Three instances go to three nodes, in slots 0 to 2, at version 1, all with a reason."""
    plan = planned(submit(THREE, job(instances=3)))
    assert [e.slot for e in plan.edits] == [0, 1, 2]
    assert {e.node for e in plan.edits} == {"n1", "n2", "n3"}
    assert plan.edits[0].reason.endswith("has no other instance of web and 4G of 4G memory free")
    assert plan.job and plan.job.head and plan.job.head.version == 1
    assert spread(after(THREE, plan)) == [1, 1, 1]


def test_same_snapshot_same_plan() -> None:
    """Nothing but snapshot and job goes into a plan, not even the uid goes into the places."""
    one = plan_submit(THREE, job(instances=5), uid="a", names=NAMES)
    other = plan_submit(THREE, job(instances=5), uid="b", names=NAMES)
    assert [e.node for e in planned(one).edits] == [e.node for e in planned(other).edits]
    assert one == plan_submit(THREE, job(instances=5), uid="a", names=NAMES)


def test_unchanged_job_changes_nothing() -> None:
    """Submitting the same file twice gives an empty plan."""
    snapshot = submitted(THREE, job(instances=2))
    plan = planned(submit(snapshot, job(instances=2)))
    assert plan.is_empty and "nothing to change" in plan.reason


def test_other_number_of_instances_is_a_scale() -> None:
    """A file that differs in numInstances only keeps the version and what runs."""
    snapshot = submitted(THREE, job(instances=2))
    plan = planned(submit(snapshot, job(instances=3)))
    assert plan.job and plan.job.version is None and plan.job.head and plan.job.head.wanted == 3
    assert [e.slot for e in plan.edits] == [2]


def test_changed_job_gets_a_new_version_and_keeps_its_uid() -> None:
    """The change writes version 2 under the old uid and leaves the instances to the rollout."""
    snapshot = submitted(THREE, job(instances=2))
    plan = planned(plan_submit(snapshot, job(instances=2, image="b"), uid="new", names=NAMES))
    assert plan.job and plan.job.version and plan.job.head and not plan.edits
    assert (plan.job.head.uid, plan.job.head.version, plan.job.version.version) == ("u", 2, 2)


def test_versions_count_on_after_deletion() -> None:
    """A new job of an old name starts at the next number, so no version means two things."""
    snapshot = settled(submitted(THREE, job()))
    snapshot = vacated(after(snapshot, plan_stop(snapshot, WEB)))
    snapshot = after(snapshot, plan_tidy(snapshot))
    assert WEB not in snapshot.jobs
    assert submitted(snapshot, job()).jobs[WEB].head.version == 2


def test_change_is_judged_without_the_old_instances() -> None:
    """A new version fits if it fits where the old one was, and is refused if it does not."""
    snapshot = submitted(cluster(n1="4G"), job(memory="3G"))
    assert planned(submit(snapshot, job(memory="4G")))
    problem = refused(submit(snapshot, job(memory="5G")))
    assert problem.detail == "Job requires 5G of memory but only 0B can be allocated."


def test_job_that_is_still_stopping_is_refused() -> None:
    """Submit, scale and restart answer job-stopping until the last instance is gone."""
    snapshot = submitted(THREE, job())
    snapshot = after(snapshot, plan_stop(snapshot, WEB))
    for decision in (
        submit(snapshot, job()),
        plan_scale(snapshot, WEB, 2),
        plan_restart(snapshot, WEB),
    ):
        assert refused(decision).kind is problems.JOB_STOPPING
    assert planned(plan_stop(snapshot, WEB)).is_empty


def test_unknown_job() -> None:
    """Scale, stop and restart of a job that is not there answer job-not-found."""
    for decision in (plan_scale(THREE, WEB, 2), plan_stop(THREE, WEB), plan_restart(THREE, WEB)):
        assert refused(decision).kind is problems.JOB_NOT_FOUND


# Ingress claims -----------------------------------------------------------------------------------


def exposed(name: str, host: str = "shop.example", path: str = "/") -> Job:
    return job(name, ingress=(IngressRule(host=host, path=path, port=80),))


def test_ingress_host_of_another_job_is_refused() -> None:
    """The problem names the claim and its owner; another path of the host is free."""
    snapshot = submitted(THREE, exposed("shop"))
    problem = refused(submit(snapshot, exposed("web")))
    assert problem.kind is problems.HOST_TAKEN
    assert problem.fields["owner"] == "shop" and "shop.example/" in problem.detail
    assert problem.hint.endswith("or stop shop.")
    assert submitted(snapshot, exposed("web", path="/web")).claims["shop.example/web"] == WEB


def test_the_owner_of_a_host_that_is_protected_is_said_to_be() -> None:
    """Not everybody may stop it, so nobody is told to without that."""
    snapshot = submitted(THREE, replace(exposed("shop"), is_protected=True))
    problem = refused(submit(snapshot, exposed("web")))
    assert problem.hint.endswith("or stop shop (which is protected: administrators may).")


def test_claims_follow_the_job() -> None:
    """A changed job gives up the hosts it no longer names, a stopped one gives up all."""
    snapshot = submitted(THREE, exposed("web"))
    plan = planned(submit(snapshot, exposed("web", host="other.example")))
    assert plan.job and plan.job.claim == {"other.example/"}
    assert plan.job.disclaim == {"shop.example/"}
    snapshot = after(snapshot, plan)
    assert after(snapshot, plan_stop(snapshot, WEB)).claims == {}


# Rejections ---------------------------------------------------------------------------------------

REJECTIONS = [
    (
        "whole instances count, not free bytes",
        cluster(n1="7G", n2="4G"),
        job(instances=6, memory="2G"),
        "insufficient-memory",
        "Job requires 12G of memory but only 10G can be allocated.",
        {"numInstances": 5},
    ),
    (
        "one instance larger than any node",
        THREE,
        job(memory="6G"),
        "insufficient-memory",
        "Job requires 6G of memory but only 0B can be allocated.",
        {"containers.app.memory": "4G"},
    ),
    (
        "disk is to blame though memory is tight",
        THREE,
        job(instances=4, disk="8G"),
        "insufficient-disk",
        "Job requires 32G of disk but only 24G can be allocated.",
        {"containers.app.volumes./data.space": "5G"},
    ),
    (
        "a host port is there once per node",
        THREE,
        job(instances=4, host_port=8080),
        "insufficient-ports",
        "Job requires host port 8080/tcp on 4 nodes but it can be allocated on only 3.",
        {"numInstances": 3},
    ),
    (
        "no node takes work",
        cluster(node("n1", cordoned=True), node("n2", alive=False)),
        job(),
        "no-nodes",
        "No node takes work, so web can't be placed.",
        {"uncordon": "n1"},
    ),
    (
        "a node is merely not there",
        cluster(node("n1", "2G"), node("n2", "4G", alive=False), node("n3", "9G", cordoned=True)),
        job(memory="4G"),
        "insufficient-memory",
        "Job requires 4G of memory but only 0B can be allocated.",
        {"start": ["n2"]},
    ),
    (
        "two nodes are merely not there",
        cluster(node("n1", "1G"), node("n2", "4G", alive=False), node("n3", "4G", alive=False)),
        job(instances=2, memory="4G"),
        "insufficient-memory",
        "Job requires 8G of memory but only 0B can be allocated.",
        {"start": ["n2", "n3"]},
    ),
    (
        "there are no nodes at all",
        Snapshot(),
        job(),
        "no-nodes",
        "No node takes work, so web can't be placed.",
        {"nodes": 1, "memory_bytes": 2**30, "disk_bytes": 0},
    ),
]


@pytest.mark.parametrize(
    ("snapshot", "wanted", "slug", "detail", "change"),
    [case[1:] for case in REJECTIONS],
    ids=[case[0] for case in REJECTIONS],
)
def test_rejection(
    snapshot: Snapshot, wanted: Job, slug: str, detail: str, change: dict[str, object]
) -> None:
    """A job that does not fit is refused with the numbers of bin-packing and a way out."""
    problem = refused(submit(snapshot, wanted))
    assert (problem.kind.slug, problem.detail) == (slug, detail)
    assert change in [s["change"] for s in problem.fields["suggestions"]]
    assert problem.hint.startswith(problem.fields["suggestions"][0]["text"])


def test_shortfall_of_every_node() -> None:
    """Each node is listed with what is free beside what fits, or why it takes no work."""
    snapshot = cluster(
        node("n1", "5G"),
        node("n2", cordoned=True),
        node("n3", alive=False),
        node("n4", degraded="podman does not answer"),
    )
    nodes = refused(submit(snapshot, job(instances=3, memory="2G"))).fields["nodes"]
    assert [n["reason"] for n in nodes] == [
        "with 2 of web there",
        "cordoned",
        "not alive",
        "degraded: podman does not answer",
    ]
    assert nodes[0]["free"]["memory_bytes"] == nodes[0]["short"]["memory_bytes"] == 2**30


def test_two_resources_short() -> None:
    """With memory and disk both short, memory is the title and disk is in the hint."""
    problem = refused(submit(cluster(n1="4G"), job(instances=5, disk="4G")))
    assert problem.kind is problems.INSUFFICIENT_MEMORY
    assert "Job requires 20G of disk" in problem.hint


def test_rejected_scale_counts_the_whole_job() -> None:
    """Scaling names the total of the job, and suggests the number that fits."""
    snapshot = submitted(cluster(n1="4G"), job(instances=2))
    problem = refused(plan_scale(snapshot, WEB, 6))
    assert problem.detail == "Job requires 6G of memory but only 4G can be allocated."
    assert problem.fields["suggestions"][0]["change"] == {"numInstances": 4}


# Scale, stop, restart -----------------------------------------------------------------------------


def test_scale_up_takes_the_lowest_free_slots() -> None:
    """A slot that is still stopping is not free."""
    snapshot = settled(submitted(THREE, job(instances=3)))
    snapshot = after(snapshot, plan_scale(snapshot, WEB, 1))
    stopping = {a.slot for a in snapshot.instances(WEB) if a.state is SlotState.STOPPING}
    plan = planned(plan_scale(snapshot, WEB, 3))
    assert stopping == {1, 2} and [e.slot for e in plan.edits] == [3, 4]
    assert [e.slot for e in planned(plan_scale(vacated(snapshot), WEB, 3)).edits] == [1, 2]


def test_scale_down_stops_what_is_missed_least() -> None:
    """Waiting before unhealthy before the most crowded node."""
    snapshot = report(submitted(cluster(n1="4G", n2="4G"), job(instances=5)), web_3=False)
    plan = planned(plan_scale(snapshot, WEB, 3))
    assert plan.edits[0].slot == 3 and plan.edits[0].reason.endswith("it is not healthy")
    assert "has the most instances of web" in plan.edits[1].reason
    assert spread(after(snapshot, plan)) == [2, 1]


def test_scale_to_zero_and_back() -> None:
    """Zero stops all of them and keeps the job."""
    snapshot = settled(submitted(THREE, job(instances=3)))
    snapshot = vacated(after(snapshot, plan_scale(snapshot, WEB, 0)))
    assert snapshot.jobs[WEB].head.wanted == 0 and where(snapshot) == {}
    assert spread(after(snapshot, plan_scale(snapshot, WEB, 3))) == [1, 1, 1]


def test_room_being_vacated_is_promised_at_once() -> None:
    """A job submitted while another still stops waits there instead of being refused."""
    snapshot = settled(submitted(cluster(n1="4G"), job("old", memory="3G", host_port=8080)))
    snapshot = after(snapshot, plan_stop(snapshot, key("old")))
    snapshot = submitted(snapshot, job(memory="3G", host_port=8080))
    assert where(snapshot) == {"0": "n1 v1 waiting"}
    assert where(vacated(snapshot)) == {"0": "n1 v1 running"}


def test_stop_of_a_job_without_instances_ends_it() -> None:
    """With nothing left to wait for, the head goes in the same transaction."""
    snapshot = submitted(THREE, job(instances=0))
    assert WEB not in after(snapshot, plan_stop(snapshot, WEB)).jobs


def test_stop_cancels_what_waits() -> None:
    """Running ones are stopped, waiting ones are simply gone."""
    snapshot = settled(submitted(cluster(n1="2G"), job("old", memory="2G")))
    snapshot = after(snapshot, plan_stop(snapshot, key("old")))
    snapshot = submitted(snapshot, job(memory="2G"))
    snapshot = after(snapshot, plan_stop(snapshot, WEB))
    assert where(snapshot) == {} and where(snapshot, key("old")) == {"0*": "n1 v1 stopping"}


def test_restart_raises_the_generation() -> None:
    """Restart is a rollout of the same version."""
    snapshot = submitted(THREE, job())
    assert after(snapshot, plan_restart(snapshot, WEB)).jobs[WEB].head.restart == 1


def test_other_namespace_is_another_job() -> None:
    """The same name in two namespaces is two jobs."""
    there = replace(job(), namespace=key("web", "shop").namespace)
    snapshot = submitted(THREE, job(), there)
    assert len(snapshot.jobs) == 2 and JobName("web") in {k.name for k in snapshot.jobs}


def test_nodes_that_are_lost_take_no_work() -> None:
    """Only nodes that are alive are given anything."""
    plan = planned(submit(lost(THREE, "n1", "n3"), job(instances=2)))
    assert {e.node for e in plan.edits} == {"n2"}
