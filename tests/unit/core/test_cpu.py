"""Processors: counted where a node tells how many it has, and nowhere else."""

from ozymandias.core.apply import apply
from ozymandias.core.schedule import pending_of, plan_scale
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.record import replace
from tests.unit.core.builders import (
    cluster,
    job,
    key,
    lost,
    node,
    planned,
    refused,
    settled,
    submit,
    submitted,
)


def test_cores_are_summed_in_thousandths() -> None:
    """What the containers of a pod ask for is added up; who asks for nothing takes nothing."""
    assert Demand.of(job(cpu=0.5)).cpu_millis == 500
    assert Demand.of(job()).cpu_millis == 0
    assert Demand.of(job(cpu=0.0001)).cpu_millis == 1
    two = replace(job(cpu=0.5), containers=job(cpu=0.25).containers * 2)
    assert Demand.of(two).cpu_millis == 500


def test_cores_limit_where_they_are_counted() -> None:
    """A node with two cores takes four halves; one that does not count takes what fits else."""
    assert submitted(cluster(node("n1", "8G", cpu=2000)), job(instances=4, memory="256M", cpu=0.5))
    problem = refused(
        submit(cluster(node("n1", "8G", cpu=2000)), job(instances=5, memory="256M", cpu=0.5))
    )
    assert problem.kind.slug == "insufficient-cpu"
    assert problem.detail == "Job requires 2.5 cores but only 2 cores can be allocated."
    assert (problem.fields["required"], problem.fields["placeable"]) == (2500, 2000)
    planned(submit(cluster(n1="8G"), job(instances=5, memory="256M", cpu=0.5)))


def test_what_would_make_it_fit() -> None:
    """Fewer instances, less of a core, or another node: each with its numbers."""
    problem = refused(submit(cluster(node("n1", "8G", cpu=1000)), job(instances=3, cpu=0.5)))
    texts = [s["text"] for s in problem.fields["suggestions"]]
    assert texts == [
        "run 2 instances instead of 3",
        "give app 0.3 cores instead of 0.5 cores",
        "add 1 node with at least 1G of memory and 0.5 cores to allocate",
    ]


def test_what_stops_still_has_its_cores() -> None:
    """A terminating pod makes no room that is not there yet, of processors neither."""
    snapshot = settled(submitted(cluster(node("n1", "8G", cpu=1000)), job("a", cpu=1.0)))
    snapshot = apply(snapshot, planned(plan_scale(snapshot, key("a"), 0)))
    plan = planned(submit(snapshot, job("b", cpu=1.0)))
    assert [edit.after for edit in plan.edits] == ["waiting"]


def test_pending_says_how_many_are_short() -> None:
    """What waits for processors says so in cores."""
    both = submitted(cluster(node("n1", cpu=500), node("n2", cpu=1000)), job(cpu=1.0, memory="1G"))
    gone = lost(both, "n2")
    without = {pair: a for pair, a in gone.assignments.items() if pair[0] != "n2"}
    (pending,) = pending_of(replace(gone, assignments=without))
    assert pending.reason == (
        "needs 1G of memory and 1 core; n1 is 0.5 cores short (0.5 cores free), n2 is not alive"
    )
    assert NodeName("n1") in both.nodes


def test_the_score_tells_of_cores() -> None:
    """How much of the cores is taken is one of the terms, where they are counted."""
    (edit,) = planned(submit(cluster(node("n1", cpu=2000)), job(cpu=0.5))).edits
    assert ("cpu_after", 0.25) in edit.score
