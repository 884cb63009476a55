"""Runs a command and fails if it leaves anything behind on this machine.

    leftovers.py COMMAND ARGUMENT...

Counted before and after: processes of the kinds that clusters are made of, containers, pods,
volumes and networks of podman, mounts, network interfaces, network namespaces, loop devices.
What is slow to go (a container's interface, a lazily freed loop device) gets some seconds.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_SECONDS = 15.0
LISTINGS_MAX = 10
KINDS = ("etcd", "podman", "conmon", "runc", "catatonit", "ozymandias", "netavark", "aardvark-dns")
Things = dict[str, set[str]]


def processes() -> set[str]:
    """`pid start-time command`: a reused pid does not pass for the former process."""
    found = set()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            command = (
                (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            )
            start = (directory / "stat").read_text().rpartition(")")[2].split()[19]
        except OSError:
            continue
        program = Path(command.split(" ")[0]).name
        if any(kind in program for kind in KINDS) or " -m ozymandias" in command:
            found.add(f"{directory.name} {start} {command.strip()[:160]}")
    return found


def podman(*arguments: str) -> set[str]:
    """A listing fails when something listed is removed at that moment: then it is asked again.

    A list that can't be had is no empty one: what is left would be counted as gone.
    """
    for _ in range(LISTINGS_MAX):
        result = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return set(result.stdout.split("\n")) - {""}
    raise RuntimeError(f"podman {' '.join(arguments)}: {result.stderr.strip()}")


def mounts() -> set[str]:
    """All but the one that podman makes with the first network of a machine, and keeps."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines} - {"/run/netns"}


def loop_devices() -> set[str]:
    found = set()
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.add(f"{backing.parts[3]} {backing.read_text().strip()}")
        except OSError:
            continue
    return found


def names(directory: str) -> set[str]:
    path = Path(directory)
    return {entry.name for entry in path.iterdir()} if path.is_dir() else set()


def count() -> Things:
    return {
        "processes": processes(),
        "containers": podman("ps", "-a", "--format", "{{.ID}} {{.Names}}"),
        "pods": podman("pod", "ls", "--format", "{{.Id}} {{.Name}}"),
        "volumes": podman("volume", "ls", "--format", "{{.Name}}"),
        # As files: asked for its networks, podman tells those of the back end that it chose when it
        # was first used on this machine (CNI, if it had images then), and ours are netavark's.
        "networks": names("/etc/containers/networks") - {"netavark.lock"},
        "mounts": mounts(),
        "interfaces": names("/sys/class/net"),
        "network namespaces": names("/run/netns"),
        "loop devices": loop_devices(),
    }


def left(before: Things, after: Things) -> Things:
    return {kind: more for kind in before if (more := after[kind] - before[kind])}


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    before = count()
    status = subprocess.run(sys.argv[1:], check=False).returncode
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (remains := left(before, count())) and time.monotonic() < deadline:
        time.sleep(0.5)
    if not remains:
        sys.stdout.write(f"leftovers: none ({', '.join(before)})\n")
        return status
    listed = {kind: sorted(things) for kind, things in remains.items()}
    sys.stderr.write(f"leftovers: left behind: {json.dumps(listed, indent=2)}\n")
    return status or 1


if __name__ == "__main__":
    sys.exit(main())
