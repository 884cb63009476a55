"""Hosts that are taken out of service on purpose, while clients ask all the time.

One cluster of three hosts for all tests; each leaves it whole and without jobs.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.hosts.cluster import SOCKET, HostCluster
from tests.cluster.hosts.host import Host
from tests.cluster.hosts.three import NODES, put_right, revive, say
from tests.cluster.hosts.traffic import Traffic
from tests.cluster.kit import until, web

pytestmark = pytest.mark.timeout(300)  # a cluster comes up within the first test
DRAIN_SECONDS_MAX = 40.0
EXIT_BLOCKED = 3


@pytest.fixture
def cluster(three_hosts: HostCluster) -> Iterator[HostCluster]:
    yield three_hosts
    revive(three_hosts, "daemon")
    for name in NODES:
        assert ozy(three_hosts, "node", "undrain", name)[0] == 0
    put_right(three_hosts)


def ozy(cluster: HostCluster, *words: str, at: str = "n1") -> tuple[int, Any]:
    """The exit code and the document of `ozy`, typed on a host."""
    command = ("env", f"OZY_API=unix://{SOCKET}", "ozy", *words, "-o", "json")
    done = cluster[at].run(*command, check=False, seconds=2 * DRAIN_SECONDS_MAX)
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_drain_under_load(cluster: HostCluster) -> None:
    """Not one request fails at any ingress, on the host that is emptied neither."""
    cluster.submit(web("web", instances=3))
    cluster.submit(web("single", instances=1))
    victim = cluster.placed("single")["single-0"]
    before = cluster.pods()
    with (
        Traffic(cluster, "web.default.test") as traffic,
        Traffic(cluster, "single.default.test") as single,
    ):
        code, found = ozy(cluster, "node", "drain", victim, "--dry-run")
        assert code == 0 and not found["blockers"]
        assert {mover["instance"] for mover in found["movers"]} >= {"single-0"}
        assert victim not in {mover["to"] for mover in found["movers"]}
        assert cluster.pods() == before, "a dry run moved something"
        began = time.monotonic()
        code, found = ozy(cluster, "node", "drain", victim)
        took = time.monotonic() - began
        assert code == 0, found
        assert victim not in {*cluster.placed("web").values(), *cluster.placed("single").values()}
        until(lambda: not cluster.pods(victim)[victim], say="no pod is left")
        traffic.more()
        single.more()
    say(f"{victim} drained in {took:.1f} s")
    say(f"job with three instances: {traffic.summary()}")
    say(f"job with one instance: {single.summary()}")
    assert not traffic.failures, traffic.failures[:5]
    assert not single.failures, single.failures[:5]
    assert took < DRAIN_SECONDS_MAX
    for name in NODES:
        if name != victim:
            assert before[name].items() <= cluster.pods(name)[name].items(), "others restarted"


@pytest.mark.long
def test_a_drain_goes_on_when_daemons_die(cluster: HostCluster) -> None:
    """kill -9 of every daemon while a host is being emptied: done all the same, no error."""
    cluster.submit(web("web", instances=6))
    with Traffic(cluster, "web.default.test") as traffic:
        code, _ = ozy(cluster, "node", "drain", "n2", "--detach")
        assert code == 0
        for name in NODES:
            cluster.kill_program(name, "daemon")
            cluster.start(name, "daemon")
        cluster.wait_ready("n1", "n3")
        until(lambda: "n2" not in cluster.placed("web").values(), DRAIN_SECONDS_MAX, say="left")
        until(lambda: not cluster.pods("n2")["n2"], say="no pod is left")
        cluster.wait_healthy("web")
        traffic.more()
    say(traffic.summary())
    assert not traffic.failures, traffic.failures[:5]


def test_a_drain_without_room(cluster: HostCluster) -> None:
    """It is said with the numbers, with exit code 3, before anything is stopped."""
    cluster.submit(web("big", instances=3, memory="700M"))
    placed, before = cluster.placed("big"), cluster.pods()
    (there,) = (instance for instance, node in placed.items() if node == "n2")
    with Traffic(cluster, "big.default.test") as traffic:
        for words in (("--dry-run",), ()):
            code, found = ozy(cluster, "node", "drain", "n2", *words)
            assert code == EXIT_BLOCKED, found
            (blocker,) = found["blockers"]
            assert blocker["instance"] == there and "700M" in blocker["reason"], blocker
            assert "n1" in blocker["reason"] and "n3" in blocker["reason"]
        say(blocker["reason"])
        traffic.more()
    assert cluster.get("/v1/nodes/n2")["drain"] is None
    assert cluster.placed("big") == placed and cluster.pods() == before
    assert not traffic.failures, traffic.failures[:5]


@contextmanager
def short_of_memory(host: Host) -> Iterator[None]:
    """Its kernel tells of two percent that are available meanwhile, and of no stalls."""
    facts = host.path("/proc/meminfo").read_text()
    found = re.search(r"MemTotal: +(\d+)", facts)
    assert found
    few = f"MemAvailable: {int(found[1]) // 50} kB"
    host.write("/run/meminfo", re.sub(r"MemAvailable:.*", few, facts))
    host.run("mount", "--bind", "/run/meminfo", "/proc/meminfo")
    try:
        yield
    finally:
        host.run("umount", "/proc/meminfo")


def test_a_host_short_of_memory_is_relieved(cluster: HostCluster) -> None:
    """The least important leaves first, replaced before it goes; the others stay where they are."""
    assert ozy(cluster, "node", "label", "n2", "role=apps")[0] == 0
    for name, rank in (("high", 100), ("low", 1)):
        liking = {"placement": {"prefer": ["role == apps"]}, "priority": rank}
        cluster.submit(web(name) | liking)
        assert cluster.placed(name) == {f"{name}-0": "n2"}
    before = cluster.pods("n2")["n2"]
    with Traffic(cluster, "low.default.test") as traffic:
        with short_of_memory(cluster["n2"]):
            until(lambda: cluster.get("/v1/nodes/n2")["state"] == "tainted", 60, say="tainted")
            _, plan = ozy(cluster, "shed", "--plan", "n2")
            assert plan["pressure"].startswith("memory pressure: 2 % of"), plan
            assert [row["instance"] for row in plan["leaving"]] == ["low-0", "high-0"]
            until(lambda: "n2" not in cluster.placed("low").values(), 120, say="low has left")
        cluster.wait_healthy("low")
        traffic.more()
    (left,) = cluster.placed("low")
    say(f"{plan['pressure']}; {left} is on {cluster.placed('low')[left]}; {traffic.summary()}")
    assert cluster.placed("high") == {"high-0": "n2"}
    kept = {pod: made for pod, made in before.items() if "high" in pod}
    assert kept and kept.items() <= cluster.pods("n2")["n2"].items()
    assert not traffic.failures, traffic.failures[:5]
    # A daemon that begins anew has measured nothing before; a host that was short waits a minute.
    cluster.kill_program("n2", "daemon")
    assert ozy(cluster, "node", "label", "n2", "role-")[0] == 0
