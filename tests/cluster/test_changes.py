"""Changes of running jobs while requests come in: nobody who asks notices."""

import http.client
import threading
from itertools import pairwise
from typing import Any

from tests.cluster.kit import Cluster, Requester, until, web


def test_scaling_under_load_fails_no_request(cluster: Cluster) -> None:
    """From 2 to 5 to 1: every request is answered, the survivors are not touched."""
    cluster.submit(web("load", instances=2))
    before = cluster.containers()
    with Requester(cluster, "load.localhost", threads=4) as requester:
        cluster.text("scale", "load", "5")
        assert before.items() <= cluster.containers().items()
        until(lambda: len(requester.instances) == 5, say="all five are asked")
        cluster.text("scale", "load", "1")
        until(lambda: len(cluster.rows("load")) == 1)
        requester.more()
    assert requester.failures == []
    print(f"{requester.answers} requests while scaling, by instance: {requester.instances}")
    # Two containers a pod: its own and the one that holds the network.
    until(lambda: len(cluster.containers()) == 2)


class Watching:
    """Follows the instances of a job and keeps every different picture."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self._cluster, self._job = cluster, job
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.pictures: list[list[Any]] = []

    def __enter__(self) -> "Watching":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                rows = self._cluster.rows(self._job, node="n2")
            except (OSError, http.client.HTTPException):
                continue
            if not self.pictures or rows != self.pictures[-1]:
                self.pictures.append(rows)


def test_a_change_replaces_one_at_a_time(cluster: Cluster) -> None:
    """Each replacement is healthy before the next begins; no request fails; then all are new."""
    cluster.submit(web("roll", instances=3))
    with (
        Watching(cluster, "roll") as watching,
        Requester(cluster, "roll.localhost", threads=3) as requester,
    ):
        changed = web("roll", instances=3, environment={"MESSAGE": "second"})
        text = cluster.text("submit", cluster.file(changed))
        requester.more()
    assert "version 2" in text
    assert requester.failures == []
    print(f"{requester.answers} requests while rolling, by instance: {requester.instances}")
    for rows in watching.pictures:
        assert sum(row["healthy"] for row in rows) >= 3, rows
        assert sum(row["version"] == 2 and not row["healthy"] for row in rows) <= 1, rows
    fresh = [sum(r["version"] == 2 and r["healthy"] for r in rows) for rows in watching.pictures]
    assert all(after - before <= 1 for before, after in pairwise(fresh)), fresh
    until(lambda: {row["version"] for row in cluster.rows("roll")} == {2})
    assert b"second" in cluster.fetch("roll.localhost").body


def test_a_change_that_never_gets_healthy_leaves_the_old_ones(cluster: Cluster) -> None:
    """One new instance is tried; the old ones serve on; the reason is told; the way back works."""
    job = web("stuck", instances=2)
    cluster.submit(job)
    before = cluster.containers()
    with Requester(cluster, "stuck.localhost") as requester:
        bad = web("stuck", instances=2, environment={"UNHEALTHY": "1"})
        problem = cluster.ozy("submit", cluster.file(bad), "--timeout", "3", code=1)
        assert problem["type"].rpartition("#")[2] in ("deploy-timeout", "deploy-failed")
        rows = cluster.rows("stuck")
        assert sum(row["version"] == 1 and row["healthy"] for row in rows) == 2
        [new] = [row for row in rows if row["version"] == 2]
        assert "404" in new["reason"], new
        assert before.items() <= cluster.containers().items()
        cluster.submit(job)
        until(lambda: len(cluster.rows("stuck")) == 2)
    assert requester.failures == []
    assert all(row["healthy"] for row in cluster.rows("stuck"))


def test_restart_replaces_every_instance(cluster: Cluster) -> None:
    """`ozy restart`: other containers, the same version, no failed request."""
    cluster.submit(web("again", instances=2))
    before = cluster.containers()
    with Requester(cluster, "again.localhost") as requester:
        cluster.text("restart", "again")
    assert requester.failures == []
    until(lambda: not before.keys() & cluster.containers().keys())
    assert {row["version"] for row in cluster.rows("again")} == {1}


def test_the_same_file_again_changes_nothing(cluster: Cluster) -> None:
    """No new version, no touched container."""
    cluster.submit(web("same", instances=2))
    before = cluster.containers()
    again = cluster.submit(web("same", instances=2), node="n3")
    assert (again["version"], again["changed"]) == (1, False)
    assert cluster.containers() == before
