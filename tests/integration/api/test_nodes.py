"""Nodes looked after through `ozy` and the API: cordon, label, drain, system jobs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.rig import Cluster, until

SYSTEM = b"""
name: agent
type: system
containers: {app: {image: demo, memory: 64M}}
"""


def web(count: int = 3, memory: str = "256M", extra: str = "") -> bytes:
    return (
        f"name: web\nnumInstances: {count}\n{extra}containers:\n  app:\n    image: demo\n"
        f"    memory: {memory}\n    ports: ['80:8000']\n"
    ).encode()


@pytest.fixture
def busy(own_cluster: Cluster) -> Iterator[Cluster]:
    """Three nodes with one instance each of a service and of a system job, all healthy."""
    for file in (SYSTEM, web()):
        assert own_cluster.request("POST", "/v1/jobs", file).status == 201
    until(lambda: places(own_cluster, "web") == ["n1", "n2", "n3"], 20)
    until(lambda: places(own_cluster, "agent") == ["n1", "n2", "n3"], 20)
    yield own_cluster


def status(cluster: Cluster, job: str) -> Any:
    return cluster.request("GET", f"/v1/jobs/default/{job}").document


def places(cluster: Cluster, job: str) -> list[str]:
    """Nodes with a healthy instance."""
    return sorted(i["node"] for i in status(cluster, job)["instances"] if i["healthy"])


def row(cluster: Cluster, name: str) -> Any:
    return cluster.request("GET", f"/v1/nodes/{name}").document


def test_a_node_is_drained_and_undrained_through_ozy(busy: Cluster) -> None:
    """Shown first, then done: its work runs elsewhere, and system jobs end last."""
    shown = busy.ozy("node", "drain", "n2", "--dry-run")
    assert shown.code == 0
    assert "web-" in shown.out and "-> n" in shown.out and "ends after all others" in shown.out
    assert row(busy, "n2")["state"] == "ready"
    done = busy.ozy("node", "drain", "n2", "--timeout", "60", "--reason", "new disk")
    assert done.code == 0, done.err
    assert "drained n2: nothing is left on it." in done.out
    there = row(busy, "n2")
    assert (there["state"], there["instances"], there["drain"]["reason"]) == (
        "drained",
        0,
        "new disk",
    )
    until(lambda: len(places(busy, "web")) == 3 and "n2" not in places(busy, "web"), 20)
    agent = busy.ozy("status", "agent")
    assert "2 of 2 nodes healthy" in agent.out
    refused = busy.ozy("node", "uncordon", "n2")
    assert refused.code == 1 and "ozy node undrain n2" in refused.err
    assert "The drain of n2 is over." in busy.ozy("node", "undrain", "n2").out
    until(lambda: "n2" in places(busy, "agent"), 20)


def test_a_drain_without_room_says_so_before_anything_stops(busy: Cluster) -> None:
    """Exit code 3 with the numbers; --force begins, and the deadline ends what is left."""
    big = web(3, "3G").replace(b"name: web", b"name: big")
    assert busy.request("POST", "/v1/jobs", big).status == 201
    until(lambda: places(busy, "big") == ["n1", "n2", "n3"], 20)
    refused = busy.ozy("node", "drain", "n1")
    assert refused.code == 3
    assert "1 of 3 instances on n1 could not move: big-" in refused.err
    assert "needs 3G of memory; n2 is" in refused.err
    assert row(busy, "n1")["state"] == "ready"
    document = busy.ozy("node", "drain", "n1", "-o", "json").document
    assert document["type"].endswith("#drain-blocked")
    assert len(document["blockers"]) == 1 and len(document["movers"]) == 2
    forced = busy.ozy("node", "drain", "n1", "--force", "--deadline", "2s", "--timeout", "60")
    assert forced.code == 0, forced.err
    until(lambda: status(busy, "big")["pending"] == 1, 10)
    assert row(busy, "n1")["instances"] == 0


def test_labels_place_jobs_and_are_taken_away(busy: Cluster) -> None:
    """Set by the operator, seen by a job's rules; a label of the settings can be hidden."""
    fussy = web(1, "64M", "placement: {require: [disk == ssd]}\n").replace(
        b"name: web", b"name: fast"
    )
    refused = busy.request("POST", "/v1/jobs", fussy)
    assert refused.status == 409
    assert refused.document["type"].endswith("#no-matching-node")
    set_ = busy.ozy("node", "label", "n3", "disk=ssd", "zone-")
    assert set_.out == "Labels of n3: disk=ssd.\n"
    assert busy.request("POST", "/v1/jobs", fussy).status == 201
    until(lambda: places(busy, "fast") == ["n3"], 20)
    assert "disk=ssd" in busy.ozy("nodes").out
    assert busy.ozy("node", "label", "n3", "disk").code == 2
    bad = busy.request("POST", "/v1/nodes/n3/labels", json.dumps({"set": {"a b": "c"}}).encode())
    assert bad.status == 400


