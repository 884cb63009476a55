"""Where state is kept: room and inodes, and files that come from the future."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from ozymandias.cluster.doctor.check import Check, fail, ok, warn
from ozymandias.model.units import format_size

DISK_WARN_BYTES = 5 * 2**30
DISK_FAIL_BYTES = 2**29
INODES_WARN = 20_000
INODES_FAIL = 1_000
FUTURE_SECONDS = 60.0
FILES_LOOKED_AT_MAX = 2_000


def examine(directory: Path) -> Iterator[Check]:
    """The file system that holds the directory, which need not be there yet."""
    there = directory.absolute()
    while not there.exists():
        there = there.parent
    facts = os.statvfs(there)
    yield disk(there, facts.f_bavail * facts.f_frsize)
    if facts.f_files:  # btrfs and others count none
        yield inodes(there, facts.f_favail)
    yield from future(directory, time.time())


def disk(directory: Path, free_bytes: int) -> Check:
    detail = f"{format_size(free_bytes)} free in {directory}"
    if free_bytes >= DISK_WARN_BYTES:
        return ok("disk", detail)
    return (fail if free_bytes < DISK_FAIL_BYTES else warn)(
        "disk",
        f"{detail}: images and volumes need more",
        f"`podman image prune` frees what no container uses; `du -xh {directory}` shows the rest.",
    )


def inodes(directory: Path, free: int) -> Check:
    detail = f"{free} free in {directory}"
    if free >= INODES_WARN:
        return ok("inodes", detail)
    return (fail if free < INODES_FAIL else warn)(
        "inodes",
        f"{detail}: every file takes one, however small",
        f"`du --inodes -x {directory}` shows who has so many small files.",
    )


def future(directory: Path, now: float) -> Iterator[Check]:
    """A file written later than now: the wall clock was put back, or was wrong then."""
    newest = max(_times(directory), default=0.0)
    if newest > now + FUTURE_SECONDS:
        yield warn(
            "clock",
            f"{directory} has files written {_span(newest - now)} from now: the clock went back",
            "Let chrony or systemd-timesyncd keep it; `timedatectl` shows what it is set by.",
        )


def _times(directory: Path) -> Iterator[float]:
    looked_at = 0
    for parent, folders, files in os.walk(directory):
        # Volumes and data of others carry whatever times they like.
        folders[:] = [f for f in folders if f not in ("volumes", "shared")]
        for name in files:
            looked_at += 1
            if looked_at > FILES_LOOKED_AT_MAX:
                return
            try:
                yield (Path(parent) / name).lstat().st_mtime
            except OSError:
                continue


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
