"""A job's own rules in placement: labels that are required or preferred, limits, priority."""

from functools import partial

import pytest

from ozymandias.core.explain import why
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import pending_of, plan_pending, plan_repair, plan_scale
from ozymandias.model.job import (
    JobKey,
    LabelRule,
    LabelTest,
    Neighbour,
    OnPartition,
    PlacementRules,
)
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import NO_MATCHING_NODE
from tests.unit.core.builders import (
    WEB,
    after,
    cluster,
    job,
    key,
    lost,
    node,
    planned,
    refused,
    settled,
    spread,
    submit,
    submitted,
    where,
)

INFRA = LabelRule(label="role", values=("infra",))
REQUIRES = PlacementRules(require=(INFRA,))


def nodes_of(snapshot: Snapshot, wanted: JobKey = WEB) -> set[str]:
    return {a.node for a in snapshot.instances(wanted)}


def two_of_three() -> Snapshot:
    infra = {"role": "infra"}
    return cluster(node("n1", labels=infra), node("n2"), node("n3", labels=infra))


def test_only_nodes_with_the_required_label_are_used() -> None:
    """Four instances on two matching nodes, though a third one is empty."""
    snapshot = submitted(two_of_three(), job(instances=4, placement=REQUIRES))
    assert nodes_of(snapshot) == {"n1", "n3"}


def test_no_matching_node_is_a_problem_that_names_the_label() -> None:
    """Each node says what it lacks, and a node with the label is suggested."""
    problem = refused(submit(cluster(n1="4G", n2="4G"), job(placement=REQUIRES)))
    assert problem.kind is NO_MATCHING_NODE
    assert problem.detail == "web requires role == infra, and no node that takes work has that."
    assert {n["reason"] for n in problem.fields["nodes"]} == {"without label role == infra"}
    assert problem.hint == (
        "label n1 role=infra (`ozy node label n1 role=infra`);"
        " or add 1 node with role=infra, at least 1G of memory to allocate"
    )


def test_contradictory_requirements_are_named_as_such() -> None:
    """It is the rules that are wrong, not the nodes."""
    rules = PlacementRules(require=(INFRA, replace(INFRA, values=("web",))))
    problem = refused(submit(two_of_three(), job(placement=rules)))
    assert problem.detail == (
        "No node can match web: role == infra and role == web can't both hold."
    )


def test_a_full_matching_node_lacks_memory_and_the_other_a_label() -> None:
    """The numbers are those of the nodes that match."""
    snapshot = cluster(node("n1", "1G", labels={"role": "infra"}), node("n2", "8G"))
    problem = refused(submit(snapshot, job(instances=2, placement=REQUIRES)))
    assert problem.detail == "Job requires 2G of memory but only 1G can be allocated."
    reasons = {n["node"]: n["reason"] for n in problem.fields["nodes"]}
    assert reasons == {"n1": "with 1 of web there", "n2": "without label role == infra"}


def test_preferred_nodes_are_filled_first_and_never_block() -> None:
    """What does not fit on a preferred node goes elsewhere; the reason says which it was."""
    snapshot = cluster(node("n1"), node("n2", "2G", labels={"role": "infra"}))
    rules = PlacementRules(prefer=(replace(INFRA, weight=5),))
    plan = planned(submit(snapshot, job(instances=3, placement=rules)))
    assert [e.node for e in plan.edits] == ["n2", "n2", "n1"]
    assert plan.edits[0].reason.endswith(", and role == infra as preferred")
    assert ("role == infra", 5.0) in plan.edits[0].score
    assert "preferred" not in plan.edits[2].reason


def test_whose_wish_a_node_fulfils_is_said_once() -> None:
    """The job's own as preferred; another job's in the words that name it."""
    db = job("db", placement=PlacementRules(apart=(Neighbour(job=WEB, weight=5),)))
    snapshot = submitted(cluster(node("n1", labels={"role": "infra"}), node("n2")), db)
    (home,) = nodes_of(snapshot, key("db"))
    other = "n2" if home == "n1" else "n1"
    rule = LabelRule(label="role", test=LabelTest.UNEQUAL, values=("none",), weight=1)
    for prefer, words in (
        ((), "and apart from db, as db prefers"),
        ((rule,), "and role != none as preferred, and apart from db, as db prefers"),
    ):
        plan = planned(submit(snapshot, job(placement=PlacementRules(prefer=prefer))))
        assert plan.edits[0].node == other
        assert plan.edits[0].reason.endswith(f" memory free, {words}")


