"""This host: its clock, and the facts that a node tells about itself."""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

RESERVE_BYTES_MIN = 512 * 2**20
RESERVE_PERCENT = 5
MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class SystemClock:
    """The Clock port over the machine's own."""

    def __init__(self) -> None:
        self._random = random.Random()

    def wall(self) -> float:
        return time.time()

    def boot(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    @property
    def random(self) -> random.Random:
        return self._random


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    memory_bytes: int
    disk_bytes: int  # of the file system that holds the state directory
    cpu_millis: int  # thousandths of the cores that this process may use
    machine_id: str
    load: float  # average of the last minute


def read_host(state_dir: Path, machine_id: str = "") -> Host:
    """The facts now. The state directory need not exist yet: its nearest parent counts."""
    directory = state_dir.absolute()
    while not directory.exists():
        directory = directory.parent
    disk = os.statvfs(directory)
    return Host(
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        disk_bytes=disk.f_blocks * disk.f_frsize,
        cpu_millis=1000 * len(os.sched_getaffinity(0)),
        machine_id=machine_id or read_machine_id(),
        load=os.getloadavg()[0],
    )


def usual_reserve(total_bytes: int) -> int:
    """What a host of this size keeps for itself: its own daemons, the kernel, a person's shell."""
    return max(RESERVE_BYTES_MIN, total_bytes * RESERVE_PERCENT // 100)


def read_machine_id() -> str:
    """ "" where the machine has none: then it must be configured."""
    for file in MACHINE_ID_FILES:
        try:
            text = file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            return text
    return ""
