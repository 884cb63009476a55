"""`ozy up`, `down`, `node kill`, `node start` with everything real, as a person would type them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ozymandias.cluster import state
from ozymandias.cluster.state import LocalCluster, Processes

OZY = str(Path(sys.executable).with_name("ozy"))
NETWORKS = Path("/etc/containers/networks")
DEADLINE_SECONDS = 60.0
JOB = """\
name: web
numInstances: 3
containers:
  web:
    image: localhost/ozy-demo:1
    pull_policy: never
    memory: 32M
    ports: ["80:8000"]
    healthcheck: {type: http, port: 8000, path: /healthz, interval: 1s, timeout: 1s}
"""

pytestmark = pytest.mark.timeout(240)


@dataclass
class Person:
    """Types `ozy` in a directory of their own."""

    directory: Path
    environment: dict[str, str]

    @property
    def state_dir(self) -> Path:
        return self.directory / "cluster"

    @property
    def up_command(self) -> list[str]:
        return [OZY, "up", "--state-dir", str(self.state_dir), "--api-port=0", "--ingress-port=0"]

    def run(self, *arguments: str, code: int = 0) -> Any:
        """`ozy … -o json`, its document; the exit code is checked."""
        done = subprocess.run(
            [OZY, *arguments, "-o", "json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def up(self, *options: str) -> Any:
        return self.run(*self.up_command[1:], "--memory=512M", "--disk=1G", *options)

    def cluster(self) -> LocalCluster:
        found = state.load(self.state_dir)
        assert found is not None
        return found

    def submit(self) -> None:
        file = self.directory / "web.yaml"
        file.write_text(JOB)
        self.run("submit", str(file))

    def healthy(self) -> dict[str, str]:
        """Instance -> node, of the healthy ones."""
        return {row["instance"]: row["node"] for row in self.run("ps") if row["healthy"]}


def until(condition: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


def podman(*arguments: str) -> list[str]:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.split()


def containers_of(cluster: str) -> dict[str, str]:
    """Id -> when it was started, of the containers of a cluster."""
    label = f"--filter=label=ozymandias.cluster={cluster}"
    lines = podman("ps", "--all", "--no-trunc", "--format={{.ID}}={{.StartedAt}}", label)
    return dict(line.split("=") for line in lines)


def remains_of(cluster_id: str, directory: Path) -> dict[str, object]:
    """Everything that names the cluster or its directory and is still there."""
    label = f"--filter=label=ozymandias.cluster={cluster_id}"
    commands = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdigit() and int(entry.name) != os.getpid() and f"{directory}/" in text:
            commands.append(text.replace("\0", " "))
    found = {
        "processes": commands,
        "containers": podman("ps", "--all", "--quiet", label),
        "pods": podman("pod", "ls", "--quiet", label),
        "volumes": podman("volume", "ls", "--quiet", label),
        "networks": [
            # netavark's, whichever back end podman chose for itself on this machine
            str(file)
            for file in NETWORKS.glob("*.json")
            if cluster_id in file.name
        ],
        "mounts": [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if f" {directory}/" in line
        ],
        "sockets": [p for p in (state.RUN_BASE / cluster_id,) if p.exists()],
    }
    return {what: things for what, things in found.items() if things}


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
    someone = Person(
        directory=tmp_path,
        environment=environment | {"OZY_CONTEXT": str(tmp_path / "context.json")},
    )
    try:
        yield someone
    finally:
        subprocess.run(
            [OZY, "down", "--state-dir", str(someone.state_dir)],
            env=someone.environment,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )


def test_up_and_down_and_both_again(person: Person) -> None:
    """A second `up` finds the cluster, `down` leaves nothing, a second `down` has nothing to do."""
    first = person.up()
    assert first["nodes"] == ["n1", "n2", "n3"]
    assert not first["was_running"]
    assert person.cluster().token_file.stat().st_mode & 0o777 == 0o600
    rows = person.run("nodes")
    assert [(row["name"], row["state"]) for row in rows] == [(n, "ready") for n in first["nodes"]]
    assert {row["memory_bytes"]["total"] for row in rows} == {512 * 2**20}

    again = person.up("--nodes=5")
    assert again["was_running"]
    assert again["cluster"] == first["cluster"]
    assert again["differs"] == ["--nodes is 3, not 5"]

    person.submit()
    assert person.run("down") == {
        "removed": True,
        "cluster": first["cluster"],
        "state_dir": str(person.state_dir),
    }
    assert remains_of(first["cluster"], person.directory) == {}
    assert not person.state_dir.exists()
    assert not (person.directory / "context.json").exists()
    assert person.run("down", "--state-dir", str(person.state_dir))["removed"] is False


def test_a_killed_supervisor(person: Person) -> None:
    """`up` brings it back beside what it had started; no container is restarted."""
    up = person.up()
    person.submit()
    before = containers_of(up["cluster"])
    Processes.load(person.state_dir).by_name["supervisor"].kill(signal.SIGKILL)
    back = person.up()
    assert back["cluster"] == up["cluster"]
    assert back["was_stale"]
    until(lambda: len(person.healthy()) == 3)
    assert containers_of(up["cluster"]) == before


def _power_cut(person: Person, cluster: str) -> None:
    for process in Processes.load(person.state_dir).by_name.values():
        process.kill(signal.SIGKILL)
    label = f"--filter=label=ozymandias.cluster={cluster}"
    subprocess.run(["podman", "kill", "--signal=KILL", *podman("ps", "-q", label)], check=False)


def test_after_a_power_cut_up_brings_the_cluster_back(person: Person) -> None:
    """The jobs are still known and run again."""
    up = person.up()
    person.submit()
    _power_cut(person, up["cluster"])
    back = person.up()
    assert back["was_stale"]
    assert back["cluster"] == up["cluster"]
    until(lambda: len(person.healthy()) == 3)


def test_after_a_power_cut_down_removes_what_is_left(person: Person) -> None:
    """Nothing of the cluster has to be alive for that."""
    up = person.up()
    person.submit()
    _power_cut(person, up["cluster"])
    assert person.run("down")["removed"] is True
    assert remains_of(up["cluster"], person.directory) == {}


@contextmanager
def upping(person: Person, file: str) -> Iterator["subprocess.Popen[str]"]:
    """`ozy up` that has come so far that this file of the cluster is there."""
    with subprocess.Popen(
        person.up_command,
        env=person.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        until(lambda: (person.state_dir / file).exists() or process.poll() is not None)
        yield process


@pytest.mark.parametrize("file", ["", "cluster.json", "processes.json", "logs/n1.log"])
def test_an_interrupted_up_leaves_nothing(person: Person, file: str) -> None:
    """Ctrl-C at any moment before it is ready: exit code 130, everything undone."""
    with upping(person, file) as process:
        running = state.load(person.state_dir)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    if process.returncode == 0:  # it was ready before the interruption
        return
    assert process.returncode == 130, output
    assert not person.state_dir.exists()
    assert remains_of(running.id if running else "no-such", person.directory) == {}


@pytest.mark.parametrize("file", ["cluster.json", "logs/n1.log"])
def test_down_removes_what_a_killed_up_left(person: Person, file: str) -> None:
    """kill -9 of `ozy up` half way: `down` finds it all, whatever had come to be."""
    with upping(person, file) as process:
        process.kill()
    found = state.load(person.state_dir)
    assert found is not None
    person.run("down", "--state-dir", str(person.state_dir))
    assert not person.state_dir.exists()
    assert remains_of(found.id, person.directory) == {}


def test_a_taken_port_is_named(person: Person) -> None:
    """The port and the option to choose another one; nothing is left."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        problem = person.run(
            *("up", "--state-dir", str(person.state_dir), "--api-port=0", "--ingress-port"),
            str(port),
            code=1,
        )
    assert problem["port"] == port
    assert "--ingress-port" in problem["hint"]
    assert not person.state_dir.exists()


