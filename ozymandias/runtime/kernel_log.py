"""Which containers the kernel killed for want of memory, by the kernel's own word.

podman 4 does not say: a container killed by its memory limit and one killed by `kill -9` both end
with 137, and the cgroup with its counter is gone by the time anybody could look. The kernel's log
names the cgroup of every such kill, and the cgroup's name holds the container's id.

Where the log can't be read (no right to) nothing is known, and nothing is claimed.
"""

import os
import re
import time
from pathlib import Path

KMSG = Path("/dev/kmsg")
RECORD_BYTES_MAX = 8192  # the kernel hands out one record per read
RECORDS_MAX = 100_000  # in one go; the log itself is far smaller
REMEMBERED_MAX = 4096
# When the clocks of kernel log and podman are compared.
TOLERANCE_SECONDS = 2.0

_OOM = re.compile(rb"oom-kill:.*?oom_memcg=([^,]*)")
_CONTAINER = re.compile(rb"libpod-([0-9a-f]{64})")


class KernelLog:
    """Follows /dev/kmsg when asked; remembers the last kill of each container."""

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._file: int | None = None
        self._is_readable = True
        self._kills: dict[str, float] = {}  # container id -> wall clock

    def out_of_memory(self, container: str, since: float) -> bool:
        """Was this container's cgroup out of memory at or after this wall time?"""
        self._catch_up()
        killed_at = self._kills.get(container)
        return killed_at is not None and killed_at >= since - TOLERANCE_SECONDS

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _catch_up(self) -> None:
        if self._file is None and self._is_readable:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                self._is_readable = False
        if self._file is None:
            return
        for _ in range(RECORDS_MAX):
            try:
                record = os.read(self._file, RECORD_BYTES_MAX)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # the record was overwritten meanwhile; the next read goes on
            except OSError:
                return
            if not record:
                return
            self._take(record)

    def _take(self, record: bytes) -> None:
        """`6,1234,98765432,-;oom-kill:...`: the third number is microseconds since the start."""
        head, _, text = record.partition(b";")
        found = _OOM.search(text)
        container = _CONTAINER.search(found.group(1)) if found else None
        fields = head.split(b",")
        if container is None or len(fields) < 3 or not fields[2].isdigit():
            return
        age = time.clock_gettime(time.CLOCK_MONOTONIC) - int(fields[2]) / 1e6
        self._kills[container.group(1).decode()] = time.time() - age
        while len(self._kills) > REMEMBERED_MAX:
            del self._kills[next(iter(self._kills))]
