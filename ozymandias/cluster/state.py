"""What is known of a local cluster between two commands: one JSON file in its state directory.

`cluster.json` says how the cluster was made (names, ports, subnet, sizes) and is written before
anything is started, so that `ozy down` can always undo what `ozy up` did. `processes.json` is the
supervisor's: which processes run for the cluster. A process is named by pid *and* start time *and*
boot, so that a number taken over by a stranger after a power cut is never killed.
"""

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ozymandias.problems import LOCAL_CLUSTER, ProblemError

FORMAT = 1
DEFAULT_STATE_DIR = Path("/var/lib/ozymandias/local")
RUN_BASE = Path("/run/ozymandias")  # sockets: short paths, gone after a reboot


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    name: str
    api_port: int
    killed: bool = False  # on purpose, by `ozy node kill`: not to be restarted


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """How the cluster was made. Written once by `up`; `kill` and `start` change `killed`."""

    id: str
    state_dir: Path
    nodes: tuple[LocalNode, ...]
    memory: str
    disk: str
    subnet: str
    gateway: str
    etcd_port: int
    etcd_peer_port: int
    ingress_port: int
    dns_port: int  # on loopback, for the host itself; pods ask port 53 of the gateway
    was_ready: bool = False  # it came up once: its data are worth bringing back

    @property
    def run_dir(self) -> Path:
        return RUN_BASE / self.id

    @property
    def subnet_file(self) -> Path:
        """Tells other clusters of this machine that the subnet is taken."""
        return self.run_dir / "subnet"

    @property
    def ports_file(self) -> Path:
        """Tells others that are being made meanwhile which ports will be bound."""
        return self.run_dir / "ports"

    @property
    def ports(self) -> tuple[int, ...]:
        return (
            *(node.api_port for node in self.nodes),
            *(self.etcd_port, self.etcd_peer_port, self.ingress_port, self.dns_port),
        )

    @property
    def network(self) -> str:
        return f"ozy-{self.id}"

    @property
    def supervisor_socket(self) -> Path:
        return self.run_dir / "supervisor.sock"

    @property
    def podman_socket(self) -> Path:
        return self.run_dir / "podman.sock"

    @property
    def token_file(self) -> Path:
        """The client's copy, for whoever made the cluster; daemons never read it."""
        return self.state_dir / "token"

    @property
    def token_hashes_file(self) -> Path:
        return self.state_dir / "tokens"

    @property
    def containers_conf(self) -> Path:
        return self.state_dir / "containers.conf"

    @property
    def logs(self) -> Path:
        return self.state_dir / "logs"

    @property
    def etcd_dir(self) -> Path:
        return self.state_dir / "etcd"

    def config_file(self, name: str) -> Path:
        return self.state_dir / "nodes" / name / "ozymandias.toml"

    def node(self, name: str) -> LocalNode | None:
        return next((node for node in self.nodes if node.name == name), None)

    def with_killed(self, name: str, killed: bool) -> "LocalCluster":
        nodes = tuple(replace(n, killed=killed) if n.name == name else n for n in self.nodes)
        return replace(self, nodes=nodes)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(f"http://127.0.0.1:{node.api_port}" for node in self.nodes)

    @property
    def ingress(self) -> str:
        return f"http://127.0.0.1:{self.ingress_port}"

    def save(self) -> None:
        document = asdict(self) | {"format": FORMAT, "state_dir": str(self.state_dir)}
        write_json(self.state_dir / "cluster.json", document)


def load(state_dir: Path) -> LocalCluster | None:
    """The cluster of that directory; None if there is none. A damaged file is a problem."""
    file = state_dir / "cluster.json"
    try:
        document = json.loads(file.read_text())
        if document.pop("format") != FORMAT:
            raise ValueError("it was written by another version")
        document["nodes"] = tuple(LocalNode(**node) for node in document["nodes"])
        return LocalCluster(**document | {"state_dir": state_dir})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ProblemError(
            LOCAL_CLUSTER(
                f"{file} can't be read: {error}.",
                hint=f"Remove what is left by hand, then the directory {state_dir}.",
            )
        ) from error


def is_blank(state_dir: Path) -> bool:
    """No cluster's state and nothing of anybody else's, at most a file that was being written."""
    if not state_dir.exists():
        return True
    return {path.name for path in state_dir.iterdir()} <= {".cluster.json.new"}


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all, also across a power cut."""
    fresh = file.with_name(f".{file.name}.new")
    with fresh.open("w") as stream:
        json.dump(document, stream, indent=2)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(file)


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """One command at a time changes a cluster; the second is told so."""
    try:
        with _locked_directory(state_dir, fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield
    except BlockingIOError:
        raise ProblemError(
            LOCAL_CLUSTER(
                f"Another command is changing the cluster in {state_dir}.",
                hint="Wait for it to end, then try again.",
            )
        ) from None


@contextmanager
def locked_machine() -> Iterator[None]:
    """For choosing what clusters of one machine must not share; the second waits."""
    with _locked_directory(RUN_BASE, fcntl.LOCK_EX):
        yield


@contextmanager
def _locked_directory(directory: Path, how: int) -> Iterator[None]:
    """The directory itself is the lock's file, so that nothing is left behind."""
    while True:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, how)
            if _is_same(descriptor, directory):  # not removed while we waited
                yield
                return
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def reserve_ports(cluster: LocalCluster) -> None:
    """For as long as this process lives: by then they are bound, or not wanted any more."""
    own = ProcessId.of(os.getpid())
    assert own is not None
    write_json(cluster.ports_file, {"process": asdict(own), "ports": cluster.ports})


def reserved_ports() -> frozenset[int]:
    """What clusters that are just being made on this machine are going to bind."""
    found: set[int] = set()
    for file in RUN_BASE.glob("*/ports"):
        try:
            document = json.loads(file.read_text())
            process = ProcessId(**document["process"])
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if process.is_alive and process.pid != os.getpid():
            found.update(document["ports"])
    return frozenset(found)


# Processes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that can't be taken for another one."""

    pid: int
    started: int  # clock ticks since boot
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """None when there is no such process, or only what is left of one (a zombie)."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid=pid, started=int(fields[19]), boot=boot_id())

    @property
    def is_alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def kill(self, number: signal.Signals) -> None:
        """Signal it, if it is still the same process."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            # The descriptor holds on to whoever has the number now; only then is the check sound.
            if self.is_alive:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """What runs for a cluster, by name: supervisor, etcd, podman, ingress, dns, n1, n2, ..."""

    by_name: Mapping[str, ProcessId] = field(default_factory=dict)

    @classmethod
    def load(cls, state_dir: Path) -> Self:
        try:
            document = json.loads((state_dir / "processes.json").read_text())
            return cls(by_name={name: ProcessId(**entry) for name, entry in document.items()})
        except (OSError, ValueError, TypeError, AttributeError):
            return cls()

    def save(self, state_dir: Path) -> None:
        write_json(
            state_dir / "processes.json",
            {name: asdict(process) for name, process in self.by_name.items()},
        )

    def alive(self) -> dict[str, ProcessId]:
        return {name: process for name, process in self.by_name.items() if process.is_alive}


def end(processes: Mapping[str, ProcessId], grace_seconds: float) -> None:
    """SIGTERM to all at once, SIGKILL to those that are still there after the grace."""
    for process in processes.values():
        process.kill(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while (remaining := [p for p in processes.values() if p.is_alive]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.02)
    for process in remaining:
        process.kill(signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while any(process.is_alive for process in remaining) and time.monotonic() < deadline:
        time.sleep(0.01)
