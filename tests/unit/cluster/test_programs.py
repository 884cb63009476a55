"""The programs of a local cluster: what they are told and how often they are tried."""

import re
import tomllib
from pathlib import Path

from ozymandias.cluster import programs, remains
from ozymandias.cluster.supervision import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_MAX_SECONDS,
    backoff_seconds,
)
from ozymandias.daemon import config
from ozymandias.runtime import podspec
from tests.unit.cluster.test_state import a_cluster


def test_the_daemon_understands_its_settings(tmp_path: Path) -> None:
    """Every table and key that `up` writes is one that the daemon knows."""
    cluster = a_cluster(tmp_path / 'a "quoted" \\ place')
    text = programs.render_toml(programs.node_settings(cluster, cluster.nodes[1]))
    file = tmp_path / "ozymandias.toml"
    file.write_text(text)
    loaded = config.load(file, {})
    assert loaded.node.name == "n2"
    assert loaded.node.lease_ttl_seconds == 6
    assert loaded.api.listen == "127.0.0.1:7401"
    assert loaded.etcd.endpoints == ("127.0.0.1:1",)
    assert loaded.podman.network == "ozy-c0ffee00"
    assert loaded.node.state_dir == str(cluster.state_dir / "nodes" / "n2")
    assert loaded.node.run_dir == str(cluster.run_dir)
    assert tomllib.loads(text)["dns"]["listen"] == "10.89.64.1:53"


def test_two_nodes_of_one_machine_look_like_two_machines(tmp_path: Path) -> None:
    """Their machine ids differ, or one would be refused as the other's double."""
    cluster = a_cluster(tmp_path)
    ids = {programs.node_settings(cluster, n)["node"]["machine_id"] for n in cluster.nodes}
    assert len(ids) == 2


def test_every_program_has_its_name(tmp_path: Path) -> None:
    """One etcd, podman, guard, ingress and DNS responder, and a daemon for each node."""
    made = programs.programs(a_cluster(tmp_path))
    assert [p.name for p in made] == ["etcd", "podman", "guard", "n1", "n2", "ingress", "dns"]
    assert [p.name for p in made if p.is_node] == ["n1", "n2"]


def test_settings_of_the_caller_do_not_leak() -> None:
    """`OZY_*` would override what the settings files say, for every node alike."""
    outer = {
        "OZY_NODE_NAME": "x",
        "ETCD_NAME": "y",
        "HOME": "/",
        "NOTIFY_SOCKET": "z",
        "PATH": "/bin",
    }
    inner = programs.base_environment(outer)
    assert not {name for name in inner if name.startswith(("OZY_", "ETCD_", "NOTIFY"))}
    assert inner["PATH"].startswith("/bin:")
    assert inner["HOME"] == "/"


def test_programs_are_spared_for_memory_as_their_units_are(tmp_path: Path) -> None:
    """But podman's service is not: pods would inherit it."""
    scores = {p.name: p.oom_score_adj for p in programs.programs(a_cluster(tmp_path))}
    assert (scores.pop("podman"), scores.pop("guard")) == (0, 0)
    assert scores == {"etcd": -900, "n1": -800, "n2": -800, "ingress": -500, "dns": -500}
    for name, score in programs.OOM_SCORES.items():
        unit = "ozymandias" if name == "ozymandias" else f"ozymandias-{name}"
        file = Path(__file__).parents[3] / "deploy" / "systemd" / f"{unit}.service"
        assert f"\nOOMScoreAdjust={score}\n" in file.read_text()


def test_etcd_forgets_its_history(tmp_path: Path) -> None:
    """Else every change would be kept for ever; a host's own etcd is told what ours is."""
    command = " ".join(programs.etcd_command(a_cluster(tmp_path)))
    assert "--auto-compaction-mode periodic --auto-compaction-retention 5m" in command
    file = Path(__file__).parents[3] / "deploy" / "systemd" / "etcd-ozymandias.conf"
    told = dict(re.findall(r"^Environment=ETCD_(\w+)=(\S+)$", file.read_text(), re.M))
    assert told == {
        "MAX_TXN_OPS": str(programs.ETCD_OPERATIONS_MAX),
        "AUTO_COMPACTION_MODE": "periodic",
        "AUTO_COMPACTION_RETENTION": programs.ETCD_COMPACTION,
        "QUOTA_BACKEND_BYTES": str(programs.ETCD_QUOTA_BYTES),
        "HEARTBEAT_INTERVAL": str(programs.ETCD_HEARTBEAT_MILLISECONDS),
        "ELECTION_TIMEOUT": str(programs.ETCD_ELECTION_MILLISECONDS),
        "PRE_VOTE": "true",
    }


def test_back_off_doubles_up_to_its_limit() -> None:
    """The first failure is retried almost at once, the hundredth every few seconds."""
    waits = [backoff_seconds(failures) for failures in range(101)]
    assert waits[:3] == [0.0, BACKOFF_FIRST_SECONDS, 2 * BACKOFF_FIRST_SECONDS]
    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF_MAX_SECONDS


def test_remains_are_found_by_the_labels_that_the_runtime_sets() -> None:
    """`ozy down` looks for what the daemons make."""
    assert remains.LABEL_CLUSTER == podspec.CLUSTER
    assert remains.LABEL_OWNER == podspec.OWNER
    assert podspec.Owner(cluster="c", node="n1").label == "c/n1"
