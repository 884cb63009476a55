"""Hosts that are cut off for a while and come back, with their pods running all the time.

One cluster of three hosts for all tests; each leaves it whole and without jobs.
"""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.hosts.cluster import HostCluster
from tests.cluster.hosts.three import (
    MOVED_SECONDS_MAX,
    NODES,
    TTL_SECONDS,
    put_right,
    say,
)
from tests.cluster.hosts.traffic import Traffic
from tests.cluster.kit import until, web

pytestmark = pytest.mark.timeout(300)  # a cluster comes up within the first test


@pytest.fixture
def cluster(three_hosts: HostCluster) -> Iterator[HostCluster]:
    yield three_hosts
    put_right(three_hosts, "daemon")


@pytest.mark.long
def test_a_cut_shorter_than_the_lease(cluster: HostCluster) -> None:
    """Nothing moves, nothing restarts, and clients of the other ingresses notice nothing."""
    cluster.submit(web("web", instances=3))
    placed, before = cluster.placed("web"), cluster.pods()
    sessions = {name: cluster[name].log("daemon").read_text().count("session.") for name in NODES}
    with Traffic(cluster, "web.default.test", at=("n1", "n2")) as traffic:
        cluster.hosts.partition(cluster["n3"])
        time.sleep(TTL_SECONDS / 3)  # the length of the cut is what is tried
        cluster.hosts.heal()
        healed = time.monotonic()
        until(lambda: cluster.fetch("web.default.test", at="n3").status == 200, say="n3 serves")
        traffic.more()
    say(f"n3 serves {time.monotonic() - healed:.1f} s after it was healed; {traffic.summary()}")
    assert not traffic.failures, traffic.failures[:5]
    assert cluster.pods() == before and cluster.placed("web") == placed
    for name in NODES:
        assert cluster[name].log("daemon").read_text().count("session.") == sessions[name]


def test_a_cut_longer_than_the_lease(cluster: HostCluster) -> None:
    """What was moved meanwhile is stopped there when it is healed; nothing else is touched."""
    cluster.submit(web("web", instances=3))
    placed, before = cluster.placed("web"), cluster.pods()
    (moved,) = (instance for instance, node in placed.items() if node == "n3")
    with Traffic(cluster, "web.default.test", at=("n1", "n2")) as traffic:
        cut = time.monotonic()
        cluster.hosts.partition(cluster["n3"])
        until(lambda: "n3" not in cluster.placed("web").values(), MOVED_SECONDS_MAX, say="moved")
        cluster.wait_healthy("web")
        took = time.monotonic() - cut
        # Nobody can tell n3 to stop anything while it is alone; its pods and its ingress go on.
        assert cluster.pods("n3")["n3"] == before["n3"]
        page = ("curl", "-sf", "-H", "Host: web.default.test", "http://127.0.0.1:8080/")
        assert f"instance: {moved}" in cluster["n3"].run(*page).stdout
        cluster.hosts.heal()
        healed = time.monotonic()
        cluster.wait_ready(*NODES)
        back = time.monotonic() - healed
        until(lambda: not cluster.pods("n3")["n3"], say="the moved one is stopped")
        stopped = time.monotonic() - healed
        traffic.more()
    say(f"runs elsewhere after {took:.1f} s")
    say(f"healed: member after {back:.1f} s, its pod stopped after {stopped:.1f} s")
    say(traffic.summary())
    assert not traffic.failures, traffic.failures[:5]
    for name in ("n1", "n2"):
        assert before[name].items() <= cluster.pods(name)[name].items()
    assert {i: n for i, n in cluster.placed("web").items() if i != moved} == {
        i: n for i, n in placed.items() if i != moved
    }


def test_what_nobody_had_room_for_goes_on(cluster: HostCluster) -> None:
    """One cut, two jobs: what was moved is stopped on return, what was pending goes on as it ran.

    The same containers, started when they were started before: id and time, by podman's word.
    """
    cluster.submit(web("web", instances=3))
    cluster.submit(web("one-each", instances=3) | {"placement": {"max_per_node": 1}})
    placed, before = cluster.placed("one-each"), cluster.pods()
    (kept,) = (name for name in before["n3"] if "-default-one-each-" in name)
    (moved,) = (name for name in before["n3"] if "-default-web-" in name)
    cluster.hosts.partition(cluster["n3"])
    until(
        lambda: "n3" not in {*cluster.placed("web").values(), *cluster.placed("one-each").values()},
        MOVED_SECONDS_MAX,
        say="n3 is given up",
    )
    cluster.wait_healthy("web")
    assert cluster.pods("n3")["n3"] == before["n3"]
    cluster.hosts.heal()
    healed = time.monotonic()
    cluster.wait_ready(*NODES)
    until(lambda: moved not in cluster.pods("n3")["n3"], say="the moved one is stopped")
    cluster.wait_healthy("one-each")
    say(f"rest {time.monotonic() - healed:.1f} s after it was healed")
    assert cluster.placed("one-each") == placed
    assert cluster.pods("n3")["n3"] == {kept: before["n3"][kept]}
    for name in ("n1", "n2"):
        assert before[name].items() <= cluster.pods(name)[name].items()
    assert "instance.reclaimed" in cluster["n3"].log("daemon").read_text()


def test_what_nobody_moved_is_reclaimed(cluster: HostCluster) -> None:
    """A host is cut off for longer than its lease while no peer is there to give it up.

    Healed, it goes on with its pods as they run, and so do the others when their daemons return.
    """
    cluster.submit(web("web", instances=3))
    placed, before = cluster.placed("web"), cluster.pods()
    for name in ("n1", "n2"):
        cluster.kill_program(name, "daemon")
    cluster.hosts.partition(cluster["n3"])
    log = cluster["n3"].log("daemon")
    lost = log.read_text().count("session.lost")
    until(lambda: log.read_text().count("session.lost") > lost, say="n3 knows that it is alone")
    records = ("etcdctl", "get", "--prefix", "--keys-only", "/ozymandias/v1/nodes/")
    until(lambda: not cluster["n1"].run(*records).stdout.strip(), say="all leases are gone")
    cluster.hosts.heal()
    healed = time.monotonic()
    cluster.wait_ready("n3")
    back = time.monotonic() - healed
    for name in ("n1", "n2"):
        cluster.start(name, "daemon")
    cluster.wait_ready(*NODES)
    cluster.wait_healthy("web")
    say(f"n3 is a member {back:.1f} s after it was healed")
    assert cluster.placed("web") == placed and cluster.pods() == before


@pytest.mark.long
def test_a_cut_between_two_hosts_only(cluster: HostCluster) -> None:
    """Two hosts that do not see each other, while a third sees both: nothing moves or restarts."""
    cluster.submit(web("web", instances=3))
    placed, before = cluster.placed("web"), cluster.pods()
    first, second = sorted(NODES, key=lambda name: name == cluster.leader())[:2]
    cluster.hosts.partition(cluster[first], cluster[second])
    # Beyond the lease: with only one member of etcd in sight, it must be the one that is used.
    time.sleep(TTL_SECONDS + 3)
    assert cluster.placed("web") == placed and cluster.pods() == before
    cluster.hosts.heal()
    cluster.wait_ready(*NODES)
    assert cluster.placed("web") == placed and cluster.pods() == before
