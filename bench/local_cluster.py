"""Figures of a running cluster: coming up, a pod's way to healthy, and what doing nothing costs."""

import json
import secrets
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench import bare_podman
from bench.command_line import OZY
from bench.figure import compared, report, seconds
from ozymandias.cluster import state
from ozymandias.cluster.state import LocalCluster, Processes

SUBMIT_TURNS = 7
IDLE_SECONDS = 60.0
SETTLE_SECONDS = 3.0
POLL_SECONDS = 0.01
HEALTHY_SECONDS_MAX = 60.0
JOB = """\
name: {name}
containers:
  web:
    image: localhost/ozy-demo:1
    pull_policy: never
    memory: 32M
    ports: ["80:8000"]
    healthcheck: {{type: http, port: 8000, path: /healthz, interval: 1s, timeout: 1s}}
"""


def measure_up(state_dir: Path) -> LocalCluster:
    """From nothing to ready; the cluster stays for the other figures."""
    command = [OZY, "up", "--state-dir", str(state_dir), "--api-port", "0", "--ingress-port", "0"]
    took = seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    report("ozy up, three nodes", took, "s", 5.0, "the whole command, from nothing to ready")
    cluster = state.load(state_dir)
    assert cluster is not None
    return cluster


class Api:
    def __init__(self, cluster: LocalCluster) -> None:
        self.base = cluster.endpoints[0]
        self.token = cluster.token_file.read_text().strip()

    def call(self, method: str, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(self.base + path, data=body, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", "application/yaml")
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def submit(self, name: str) -> None:
        """Until the job is healthy."""
        self.call("POST", "/v1/jobs", JOB.format(name=name).encode())
        deadline = time.monotonic() + HEALTHY_SECONDS_MAX
        while self.call("GET", f"/v1/jobs/default/{name}")["healthy"] < 1:
            assert time.monotonic() < deadline, f"{name} is not healthy"
            time.sleep(POLL_SECONDS)

    def stop(self, name: str) -> None:
        self.call("DELETE", f"/v1/jobs/default/{name}")
        while self.call("GET", "/v1/instances?job=" + name)["items"]:
            time.sleep(0.05)


def measure_submit(cluster: LocalCluster) -> None:
    """One pod with its image present. Removing is not counted, and is over before the next turn."""
    api = Api(cluster)
    podman = bare_podman.Podman(cluster.podman_socket)
    label = {"ozymandias.cluster": cluster.id, "bench": "1"}
    names = [f"bench-{secrets.token_hex(3)}" for _ in range(SUBMIT_TURNS + 1)]

    api.submit(names[0])  # the network's bridge is there and all caches are warm
    api.stop(names[0])
    ours: list[float] = []
    theirs: list[float] = []
    for name in names[1:]:
        ours.append(seconds(lambda name=name: api.submit(name)))
        api.stop(name)
        arguments = (podman, name, cluster.network, label)
        theirs.append(seconds(lambda given=arguments: bare_podman.start(*given)))
        bare_podman.remove(podman, name)
    ratio, how = compared(ours, theirs)
    what = "POST of the job until its status says healthy, against the podman API until HTTP 200"
    report("submit to healthy / bare podman", ratio, "ratio", 1.5, f"{how}: {what}")


def measure_idle(cluster: LocalCluster) -> None:
    """Nothing runs and nobody asks."""
    daemons = [Processes.load(cluster.state_dir).by_name[node.name].pid for node in cluster.nodes]
    time.sleep(SETTLE_SECONDS)
    revision = etcd_revision(cluster)
    before = {pid: cpu_seconds(pid) for pid in daemons}
    started = time.monotonic()
    time.sleep(IDLE_SECONDS)
    elapsed = time.monotonic() - started
    percents = [(cpu_seconds(pid) - before[pid]) / elapsed * 100 for pid in daemons]
    how = (
        f"the busiest of {len(daemons)} daemons over {elapsed:.0f} s;"
        f" median {statistics.median(percents):.2f}, best {min(percents):.2f}"
    )
    report("idle CPU of a daemon", max(percents), "% of a core", 0.3, how)
    resident = max(rss_megabytes(pid) for pid in daemons)
    report("RSS of a daemon", resident, "MB", 90, f"the largest of {len(daemons)} daemons, idle")
    grown = etcd_revision(cluster) - revision
    report("etcd revisions while idle", grown, "revisions", 0, f"in {elapsed:.0f} s")


def cpu_seconds(pid: int) -> float:
    """Of all threads, in the scheduler's nanoseconds: clock ticks are too coarse for idling."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def rss_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def etcd_revision(cluster: LocalCluster) -> int:
    url = f"http://127.0.0.1:{cluster.etcd_port}/v3/maintenance/status"
    with urllib.request.urlopen(url, data=b"{}", timeout=5) as response:
        return int(json.load(response)["header"]["revision"])
