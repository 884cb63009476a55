"""Jobs that must never run twice, on hosts that are cut off, and with their daemon dead there.

What ran when is told by the processes themselves: they write the machine's uptime into a file of
their host, many times a second, and all test hosts share one clock.
"""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.hosts.cluster import HostCluster
from tests.cluster.hosts.three import ELECTION_SECONDS_MAX, NODES, TTL_SECONDS, put_right, say
from tests.cluster.kit import shell, until
from tests.cluster.timelines import RECORDER, VOLUME, Run, overlaps, runs

pytestmark = pytest.mark.timeout(300)  # a cluster comes up within the first test
FENCED_SECONDS_MAX = 2.25 * TTL_SECONDS + 5  # the lease, as much again and a quarter, and a start
SHARED = "/var/lib/ozymandias/shared/default"
JOB = shell("once", RECORDER, volumes=[VOLUME]) | {"on_partition": "stop"}
ORDINARY = shell("kept", RECORDER, volumes=[VOLUME], numInstances=3)


@pytest.fixture
def cluster(three_hosts: HostCluster) -> Iterator[HostCluster]:
    yield three_hosts
    put_right(three_hosts, "guard", "daemon")
    for name in NODES:
        three_hosts[name].run("rm", "-rf", SHARED)


def timeline(cluster: HostCluster, *names: str, job: str = "once") -> list[Run]:
    """When each process of the job ran on these hosts, or on all."""
    return runs(
        (f"{name} {file.name}", file.read_text())
        for name in names or NODES
        for file in cluster[name].path(f"{SHARED}/{job}").glob("**/*.times")
    )


def witness(cluster: HostCluster, victim: str) -> str:
    return next(name for name in NODES if name != victim)


def moved_to(cluster: HostCluster, victim: str) -> str:
    """Where another host now says that it is; "" while it is still with the victim."""
    rows = cluster.rows("once", node=witness(cluster, victim))
    node = next((row["node"] for row in rows), "")
    return "" if node == victim else str(node)


def cut_off(cluster: HostCluster, victim: str) -> Run:
    """A cut until the replacement has run for a while; the run that was ended by it."""
    limit = FENCED_SECONDS_MAX + (ELECTION_SECONDS_MAX if cluster.leader() == victim else 0)
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    cluster.hosts.partition(cluster[victim])
    until(lambda: moved_to(cluster, victim), limit, say="planned elsewhere")
    target = moved_to(cluster, victim)
    until(lambda: timeline(cluster, target), limit, say=f"it runs on {target}")
    found = timeline(cluster)
    (ended,), (fresh,) = timeline(cluster, victim), timeline(cluster, target)
    say(f"{victim} cut off, its pod ended after {ended.ended - began:.1f} s,")
    say(f"on {target} after {fresh.began - began:.1f} s: {fresh.began - ended.ended:.1f} s between")
    assert not overlaps(found), found
    # A leader that is cut off goes on renewing leases for a moment, before it knows.
    assert ended.ended - began < TTL_SECONDS + 1 + ELECTION_SECONDS_MAX
    assert fresh.began - began < limit
    return ended


def healed(cluster: HostCluster, victim: str, ended: Run) -> None:
    """The victim returns: the former one never runs again, the new one is left alone."""
    cluster.hosts.heal()
    since = time.monotonic()
    cluster.wait_ready(*NODES)
    until(lambda: not cluster.pods(victim)[victim], say="nothing is left there")
    cluster.wait_healthy("once")
    say(f"healed: all is well after {time.monotonic() - since:.1f} s")
    found = timeline(cluster)
    assert not overlaps(found), found
    assert timeline(cluster, victim) == [ended], "it ran once more"
    assert len(found) == 2, found


def start(cluster: HostCluster) -> str:
    """The job runs and writes; the host it is on."""
    cluster.submit(JOB)
    victim = cluster.placed("once")["once-0"]
    until(lambda: timeline(cluster, victim), say="it writes")
    return victim


def test_a_host_cut_off_for_longer_than_its_lease(cluster: HostCluster) -> None:
    """Its exclusive pod ends with the lease, before the replacement begins elsewhere.

    An ordinary job beside it does run twice by the same measure, or that would measure nothing.
    """
    victim = start(cluster)
    cluster.submit(ORDINARY)
    until(lambda: timeline(cluster, victim, job="kept"), say="the ordinary one writes")
    ended = cut_off(cluster, victim)
    (kept,) = timeline(cluster, victim, job="kept")
    others = [name for name in NODES if name != victim]
    replaced = timeline(cluster, *others, job="kept")[-1]
    assert overlaps([kept, replaced]) and kept.began < replaced.began - TTL_SECONDS / 2
    assert len(timeline(cluster, job="kept")) == 4
    healed(cluster, victim, ended)


def test_a_host_cut_off_whose_daemon_is_killed(cluster: HostCluster) -> None:
    """kill -9 of the daemon right at the cut: the guard alone ends the pod in time."""
    victim = start(cluster)
    cluster.kill_program(victim, "daemon")
    ended = cut_off(cluster, victim)
    assert not cluster[victim].processes["daemon"].is_running
    cluster.start(victim, "daemon")
    healed(cluster, victim, ended)


@pytest.mark.long
def test_a_daemon_that_comes_back_while_cut_off(cluster: HostCluster) -> None:
    """A new daemon that never reached etcd starts nothing, whatever it finds on its host."""
    victim = start(cluster)
    cluster.hosts.partition(cluster[victim])
    cluster.kill_program(victim, "daemon")
    cluster.start(victim, "daemon")
    ended = cut_off(cluster, victim)
    healed(cluster, victim, ended)


def test_a_cut_shorter_than_the_lease(cluster: HostCluster) -> None:
    """It runs on as if nothing had been."""
    victim = start(cluster)
    cluster.hosts.partition(cluster[victim])
    time.sleep(TTL_SECONDS / 3)  # the length of the cut is what is tried
    cluster.hosts.heal()
    cluster.wait_ready(*NODES)
    (before,) = timeline(cluster)
    until(lambda: timeline(cluster)[0].lines > before.lines + 10, say="it writes on")
    assert len(timeline(cluster)) == 1
    assert cluster.placed("once") == {"once-0": victim}


def test_without_a_guard_nothing_exclusive_runs(cluster: HostCluster) -> None:
    """The instance waits and says why; with a guard it starts."""
    for name in NODES:
        cluster.kill_program(name, "guard")
    cluster.submit(JOB, wait=False)
    until(lambda: "guard" in cluster.row("once-0").get("reason", ""), say="the reason is told")
    assert not timeline(cluster)
    for name in NODES:
        cluster.start(name, "guard")
    cluster.wait_healthy("once")
