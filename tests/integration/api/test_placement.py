"""Where jobs go by their rules, through `ozy` and the API: neighbours, pools, processors."""

from pathlib import Path
from typing import Any

from tests.integration.api.rig import Cluster, until


def job(name: str, extra: str = "", count: int = 1, container: str = "") -> bytes:
    return (
        f"name: {name}\nnumInstances: {count}\n{extra}containers:\n  app:\n    image: demo\n"
        f"    memory: 64M\n    ports: ['80:8000']\n{container}"
    ).encode()


def places(cluster: Cluster, name: str, namespace: str = "default") -> list[str]:
    """Nodes with a healthy instance."""
    found: Any = cluster.request("GET", f"/v1/jobs/{namespace}/{name}").document
    return sorted(i["node"] for i in found["instances"] if i["healthy"])


def test_neighbours(own_cluster: Cluster, tmp_path: Path) -> None:
    """Near an unknown job is refused by name; near and apart are kept once it is there."""
    file = tmp_path / "api.yaml"
    file.write_bytes(job("api", "placement: {near: cache}\n", 2))
    refused = own_cluster.ozy("submit", str(file))
    assert refused.code == 4
    assert "api is to be near cache, and there is no such job." in refused.err
    for body in (job("cache"), file.read_bytes(), job("batch", "placement: {apart: cache}\n", 2)):
        assert own_cluster.request("POST", "/v1/jobs", body).status == 201
    until(lambda: len(places(own_cluster, "api")) == len(places(own_cluster, "batch")) == 2, 20)
    (home,) = places(own_cluster, "cache")
    assert places(own_cluster, "api") == [home, home]
    assert home not in places(own_cluster, "batch")
    shy = own_cluster.request("POST", "/v1/jobs", job("cache2", "placement: {near: batch}\n"))
    assert shy.status == 201
    both = job("odd", "placement: {near: cache, apart: cache}\n")
    wrong = own_cluster.request("POST", "/v1/jobs", both)
    assert wrong.document["errors"][0]["detail"] == "odd can't be both near cache and apart from it"


def test_a_namespace_with_nodes_of_its_own(own_cluster: Cluster) -> None:
    """A pool keeps jobs to its nodes, and a job that contradicts it is told which of both."""
    assert own_cluster.ozy("node", "label", "n2", "role=dev").code == 0
    settled = own_cluster.ozy("settings", "set", "--pool", "dev=role == dev")
    assert settled.code == 0, settled.err
    mine = job("web", "namespace: dev\n", 3)
    assert own_cluster.request("POST", "/v1/jobs", mine).status == 201
    until(lambda: places(own_cluster, "web", "dev") == ["n2", "n2", "n2"], 20)
    other = job("odd", "namespace: dev\nplacement: {require: [role == prod]}\n")
    refused = own_cluster.request("POST", "/v1/jobs", other)
    assert refused.document["type"].endswith("#no-matching-node")
    assert "role == prod and role == dev can't both hold" in refused.document["detail"]


def test_processors_are_shared_out(own_cluster: Cluster) -> None:
    """Cores count like memory: what is set aside is shown, and too many are refused."""
    assert "CPU" not in own_cluster.ozy("nodes").out  # nobody asked for any
    body = job("encode", "", 3, "    cpu: 2.5\n")
    assert own_cluster.request("POST", "/v1/jobs", body).status == 201
    rows = own_cluster.request("GET", "/v1/nodes").document["items"]
    assert {r["cpu_millis"]["allocated"] for r in rows} == {2500}
    header, *lines = own_cluster.ozy("nodes").out.splitlines()
    at = header.index("CPU")
    assert [line[at:].split("  ")[0] for line in lines] == ["2.5 of 4"] * 3
    refused = own_cluster.request("POST", "/v1/jobs", job("more", "", 1, "    cpu: 2\n"))
    assert refused.document["type"].endswith("#insufficient-cpu")
    assert refused.document["detail"] == "Job requires 2 cores but only 0 cores can be allocated."


def test_what_is_preferred_in_vain_is_told(own_cluster: Cluster) -> None:
    """By plan and submit, as text and as a document; the job is placed all the same."""
    assert own_cluster.ozy("node", "label", "n1", "zone=a").code == 0
    path = own_cluster.job("web", placement={"spread": "zoen", "prefer": ["zone == b"]})
    spread = "no node has a label zoen, so spread has nothing to spread over; there is: zone"
    notes = [spread, "no node has zone == b, so to prefer it changes nothing"]
    planned = own_cluster.ozy("plan", path)
    assert planned.code == 0 and "It fits: 1 to place" in planned.out
    assert all(f"  note: {note}\n" in planned.out for note in notes)
    assert own_cluster.ozy("plan", path, "-o", "json").document["notes"] == notes
    submitted = own_cluster.ozy("submit", path)
    assert submitted.code == 0 and f"  note: {spread}\n" in submitted.out
    again = own_cluster.ozy("submit", path, "-o", "json")
    assert f"  note: {spread}\n" in again.err and again.document["state"] == "healthy"
    large = own_cluster.job("big", placement={"spread": "zoen"}, container={"memory": "64G"})
    refused = own_cluster.ozy("plan", large, "-o", "json")
    assert refused.code == 3 and refused.document["notes"] == [spread]
