"""A slice of a processor for each of several processes: machines of their own, in small.

Peers that race share the processors of one machine here, and each follows what all of them write.
Where every daemon has a machine, each has a processor for that. With an equal slice for each, small
enough that all of them and etcd fit on the machine, the race is the same as there, only slower.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 100_000


class Slices:
    def __init__(self, share: float) -> None:
        self._microseconds = round(share * PERIOD_MICROSECONDS)
        self._groups: list[Path] = []

    def give(self, process: int) -> None:
        """OSError where this is not for us to set."""
        is_unified = (ROOT / "cgroup.controllers").exists()
        name = f"ozy-bench-{os.getpid()}-{process}"
        group = (ROOT if is_unified else ROOT / "cpu") / name
        group.mkdir()
        self._groups.append(group)
        if is_unified:
            (group / "cpu.max").write_text(f"{self._microseconds} {PERIOD_MICROSECONDS}")
        else:
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD_MICROSECONDS}")
            (group / "cpu.cfs_quota_us").write_text(f"{self._microseconds}")
        (group / "cgroup.procs").write_text(f"{process}")

    def end(self) -> None:
        """The processes are gone by now."""
        while self._groups:
            self._groups.pop().rmdir()


@contextlib.contextmanager
def slices(share: float) -> Iterator[Slices]:
    """Of one processor, for each process that is given one; entered before they are started."""
    made = Slices(share)
    try:
        yield made
    finally:
        made.end()
