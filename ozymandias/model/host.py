"""What a machine says of itself at one moment: how busy it is, and what it has left."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """A total of 0: not known, and so no reason for anything."""

    load: float = 0.0  # average of the last five minutes: a minute's goes up and down too much
    processors: int = 0
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0  # free, or to be had without swapping
    # For how much of the last ten seconds some task was held up by lack of memory; None: the kernel
    # does not tell.
    memory_stall_percent: float | None = None
    disk_total_bytes: int = 0  # of the file system that holds the volumes
    disk_free_bytes: int = 0
    inodes_total: int = 0
    inodes_free: int = 0
