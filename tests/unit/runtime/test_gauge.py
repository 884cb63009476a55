"""Facts of a host: what /proc and the file system say, and what becomes of what they don't."""

from pathlib import Path

import pytest

from ozymandias.core.pressure import pressure
from ozymandias.ports import RuntimeFailed
from ozymandias.runtime.gauge import HostGauge, NoGauge, parse_stalls

MEMORY = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    4000 kB\n"
STALLS = (
    "some avg10=12.50 avg60=3.00 avg300=1.00 total=5\nfull avg10=1.00 avg60=0 avg300=0 total=1\n"
)


async def test_this_very_host_can_be_measured() -> None:
    """Every number is there and makes sense."""
    facts = await HostGauge(Path("/")).read()
    assert facts.processors > 0
    assert 0 < facts.memory_available_bytes <= facts.memory_total_bytes
    assert 0 < facts.disk_free_bytes <= facts.disk_total_bytes


async def test_files_of_proc_are_read(tmp_path: Path) -> None:
    """Memory in bytes, and for how much of ten seconds tasks were held up."""
    (tmp_path / "meminfo").write_text(MEMORY)
    (tmp_path / "stalls").write_text(STALLS)
    gauge = HostGauge(tmp_path, memory=tmp_path / "meminfo", stalls=tmp_path / "stalls")
    facts = await gauge.read()
    assert facts.memory_total_bytes == 16000 * 1024
    assert facts.memory_available_bytes == 4000 * 1024
    assert facts.memory_stall_percent == 12.5


async def test_a_kernel_that_tells_no_stalls_will_do(tmp_path: Path) -> None:
    """Then what is available tells."""
    (tmp_path / "meminfo").write_text(MEMORY)
    gauge = HostGauge(tmp_path, memory=tmp_path / "meminfo", stalls=tmp_path / "none")
    assert (await gauge.read()).memory_stall_percent is None
    assert parse_stalls("nothing that we know\n") is None


@pytest.mark.parametrize("text", ["", "MemTotal: many kB\n", "MemTotal: 5 kB\n"])
async def test_what_cant_be_read_is_said(tmp_path: Path, text: str) -> None:
    """One kind of failure, with the reason."""
    (tmp_path / "meminfo").write_text(text)
    with pytest.raises(RuntimeFailed, match="can't be measured"):
        await HostGauge(tmp_path, memory=tmp_path / "meminfo").read()


async def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    """A file system that is gone."""
    with pytest.raises(RuntimeFailed):
        await HostGauge(tmp_path / "none").read()


async def test_without_a_gauge_nothing_is_known() -> None:
    """And so there is no pressure."""
    assert pressure(await NoGauge().read()) == ""
