"""Pods of several hosts in one network: by address, by name, through every ingress.

One cluster of three hosts; the tests leave it as they found it, but for the last, which changes
flannel's lease of a host for good.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ozymandias.runtime.flannel import COMMENT
from tests.cluster.hosts import programs
from tests.cluster.hosts.cluster import HostCluster, running
from tests.cluster.hosts.three import NODES, say
from tests.cluster.hosts.traffic import Traffic
from tests.cluster.kit import BUSYBOX, until, web

pytestmark = pytest.mark.timeout(300)  # a cluster comes up within the first test
# A server that tells who asks, and which instance it is.
SCRIPT = r"""
mkdir -p /tmp/web/cgi-bin
printf '#!/bin/sh\necho "Content-Type: text/plain"; echo\necho "$OZY_INSTANCE $REMOTE_ADDR"\n' \
    > /tmp/web/cgi-bin/who
chmod +x /tmp/web/cgi-bin/who
trap 'exit 0' TERM
httpd -f -p 0.0.0.0:8000 -h /tmp/web &
wait
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[HostCluster]:
    started = time.monotonic()
    with running(3) as cluster:
        say(f"a cluster of three hosts is up in {time.monotonic() - started:.1f} s")
        yield cluster


@pytest.fixture
def cluster(shared: HostCluster) -> Iterator[HostCluster]:
    yield shared
    shared.hosts.heal()
    shared.stop(*(row["job"] for row in shared.get("/v1/jobs")["items"]))


def telling(name: str) -> dict[str, Any]:
    """Three instances that tell who asks them."""
    check = {"type": "tcp", "port": 8000, "interval": 0.5}
    more = {"image": BUSYBOX, "command": ["sh", "-c", SCRIPT], "healthcheck": check}
    return web(name, instances=3, **more)


def fetch_all(cluster: HostCluster, instance: str, targets: list[str]) -> list[str]:
    """What a pod gets from each of them."""
    script = "".join(f"timeout 5 wget -qO- http://{t}/cgi-bin/who || echo -; " for t in targets)
    code, out = cluster.run(instance, "sh", "-c", script)
    assert code == 0, out
    return out.splitlines()


def test_every_pod_reaches_every_pod_by_address_and_by_name(cluster: HostCluster) -> None:
    """Three hosts, an instance on each: all pairs, both ways, with their own addresses."""
    began = time.monotonic()
    cluster.submit(telling("who"))
    healthy = time.monotonic() - began
    placed, addresses = cluster.placed("who"), cluster.addresses("who")
    assert sorted(placed.values()) == list(NODES)
    assert len({address.rpartition(".")[0] for address in addresses.values()}) == 3
    instances = sorted(addresses)
    for source in instances:
        expected = [f"{target} {addresses[source]}" for target in instances]
        by_address = [f"{addresses[target]}:8000" for target in instances]
        assert fetch_all(cluster, source, by_address) == expected
        by_name = [f"{target.rpartition('-')[2]}.who:8000" for target in instances]
        assert fetch_all(cluster, source, by_name) == expected
        (answer,) = fetch_all(cluster, source, ["who"])  # port 80 of any of them
        assert answer in expected
    say(f"healthy after {healthy:.1f} s, all pairs after {time.monotonic() - began:.1f} s")


def test_hosts_and_every_ingress_reach_every_pod(cluster: HostCluster) -> None:
    """From each host to each pod, and from a client through each ingress to each instance."""
    cluster.submit(web("web", instances=3))
    for address in cluster.addresses("web").values():
        for name in NODES:
            page = cluster[name].run("busybox", "wget", "-qO-", f"http://{address}:8000/healthz")
            assert page.stdout == "ok\n"
    for name in NODES:
        seen: set[str] = set()
        for _ in range(12):
            answer = cluster.fetch("web.default.test", at=name)
            assert answer.status == 200
            seen.add(answer.body.decode().split("instance: ")[1].split("\n")[0])
        assert seen == {"web-0", "web-1", "web-2"}, f"through {name}: {seen}"
        found = cluster.resolve("web.default.ozy.internal", at=name)
        assert found == sorted(cluster.addresses("web").values())


def test_names_go_on_without_etcd(cluster: HostCluster) -> None:
    """A host cut off from everybody still answers the names that were asked for before."""
    cluster.submit(web("web", instances=3))
    known = cluster.resolve("web.default.ozy.internal", at="n3")
    assert len(known) == 3
    cluster.hosts.partition(cluster["n3"])
    began = time.monotonic()
    time.sleep(6)  # beyond the time for which an answer is believed: that is what is tried
    slowest = 0.0
    for _ in range(5):
        asked = time.monotonic()
        assert cluster.resolve("web.default.ozy.internal", at="n3") == known
        slowest = max(slowest, time.monotonic() - asked)
    assert slowest < 2
    assert cluster["n3"].run("sh", "-c", "curl -s 127.0.0.1:9154/health").stdout == "OK"
    say(f"answered {time.monotonic() - began:.0f} s after the cut, slowest {slowest:.2f} s")
    cluster.hosts.heal()
    cluster.wait_ready(*NODES)


