"""`ozy install` into a directory tree, and what systemd and Vagrant say about the result."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ozymandias.daemon import config
from tests.etcd_server import EtcdCluster
from tests.integration.cluster.faults import Doctor
from tests.integration.cluster.test_up import AS_NOBODY

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
SYSTEM = Path("etc/systemd/system")
EXPOSURE_MAX = {
    "ozymandias": 5.0,
    "ozymandias-guard": 6.0,
    "ozymandias-ingress": 2.0,
    "ozymandias-dns": 2.0,
}
MODULES = {"ozymandias-guard": "python -P -m ozymandias.daemon.guard"}  # the others are programs


def ozy_install(*arguments: str) -> dict[str, str]:
    """What was done to which path."""
    done = subprocess.run(
        [sys.executable, "-m", "ozymandias.cli", "install", "-o", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {step["what"]: step["outcome"] for step in json.loads(done.stdout)}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    ozy_install("--root", str(root))
    return root


def analyze(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def files(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def test_a_dry_run_does_nothing(tmp_path: Path) -> None:
    """Every step is told, none is taken."""
    root = tmp_path / "tree"
    outcomes = ozy_install("--root", str(root), "--dry-run")
    assert set(outcomes.values()) == {"would"}
    assert str(root / SYSTEM / "ozymandias.service") in outcomes
    assert not root.exists()


def test_again_changes_nothing(tmp_path: Path) -> None:
    """The second time all is there; the host's own settings are kept, also by a removal."""
    root = str(tmp_path)
    ozy_install("--root", root)
    settings = tmp_path / "etc/ozymandias/ozymandias.toml"
    settings.write_text("# changed by hand\n")
    before = files(tmp_path)
    assert set(ozy_install("--root", root).values()) <= {"unchanged", "kept"}
    assert files(tmp_path) == before
    ozy_install("--root", root, "--remove")
    assert files(tmp_path) == {"etc/ozymandias/ozymandias.toml": "# changed by hand\n"}
    assert set(ozy_install("--root", root, "--remove").values()) == {"unchanged"}


def test_secrets_are_not_for_everybody(tree: Path) -> None:
    """Settings name etcd's credentials; an image carries no token that others would have, too."""
    assert (tree / "etc/ozymandias").stat().st_mode & 0o777 == 0o750
    assert (tree / "etc/ozymandias/ozymandias.toml").stat().st_mode & 0o777 == 0o640
    assert (tree / "var/lib/ozymandias").stat().st_mode & 0o777 == 0o700
    assert not (tree / "etc/ozymandias/tokens").exists()


def test_the_settings_are_good_as_they_are(tree: Path) -> None:
    """The daemon takes the file, and pods find their DNS where it listens."""
    found = config.load(tree / "etc/ozymandias/ozymandias.toml", {})
    subnet = found.podman.subnet.rpartition(".")[0]
    assert found.dns.listen == f"{subnet}.1:53"
    assert found.api.token_file == "/etc/ozymandias/tokens"


def test_refusal_without_root(tmp_path: Path) -> None:
    """This host is changed by root only."""
    script = AS_NOBODY.replace("import cluster, main", "import host, main")
    done = subprocess.run(
        [sys.executable, "-c", script, "install"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "takes root" in done.stderr
    assert "--dry-run" in done.stderr


# systemd ------------------------------------------------------------------------------------------


def test_systemd_takes_the_units(tree: Path) -> None:
    """`systemd-analyze verify` has nothing to say, with the paths of this installation."""
    services = [str(tree / SYSTEM / f"{name}.service") for name in EXPOSURE_MAX]
    done = analyze("verify", "--man=no", *services)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in EXPOSURE_MAX:
        text = (tree / SYSTEM / f"{name}.service").read_text()
        program = MODULES.get(name, name)
        assert f"ExecStart={BIN}/{program} --config /etc/ozymandias/ozymandias.toml\n" in text


def test_systemd_takes_the_drop_ins(tree: Path, tmp_path: Path) -> None:
    """Beside units of the names they are for."""
    units = tmp_path / "units"
    shutil.copytree(tree / SYSTEM, units)
    for name in ("etcd", "podman"):
        (units / f"{name}.service").write_text("[Service]\nExecStart=/bin/true\n")
    done = analyze(
        "verify", "--man=no", "etcd.service", "podman.service", SYSTEMD_UNIT_PATH=f"{units}:"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", EXPOSURE_MAX)
def test_units_expose_little(tree: Path, name: str) -> None:
    """By systemd's own count: what faces the network at most 2.0; root's daemon and guard more."""
    unit = tree / SYSTEM / f"{name}.service"
    threshold = f"--threshold={EXPOSURE_MAX[name] * 10:.0f}"
    done = analyze("security", "--offline=true", threshold, "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_the_group_is_made_by_sysusers(tree: Path, tmp_path: Path) -> None:
    """Images and packages make the group at their first boot."""
    shutil.copytree(tree / "usr", tmp_path / "usr")
    (tmp_path / "etc").mkdir()
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}"], check=True, capture_output=True)
    assert "ozymandias:" in (tmp_path / "etc/group").read_text()


# A kernel's MemoryDenyWriteExecute; the rest of the unit's walls take systemd to build.
WALLED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def walled(program: str, settings: Path, notify: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program as its unit runs it: notify socket, watchdog, no memory both written and run."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
    environment |= {"NOTIFY_SOCKET": str(notify), "WATCHDOG_USEC": "400000"}
    with (settings.parent / f"{program}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", WALLED, str(BIN / program), "--config", str(settings)],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(1) as cluster:
        yield cluster


@pytest.mark.parametrize("program", sorted(EXPOSURE_MAX.keys() - MODULES.keys()))
def test_programs_keep_their_units_promises(
    tmp_path: Path, etcd: EtcdCluster, program: str
) -> None:
    """`Type=notify` and `WatchdogSec`: each says that it is ready and goes on living; it ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        settings = Doctor(folder=tmp_path).settings(etcd={"endpoints": list(etcd.endpoints)})
        said = ""
        with walled(program, settings, tmp_path / "notify") as process:
            while "READY=1" not in said or "WATCHDOG=1" not in said:
                said += systemd.recv(4096).decode() + "\n"
        assert process.returncode == 0, (tmp_path / f"{program}.log").read_text()


# Vagrant ------------------------------------------------------------------------------------------


def test_the_vagrantfile(tmp_path: Path) -> None:
    """Vagrant takes it as it is, whatever provider there may be."""
    shutil.copy(ROOT / "Vagrantfile", tmp_path)
    done = subprocess.run(
        ["vagrant", "validate", "--ignore-provider"],
        cwd=tmp_path,
        env={**os.environ, "VAGRANT_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validated successfully" in done.stdout
    assert all(f"host-{n}:" in done.stdout for n in (1, 2, 3))
