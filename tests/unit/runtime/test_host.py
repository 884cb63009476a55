"""The machine's facts and clock."""

from pathlib import Path

from ozymandias.runtime.host import SystemClock, read_host


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
