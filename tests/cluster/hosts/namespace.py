"""A network namespace that a process holds: the switch, the client, and all hosts.

Sockets belong to the namespace that they were made in, whoever uses them later. So a test, which
lives outside, talks to hosts through sockets that `open_socket` makes for it over there: no address
and no route of the hosts is ever known to the machine itself.
"""

import ctypes
import http.client
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from ozymandias.cluster.state import ProcessId
from tests.cluster.hosts.cgroups import Cgroups

CLONE_NEWNET = 0x40000000
RUN_SECONDS_MAX = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


def setns(descriptor: int) -> None:
    """Moves the calling thread, and it alone."""
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Namespace:
    def __init__(self, name: str, address: str, cgroups: Cgroups) -> None:
        self.name = name
        self.address = address
        self.cgroups = cgroups
        self.init: ProcessId | None = None

    @property
    def pid(self) -> int:
        assert self.init is not None, f"{self.name} has no power"
        return self.init.pid

    # Sockets of the test, over there --------------------------------------------------------------

    def open_socket(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        """An IPv4 socket of that namespace; it outlives the host's other processes."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            other = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                setns(other)
                try:
                    return socket.socket(socket.AF_INET, kind)
                finally:
                    setns(own)
            finally:
                os.close(other)
        finally:
            os.close(own)

    def connect(self, address: str, port: int, *, timeout: float = 5.0) -> socket.socket:
        """As a client that is there; by address, since names are the host's own matter."""
        made = self.open_socket()
        try:
            made.settimeout(timeout)
            made.connect((address, port))
        except BaseException:
            made.close()
            raise
        return made

    def open_http(
        self, address: str, port: int, *, timeout: float = 5.0
    ) -> http.client.HTTPConnection:
        """A connection that begins there."""
        connection = http.client.HTTPConnection(address, port, timeout=timeout)

        def create(target: tuple[str, int], *_: Any, **__: Any) -> socket.socket:
            return self.connect(target[0], target[1], timeout=timeout)

        connection._create_connection = create  # type: ignore[attr-defined]
        return connection

    # Commands -------------------------------------------------------------------------------------

    def entering(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]

    def environment(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OZY_", "ETCD"))}
        return kept | {"PATH": path}

    def run(
        self,
        *command: str | Path,
        check: bool = True,
        stdin: str = "",
        seconds: float = RUN_SECONDS_MAX,
    ) -> "subprocess.CompletedProcess[str]":
        """Run it there to its end. A failure shows what it printed."""
        argv = [str(part) for part in command]
        done = subprocess.run(
            self.cgroups.joining(*self.entering(), *argv),
            env=self.environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{self.name}: {' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def ip(self, *lines: str) -> None:
        """Several commands of ip(8) at once."""
        self.run("ip", "-batch", "-", stdin="\n".join(lines) + "\n")
