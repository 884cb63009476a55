"""The Gauge over this host: /proc, and the file system that holds the volumes."""

import asyncio
import os
from pathlib import Path

from ozymandias.model.host import HostFacts
from ozymandias.ports import RuntimeFailed

READ_SECONDS_MAX = 5.0  # a file system may hang

MEMORY = Path("/proc/meminfo")
MEMORY_STALLS = Path("/proc/pressure/memory")


class NoGauge:
    """Nothing is known of this host."""

    async def read(self) -> HostFacts:
        return HostFacts()


class HostGauge:
    def __init__(
        self, directory: Path, *, memory: Path = MEMORY, stalls: Path = MEMORY_STALLS
    ) -> None:
        self._directory = directory
        self._memory = memory
        self._stalls = stalls

    async def read(self) -> HostFacts:
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                return await asyncio.to_thread(self._read)
        except TimeoutError:
            raise RuntimeFailed(f"{self._directory} does not answer") from None
        except (OSError, ValueError) as error:
            raise RuntimeFailed(f"the host can't be measured: {error}") from error

    def _read(self) -> HostFacts:
        memory = parse_memory(self._memory.read_text())
        disk = os.statvfs(self._directory)
        return HostFacts(
            load=os.getloadavg()[1],
            processors=os.cpu_count() or 0,
            memory_total_bytes=memory["MemTotal"],
            memory_available_bytes=memory["MemAvailable"],
            memory_stall_percent=self._read_stalls(),
            disk_total_bytes=disk.f_blocks * disk.f_frsize,
            disk_free_bytes=disk.f_bavail * disk.f_frsize,
            inodes_total=disk.f_files,
            inodes_free=disk.f_favail,
        )

    def _read_stalls(self) -> float | None:
        """None where the kernel was built or started without: then what is available tells."""
        try:
            return parse_stalls(self._stalls.read_text())
        except OSError:
            return None


def parse_memory(text: str) -> dict[str, int]:
    """``MemTotal:  16384 kB`` and so on, in bytes; ValueError if it is something else."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(rest.split()[0]) * 1024
    if len(found) < 2:
        raise ValueError("no MemTotal and MemAvailable in /proc/meminfo")
    return found


def parse_stalls(text: str) -> float | None:
    """``some avg10=1.53 avg60=…``: of the last ten seconds, in percent."""
    for line in text.splitlines():
        kind, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if kind == "some" and "avg10" in values:
            return float(values["avg10"])
    return None