def test_a_cordoned_node_gets_system_jobs_only(busy: Cluster) -> None:
    """New instances of services go elsewhere."""
    assert busy.ozy("node", "cordon", "n1").out == "n1 is cordoned: it takes no new work.\n"
    assert busy.request("POST", "/v1/jobs/default/web/scale", b'{"instances": 6}').status == 200
    more = SYSTEM.replace(b"agent", b"exporter")
    assert busy.request("POST", "/v1/jobs", more).status == 201
    until(lambda: len(places(busy, "web")) == 6, 20)
    assert places(busy, "web").count("n1") == 1
    until(lambda: places(busy, "exporter") == ["n1", "n2", "n3"], 20)
    scaled = busy.request("POST", "/v1/jobs/default/agent/scale", b'{"instances": 6}')
    assert scaled.status == 409 and scaled.document["type"].endswith("#system-job")
    assert busy.ozy("node", "uncordon", "n1").code == 0


def test_a_node_that_is_not_there_is_not_found(cluster: Cluster) -> None:
    """Exit code 4, and where to look."""
    for verb in ("cordon", "uncordon", "undrain", "drain"):
        ran = cluster.ozy("node", verb, "n9")
        assert ran.code == 4 and "`ozy nodes` lists them" in ran.err


def test_what_an_operator_set_is_audited(own_cluster: Cluster) -> None:
    """One line per change, with before and after."""
    own_cluster.ozy("node", "label", "n1", "role=infra")
    lines = [json.loads(line) for line in Path(own_cluster.audit_file).read_text().splitlines()]
    (line,) = [line for line in lines if line["what"] == "node.label"]
    assert (line["target"], line["outcome"]) == ("n1", "done")
    assert line["before"]["labels"] == {} and line["after"]["labels"] == {"role": "infra"}


def test_who_would_leave_under_pressure_is_shown(busy: Cluster) -> None:
    """For people in order and in words, for programs as documents; of one node, or of all."""
    shown = busy.ozy("shed", "--plan", "n2")
    assert shown.code == 0, shown.err
    first, leaver, stays = shown.out.splitlines()
    assert first == "n2 is under no pressure."
    assert leaver.startswith("  1. web-") and "(priority 0) -> n" in leaver
    assert "stays: it belongs to every node, as a system job" in stays
    document = json.loads(busy.ozy("shed", "--plan", "n2", "-o", "json").out)
    assert (document["node"], document["pressure"], document["keeps"]) == ("n2", "", None)
    assert [row["job"] for row in document["leaving"]] == ["web"]
    assert [row["job"] for row in document["staying"]] == ["agent"]
    everywhere = json.loads(busy.ozy("shed", "--plan", "-o", "json").out)
    assert [each["node"] for each in everywhere] == ["n1", "n2", "n3"]
    missing = busy.ozy("shed", "--plan", "n9")
    assert missing.code == 4 and "n9" in missing.err


def test_a_plan_shows_who_would_have_to_leave(busy: Cluster, tmp_path: Path) -> None:
    """Before it is submitted; and classes of the cluster's own are known to the cluster alone."""
    file = tmp_path / "shop.yaml"
    file.write_bytes(web(3, "3900M", "priority: gold\n").replace(b"name: web", b"name: shop"))
    offline = busy.ozy("validate", str(file))
    assert offline.code == 2 and "known there alone" in offline.err
    body = json.dumps({"priority_classes": {"gold": 500}}).encode()
    assert busy.request("PATCH", "/v1/settings", body).status == 200
    shown = busy.ozy("plan", str(file))
    assert shown.code == 0, shown.err
    assert shown.out.count("displaced by shop (priority 500 > 0), which fits nowhere else") == 3
    assert "It fits: 3 to place, 0 to move, 3 to stop." in shown.out


def test_jobs_are_listed_with_their_priority_once_one_has_any(busy: Cluster) -> None:
    """As a number, also where the file names a class: that is what the job keeps."""
    heads = [busy.ozy("jobs").out.splitlines()[0].split()]
    first = web(1, "64M", "priority: platform-low\n").replace(b"name: web", b"name: first")
    assert busy.request("POST", "/v1/jobs", first).status == 201
    shown = [line.split() for line in busy.ozy("jobs").out.splitlines()]
    heads.append(shown[0])
    assert ["PRIORITY" in head for head in heads] == [False, True]
    assert [row[2] for row in shown if row[0] in ("first", "web")] == ["5000", "0"]
    assert busy.request("GET", "/v1/jobs/default/first").document["priority"] == 5000
