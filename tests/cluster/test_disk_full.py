"""A full disk below the cluster's state: a clear reason, nobody dies, and it passes."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.kit import Cluster, Requester, until, web

SIZE = "160M"  # etcd's write-ahead log takes 64M at once, and the next one too


@contextmanager
def small_disk() -> Iterator[Path]:
    """A directory on a file system of its own."""
    with tempfile.TemporaryDirectory(prefix="ozy-test-") as directory:
        options = ["-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", directory]
        subprocess.run(["mount", *options], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


def fill(file: Path) -> None:
    """Until nothing more can be written."""
    with file.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"\0" * 2**16)
        except OSError:
            pass


def is_healthy(cluster: Cluster, job: str) -> bool:
    answer = cluster.request("GET", f"/v1/jobs/default/{job}")
    return answer.status == 200 and answer.document["state"] == "healthy"


def test_a_full_disk() -> None:
    """Volumes can't be made and the pod says so; what runs runs on; with room it starts."""
    with small_disk() as disk:
        mine = Cluster(directory=disk)
        try:
            mine.up("--nodes=1")
            mine.submit(web("steady", instances=2))
            before = mine.containers()
            ballast = disk / "ballast"
            with Requester(mine, "steady.localhost") as requester:
                fill(ballast)
                assert os.statvfs(disk).f_bavail < 16
                job = web("late", volumes=[{"path": "/data", "space": "8M"}])
                mine.submit(job, wait=False)
                until(lambda: "No space left" in mine.row("late-0").get("reason", ""))
                print(f"disk full: {mine.row('late-0')['reason']}")
                requester.more()
                ballast.unlink()
                # etcd may have ended for want of room: it is started again, the node joins anew.
                until(lambda: is_healthy(mine, "late"), 60)
            assert requester.failures == []
            assert before.items() <= mine.containers().items()
            assert not mine.tracebacks()
        finally:
            mine.down()
