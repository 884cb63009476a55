"""A copy of the cluster in memory, fed by one watch, handing out Snapshots.

The mirror applies whole revisions only, so every Snapshot is the cluster at one revision and each
object in it knows the revision it was read at: a later compare needs no second read. What can't
be decoded is left out with a warning; one poisoned key must not stop every peer.

Snapshots are cheap: of the seven mappings in one, those that did not change since the last snapshot
are the very same objects, and the others are copied once per snapshot that somebody asks for.

Loops look at the whole cluster whenever it changes. Those of a ``patient`` mirror are woken for
several changes at a time when they come thick and fast; the first after a quiet moment wakes them
at once, and whoever waits for a revision of its own (`reached`) waits no longer than that takes to
arrive. The pause grows with the cluster, as the work of one look does, so that looking never takes
all of a processor. Revisions of the log of events alone, which are nearly half of all, wake only
who reads that log (`told`): nothing can follow from them.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ozymandias.model.event import EventRecord
from ozymandias.model.instance import Assignment, Group, JobStatus
from ozymandias.model.job import JobHead, JobKey, JobRecord, JobVersion
from ozymandias.model.node import Ledger, Node, NodeName, Presence
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import KV, Event, Listing, Store, Unavailable
from ozymandias.store import codec, keys
from ozymandias.telemetry import warn

T = TypeVar("T")

PAUSE_SECONDS = 0.02
PAUSE_SECONDS_MAX = 0.5
PAUSE_SECONDS_EACH = 0.0003  # more for every assignment in the cluster
PARTS = ("nodes", "jobs", "assignments", "statuses", "claims", "last_versions", "unknown")


class Mirror:
    def __init__(self, store: Store, *, patient: bool = False) -> None:
        self._store = store
        self._patient = patient
        self._changed = asyncio.Event()  # for loops, which are woken now and then
        self._arrived = asyncio.Event()  # for those who wait for one revision
        self._woken = -PAUSE_SECONDS_MAX  # on the loop's clock
        self._waking: asyncio.TimerHandle | None = None
        self._snapshot = Snapshot()
        self._followers: list[set[JobKey]] = []
        self.is_ready = False
        self.revision = 0
        self._moved = 0  # the last revision that was not of the log alone
        self.cluster = ""  # the cluster's id, "" until the format record was seen
        self._clear()

    def _clear(self) -> None:
        self._presences: dict[NodeName, tuple[Presence, KV]] = {}
        self._ledgers: dict[NodeName, tuple[Ledger, int]] = {}
        self._heads: dict[JobKey, tuple[JobHead, int]] = {}
        self._versions: dict[JobKey, dict[int, JobVersion]] = {}
        self._assignments: dict[tuple[NodeName, JobKey], Assignment] = {}
        self._statuses: dict[tuple[NodeName, JobKey], JobStatus] = {}
        self._claims: dict[str, JobKey] = {}
        self._events: dict[bytes, EventRecord] = {}
        # Built from the above, one object at a time, when something of theirs has changed.
        self._nodes: dict[NodeName, Node] = {}
        self._jobs: dict[JobKey, JobRecord] = {}
        self._last_versions: dict[JobKey, int] = {}
        self._unknown: dict[bytes, codec.Unknown] = {}
        # The parts of a snapshot that changed since the last one was made.
        self._stale: set[str] = set(PARTS)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        async for item in self._store.mirror(keys.ROOT):
            if isinstance(item, Listing):
                self._restart(item)
            else:
                self._follow(item)

    def _restart(self, listing: Listing) -> None:
        for job in [*self._heads, *self._versions, *(job for _, job in self._assignments)]:
            self._tell(job)
        self._clear()
        for kv in listing.kvs:
            self._apply(kv, deleted=False)
        self.is_ready = True
        self._publish(max(listing.revision, self.revision))

    def _follow(self, events: Sequence[Event]) -> None:
        for event in events:
            self._apply(event.kv, deleted=event.deleted)
        if events:
            is_log = all(event.kv.key.startswith(keys.EVENTS) for event in events)
            self._publish(events[-1].kv.mod_revision, is_log=is_log)

    def _publish(self, revision: int, *, is_log: bool = False) -> None:
        self.revision = revision
        self._arrived.set()
        self._arrived = asyncio.Event()
        if is_log:
            return
        self._moved = revision
        if self._waking is None:
            loop = asyncio.get_running_loop()
            pause = PAUSE_SECONDS + PAUSE_SECONDS_EACH * len(self._assignments)
            due = self._woken + min(pause, PAUSE_SECONDS_MAX)
            if not self._patient or loop.time() >= due:
                self._wake(loop)
            else:
                self._waking = loop.call_at(due, self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waking = None
        self._woken = loop.time()
        self._changed.set()
        self._changed = asyncio.Event()

    # Reading ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The cluster now; the same object until something changes."""
        if self._snapshot.revision != self.revision or self._stale:
            parts = {part: dict(getattr(self, f"_{part}")) for part in self._stale}
            self._snapshot = replace(self._snapshot, revision=self.revision, **parts)
            self._stale.clear()
        return self._snapshot

    def follow_jobs(self) -> set[JobKey]:
        """A set that is given every job with a record or an assignment that changes from now on.

        It is the caller's to empty.
        """
        followed = set(self._heads) | set(self._versions) | {job for _, job in self._assignments}
        self._followers.append(followed)
        return followed

    def versions(self, key: JobKey) -> tuple[JobVersion, ...]:
        """The kept versions of a job, oldest first; they outlive the job."""
        return tuple(version for _, version in sorted(self._versions.get(key, {}).items()))

    def events(self) -> tuple[EventRecord, ...]:
        """What happened, on all nodes, oldest first."""
        return tuple(sorted(self._events.values(), key=lambda e: (e.time, e.node, e.number)))

    async def changed(self, after: int) -> int:
        """Wait until something but the log is beyond a revision; the one the mirror has then."""
        while self._moved <= after or self._waking is not None:
            await self._changed.wait()
        return self.revision

    async def told(self, after: int) -> None:
        """Wait until anything is beyond a revision, the log of events included."""
        while self.revision <= after:
            await self._arrived.wait()

    async def reached(self, revision: int, timeout: float = 10.0) -> None:
        """Wait until the mirror shows a revision of ours; Unavailable when it does not come."""
        try:
            async with asyncio.timeout(timeout):
                while self.revision < revision:
                    await self._arrived.wait()
        except TimeoutError:
            raise Unavailable(f"the watch is stuck before revision {revision}") from None

    async def wait(self) -> None:
        """Wait for the next change, whatever it is."""
        await self._changed.wait()

    # Applying -----------------------------------------------------------------------------------

    def _apply(self, kv: KV, *, deleted: bool) -> None:
        try:
            self._apply_decoded(kv, deleted)
        except ValueError as error:
            with contextlib.suppress(ValueError):  # of the key itself
                self._apply_decoded(kv, True)
            warn("store.undecodable", key=kv.key.decode(errors="replace"), reason=str(error))

    def _apply_decoded(self, kv: KV, deleted: bool) -> None:
        key = kv.key
        if self._unknown.pop(key, None):
            self._stale.add("unknown")
        if key.startswith(keys.ASSIGNMENTS):
            node, job = _node_and_job(key, keys.ASSIGNMENTS)
            self._stale.add("assignments")
            self._tell(job)
            if deleted:
                self._assignments.pop((node, job), None)
            else:
                groups = self._read(tuple[Group, ...], kv)
                self._assignments[node, job] = Assignment(node=node, job=job, groups=groups)
        elif key.startswith(keys.STATUS):
            node, job = _node_and_job(key, keys.STATUS)
            self._stale.add("statuses")
            if deleted:
                self._statuses.pop((node, job), None)
            else:
                found = codec.decode_statuses(kv.value)
                self._statuses[node, job] = JobStatus(node=node, job=job, instances=found)
        elif key.startswith((keys.LEDGERS, keys.NODES)):
            self._apply_node(kv, deleted)
        elif key.startswith((keys.JOBS, keys.VERSIONS)):
            self._apply_job(kv, deleted)
        elif key.startswith(keys.CLAIMS):
            claim = key[len(keys.CLAIMS) :].decode()
            self._stale.add("claims")
            if deleted:
                self._claims.pop(claim, None)
            else:
                self._claims[claim] = keys.job_key(*codec.decode(str, kv.value).split("/", 1))
        elif key.startswith(keys.EVENTS):
            if deleted:
                self._events.pop(key, None)
            else:
                self._events[key] = codec.decode(EventRecord, kv.value)
        elif key == keys.FORMAT and not deleted:
            self.cluster = codec.decode(codec.Format, kv.value).cluster

    def _read(self, kind: type[T], kv: KV) -> T:
        """Decode a record that is rewritten now and then; members we don't know are noted."""
        value, unknown = codec.decode_known(kind, kv.value)
        if unknown:
            self._unknown[kv.key] = unknown
            self._stale.add("unknown")
        return value

    def _tell(self, job: JobKey) -> None:
        for followed in self._followers:
            followed.add(job)

    def _apply_node(self, kv: KV, deleted: bool) -> None:
        prefix = keys.NODES if kv.key.startswith(keys.NODES) else keys.LEDGERS
        name = NodeName(kv.key[len(prefix) :].decode())
        self._stale.add("nodes")
        if prefix is keys.NODES:
            self._presences.pop(name, None)
            if not deleted:
                self._presences[name] = (self._read(Presence, kv), kv)
        else:
            self._ledgers.pop(name, None)
            if not deleted:
                self._ledgers[name] = (self._read(Ledger, kv), kv.mod_revision)
        self._nodes.pop(name, None)
        if name in self._ledgers:
            ledger, ledger_revision = self._ledgers[name]
            node = Node(name=name, ledger=ledger, ledger_revision=ledger_revision)
            if name in self._presences:
                presence, record = self._presences[name]
                node = replace(
                    node,
                    presence=presence,
                    presence_revision=record.create_revision,
                    presence_lease=record.lease,
                )
            self._nodes[name] = node

    def _apply_job(self, kv: KV, deleted: bool) -> None:
        if kv.key.startswith(keys.JOBS):
            job = keys.job_key(*_two(keys.parts(kv.key, keys.JOBS)))
            self._heads.pop(job, None)
            if not deleted:
                self._heads[job] = (self._read(JobHead, kv), kv.mod_revision)
        else:
            namespace, name, number = keys.parts(kv.key, keys.VERSIONS)
            job = keys.job_key(namespace, name)
            versions = dict(self._versions.get(job, {}))
            versions.pop(int(number), None)
            if not deleted:
                versions[int(number)] = codec.decode(JobVersion, kv.value)
            self._versions[job] = versions
            self._stale.add("last_versions")
            self._last_versions.pop(job, None)
            if versions:
                self._last_versions[job] = max(versions)
        self._stale.add("jobs")
        self._tell(job)
        self._jobs.pop(job, None)
        if job in self._heads:
            head, head_revision = self._heads[job]
            self._jobs[job] = JobRecord(
                key=job,
                head=head,
                head_revision=head_revision,
                versions=self._versions.get(job, {}),
            )


def _two(parts: Iterable[str]) -> tuple[str, str]:
    first, second = parts
    return first, second


def _node_and_job(key: bytes, prefix: bytes) -> tuple[NodeName, JobKey]:
    node, namespace, name = keys.parts(key, prefix)
    return NodeName(node), keys.job_key(namespace, name)
