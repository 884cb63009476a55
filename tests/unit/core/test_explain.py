"""Decisions in words, and plans as documents."""

from ozymandias.core.explain import plan_document, why
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import plan_repair, plan_restart, plan_stop
from ozymandias.model.job import LabelRule, LabelTest, PlacementRules
from ozymandias.model.node import Node, NodeName
from ozymandias.model.record import replace
from tests.unit.core.builders import (
    WEB,
    after,
    cluster,
    job,
    key,
    lost,
    node,
    report,
    settled,
    submit,
    submitted,
)

THREE = cluster(n1="4G", n2="4G", n3="4G")


def test_document_of_a_plan() -> None:
    """Placements with node and reason; nothing else happens."""
    document = plan_document(submit(THREE, job(instances=2)))
    assert document["fits"] is True and document["problem"] is None
    assert [p["instance"] for p in document["place"]] == ["web-0", "web-1"]
    assert set(document["place"][0]) == {"instance", "job", "namespace", "node", "reason"}
    assert document["stop"] == document["move"] == []


def test_document_of_a_problem() -> None:
    """A refusal carries the whole problem document."""
    document = plan_document(submit(THREE, job(memory="9G")))
    assert document["fits"] is False and document["place"] == []
    assert document["problem"]["title"] == "Insufficient memory for job"


def test_moves() -> None:
    """What is lost on one node and placed on another is a move, not a stop and a place."""
    snapshot = settled(submitted(THREE, job()))
    (there,) = snapshot.instances(WEB)
    snapshot = lost(snapshot, there.node)
    plan = plan_repair(snapshot, frozenset({there.node}))
    assert plan
    document = plan_document(plan)
    (move,) = document["move"]
    assert move["from"] == there.node != move["to"] and document["place"] == document["stop"] == []


def test_stop_document() -> None:
    """Every instance of a stopped job is listed."""
    snapshot = settled(submitted(THREE, job(instances=2)))
    document = plan_document(plan_stop(snapshot, WEB))
    assert [s["instance"] for s in document["stop"]] == ["web-0", "web-1"]


def test_why_healthy() -> None:
    """A job as it is wanted has little to say."""
    snapshot = settled(submitted(cluster(n1="4G"), job()))
    assert why(snapshot, WEB) == (
        "web is at version 1: 1 wanted, 1 healthy.",
        "web-0 runs on n1 and is healthy.",
    )


def test_why_pending() -> None:
    """Node by node, the numbers."""
    snapshot = cluster(node("n1", "4G"), node("n2", "2G", "1G"), node("n3", cordoned=True))
    snapshot = settled(submitted(snapshot, job("other", memory="3G"), job(instances=0)))
    big = job(instances=1, memory="2G", disk="5G", host_port=80)
    record = snapshot.jobs[WEB]
    version = replace(record.versions[1], job=big)
    head = replace(record.head, wanted=2)
    record = replace(record, head=head, versions={1: version})
    assert why(replace(snapshot, jobs={**snapshot.jobs, WEB: record}), WEB) == (
        "web is at version 1: 2 wanted, 0 healthy.",
        "2 instances are pending: each needs 2G of memory and 5G of disk and host port 80/tcp."
        " Of 3 nodes 2 do not have that free; 1 is cordoned.",
        "  n1 is 1G of memory short (1G free)",
        "  n2 is 4G of disk short (1G free)",
        "  n3 is cordoned",
        "All of them would have a place if you add 2 nodes with at least 2G of memory and 5G of"
        " disk to allocate.",
    )


def test_why_pending_while_a_node_is_away() -> None:
    """A node whose return would make room is named; one that has none to offer is not."""
    snapshot = settled(submitted(cluster(n1="2G", n2="2G", n3="4G"), job(memory="4G")))
    away = lost(snapshot, "n2", "n3")
    repaired = after(away, plan_repair(away, frozenset({NodeName("n3")})))
    line = "It would have a place if you start n3 (where `ozy up` made it: `ozy node start n3`)."
    assert [text for text in why(repaired, WEB) if "start" in text] == [line]


