"""What comes over time from podman: log lines, the output of exec, the progress of a pull."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp

from ozymandias.ports import ExecResult, LogLine, RuntimeFailed
from ozymandias.runtime.observation import parse_time
from ozymandias.runtime.podman_api import (
    Frame,
    Frames,
    PodmanApi,
    Refused,
    filters,
    frames,
    segment,
)

STDOUT, STDERR = 1, 2
EXEC_OUTPUT_BYTES_MAX = 4 * 2**20  # of each stream; the rest is read and dropped
NO_CONTAINER = "no such container"
NO_SESSION = "no such exec session"
FOLLOW_SECONDS = 1.0  # how often an ended container is looked at while its log is followed


# Logs -------------------------------------------------------------------------------------------


async def log_lines(
    api: PodmanApi, name: str, container: str, *, tail: int | None, follow: bool
) -> AsyncGenerator[LogLine, None]:
    """The lines of a container, oldest first.

    podman ends a followed log when the container ends, and not even always; ours goes on with the
    container's next start and ends when the container is removed.
    """
    # podman's times are whole seconds, so a log that is taken up again repeats the last second:
    # as many lines of it as were seen are skipped.
    last, count = 0.0, 0  # the second of the last line, and how many lines of it were seen
    resumed, to_skip = 0.0, 0
    query: dict[str, Any] = {"stdout": True, "stderr": True, "timestamps": True, "follow": follow}
    path = f"/containers/{segment(name)}"
    state = await _state(api, path) if follow else None
    started = str(state["StartedAt"]) if state else None
    is_first = True
    while True:
        extra = {"tail": tail} if is_first else {"since": int(last)}
        async with api.stream("GET", path + "/logs", query=query | extra) as reader:
            parts = _until_ended(api, path, reader) if follow else frames(reader)
            async with aclosing(parts):
                async for stream, content in parts:
                    line = _log_line(container, stream, content)
                    if line.time < resumed or (line.time == resumed and to_skip > 0):
                        to_skip -= line.time == resumed
                        continue
                    count = count + 1 if line.time == last else 1
                    last = line.time
                    yield line
        if not follow:
            return
        started = await _next_start(api, path, started)
        if started is None:
            return
        is_first, resumed, to_skip = False, last, count


async def _until_ended(
    api: PodmanApi, path: str, reader: aiohttp.StreamReader
) -> AsyncGenerator[Frame, None]:
    """Frames until the stream ends, or nothing has come and the container does not run.

    podman may miss the end of a container that ended just when following began, and would then
    follow for ever.
    """
    parser = Frames()
    was_running = True
    while True:
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                piece = await reader.readany()
        except TimeoutError:
            state = await _state(api, path)
            is_running = state is not None and bool(state["Running"])
            if not is_running and not was_running:
                return
            was_running = is_running
            continue
        if not piece:
            return
        for frame in parser.take(piece):
            yield frame


async def _state(api: PodmanApi, path: str) -> dict[str, Any] | None:
    """podman's words on the container's state; None when it is gone."""
    found = await _found(api, path, NO_CONTAINER)
    return found and dict(found["State"])


async def _found(api: PodmanApi, path: str, missing: str) -> dict[str, Any] | None:
    """podman's words on something; None where there is no such thing.

    What goes while podman looks is not a 404: then it is told in words alone.
    """
    try:
        status, found = await api.call("GET", path + "/json", accept=(404,))
    except Refused as error:
        if missing in error.message:
            return None
        raise
    return None if status == 404 else dict(found)


async def _next_start(api: PodmanApi, path: str, known: str | None) -> str | None:
    """Waits for a start after the known one, which may have ended already; None when removed."""
    while True:
        state = await _state(api, path)
        if state is None:
            return None
        if state["StartedAt"] != known:
            return str(state["StartedAt"])
        await asyncio.sleep(FOLLOW_SECONDS)


def _log_line(container: str, stream: int, content: bytes) -> LogLine:
    text = content.decode(errors="replace").rstrip("\n")
    stamp, _, rest = text.partition(" ")
    return LogLine(
        container=container,
        time=parse_time(stamp),
        stream="stderr" if stream == STDERR else "stdout",
        text=rest,
    )


# Exec -------------------------------------------------------------------------------------------


async def exec_create(api: PodmanApi, container: str, command: Sequence[str]) -> str:
    """The id of a command that is ready to run in a running container."""
    body = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
    _, answer = await api.call("POST", f"/containers/{segment(container)}/exec", body=body)
    return str(answer["Id"])


async def exec_run(api: PodmanApi, container: str, session: str) -> ExecResult:
    """Run it to its end. The caller sets a limit, and calls exec_kill past it."""
    began = time.time()
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    body = {"Detach": False, "Tty": False}
    async with api.stream("POST", f"/exec/{session}/start", body=body) as reader:
        async for stream, content in frames(reader):
            taken = output[STDERR if stream == STDERR else STDOUT]
            taken += content[: EXEC_OUTPUT_BYTES_MAX - len(taken)]
    return ExecResult(
        exit_code=await exit_code(api, container, session, began),
        stdout=bytes(output[STDOUT]),
        stderr=bytes(output[STDERR]),
    )


async def exec_session(api: PodmanApi, session: str) -> dict[str, Any] | None:
    """podman's words on a command; None when it has forgotten it."""
    return await _found(api, f"/exec/{session}", NO_SESSION)


async def exit_code(api: PodmanApi, container: str, session: str, began: float) -> int:
    """podman forgets a session some seconds after its end; then its event log still knows.

    podman 4 does not say there which command ended, only in which container: where several did
    since ours began, theirs must have ended alike.
    """
    if found := await exec_session(api, session):
        return int(found["ExitCode"])
    query = {
        "stream": False,
        "since": int(began),
        "filters": filters(event=["exec_died"], container=[container]),
    }
    _, answer = await api.call("GET", "/events", query=query)
    ended = [e for e in documents_of(answer) if e.get("timeNano", 0) >= began * 1e9]
    attributes = [(e.get("Actor") or {}).get("Attributes") or {} for e in ended]
    ours = [a for a in attributes if a.get("execID") == session]
    codes = {int(a.get("containerExitCode", 0)) for a in ours or attributes}
    if len(codes) != 1:
        raise RuntimeFailed("podman has forgotten the exit code of the command")
    return codes.pop()


async def exec_kill(api: PodmanApi, session: str) -> None:
    """End a command that takes too long, with what it started; nothing else, whatever its pid."""
    try:
        found = await exec_session(api, session)
    except RuntimeFailed:
        return
    if not found or not found.get("Running") or not found.get("Pid"):
        return
    pid = int(found["Pid"])
    try:
        if f"libpod-{found['ContainerID']}" not in Path(f"/proc/{pid}/cgroup").read_text():
            return
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except OSError:
        return  # it has ended meanwhile


# Pulls ------------------------------------------------------------------------------------------


def pull_failure(answer: Any) -> str:
    """The reason in the progress of a pull, which fails with status 200; "" when it went well."""
    errors = [d["error"] for d in documents_of(answer) if d.get("error")]
    return str(errors[-1]).strip() if errors else ""


def documents_of(answer: Any) -> list[dict[str, Any]]:
    """The JSON objects of an answer that has one per line, or just one."""
    if isinstance(answer, dict):
        return [answer]
    found = []
    for line in str(answer or "").splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            found.append(document)
    return found
