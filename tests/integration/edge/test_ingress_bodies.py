"""Bodies far larger than memory should ever hold, through the ingress's own process, both ways.

Two GiB by default; `OZY_BODY_BYTES=10000000000` sends ten gigabytes. What counts is the process's
highest resident size while they pass.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.etcd_server import EtcdCluster
from tests.integration.edge.conftest import closed_port
from tests.integration.edge.test_processes import (
    connected,
    http,
    job_puts,
    process,
    status_put,
    wait_for,
)

MEBIBYTE = 1 << 20
BODY_BYTES = int(os.environ.get("OZY_BODY_BYTES", 2048 * MEBIBYTE))
GROWTH_MAX = 6 * MEBIBYTE
PIECE = bytes(MEBIBYTE)


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(1) as cluster:
        yield cluster


class Peak:
    """The highest resident size of a process since it was asked to count anew."""

    def __init__(self, pid: int) -> None:
        self._directory = Path(f"/proc/{pid}")
        self._before = self._field("VmRSS")
        (self._directory / "clear_refs").write_text("5")

    def _field(self, name: str) -> int:
        for line in (self._directory / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(name)

    def growth(self) -> int:
        return self._field("VmHWM") - self._before


class Instance:
    """Sends as many bytes as it is asked for, takes as many as it is sent; a thread for each."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.may_read = threading.Event()
        self.may_read.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @contextmanager
    def serving(self) -> Iterator[None]:
        accepting = threading.Thread(target=self._accept, daemon=True)
        accepting.start()
        try:
            yield
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10)
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as reader:
            while line := reader.readline():
                method, target, _ = line.split(b" ")
                length = 0
                while (field := reader.readline()) != b"\r\n":
                    if field.lower().startswith(b"content-length:"):
                        length = int(field.split(b":")[1])
                if method == b"PUT":
                    self.may_read.wait()
                    self._take(reader, length)
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                else:
                    self._send(sock, int(target[1:] or b"0"))

    def _take(self, reader, length: int) -> None:
        buffer = bytearray(MEBIBYTE)
        while length:
            got = reader.readinto(memoryview(buffer)[: min(length, MEBIBYTE)])
            assert got
            length -= got
            self.received += got

    def _send(self, sock: socket.socket, length: int) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
        while length:
            size = min(length, MEBIBYTE)
            sock.sendall(memoryview(PIECE)[:size])
            length -= size
            self.sent += size


def upload(port: int, length: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(
            b"PUT / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: %d\r\n\r\n" % length
        )
        while length:
            size = min(length, MEBIBYTE)
            sock.sendall(memoryview(PIECE)[:size])
            length -= size
        return sock.recv(4096)


def ask_for(port: int, length: int) -> socket.socket:
    """The head has been read when this returns; what of the body came with it is left there."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(b"GET /%d HTTP/1.1\r\nHost: web.localhost\r\n\r\n" % length)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        got = sock.recv(1)
        assert got, head
        head += got
    return sock


def read_all(sock: socket.socket) -> int:
    buffer = bytearray(MEBIBYTE)
    sock.settimeout(30)
    count = 0
    sock.sendall(b"GET /0 HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n\r\n")
    while got := sock.recv_into(buffer):
        count += got
    return count


def at_rest(count) -> int:
    """The count once it no longer changes."""
    before, now = -1, count()
    while before != now:
        time.sleep(0.3)
        before, now = now, count()
    return now


async def test_memory_does_not_grow_with_bodies(etcd: EtcdCluster, tmp_path: Path):
    """Large bodies up and down, and with nobody reading for a while, cost a few MiB at most."""
    instance = Instance()
    port = closed_port()
    settings = {
        "etcd": {"endpoints": list(etcd.endpoints)},
        "ingress": {"listen": f"127.0.0.1:{port}"},
    }
    with instance.serving(), process("ingress", tmp_path, settings) as ingress:
        async with connected(etcd) as store:
            await store.txn((), [*job_puts("web", [instance.port]), status_put("web", 1)])
        await wait_for(http(port, "web.localhost"), "200 ")
        assert upload(port, MEBIBYTE).endswith(b"ok")  # buffers of the first request, once for all

        peak = Peak(ingress.pid)
        assert upload(port, BODY_BYTES).endswith(b"ok")
        assert instance.received == BODY_BYTES + MEBIBYTE
        assert peak.growth() < GROWTH_MAX, "while a body was sent"

        peak = Peak(ingress.pid)
        with ask_for(port, BODY_BYTES) as sock:
            assert at_rest(lambda: instance.sent) < BODY_BYTES // 2  # held up, as nobody reads
            assert peak.growth() < GROWTH_MAX, "while nobody read"
            assert read_all(sock) > BODY_BYTES
        assert instance.sent == BODY_BYTES
        assert peak.growth() < GROWTH_MAX, "while a body was read"

        peak = Peak(ingress.pid)
        instance.may_read.clear()
        sending = threading.Thread(target=upload, args=(port, 64 * MEBIBYTE), daemon=True)
        sending.start()
        time.sleep(0.5)  # more than enough to send it all, were it not held up
        assert sending.is_alive() and peak.growth() < GROWTH_MAX, "while the instance did not read"
        instance.may_read.set()
        sending.join(30)
        assert not sending.is_alive()
        assert peak.growth() < GROWTH_MAX