def test_a_limit_per_node_holds_for_submit_scale_and_repair() -> None:
    """Two per node and no more, however much room there is."""
    rules = PlacementRules(max_per_node=2)
    snapshot = settled(
        submitted(cluster(n1="9G", n2="9G", n3="9G"), job(instances=6, placement=rules))
    )
    assert spread(snapshot) == [2, 2, 2]
    problem = refused(plan_scale(snapshot, WEB, 7))
    assert problem.kind is NO_MATCHING_NODE
    assert problem.detail == ("web wants 7 instances, at most 2 on a node, and 3 nodes can take 6.")
    gone = lost(snapshot, "n3")
    repaired = after(gone, plan_repair(gone, frozenset({NodeName("n3")})))
    assert spread(repaired) == [2, 2]
    (pending,) = pending_of(repaired)
    assert pending.count == 2
    assert "n1 is at the job's limit of 2 per node" in pending.reason
    assert any("n1 is at the job's limit of 2 per node" in line for line in why(repaired, WEB))


def test_a_limit_per_node_is_told_beside_the_room_there_is() -> None:
    """Two nodes may have two of them, and one of the two is full."""
    snapshot = submitted(cluster(n1="1G", n2="1G"), job("full", 1, "1G"))
    wanted = job("web", 3, "512M", placement=PlacementRules(max_per_node=1))
    problem = refused(submit(snapshot, wanted))
    assert problem.detail == (
        "web wants 3 instances, at most 1 on a node, and 2 nodes can take 2, with room for 1 of"
        " them."
    )
    assert (problem.fields["required"], problem.fields["placeable"]) == (3, 1)
    assert problem.hint.startswith("run 1 instance instead of 3;")


def test_a_rollout_keeps_the_limit_per_node() -> None:
    """With one on every node and one allowed, the new one waits for the old one's place."""
    rules = PlacementRules(max_per_node=1)
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job(instances=2, placement=rules)))
    snapshot = submitted(snapshot, job(instances=2, placement=rules, image="new"))
    for _ in range(20):
        plan = plan_rollout(snapshot)
        if plan is None:
            break
        snapshot = after(snapshot, plan)
        assert max(spread(snapshot)) == 1
        snapshot = settled(snapshot)
    assert sorted(where(snapshot).values()) == ["n1 v2 running", "n2 v2 running"]


@pytest.mark.parametrize("policy", OnPartition)
def test_a_rollout_goes_no_further_than_a_new_limit_per_node(policy: OnPartition) -> None:
    """Two old ones are where one new one may be: one is replaced, the other keeps running."""
    shape = partial(job, instances=2, on_partition=policy)
    snapshot = settled(submitted(cluster(n1="4G"), shape()))
    snapshot = replace(snapshot, nodes={**snapshot.nodes, **cluster(n2="4G").nodes})
    snapshot = submitted(snapshot, shape(placement=PlacementRules(max_per_node=1), image="new"))
    snapshot = replace(snapshot, nodes={n: snapshot.nodes[n] for n in (NodeName("n1"),)})
    while plan := plan_rollout(snapshot):
        snapshot = settled(after(snapshot, plan))
    assert sorted(where(snapshot).values()) == ["n1 v1 running", "n1 v2 running"]


def test_a_running_instance_stays_when_labels_change() -> None:
    """Rules count when an instance is placed: nothing is evicted."""
    snapshot = settled(submitted(two_of_three(), job(placement=REQUIRES)))
    (name,) = nodes_of(snapshot)
    there = snapshot.nodes[NodeName(name)]
    bare = replace(there, ledger=replace(there.ledger, set_labels={"role": ""}))
    snapshot = replace(snapshot, nodes={**snapshot.nodes, there.name: bare})
    assert plan_pending(snapshot) is None
    assert plan_rollout(snapshot) is None


def test_higher_priority_is_placed_first_when_room_is_short() -> None:
    """After a loss the important job gets what room there is, though its name comes last."""
    jobs = [job("aaa", 1, "2G"), job("zzz", 1, "2G", priority=100)]
    snapshot = cluster(n1="4G")
    snapshot = settled(submitted(snapshot, *jobs))
    small = node("n2", "2G")
    snapshot = lost(replace(snapshot, nodes={**snapshot.nodes, small.name: small}), "n1")
    snapshot = after(snapshot, plan_repair(snapshot, frozenset({NodeName("n1")})))
    assert nodes_of(snapshot, key("zzz")) == {"n2"}
    assert not nodes_of(snapshot, key("aaa"))
    assert [p.job.name for p in pending_of(snapshot)] == ["aaa"]
