"""A program that runs on a host, seen from outside: to be watched, killed, paused.

`nsenter` forks to enter a PID namespace and waits for its child. The child is the program: signals
go to it, and its end is known by nsenter's, which passes on its exit code. When the child is
paused, nsenter pauses itself as well, so it is told to go on whenever it is waited for.
"""

import signal
import subprocess
import time
from pathlib import Path

from ozymandias.cluster.state import ProcessId

DEADLINE_SECONDS = 15.0


def child_of(process: "subprocess.Popen[bytes]", what: str) -> ProcessId:
    """The first child, as soon as there is one."""
    file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        assert process.poll() is None, f"{what} ended at once: exit code {process.returncode}"
        assert time.monotonic() < deadline, f"{what} did not start"
        children = file.read_text().split()
        found = ProcessId.of(int(children[0])) if children else None
        if found is not None:
            return found
        time.sleep(0.002)


class Process:
    def __init__(self, name: str, entry: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.log = log
        self._entry = entry
        self._id = child_of(entry, name)

    @property
    def pid(self) -> int:
        """By the numbers of the machine."""
        return self._id.pid

    @property
    def is_running(self) -> bool:
        return self._entry.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Fine if it has ended."""
        self._id.kill(number)

    def kill(self) -> None:
        """kill -9, and until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self, seconds: float = DEADLINE_SECONDS) -> int:
        """SIGTERM, as systemd does; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def pause(self) -> None:
        """It holds its sockets and says nothing."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)
        self.wake_entry()

    def wake_entry(self) -> None:
        """Or nsenter, which paused itself with the program, would never see that it ended."""
        self._entry.send_signal(signal.SIGCONT)

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Until it has ended; the exit code."""
        deadline = time.monotonic() + seconds
        while True:
            self.wake_entry()
            try:
                return self._entry.wait(0.1)
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline, f"{self.name} does not end"

    def text(self) -> str:
        """What it and its predecessors of that name wrote."""
        return self.log.read_text(errors="replace")
