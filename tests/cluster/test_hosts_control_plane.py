"""etcd and daemons fail on their hosts; pods, ingresses and names do not notice.

One cluster of three hosts for all tests, a job with an instance on each, and clients that ask every
ingress all the while. `OZY_LONG=1` has etcd away for two minutes instead of fifteen seconds.
"""

import http.client
import os
import time
from collections.abc import Iterator

import pytest

from tests.cluster.hosts.cluster import HostCluster, running
from tests.cluster.hosts.three import NODES, say
from tests.cluster.hosts.traffic import Traffic
from tests.cluster.kit import until, web

pytestmark = pytest.mark.timeout(300)  # a cluster comes up within the first test
HOST = "web.default.test"
IS_LONG = bool(os.environ.get("OZY_LONG"))
PAUSE_SECONDS = 30.0 if IS_LONG else 12.0  # twice the lease
OUTAGE_SECONDS = 120.0 if IS_LONG else 15.0
REST_SECONDS_MAX = 10.0
KILLS = 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[HostCluster]:
    with running(3) as made:
        made.submit(web("web", instances=3))
        yield made


class Unmoved:
    """`with Unmoved(cluster) as traffic:` nothing may restart, move or fail meanwhile."""

    def __init__(self, cluster: HostCluster) -> None:
        self._cluster = cluster
        self._traffic = Traffic(cluster, HOST)

    def __enter__(self) -> Traffic:
        self._pods, self._placed = self._cluster.pods(), self._cluster.placed("web")
        return self._traffic.__enter__()

    def __exit__(self, *error: object) -> None:
        self._traffic.__exit__()
        say(self._traffic.summary())
        if error[0] is None:
            assert not self._traffic.failures, self._traffic.failures[:5]
            assert self._cluster.pods() == self._pods
            assert self._cluster.placed("web") == self._placed


def can_change(cluster: HostCluster) -> bool:
    """A change is accepted and done: the control plane works."""
    try:
        answer = cluster.request("POST", "/v1/jobs", web("probe"), timeout=5)
    except (OSError, http.client.HTTPException):
        return False
    return answer.status in (200, 201)


def test_the_leader_of_etcd_is_killed(cluster: HostCluster) -> None:
    """Zero restarts, zero moves, zero failed requests; changes go on with the next leader."""
    with Unmoved(cluster) as traffic:
        leader = cluster.leader()
        cluster.kill_program(leader, "etcd")
        killed = time.monotonic()
        until(lambda: can_change(cluster), say="a change")
        say(f"a change is accepted {time.monotonic() - killed:.1f} s after {leader} was killed")
        cluster.stop("probe")
        traffic.more()
        cluster.start(leader, "etcd")
        cluster.wait_ready(*NODES)
        traffic.more()


@pytest.mark.long
def test_the_leader_of_etcd_is_paused(cluster: HostCluster) -> None:
    """It holds its connections and says nothing, for twice the lease: the same."""
    with Unmoved(cluster):
        leader = cluster.leader()
        process = cluster[leader].processes["etcd"]
        process.pause()
        try:
            time.sleep(PAUSE_SECONDS)  # how long is what is tried
        finally:
            process.resume()
        cluster.wait_ready(*NODES)


@pytest.mark.long
def test_the_whole_of_etcd_is_away(cluster: HostCluster) -> None:
    """Pods, ingresses and names go on; the API says 503 with a problem; at rest 10 s after."""
    addresses = sorted(cluster.addresses("web").values())
    with Unmoved(cluster) as traffic:
        for name in NODES:
            assert cluster.resolve("web.default.ozy.internal", at=name) == addresses
        for name in NODES:
            cluster.kill_program(name, "etcd")
        gone = time.monotonic()

        def refused_everywhere() -> bool:
            answers = [cluster.request("POST", "/v1/jobs", web("probe"), node=n) for n in NODES]
            return all(a.status == 503 and "retry-after" in a.headers and a.slug for a in answers)

        until(refused_everywhere, say="503")
        until(lambda: time.monotonic() - gone > OUTAGE_SECONDS, OUTAGE_SECONDS + 5)
        assert refused_everywhere()
        for name in NODES:
            assert cluster.resolve("web.default.ozy.internal", at=name) == addresses
        cluster.start_each("etcd")
        back = time.monotonic()
        cluster.wait_ready(*NODES, seconds=REST_SECONDS_MAX)
        until(lambda: can_change(cluster), back + REST_SECONDS_MAX - time.monotonic(), say="change")
        rest = time.monotonic() - back
        say(f"away for {back - gone:.0f} s; takes changes again {rest:.1f} s after its return")
        cluster.stop("probe")
        traffic.more()


def test_every_daemon_is_killed_ten_times_in_a_row(cluster: HostCluster) -> None:
    """kill -9 under load, again before the last one is well: no restart, no failed request."""
    with Unmoved(cluster) as traffic:
        began = time.monotonic()
        for number in range(KILLS):
            for name in NODES:
                cluster.kill_program(name, "daemon")
                cluster.start(name, "daemon")
            if number % 4 == 3:
                cluster.wait_ready(*NODES)
        cluster.wait_ready(*NODES)
        say(f"{KILLS * len(NODES)} kills in {time.monotonic() - began:.0f} s")
        traffic.more()
