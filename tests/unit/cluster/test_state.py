"""What a local cluster remembers, and which processes it may call its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ozymandias.cluster import state
from ozymandias.cluster.state import LocalCluster, LocalNode, Processes, ProcessId
from ozymandias.model.record import replace
from ozymandias.problems import ProblemError


def a_cluster(state_dir: Path) -> LocalCluster:
    return LocalCluster(
        id="c0ffee00",
        state_dir=state_dir,
        nodes=(LocalNode(name="n1", api_port=7400), LocalNode(name="n2", api_port=7401)),
        memory="4G",
        disk="10G",
        subnet="10.89.64.0/24",
        gateway="10.89.64.1",
        etcd_port=1,
        etcd_peer_port=2,
        ingress_port=3,
        dns_port=4,
    )


def test_a_saved_cluster_is_loaded_as_it_was(tmp_path: Path) -> None:
    """Saving and loading are inverse."""
    cluster = replace(a_cluster(tmp_path).with_killed("n2", True), was_ready=True)
    cluster.save()
    assert state.load(tmp_path) == cluster
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cluster.json"]


def test_no_file_means_no_cluster(tmp_path: Path) -> None:
    """An absent directory or file is no error."""
    assert state.load(tmp_path) is None
    assert state.load(tmp_path / "absent") is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1, "id": "x"}']
)
def test_a_damaged_file_is_a_problem(tmp_path: Path, text: str) -> None:
    """A file cut short by a power cut is named, not traced back."""
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ProblemError) as caught:
        state.load(tmp_path)
    assert "cluster.json" in caught.value.problem.detail


def test_somebody_elses_directory_is_not_blank(tmp_path: Path) -> None:
    """Only a directory without anything, or with our own half-written file, may be used."""
    assert state.is_blank(tmp_path / "absent")
    assert state.is_blank(tmp_path)
    (tmp_path / ".cluster.json.new").write_text("{")
    assert state.is_blank(tmp_path)
    (tmp_path / "diary.txt").write_text("mine")
    assert not state.is_blank(tmp_path)


def test_killing_one_node_leaves_the_others(tmp_path: Path) -> None:
    """`with_killed` changes the one node named."""
    killed = a_cluster(tmp_path).with_killed("n2", True)
    assert [node.killed for node in killed.nodes] == [False, True]
    assert killed.with_killed("n2", False) == a_cluster(tmp_path)


def test_a_reused_pid_is_a_stranger() -> None:
    """The same number with another start, or of another boot, is another process."""
    own = ProcessId.of(os.getpid())
    assert own is not None
    assert own.is_alive
    assert not replace(own, started=own.started - 1).is_alive
    assert not replace(own, boot="another").is_alive


def test_a_stranger_is_not_killed() -> None:
    """A signal meant for a former process does not reach whoever has its number now."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        identity = ProcessId.of(child.pid)
        assert identity is not None
        replace(identity, started=identity.started - 1).kill(signal.SIGKILL)
        assert identity.is_alive
        state.end({"child": identity}, grace_seconds=5.0)
        assert not identity.is_alive
    finally:
        child.kill()
        child.wait()


def test_processes_survive_the_file(tmp_path: Path) -> None:
    """Those alive are found again; those that ended are not."""
    own = ProcessId.of(os.getpid())
    assert own is not None
    gone = replace(own, started=1)
    Processes(by_name={"supervisor": own, "etcd": gone}).save(tmp_path)
    assert Processes.load(tmp_path).alive() == {"supervisor": own}
    (tmp_path / "processes.json").write_text("{")
    assert Processes.load(tmp_path).alive() == {}


def test_only_one_command_at_a_time(tmp_path: Path) -> None:
    """The second to take the lock is told so at once."""
    with state.locked(tmp_path), pytest.raises(ProblemError) as caught, state.locked(tmp_path):
        pass
    assert "Another command" in caught.value.problem.detail
    with state.locked(tmp_path):
        pass
