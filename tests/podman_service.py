"""A podman API service of the tests' own: its socket in a temporary directory, our containers.conf.

Storage is the host's default, so that images are shared. Import `podman_service` in a conftest
(it is a session fixture), or use `running_service()` where a test kills the service itself.
"""

import os
import signal
import socket as sockets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ozymandias.runtime import containers_conf

START_SECONDS_MAX = 20.0


@dataclass(slots=True)
class PodmanService:
    socket: Path
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self.socket.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                containers_conf.service_command(self.socket),
                env=self.environment,
                cwd=self.socket.parent,  # its monitors leave a file there
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _accepts(self.socket):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"podman service did not start: {self.log.read_text()}")
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, also when it was stopped by SIGSTOP."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def podman(self, *arguments: str) -> str:
        """The podman command with the same configuration; for looking at the world in tests."""
        done = subprocess.run(
            ["podman", *arguments],
            env=self.environment,
            cwd=self.socket.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()


def _accepts(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as client:
        try:
            client.connect(os.fspath(path))
        except OSError:
            return False
    return True


@contextmanager
def running_service() -> Iterator[PodmanService]:
    with tempfile.TemporaryDirectory(prefix="ozy-podman-") as directory:
        base = Path(directory)
        conf = containers_conf.write(base / "containers.conf")
        service = PodmanService(
            socket=base / "podman.sock",
            environment=containers_conf.service_environment(conf),
            log=base / "service.log",
        )
        try:
            service.start()
            yield service
        finally:
            service.kill()


@pytest.fixture(scope="session")
def podman_service() -> Iterator[PodmanService]:
    with running_service() as service:
        yield service
