"""Who runs a host's programs: systemd, or the small supervisor where there is none.

Both do the same four things to a service: start it now and with the host, start it anew, stop it
for good, and say whether it runs. Nothing waits for readiness here; `waits.py` does.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from ozymandias.cluster import programs, reach
from ozymandias.cluster.founding.record import Places
from ozymandias.cluster.founding.services import Service
from ozymandias.problems import HOST_CLUSTER, ProblemError

COMMAND_SECONDS_MAX = 90.0
SUPERVISOR_SECONDS_MAX = 20.0
LOG_LINES_SHOWN = 12


class Runner(Protocol):
    """Where a program keeps its word about what went wrong: `log_of`."""

    def prepare(self) -> None:
        """After units or settings were written."""
        ...

    def start(self, service: Service) -> None: ...

    def restart(self, service: Service) -> None: ...

    def stop(self, service: Service) -> None: ...

    def is_running(self, service: Service) -> bool: ...

    def log_of(self, service: Service) -> list[str]: ...


def runner(places: Places) -> Runner:
    return Systemd() if places.has_systemd else Supervised(places)


class Systemd:
    def prepare(self) -> None:
        self._call("daemon-reload")

    def start(self, service: Service) -> None:
        self._call("enable", service.unit)
        self._call("start", "--no-block", service.unit)

    def restart(self, service: Service) -> None:
        if service.name == "podman":  # its service goes when idle and comes back by its socket
            self._call("try-restart", "--no-block", "podman.service")
        else:
            self._call("restart", "--no-block", service.unit)

    def stop(self, service: Service) -> None:
        if service.name != "podman":  # others may use it
            self._call("disable", "--now", service.unit, may_fail=True)

    def is_running(self, service: Service) -> bool:
        done = _run("systemctl", "is-active", "--quiet", service.unit)
        return done.returncode == 0

    def log_of(self, service: Service) -> list[str]:
        done = _run("journalctl", "-u", service.unit, "-n", str(LOG_LINES_SHOWN), "-o", "cat")
        return done.stdout.splitlines()

    def _call(self, *words: str, may_fail: bool = False) -> None:
        done = _run("systemctl", *words)
        if done.returncode and not may_fail:
            raise ProblemError(
                HOST_CLUSTER(
                    f"systemctl {' '.join(words)}: {done.stderr.strip() or done.returncode}.",
                    hint="What was done stays; run the same command again once it is put right.",
                )
            )


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )


class Supervised:
    """Through the supervisor of `supervise.py`, which is started when somebody first needs it."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def prepare(self) -> None:
        if not self._answers():
            self._spawn()

    def start(self, service: Service) -> None:
        self.prepare()
        self._ask(do="start", name=service.name)

    def restart(self, service: Service) -> None:
        self.prepare()
        self._ask(do="restart", name=service.name)

    def stop(self, service: Service) -> None:
        if self._answers():
            self._ask(do="stop", name=service.name)

    def is_running(self, service: Service) -> bool:
        try:
            rows = self._ask(do="status")["programs"]
        except (OSError, ProblemError):
            return False
        return any(row["name"] == service.name and row["pid"] is not None for row in rows)

    def log_of(self, service: Service) -> list[str]:
        try:
            text = (self._places.logs / f"{service.name}.log").read_text(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-LOG_LINES_SHOWN:]

    def end(self) -> None:
        """The supervisor itself, and with it all that it runs."""
        if not self._answers():
            return
        self._ask(do="down")
        deadline = time.monotonic() + 2 * SUPERVISOR_SECONDS_MAX
        while self._answers() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            self._ask(do="status")
        except (OSError, ValueError):
            return False
        return True

    def _spawn(self) -> None:
        places = self._places
        places.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = [sys.executable, "-P", "-m", "ozymandias.cluster.founding.supervise"]
        with (places.logs / "supervisor.log").open("ab") as log:
            child = subprocess.Popen(
                [*command, "--root", str(places.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=programs.base_environment(),
                cwd=Path("/"),
                start_new_session=True,
            )
        deadline = time.monotonic() + SUPERVISOR_SECONDS_MAX
        while not self._answers():
            if child.poll() is not None or time.monotonic() > deadline:
                lines = (places.logs / "supervisor.log").read_text(errors="replace").splitlines()
                raise ProblemError(
                    HOST_CLUSTER(
                        "The supervisor did not start.",
                        hint=f"{places.logs / 'supervisor.log'} says why.",
                        log=lines[-LOG_LINES_SHOWN:],
                        program="supervisor",
                    )
                )
            time.sleep(0.05)

    def _ask(self, **request: Any) -> Any:
        path = self._places.supervisor_socket
        return reach.ask(path, HOST_CLUSTER, timeout=SUPERVISOR_SECONDS_MAX, **request)
