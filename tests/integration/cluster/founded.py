"""Hosts of a founded cluster on loopback: each has an address of its own and a directory as root.

No systemd, no podman, no flannel: etcd with TLS, daemons, ingress, DNS and keepers are real
processes, run by the small supervisor. Addresses are drawn at random from 127.0.0.0/8, so that
several tests can run at once on the usual ports.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ozymandias.cluster import state
from ozymandias.cluster.founding import record
from ozymandias.cluster.founding.record import Places
from ozymandias.cluster.founding.running import Supervised
from ozymandias.cluster.founding.work import Work, of
from ozymandias.cluster.state import Processes

RUN_SECONDS_MAX = 180.0


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        """As `-o json` prints it."""
        assert self.code != 0, self.out + self.err
        return json.loads(self.out)


@dataclass(frozen=True)
class FoundedHost:
    name: str
    address: str
    root: Path
    booted: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def places(self) -> Places:
        return Places(root=self.root)

    @property
    def work(self) -> Work:
        found = of(self.places, lambda outcome, what: None)
        assert found is not None
        return found

    @property
    def record(self) -> record.HostRecord:
        return self.work.record

    def options(self) -> list[str]:
        return [
            *("--root", str(self.root), "--name", self.name, "--address", self.address),
            *("--ingress", f"{self.address}:80", "--machine-id", f"machine-{self.root}"),
            *("--podman-socket", str(self.root / "absent.sock")),
        ]

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
        return subprocess.Popen(
            [sys.executable, "-m", "ozymandias.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | {"OZY_CONTEXT": str(self.root / "context.json")},
        )

    def ozy(self, *words: str) -> Ran:
        with self.spawn(*words) as process:
            try:
                out, err = process.communicate(timeout=RUN_SECONDS_MAX)
            except BaseException:
                process.kill()
                raise
        return Ran(process.returncode, out, err)

    def cluster(self, *words: str) -> Any:
        """`ozy cluster …` here, which must succeed; its document."""
        ran = self.ozy("cluster", *words, "--root", str(self.root), "-o", "json")
        assert ran.code == 0, ran.out + ran.err + self.logs()
        return ran.document

    def init_words(self, *more: str) -> list[str]:
        usual = ("--network", "bridge", "--dns", "builtin", "--lease-ttl", "6")
        return ["cluster", "init", *self.options(), *usual, *more]

    def join_words(self, first: "FoundedHost", token: str, *more: str) -> list[str]:
        return ["cluster", "join", first.address, token, *self.options(), *more]

    def init(self, *more: str) -> Any:
        ran = self.ozy(*self.init_words(*more), "-o", "json")
        assert ran.code == 0, ran.out + ran.err + self.logs()
        return ran.document

    def join(self, first: "FoundedHost", *more: str) -> Any:
        ran = self.ozy(*self.join_words(first, first.token(), *more), "-o", "json")
        assert ran.code == 0, ran.out + ran.err + self.logs()
        return ran.document

    def token(self, *more: str) -> str:
        return str(self.cluster("token", "create", *more)["token"])

    def status(self) -> Any:
        ran = self.ozy("cluster", "status", "--root", str(self.root), "-o", "json")
        return ran.document

    def roles(self) -> dict[str, str]:
        """Of etcd's members, by name; the leader is a member like others."""
        rows = self.status()["members"]
        return {row["name"]: row["role"].replace("leader", "member") for row in rows}

    def logs(self) -> str:
        found = sorted(self.places.logs.glob("*.log"))
        return "".join(
            f"\n--- {self.name} {file.name}\n{file.read_text(errors='replace')[-1500:]}"
            for file in found
        )

    def crash(self) -> None:
        """As a power cut: every process at once."""
        for process in Processes.load(self.places.run).by_name.values():
            process.kill(signal.SIGKILL)
        until(lambda: not Processes.load(self.places.run).alive(), 10)

    def boot(self) -> None:
        """What systemd would do: one program that starts all others."""
        words = ("-P", "-m", "ozymandias.cluster.founding.supervise", "--root", str(self.root))
        with (self.root / "boot.log").open("ab") as log:
            self.booted.append(
                subprocess.Popen(
                    [sys.executable, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def end(self) -> None:
        with contextlib.suppress(Exception):
            Supervised(self.places).end()
        state.end(Processes.load(self.places.run).alive(), grace_seconds=2.0)
        for process in self.booted:
            process.wait(30)


@dataclass
class Founded:
    """Makes hosts; ends them all."""

    directory: Path
    prefix: str = field(
        default_factory=lambda: f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
    )
    hosts: list[FoundedHost] = field(default_factory=list)

    def host(self, name: str = "", root: str = "") -> FoundedHost:
        number = len(self.hosts) + 1
        made = FoundedHost(
            name or f"h{number}", f"{self.prefix}.{number}", self.directory / (root or f"h{number}")
        )
        made.root.mkdir()
        self.hosts.append(made)
        return made


@contextlib.contextmanager
def founded(parent: Path) -> Iterator[Founded]:
    """In memory where there is /dev/shm: etcd waits for its disk."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else parent
    directory = base / f"ozy-founded-{secrets.token_hex(4)}"
    directory.mkdir()
    made = Founded(directory)
    try:
        yield made
    finally:
        for host in made.hosts:
            host.end()
        shutil.rmtree(directory, ignore_errors=True)


def until(condition: Callable[[], Any], seconds: float, say: Callable[[], str] = str) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not so after {seconds:g} s: {say()}"
        time.sleep(0.1)
    return found
