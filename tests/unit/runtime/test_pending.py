"""Commands as a source of pending work: only those that the node lists, bounded, as nobody."""

import os
import shlex
import time
from pathlib import Path

import pytest
import uvloop

from ozymandias.model.job import Autoscale, PendingSource
from ozymandias.ports import SourceFailed
from ozymandias.runtime.pending import OutsideWork


def ask(*command: str, allowed: tuple[str, ...] | None = None, seconds: float = 10.0) -> bytes:
    line = shlex.join(command)
    commands = (line,) if allowed is None else allowed
    work = OutsideWork(node="n2", commands=commands, ask_seconds_max=seconds)
    source = Autoscale(min=0, max=1, source=PendingSource.COMMAND, target=line)
    return uvloop.run(work.ask(source))  # as the daemon does


def failure(*command: str, allowed: tuple[str, ...] | None = None, seconds: float = 10.0) -> str:
    with pytest.raises(SourceFailed) as failed:
        ask(*command, allowed=allowed, seconds=seconds)
    return str(failed.value)


def test_a_command_that_is_listed_is_run() -> None:
    """Word for word as it is listed; what it prints is the answer."""
    assert ask("/bin/echo", "17") == b"17\n"
    assert ask("/bin/echo", "1 7", allowed=("/bin/echo '1 7'",)) == b"1 7\n"


@pytest.mark.parametrize("allowed", [(), ("/bin/echo",), ("/bin/echo 18",), ("sh -c 'echo 17'",)])
def test_no_other_command_is_ever_run(allowed: tuple[str, ...]) -> None:
    """Not with other arguments, and none at all where none is listed; the node is named."""
    words = "on n2 the command is not listed under [autoscale] commands, word for word"
    assert failure("/bin/echo", "17", allowed=allowed) == words


def test_nothing_is_expanded_and_no_rights_are_given() -> None:
    """No shell, an environment of its own, and another user than root."""
    assert ask("/bin/echo", "$HOME", ";", "id") == b"$HOME ; id\n"
    assert b"OZY" not in ask("/usr/bin/env")
    assert os.geteuid() != 0 or ask("/usr/bin/id", "-u").strip() != b"0"


def test_commands_are_bounded() -> None:
    """In time, children included; in size; and a failure is told by its code."""
    assert failure("/bin/sh", "-c", "exit 3") == "on n2 the command ended with exit code 3"
    assert failure("/bin/sleep", "60", seconds=0.2) == "no whole answer within 0.2 s"
    assert failure("/bin/sh", "-c", "sleep 60 & sleep 60", seconds=0.2).startswith("no whole")
    assert failure("/bin/cat", "/dev/zero") == "on n2 the answer is over 64 KiB"
    assert "can't be run" in failure("/no/such/program")


def test_a_child_that_keeps_the_pipe_is_not_waited_for() -> None:
    """It left the session, so it outlives the command; nobody reads what it says."""
    script = "setsid sleep 5 & echo 17"
    assert failure("/bin/sh", "-c", script, seconds=0.5) == "no whole answer within 0.5 s"


def test_what_goes_on_with_another_output_is_not_waited_for() -> None:
    """The answer is whole when the command and its children have closed their output."""
    assert ask("/bin/sh", "-c", "sleep 60 >/dev/null & echo 17") == b"17\n"
    assert ask("/bin/ls", "-l", "/dev/fd/").count(b"pipe:") == 1


def test_no_process_is_left(tmp_path: Path) -> None:
    """What a command started is gone with it, also when it was cut off."""
    mark = f"31.{os.getpid()}{len(str(tmp_path))}7"
    failure("/bin/sh", "-c", f"sleep {mark} & sleep {mark}", seconds=0.3)
    deadline = time.monotonic() + 10.0  # a killed process goes when the kernel comes to it
    while (left := _running(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def _running(mark: str) -> list[str]:
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if mark.encode() in _read(path) and str(os.getpid()) != path.parent.name
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
