"""Faults planted for real, one by one, for the doctor to find; each is gone with its `with`."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

from ozymandias.cli import main

TOKEN = "a-token-of-the-tests-0123"
DOCTOR_SECONDS_MAX = 60.0


@dataclass(frozen=True, kw_only=True)
class Found:
    code: int
    checks: list[dict[str, Any]]

    def of(self, name: str, verdict: str) -> dict[str, Any]:
        """The one check of that name (or whose name begins so) with that verdict."""
        for check in self.checks:
            if check["name"].startswith(name) and check["verdict"] == verdict:
                return check
        listed = "\n".join(f"{c['verdict']} {c['name']}: {c['detail']}" for c in self.checks)
        raise AssertionError(f"no {verdict} {name!r} in:\n{listed}")

    def has(self, name: str, verdict: str) -> bool:
        return any(c["name"].startswith(name) and c["verdict"] == verdict for c in self.checks)


@dataclass(kw_only=True)
class Doctor:
    """`ozy doctor` as a user runs it, with a context file of its own."""

    folder: Path
    path: str = field(default_factory=lambda: os.environ["PATH"])
    before: tuple[str, ...] = ()  # commands to run it by, e.g. in a namespace

    def context(self, **values: Any) -> None:
        document = {"current": "c", "contexts": {"c": {"endpoints": [], "token": TOKEN} | values}}
        (self.folder / "context.json").write_text(json.dumps(document))

    def settings(self, **tables: dict[str, Any]) -> Path:
        """A daemon's settings file; paths inside the folder, ports that nobody has."""
        token = self.folder / "token"
        if not token.exists():
            token.write_text(f"{TOKEN}\n")
            token.chmod(0o600)
        defaults: dict[str, dict[str, Any]] = {
            "node": {"name": "host-1", "state_dir": str(self.folder), "machine_id": "machine-1"},
            "etcd": {"endpoints": [f"127.0.0.1:{free_port()}"]},
            "api": {"listen": f"127.0.0.1:{free_port()}", "token_file": str(token)},
            "podman": {"socket": str(self.folder / "absent.sock"), "network": "ozy-absent"},
            "ingress": {"listen": f"127.0.0.1:{free_port()}"},
            "dns": {"listen": f"127.0.0.1:{free_port()}"},
        }
        lines = []
        for table, values in defaults.items():
            lines.append(f"[{table}]")
            given = values | tables.get(table, {})
            lines += [f"{key} = {json.dumps(value)}" for key, value in given.items()]
        file = self.folder / "ozymandias.toml"
        file.write_text("\n".join(lines) + "\n")
        return file

    def run(self, *arguments: str) -> Found:
        """In this process, or in another one where that matters to what is planted."""
        words = ["doctor", "-o", "json", *arguments]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
        kept |= {"OZY_CONTEXT": str(self.folder / "context.json"), "PATH": self.path}
        if not self.before:
            out = io.StringIO()
            with mock.patch.dict(os.environ, kept, clear=True), contextlib.redirect_stdout(out):
                code = main.run(words)
            return Found(code=code, checks=json.loads(out.getvalue()))
        done = subprocess.run(
            [*self.before, sys.executable, "-m", "ozymandias.cli", *words],
            env=kept,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=DOCTOR_SECONDS_MAX,
            check=False,
        )
        assert done.stdout, done.stderr
        return Found(code=done.returncode, checks=json.loads(done.stdout))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def listening(kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[int]:
    """Somebody has a port and says nothing."""
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        yield sock.getsockname()[1]


@contextmanager
def strange_dns() -> Iterator[int]:
    """A DNS server that answers every question with `refused`, and knows nothing of us."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                question, client = sock.recvfrom(4096)
                if not question:
                    return
                sock.sendto(question[:2] + b"\x81\x05" + question[4:], client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield sock.getsockname()[1]
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", sock.getsockname())
            thread.join()


@contextmanager
def http_server(seconds_ahead: float = 0.0, body: bytes = b'{"items": []}') -> Iterator[str]:
    """An endpoint that answers 200 to everything, and whose clock is off."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", formatdate(time.time() + seconds_ahead, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def mounted_tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """A file system as small as one likes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def path_with(folder: Path, commands: dict[str, str | None]) -> str:
    """A PATH on which some commands are scripts of ours, or are not there at all (None)."""
    folder.mkdir()
    hidden = {name for name, script in commands.items() if script is None}
    for directory in (*os.environ["PATH"].split(":"), "/usr/sbin", "/sbin"):
        for command in sorted(Path(directory).glob("*")) if Path(directory).is_dir() else ():
            link = folder / command.name
            if command.name not in hidden and not link.exists() and not link.is_symlink():
                link.symlink_to(command)
    for name, script in commands.items():
        if script is not None:
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    return str(folder)
