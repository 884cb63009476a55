"""A daemon as a process of its own, on real etcd: ended by a signal while clients listen."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from ozymandias.store.tokens import hashed, make_token
from tests.etcd_server import EtcdCluster
from tests.integration.api.rig import free_port, until


@dataclass(kw_only=True)
class Process:
    port: int
    token: str
    log: Path
    folder: Path
    process: subprocess.Popen[bytes]
    etcd: EtcdCluster

    def ask(
        self, path: str, token: str = "", *, post: bytes | None = None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {"Authorization": f"Bearer {token or self.token}"}
        try:
            method = "GET" if post is None else "POST"
            connection.request(method, path, post, headers=headers)
            return connection, connection.getresponse()
        except OSError:
            connection.close()
            raise

    def document(self, path: str, *, post: bytes | None = None) -> Any:
        connection, answer = self.ask(path, post=post)
        with contextlib.closing(connection):
            return json.loads(answer.read())

    def status(self, path: str) -> int:
        try:
            connection, answer = self.ask(path)
        except OSError:
            return 0
        answer.read()
        connection.close()
        return answer.status


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Process]:
    with lonely(tmp_path) as found:
        yield found


@contextlib.contextmanager
def lonely(tmp_path: Path, settings: str = "") -> Iterator[Process]:
    """Without podman: its node takes no work, and its API answers all the same."""
    token, port, log = make_token(), free_port(), tmp_path / "log"
    (tmp_path / "tokens").write_text(f"{hashed(token)}\n")
    with EtcdCluster.start(1) as etcd, log.open("wb") as output:
        endpoints = json.dumps([e.removeprefix("http://") for e in etcd.endpoints])
        config = tmp_path / "ozymandias.toml"
        config.write_text(
            f"""
            [node]
            name = "lonely"
            machine_id = "machine-1"
            state_dir = "{tmp_path}"
            lease_ttl_seconds = 5
            [etcd]
            endpoints = {endpoints}
            [api]
            listen = "127.0.0.1:{port}"
            token_file = "{tmp_path}/tokens"
            [podman]
            socket = "{tmp_path}/absent.sock"
            {settings}
            """
        )
        command = [sys.executable, "-m", "ozymandias", "--config", str(config)]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=kept)
        found = Process(
            port=port, token=token, log=log, folder=tmp_path, process=process, etcd=etcd
        )
        try:
            until(lambda: found.status("/readyz") == 200, 60)
            yield found
        finally:
            process.kill()
            process.wait()


def test_streams_end_properly_on_sigterm(daemon: Process) -> None:
    """Followers get the end of the answer, the process ends at once, its log has no traceback."""
    followers = [daemon.ask("/v1/events?follow=1") for _ in range(3)]
    assert [answer.status for _, answer in followers] == [200] * 3
    gone, unread = daemon.ask("/v1/events?follow=1")
    unread.close()
    gone.close()
    daemon.process.send_signal(signal.SIGTERM)
    for connection, answer in followers:
        answer.read()  # raises IncompleteRead if it was torn
        connection.close()
    assert daemon.process.wait(15) == 0
    assert "Traceback" not in daemon.log.read_text()
    assert not (daemon.folder / "api.sock").exists()


def test_what_is_under_way_on_sigterm_is_answered(daemon: Process) -> None:
    """etcd is slow, and the daemon is told to end: it does so when the change is made and told."""
    daemon.etcd.pause(0)
    connection = HTTPConnection("127.0.0.1", daemon.port, timeout=20)
    token = {"Authorization": f"Bearer {daemon.token}"}
    connection.request("POST", "/v1/nodes/lonely/cordon", headers=token)
    assert daemon.status("/v1/info") == 200  # which came later: the other one is under way
    daemon.process.send_signal(signal.SIGTERM)
    until(lambda: daemon.status("/v1/info") == 0, 20)
    daemon.etcd.resume(0)
    with contextlib.closing(connection):
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["changed"]) == (200, True)
    assert daemon.process.wait(15) == 0
    assert "Traceback" not in daemon.log.read_text()


def test_what_is_not_http_leaves_no_traceback(daemon: Process) -> None:
    """Garbage is answered as a problem and closed; it is no news for the log."""
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        connection = HTTPConnection("127.0.0.1", daemon.port, timeout=20)
        connection.connect()
        connection.sock.sendall(junk)
        assert b" 400 " in connection.sock.recv(65536).partition(b"\r\n")[0]
        connection.close()
    assert daemon.status("/v1/info") == 200
    assert "Traceback" not in daemon.log.read_text()


def test_an_address_that_is_taken_is_told_in_a_line(daemon: Process, tmp_path: Path) -> None:
    """Of two daemons that are to listen at the same place the second says so, and ends."""
    other = tmp_path / "other"
    other.mkdir()
    config = (daemon.folder / "ozymandias.toml").read_text()
    here, there = f'state_dir = "{daemon.folder}"', f'state_dir = "{other}"'
    (other / "ozymandias.toml").write_text(config.replace(here, there))
    command = [sys.executable, "-m", "ozymandias", "--config", str(other / "ozymandias.toml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    told = ended.stderr.splitlines()[-1]
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert f"[api] 127.0.0.1:{daemon.port}: " in told and "address already in use" in told


def test_the_token_is_nowhere(daemon: Process) -> None:
    """After requests with it, good and bad, neither log nor state directory holds the token."""
    assert daemon.status("/v1/jobs") == 200
    assert daemon.status("/v1/nowhere") == 404
    secret = daemon.token.encode()
    for path in daemon.folder.rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes(), path
