"""What comes over time from podman: log lines, the output of exec, the progress of a pull."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from ozymandias.ports import ExecResult, LogLine, RuntimeFailed
from ozymandias.runtime.observation import parse_time
from ozymandias.runtime.podman_api import PodmanApi, frames, segment

STDOUT, STDERR = 1, 2
EXEC_OUTPUT_BYTES_MAX = 4 * 2**20  # of each stream; the rest is read and dropped
FOLLOW_SECONDS = 1.0  # how often an ended container is looked at while its log is followed


# Logs -------------------------------------------------------------------------------------------


async def log_lines(
    api: PodmanApi, name: str, container: str, *, tail: int | None, follow: bool
) -> AsyncGenerator[LogLine, None]:
    """The lines of a container, oldest first.

    podman ends a followed log when the container ends; ours goes on with the container's next
    start and ends when the container is removed.
    """
    last = 0.0
    query: dict[str, Any] = {"stdout": True, "stderr": True, "timestamps": True}
    if tail is not None:
        query["tail"] = tail
    path = f"/containers/{segment(name)}"
    while True:
        async with api.stream("GET", path + "/logs", query=query | {"follow": follow}) as reader:
            async for stream, content in frames(reader):
                line = _log_line(container, stream, content)
                if line.time > last or not query.get("since"):
                    last = max(last, line.time)
                    yield line
        if not follow or not await _starts_again(api, path):
            return
        query = {k: v for k, v in query.items() if k != "tail"} | {"since": int(last)}


async def _starts_again(api: PodmanApi, path: str) -> bool:
    while True:
        status, found = await api.call("GET", path + "/json", accept=(404,))
        if status == 404:
            return False
        if found["State"]["Running"]:
            return True
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


async def exec_run(api: PodmanApi, session: str) -> ExecResult:
    """Run it to its end. The caller sets a limit, and calls exec_kill past it."""
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    body = {"Detach": False, "Tty": False}
    async with api.stream("POST", f"/exec/{session}/start", body=body) as reader:
        async for stream, content in frames(reader):
            taken = output[STDERR if stream == STDERR else STDOUT]
            taken += content[: EXEC_OUTPUT_BYTES_MAX - len(taken)]
    _, found = await api.call("GET", f"/exec/{session}/json")
    return ExecResult(
        exit_code=int(found["ExitCode"]),
        stdout=bytes(output[STDOUT]),
        stderr=bytes(output[STDERR]),
    )


async def exec_kill(api: PodmanApi, session: str) -> None:
    """End a command that takes too long, with what it started; nothing else, whatever its pid."""
    try:
        status, found = await api.call("GET", f"/exec/{session}/json", accept=(404,))
    except RuntimeFailed:
        return
    if status == 404 or not found.get("Running") or not found.get("Pid"):
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
    documents = [answer] if isinstance(answer, dict) else []
    for line in str(answer or "").splitlines() if not documents else ():
        try:
            documents.append(json.loads(line))
        except ValueError:
            continue
    errors = [d["error"] for d in documents if isinstance(d, dict) and d.get("error")]
    return str(errors[-1]).strip() if errors else ""
