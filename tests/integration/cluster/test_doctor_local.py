"""`ozy doctor` on a cluster that `ozy up` made, with one thing after another broken in it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ozymandias.cluster import remains, state
from ozymandias.cluster.state import LocalCluster, Processes, ProcessId
from ozymandias.model.node import NodeName
from ozymandias.store import keys
from tests.integration.api.rig import until
from tests.integration.cluster.faults import Doctor

UP_SECONDS_MAX = 90


class Local:
    """One node; `ozy` as another process, with a context file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dir = folder / "cluster"
        self.doctor = Doctor(folder=folder)

    def ozy(self, *arguments: str) -> str:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
        done = subprocess.run(
            [sys.executable, "-m", "ozymandias.cli", *arguments],
            env=kept | {"OZY_CONTEXT": str(self.folder / "context.json")},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=UP_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def cluster(self) -> LocalCluster:
        found = state.load(self.state_dir)
        assert found is not None
        return found

    def etcdctl(self, *arguments: str) -> list[str]:
        return ["etcdctl", f"--endpoints=127.0.0.1:{self.cluster.etcd_port}", *arguments]

    @contextmanager
    def lease_of(self, node: str) -> Iterator[None]:
        """The node's lease does not run out meanwhile, whatever becomes of its daemon."""
        environment = os.environ | {"ETCDCTL_API": "3"}
        get = self.etcdctl("get", keys.node(NodeName(node)).decode(), "-w", "json")
        found = json.loads(subprocess.check_output(get, env=environment, timeout=20))
        lease = f"{found['kvs'][0]['lease']:x}"
        with subprocess.Popen(
            self.etcdctl("lease", "keep-alive", lease), env=environment, stdout=subprocess.PIPE
        ) as keeper:
            try:
                assert keeper.stdout is not None
                assert b"keepalived" in keeper.stdout.readline()
                yield
            finally:
                keeper.terminate()

    def process(self, name: str) -> ProcessId:
        return Processes.load(self.state_dir).by_name[name]

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        process = self.process(name)
        process.kill(signal.SIGSTOP)
        try:
            yield
        finally:
            process.kill(signal.SIGCONT)


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    folder = Path(tempfile.mkdtemp(prefix="ozy-doctor-"))
    found = Local(folder)
    where = ("--state-dir", str(found.state_dir))
    try:
        found.ozy("up", "--nodes", "1", "--api-port", "0", "--ingress-port", "0", *where)
        yield found
    finally:
        found.ozy("down", *where)
        shutil.rmtree(folder)


def test_a_cluster_in_good_health(local: Local) -> None:
    """Nothing fails, and all that matters was looked at."""
    found = local.doctor.run()
    failed = [check for check in found.checks if check["verdict"] == "fail"]
    assert not failed
    assert found.code == 0
    for name in ("local cluster", "n1", "podman service", "pod network", "ingress", "DNS", "API"):
        found.of(name, "ok")
    assert found.of("node n1", "ok")


def test_the_report_for_people(local: Local) -> None:
    """One line each, the remedy below, a summary at the end."""
    lines = local.ozy("doctor").splitlines()
    assert "checks:" in lines[-1]
    assert lines[-1].endswith("0 failures")
    assert all(line[:5] in ("ok   ", "warn ", "fail ", "     ") for line in lines[:-1])


def test_a_wrong_token(local: Local) -> None:
    """The API refuses it, and where the right one is to be found is said."""
    file = local.folder / "context.json"
    good = file.read_text()
    document = json.loads(good)
    for context in document["contexts"].values():
        context["token"] = "wrong"
    try:
        file.write_text(json.dumps(document))
        check = local.doctor.run().of("API", "fail")
    finally:
        file.write_text(good)
    assert "token is missing or wrong" in check["detail"]
    assert "token_file" in check["remedy"]


@pytest.mark.parametrize(
    ("program", "check", "remedy"),
    [
        ("etcd", "etcd", "kill -9"),
        ("podman", "podman service", "kill -9"),
        ("dns", "DNS", "dns.log"),
    ],
)
def test_a_program_that_hangs(local: Local, program: str, check: str, remedy: str) -> None:
    """It has its pid and its port and says nothing: found by asking, not by looking at pids."""
    with local.paused(program):
        found = local.doctor.run()
    assert found.code == 1
    assert remedy in found.of(check, "fail")["remedy"]


def test_an_image_that_nobody_has(local: Local) -> None:
    """A job whose image can't be pulled: by podman's word and by the instance's own."""
    job = {"name": "lost", "containers": {"app": {"image": "localhost/never-made:1"}}}
    (local.folder / "lost.yaml").write_text(json.dumps(job))
    local.ozy("submit", "--detach", "lost.yaml")
    found = until(
        lambda: found if (found := local.doctor.run()).has("instance lost-0", "fail") else None
    )
    assert "podman load" in found.of("image localhost/never-made:1", "fail")["remedy"]
    assert "image" in found.of("instance lost-0", "fail")["remedy"]
    local.ozy("stop", "--detach", "lost")


def test_a_network_that_somebody_removed_and_a_stale_lease(local: Local) -> None:
    """No pod could be started any more; a restart of the node helps, as is said.

    Meanwhile the killed node is still alive by the store's word.
    """
    remains.podman(local.cluster, "network", "rm", "--force", local.cluster.network)
    check = local.doctor.run().of("pod network", "fail")
    assert local.cluster.network in check["detail"]
    assert "restart it" in check["remedy"]
    with local.lease_of("n1"):
        local.ozy("node", "kill", "n1")
        found = local.doctor.run()
    assert "ozy node start n1" in found.of("lease of n1", "warn")["remedy"]
    assert "ozy node start n1" in found.of("n1", "warn")["remedy"]
    local.ozy("node", "start", "n1")
    until(lambda: local.doctor.run().has("pod network", "ok"))


def test_a_power_cut(local: Local) -> None:
    """All programs are gone and the state is there; `ozy up` brings it back, as is said."""
    processes = Processes.load(local.state_dir).alive()
    for process in sorted(processes.items(), key=lambda item: item[0] != "supervisor"):
        process[1].kill(signal.SIGKILL)
    until(lambda: not Processes.load(local.state_dir).alive())
    check = local.doctor.run().of("local cluster", "fail")
    assert "power cut" in check["detail"]
    assert "ozy up" in check["remedy"]


def test_a_damaged_state_file(local: Local) -> None:
    """Told as such, with what is left to do."""
    file = local.state_dir / "cluster.json"
    good = file.read_text()
    try:
        file.write_text(good[: len(good) // 2])
        check = local.doctor.run().of("local cluster", "fail")
    finally:
        file.write_text(good)
    assert "can't be read" in check["detail"]
    assert "by hand" in check["remedy"]