def test_a_missing_etcd_is_named(person: Person, tmp_path: Path) -> None:
    """What to install is said before anything is made."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "podman").symlink_to("/usr/bin/podman")
    person.environment["PATH"] = str(programs)
    problem = person.run(*person.up_command[1:], code=1)
    assert problem["missing"] == ["etcd"]
    assert "etcd-server" in problem["hint"]
    assert not person.state_dir.exists()
    person.environment["PATH"] = os.environ["PATH"]


def test_a_program_that_keeps_dying_ends_up_with_its_log(person: Person, tmp_path: Path) -> None:
    """An etcd that can't run makes `up` fail with the last lines of what it said."""
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = programs / "etcd"
    fake.write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
    fake.chmod(0o755)
    person.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    problem = person.run(*person.up_command[1:], code=1)
    assert problem["program"] == "etcd"
    assert "no luck today" in problem["log"]
    assert "exit code 3" in problem["detail"]
    assert not person.state_dir.exists()


def test_two_clusters_side_by_side(person: Person, tmp_path: Path) -> None:
    """Each has its own ports, network and context; removing one leaves the other alone."""
    first = person.up("--nodes=1")
    other = Person(directory=tmp_path / "other", environment=person.environment)
    other.directory.mkdir()
    second = other.up("--nodes=1")
    try:
        assert (first["context"], second["context"]) == ("local", f"local-{second['cluster']}")
        assert person.cluster().subnet != other.cluster().subnet
    finally:
        other.run("down", "--state-dir", str(other.state_dir))
    assert remains_of(second["cluster"], other.directory) == {}
    assert [row["name"] for row in person.run("nodes")] == ["n1"]


def test_another_directorys_files_are_left_alone(person: Person) -> None:
    """A state directory that holds something else is refused, and nothing in it is touched."""
    person.state_dir.mkdir()
    (person.state_dir / "diary.txt").write_text("mine")
    problem = person.run(*person.up_command[1:], code=1)
    assert "holds other things" in problem["detail"]
    assert (person.state_dir / "diary.txt").read_text() == "mine"
