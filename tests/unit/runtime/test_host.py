"""The machine's facts and clock."""

from pathlib import Path

import pytest

from ozymandias.daemon.config import NodeConfig
from ozymandias.daemon.main import _reserve
from ozymandias.model.node import Resources
from ozymandias.runtime.host import SystemClock, read_host, usual_reserve


def test_facts_are_those_of_a_machine(tmp_path: Path) -> None:
    """Memory and disk are positive, also for a state directory that is not there yet."""
    host = read_host(tmp_path / "not" / "yet")
    assert host.memory_bytes > 2**20 and host.disk_bytes > 2**20 and host.load >= 0


def test_given_machine_id_wins(tmp_path: Path) -> None:
    """A configured machine id is taken as it is."""
    assert read_host(tmp_path, "mine").machine_id == "mine"


def test_boot_time_is_steady() -> None:
    """The clock for deciding never goes back, and wall time is of this century."""
    clock = SystemClock()
    assert clock.boot() <= clock.boot()
    assert clock.wall() > 1.6e9
    assert 0 <= clock.random.random() < 1


def test_a_host_keeps_512m_or_5_percent_for_itself() -> None:
    """Whichever is more."""
    assert usual_reserve(4 * 2**30) == 512 * 2**20
    assert usual_reserve(64 * 2**30) == 64 * 2**30 * 5 // 100


@pytest.mark.parametrize(
    ("settings", "memory_mib"),
    [
        (NodeConfig(), 512),
        (NodeConfig(memory="4G"), 0),
        (NodeConfig(reserve_memory="1G"), 1024),
        (NodeConfig(memory="4G", reserve_memory="1G"), 1024),
    ],
)
def test_settings_decide_the_reserve(settings: NodeConfig, memory_mib: int) -> None:
    """A size that was chosen is offered whole, unless a reserve is set beside it."""
    found = _reserve(settings, Resources(memory_bytes=4 * 2**30, disk_bytes=2**30))
    assert found.memory_bytes == memory_mib * 2**20
    assert found.disk_bytes == 512 * 2**20
