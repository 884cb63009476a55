"""A copy of the cluster in memory, fed by one watch, handing out Snapshots.

The mirror applies whole revisions only, so every Snapshot is the cluster at one revision and each
object in it knows the revision it was read at: a later compare needs no second read. What can't
be decoded is left out with a warning; one poisoned key must not stop every peer.

Snapshots are cheap: what changed since the last one is gathered, and becomes new tables that share
the rest with the old ones (`model/tables.py`) when somebody asks for a snapshot.

Loops look at the whole cluster whenever it changes. Those of a ``patient`` mirror are woken for
several changes at a time when they come thick and fast; the first after a quiet moment wakes them
at once, and whoever waits for a revision of its own (`reached`) waits no longer than that takes to
arrive. The pause grows with the cluster, as the work of one look does, so that looking never takes
all of a processor; it does not where a node's presence goes, for which nobody shall wait that long.
Revisions of the log of events alone, which are nearly half of all, wake only
who reads that log (`told`): nothing can follow from them.
"""

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

from ozymandias.model.event import EventRecord
from ozymandias.model.instance import Assignment, Group, JobStatus
from ozymandias.model.job import JobHead, JobKey, JobRecord, JobVersion
from ozymandias.model.node import Ledger, Load, Node, NodeName, Presence
from ozymandias.model.record import replace
from ozymandias.model.settings import Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import KV, Event, Feed, Listing, Unavailable, Unread
from ozymandias.store import codec, keys
from ozymandias.store.changes import Changes, Written
from ozymandias.telemetry import warn

T = TypeVar("T")

PAUSE_SECONDS = 0.02
PAUSE_SECONDS_EACH = 0.0003  # more for every assignment in the cluster
PAUSE_SECONDS_NODE = 0.00002  # more for every node
PAUSE_SECONDS_MAX = 2.0
# Nobody's schedule relies on these: what a node tells of itself, and the log.
UNSCHEDULED = (keys.STATUS, keys.LOADS, keys.EVENTS, keys.DECISIONS)
MARKED = (keys.LEDGERS, keys.JOBS)  # these records name the transaction that wrote them
UNLEASED = (*MARKED, keys.VERSIONS)  # of these nobody asks more than what they say, and since when
NOT_OURS = object()


