"""Composition root of `ozymandias-guard`: ends exclusive pods when their node's lease has run out.

A job with `on_partition: stop` must never run twice. Its node may be cut off while others, after
the lease's time and some more, start a replacement. So at the deadline the pod is killed, whatever
became of the daemon: this is a process of its own, which reads the files of `runtime/guard.py`,
talks to nobody, allocates next to nothing, and asks the kernel for real-time priority and to be
spared when memory runs out. A machine that stands still as a whole is beyond it.

It sleeps until the next deadline. Past one it looks twice a second: what a frozen daemon starts
late is ended as well.
"""

import argparse
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from ozymandias import __version__, telemetry
from ozymandias.daemon import config as settings
from ozymandias.daemon.notify import notify
from ozymandias.problems import CONFIG_INVALID, ProblemError
from ozymandias.runtime import cgroups
from ozymandias.runtime.guard import COVERED, GuardFiles

EXPIRED_SECONDS = 0.5  # between two looks at pods that must not run
TIMERFD_ABSOLUTE = 1
LOCK_MEMORY = 1 | 2  # what is there now, and what will be
OOM_NEVER = "-1000"


def main() -> None:
    description = "Ends exclusive pods when their node's lease has run out."
    parser = argparse.ArgumentParser(prog="ozymandias-guard", description=description)
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    arguments = parser.parse_args()
    telemetry.configure()
    default = settings.DEFAULT_FILE if settings.DEFAULT_FILE.exists() else None
    try:
        config = settings.load(arguments.config or default)
        Guard(Path(config.node.run_dir)).run()
    except ProblemError as error:
        print(f"ozymandias-guard: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.problem.kind.exit_code)


class Guard:
    def __init__(self, run_dir: Path) -> None:
        self._files = GuardFiles(run_dir)
        self._timer = _boot_timer()
        self._ended: set[tuple[str, str]] = set()  # told of already
        self._is_running = True

    def run(self) -> None:
        """Until SIGTERM. The next one starts with the same files."""
        self._files.prepare()
        listener = _listen(self._files.socket)
        _become_urgent()
        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        signal.set_wakeup_fd(waker)
        notify("READY=1")
        telemetry.log("guard.started", directory=str(self._files.socket.parent))
        poll = select.poll()
        for source in (listener.fileno(), self._timer, wake):
            poll.register(source, select.POLLIN)
        while self._is_running:
            self._set_timer(self._look())
            ready = {number for number, _ in poll.poll()}
            if listener.fileno() in ready:
                self._answer(listener)
        self._files.socket.unlink(missing_ok=True)

    def _end(self, *_: object) -> None:
        self._is_running = False

    def _look(self) -> float:
        """End what must not run any more; when to look again, on CLOCK_BOOTTIME. 0: never."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        due = [0.0]
        for node in self._files.nodes():
            watch = self._files.read(node)
            if not watch.pods:
                continue
            if now < watch.deadline:
                due.append(watch.deadline)
                self._ended = {(n, pod) for n, pod in self._ended if n != node}
                continue
            due.append(now + EXPIRED_SECONDS)
            for pod, group in watch.pods.items():
                self._expire(node, pod, group, now - watch.deadline)
        return min((when for when in due if when), default=0.0)

    def _expire(self, node: str, pod: str, group: str, late: float) -> None:
        if not cgroups.is_running(group):
            return
        is_over = cgroups.end(group)
        if (node, pod) not in self._ended or not is_over:
            self._ended.add((node, pod))
            telemetry.warn(
                "guard.ended" if is_over else "guard.could_not_end",
                node=node,
                pod=pod,
                reason=f"the lease of {node} ran out {late:.1f} s ago",
            )

    def _answer(self, listener: socket.socket) -> None:
        """One question, one answer; a client that dawdles must not keep us from a deadline."""
        try:
            client, _ = listener.accept()
            with client:
                client.settimeout(0.2)
                node, _, pod = client.recv(4096).decode().strip().partition(" ")
                client.sendall((self._coverage(node, pod) + "\n").encode())
        except (OSError, ValueError):
            pass

    def _coverage(self, node: str, pod: str) -> str:
        if node not in self._files.nodes():
            return f"the guard knows nothing of {node}"
        watch = self._files.read(node)
        if pod not in watch.pods:
            return f"the guard knows nothing of {pod}"
        left = watch.deadline - time.clock_gettime(time.CLOCK_BOOTTIME)
        return COVERED if left > 0 else f"the lease of {node} ran out {-left:.1f} s ago"

    def _set_timer(self, when: float) -> None:
        """A timer that also counts while the machine is suspended; 0 switches it off."""
        whole = int(when)
        spec = struct.pack("qqqq", 0, 0, whole, int((when - whole) * 1e9))
        _libc.timerfd_settime(self._timer, TIMERFD_ABSOLUTE, spec, None)


_libc = ctypes.CDLL(None, use_errno=True)


def _boot_timer() -> int:
    number: int = _libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC)
    if number < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return number


def _listen(path: Path) -> socket.socket:
    """The socket is this guard's alone: a second one would answer for a first that is dead."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with asking:
            asking.connect(str(path))
    except OSError:
        path.unlink(missing_ok=True)
    else:
        raise ProblemError(CONFIG_INVALID(f"A guard is running already: it answers on {path}."))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(16)
    return listener


def _become_urgent() -> None:
    """As much as we may; what is refused is said, since the promise is weaker without it."""
    refused = []
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        refused.append("real-time priority")
    try:
        Path("/proc/self/oom_score_adj").write_text(OOM_NEVER)
    except OSError:
        refused.append("exemption from the OOM killer")
    if _libc.mlockall(LOCK_MEMORY) != 0:
        refused.append("locked memory")
    if refused:
        telemetry.warn("guard.less_urgent", reason=f"refused by the kernel: {', '.join(refused)}")


if __name__ == "__main__":
    main()
