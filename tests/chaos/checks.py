"""What must be so in the end: rest within half a minute (L2), nothing left over (L6).

The store is read through a quorum, containers are asked of podman on each host, and compared by the
simulator's own `rest.differences`. Orphans are looked for twice: beside what runs, and after all
jobs were stopped, when there must be nothing at all.
"""

import json
import time
from collections.abc import Callable, Iterable

from ozymandias.model.node import NodeName
from ozymandias.model.pod import PodId
from ozymandias.runtime.podspec import pod_id_of
from ozymandias.sim import rest
from ozymandias.sim.truth import Truth
from ozymandias.store import keys
from tests.chaos import processes
from tests.chaos.cluster import DISK, ChaosCluster
from tests.cluster.hosts.host import Host
from tests.cluster.hosts.hosts import each

CONVERGED_SECONDS_MAX = 30.0
PATIENCE_SECONDS = 150.0
STILL_SECONDS = 15.0
ORPHANS_SECONDS_MAX = 60.0
KEPT_ENTRIES = {"kept"}


def pods_of(host: Host) -> set[PodId]:
    """Of all containers in whatever state, and all pods, by podman's word."""
    if not host.has_power:
        return set()
    listed = json.loads(host.podman("ps", "--all", "--format=json") or "[]")
    found = {pod_id_of(container.get("Labels") or {}) for container in listed}
    return {pod for pod in found if pod is not None}


def not_running(host: Host) -> list[str]:
    """Containers that are there and do not run: after a boot the store alone looks as before."""
    listed = json.loads(host.podman("ps", "--all", "--format=json") or "[]")
    return [
        f"{container['Names'][0]} is {container['State']}"
        for container in listed
        if container["State"] != "running"
    ]


def differences(cluster: ChaosCluster) -> list[str]:
    """What is not at rest, by store and podman alone."""
    try:
        _, kvs = cluster.listing()
        pods = each(cluster.hosts, pods_of)
        idle = [what for found in each(cluster.hosts, not_running) for what in found]
    except (AssertionError, OSError, ValueError) as error:
        return [f"can't be told: {str(error)[:300]}"]
    truth = Truth.of(kvs)
    core = {NodeName(name) for name in cluster.names}
    absent = [f"{name} is not a member" for name in sorted(core - truth.presences.keys())]
    degraded = [
        f"{name} takes no work ({presence.degraded})"
        for name, presence in sorted(truth.presences.items())
        if presence.degraded
    ]
    by_node = dict(zip(map(NodeName, cluster.names), pods, strict=True))
    return absent + degraded + idle + rest.differences(truth, by_node, core)


def converge(cluster: ChaosCluster, since: float, say: Callable[[str], None]) -> tuple[float, str]:
    """How long after ``since`` all was well, and what was the last to be not."""
    last, told = "", 0.0
    while found := differences(cluster):
        last = "; ".join(found[:4])
        waited = time.monotonic() - since
        if waited > told + 10:
            told = waited
            say(f"not at rest after {waited:.0f} s: {last}")
        if waited > PATIENCE_SECONDS:
            return float("inf"), "; ".join(found[:20])
        time.sleep(0.5)
    return max(0.0, time.monotonic() - since), last


def check_still(cluster: ChaosCluster) -> list[str]:
    """At rest nobody writes schedules any more (L2)."""

    def schedule() -> dict[bytes, int]:
        _, kvs = cluster.listing("/ozymandias/v1/")
        prefixes = (keys.JOBS, keys.ASSIGNMENTS, keys.LEDGERS)
        return {kv.key: kv.mod_revision for kv in kvs if kv.key.startswith(prefixes)}

    before = schedule()
    time.sleep(STILL_SECONDS)  # that nothing happens for so long is what is looked at
    after = schedule()
    moved = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return [f"L2 {key.decode()} was written at rest" for key in sorted(moved)]


def orphans(cluster: ChaosCluster) -> list[str]:
    """Everything of hosts and store that belongs to no pod that is to be there."""
    try:
        truth = Truth.of(cluster.listing()[1])
        return [
            what
            for host in cluster.hosts
            for what in _orphans_of(cluster, host, truth.pods_of(NodeName(host.name)).keys())
        ]
    except (AssertionError, OSError, ValueError) as error:
        return [f"can't be told: {str(error)[:300]}"]


def _orphans_of(cluster: ChaosCluster, host: Host, wanted: Iterable[PodId]) -> list[str]:
    pods = {pod.name for pod in wanted}
    found: list[str] = []

    def compare(kind: str, there: set[str]) -> None:
        found.extend(f"L6 {kind} {name} on {host.name}" for name in sorted(there))

    compare("container of", {p.name for p in pods_of(host)} - pods)
    compare("pod", set(host.podman("pod", "ls", "--format={{.Name}}").split()) - pods)
    volumes = host.podman("volume", "ls", "--format={{.Name}}").split()
    compare("volume", {v for v in volumes if not any(v.startswith(pod) for pod in pods)})
    networks = host.podman("network", "ls", "--format={{.Name}}").split()
    compare("network", set(networks) - {"podman", "ozymandias"})
    directory = host.path(f"{DISK}/volumes")
    if directory.exists():
        compare("directory", {p.name for p in directory.iterdir()} - pods - KEPT_ENTRIES)
    links = host.run("ip", "-br", "link", "show", "type", "veth").stdout.splitlines()
    veths = [line.split("@")[0] for line in links if line.startswith("veth")]
    if len(veths) > len(pods):
        found.append(f"L6 {len(veths)} interfaces on {host.name} for {len(pods)} pods")
    spaces = host.run("sh", "-c", "ls /run/netns 2>/dev/null || true").stdout.split()
    if len(spaces) > len(pods):
        found.append(f"L6 {len(spaces)} network namespaces on {host.name} for {len(pods)} pods")
    running = list(processes.pids_of(cluster.hosts.prefix, host.name))
    if not pods and running:
        found.append(f"L6 processes of {len(running)} containers on {host.name}")
    mounts = host.run("cat", "/proc/1/mounts").stdout
    loops = [m for m in mounts.splitlines() if m.startswith("/dev/loop") and f" {DISK} " not in m]
    if not pods and loops:
        found.append(f"L6 {len(loops)} loop mounts on {host.name}")
    return found


def wait_orphans(cluster: ChaosCluster) -> list[str]:
    """Those that are left after a minute."""
    deadline = time.monotonic() + ORPHANS_SECONDS_MAX
    while (found := orphans(cluster)) and time.monotonic() < deadline:
        time.sleep(1.0)
    return found


def stop_everything(cluster: ChaosCluster) -> list[str]:
    """All jobs, until podman has nothing of ours any more; what is left after a minute."""
    names = [row["job"] for row in cluster.get("/v1/jobs")["items"]]
    for name in names:
        cluster.request("DELETE", f"/v1/jobs/default/{name}")
    deadline = time.monotonic() + ORPHANS_SECONDS_MAX
    while time.monotonic() < deadline:
        left = [row["job"] for row in cluster.get("/v1/jobs")["items"]]
        if not left and not orphans(cluster):
            return []
        time.sleep(1.0)
    return [f"L6 {job} is not gone" for job in left] + orphans(cluster)
