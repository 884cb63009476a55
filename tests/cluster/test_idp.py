"""The platform of `jobspecs/idp/` on a running cluster, at a quarter of its size.

Real daemons, real etcd, real pods: the apps worker loses its power, what matters runs on the other
one, and when it is back the platform is as before.
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

pytestmark = pytest.mark.timeout(240)


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


def places(cluster: Cluster) -> dict[str, str]:
    """Job -> role of the node where it is healthy, of the services."""
    rows = cluster.get("/v1/instances?namespace=platform&limit=100")["items"]
    return {
        row["job"]: ROLES[row["node"]]
        for row in rows
        if row["healthy"] and row["job"] in SERVICES and row["node"]
    }


def is_normal(cluster: Cluster) -> bool:
    """All run, Prometheus and Loki on different workers."""
    there = places(cluster)
    return there.keys() == SERVICES.keys() and there["prometheus"] != there["loki"]


def test_the_platform_loses_a_worker_and_gets_it_back() -> None:
    """Argo CD runs throughout the loss, the least important wait, and few move afterwards."""
    began = time.monotonic()
    with running_cluster("--memory=1G") as cluster:
        for node, role in ROLES.items():
            cluster.ozy("node", "label", node, f"role={role}")
        for job in scaled():
            cluster.submit(job, wait=False)
        until(lambda: is_normal(cluster), 90, say="all of it runs")
        print(f"all of it runs after {time.monotonic() - began:.0f} s")

        cluster.ozy("node", "kill", "n3")
        important = {name for name, priority in SERVICES.items() if priority >= 8000}
        alone: dict[str, str] = {}

        def is_over() -> bool:
            alone.clear()
            alone.update(places(cluster))  # one look: another one may be before the loss
            return alone.keys() >= important and "apps" not in alone.values()

        until(is_over, 60, say="the important ones run on one worker")
        assert alone.keys() >= ARGO_CD
        assert alone.keys() & {"prometheus", "loki"}
        left = SERVICES.keys() - alone.keys()
        assert left
        assert max(SERVICES[job] for job in left) < min(SERVICES[job] for job in important)
        print(f"the important ones run on one worker after {time.monotonic() - began:.0f} s")

        cluster.ozy("node", "start", "n3")
        until(lambda: places(cluster).keys() == SERVICES.keys(), 60, say="all of it runs again")
        before = places(cluster)
        # By itself it would wait until all have been healthy for a minute.
        cluster.ozy("rebalance", "--max-moves", "20", "--timeout", "90")
        until(lambda: is_normal(cluster), 60, say="all of it is apart again")
        there = places(cluster)
        moved = [job for job in there if there[job] != before[job]]
        assert len(moved) <= MOVES_MAX, moved
        print(f"as before after {time.monotonic() - began:.0f} s; moved: {', '.join(moved)}")
