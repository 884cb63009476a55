"""The process that keeps a local cluster's programs running: `ozy up` starts it, detached.

It starts every program at once (they wait for each other), starts anew with back-off what dies,
keeps logs from growing without bound, and answers requests on `supervisor.sock`, one JSON line
each: `{"do": "status"}`, `{"do": "kill", "node": "n2"}`, `{"do": "start", "node": "n2"}`,
`{"do": "down"}`. Every program is in a session of its own and logs straight to its file, so that
an end of the supervisor itself disturbs nobody; the next `ozy up` takes over.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ozymandias.cluster import programs, state
from ozymandias.cluster.programs import Program
from ozymandias.cluster.remains import kill_pods
from ozymandias.cluster.state import LocalCluster, Processes, ProcessId

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 10.0
STEADY_SECONDS = 30.0  # a program that ran this long starts its back-off from the beginning
KILL_SECONDS_MAX = 10.0  # for the kernel to end a process after SIGKILL
LOG_SIZE_MAX_BYTES = 8 * 2**20
LOG_CHECK_SECONDS = 10.0
REQUEST_SIZE_MAX_BYTES = 64 * 2**10


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
    process: ProcessId | None = None
    failures: int = 0
    starts: int = 0
    last_exit: str = ""
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

    def document(self) -> dict[str, Any]:
        return {
            "name": self.program.name,
            "pid": self.process.pid if self.process else None,
            "wanted": self.wanted,
            "starts": self.starts,
            "failures": self.failures,
            "last_exit": self.last_exit,
        }


class Supervisor:
    def __init__(self, cluster: LocalCluster, wanted: tuple[Program, ...]) -> None:
        self.cluster = cluster
        killed = {node.name for node in cluster.nodes if node.killed}
        self.children = {p.name: Child(program=p, wanted=p.name not in killed) for p in wanted}
        self.stopping = asyncio.Event()
        self.is_recorded = True  # processes.json tells what runs

    async def run(self) -> None:
        """Until asked to stop; then every program is ended, nodes first, etcd last."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        socket = self.cluster.supervisor_socket
        socket.unlink(missing_ok=True)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keep(child)) for child in self.children.values()]
            tasks.append(group.create_task(self._trim_logs()))
            server = await asyncio.start_unix_server(
                self._serve, path=socket, limit=REQUEST_SIZE_MAX_BYTES
            )
            socket.chmod(0o600)
            await self.stopping.wait()
            await self._end_all()
            server.close()
            for task in tasks:
                task.cancel()
        socket.unlink(missing_ok=True)

    # One program ---------------------------------------------------------------------------------

    async def _keep(self, child: Child) -> None:
        while True:
            while not child.wanted or self.stopping.is_set():
                child.wake.clear()
                await child.wake.wait()
            started = time.monotonic()
            child.last_exit = await self._run_once(child)
            if not child.wanted or self.stopping.is_set():
                continue
            steady = time.monotonic() - started >= STEADY_SECONDS
            child.failures = 1 if steady else child.failures + 1
            _say(f"{child.program.name} ended ({child.last_exit}), failure {child.failures}")
            child.wake.clear()
            try:
                async with asyncio.timeout(backoff_seconds(child.failures)):
                    await child.wake.wait()
            except TimeoutError:
                pass

    async def _run_once(self, child: Child) -> str:
        """Start the program and wait for its end; returns how it ended."""
        program = child.program
        child.ended.clear()
        child.known.clear()
        child.starts += 1
        try:
            with (self.cluster.logs / f"{program.name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *program.command,
                    env=dict(program.environment),
                    cwd=self.cluster.state_dir,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
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
        """A full disk must not end the one who keeps all others running; it is tried again."""
        running = {n: c.process for n, c in self.children.items() if c.process is not None}
        own = ProcessId.of(os.getpid())
        assert own is not None
        try:
            Processes(by_name={"supervisor": own, **running}).save(self.cluster.state_dir)
        except OSError as error:
            self.is_recorded = False
            _say(f"processes could not be recorded: {error}")
        else:
            self.is_recorded = True

    async def _end(self, child: Child) -> None:
        """SIGTERM, and SIGKILL when the grace is over."""
        child.wake.set()
        if not await child.signal(signal.SIGTERM, child.program.grace_seconds):
            await child.signal(signal.SIGKILL, KILL_SECONDS_MAX)

    async def _end_all(self) -> None:
        """Whatever uses the store or podman ends before them."""
        below = [self.children[name] for name in ("etcd", "podman") if name in self.children]
        above = [child for child in self.children.values() if child not in below]
        for rank in (above, below):
            async with asyncio.TaskGroup() as group:
                for child in rank:
                    group.create_task(self._end(child))

    # Logs ----------------------------------------------------------------------------------------

    async def _trim_logs(self) -> None:
        """A log beyond its size moves to `.1`. The file stays the same one: it is being written."""
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            if not self.is_recorded:
                self._record()
            for log in self.cluster.logs.glob("*.log"):
                if log.stat().st_size > LOG_SIZE_MAX_BYTES:
                    with contextlib.suppress(OSError):  # no room for the copy: without it then
                        kept = log.read_bytes()[-LOG_SIZE_MAX_BYTES:]
                        log.with_suffix(".log.1").write_bytes(kept)
                    os.truncate(log, 0)

    # Requests ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            answer = await self._answer(request)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            answer = {"error": f"bad request: {error}"}
        except OSError as error:
            answer = {"error": str(error)}
        try:
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except OSError:
            pass  # whoever asked has gone
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "status":
                return {
                    "cluster": self.cluster.id,
                    "programs": [child.document() for child in self.children.values()],
                }
            case "kill":
                return await self._kill(self._node(request["node"]))
            case "start":
                return self._start(self._node(request["node"]))
            case "down":
                self.stopping.set()
                return {"stopping": True}
            case other:
                return {"error": f"unknown request {other!r}"}

    def _node(self, name: str) -> Child:
        child = self.children[name]
        if not child.program.is_node:
            raise KeyError(name)
        return child

    async def _kill(self, child: Child) -> dict[str, Any]:
        """As a power cut would: the daemon first, so that it can't tell anybody, then its pods."""
        name = child.program.name
        was_running = child.wanted
        child.wanted = False
        child.wake.set()
        await child.signal(signal.SIGKILL, KILL_SECONDS_MAX)
        self._remember(name, killed=True)
        pods = await asyncio.to_thread(kill_pods, self.cluster, name)
        _say(f"{name} killed on request, with {pods} pods")
        return {"killed": name, "was_running": was_running, "pods": pods}

    def _start(self, child: Child) -> dict[str, Any]:
        was_running = child.wanted
        child.wanted = True
        child.failures = 0
        child.wake.set()
        self._remember(child.program.name, killed=False)
        return {"started": child.program.name, "was_running": was_running}

    def _remember(self, name: str, *, killed: bool) -> None:
        """Across an end of the supervisor. `up` may have written meanwhile: change only this."""
        fresh = state.load(self.cluster.state_dir) or self.cluster
        self.cluster = fresh.with_killed(name, killed)
        self.cluster.save()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # its log is on a disk that may be full
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
        sys.stderr.flush()


def main(state_dir: Path) -> None:
    cluster = state.load(state_dir)
    if cluster is None:
        sys.exit(f"no cluster in {state_dir}")
    before = {n: p for n, p in Processes.load(state_dir).alive().items() if p.pid != os.getpid()}
    if "supervisor" in before:
        sys.exit(f"another supervisor runs: {before['supervisor'].pid}")
    # What a former supervisor left running would hold our ports and locks. Pods don't notice.
    state.end(before, grace_seconds=3.0)
    cluster.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    asyncio.run(Supervisor(cluster, programs.programs(cluster)).run())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
