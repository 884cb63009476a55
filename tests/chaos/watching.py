"""Every revision of the store as it happens, seen by etcdctl beside the hosts, and what must hold.

The checks are the simulator's own (`sim/invariants.py`), on keys and values as etcd has them. Who
wrote a revision is not known here, so S3 is not looked at. Changes of jobs' heads are kept: in the
end each must be somebody's call, and each acknowledged call one of them (S5, `load.py`).
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby

from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobHead, JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.pod import PodId
from ozymandias.ports import KV, Event
from ozymandias.sim import invariants
from ozymandias.sim.truth import Change, Truth
from ozymandias.store import keys
from tests.chaos.cluster import ChaosCluster, kv_of

BREAKER_SECONDS = 58.0  # a minute, less what a look from outside may be late
VIEW_SECONDS = 1.0
WATCH_SECONDS_MAX = 10.0
MARK = "MARK"  # an environment variable that tells submitted versions apart
HeadChange = tuple[JobKey, JobHead | None, JobHead | None, str]  # the last: the new version's mark


class Watching:
    def __init__(self, cluster: ChaosCluster, violate: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._violate = violate
        self._process: subprocess.Popen[str] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._absent: dict[NodeName, float] = {}
        self.lock = threading.RLock()  # of the truth
        self.truth = Truth()
        self.revision = 0
        self.revisions = 0
        self.schedules = 0
        self.gaps = 0  # history that was compacted before it was seen, or while it was
        self.heads: list[HeadChange] = []
        self.left: dict[PodId, float] = {}  # when it was last seen that a pod is not to run

    @property
    def is_looking(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._list()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.kill()
        self._thread.join(timeout=30)

    def catch_up(self, seconds: float = 30.0) -> None:
        """Until everything that is in the store now was seen."""
        wanted = max((kv.mod_revision for kv in self._cluster.listing()[1]), default=0)
        deadline = time.monotonic() + seconds
        while self.revision < wanted:
            assert time.monotonic() < deadline, f"watch at {self.revision}, not at {wanted}"
            time.sleep(0.1)

    def _list(self) -> None:
        revision, kvs = self._cluster.listing()
        with self.lock:
            gone = self.truth.kvs.keys() - {kv.key for kv in kvs}
            # Each may have had to stop, and to run again, in what was not seen.
            running = {pod for node in self.truth.assignments for pod in _running(self.truth, node)}
            self.left |= dict.fromkeys(running, time.monotonic())
            deleted = [Event(KV(key, b"", 0, revision, 0, 0), deleted=True) for key in gone]
            self.truth.take_in([*deleted, *(Event(kv, deleted=False) for kv in kvs)])
            self.revision = revision

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except (AssertionError, ValueError):  # nobody answers; or a line was cut off in the end
                self._stop.wait(1.0)

    def _follow(self) -> None:
        arguments = ("watch", "--prefix", "/", f"--rev={self.revision + 1}", "-w", "json")
        self._process = subprocess.Popen(
            self._cluster.etcdctl(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        # A member that is cut off may keep a watch without a word: none lasts long.
        renewal = threading.Timer(WATCH_SECONDS_MAX, self._process.kill)
        renewal.daemon = True
        renewal.start()
        with self._process:
            for line in self._process.stdout:
                document = json.loads(line)
                if document.get("CompactRevision"):
                    self.gaps += 1
                    self._list()
                    self._process.kill()
                    return
                events = [
                    Event(kv_of(e["kv"]), deleted=e.get("type") in (1, "DELETE"))
                    for e in document.get("Events") or ()
                ]
                for revision, group in groupby(events, key=lambda e: e.kv.mod_revision):
                    self._take_in(revision, list(group))
        renewal.cancel()
        self._stop.wait(0.1)

    def _take_in(self, revision: int, events: Sequence[Event]) -> None:
        if revision <= self.revision:
            return
        if revision in self._cluster.compacted:
            # Of a revision that it was compacted to, etcd 3.4 tells a watch that is late what was
            # put and not what was deleted: half a transaction looks like a violation.
            self.gaps += 1
            self._list()
            return
        with self.lock:
            truth = self.truth
            named = {_job_of(event.kv.key) for event in events}
            before = {job: truth.heads.get(job) for job in named if job is not None}
            nodes = {_node_of(event.kv.key) for event in events} - {None}
            running = {pod for node in nodes for pod in _running(truth, node)}
            change = truth.take_in(events)
            running -= {pod for node in nodes for pod in _running(truth, node)}
            self.left |= dict.fromkeys(running, time.monotonic())
            self.revision, self.revisions = revision, self.revisions + 1
            found: list[str] = []
            if change.is_schedule:
                self.schedules += 1
                found += invariants.check_capacity(truth, change.nodes & truth.ledgers.keys())
                found += invariants.check_one_place(truth, change.jobs)
                found += invariants.check_claims(truth)
            for job, head in before.items():
                found += invariants.check_whole(truth, job, head)
                self.heads.append((job, head, truth.heads.get(job), self._mark(job)))
            found += self._check_losses(change)
            if change.named:
                found += invariants.check_names(truth, change.named)
        for what in found:
            self._violate(f"{what} (revision {revision})")

    def _mark(self, job: JobKey) -> str:
        spec = self.truth.spec(job)
        return dict(spec.containers[0].environment).get(MARK, "") if spec else ""

    def _check_losses(self, change: Change) -> list[str]:
        """Work was taken from a node that is not there: not while most are missing (S13)."""
        now, found = time.monotonic(), []
        for node in change.presences & set(map(NodeName, self._cluster.names)):
            if node in self.truth.presences:
                self._absent.pop(node, None)
            else:
                self._absent[node] = now
        for node in sorted(change.lost & self._absent.keys()):
            found += invariants.check_forgotten(self.truth, node)
            missing = [
                n for n, since in self._absent.items() if now - since > VIEW_SECONDS or n == node
            ]
            is_mass = len(missing) >= 2 and 2 * len(missing) > len(self._cluster.names)
            if is_mass and now - self._absent[node] < BREAKER_SECONDS:
                away = ", ".join(sorted(missing))
                found.append(f"S13 {node} was declared dead while {away} were missing")
        return found


def _node_of(key: bytes) -> NodeName | None:
    if not key.startswith(keys.ASSIGNMENTS):
        return None
    return NodeName(key[len(keys.ASSIGNMENTS) :].decode(errors="replace").partition("/")[0])


def _running(truth: Truth, node: NodeName | None) -> set[PodId]:
    if node is None:
        return set()
    return {pod for pod, state in truth.pods_of(node).items() if state is SlotState.RUNNING}


def _job_of(key: bytes) -> JobKey | None:
    if not key.startswith(keys.JOBS):
        return None
    parts = key[len(keys.JOBS) :].decode(errors="replace").split("/")
    return keys.job_key(*parts) if len(parts) == 2 else None
