"""A full disk below a node, or below the whole cluster: what runs runs on, and it passes.

Below the node alone the control plane is well, so that the reason can be asked for. Below the whole
cluster etcd has no room either: it may go on or end, at once or later, and the API with it; what
it says meanwhile is its own business, that nobody else notices is ours.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ozymandias.cluster.state import Processes
from tests.cluster.kit import Cluster, Requester, running_cluster, until, web

pytestmark = pytest.mark.timeout(240)
LATE = web("late", volumes=[{"path": "/data", "space": "8M"}])


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A directory on a file system of its own."""
    with tempfile.TemporaryDirectory(prefix="ozy-test-") as directory:
        options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory]
        subprocess.run(["mount", *options], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def moved(directory: Path, disk: Path) -> Iterator[None]:
    """What is in the directory lies on the other disk meanwhile."""
    shutil.copytree(directory, disk, dirs_exist_ok=True)
    subprocess.run(["mount", "--bind", disk, directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Nothing more can be written there meanwhile."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"\0" * 2**16)
        except OSError:
            pass
    assert os.statvfs(disk).f_bavail < 16
    try:
        yield
    finally:
        ballast.unlink()


def status(cluster: Cluster, method: str, path: str, body: Any = None) -> int:
    """Of the API's answer; 0 while its daemon is being started anew."""
    try:
        return cluster.request(method, path, body).status
    except OSError:
        return 0


def is_healthy(cluster: Cluster, job: str) -> bool:
    try:
        answer = cluster.request("GET", f"/v1/jobs/default/{job}")
    except OSError:
        return False
    return answer.status == 200 and answer.document["state"] == "healthy"


def test_a_full_disk_below_a_node() -> None:
    """Volumes can't be made and the pod says so; what runs runs on; with room it starts."""
    with small_disk("32M") as disk, running_cluster("--nodes=1") as mine:
        state = mine.local.config_file("n1").parent
        with moved(state, disk):
            mine.kill("n1")
            until(lambda: status(mine, "GET", "/v1/nodes") == 200)
            mine.submit(web("steady", instances=2))
            before = mine.containers()
            with Requester(mine, "steady.localhost") as requester:
                with full(disk):
                    mine.submit(LATE, wait=False)
                    until(lambda: "No space left" in mine.row("late-0").get("reason", ""))
                    reason = mine.row("late-0")["reason"]
                    print(f"disk full: {reason}")
                    assert f"disk below {state}/volumes: 8M wanted for volume data, " in reason
                    mine.kill("n1")
                    until(lambda: status(mine, "GET", "/v1/nodes") == 200)
                    requester.more()
                mine.wait_healthy("late")
            assert requester.failures == []
            assert before.items() <= mine.containers().items()
            mine.stop("steady", "late")


@contextmanager
def nearly_full(disk: Path) -> Iterator[None]:
    """Less than five percent are free meanwhile, and something still is."""
    there = os.statvfs(disk)
    with (disk / "ballast").open("wb") as stream:
        size = (there.f_bavail - there.f_blocks * 3 // 100) * there.f_frsize
        os.posix_fallocate(stream.fileno(), 0, size)
    try:
        yield
    finally:
        (disk / "ballast").unlink()


def test_a_disk_that_fills_up_closes_its_node() -> None:
    """New work goes elsewhere, what runs runs on, and the least important would leave first."""
    liking = {"placement": {"prefer": ["disk == small"]}}
    with (
        small_disk("64M") as disk,
        running_cluster("--nodes=2") as mine,
        moved(mine.local.config_file("n2").parent, disk),
    ):
        mine.kill("n2")
        mine.text("node", "label", "n2", "disk=small")
        until(lambda: mine.nodes()["n2"]["state"] == "ready")
        there = {"high": {"priority": 100}, "low": {"priority": 1}, "dear": {"protected": True}}
        for name, rank in there.items():
            mine.submit(web(name) | liking | rank, wait=False)
        with nearly_full(disk):
            for name in there:
                mine.wait_healthy(name)
                assert mine.row(f"{name}-0")["node"] == "n2"
            before = mine.containers()
            until(lambda: mine.nodes()["n2"]["state"] == "tainted", say="under pressure")
            plan = mine.ozy("shed", "--plan", "n2")
            assert re.match(r"disk pressure: \d % of 64M is free", plan["pressure"]), plan
            order = [(row["instance"], row["to"]) for row in plan["leaving"]]
            assert order == [("low-0", "n1"), ("high-0", "n1")]
            assert [row["instance"] for row in plan["staying"]] == ["dear-0"]
            print(mine.text("shed", "--plan"))
            mine.submit(web("late") | liking)
            assert mine.row("late-0")["node"] == "n1"
            why = mine.text("why-not", "late", "n2")
            assert "it is under disk pressure" in why, why
        assert before.items() <= mine.containers().items()
        mine.stop(*there, "late")


def test_a_full_disk_below_everything() -> None:
    """etcd ends, perhaps for want of room, and comes back; no container and no request minds."""
    # etcd's write-ahead log takes 64M at once, and the next one too.
    with small_disk("160M") as disk:
        mine = Cluster(directory=disk)
        try:
            mine.up("--nodes=1")
            mine.submit(web("steady", instances=2))
            before = mine.containers()
            with Requester(mine, "steady.localhost") as requester:
                with full(disk):
                    answers = [status(mine, "POST", "/v1/jobs", LATE) for _ in range(3)]
                    if etcd := Processes.load(mine.state_dir).alive().get("etcd"):
                        etcd.kill(signal.SIGKILL)  # if it has not ended yet, it ends now
                    answers.append(status(mine, "POST", "/v1/jobs", LATE))
                    print(f"submitted to the full disk: {answers}")
                    assert set(answers) <= {0, 200, 201, 503}
                    requester.more(200)
                # A host that was short takes new work when it has been well for a minute.
                until(lambda: status(mine, "POST", "/v1/jobs", LATE) in (200, 201), 100)
                until(lambda: is_healthy(mine, "late") and is_healthy(mine, "steady"))
            assert requester.failures == []
            assert before.items() <= mine.containers().items()
            assert not mine.tracebacks()
        finally:
            mine.down()