def test_flanneld_is_away_and_returns(cluster: HostCluster) -> None:
    """Traffic between hosts goes on, pods can be made meanwhile, and nothing is restarted."""
    cluster.submit(web("web", instances=3))
    before = cluster.pods()
    with Traffic(cluster, "web.default.test") as traffic:
        for name in NODES:
            cluster.kill_program(name, "flanneld")
        traffic.more()
        cluster.submit(web("later", instances=3))
        cluster.start_each("flanneld")
        traffic.more()
        for name in NODES:
            assert cluster.fetch("later.default.test", at=name).status == 200
    say(traffic.summary())
    assert not traffic.failures
    after = cluster.pods()
    assert all(before[name].items() <= after[name].items() for name in NODES)


def test_the_network_goes_when_a_node_leaves(cluster: HostCluster) -> None:
    """Network and rule are removed, those of others are not, and made again at the next start."""
    n2 = cluster["n2"]
    cluster.stop_program("n2", "daemon")
    n2.run("iptables", "-t", "nat", "-I", "POSTROUTING", "-s", "192.0.2.0/24", "-j", "ACCEPT")
    program = """
import asyncio, pathlib
from ozymandias.runtime.flannel import FlannelNetwork
cluster = pathlib.Path("/var/lib/ozymandias/cluster-id").read_text().strip()
socket = pathlib.Path("/run/podman/podman.sock")
async def leave():
    network = FlannelNetwork(socket=socket, cluster=cluster, name="ozymandias")
    await network.remove()
    await network.remove()
    await network.aclose()
asyncio.run(leave())
"""
    n2.run(sys.executable, "-c", program)
    rules = ("iptables", "-t", "nat", "-S", "POSTROUTING")
    assert COMMENT not in n2.run(*rules).stdout and "192.0.2.0/24" in n2.run(*rules).stdout
    assert n2.podman("network", "ls", "--format={{.Name}}").split() == ["podman"]
    cluster.start("n2", "daemon")
    cluster.wait_ready(*NODES)
    assert n2.run(*rules).stdout.count(COMMENT) == 1
    assert "ozymandias" in n2.podman("network", "ls", "--format={{.Name}}")
    first = n2.run(*rules).stdout.splitlines()[1]
    assert COMMENT in first or "NETAVARK-HOSTPORT" in first


def test_a_changed_lease(cluster: HostCluster) -> None:
    """flannel gives a host another subnet: its pods get addresses there, and are reached again."""
    cluster.submit(telling("who"))
    placed, before = cluster.placed("who"), cluster.addresses("who")
    moved = next(instance for instance, node in placed.items() if node == "n3")
    old = before[moved].rpartition(".")[0]
    n3 = cluster["n3"]
    cluster.kill_program("n3", "flanneld")
    # The lease is given to somebody else, as it is to who asks after a host was away for a day.
    key = f"/coreos.com/network/subnets/{old}.0-24"
    lease = json.loads(n3.run("etcdctl", "get", "--print-value-only", key).stdout)
    lease["PublicIP"] = "10.77.0.99"
    n3.run("etcdctl", "put", key, json.dumps(lease))
    n3.path("/run/flannel/subnet.env").unlink()
    began = time.monotonic()
    cluster.start("n3", "flanneld")

    def address() -> str:
        row = cluster.row(moved)
        return str(row["address"]) if row["healthy"] else ""

    until(lambda: address() not in ("", before[moved]), say="another address")
    subnet = n3.run("cat", "/run/flannel/subnet.env").stdout
    assert f"FLANNEL_SUBNET={address().rpartition('.')[0]}.1/24" in subnet
    cluster.wait_healthy("who")
    say(f"reached by another address after {time.monotonic() - began:.1f} s")
    assert cluster.placed("who") == placed
    addresses = cluster.addresses("who")
    assert {i: a for i, a in addresses.items() if i != moved} == {
        i: a for i, a in before.items() if i != moved
    }
    for source in addresses:
        assert fetch_all(cluster, source, [f"{addresses[moved]}:8000"]) == [
            f"{moved} {addresses[source]}"
        ]
    rules = n3.run("iptables", "-t", "nat", "-S", "POSTROUTING").stdout
    assert rules.count(COMMENT) == 1


def test_without_flanneld_a_node_says_so_and_takes_no_work(cluster: HostCluster) -> None:
    """A host that boots without flanneld is degraded with the reason, until it has a subnet."""
    cluster.crash("n3")
    cluster.hosts.boot(cluster["n3"])
    cluster["n3"].path("/etc/containers/networks/ozymandias.json").unlink()
    cluster.start("n3", *(name for name in programs.NAMES if name != "flanneld"))
    until(lambda: cluster.nodes().get("n3", {}).get("state") == "degraded", say="degraded")
    assert "is flanneld running?" in cluster.nodes()["n3"]["reason"]
    cluster.submit(web("web", instances=2))
    assert "n3" not in cluster.placed("web").values()
    began = time.monotonic()
    cluster.start("n3", "flanneld")
    cluster.wait_ready(*NODES)
    say(f"ready {time.monotonic() - began:.1f} s after flanneld was started")
