"""The small supervisor of a host without systemd: `python -m …cluster.founding.supervise` boots it.

What systemd would do for the host's services: it starts those that were started before (a boot),
starts anew with back-off what ends, and takes requests on its socket, one JSON line each:
`{"do": "start", "name": "etcd"}`, `restart`, `stop`, `status`, `down`. Programs are read from the
host's record each time one is started, so a restart takes new settings in. SIGTERM ends all.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ozymandias.cluster import state
from ozymandias.cluster.founding import record as records
from ozymandias.cluster.founding.record import Places
from ozymandias.cluster.founding.services import services
from ozymandias.cluster.programs import Program
from ozymandias.cluster.state import Processes, ProcessId
from ozymandias.cluster.supervisor import (
    KILL_SECONDS_MAX,
    LOG_CHECK_SECONDS,
    LOG_SIZE_MAX_BYTES,
    REQUEST_SIZE_MAX_BYTES,
    STEADY_SECONDS,
    Child,
    backoff_seconds,
)

FIRST = ("etcd", "podman")  # what others need ends after them


class Supervisor:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._children: dict[str, Child] = {}
        self._stopping = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def _wanted_file(self) -> Path:
        return self._places.state / "supervised.json"

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        path = self._places.supervisor_socket
        path.unlink(missing_ok=True)
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name in self._remembered():
                self._child(name).wanted = True
            self._tasks.append(group.create_task(self._trim_logs()))
            server = await asyncio.start_unix_server(
                self._serve, path=path, limit=REQUEST_SIZE_MAX_BYTES
            )
            path.chmod(0o600)
            await self._stopping.wait()
            await self._end_all()
            server.close()
            for task in self._tasks:
                task.cancel()
        path.unlink(missing_ok=True)

    # What is wanted -----------------------------------------------------------------------------

    def _remembered(self) -> list[str]:
        try:
            return [str(name) for name in json.loads(self._wanted_file.read_text())["wanted"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _remember(self) -> None:
        wanted = [name for name, child in self._children.items() if child.wanted]
        state.write_json(self._wanted_file, {"wanted": wanted})

    def _program(self, name: str) -> Program:
        """By the record as it is now. KeyError: the host has no such service."""
        record = records.load(self._places)
        found = {s.name: s for s in services(record, self._places)} if record else {}
        service = found[name]
        return Program(
            name=name,
            command=service.command,
            environment=service.environment,
            grace_seconds=service.grace_seconds,
        )

    def _child(self, name: str) -> Child:
        assert self._group is not None
        if name not in self._children:
            child = Child(program=self._program(name), wanted=False)
            self._children[name] = child
            self._tasks.append(self._group.create_task(self._keep(child)))
        return self._children[name]

    # One program --------------------------------------------------------------------------------

    async def _keep(self, child: Child) -> None:
        while True:
            while not child.wanted or self._stopping.is_set():
                child.wake.clear()
                await child.wake.wait()
            started = time.monotonic()
            child.last_exit = await self._run_once(child)
            if not child.wanted or self._stopping.is_set() or child.failures < 0:
                child.failures = 0
                continue
            steady = time.monotonic() - started >= STEADY_SECONDS
            child.failures = 1 if steady else child.failures + 1
            _say(f"{child.program.name} ended ({child.last_exit}), failure {child.failures}")
            child.wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_seconds(child.failures)):
                    await child.wake.wait()

    async def _run_once(self, child: Child) -> str:
        child.ended.clear()
        child.known.clear()
        child.starts += 1
        directory = self._places.logs
        try:
            program = child.program = self._program(child.program.name)
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (directory / f"{program.name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *program.command,
                    env=dict(program.environment),
                    cwd=directory,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except (OSError, KeyError) as error:
            child.known.set()
            child.ended.set()
            return f"could not be started: {error}"
        child.process = ProcessId.of(process.pid)
        child.known.set()
        self._record()
        try:
            code = await process.wait()
        finally:
            child.process = None
            child.ended.set()
        self._record()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _record(self) -> None:
        running = {n: c.process for n, c in self._children.items() if c.process is not None}
        own = ProcessId.of(os.getpid())
        assert own is not None
        try:
            Processes(by_name={"supervisor": own, **running}).save(self._places.run)
        except OSError as error:
            _say(f"processes could not be recorded: {error}")

    async def _end(self, child: Child) -> None:
        child.wake.set()
        if not await child.signal(signal.SIGTERM, child.program.grace_seconds):
            await child.signal(signal.SIGKILL, KILL_SECONDS_MAX)

    async def _end_all(self) -> None:
        below = [child for name, child in self._children.items() if name in FIRST]
        above = [child for name, child in self._children.items() if name not in FIRST]
        for rank in (above, below):
            async with asyncio.TaskGroup() as group:
                for child in rank:
                    group.create_task(self._end(child))

    async def _trim_logs(self) -> None:
        """A log beyond its size moves to `.1`. The file stays the same one: it is being written."""
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            for log in self._places.logs.glob("*.log"):
                with contextlib.suppress(OSError):
                    if log.stat().st_size > LOG_SIZE_MAX_BYTES:
                        kept = log.read_bytes()[-LOG_SIZE_MAX_BYTES:]
                        log.with_suffix(".log.1").write_bytes(kept)
                        os.truncate(log, 0)

    # Requests -----------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(json.loads(await reader.readline()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            answer = {"error": f"bad request: {error}"}
        except OSError as error:
            answer = {"error": str(error)}
        with contextlib.suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "status":
                return {"programs": [child.document() for child in self._children.values()]}
            case "start":
                child = self._child(request["name"])
                child.wanted = True
                child.wake.set()
            case "restart":
                child = self._child(request["name"])
                child.wanted, child.failures = True, -1  # its end is no failure
                await self._end(child)
            case "stop":
                child = self._child(request["name"])
                child.wanted = False
                await self._end(child)
            case "down":
                self._stopping.set()
                return {"stopping": True}
            case other:
                return {"error": f"unknown request {other!r}"}
        self._remember()
        return child.document()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
        sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs this host's programs, without systemd.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the host's root directory")
    places = Places(root=parser.parse_args().root.absolute())
    places.run.mkdir(parents=True, exist_ok=True, mode=0o755)
    places.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = {n: p for n, p in Processes.load(places.run).alive().items() if p.pid != os.getpid()}
    if "supervisor" in before:
        sys.exit(f"another supervisor runs: {before['supervisor'].pid}")
    # What a former supervisor left running would hold our ports and locks. Pods don't notice.
    state.end(before, grace_seconds=5.0)
    asyncio.run(Supervisor(places).run())


if __name__ == "__main__":
    main()
