"""The platform of `jobspecs/idp/` on a running cluster, at a quarter of its size.

Real daemons, real etcd, real pods: one worker after the other loses its power, what matters runs on
the one that is left, and when it is back the platform is as before.
"""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.kit import Cluster, running_cluster, until

FILES = sorted((Path(__file__).parents[2] / "jobspecs" / "idp").glob("*.yaml"))
SCALE = 4
ROLES = {"n1": "control", "n2": "infra", "n3": "apps"}
MEBIBYTES = {"G": 1024, "M": 1}
PRIORITIES = {
    "platform-critical": 10000,
    "platform-infrastructure": 9000,
    "platform-observability": 8000,
    "platform-security": 7000,
    "platform-cicd": 6000,
    "platform-low": 5000,
}
MOVES_MAX = 7  # of 16 services
AGAIN_SECONDS_MAX = 45.0  # the lease, its detection, and a start beside many others

pytestmark = pytest.mark.timeout(360)


def scaled() -> list[dict[str, Any]]:
    """The job files with a quarter of the memory, system jobs and important ones first."""
    jobs = [yaml.safe_load(file.read_text()) for file in FILES]
    for job in jobs:
        for container in job["containers"].values():
            number, unit = int(container["memory"][:-1]), container["memory"][-1]
            container["memory"] = f"{number * MEBIBYTES[unit] * 1024 // SCALE}K"
            container["healthcheck"]["interval"] = 1
            container["stop_grace_period"] = 1
    return sorted(jobs, key=lambda j: ("type" not in j, -PRIORITIES[j["priority"]], j["name"]))


SERVICES = {j["name"]: PRIORITIES[j["priority"]] for j in scaled() if "type" not in j}
ARGO_CD = {name for name in SERVICES if name.startswith("argocd")}
IMPORTANT = {name for name, priority in SERVICES.items() if priority >= 8000} | ARGO_CD
CONTROL = {"vault", "cert-manager", "external-secrets"}


def places(cluster: Cluster) -> dict[str, str]:
    """Job -> role of the node where it is healthy, of the services."""
    rows = cluster.get("/v1/instances?namespace=platform&limit=100")["items"]
    return {
        row["job"]: ROLES[row["node"]]
        for row in rows
        if row["healthy"] and row["job"] in SERVICES and row["node"]
    }


def is_normal(cluster: Cluster) -> bool:
    """All run; Prometheus and Loki are on different workers, and what prefers control is there."""
    there = places(cluster)
    return (
        there.keys() == SERVICES.keys()
        and {there["prometheus"], there["loki"]} == {"infra", "apps"}
        and {there[job] for job in CONTROL} == {"control"}
    )


def moves(cluster: Cluster) -> list[str]:
    """Every move that the events tell of, also of what moved twice."""
    told = [e for e in cluster.events() if e["reason"].startswith("moved from ")]
    return [f"{e['job']} {e['reason']}" for e in told if e["kind"] == "instance.stopping"]


def lose(cluster: Cluster, node: str) -> None:
    """What is important runs on the worker that is left, and nobody waits for who matters less."""
    before, began = places(cluster), time.monotonic()
    safe = {job for job in ARGO_CD if before[job] != ROLES[node]}
    cluster.ozy("node", "kill", node)
    alone: dict[str, str] = {}
    argo_cd_after = 0.0

    def is_over() -> bool:
        nonlocal argo_cd_after
        there = {job: role for job, role in places(cluster).items() if role != ROLES[node]}
        assert there.keys() >= safe, "Argo CD is not touched where it was not lost"
        if there.keys() >= ARGO_CD and not argo_cd_after:
            argo_cd_after = time.monotonic() - began
        alone.clear()
        alone.update(there)
        return there.keys() >= IMPORTANT

    until(is_over, 60, say="the important ones run on one worker")
    assert argo_cd_after <= AGAIN_SECONDS_MAX
    assert alone.keys() & {"prometheus", "loki"}
    left = SERVICES.keys() - alone.keys()
    served = [SERVICES[job] for job, role in alone.items() if role != "control"]
    assert left
    assert max(SERVICES[job] for job in left) < min(served), (left, alone)
    print(f"{node} lost: Argo CD runs after {argo_cd_after:.0f} s; waiting: {', '.join(left)}")


def bring_back(cluster: Cluster, node: str) -> None:
    """The nice distribution is there again, and few had to move for it."""
    before = len(moves(cluster))
    cluster.ozy("node", "start", node)
    until(lambda: places(cluster).keys() == SERVICES.keys(), 60, say="all of it runs again")
    # By itself it would wait until all have been healthy for a minute.
    cluster.ozy("rebalance", "--max-moves", "20", "--timeout", "90")
    until(lambda: is_normal(cluster), 60, say="all of it is where it would be")
    until(lambda: not cluster.get("/v1/drift")["items"], 20, say="nobody does without anything")
    moved = moves(cluster)[before:]
    print(f"{node} is back: {len(moved)} moves: {', '.join(m[:40] for m in moved)}")
    assert len(moved) <= MOVES_MAX, moved


def test_the_platform_loses_either_worker_and_gets_it_back() -> None:
    """Argo CD runs, the least important wait, and few move afterwards."""
    began = time.monotonic()
    with running_cluster("--memory=1G") as cluster:
        for node, role in ROLES.items():
            cluster.ozy("node", "label", node, f"role={role}")
        for job in scaled():
            cluster.submit(job, wait=False)
        until(lambda: is_normal(cluster), 90, say="all of it runs")
        print(f"all of it runs after {time.monotonic() - began:.0f} s")
        for node in ("n2", "n3"):
            lose(cluster, node)
            bring_back(cluster, node)
            print(f"as before after {time.monotonic() - began:.0f} s")
