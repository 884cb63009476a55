"""The supervisors with real, small programs: started, started anew, killed, ended.

What both have in common is tested of the one of `ozy up`, or of both.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ozymandias.cluster import reach, supervision
from ozymandias.cluster.founding import record, services, supervise
from ozymandias.cluster.founding.record import ClusterSettings, HostRecord, Places
from ozymandias.cluster.programs import Program
from ozymandias.cluster.state import Processes
from ozymandias.cluster.supervision import Supervision
from ozymandias.cluster.supervisor import Supervisor
from ozymandias.model.record import replace
from ozymandias.problems import HOST_CLUSTER, ProblemError
from tests.unit.cluster.test_state import a_cluster

DEADLINE_SECONDS = 20.0
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
READY = f"""
import os, socket
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for words in (b"STATUS=nearly", b"READY=1\\nSTATUS=here"):
    channel.sendto(words, os.environ["NOTIFY_SOCKET"])
{SLEEPER}
"""
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


def program(name: str, code: str, *, is_node: bool = False) -> Program:
    return Program(
        name=name,
        command=(sys.executable, "-c", code),
        environment=dict(os.environ),
        is_node=is_node,
        grace_seconds=0.5,
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(supervisor: Supervision, socket: Path) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervisor.run())
        try:
            await until(socket.exists)
            yield
        finally:
            supervisor.stopping.set()
            await task


@asynccontextmanager
async def supervised(directory: Path, *wanted: Program) -> AsyncIterator[Supervisor]:
    """As `ozy up` has it."""
    cluster = replace(a_cluster(directory), id=f"test-{os.getpid()}-{directory.name[-20:]}")
    cluster.save()
    cluster.run_dir.mkdir(parents=True)
    supervisor = Supervisor(cluster, wanted)
    try:
        async with running(supervisor, cluster.supervisor_socket):
            yield supervisor
    finally:
        shutil.rmtree(cluster.run_dir, ignore_errors=True)


async def ask(supervisor: Supervisor, **request: Any) -> Any:
    return await asyncio.to_thread(reach.ask_supervisor, supervisor.cluster, **request)


def sleeping_script(directory: Path, word: str, name: str = "etcd") -> None:
    script = directory / name
    script.write_text(f"#!/bin/sh\necho {word}\nexec sleep 600\n")
    script.chmod(0o755)


class Host:
    """A founded host whose etcd is a script of ours. Its root's path is short: a socket's is."""

    def __init__(self, root: Path) -> None:
        self.places = Places(root=root)
        self.places.run.mkdir(parents=True)
        self.places.state.mkdir(parents=True)
        sleeping_script(root, "up")
        settings = ClusterSettings(id="c1", network="bridge", dns="builtin")
        made = HostRecord(cluster=settings, name="h1", address="127.0.0.1", bin_dirs=(str(root),))
        record.save(self.places, made)

    @property
    def log(self) -> str:
        """What etcd said."""
        file = self.places.logs / "etcd.log"
        return file.read_text() if file.exists() else ""

    async def ask(self, **request: Any) -> Any:
        path = self.places.supervisor_socket
        return await asyncio.to_thread(reach.ask, path, HOST_CLUSTER, timeout=20.0, **request)

    @asynccontextmanager
    async def booted(self) -> AsyncIterator[supervise.Supervisor]:
        supervisor = supervise.Supervisor(self.places)
        async with running(supervisor, self.places.supervisor_socket):
            yield supervisor


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="ozy-host-") as root:
        yield Host(Path(root))


# As `ozy up` has it -------------------------------------------------------------------------------


async def test_the_kernel_is_told_whom_to_spare(tmp_path: Path) -> None:
    """Where that is allowed; where it is not, the program runs all the same."""
    less = replace(program("less", SLEEPER), oom_score_adj=300)  # anybody may be less worth
    spared = replace(program("spared", SLEEPER), oom_score_adj=-800)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    async with supervised(tmp_path, less, spared) as supervisor:
        await until(lambda: all(c.process for c in supervisor.children.values()))
        scores = {
            name: int(Path(f"/proc/{child.process.pid}/oom_score_adj").read_text())
            for name, child in supervisor.children.items()
            if child.process
        }
    assert scores["less"] == 300
    assert scores["spared"] in (-800, own)


async def test_what_dies_is_started_again(tmp_path: Path) -> None:
    """A program that was killed by somebody else runs again soon, as another process."""
    async with supervised(tmp_path, program("etcd", SLEEPER)) as supervisor:
        child = supervisor.children["etcd"]
        await until(lambda: child.process is not None)
        first = child.process
        assert first is not None
        first.kill(signal.SIGKILL)
        await until(lambda: child.process is not None and child.process != first)
        status = await ask(supervisor, do="status")
        assert status["programs"][0]["starts"] == 2
        assert status["programs"][0]["last_exit"] == "signal 9"
        assert Processes.load(tmp_path).by_name["etcd"] == child.process


async def test_a_killed_node_stays_dead_until_started(tmp_path: Path) -> None:
    """A node killed on purpose is not brought back by the supervisor but by `start`."""
    async with supervised(tmp_path, program("n1", SLEEPER, is_node=True)) as supervisor:
        child = supervisor.children["n1"]
        await until(lambda: child.process is not None)
        answer = await ask(supervisor, do="kill", node="n1", timeout=30.0)
        assert answer == {"killed": "n1", "was_running": True, "pods": 0}
        assert child.process is None
        assert not child.wanted
        again = await ask(supervisor, do="kill", node="n1", timeout=30.0)
        assert not again["was_running"]
        await ask(supervisor, do="start", node="n1")
        await until(lambda: child.process is not None)


async def test_all_programs_end_even_deaf_ones(tmp_path: Path) -> None:
    """`down` ends every program; one that ignores SIGTERM is killed after its grace."""
    async with supervised(tmp_path, program("etcd", SLEEPER), program("dns", DEAF)) as supervisor:
        log = supervisor.cluster.logs / "dns.log"
        await until(lambda: log.exists() and "up" in log.read_text())
        processes = [c.process for c in supervisor.children.values() if c.process is not None]
        assert len(processes) == 2
        await ask(supervisor, do="down")
        await until(lambda: not supervisor.cluster.supervisor_socket.exists())
        assert not any(process.is_alive for process in processes)


async def test_down_right_after_the_start_leaves_nothing(tmp_path: Path) -> None:
    """A program that is only just being started when the end is asked for ends as well."""
    async with supervised(tmp_path, program("etcd", SLEEPER), program("n1", DEAF)) as supervisor:
        supervisor.stopping.set()
        await until(lambda: not supervisor.cluster.supervisor_socket.exists())
        assert not Processes.load(tmp_path).alive().keys() - {"supervisor"}


async def test_a_program_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    """A missing executable shows in the status; the supervisor itself goes on."""
    absent = replace(program("etcd", ""), command=("/nowhere/etcd",))
    async with supervised(tmp_path, absent) as supervisor:
        await until(lambda: supervisor.children["etcd"].failures >= 2)
        status = await ask(supervisor, do="status")
        assert "could not be started" in status["programs"][0]["last_exit"]


async def test_who_does_not_get_ready_in_time_is_started_anew(tmp_path: Path) -> None:
    """It is ended, if need be by SIGKILL, and the status says why; who said so in time runs on."""
    good, bad = program("good", READY), program("bad", DEAF)
    wanted = [replace(each, start_seconds_max=1.5) for each in (good, bad)]
    async with supervised(tmp_path, *wanted) as supervisor:
        ready, late = supervisor.children["good"], supervisor.children["bad"]
        log = supervisor.cluster.logs / "good.log"
        await until(lambda: log.exists() and "up" in log.read_text())
        process, starts = ready.process, late.starts
        await until(lambda: late.starts >= starts + 2)  # the time of both is over by then
        assert late.last_exit == "not ready in 2 s: signal 9"
        assert ready.process == process is not None
    assert not list(supervisor.cluster.run_dir.glob("*.notify"))


@pytest.mark.parametrize(
    "line", [b"nonsense\n", b"[]\n", b'{"do": "x"}\n', b'{"do": "kill"}\n', b"\n"]
)
async def test_nonsense_is_answered_as_such(tmp_path: Path, line: bytes) -> None:
    """A bad request gets an error and hurts nobody."""
    async with supervised(tmp_path) as supervisor:
        path = str(supervisor.cluster.supervisor_socket)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(line)
        assert b"error" in await reader.readline()
        writer.close()
        assert (await ask(supervisor, do="status"))["programs"] == []


# As a founded host has it -------------------------------------------------------------------------


async def test_a_service_runs_from_start_to_stop(host: Host) -> None:
    """`start` starts it, `stop` ends it for good, and a name that is no service's is refused."""
    async with host.booted() as supervisor:
        assert (await host.ask(do="status"))["programs"] == []
        await host.ask(do="start", name="etcd")
        await until(lambda: "up" in host.log)
        await host.ask(do="stop", name="etcd")
        assert supervisor.children["etcd"].process is None
        assert supervisor.children["etcd"].failures == 0
        with pytest.raises(ProblemError, match="refused"):
            await host.ask(do="start", name="nonsense")


