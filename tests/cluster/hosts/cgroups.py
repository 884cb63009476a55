"""One cgroup per host in every hierarchy, so that a host's limits and processes are its own.

What is in them is ours and nobody else's: `kill` ends it without having remembered any process.
The hierarchies are those of cgroup v1, alone or hybrid; every host sees its own as the whole tree.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
DEADLINE_SECONDS = 15.0
# Of processor time, for all hosts of a prefix: beside other work a group of the machine counts as
# one process (1024), however many hosts are in it, and hosts that boot would starve.
CPU_SHARES = 16 * 1024


def hierarchies() -> list[Path]:
    found = [path for path in sorted(ROOT.iterdir()) if (path / "cgroup.procs").exists()]
    assert found, "test hosts need cgroup v1 hierarchies below /sys/fs/cgroup"
    return found


class Cgroups:
    """The cgroups `<prefix>/<name>`; with name "" those of the whole prefix."""

    def __init__(self, prefix: str, name: str = "") -> None:
        self._below = Path(prefix) / name

    def paths(self) -> list[Path]:
        return [hierarchy / self._below for hierarchy in hierarchies()]

    def make(self, memory_bytes: int = 0) -> None:
        """They exist afterwards, with a limit of memory if one is given."""
        for hierarchy in hierarchies():
            path = hierarchy
            for part in self._below.parts:
                path = path / part
                path.mkdir(exist_ok=True)
                if hierarchy.name == "cpuset":  # empty ones take no process
                    for file in ("cpuset.cpus", "cpuset.mems"):
                        (path / file).write_text((path.parent / file).read_text())
            if hierarchy.name == "cpu":
                (hierarchy / self._below.parts[0] / "cpu.shares").write_text(str(CPU_SHARES))
            if memory_bytes and hierarchy.name == "memory":
                (path / "memory.limit_in_bytes").write_text(str(memory_bytes))

    def joining(self, *command: str) -> list[str]:
        """The command, run as a process of these cgroups from its first moment on."""
        files = [str(path / "cgroup.procs") for path in self.paths()]
        script = 'n=$1; shift; while [ $n -gt 0 ]; do echo $$ >"$1"; shift; n=$((n-1)); done; '
        return ["sh", "-c", script + 'exec "$@"', "sh", str(len(files)), *files, *command]

    def mounts(self) -> Iterator[tuple[str, str]]:
        """Name of each hierarchy and how mount(8) is to be asked for it, inside."""
        for hierarchy in hierarchies():
            if hierarchy.name == "unified":
                yield hierarchy.name, "-t cgroup2 cgroup2"
            else:
                own = "none,name=systemd" if hierarchy.name == "systemd" else hierarchy.name
                yield hierarchy.name, f"-t cgroup -o {own} cgroup"

    def processes(self) -> set[int]:
        """Of the cgroups and all below them, by this namespace's numbers."""
        found: set[int] = set()
        for top in self.paths():
            for directory, _, _ in os.walk(top):  # which does not mind what goes meanwhile
                with suppress(OSError):
                    text = Path(directory, "cgroup.procs").read_text()
                    found.update(int(word) for word in text.split())
        return found - {0, os.getpid()}

    def kill(self) -> None:
        """Until nothing runs there."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while left := self.processes():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline, f"processes {left} do not end"
            time.sleep(0.01)

    def remove(self) -> None:
        """All that is below as well; a cgroup may take a moment to be empty after its last."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        for top in self.paths():
            below = sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True)
            for path in (*below, top):
                while path.exists():
                    with suppress(FileNotFoundError):
                        try:
                            path.rmdir()
                        except OSError:
                            assert time.monotonic() < deadline, f"{path} stays busy"
                            time.sleep(0.01)
