"""The gauge of a simulated host: well, or short of something, as a life has it."""

from ozymandias.model.host import HostFacts
from ozymandias.model.record import replace
from ozymandias.ports import RuntimeFailed
from ozymandias.sim.host import SimHost

GIB = 2**30
WELL = HostFacts(
    processors=4,
    memory_total_bytes=16 * GIB,
    memory_available_bytes=15 * GIB,
    memory_stall_percent=0.0,
    disk_total_bytes=100 * GIB,
    disk_free_bytes=95 * GIB,
    inodes_total=1_000_000,
    inodes_free=990_000,
)
SHORT = {
    "memory": replace(WELL, memory_available_bytes=GIB // 4, memory_stall_percent=None),
    "stalls": replace(WELL, memory_available_bytes=2 * GIB, memory_stall_percent=60.0),
    "disk": replace(WELL, disk_free_bytes=GIB),
    "inodes": replace(WELL, inodes_free=1000),
}
BLIND = "facts"  # they can't be read


class SimGauge:
    def __init__(self, host: SimHost) -> None:
        self._host = host

    async def read(self) -> HostFacts:
        if self._host.lacks == BLIND:
            raise RuntimeFailed("/proc can't be read")
        return SHORT.get(self._host.lacks, WELL)