async def test_a_restart_takes_new_settings_and_is_no_failure(host: Host) -> None:
    """A restart starts the program as the record now has it, without back-off."""
    async with host.booted() as supervisor:
        await host.ask(do="start", name="etcd")
        await until(lambda: "up" in host.log)
        other = host.places.root / "other"
        other.mkdir()
        sleeping_script(other, "anew")
        found = record.load(host.places)
        assert found is not None
        record.save(host.places, replace(found, bin_dirs=(str(other),)))
        await host.ask(do="restart", name="etcd")
        await until(lambda: "anew" in host.log)
        child = supervisor.children["etcd"]
        assert (child.starts, child.failures) == (2, 0)


async def test_a_boot_starts_what_ran(host: Host) -> None:
    """What was started and not stopped is started again by the next supervisor."""
    async with host.booted():
        await host.ask(do="start", name="etcd")
        await host.ask(do="start", name="podman")
        await host.ask(do="stop", name="podman")
        await until(lambda: host.log.count("up") == 1)
    async with host.booted() as supervisor:
        assert list(supervisor.children) == ["etcd"]
        await until(lambda: host.log.count("up") == 2)


async def test_a_damaged_record_at_a_boot_is_not_the_end(host: Host) -> None:
    """The supervisor lives, says why nothing starts, and starts it once the record is mended."""
    async with host.booted():
        await host.ask(do="start", name="etcd")
        await until(lambda: host.log.count("up") == 1)
    whole = host.places.record.read_text()
    host.places.record.write_text(whole[:20])
    async with host.booted() as supervisor:
        child = supervisor.children["etcd"]
        await until(lambda: child.failures >= 2)
        assert "can't be read" in (await host.ask(do="status"))["programs"][0]["last_exit"]
        with pytest.raises(ProblemError, match="can't be read"):
            await host.ask(do="start", name="podman")
        host.places.record.write_text(whole)
        await until(lambda: host.log.count("up") == 2)


