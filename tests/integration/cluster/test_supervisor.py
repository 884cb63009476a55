"""The supervisor with real, small programs: started, started anew, killed, ended."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ozymandias.cluster import reach
from ozymandias.cluster.programs import Program
from ozymandias.cluster.state import Processes
from ozymandias.cluster.supervisor import Supervisor
from tests.unit.cluster.test_state import a_cluster

DEADLINE_SECONDS = 20.0
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
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
async def supervised(directory: Path, *wanted: Program) -> AsyncIterator[Supervisor]:
    cluster = replace(a_cluster(directory), id=f"test-{os.getpid()}-{directory.name[-20:]}")
    cluster.save()
    cluster.logs.mkdir()
    cluster.run_dir.mkdir(parents=True)
    supervisor = Supervisor(cluster, wanted)
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(supervisor.run())
            try:
                await until(cluster.supervisor_socket.exists)
                yield supervisor
            finally:
                supervisor.stopping.set()
                await running
    finally:
        shutil.rmtree(cluster.run_dir, ignore_errors=True)


async def ask(supervisor: Supervisor, **request: Any) -> Any:
    return await asyncio.to_thread(reach.ask_supervisor, supervisor.cluster, **request)


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