def test_why_pending_tells_who_lacks_room_and_who_is_out_of_the_question() -> None:
    """Nodes with room are not said to lack it: a label or a limit is what is in the way."""
    rules = PlacementRules(
        require=(LabelRule(label="role", test=LabelTest.UNEQUAL, values=("control",)),),
        max_per_node=1,
    )
    control = node("control", labels={"role": "control"})
    snapshot = cluster(control, node("n1"), node("n2", "512M"), node("n3", "512M"))
    snapshot = settled(submitted(snapshot, job(placement=rules)))
    record = snapshot.jobs[WEB]
    more = replace(record, head=replace(record.head, wanted=2))
    assert why(replace(snapshot, jobs={WEB: more}), WEB)[1:6] == (
        "1 instance is pending: it needs 1G of memory. Of 4 nodes 2 do not have that free;"
        " 1 is at the job's limit of 1 per node; 1 is excluded by role != control.",
        "  control is excluded by role != control",
        "  n1 is at the job's limit of 1 per node",
        "  n2 is 512M of memory short (512M free)",
        "  n3 is 512M of memory short (512M free)",
    )


def test_why_pending_in_few_words_where_one_thing_is_in_the_way() -> None:
    """All nodes, the only one, or none at all."""

    def headline(*nodes: Node) -> str:
        snapshot = submitted(cluster(*nodes), job(instances=0))
        record = snapshot.jobs[WEB]
        more = replace(record, head=replace(record.head, wanted=1))
        return why(replace(snapshot, jobs={WEB: more}), WEB)[1]

    start = "1 instance is pending: it needs 1G of memory, and "
    assert headline(node("n1", "512M"), node("n2", "1M")) == start + "no node has that free."
    assert headline(node("n1", cordoned=True)) == start + "the only node is cordoned."
    shut = [node(name, cordoned=True) for name in ("n1", "n2")]
    assert headline(*shut) == start + "all 2 nodes are cordoned."
    assert headline() == start + "there are no nodes."


def test_why_unhealthy_and_unstarted() -> None:
    """An instance that is not healthy shows what its node said of it."""
    snapshot = submitted(cluster(n1="4G"), job())
    assert "web-0 on n1 has not been started yet." in why(snapshot, WEB)
    assert "web-0 on n1 is unhealthy: connection refused" in why(report(snapshot, web_0=False), WEB)
    assert why(lost(snapshot, "n1"), WEB)[-1] == (
        "web-0 on n1 is not reachable: the node's lease is gone. It moves to where there is room,"
        " after up to a minute if most nodes are missing."
    )


def test_why_waiting() -> None:
    """A waiting instance says for what: its own slot, or room that something else still holds."""
    snapshot = settled(submitted(cluster(n1="4G"), job(memory="3G")))
    snapshot = after(snapshot, plan_restart(snapshot, WEB))
    assert "Next: web-0 on n1 is to stop; web-0 is to wait on n1." in why(snapshot, WEB)
    snapshot = after(snapshot, plan_rollout(snapshot))
    assert "web-0 waits on n1 until web-0 of version 1 on n1 stops." in why(snapshot, WEB)
    other = settled(submitted(cluster(n1="4G"), job("old", memory="3G")))
    other = submitted(after(other, plan_stop(other, key("old"))), job(memory="3G"))
    line = "web-0 waits on n1 for 3G of memory: what stops there still holds it (old-0)."
    assert line in why(other, WEB)


def test_why_rollout() -> None:
    """A rollout says how far it is and what it waits for."""
    snapshot = settled(submitted(THREE, job(instances=3)))
    snapshot = after(snapshot, submit(snapshot, job(instances=3, image="b")))
    snapshot = after(snapshot, plan_rollout(snapshot))
    lines = why(snapshot, WEB)
    assert lines[1] == "A rollout to version 2 is under way: 1 new, 3 to be replaced."
    assert lines[2] == "It goes on when web-3 is healthy."


def test_why_rollout_can_not_go_on() -> None:
    """When the new version fits nowhere any more, the old one stays and the numbers are given."""
    snapshot = settled(submitted(cluster(n1="4G"), job(memory="2G")))
    snapshot = after(snapshot, submit(snapshot, job(memory="4G")))
    there = snapshot.nodes[NodeName("n1")]
    smaller = replace(there, ledger=replace(there.ledger, reserve=there.ledger.promised.resources))
    snapshot = replace(snapshot, nodes={there.name: smaller})
    assert plan_rollout(snapshot) is None
    lines = why(snapshot, WEB)
    assert lines[2] == "It can't go on: a new instance needs 4G of memory and fits nowhere."
    assert lines[3] == "  n1 is 4G of memory short (0B free)"


def test_why_not_there_and_stopping() -> None:
    """An unknown job and one that goes are named as such."""
    assert why(THREE, WEB) == ("There is no job web.",)
    snapshot = settled(submitted(cluster(n1="4G"), job()))
    snapshot = after(snapshot, plan_stop(snapshot, WEB))
    assert why(snapshot, WEB) == (
        "web was stopped; 1 of its instances is not gone yet.",
        "web-0 is stopping on n1.",
    )