async def test_flanneld_that_waits_for_ever_is_started_anew(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time to get ready is the one that systemd gives it, and so is what happens then."""
    found = record.load(host.places)
    assert found is not None
    on_flannel = replace(found, cluster=replace(found.cluster, network="flannel"))
    record.save(host.places, on_flannel)
    sleeping_script(host.places.root, "waits for etcd", "flanneld")
    limits = {s.name: s.start_seconds_max for s in services.services(on_flannel, host.places)}
    assert limits["flanneld"] == services.FLANNELD_START_SECONDS_MAX
    assert not any(limits[name] for name in limits if name != "flanneld")
    monkeypatch.setattr(services, "FLANNELD_START_SECONDS_MAX", 0.3)
    async with host.booted() as supervisor:
        await host.ask(do="start", name="flanneld")
        await until(lambda: supervisor.children["flanneld"].starts >= 2)
        (status,) = (await host.ask(do="status"))["programs"]
        assert status["last_exit"] == "not ready in 0 s: signal 15"
        await host.ask(do="stop", name="flanneld")
    assert (host.places.logs / "flanneld.log").read_text().count("waits for etcd") >= 1


# Both ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def one_program(kind: str, directory: Path, host: Host) -> AsyncIterator[Supervision]:
    """Either supervisor, with one program that runs."""
    if kind == "local":
        async with supervised(directory, program("etcd", SLEEPER)) as supervisor:
            await until(lambda: supervisor.children["etcd"].process is not None)
            yield supervisor
    else:
        async with host.booted() as founded:
            await host.ask(do="start", name="etcd")
            await until(lambda: founded.children["etcd"].process is not None)
            yield founded


@pytest.mark.parametrize("kind", ["local", "host"])
async def test_what_could_not_be_written_down_is_tried_again(
    kind: str, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes nothing ends nobody; once it does, it is told what runs."""
    monkeypatch.setattr(supervision, "UPKEEP_SECONDS", 0.05)
    async with one_program(kind, tmp_path, host) as supervisor:
        child = supervisor.children["etcd"]
        records = tmp_path if kind == "local" else host.places.run
        file = records / "processes.json"
        await until(lambda: Processes.load(records).by_name.get("etcd") == child.process)
        file.unlink()
        (file / "in the way").mkdir(parents=True)
        first = child.process
        assert first is not None
        first.kill(signal.SIGKILL)
        await until(lambda: child.process not in (None, first))
        assert not supervisor.is_recorded
        shutil.rmtree(file)
        await until(lambda: supervisor.is_recorded)
        assert Processes.load(records).by_name["etcd"] == child.process


@pytest.mark.parametrize("kind", ["local", "host"])
async def test_a_log_does_not_grow_without_bound(
    kind: str, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond its size it moves aside, and the program goes on writing to the same file."""
    monkeypatch.setattr(supervision, "UPKEEP_SECONDS", 0.05)
    monkeypatch.setattr(supervision, "LOG_SIZE_MAX_BYTES", 1000)
    async with one_program(kind, tmp_path, host):
        logs = tmp_path / "logs" if kind == "local" else host.places.logs
        log = logs / "etcd.log"
        await until(lambda: "up" in log.read_text())
        number = log.stat().st_ino
        with log.open("ab") as stream:
            stream.write(b"x" * 3000)
        await until(lambda: log.stat().st_size == 0)
        assert log.stat().st_ino == number
        assert (logs / "etcd.log.1").read_bytes() == b"x" * 1000
