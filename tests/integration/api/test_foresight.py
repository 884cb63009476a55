"""What would be, as people and scripts ask for it: status, what-if, plan with losses."""

from collections.abc import Iterator

import pytest

from tests.integration.api.rig import Cluster, until
from tests.integration.api.test_nodes import places, web


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes of 4G, with a job of six instances of 1G."""
    with Cluster(tmp_path_factory.mktemp("foresight")) as cluster:
        path = cluster.job("web", numInstances=6, container={"memory": "1G"})
        assert cluster.ozy("submit", path).code == 0
        yield cluster


def test_status_alone_shows_the_cluster(running: Cluster) -> None:
    """Counts by state, what is allocated, and whether the loss of a node is survived."""
    ran = running.ozy("status")
    assert (ran.code, ran.err) == (0, "")
    assert "nodes      3 ready" in ran.out
    assert "memory     6G of 12G" in ran.out
    assert "jobs       1 healthy" in ran.out
    assert "survives the loss of any one node: yes" in ran.out
    found = running.ozy("status", "-o", "json").document
    assert found["nodes"] == {"ready": 3} and found["instances"] == {"healthy": 6}
    assert found["survival"]["survives"] is True and found["survival"]["ways"] == 3
    assert found["survival"]["with_moves"] is True
    assert found["pending"] == []


def test_status_of_the_cluster_is_not_watched(running: Cluster) -> None:
    """--watch is for one job, and says so."""
    ran = running.ozy("status", "--watch")
    assert ran.code == 2 and "--watch is for one JOB" in ran.err


def test_the_metric_says_what_status_says(running: Cluster) -> None:
    """1 while the loss of any one node is survived."""
    text = running.request("GET", "/metrics", token="").body.decode()
    assert "ozymandias_survives_node_loss 1.0" in text


def test_what_if_tells_people(running: Cluster) -> None:
    """Steps, moves with reasons, the fate of each job, and what waits with the numbers."""
    ran = running.ozy("what-if", "lose n2; scale web 9; add n4 4G")
    assert (ran.code, ran.err) == (0, "")
    assert "lose n2:" in ran.out and "n2 was lost" in ran.out
    assert "! refused: Job requires 9G of memory but only 8G can be allocated." in ran.out
    assert "No job would be worse off; what was refused is left out." in ran.out
    assert "No job would be worse off." in running.ozy("what-if", "lose n2").out
    ran = running.ozy("what-if", "lose", "n2", "n3")  # as it is typed without quotes
    assert "web  degrades  6 -> 4" in ran.out
    assert "2 instances of web would wait: needs 1G of memory" in ran.out
    assert "Not everything would have a place (web)." in ran.out
    ran = running.ozy("what-if", "lose n2; drain n3; undrain n3")
    assert "drain n3:" in ran.out and "undrain n3:" in ran.out
    assert "  ! needs --force: 2 of 3 instances on n3 could not move: web-" in ran.out
    assert "needs --force" not in running.ozy("what-if", "drain n3").out
    assert "No job would be worse off." in ran.out


def test_what_if_tells_scripts(running: Cluster) -> None:
    """The same as a document; and nothing was changed by asking."""
    found = running.ozy("what-if", "lose n2", "-o", "json").document
    assert found["survives"] and found["at_rest"]
    (step,) = found["steps"]
    assert {change["from"] for change in step["changes"]} == {"n2"}
    assert found["jobs"][0]["outcome"] == "survives"
    assert [node["state"] for node in found["nodes"]] == ["ready", "lost", "ready"]
    nodes = running.ozy("nodes", "-o", "json").document
    assert [node["instances"] for node in nodes] == [2, 2, 2]


def test_what_if_tells_moves_as_the_setting_has_them(running: Cluster) -> None:
    """By itself with on, suggested with suggest, and after a freeze if there is one."""
    try:
        assert running.ozy("settings", "set", "--target", "30").code == 0
        ran = running.ozy("what-if", "add n4 16G")
        assert (
            "    nothing moves\nOnly suggested, for the setting `rebalance` is suggest" in ran.out
        )
        assert running.ozy("settings", "set", "--rebalance", "on").code == 0
        assert running.ozy("freeze", "now", "--for", "1h", "--reason", "a demo").code == 0
        ran = running.ozy("what-if", "add n4 16G")
        assert "no move begins: frozen by now until" in ran.out and "When that ends:" in ran.out
        assert running.ozy("freeze", "remove", "now", "--reason", "it is over").code == 0
        ran = running.ozy("what-if", "add n4 16G", "-o", "json")
        (step,) = ran.document["steps"]
        assert any(change["to"] == "n4" for change in step["changes"])
        assert ran.document["suggested"] == ran.document["thawed"] == []
    finally:
        running.ozy("settings", "set", "--rebalance", "suggest", "--target", "70")


def test_what_cant_be_read_is_pointed_at(running: Cluster) -> None:
    """Exit code 2, with the column, as text and as a document."""
    ran = running.ozy("what-if", "lose n2; loose n3")
    assert ran.code == 2 and "Column 10: there is no step 'loose'. Did you mean lose?" in ran.err
    ran = running.ozy("what-if", "lose n9", "-o", "json")
    assert ran.code == 2 and ran.document["column"] == 1


def test_plan_foresees_losses(running: Cluster) -> None:
    """A job that fits now, and what a loss would then mean: of one node, and of any."""
    path = running.job("db", numInstances=3, container={"memory": "1G"})
    ran = running.ozy("plan", path, "--lose-any", "1")
    assert ran.code == 0
    assert "It fits: 3 to place" in ran.out
    assert "Survives the loss of any one node: no: " in ran.out
    ran = running.ozy("plan", path, "--lose-node", "n2", "-o", "json")
    outcome = ran.document["lose_node"]
    assert not outcome["survives"]
    assert sum(row["wanted"] - row["after"] for row in outcome["jobs"]) == 1
    both = running.ozy("plan", path, "--lose-node", "n2", "--lose-node", "n3", "-o", "json")
    assert [step["step"] for step in both.document["lose_node"]["steps"]] == ["lose n2 n3"]
    assert running.ozy("plan", path, "--lose-node", "n9").code == 4


def test_the_line_follows_the_cluster(running: Cluster) -> None:
    """With the other nodes closed a lost one's work has no place, and it says whose."""
    for name in ("n2", "n3"):
        assert running.ozy("node", "cordon", name).code == 0
    try:
        found = running.ozy("status", "-o", "json").document["survival"]
        assert found["survives"] is False
        assert found["text"].startswith("survives the loss of any one node: no: web-")
        assert sum(row["wanted"] - row["after"] for row in found["worst"]["hurt"]) > 0
        text = running.request("GET", "/metrics", token="").body.decode()
        assert "ozymandias_survives_node_loss 0.0" in text
    finally:
        for name in ("n2", "n3"):
            assert running.ozy("node", "uncordon", name).code == 0
    assert running.ozy("status", "-o", "json").document["survival"]["survives"] is True


