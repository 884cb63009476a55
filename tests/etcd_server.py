"""Real etcd for tests: a cluster of members on loopback, to be killed, paused and restarted.

    with EtcdCluster.start(3) as cluster:
        store = EtcdStore.connect(cluster.endpoints)

Random free ports, data in memory where there is /dev/shm, nothing left behind. Start it from the
main thread: members die with the thread that started them, so that no killed test run leaves one.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

READY_SECONDS = 30.0


class EtcdCluster:
    """`endpoints` has one entry per member; members are named by their index in it."""

    def __init__(
        self,
        members: int,
        *,
        options: Sequence[str] = (),
        scheme: str = "http",
        ctl_options: Sequence[str] = (),
        program: str = "etcd",
    ) -> None:
        self._program = program
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="etcd-test-", dir=parent))
        self._options = tuple(options)
        self._ctl_options = tuple(ctl_options)
        self._token = self.directory.name
        ports = _free_ports(3 * members)
        self._client, self._peer = ports[:members], ports[members : 2 * members]
        self._metrics = ports[2 * members :]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        self.endpoints = tuple(f"{scheme}://127.0.0.1:{port}" for port in self._client)

    @classmethod
    def start(
        cls,
        members: int = 3,
        *,
        options: Sequence[str] = (),
        scheme: str = "http",
        ctl_options: Sequence[str] = (),
        program: str = "etcd",
    ) -> "EtcdCluster":
        """Members that agree on a leader. More `options` go to etcd, `ctl_options` to etcdctl."""
        cluster = cls(
            members, options=options, scheme=scheme, ctl_options=ctl_options, program=program
        )
        try:
            for member in range(members):
                cluster._spawn(member)
            cluster.wait_ready()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def __enter__(self) -> "EtcdCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the members that run."""
        return tuple(process.pid for process in self._processes if process is not None)

    def stop(self) -> None:
        for member in range(len(self._processes)):
            self.kill(member)
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self, member: int) -> None:
        """As kill -9 does. Fine if it is dead."""
        process = self._processes[member]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[member] = None

    def pause(self, member: int) -> None:
        """It keeps its connections and says nothing."""
        self._signal(member, signal.SIGSTOP)

    def resume(self, member: int) -> None:
        self._signal(member, signal.SIGCONT)

    def restart(self, member: int, *, wait: bool = True) -> None:
        """With the data it had; waits until those that run follow a leader."""
        self.kill(member)
        self._spawn(member)
        if wait:
            self.wait_ready()

    def replace(self, *, token: str = "") -> None:
        """Begin again with empty data, as a cluster of another id if the token differs."""
        for member in range(len(self._processes)):
            self.kill(member)
            shutil.rmtree(self.directory / f"m{member}", ignore_errors=True)
        self._token = token or self._token
        for member in range(len(self._processes)):
            self._spawn(member)
        self.wait_ready()

    def leader(self) -> int:
        """The index of the member that leads."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            for member in range(len(self._processes)):
                if "\netcd_server_is_leader 1\n" in self._http(member, "/metrics"):
                    return member
            time.sleep(0.1)
        raise TimeoutError("no member leads")

    def wait_ready(self) -> None:
        """Until every member that runs follows a leader."""
        deadline = time.monotonic() + READY_SECONDS
        for member, process in enumerate(self._processes):
            while process is not None and not self._is_healthy(member):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"etcd did not start: {self._log(member)[-2000:]}")
                time.sleep(0.05)

    def ctl(self, *arguments: str, user: str = "") -> str:
        """What etcdctl prints."""
        command = ["etcdctl", f"--endpoints={','.join(self.endpoints)}", *self._ctl_options]
        command += [f"--user={user}"] if user else []
        result = subprocess.run(
            [*command, *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"etcdctl {' '.join(arguments)}: {result.stderr}")
        return result.stdout

    def _spawn(self, member: int) -> None:
        peers = [f"http://127.0.0.1:{port}" for port in self._peer]
        command = [
            *("setpriv", "--pdeathsig", "KILL", "--"),
            self._program,
            f"--name=m{member}",
            f"--data-dir={self.directory / f'm{member}'}",
            f"--listen-client-urls={self.endpoints[member]}",
            f"--advertise-client-urls={self.endpoints[member]}",
            f"--listen-peer-urls={peers[member]}",
            f"--initial-advertise-peer-urls={peers[member]}",
            f"--initial-cluster={','.join(f'm{i}={url}' for i, url in enumerate(peers))}",
            f"--initial-cluster-token={self._token}",
            f"--listen-metrics-urls=http://127.0.0.1:{self._metrics[member]}",
            "--logger=zap",
            "--log-level=warn",
            *self._options,
        ]
        with self._log_file(member).open("ab") as log, _undisturbed():
            self._processes[member] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _signal(self, member: int, number: signal.Signals) -> None:
        process = self._processes[member]
        assert process is not None, f"member {member} does not run"
        process.send_signal(number)

    def _is_healthy(self, member: int) -> bool:
        answer = self._http(member, "/health")
        return bool(answer) and json.loads(answer).get("health") == "true"

    def _http(self, member: int, path: str) -> str:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self._metrics[member]}{path}"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=1.0) as answer:
                return str(answer.read().decode())
        return ""

    def _log_file(self, member: int) -> Path:
        return self.directory / f"m{member}.log"

    def _log(self, member: int) -> str:
        return self._log_file(member).read_text(errors="replace")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Who is told to end hears of it once the process just begun is known, and so can be ended.

    Left alone it would write on, into a directory that is being removed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