class Mirror:
    def __init__(self, store: Feed, *, patient: bool = False) -> None:
        self._store = store
        self._patient = patient
        self._changed = asyncio.Event()  # for loops, which are woken now and then
        self._arrived = asyncio.Event()  # for those who wait for anything at all
        # For those who wait for one revision: a heap, so that each is woken once and by its own.
        self._awaited: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._woken = -PAUSE_SECONDS_MAX  # on the loop's clock
        self._waking: asyncio.TimerHandle | None = None
        self._followers: list[set[JobKey]] = []
        self.is_ready = False
        self.revision = 0
        self._moved = 0  # the last revision that was not of the log alone
        self.others_revision = 0  # the last one in which others changed what schedules rely on
        self.members_revision = 0  # the last one in which a node came, went, or told of itself
        self.cluster = ""  # the cluster's id, "" until the format record was seen
        self._clear()

    def _clear(self) -> None:
        self._presences: dict[NodeName, tuple[Presence, KV]] = {}
        self._ledgers: dict[NodeName, tuple[Ledger | bytes, int]] = {}  # bytes: not read yet
        self._loads: dict[NodeName, Load] = {}
        self._settings = (Settings(), 0)
        self._heads: dict[JobKey, tuple[JobHead, int]] = {}
        self._versions: dict[JobKey, dict[int, JobVersion]] = {}
        self._events: dict[bytes, EventRecord] = {}
        self._decisions: dict[bytes, bytes] = {}  # as they are stored: seldom asked for
        self._unknown: set[bytes] = set()  # keys of records with members that we don't know
        self._snapshot = Snapshot()
        self._changes = Changes()
        self._expected: list[Written] = []  # transactions of ours that were not shown yet
        self._committed: dict[Written, int] = {}  # those of them whose revision is known

    async def run(self) -> None:
        """Follow the store until cancelled."""
        async for item in self._store.mirror(keys.ROOT):
            if isinstance(item, Listing):
                self._restart(item)
            else:
                self._follow(item)

    def _restart(self, listing: Listing) -> None:
        for job in self._known_jobs():
            self._tell(job)
        self._clear()
        for kv in listing.kvs:
            self._apply(kv, deleted=False)
        self.is_ready = True
        self.others_revision = self.members_revision = listing.revision
        self._publish(max(listing.revision, self.revision))

    def _follow(self, events: Sequence[Event]) -> None:
        if not events:
            return
        revision = events[-1].kv.mod_revision
        if written := self._own(events, revision):
            self._apply_own(written, revision)
            self.expect_not(written)
            self._publish(revision)
            return
        is_others = self._is_others(events[0], revision)
        rest = self._apply_others(events, revision) if is_others else events
        for event in rest:
            self._apply(event.kv, deleted=event.deleted, is_others=is_others)
        is_log = len(rest) == len(events) and all(e.kv.key.startswith(keys.EVENTS) for e in rest)
        is_loss = any(e.deleted and e.kv.key.startswith(keys.NODES) for e in rest)
        self._publish(revision, is_log=is_log, is_loss=is_loss)

    def _is_others(self, first: Event, revision: int) -> bool:
        """Whether events up to a revision are all of it, and it is none of ours.

        A transaction has one revision, so its first event tells.
        """
        kv = first.kv
        key, value = kv.key, b"" if first.deleted else kv.value
        is_ours = any(written.is_first(key, value) for written in self._expected)
        return kv.mod_revision == revision and not is_ours

    def _own(self, events: Sequence[Event], revision: int) -> Written | None:
        """The transaction of ours that these events tell of, if it is that and nothing else.

        A ledger or a head tells by its commit's id who wrote it. What was deleted may not have been
        there, and then there are fewer of them; those are looked at one by one.
        """
        first, number = events[0].kv, len(events)
        is_marked = first.value and first.key.startswith(MARKED)
        if first.mod_revision != revision or self._unknown or not is_marked:
            return None
        for written in self._expected:
            is_alike = written.is_all and len(written.ops) == number
            if is_alike and written.is_first(first.key, first.value):
                return written
        return None

    def _publish(self, revision: int, *, is_log: bool = False, is_loss: bool = False) -> None:
        self.revision = revision
        for written in [w for w, number in self._committed.items() if number <= revision]:
            self.expect_not(written)
        while self._awaited and self._awaited[0][0] <= revision:
            waiter = heapq.heappop(self._awaited)[2]
            if not waiter.done():  # or it has gone away
                waiter.set_result(None)
        self._arrived.set()
        self._arrived = asyncio.Event()
        if is_log:
            return
        self._moved = revision
        if is_loss and self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if self._waking is None:
            loop = asyncio.get_running_loop()
            due = self._woken + (PAUSE_SECONDS if is_loss else self._pause())
            if not self._patient or loop.time() >= due:
                self._wake(loop)
            else:
                self._waking = loop.call_at(due, self._wake, loop)

    def _pause(self) -> float:
        """Between two looks at the whole cluster: some times as long as one takes."""
        snapshot = self._snapshot
        more = PAUSE_SECONDS_EACH * len(snapshot.assignments)
        more += PAUSE_SECONDS_NODE * len(snapshot.nodes)
        return min(PAUSE_SECONDS + more, PAUSE_SECONDS_MAX)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waking = None
        self._woken = loop.time()
        self._changed.set()
        self._changed = asyncio.Event()

    # Reading ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The cluster now; the same object until something changes."""
        if self._snapshot.revision != self.revision:
            settings, settled = self._settings
            self._snapshot = replace(
                self._snapshot,
                revision=self.revision,
                settings=settings,
                settings_revision=settled,
                **self._changes.parts(self._snapshot, self._node, self._job),
            )
            self._changes = Changes()
        return self._snapshot

    def expect(self, written: Written) -> None:
        """Bytes that we are about to write, and what they mean: they need not be read again."""
        self._expected.append(written)

    def committed(self, written: Written, revision: int) -> None:
        """They are there since this revision: once it is shown, nothing more of them will be."""
        if revision > self.revision:
            self._committed[written] = revision
        else:
            self.expect_not(written)

    def expect_not(self, written: Written) -> None:
        self._committed.pop(written, None)
        self._expected = [other for other in self._expected if other is not written]

    def follow_jobs(self) -> set[JobKey]:
        """A set that is given every job with a record or an assignment that changes from now on.

        It is the caller's to empty.
        """
        followed = self._known_jobs()
        self._followers.append(followed)
        return followed

    def _known_jobs(self) -> set[JobKey]:
        assigned = self.snapshot().assigned.by_job
        return self._heads.keys() | self._versions.keys() | assigned.keys()

    def versions(self, key: JobKey) -> tuple[JobVersion, ...]:
        """The kept versions of a job, oldest first; they outlive the job."""
        return tuple(version for _, version in sorted(self._versions.get(key, {}).items()))

    def events(self) -> tuple[EventRecord, ...]:
        """What happened, on all nodes, oldest first."""
        return tuple(sorted(self._events.values(), key=lambda e: (e.time, e.node, e.number)))

    def decisions(self, node: NodeName | None = None) -> tuple[bytes, ...]:
        """Records of decisions, of one node or of all, as they are stored."""
        prefix = keys.decisions(node) if node else keys.DECISIONS
        return tuple(value for key, value in self._decisions.items() if key.startswith(prefix))

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
        if self.revision >= revision:
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._awaited, (revision, next(self._numbers), waiter))
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            raise Unavailable(f"the watch is stuck before revision {revision}") from None

    async def wait(self) -> None:
        """Wait for the next change, whatever it is."""
        await self._changed.wait()

    # Applying -----------------------------------------------------------------------------------

    def _apply_own(self, written: Written, revision: int) -> None:
        """A transaction of ours, whole: all of it is known.

        Its assignments were entered in a table when it was decided. That is the table here, too, if
        nobody else has written what it lacks.
        """
        changes, ledgers = self._changes, written.ledgers
        self._ledgers |= {name: (ledger, revision) for name, ledger in ledgers.items()}
        changes.nodes.update(ledgers)
        if written.assigned is not None and self.others_revision <= written.others:
            changes.assigned = written.assigned
            changes.assignments.clear()
        else:
            known = written.assignments()
            changes.assignments.update(((entry.node, entry.job), entry) for entry in known)
        for key, value, meant in written.rest():
            self._apply_decoded(KV(key, value, 0, revision, 0, 0), not value, meant)
        for job in written.jobs:
            self._tell(job)

    def _apply_others(self, events: Sequence[Event], revision: int) -> Sequence[Event]:
        """The schedule in a transaction of somebody else; what else there is in it is returned.

        It is most of what peers write, and each of the others reads it: no event is made of what
        is no more than a key and its bytes, and assignments, which are most of it, are entered here
        but for those that can't be read or hold something new to us. A peer that fills its nodes
        rewrites their ledgers again and again: they are read when somebody looks at them.
        """
        if self._unknown:
            return events
        entered, rest, jobs = self._changes.assignments, list[int](), set[JobKey]()
        messages = events.messages if isinstance(events, Unread) else events
        for number, message in enumerate(messages):
            kv = message.kv
            key, value = kv.key, kv.value
            try:
                if value and key.startswith(keys.ASSIGNMENTS):
                    node, job = keys.node_and_job(key, keys.ASSIGNMENTS)
                    groups, unknown = codec.decode_known_groups(value)
                    if not unknown:
                        entered[node, job] = Assignment(node=node, job=job, groups=groups)
                        jobs.add(job)
                        continue
                elif value and key.startswith(keys.LEDGERS):
                    self._enter_ledger(keys.node_named(key[len(keys.LEDGERS) :]), value, revision)
                    self.others_revision = revision
                    continue
                elif value and key.startswith(UNLEASED):
                    self._apply(KV(key, value, 0, revision, 0, 0), deleted=False, is_others=True)
                    continue
            except ValueError:
                pass  # it is left out, and said so, with the rest
            rest.append(number)
        if jobs:
            self.others_revision = revision
        for job in jobs:
            self._tell(job)
        return [events[number] for number in rest]

    def _apply(self, kv: KV, *, deleted: bool, is_others: bool = False) -> None:
        """``is_others``: it is known to be none of ours."""
        try:
            value = b"" if deleted else kv.value
            known = NOT_OURS if is_others else self._meaning(kv.key, value)
            self._apply_decoded(kv, deleted, known)
        except ValueError as error:
            with contextlib.suppress(ValueError):  # of the key itself
                self._apply_decoded(kv, True, NOT_OURS)
            self._leave_out(kv, error)

    def _leave_out(self, kv: KV, error: ValueError) -> None:
        warn("store.undecodable", key=kv.key.decode(errors="replace"), reason=str(error))

    def _meaning(self, key: bytes, value: bytes) -> Any:
        """What bytes of ours mean, the first time that they are seen."""
        for written in self._expected:
            if (key, value) in written.meanings:
                return written.meanings.pop((key, value))
        return NOT_OURS

    def _apply_decoded(self, kv: KV, deleted: bool, known: Any) -> None:
        key = kv.key
        if known is NOT_OURS and not key.startswith(UNSCHEDULED):
            self.others_revision = kv.mod_revision
        if key in self._unknown:
            self._unknown.discard(key)
            self._changes.unknown[key] = None
        if key.startswith(keys.ASSIGNMENTS):
            if isinstance(known, Assignment):
                self._tell(known.job)
                self._changes.assignments[known.node, known.job] = known
                return
            node, job = keys.node_and_job(key, keys.ASSIGNMENTS)
            self._tell(job)
            self._changes.assignments[node, job] = None
            if not deleted:
                groups = self._read(tuple[Group, ...], kv)
                assignment = Assignment(node=node, job=job, groups=groups)
                self._changes.assignments[node, job] = assignment
        elif key.startswith(keys.STATUS):
            node, job = keys.node_and_job(key, keys.STATUS)
            self._changes.statuses[node, job] = None
            if not deleted:
                found = codec.decode_statuses(kv.value)
                status = JobStatus(node=node, job=job, instances=found)
                self._changes.statuses[node, job] = status
        elif key.startswith(keys.LEDGERS):
            self._apply_ledger(kv, deleted, known)
        elif key.startswith((keys.NODES, keys.LOADS)):
            self._apply_node(kv, deleted)
        elif key.startswith((keys.JOBS, keys.VERSIONS)):
            self._apply_job(kv, deleted, known)
        elif key.startswith(keys.CLAIMS):
            claim = key[len(keys.CLAIMS) :].decode()
            self._changes.claims[claim] = None
            if not deleted:
                owner = keys.job_named(codec.decode(str, kv.value).encode())
                self._changes.claims[claim] = owner
        elif key.startswith(keys.EVENTS):
            if deleted:
                self._events.pop(key, None)
            else:
                self._events[key] = codec.decode(EventRecord, kv.value)
        elif key.startswith(keys.DECISIONS):
            if deleted:
                self._decisions.pop(key, None)
            else:
                self._decisions[key] = kv.value
        elif key == keys.SCHEDULING:
            # Unreadable ones are as if there were none, and are compared all the same.
            self._settings = (Settings(), 0 if deleted else kv.mod_revision)
            if not deleted:
                self._settings = (self._read(Settings, kv), kv.mod_revision)
        elif key == keys.FORMAT and not deleted:
            self.cluster = codec.decode(codec.Format, kv.value).cluster

    def _read(self, kind: type[T], kv: KV) -> T:
        """Decode a record that is rewritten now and then; members we don't know are noted."""
        value, unknown = codec.decode_known(kind, kv.value)
        if unknown:
            self._unknown.add(kv.key)
            self._changes.unknown[kv.key] = unknown
        return value

    def _tell(self, job: JobKey) -> None:
        for followed in self._followers:
            followed.add(job)

    def _apply_ledger(self, kv: KV, deleted: bool, known: Any) -> None:
        name = keys.node_named(kv.key[len(keys.LEDGERS) :])
        if deleted:
            self._ledgers.pop(name, None)
            self._changes.node(name, is_member=True)
        else:
            ledger = self._read(Ledger, kv) if known is NOT_OURS else known
            self._enter_ledger(name, ledger, kv.mod_revision)

    def _enter_ledger(self, name: NodeName, ledger: Ledger | bytes, revision: int) -> None:
        self._changes.node(name, is_member=name not in self._ledgers)
        self._ledgers[name] = (ledger, revision)

    def _apply_node(self, kv: KV, deleted: bool) -> None:
        prefix = keys.NODES if kv.key.startswith(keys.NODES) else keys.LOADS
        name = keys.node_named(kv.key[len(prefix) :])
        if prefix is keys.NODES:
            self.members_revision = kv.mod_revision
            self._presences.pop(name, None)
            if not deleted:
                self._presences[name] = (self._read(Presence, kv), kv)
        else:
            self._loads.pop(name, None)
            if not deleted:
                self._loads[name] = self._read(Load, kv)
        self._changes.node(name, is_member=prefix is keys.NODES)

    def _node(self, name: NodeName) -> Node | None:
        """Its ledger makes it a node; all else may be missing."""
        ledger, ledger_revision = self._ledgers.get(name, (None, 0))
        if isinstance(ledger, bytes):
            ledger = self._read_ledger(name, ledger, ledger_revision)
        if ledger is None:
            return None
        presence, record = self._presences.get(name, (None, None))
        return Node(
            name=name,
            ledger=ledger,
            ledger_revision=ledger_revision,
            presence=presence,
            presence_revision=record.create_revision if record else 0,
            presence_lease=record.lease if record else 0,
            load=self._loads.get(name),
        )

    def _read_ledger(self, name: NodeName, value: bytes, revision: int) -> Ledger | None:
        kv = KV(keys.ledger(name), value, 0, revision, 0, 0)
        try:
            ledger = self._read(Ledger, kv)
        except ValueError as error:
            del self._ledgers[name]
            self._leave_out(kv, error)
            return None
        self._ledgers[name] = ledger, revision
        return ledger

    def _apply_job(self, kv: KV, deleted: bool, known: Any) -> None:
        if kv.key.startswith(keys.JOBS):
            job = keys.job_named(kv.key[len(keys.JOBS) :])
            self._heads.pop(job, None)
            if not deleted:
                head = self._read(JobHead, kv) if known is NOT_OURS else known
                self._heads[job] = (head, kv.mod_revision)
        else:
            path, _, digits = kv.key[len(keys.VERSIONS) :].rpartition(b"/")
            job, number = keys.job_named(path), int(digits)
            versions = self._versions.get(job, {}).copy()
            versions.pop(number, None)
            if not deleted:
                is_ours = known is not NOT_OURS
                versions[number] = known if is_ours else codec.decode(JobVersion, kv.value)
            self._versions[job] = versions
            self._changes.last_versions[job] = max(versions, default=None)
        self._tell(job)
        self._changes.jobs[job] = None

    def _job(self, key: JobKey) -> JobRecord | None:
        """Its head makes it a job; versions may be missing, and outlive it."""
        if key not in self._heads:
            return None
        head, revision = self._heads[key]
        versions = self._versions.get(key, {})
        return JobRecord(key=key, head=head, head_revision=revision, versions=versions)
