"""A node that returns receives work, and nobody who asks notices."""

from collections import Counter

from tests.cluster.kit import Cluster, Requester, until, web


def spread(cluster: Cluster, job: str, node: str) -> Counter[str]:
    return Counter(row["node"] for row in cluster.rows(job, node=node) if row["healthy"])


def test_a_returned_node_receives_work_under_load(cluster: Cluster) -> None:
    """Two of four share each of two nodes while the third is away; `ozy rebalance` undoes it."""
    cluster.submit(web("level", instances=4))
    victim = "n3"
    assert cluster.ozy("node", "kill", victim)["pods"] >= 1
    until(lambda: spread(cluster, "level", "n1") == Counter(n1=2, n2=2), say="moved away")
    with Requester(cluster, "level.localhost", threads=3) as requester:
        assert cluster.ozy("node", "start", victim)["ready"]
        until(lambda: cluster.nodes()[victim]["state"] == "ready")
        foreseen = cluster.ozy("rebalance", "--dry-run")
        assert [(m["to"], m["gain"]["crowd"]) for m in foreseen["moves"]] == [(victim, 1)]
        text = cluster.text("rebalance", "--timeout", "60")
        assert "no move is worth it any more" in text
        requester.more(50)
    assert requester.failures == []
    assert sorted(spread(cluster, "level", "n1").values()) == [1, 1, 2]
    assert cluster.ozy("rebalance", "--dry-run")["moves"] == []
    print(f"{requester.answers} requests while moving, by instance: {requester.instances}")
    moved = [
        event["reason"] for event in cluster.events("level") if "moved from" in event["reason"]
    ]
    assert len(moved) == 1, moved


def test_a_wish_is_healed_under_load(cluster: Cluster) -> None:
    """No node has the label that a job prefers; one gets it: the instance moves there."""
    job = web("wish", instances=1) | {"placement": {"prefer": ["role == edge"]}}
    cluster.submit(job)
    [row] = cluster.rows("wish")
    other = next(node for node in ("n1", "n2", "n3") if node != row["node"])
    until(lambda: cluster.ozy("drift")["items"], say="it does without")
    [lack] = cluster.ozy("drift")["items"]
    assert (lack["wish"], lack["to"]) == ("role == edge", None)
    until(lambda: cluster.ozy("drift")["items"][0]["since"], say="noted since when")
    try:
        with Requester(cluster, "wish.localhost", threads=2) as requester:
            cluster.text("node", "label", other, "role=edge")
            assert cluster.ozy("drift")["items"][0]["to"] == other
            cluster.text("rebalance", "--timeout", "60")
            requester.more(30)
        assert requester.failures == []
        until(lambda: [r["node"] for r in cluster.rows("wish")] == [other], say="it has moved")
        until(lambda: not cluster.ozy("drift")["items"], say="nothing is given up any more")
    finally:
        cluster.text("node", "label", other, "role-")
