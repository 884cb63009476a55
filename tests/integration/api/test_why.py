"""Why and why not, as people and scripts ask for it, against running daemons."""

import time
from collections.abc import Iterator

import pytest

from ozymandias.api.explaining import CLOCKS_DIFFER_SECONDS
from tests.integration.api.rig import Cluster, until

ONE_EACH = {"max_per_node": 1}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes of 4G: web has three instances of 1G, and big one of 3G."""
    with Cluster(tmp_path_factory.mktemp("why")) as cluster:
        path = cluster.job("web", numInstances=3, container={"memory": "1G"})
        assert cluster.ozy("submit", path).code == 0
        path = cluster.job("big", numInstances=1, container={"memory": "3G"})
        assert cluster.ozy("submit", path).code == 0
        yield cluster


def test_why_an_instance_is_where_it_is(running: Cluster) -> None:
    """Filters and terms of every node at the moment of the decision, for people."""
    ran = running.ozy("why", "web-1")
    assert (ran.code, ran.err) == (0, "")
    node = running.ozy("ps", "web", "-o", "json").document[1]["node"]
    assert "Decision n1/0" in ran.out
    (chosen,) = [line for line in ran.out.splitlines() if line.startswith(f"{node} *  1 ")]
    assert "same_job 0, memory_after 0.25, below_target 1" in chosen


def test_why_an_instance_for_scripts(running: Cluster) -> None:
    """The recorded score comes out again, and every node has its rank."""
    found = running.ozy("why", "big-0", "-o", "json").document
    decision = found["decision"]
    assert decision["exact"] and decision["nodes_total"] == 3
    assert [row["rank"] for row in decision["nodes"]] == [1, 2, 3]
    assert [row["chosen"] for row in decision["nodes"]] == [True, False, False]
    assert decision["nodes"][0]["terms"]["memory_after"] == 1.0


def test_the_record_is_of_the_moment_not_of_now(running: Cluster) -> None:
    """A node that is closed afterwards was open when the decision was made."""
    assert running.ozy("node", "cordon", "n3").code == 0
    try:
        found = running.ozy("why", "web-0", "-o", "json").document["decision"]
        assert all(not row["against"] for row in found["nodes"])
    finally:
        assert running.ozy("node", "uncordon", "n3").code == 0


def test_why_not_there(running: Cluster) -> None:
    """What is short with numbers, and what would let it, tried out."""
    node = running.ozy("ps", "big", "-o", "json").document[0]["node"]
    ran = running.ozy("why-not", "big", node)
    assert (ran.code, ran.err) == (0, "")
    assert f"Another instance of big can't go to {node}: it is 3G of memory short" in ran.out
    found = running.ozy("why-not", "web", node, "-o", "json").document
    assert found["node"] == node and len(found["nodes"]) == 3
    assert running.ozy("why-not", "web", "n9").code == 4
    assert running.ozy("why-not", "nobody", "n1").code == 4


def test_why_not_suggests_what_does(running: Cluster) -> None:
    """A cordoned node would take it if it were not."""
    full = running.ozy("ps", "big", "-o", "json").document[0]["node"]
    node = next(name for name in ("n1", "n2") if name != full)
    assert running.ozy("node", "cordon", node).code == 0
    try:
        ran = running.ozy("why-not", "web", node)
        assert "it is cordoned." in ran.out and f"It could if you uncordon {node}." in ran.out
    finally:
        assert running.ozy("node", "uncordon", node).code == 0


def test_a_decision_is_exported_and_replayed(running: Cluster) -> None:
    """What it was made on as a file; without a cluster it comes out the same."""
    path = running.folder / "decision.json"
    ran = running.ozy("replay", "--export", str(path), "--decision", "n1/0")
    assert ran.code == 0, ran.err
    ran = running.ozy("replay", str(path))
    assert ran.code == 0 and "web-0 on " in ran.out
    assert "The same as was decided." in ran.out
    assert running.ozy("replay", "--export", "-", "--decision", "n1/99").code == 4


def test_what_happened_is_told_by_who_decided_and_of_this_job_alone(running: Cluster) -> None:
    """The peer that decided is named as such; a former job of that name left nothing behind."""
    path = running.job("again", numInstances=1, container={"memory": "64M"})
    for _ in range(2):
        assert running.ozy("submit", path).code == 0
        until(lambda: "instance.placed" in running.ozy("why", "again-0").out, 30)
        ran = running.ozy("why", "again-0")
        assert ran.out.count("instance.placed, decided by n") == 1, ran.out
        assert "instance.placed on" not in ran.out and "instance.stopping" not in ran.out
        assert running.ozy("stop", "again").code == 0
        until(lambda: running.ozy("status", "again").code == 4, 30)
        time.sleep(2 * CLOCKS_DIFFER_SECONDS)


def test_pending_comes_with_suggestions(own_cluster: Cluster) -> None:
    """A job that lost its places is told what would give it all of them."""
    path = own_cluster.job("web", numInstances=6, container={"memory": "1G"})
    assert own_cluster.ozy("submit", path).code == 0
    for name in ("n1", "n2"):
        assert own_cluster.ozy("node", "cordon", name).code == 0
    own_cluster.ozy("node", "drain", "n3", "--force", "--deadline", "1s", "--detach")

    def suggested() -> bool:
        found = own_cluster.ozy("why", "web", "-o", "json").document
        changes = [row["change"] for row in found["suggestions"]]
        return {"uncordon": "n1"} in changes and {"undrain": "n3"} in changes

    until(suggested, 60)
    told = own_cluster.ozy("why", "web").out
    assert "would have a place if you uncordon n1." in told
    assert "would have a place if you undrain n3." in told
    # Who lacked more before does not degrade.
    ran = own_cluster.ozy("what-if", "add n4 1G")
    assert "web  lacks    4 -> 5  6" in ran.out and "No job would be worse off." in ran.out


def test_why_others_had_to_leave_and_why_it_was_this_one(own_cluster: Cluster) -> None:
    """Of who came at others' cost and of who left: what each node would have cost."""
    for name, priority, size in (("low", 100, "3G"), ("mid", 200, "900M")):
        path = own_cluster.job(
            name, numInstances=3, priority=priority, placement=ONE_EACH, container={"memory": size}
        )
        assert own_cluster.ozy("submit", path).code == 0
    path = own_cluster.job("shop", numInstances=1, priority=9000, container={"memory": "2G"})
    assert own_cluster.ozy("submit", path).code == 0
    ran = own_cluster.ozy("why", "shop-0")
    assert "It fits nowhere else, so others had to leave. What each node would have" in ran.out
    contest = own_cluster.ozy("why", "shop-0", "-o", "json").document["decision"]["contest"]
    assert contest["exact"] and len(contest["nodes"]) == 3
    (left,) = contest["nodes"][0]["victims"]
    assert (left["job"], left["priority"]) == ("low", 100) and contest["nodes"][0]["chosen"]
    ran = own_cluster.ozy("why", left["instance"])
    words = f"It had to leave {contest['node']} for shop (priority 9000), which fits nowhere else."
    assert words in ran.out and "could have left" in ran.out
    found = own_cluster.ozy("why", left["instance"], "-o", "json").document["displaced"]
    assert found["contest"] == contest
    path = str(own_cluster.folder / "decision.json")
    assert own_cluster.ozy("replay", "--export", path, "--decision", found["id"]).code == 0
    ran = own_cluster.ozy("replay", path)
    assert ran.code == 0 and "The same as was decided." in ran.out
