"""What really runs on the hosts, several times a second, from control groups and /proc alone.

No daemon and no podman is asked: a process of a container tells by its environment which instance
it is. Looked for: an exclusive instance in two places (S4), more memory than a host may give (S14),
and containers that end though nobody meant them to (S7), with what was going on then.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.pod import PodId
from ozymandias.sim import invariants
from ozymandias.sim.truth import Truth
from ozymandias.store import keys
from tests.cluster.hosts.hosts import Hosts

LOOK_SECONDS = 0.25
BEFORE_SECONDS = 2.0  # a container that ended was to run so long before …
AFTER_SECONDS = 30.0  # … and still is so long after: nobody meant it to end (a watch may lag)
HIERARCHY = Path("/sys/fs/cgroup/pids")


Running = dict[NodeName, set[PodId]]  # what the store says is to run


class Container(NamedTuple):
    """A container with a process in it; an infra container has no instance and is left out."""

    node: NodeName
    instance: InstanceId
    version: int
    id: str


def pids_of(prefix: str, host: str) -> Iterator[tuple[str, list[int]]]:
    """Of every container of a host: its id and its processes, by the machine's numbers."""
    for pod in _entries(HIERARCHY / prefix / host / "libpod_parent"):
        for group in _entries(pod):
            if not group.name.startswith("libpod-"):
                continue
            try:
                pids = [int(word) for word in (group / "cgroup.procs").read_text().split()]
            except OSError:
                continue  # it has just gone
            if pids:
                yield group.name.removeprefix("libpod-"), pids


def _entries(directory: Path) -> list[Path]:
    """Of a directory that may be gone, or go meanwhile."""
    try:
        return [directory / name for name in sorted(os.listdir(directory))]
    except OSError:
        return []


def identity(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(part.split("=", 1) for part in text.split("\0") if part.startswith("OZY_"))


class Processes:
    """Looks from `start` to `stop`; the truth of the store is somebody else's to keep."""

    def __init__(
        self,
        hosts: Hosts,
        truth: Truth,
        left: Mapping[PodId, float],
        lock: threading.RLock,
        violate: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._truth = truth
        self._left = left  # when a pod was last told to stop; it may have to run again since
        self._lock = lock
        self._violate = violate
        self._known: dict[str, Container] = {}  # by container id
        self._twice: dict[InstanceId, float] = {}
        self._told: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        self.ended: list[tuple[float, Container]] = []
        self.unmeant: list[tuple[float, Container]] = []  # ended though they were to run on
        self._running: deque[tuple[float, Running]] = deque(maxlen=240)
        self._doubtful: deque[tuple[float, Container, set[PodId]]] = deque()
        self.overlaps: list[tuple[InstanceId, float]] = []  # of jobs that may run twice

    @property
    def is_looking(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        before: set[Container] = set()
        while not self._stop.wait(LOOK_SECONDS):
            now, moment = set(self.look()), time.monotonic()
            self._running.append((moment, self._to_run()))
            for gone in before - now:
                self.ended.append((moment, gone))
                self._doubtful.append((moment, gone, self._pods(gone, moment - BEFORE_SECONDS)))
            while self._doubtful and self._doubtful[0][0] < moment - AFTER_SECONDS:
                ended, gone, pods = self._doubtful.popleft()
                began = ended - BEFORE_SECONDS
                still = pods & self._pods(gone, moment)
                if any(self._left.get(pod, 0.0) < began for pod in still):
                    self.unmeant.append((ended, gone))
            self._check(now)
            before = now
            self.looks += 1

    def _to_run(self) -> Running:
        with self._lock:
            return {
                node: {p for p, s in self._truth.pods_of(node).items() if s is SlotState.RUNNING}
                for node in list(self._truth.assignments)
            }

    def _pods(self, container: Container, moment: float) -> set[PodId]:
        """Of that container, those that were to run at that time or a bit before."""
        past = [running for when, running in self._running if when <= moment]
        own = past[-1].get(container.node, set()) if past else set()
        return {
            pod
            for pod in own
            if (pod.instance, pod.version) == (container.instance, container.version)
        }

    def look(self) -> Iterator[Container]:
        for host in self._hosts:
            for id_, pids in pids_of(self._hosts.prefix, host.name):
                if id_ not in self._known and (found := self._identify(host.name, id_, pids)):
                    self._known[id_] = found
                if id_ in self._known:
                    yield self._known[id_]

    def _identify(self, host: str, id_: str, pids: list[int]) -> Container | None:
        for pid in pids:
            told = identity(pid)
            if "OZY_INSTANCE" in told and "OZY_JOB" in told:
                job = keys.job_key(told["OZY_NAMESPACE"], told["OZY_JOB"])
                slot = int(told["OZY_INSTANCE"].rpartition("-")[2])
                version = int(told["OZY_VERSION"])
                return Container(NodeName(host), InstanceId(job, slot), version, id_)
        return None

    def _check(self, now: set[Container]) -> None:
        memory: dict[NodeName, int] = {}
        places: dict[InstanceId, set[NodeName]] = {}
        with self._lock:
            for container in now:
                places.setdefault(container.instance, set()).add(container.node)
                version = self._truth.versions.get((container.instance.job, container.version))
                if version is not None:
                    needs = Demand.of(version.job).memory_bytes
                    memory[container.node] = memory.get(container.node, 0) + needs
            for node, total in memory.items():
                for what in invariants.check_processes(node, total, self._truth.ledgers.get(node)):
                    self._tell_once(what)
            exclusive = {
                key
                for (key, _), version in self._truth.versions.items()
                if version.job.on_partition == "stop"
            }
        self._check_places(places, {i for i in places if i.job in exclusive})

    def _check_places(
        self, places: dict[InstanceId, set[NodeName]], exclusive: set[InstanceId]
    ) -> None:
        for instance, nodes in places.items():
            if len(nodes) < 2:
                continue
            self._twice.setdefault(instance, time.monotonic())
            if instance in exclusive:
                where = " and ".join(sorted(nodes))
                self._tell_once(f"S4 {instance}, which must never run twice, runs on {where}")
        for instance, since in list(self._twice.items()):
            if len(places.get(instance, ())) < 2:
                self.overlaps.append((instance, time.monotonic() - since))
                del self._twice[instance]

    def _tell_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._violate(what)


def kill(pids: list[str]) -> None:
    """kill -9; fine if one has gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
