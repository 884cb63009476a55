"""systemd's files of a founded host, by systemd's own word."""

import sys
from pathlib import Path

import pytest

from ozymandias.cluster.founding import files, services
from ozymandias.cluster.founding.record import ClusterSettings, HostRecord, Places
from ozymandias.cluster.founding.services import FLANNELD_START_SECONDS_MAX
from ozymandias.daemon import config
from tests.integration.cluster.test_install import analyze

BIN = Path(sys.executable).parent
OTHERS = ("etcd", "flanneld", "coredns", "podman")
# systemd's own measure of what a unit could do beyond its task: 10 is everything.
EXPOSURE_MAX = {
    "ozymandias-etcd.service": 5.0,
    "ozymandias-coredns.service": 2.0,
    "ozymandias-keeper.service": 5.0,
    "ozymandias-guard.service": 6.0,
    "ozymandias-flanneld.service": 7.0,
}


@pytest.fixture
def record(tmp_path: Path) -> HostRecord:
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in OTHERS:
        (bin_dir / name).write_text("#!/bin/sh\n")
        (bin_dir / name).chmod(0o755)
    return HostRecord(
        cluster=ClusterSettings(id="c1"),
        name="h1",
        address="192.0.2.1",
        endpoints=("https://192.0.2.1:2379",),
        initial_members=("h1=https://192.0.2.1:2380",),
        bin_dirs=(str(bin_dir),),
        labels={"zone": "a", "example.org/rack": "r 7"},
    )


@pytest.fixture
def units(record: HostRecord, tmp_path: Path) -> Path:
    directory = tmp_path / "units"
    directory.mkdir()
    for path, text in services.unit_files(record, Places(), BIN).items():
        if path.suffix == ".service":
            (directory / path.name).write_text(text)
    (directory / "podman.socket").write_text("[Socket]\nListenStream=/run/podman/podman.sock\n")
    (directory / "podman.service").write_text("[Service]\nExecStart=/bin/true\n")
    return directory


def test_systemd_takes_every_unit(units: Path, record: HostRecord) -> None:
    """`systemd-analyze verify` has nothing to say; programs are where they were found."""
    names = sorted(path.name for path in units.glob("ozymandias*.service"))
    assert len(names) == 7  # etcd, flanneld, coredns, guard, daemon, ingress, keeper
    done = analyze("verify", "--man=no", *names, SYSTEMD_UNIT_PATH=f"{units}:")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("etcd", "flanneld", "coredns"):
        text = (units / f"ozymandias-{name}.service").read_text()
        assert f"ExecStart={record.bin_dirs[0]}/{name}" in text


def test_units_may_do_little_beyond_their_task(units: Path) -> None:
    """By systemd's own measure, each stays below a limit."""
    for name, most in EXPOSURE_MAX.items():
        done = analyze(
            "security", "--offline=true", f"--threshold={most * 10:.0f}", str(units / name)
        )
        assert done.returncode == 0, done.stdout[-400:] + done.stderr


def test_flanneld_is_not_waited_for_without_end(units: Path) -> None:
    """Its client of etcd never gives up a question that a silent member took: systemd ends it."""
    lines = (units / "ozymandias-flanneld.service").read_text().splitlines()
    limit = f"TimeoutStartSec={FLANNELD_START_SECONDS_MAX:.0f}"
    assert {"Type=notify", "Restart=always", limit} <= set(lines)


def test_settings_are_good_and_secrets_are_not_for_everybody(
    record: HostRecord, tmp_path: Path
) -> None:
    """The daemon takes its file; every file but the units' names no secret and has its mode."""
    places = Places(root=Path("/srv/elsewhere"))
    texts = {text.path.name: text for text in files.texts(record, places)}
    assert set(texts) == {
        *("ozymandias.toml", "containers.conf", "etcd.env", "flanneld.env", "Corefile"),
    }
    assert texts["ozymandias.toml"].mode == 0o640
    file = tmp_path / "ozymandias.toml"
    file.write_text(texts["ozymandias.toml"].text)
    loaded = config.load(file, {})
    assert loaded.api.cert_file.endswith("tls/host.crt")
    assert loaded.etcd.cert_file.endswith("tls/client.crt")
    assert loaded.podman.network_kind == "flannel"
    assert loaded.node.labels == {"zone": "a", "example.org/rack": "r 7"}
    assert "tls /srv/elsewhere/etc/ozymandias/tls/client.crt" in texts["Corefile"].text
