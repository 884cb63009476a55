"""A node that does not schedule: it runs what it is given, and passes its callers on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ozymandias.model.node import NodeName
from tests.integration.api.rig import Cluster, until


def job(name: str, count: int, memory: str = "64M", **fields: Any) -> dict[str, Any]:
    container = {"image": "demo", "ports": ["80:8000"], "memory": memory}
    return {"name": name, "numInstances": count, "containers": {"app": container}} | fields


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, of which the last does not schedule, with a job on all of them."""
    with Cluster(tmp_path_factory.mktemp("mixed"), schedulers=2) as cluster:
        body = job("web", 3, placement={"max_per_node": 1})
        answer = cluster.request("POST", "/v1/jobs", body, node="n3")
        assert answer.status == 201, answer.body
        until(lambda: places(cluster, "web") == ["n1", "n2", "n3"], 20)
        yield cluster


def instances(cluster: Cluster, name: str, node: str = "n1") -> list[dict[str, Any]]:
    path = f"/v1/jobs/default/{name}"
    found: list[dict[str, Any]] = cluster.request("GET", path, node=node).document["instances"]
    return found


def places(cluster: Cluster, name: str) -> list[str]:
    return sorted(i["node"] for i in instances(cluster, name) if i["healthy"])


def test_its_mirror_holds_its_own_part_alone(mixed: Cluster) -> None:
    """It knows itself, what is assigned to it and those jobs, and none of the rest."""
    snapshot = mixed.do(mixed.machines["n3"].daemon.mirror.snapshot)
    assert set(snapshot.nodes) == {"n3"}
    assert {node for node, _ in snapshot.assignments} == {"n3"}
    assert {key.name for key in snapshot.jobs} == {"web"}


def test_callers_get_the_same_answers_from_every_node(mixed: Cluster) -> None:
    """What is asked of a node that does not schedule is answered by one that does."""
    for path in ("/v1/nodes", "/v1/instances", "/v1/jobs/default/web"):
        ours, theirs = (mixed.request("GET", path, node=node).document for node in ("n3", "n1"))
        assert ours == theirs
    refused = mixed.request("GET", "/v1/jobs/default/none", node="n3")
    assert refused.status == 404
    assert refused.document["type"].endswith("#job-not-found")
    assert mixed.request("GET", "/v1/info", node="n3").document["node"] == "n3"


def test_a_token_is_asked_for_where_one_calls(mixed: Cluster) -> None:
    """Nobody is passed on who would not be let in."""
    assert mixed.request("GET", "/v1/nodes", node="n3", token="wrong").status == 401
    shown = {"Authorization": "Peer n1:key-of-n2"}
    assert mixed.request("GET", "/v1/nodes", node="n3", token="", headers=shown).status == 401


def test_peers_reach_its_instances(mixed: Cluster) -> None:
    """Logs and commands of an instance there work through every node, its own included."""
    name = next(i["instance"] for i in instances(mixed, "web") if i["node"] == "n3")
    for node in ("n1", "n3"):
        path = f"/v1/instances/default/{name}"
        body = {"command": ["true"], "container": "app", "timeout_seconds": 5}
        ran = mixed.request("POST", f"{path}/exec", body, node=node)
        assert ran.status == 200, ran.body
        read = mixed.request("GET", f"{path}/logs?tail=1", node=node)
        assert read.status == 200, read.body


def test_a_change_that_is_passed_on_is_written_down_once(mixed: Cluster) -> None:
    """Where it came in, with whose token it was."""
    before = mixed.audit_file.read_text().count('"job.scale"')
    answer = mixed.request("POST", "/v1/jobs/default/web/scale", {"instances": 3}, node="n3")
    assert answer.status == 200, answer.body
    lines = [json.loads(line) for line in mixed.audit_file.read_text().splitlines()]
    scaled = [line for line in lines if line["what"] == "job.scale"]
    assert len(scaled) == before + 1
    assert scaled[-1]["node"] == "n3" and scaled[-1]["who"].startswith("token:")


def test_ozy_nodes_shows_which_schedule(mixed: Cluster) -> None:
    """In a table for people where not all do, and for scripts in any case."""
    shown = mixed.ozy("nodes")
    assert "SCHEDULES" in shown.out
    rows = mixed.ozy("nodes", "-o", "json").document
    assert {row["name"]: row["schedules"] for row in rows} == {"n1": True, "n2": True, "n3": False}


def test_it_is_drained_and_takes_work_again(mixed: Cluster) -> None:
    """Its work leaves as from any other node, and comes back."""
    assert mixed.request("POST", "/v1/jobs/default/web/scale", {"instances": 2}).status == 200
    drained = mixed.request("POST", "/v1/nodes/n3/drain", {}, node="n3")
    assert drained.status == 200, drained.body
    path = "/v1/nodes/n3"
    until(lambda: mixed.request("GET", path).document["state"] == "drained", 20)
    assert mixed.request("POST", "/v1/nodes/n3/undrain", {}, node="n3").status == 200
    assert mixed.request("POST", "/v1/jobs/default/web/scale", {"instances": 3}).status == 200
    until(lambda: places(mixed, "web") == ["n1", "n2", "n3"], 20)


def test_without_anybody_who_schedules_it_says_so(tmp_path: Path) -> None:
    """Its own instances go on; callers are told that there is nobody to ask."""
    with Cluster(tmp_path, nodes=2, schedulers=1) as cluster:
        assert cluster.request("POST", "/v1/jobs", job("web", 2), node="n2").status == 201
        until(lambda: len(places(cluster, "web")) == 2, 20)
        cluster.kill("n1")
        answer = cluster.request("GET", "/v1/nodes", node="n2")
        assert answer.status == 502, answer.body
        assert "no node that does answers" in answer.document["detail"]
        host = cluster.machines["n2"].host
        assert NodeName("n2") in {pod.node for pod in cluster.do(host.running)}