def test_a_large_cluster_is_not_worked_out_unasked(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says so and the metric is no number; whoever asks is answered."""
    monkeypatch.setattr("ozymandias.api.foresight.WORK_MAX", 0)
    assert running.ozy("status", "-o", "json").document["survival"]["survives"] is None
    words = "survives the loss of any one node: not worked out: the cluster is large"
    assert words in running.ozy("status").out
    text = running.request("GET", "/metrics", token="").body.decode()
    assert "ozymandias_survives_node_loss NaN" in text
    assert running.ozy("what-if", "lose n2", "-o", "json").document["survives"] is True


def test_the_state_is_exported_and_replayed(running: Cluster) -> None:
    """A file of the running cluster, replayed without it; the token's environment stays at home."""
    path = running.folder / "state.json"
    ran = running.ozy("replay", "--export", str(path))
    assert (ran.code, ran.err) == (0, "") and "runs the scheduler over it" in ran.out
    assert b"key-of-n1" not in path.read_bytes()
    ran = running.ozy("replay", str(path), "-o", "json")
    assert ran.code == 0 and ran.document["same"]
    assert running.ozy("replay", str(path), "--with-environment").code == 2
    assert running.ozy("replay", str(running.folder / "none.json")).code == 2


def test_a_plan_tells_what_kept_volumes_hold_where_it_is(own_cluster: Cluster) -> None:
    """Two on one node, of which a new limit allows one: the other stays, and it is said."""
    ozy, ask = own_cluster.ozy, own_cluster.request
    assert ozy("node", "label", "n1", "role=data").code == 0
    volume = "    volumes: [{path: /data, space: 1M, keep: true}]\n"
    old = web(2, extra="placement: {require: [role == data]}\n") + volume.encode()
    assert ask("POST", "/v1/jobs", old).status == 201
    until(lambda: places(own_cluster, "web") == ["n1", "n1"], 20)
    file = own_cluster.folder / "web.yaml"
    file.write_bytes(web(2, extra="placement: {max_per_node: 1}\n") + volume.encode())
    planned = ozy("plan", str(file))
    words = "version 1 stays: its kept volumes are on n1, which is at the job's limit of 1 per node"
    assert f"  = web-0 on n1: {words}" in planned.out
    assert "It fits: 1 to place, 0 to move, 1 to stop, 1 to stay as it is." in planned.out
    assert ask("POST", "/v1/jobs", file.read_bytes()).status == 200
    until(lambda: f"web-0 of {words}." in ozy("why", "web").out, 20)
