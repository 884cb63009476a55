"""A cluster whose DNS and ingress are jobs of its own: `jobspecs/system/` on real hosts.

Neither CoreDNS nor the ingress is started beside the daemon; images are made on the hosts, and the
project's own job files are submitted with them. One cluster for all tests, in order.
"""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.hosts import programs, system_images
from tests.cluster.hosts.cluster import HostCluster, running
from tests.cluster.hosts.host import Host
from tests.cluster.hosts.hosts import each
from tests.cluster.hosts.three import NODES, say
from tests.cluster.hosts.traffic import Traffic
from tests.cluster.kit import until, web

# A cluster comes up within the first test.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
JOBSPECS = Path(__file__).resolve().parents[2] / "jobspecs" / "system"
READY_SECONDS_MAX = 90.0
RETURN_SECONDS_MAX = 40.0


def make_images(host: Host) -> None:
    system_images.import_coredns(host, host.path("/etc/ozymandias/Corefile").read_text())
    system_images.import_project(host, host.path(programs.TOML).read_text())


def job(name: str, image: str, **container: Any) -> dict[str, Any]:
    """The project's own job file, with an image that is here."""
    found: dict[str, Any] = yaml.safe_load((JOBSPECS / f"{name}.yaml").read_text())
    (only,) = found["containers"].values()
    container["environment"] = only.get("environment", {}) | container.get("environment", {})
    only.update({"image": image, "pull_policy": "never"} | container)
    only["healthcheck"]["interval"] = 0.5
    return found


def coredns() -> dict[str, Any]:
    return job("coredns", system_images.COREDNS)


def ingress(**container: Any) -> dict[str, Any]:
    """On the port that clients of test hosts ask."""
    port = programs.INGRESS_PORT
    return job(
        "ingress",
        system_images.PROJECT,
        environment={"OZY_INGRESS_LISTEN": f"0.0.0.0:{port}"},
        ports=[str(port), "8081"],
        **container,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[HostCluster]:
    allowed = {"allow_host_network": True}
    with running(3, {"node": {**allowed}}, without=("coredns", "ingress")) as cluster:
        began = time.monotonic()
        each(cluster.hosts, make_images)
        say(f"images made on three hosts in {time.monotonic() - began:.1f} s")
        yield cluster


def places(cluster: HostCluster, name: str) -> list[str]:
    """Where healthy instances of a system job are."""
    rows = cluster.rows(name, namespace="system")
    return sorted(row["node"] for row in rows if row["healthy"])


def serves(cluster: HostCluster, name: str) -> bool:
    """The host's own DNS and ingress answer."""
    try:
        answer = cluster.fetch("web.default.test", at=name)
        return bool(cluster.resolve("web.default.ozy.internal", at=name)) and answer.status == 200
    except OSError:
        return False


def wait_everywhere(cluster: HostCluster) -> None:
    until(
        lambda: all(places(cluster, name) == list(NODES) for name in ("coredns", "ingress")),
        READY_SECONDS_MAX,
        say="DNS and ingress are healthy on every host",
    )


def wait_serving(cluster: HostCluster, name: str) -> None:
    until(lambda: serves(cluster, name), RETURN_SECONDS_MAX, say=f"{name} serves")


def test_dns_and_ingress_as_jobs(cluster: HostCluster) -> None:
    """One of each on every host: pods find each other by name, and clients find pods."""
    began = time.monotonic()
    for document in (coredns(), ingress()):
        cluster.submit(document, wait=False)
    wait_everywhere(cluster)
    ready = time.monotonic() - began
    cluster.submit(web("web", instances=3))
    for name in NODES:
        assert "coredns" not in cluster[name].processes
        assert "ingress" not in cluster[name].processes
        wait_serving(cluster, name)
        assert len(cluster.resolve("web.default.ozy.internal", at=name)) == 3
    for instance in cluster.placed("web"):
        code, text = cluster.run(instance, "wget", "-qO-", "http://web.default.ozy.internal:8000/")
        assert code == 0 and "instance: web-" in text, text
    say(f"DNS and ingress healthy on three hosts {ready:.1f} s after they were submitted")


def test_a_new_ingress_goes_from_host_to_host(cluster: HostCluster) -> None:
    """A change replaces one at a time: no moment without an ingress that answers."""
    before = cluster.pods()
    with Traffic(cluster, "web.default.test") as traffic:
        cluster.submit(ingress(memory="200M"), wait=False)
        began = time.monotonic()
        until(
            lambda: (
                {row["version"] for row in cluster.rows("ingress", namespace="system")} == {2}
                and places(cluster, "ingress") == list(NODES)
            ),
            READY_SECONDS_MAX,
            say="the new version is everywhere",
        )
        took = time.monotonic() - began
        traffic.more()
    down = {failure.ingress: failure.text[:60] for failure in traffic.failures}
    say(f"replaced in {took:.1f} s; {traffic.summary()}; {down}")
    times = sorted((f.began, f.ingress) for f in traffic.failures)
    spans = {name: [t for t, ingress in times if ingress == name] for name in {i for _, i in times}}
    ordered = sorted(spans.values())
    assert all(one[-1] < other[0] for one, other in itertools.pairwise(ordered)), (
        "two hosts were without an ingress at the same time"
    )
    for name, containers in before.items():
        kept = {c: when for c, when in containers.items() if "ingress" not in c}
        assert kept.items() <= cluster.pods(name)[name].items(), "others restarted"


def test_a_host_that_boots_gets_its_own_back(cluster: HostCluster) -> None:
    """After a power cut DNS and ingress return to that very host, and to no other meanwhile."""
    cluster.crash("n3")
    until(lambda: cluster.nodes()["n3"]["state"] != "ready", say="n3 is lost")
    until(lambda: "n3" not in cluster.placed("web").values(), say="web moved")
    assert places(cluster, "ingress") == ["n1", "n2"]
    began = time.monotonic()
    cluster.boot("n3")
    cluster.wait_ready(*NODES)
    wait_serving(cluster, "n3")
    say(f"n3 serves {time.monotonic() - began:.1f} s after power came back")
    wait_everywhere(cluster)
