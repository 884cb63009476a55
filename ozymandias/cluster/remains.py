"""What a local cluster leaves in podman and the kernel, found by label and path, and removed.

It goes through the podman command and needs neither daemon nor service, so that it works after a
crash, too. Only what carries this cluster's label, its network's name or its state directory's
path is touched.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ozymandias.cluster import programs
from ozymandias.cluster.state import LocalCluster
from ozymandias.problems import LOCAL_CLUSTER, ProblemError

LABEL_CLUSTER = "ozymandias.cluster"
LABEL_OWNER = "ozymandias.owner"  # <cluster>/<node>
CALL_SECONDS_MAX = 60.0


def podman(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """podman with the cluster's own configuration; RuntimeError-free: look at the return code."""
    environment = programs.podman_environment(cluster)
    if not cluster.containers_conf.exists():
        environment.pop("CONTAINERS_CONF", None)
    try:
        return subprocess.run(
            ["podman", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(arguments, 127, "", "podman is not installed")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, 124, "", "podman does not answer")


def _ids(cluster: LocalCluster, *arguments: str) -> list[str]:
    return podman(cluster, *arguments).stdout.split()


def _labels(cluster: LocalCluster, node: str | None = None) -> list[str]:
    """One label in either case: podman is not of one mind whether several mean `and`."""
    if node is None:
        return [f"--filter=label={LABEL_CLUSTER}={cluster.id}"]
    return [f"--filter=label={LABEL_OWNER}={cluster.id}/{node}"]


def kill_pods(cluster: LocalCluster, node: str) -> int:
    """SIGKILL to every container of a node's pods, and nothing else; returns how many pods."""
    pods = _ids(cluster, "pod", "ls", "-q", "--no-trunc", *_labels(cluster, node))
    if pods:
        podman(cluster, "pod", "kill", "--signal=KILL", *pods)
    return len(pods)


def remove(cluster: LocalCluster) -> None:
    """Pods, stray containers, volumes, network, mounts and loop devices of the cluster."""
    _remove_all(cluster, ["pod", "ls"], ["pod", "rm", "--force", "--time=0"])
    _remove_all(cluster, ["ps", "--all"], ["rm", "--force", "--time=0", "--volumes"])
    _remove_all(cluster, ["volume", "ls"], ["volume", "rm", "--force"])
    if podman(cluster, "network", "exists", cluster.network).returncode == 0:
        _check(podman(cluster, "network", "rm", "--force", cluster.network))
    unmount_below(cluster.state_dir)
    detach_below(cluster.state_dir)


def _remove_all(cluster: LocalCluster, list_: Sequence[str], remove_: Sequence[str]) -> None:
    """Twice if need be: podman may find one of a pod's containers busy for a moment."""
    for _ in range(3):
        found = _ids(cluster, *list_, "-q", *_labels(cluster))
        if not found:
            return
        result = podman(cluster, *remove_, *found)
    if _ids(cluster, *list_, "-q", *_labels(cluster)):
        _check(result)


def _check(result: subprocess.CompletedProcess[str]) -> None:
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise ProblemError(
            LOCAL_CLUSTER(
                f"podman could not remove what the cluster made: {lines[-1]}",
                hint="Nothing is lost: run `ozy down` again. `podman ps -a` shows what is there.",
            )
        )


def unmount_below(directory: Path) -> None:
    """The deepest first."""
    below = [p for p in mount_points() if p.is_relative_to(directory)]
    for path in sorted(below, key=lambda p: len(p.parts), reverse=True):
        subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)


def mount_points() -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [Path(line.split()[4].encode().decode("unicode_escape")) for line in lines]


def detach_below(directory: Path) -> None:
    """Loop devices whose file lies in the directory."""
    losetup = shutil.which("losetup", path=f"/usr/bin:{programs.SEARCH_PATH}")
    if losetup is None:
        return
    listed = subprocess.run(
        [losetup, "--list", "--json", "--output", "NAME,BACK-FILE"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for device in json.loads(listed or '{"loopdevices": []}')["loopdevices"]:
        backing = (device["back-file"] or "").removesuffix(" (deleted)")
        if backing and Path(backing).is_relative_to(directory):
            subprocess.run([losetup, "--detach", device["name"]], capture_output=True, check=False)
