"""Ending every process of a pod by its control group, without podman.

A control group can't be escaped by forking, nor does ending it need podman's locks, its database or
its service: it works while all of that hangs. The processes that watch over containers for podman
(conmon) live in the same place and are spared, or nobody would record how the containers ended.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
ROUNDS_MAX = 100  # a group that forks faster than it is killed is frozen first, so few are needed
ROUND_SECONDS = 0.01


def end(path: str, root: Path = ROOT) -> bool:
    """Kill all that runs in this group and below; False if something is left after a second.

    ``path`` is as podman tells it, from the root of the hierarchy. A group that is not there has
    nothing left to end.
    """
    top = _hierarchy(root) / path.strip("/")
    groups = [group for group in _below(top) if not _is_watcher(group)]
    for _ in range(ROUNDS_MAX):
        for group in groups:
            _kill(group)
        if not any(_processes(group) for group in groups):
            return True
        time.sleep(ROUND_SECONDS)
    return False


def is_running(path: str, root: Path = ROOT) -> bool:
    top = _hierarchy(root) / path.strip("/")
    return any(_processes(group) for group in _below(top) if not _is_watcher(group))


def _hierarchy(root: Path) -> Path:
    """The unified one, or of the separate ones that which can freeze."""
    return root if (root / "cgroup.controllers").exists() else root / "freezer"


def _below(top: Path) -> Iterator[Path]:
    if top.is_dir():
        for directory, _, _ in os.walk(top):
            yield Path(directory)


def _is_watcher(group: Path) -> bool:
    return "conmon" in group.name


def _kill(group: Path) -> None:
    if (group / "cgroup.kill").exists():
        _write(group / "cgroup.kill", "1")
        return
    _write(group / "freezer.state", "FROZEN")
    for process in _processes(group):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _write(group / "freezer.state", "THAWED")  # a frozen process does not even die


def _processes(group: Path) -> list[int]:
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:  # removed meanwhile
        return []


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError:
        pass  # removed meanwhile, or a root group that can't be frozen: the kill counts
