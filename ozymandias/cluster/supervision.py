"""Keeping programs running: what the supervisors of `ozy up` and of a founded host have in common.

Every program is started, and started anew with back-off when it ends; what runs is written down;
logs don't grow without bound; requests come in on a socket, one JSON line each. Every program is
in a session of its own and logs straight to its file, so that an end of the supervisor itself
disturbs nobody. Which programs there are, and what requests mean, is not known here: those who
extend `Supervision` say it.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ozymandias.cluster import state
from ozymandias.cluster.programs import Program
from ozymandias.cluster.readiness import Readiness, listening
from ozymandias.cluster.state import Processes, ProcessId
from ozymandias.problems import ProblemError

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 10.0
STEADY_SECONDS = 30.0  # a program that ran this long starts its back-off from the beginning
KILL_SECONDS_MAX = 10.0  # for the kernel to end a process after SIGKILL
LOG_SIZE_MAX_BYTES = 8 * 2**20
UPKEEP_SECONDS = 10.0  # between looks at the logs, and at what could not be written down
REQUEST_SIZE_MAX_BYTES = 64 * 2**10
ENDED_LAST = ("etcd", "podman")  # others use them


def backoff_seconds(failures: int) -> float:
    """How long to wait after that many failures in a row; 0 after none."""
    if failures <= 0:
        return 0.0
    return float(min(BACKOFF_FIRST_SECONDS * 2 ** min(failures - 1, 16), BACKOFF_MAX_SECONDS))


@dataclass(slots=True)
class Child:
    """One program: wanted or not, running or not, and how its last run ended."""

    program: Program
    wanted: bool = True
    is_restarting: bool = False  # its next end was asked for: no failure
    process: ProcessId | None = None
    failures: int = 0
    starts: int = 0
    last_exit: str = ""
    is_late: bool = False  # it did not get ready in time, and is ended for that
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # not set from start to end
    known: asyncio.Event = field(default_factory=asyncio.Event)  # not set while being started

    def __post_init__(self) -> None:
        self.ended.set()
        self.known.set()

    async def signal(self, number: signal.Signals, wait_seconds: float) -> bool:
        """Signal the process and wait; whether it ended. One that is just being started, too."""
        try:
            async with asyncio.timeout(wait_seconds):
                await self.known.wait()
                if self.process is not None:
                    self.process.kill(number)
                await self.ended.wait()
        except TimeoutError:
            return False
        return True

    async def end(self) -> None:
        """SIGTERM, and SIGKILL when the grace is over."""
        self.wake.set()
        if not await self.signal(signal.SIGTERM, self.program.grace_seconds):
            await self.signal(signal.SIGKILL, KILL_SECONDS_MAX)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.program.name,
            "pid": self.process.pid if self.process else None,
            "wanted": self.wanted,
            "starts": self.starts,
            "failures": self.failures,
            "last_exit": self.last_exit,
        }


class Supervision:
    """``records`` is the directory where what runs is written down."""

    def __init__(
        self, children: Iterable[Child], *, socket: Path, logs: Path, records: Path
    ) -> None:
        self.children = {child.program.name: child for child in children}
        self.stopping = asyncio.Event()
        self.is_recorded = True  # processes.json tells what runs
        self._socket = socket
        self._logs = logs
        self._records = records
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def program(self, child: Child) -> Program:
        """As it is to be started now. OSError, KeyError or ProblemError: it can't be."""
        return child.program

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """To the requests that all know. ValueError, TypeError, KeyError: a bad one."""
        match request["do"]:
            case "status":
                return {"programs": [child.document() for child in self.children.values()]}
            case "down":
                self.stopping.set()
                return {"stopping": True}
            case other:
                return {"error": f"unknown request {other!r}"}

    async def run(self) -> None:
        """Until asked to stop; then every program is ended, those that others use last."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        self._socket.unlink(missing_ok=True)
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._tasks.append(group.create_task(self._upkeep()))
            for child in self.children.values():
                self.keep(child)
            server = await asyncio.start_unix_server(
                self._serve, path=self._socket, limit=REQUEST_SIZE_MAX_BYTES
            )
            self._socket.chmod(0o600)
            await self.stopping.wait()
            await self._end_all()
            server.close()
            for task in self._tasks:
                task.cancel()
        self._socket.unlink(missing_ok=True)

    def keep(self, child: Child) -> None:
        """From now on, while this runs."""
        assert self._group is not None
        self.children[child.program.name] = child
        self._tasks.append(self._group.create_task(self._keep(child)))

    # One program ---------------------------------------------------------------------------------

    async def _keep(self, child: Child) -> None:
        while True:
            while not child.wanted or self.stopping.is_set():
                child.wake.clear()
                await child.wake.wait()
            started = time.monotonic()
            child.last_exit = await self._run_once(child)
            if not child.wanted or self.stopping.is_set() or child.is_restarting:
                child.failures, child.is_restarting = 0, False
                continue
            steady = time.monotonic() - started >= STEADY_SECONDS
            child.failures = 1 if steady else child.failures + 1
            say(f"{child.program.name} ended ({child.last_exit}), failure {child.failures}")
            child.wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_seconds(child.failures)):
                    await child.wake.wait()

    async def _run_once(self, child: Child) -> str:
        """Start the program and wait for its end; returns how it ended."""
        child.ended.clear()
        child.known.clear()
        child.starts += 1
        child.is_late = False
        with contextlib.ExitStack() as kept:
            try:
                program = child.program = self.program(child)
                readiness = None
                if program.start_seconds_max is not None:
                    path = self._socket.with_name(f"{program.name}.notify")
                    readiness = kept.enter_context(listening(path))
                process = await self._spawn(program, readiness)
            except (OSError, KeyError, ProblemError) as error:
                child.known.set()
                child.ended.set()
                return f"could not be started: {error}"
            child.process = ProcessId.of(process.pid)
            child.known.set()
            self._record()
            try:
                code = await self._wait(child, process, readiness)
            finally:
                child.process = None
                child.ended.set()
        self._record()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"not ready in {program.start_seconds_max:.0f} s: {how}" if child.is_late else how

    async def _spawn(self, program: Program, readiness: Readiness | None) -> Process:
        self._logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._logs / f"{program.name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                env={**program.environment, **(readiness.environment if readiness else {})},
                cwd=self._logs,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _spare(process.pid, program)
        return process

    async def _wait(self, child: Child, process: Process, readiness: Readiness | None) -> int:
        """For the end of the process, which comes by us when it does not get ready in time."""
        async with asyncio.TaskGroup() as group:
            late = group.create_task(_end_late(child, readiness)) if readiness else None
            code = await process.wait()
            if late is not None:
                late.cancel()
        return code

    def _record(self) -> None:
        """A full disk must not end the one who keeps all others running; it is tried again."""
        running = {n: c.process for n, c in self.children.items() if c.process is not None}
        own = ProcessId.of(os.getpid())
        assert own is not None
        try:
            Processes(by_name={"supervisor": own, **running}).save(self._records)
        except OSError as error:
            self.is_recorded = False
            say(f"processes could not be recorded: {error}")
        else:
            self.is_recorded = True

    async def _end_all(self) -> None:
        """Whatever uses the store or podman ends before them."""
        below = [child for name, child in self.children.items() if name in ENDED_LAST]
        above = [child for name, child in self.children.items() if name not in ENDED_LAST]
        for rank in (above, below):
            async with asyncio.TaskGroup() as group:
                for child in rank:
                    group.create_task(child.end())

    async def _upkeep(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            if not self.is_recorded:
                self._record()
            for log in self._logs.glob("*.log"):
                with contextlib.suppress(OSError):
                    _trim(log)

    # Requests ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self.answer(json.loads(await reader.readline()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            answer = {"error": f"bad request: {error}"}
        except (OSError, ProblemError) as error:
            answer = {"error": str(error)}
        with contextlib.suppress(OSError):  # whoever asked has gone
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()


async def _end_late(child: Child, readiness: Readiness) -> None:
    """As systemd does when `TimeoutStartSec` is over; it is then started anew."""
    try:
        async with asyncio.timeout(child.program.start_seconds_max):
            await readiness.wait()
    except TimeoutError:
        child.is_late = True
        await child.end()


def _trim(log: Path) -> None:
    """A log beyond its size moves to `.1`. The file stays the same one: it is being written."""
    if log.stat().st_size > LOG_SIZE_MAX_BYTES:
        with contextlib.suppress(OSError):  # no room for the copy: without it then
            kept = log.read_bytes()[-LOG_SIZE_MAX_BYTES:]
            log.with_suffix(".log.1").write_bytes(kept)
        os.truncate(log, 0)


def _spare(pid: int, program: Program) -> None:
    """From the kernel, when the host is out of memory; a container may not be allowed to."""
    if not program.oom_score_adj:
        return
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(program.oom_score_adj))
    except ProcessLookupError:
        pass  # it has ended already, which is told elsewhere
    except OSError as error:
        say(f"{program.name} keeps its oom_score_adj: {error.strerror}")


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # its log is on a disk that may be full
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
        sys.stderr.flush()


def take_over(records: Path, grace_seconds: float) -> None:
    """What a former supervisor left running would hold our ports and locks. Pods don't notice."""
    before = {n: p for n, p in Processes.load(records).alive().items() if p.pid != os.getpid()}
    if "supervisor" in before:
        sys.exit(f"another supervisor runs: {before['supervisor'].pid}")
    state.end(before, grace_seconds=grace_seconds)
