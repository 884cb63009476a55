"""Jobs that must never run twice on a local cluster: `ozy up` starts the guard that they need.

The pod itself writes down when it ran, as lines of the machine's uptime, into a volume that all
nodes of the machine see.
"""

import time

from ozymandias.cluster.state import Processes
from tests.cluster.kit import Cluster, running_cluster, shell, until, web
from tests.cluster.timelines import RECORDER, VOLUME, Run, overlaps, runs


def timeline(cluster: Cluster, job: str) -> list[Run]:
    """When each process of the job ran, by its own account."""
    files = cluster.state_dir.glob(f"shared/**/{job}/**/*.times")
    return runs((file.name, file.read_text()) for file in files)


def is_member(cluster: Cluster, node: str) -> bool:
    """By its own word: it has a session again."""
    answer = cluster.request("GET", "/v1/nodes", node=node)
    return answer.status == 200 and any(
        row["name"] == node and row["state"] == "ready" for row in answer.document["items"]
    )


def test_an_exclusive_job_gets_healthy(cluster: Cluster) -> None:
    """There is a guard on a local cluster; killed, it is started again and harms no pod."""
    cluster.submit(web("one") | {"on_partition": "stop"})
    before = cluster.containers()
    cluster.kill("guard")
    cluster.submit(web("two", instances=2) | {"on_partition": "stop"})
    assert before.items() <= cluster.containers().items()


def test_a_daemon_that_hangs_loses_its_exclusive_pod(cluster: Cluster) -> None:
    """The guard ends the pod with the lease; the replacement begins only after that."""
    job = shell("once", RECORDER, volumes=[VOLUME]) | {"on_partition": "stop"}
    cluster.submit(job)
    node = cluster.row("once-0")["node"]
    until(lambda: timeline(cluster, "once"), say="the first one writes")
    with cluster.hanging(node):
        began = time.monotonic()
        until(lambda: len(timeline(cluster, "once")) > 1, say="the replacement writes")
        away = time.monotonic() - began
    until(lambda: is_member(cluster, node), say=f"{node} is a member again")
    cluster.wait_healthy("once")
    found = timeline(cluster, "once")
    gap = found[1].began - found[0].ended
    print(f"\n  {node} hung: replaced after {away:.1f} s, {gap:.1f} s after the former one's end")
    assert not overlaps(found), found


def test_the_guard_goes_with_its_cluster() -> None:
    """`ozy down` leaves neither its process nor its files."""
    with running_cluster("--nodes=1") as mine:
        mine.submit(web("one") | {"on_partition": "stop"})
        guard, run_dir = mine.process("guard"), mine.local.run_dir
        assert (run_dir / "guard" / "socket").is_socket()
        assert len(str(run_dir / "guard" / "socket")) < 108
        assert "guard" in Processes.load(mine.state_dir).alive()
    assert not guard.is_alive and not run_dir.exists()
