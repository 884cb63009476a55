"""The raw store, decoded, kept up to date revision by revision: what invariants are checked on.

It is fed with keys and values as etcd has them, never with what a daemon believes, and so serves
simulated clusters and real ones alike: `Truth.of(kvs)` from a listing, `take_in` with each
revision's events. A value that can't be read is left out and noted, as daemons must do too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ozymandias.core.pods import pod_id
from ozymandias.model.instance import (
    Assigned,
    Assignment,
    InstanceId,
    InstanceStatus,
    SlotState,
)
from ozymandias.model.job import Job, JobHead, JobKey, JobVersion
from ozymandias.model.node import Demand, Ledger, Load, NodeName, Presence
from ozymandias.model.pod import PodId
from ozymandias.model.settings import Settings
from ozymandias.ports import KV, Event
from ozymandias.store import codec, keys

LIVE = frozenset({SlotState.RUNNING, SlotState.WAITING})


@dataclass(slots=True, kw_only=True)
class Change:
    """What one revision touched."""

    nodes: set[NodeName] = field(default_factory=set)  # ledgers or assignments of these
    jobs: set[JobKey] = field(default_factory=set)  # heads or assignments of these
    named: set[JobKey] = field(default_factory=set)  # statuses or names of these
    presences: set[NodeName] = field(default_factory=set)
    lost: set[NodeName] = field(default_factory=set)  # these gave up room that was held
    freed: set[NodeName] = field(default_factory=set)  # these were promised less of something
    gained: set[NodeName] = field(default_factory=set)  # these were promised more
    given: set[tuple[NodeName, JobKey]] = field(default_factory=set)  # the same, and what
    # Of what each node was newly given: the versions; and what it has nothing of any more.
    placed: dict[tuple[NodeName, JobKey], set[int]] = field(default_factory=dict)
    left: set[tuple[NodeName, JobKey]] = field(default_factory=set)
    live_before: dict[JobKey, int] = field(default_factory=dict)
    ledgers: dict[NodeName, Ledger] = field(default_factory=dict)  # as they were before
    were_open: set[NodeName] = field(default_factory=set)  # these took work until then
    loads: set[NodeName] = field(default_factory=set)  # these told how they are doing
    is_schedule: bool = False
    settles: bool = False  # the cluster's settings


class Truth:
    def __init__(self, domain: str = "ozy.internal") -> None:
        self.kvs: dict[bytes, KV] = {}
        self.presences: dict[NodeName, Presence] = {}
        self.ledgers: dict[NodeName, Ledger] = {}
        self.loads: dict[NodeName, Load] = {}
        self.heads: dict[JobKey, JobHead] = {}
        self.versions: dict[tuple[JobKey, int], JobVersion] = {}
        self.assignments: dict[NodeName, dict[JobKey, Assignment]] = {}
        self.statuses: dict[JobKey, dict[NodeName, dict[int, InstanceStatus]]] = {}
        self.names: dict[JobKey, dict[bytes, KV]] = {}
        self.claims: dict[str, JobKey] = {}
        self.settings = Settings()
        self.unreadable: set[bytes] = set()
        self._zone = keys.dns(domain) + b"/"

    @classmethod
    def of(cls, kvs: Mapping[bytes, KV] | Iterable[KV]) -> "Truth":
        truth = cls()
        found = kvs.values() if isinstance(kvs, Mapping) else kvs
        truth.take_in([Event(kv, deleted=False) for kv in found])
        return truth

    def take_in(self, events: Sequence[Event]) -> Change:
        change = Change()
        for event in events:
            kv, key = event.kv, event.kv.key
            if event.deleted:
                self.kvs.pop(key, None)
            else:
                self.kvs[key] = kv
            try:
                self._apply(kv, event.deleted, change)
                self.unreadable.discard(key)
            except ValueError:
                self.unreadable.add(key)
        return change

    def _apply(self, kv: KV, deleted: bool, change: Change) -> None:
        key = kv.key
        if key.startswith(keys.EVENTS):
            return
        if key.startswith(keys.ASSIGNMENTS):
            self._apply_assignment(kv, deleted, change)
        elif key.startswith(keys.LEDGERS):
            name = NodeName(key[len(keys.LEDGERS) :].decode())
            change.nodes.add(name)
            change.is_schedule = True
            before = self.ledgers.pop(name, None)
            if before is not None:
                change.ledgers[name] = before
                if before.takes_work:
                    change.were_open.add(name)
            if not deleted:
                self.ledgers[name] = codec.decode(Ledger, kv.value)
        elif key.startswith(keys.NODES):
            name = NodeName(key[len(keys.NODES) :].decode())
            change.presences.add(name)
            self.presences.pop(name, None)
            if not deleted:
                self.presences[name] = codec.decode(Presence, kv.value)
        elif key.startswith(keys.LOADS):
            name = NodeName(key[len(keys.LOADS) :].decode())
            change.loads.add(name)
            self.loads.pop(name, None)
            if not deleted:
                self.loads[name] = codec.decode(Load, kv.value)
        elif key.startswith(keys.STATUS):
            self._apply_status(kv, deleted, change)
        elif key.startswith(self._zone):
            job = keys.job_key(*(*keys.parts(key, self._zone), "", "")[:2])
            change.named.add(job)
            if deleted:
                self.names.get(job, {}).pop(key, None)
            else:
                self.names.setdefault(job, {})[key] = kv
        else:
            self._apply_job(kv, deleted, change)

    def _apply_assignment(self, kv: KV, deleted: bool, change: Change) -> None:
        node, job = node_and_job(kv.key, keys.ASSIGNMENTS)
        change.nodes.add(node)
        change.jobs.add(job)
        change.is_schedule = True
        if job not in change.live_before:
            change.live_before[job] = len(self.live(job))
        own = self.assignments.setdefault(node, {})
        before = own.pop(job, None)
        if not deleted:
            groups = codec.decode_groups(kv.value)
            own[job] = Assignment(node=node, job=job, groups=groups)
        if before and held(own.get(job)) < held(before):
            change.lost.add(node)
        if promised(own.get(job)) < promised(before):
            change.freed.add(node)
        if promised(own.get(job)) > promised(before):
            change.gained.add(node)
            change.given.add((node, job))
        earlier, now = live_of(before), live_of(own.get(job))
        if more := {version for version in now if now[version] > earlier[version]}:
            change.placed[node, job] = more
        if earlier and not now:
            change.left.add((node, job))

    def _apply_status(self, kv: KV, deleted: bool, change: Change) -> None:
        node, job = node_and_job(kv.key, keys.STATUS)
        change.named.add(job)
        by_node = self.statuses.setdefault(job, {})
        by_node.pop(node, None)
        if not deleted:
            by_node[node] = codec.decode_statuses(kv.value)

    def _apply_job(self, kv: KV, deleted: bool, change: Change) -> None:
        key = kv.key
        if key.startswith(keys.JOBS):
            namespace, name = keys.parts(key, keys.JOBS)
            job = keys.job_key(namespace, name)
            change.jobs.add(job)
            change.is_schedule = True
            self.heads.pop(job, None)
            if not deleted:
                self.heads[job] = codec.decode(JobHead, kv.value)
        elif key.startswith(keys.VERSIONS):
            namespace, name, number = keys.parts(key, keys.VERSIONS)
            pair = (keys.job_key(namespace, name), int(number))
            self.versions.pop(pair, None)
            if not deleted:
                self.versions[pair] = codec.decode(JobVersion, kv.value)
        elif key == keys.SCHEDULING:
            self.settings = Settings() if deleted else codec.decode(Settings, kv.value)
            change.settles = True
        elif key.startswith(keys.CLAIMS):
            claim = key[len(keys.CLAIMS) :].decode()
            self.claims.pop(claim, None)
            if not deleted:
                namespace, name = codec.decode(str, kv.value).split("/", 1)
                self.claims[claim] = keys.job_key(namespace, name)

    # Looking ------------------------------------------------------------------------------------

    def assigned(self, job: JobKey | None = None) -> Iterator[Assigned]:
        for _, own in sorted(self.assignments.items()):
            for key in sorted(own) if job is None else [job] * (job in own):
                yield from own[key].instances

    def pods_of(self, node: NodeName) -> dict[PodId, SlotState]:
        """What a node is to do with each of its pods; a slot that is to stop is first to stop."""
        found: dict[PodId, SlotState] = {}
        for assignment in self.assignments.get(node, {}).values():
            for instance in assignment.instances:
                pod = pod_id(instance)
                if found.get(pod) is not SlotState.STOPPING:
                    found[pod] = instance.state
        return found

    def live(self, job: JobKey) -> dict[InstanceId, NodeName]:
        return {a.instance: a.node for a in self.assigned(job) if a.state in LIVE}

    def spec(self, job: JobKey) -> Job | None:
        """The current version of a job, if that can be read."""
        head = self.heads.get(job)
        version = self.versions.get((job, head.version)) if head else None
        return version.job if version else None

    def demand(self, job: JobKey) -> Demand | None:
        """Of one instance of the current version, if that can be read."""
        spec = self.spec(job)
        return Demand.of(spec) if spec else None

    def healthy(self) -> set[InstanceId]:
        return {
            InstanceId(job, slot)
            for job, by_node in self.statuses.items()
            for statuses in by_node.values()
            for slot, status in statuses.items()
            if status.healthy
        }


def node_and_job(key: bytes, prefix: bytes) -> tuple[NodeName, JobKey]:
    node, namespace, name = keys.parts(key, prefix)
    return NodeName(node), keys.job_key(namespace, name)


def held(assignment: Assignment | None) -> int:
    """How many slots hold room; only their own node gives them up, or who declares it dead."""
    return _count(assignment, SlotState.WAITING)


def promised(assignment: Assignment | None) -> int:
    return _count(assignment, SlotState.STOPPING)


def live_of(assignment: Assignment | None) -> Counter[int]:
    """How many are running or waiting, by version."""
    live: Counter[int] = Counter()
    for group in assignment.groups if assignment else ():
        if group.state is not SlotState.STOPPING:  # a version may have those that run and wait
            live[group.version] += len(group.slots)
    return live


def _count(assignment: Assignment | None, but: SlotState) -> int:
    groups = assignment.groups if assignment else ()
    return sum(len(group.slots) for group in groups if group.state is not but)
