"""What tests of three hosts have in common: names, times, and putting the hosts right again.

The hosts themselves are the fixture `three_hosts`: one cluster for a module of tests.
"""

from tests.cluster.hosts.cluster import HostCluster

NODES = ("n1", "n2", "n3")
TTL_SECONDS = 6.0  # of the nodes' leases
MOVED_SECONDS_MAX = TTL_SECONDS + 5  # also when etcd's leader goes with the host
ELECTION_SECONDS_MAX = 2.5  # of that, when it does: every lease begins anew with the next leader


def say(text: str) -> None:
    print(f"\n  {text}")


def revive(cluster: HostCluster, *programs: str) -> None:
    """Start those of these programs that a test left dead."""
    for name in NODES:
        for program in programs:
            if not cluster[name].processes[program].is_running:
                cluster.start(name, program)


def put_right(cluster: HostCluster, *programs: str) -> None:
    """Cables and these programs as they were, all nodes ready, no jobs."""
    cluster.hosts.heal()
    revive(cluster, *programs)
    cluster.wait_ready(*NODES)
    cluster.stop(*(row["job"] for row in cluster.get("/v1/jobs")["items"]))
