"""Statuses and names of this node's instances, kept in the store.

Level-triggered: computes what the store should say, compares it with what was last written, and
writes the difference by fenced transactions: of each job the status key and the DNS records of its
healthy instances together, under the node's longer lease, and several jobs at once when they wait.
Nothing is written without a change, and no key more than WRITES_MAX times in a second; the first of
a burst goes out at once. Only what was touched since the last time is computed and compared, all of
it in a new session or after a doubt.

A record is deleted only while it has the value this node wrote: after a move the slot's name may
already belong to its new home. Each write compares the revision of the write before it, so that
one whose answer never came can't be applied late, over a newer one; after any doubt what is there
is read again, and once more when it can't be applied any more: where nothing newer was to be
written, nothing would stand in its way.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field

from ozymandias.core.memory import PodMemory
from ozymandias.core.pods import pod_id
from ozymandias.core.routes import Names, dns_records
from ozymandias.core.status import status_of
from ozymandias.daemon.events import EventLog
from ozymandias.daemon.local_pods import LocalPods
from ozymandias.daemon.membership import Membership, Session
from ozymandias.model.instance import (
    Assigned,
    InstanceId,
    InstanceState,
    InstanceStatus,
    SlotState,
)
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.pod import ObservedPod, Pod, PodId
from ozymandias.model.record import replace
from ozymandias.ports import (
    Ambiguous,
    Clock,
    Compare,
    Delete,
    Op,
    Put,
    Store,
    StoreError,
    Txn,
    Unavailable,
)
from ozymandias.store import codec, keys
from ozymandias.store.names import value_of
from ozymandias.telemetry import instances, log, warn

WRITES_MAX = 5  # of one key
WRITES_WINDOW_SECONDS = 1.0
RETRY_SECONDS = 1.0
JOBS_MAX = 32  # whose statuses go into one transaction
OPERATIONS_MAX = 90  # of one; etcd takes 128, and compares need room beside them
LATE_SECONDS = 40.0  # after which a write whose answer never came is not applied any more

TOLD = frozenset(
    {
        InstanceState.HEALTHY,
        InstanceState.UNHEALTHY,
        InstanceState.BACKOFF,
        InstanceState.FAILED,
        InstanceState.COMPLETED,
    }
)


@dataclass(slots=True, kw_only=True)
class Written:
    """What the store holds of one job on this node, as far as this daemon knows."""

    instances: dict[int, InstanceStatus] = field(default_factory=dict)
    lease: int = 0  # 0: not there
    revision: int = 0  # of the status key; 0: not there
    names: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)  # key -> value, lease
    times: deque[float] = field(default_factory=lambda: deque(maxlen=WRITES_MAX))

    def due_at(self) -> float:
        """When the next write is allowed; 0 is at once."""
        is_full = len(self.times) == WRITES_MAX
        return self.times[0] + WRITES_WINDOW_SECONDS if is_full else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the store should hold of one job on this node. No instances: nothing at all."""

    instances: dict[int, InstanceStatus] = field(default_factory=dict)
    named: dict[int, dict[bytes, bytes]] = field(default_factory=dict)  # by slot, if healthy

    def names(self) -> dict[bytes, bytes]:
        return {key: value for made in self.named.values() for key, value in made.items()}


NO_WISH = Wish()
# One slot may be here twice, stopping in one version and waiting in the next: the last speaks.
RANK = {SlotState.WAITING: 0, SlotState.STOPPING: 1, SlotState.RUNNING: 2}

_Inputs = tuple[Assigned, Pod | None, ObservedPod | None, PodMemory]


class StatusWriter:
    def __init__(
        self,
        *,
        node: NodeName,
        names: Names,
        local: LocalPods,
        store: Store,
        membership: Membership,
        clock: Clock,
        events: EventLog,
    ) -> None:
        self._node = node
        self._names = names
        self._local = local
        self._store = store
        self._membership = membership
        self._clock = clock
        self._events = events
        self._session: Session | None = None  # whose keys `_written` describes
        self._written: dict[JobKey, Written] = {}
        self._wishes: dict[JobKey, Wish] = {}
        self._computed: dict[InstanceId, dict[PodId, tuple[_Inputs, InstanceStatus]]] = {}
        self._open: set[JobKey] = set()  # where wish and store may differ
        self._counted: Counter[InstanceState] = Counter()
        self._begun: Session | None = None
        self._doubtful_until: float | None = None

    def shows_healthy(self, pod: PodId) -> bool:
        """Whether the store may still say that this pod is healthy, or name it in DNS."""
        if self._session is None:
            return True
        written = self._written.get(pod.key)
        told = written.instances.get(pod.slot) if written else None
        return told is not None and told.healthy and _is_of(told, pod)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_session())
            due_at: float | None = None
            while True:
                wait = None if due_at is None else max(0.0, due_at - self._clock.boot())
                await self._local.statuses.wait(wait)
                due_at = await self._write_all()

    async def _follow_session(self) -> None:
        while True:
            await self._membership.changed()
            self._local.statuses.set()

    async def _write_all(self) -> float | None:
        """Write what differs; the time to come back, if something is left to do."""
        if not self._local.is_known:
            return None
        session = self._membership.valid()
        if session is None or self._local.revision < session.revision:
            return None  # what is known is from before: a name may be another's by now
        is_over = self._doubtful_until is not None and self._doubtful_until <= self._clock.boot()
        if is_over:
            self._session = self._doubtful_until = None
        if self._begun is not session:  # the process before this one may have been in doubt
            self._begun, self._doubtful_until = session, self._clock.boot() + LATE_SECONDS
        try:
            if self._session is not session:
                await self._load(session)
            self._compute_touched()
            await self._write_open(session)
        except StoreError as error:
            warn("statuses.not_written", reason=str(error))
            if isinstance(error, Ambiguous):
                self._doubtful_until = self._clock.boot() + LATE_SECONDS
            return self._clock.boot() + RETRY_SECONDS
        self._compute_touched()
        due = [
            max(self._written[job].due_at() if job in self._written else 0.0, self._clock.boot())
            for job in self._open
            if self._differs(job, self._wishes.get(job, NO_WISH), session)
        ]
        return min([*due, *([self._doubtful_until] if self._doubtful_until else [])], default=None)

    # What the store should say ------------------------------------------------------------------

    def _compute_touched(self) -> None:
        changes: Counter[InstanceState] = Counter()
        for instance in sorted(self._local.statuses.take()):
            for _, status in self._known(instance).values():
                changes[status.state] -= 1
            self._compute(instance)
            for _, status in self._known(instance).values():
                changes[status.state] += 1
        for state, change in changes.items():
            if change:
                self._counted[state] += change
                instances(state).set(self._counted[state])

    def _known(self, instance: InstanceId) -> dict[PodId, tuple[_Inputs, InstanceStatus]]:
        return self._computed.get(instance, {})

    def _compute(self, instance: InstanceId) -> None:
        """Make the wish for an instance anew; whether the store has it is an open question."""
        computed: dict[PodId, tuple[_Inputs, InstanceStatus]] = {}
        status: InstanceStatus | None = None
        names: dict[bytes, bytes] = {}
        assigned = self._local.assigned.get(instance, ())
        for entry in sorted(assigned, key=lambda entry: RANK[entry.state]):
            pod = pod_id(entry)
            want = self._local.wanted.get(pod)
            if want is not None and want.state is not entry.state:
                continue  # the very same pod stops before it runs again
            spec = want.pod if want else None
            computed[pod] = self._status(entry, pod, spec)
            status, names = computed[pod][1], {}
            if status.healthy and status.address and spec is not None:
                records = dns_records(spec.job, pod.slot, status.address, self._names)
                names = {keys.dns(record.name): value_of(record) for record in records}
        self._computed[instance] = computed
        if not computed:
            del self._computed[instance]
        self._wish(instance, status, names)

    def _wish(
        self, instance: InstanceId, status: InstanceStatus | None, names: dict[bytes, bytes]
    ) -> None:
        wish = self._wishes.setdefault(instance.job, Wish())
        wish.instances.pop(instance.slot, None)
        wish.named.pop(instance.slot, None)
        if status is not None:
            wish.instances[instance.slot] = status
        if names:
            wish.named[instance.slot] = names
        if not wish.instances:
            del self._wishes[instance.job]
        self._open.add(instance.job)

    def _status(
        self, assigned: Assigned, pod: PodId, spec: Pod | None
    ) -> tuple[_Inputs, InstanceStatus]:
        """What to say of an instance, and what it was made of: the same is not made again."""
        memory = self._local.memory(pod)
        inputs = (assigned, spec, self._local.observed.get(pod), memory)
        before = self._known(assigned.instance).get(pod)
        if before is not None:
            # What was healthy when it was last looked at may have ended in a time without session.
            is_in_work = pod in self._local.busy and not memory.is_pulling
            is_in_work = is_in_work and not before[1].healthy
            if before[0] == inputs or (is_in_work and before[0][0] == assigned):
                return before  # half-way steps would only be in the way of what comes of them
        status = status_of(*inputs)
        last = before[1] if before else self._last_written(pod)
        is_same_state = last is not None and last.state is status.state
        if last is not None and is_same_state:
            status = replace(status, since=last.since)
        else:
            status = replace(status, since=self._clock.wall())
        is_news = last is None or (last.state, last.reason) != (status.state, status.reason)
        if is_news and status.state in TOLD:
            reason = status.reason or "all containers are healthy"
            instance = f"{assigned.job.name}-{assigned.slot}"
            self._events.emit(
                f"instance.{status.state}", reason, job=assigned.job, instance=instance
            )
        return inputs, status

    def _last_written(self, pod: PodId) -> InstanceStatus | None:
        written = self._written.get(pod.key)
        found = written.instances.get(pod.slot) if written else None
        return found if found is not None and _is_of(found, pod) else None

    # What the store says ------------------------------------------------------------------------

    async def _load(self, session: Session) -> None:
        """Read back what this node has written before, under this lease or a former one."""
        listing = await self._store.range(keys.statuses(self._node))
        zone = await self._store.range(keys.dns(self._names.domain) + b"/")
        written: dict[JobKey, Written] = {}
        for kv in listing.kvs:
            try:
                job = keys.job_key(*keys.parts(kv.key, keys.statuses(self._node)))
                found = codec.decode_statuses(kv.value)
            except (TypeError, ValueError):
                log("status.unreadable", key=kv.key.decode(errors="replace"))
                continue
            written[job] = Written(instances=found, lease=kv.lease, revision=kv.mod_revision)
        leases = {kv.lease for kv in listing.kvs} | {session.long_lease.id}
        for kv in zone.kvs:
            if kv.lease in leases:
                job = self._job_of(kv.key)
                entry = written.setdefault(job, Written())
                entry.names[kv.key] = (kv.value, kv.lease)
        for job, entry in written.items():
            if job in self._written:
                entry.times = self._written[job].times
        self._written = written
        self._open = written.keys() | self._wishes.keys()
        self._session = session

    def _job_of(self, key: bytes) -> JobKey:
        zone = keys.dns(self._names.domain) + b"/"
        namespace, name, *_ = (*keys.parts(key, zone), "", "")
        return keys.job_key(namespace, name)

    def _differs(self, job: JobKey, wish: Wish, session: Session) -> bool:
        written = self._written.get(job) or Written()
        lease = session.long_lease.id
        if written.names != {key: (value, lease) for key, value in wish.names().items()}:
            return True
        if not wish.instances:
            return bool(written.instances or written.lease)
        return written.instances != wish.instances or written.lease != lease

    async def _write_open(self, session: Session) -> None:
        """Everything that is due, as many jobs at a time as go into one transaction."""
        batch: dict[JobKey, list[Op]] = {}
        size = 0
        for job in sorted(self._open):
            wish = self._wishes.get(job, NO_WISH)
            if not self._differs(job, wish, session):
                self._open.discard(job)
                continue
            written = self._written.setdefault(job, Written())
            if written.due_at() > self._clock.boot():
                continue
            operations = self._operations(job, wish, written, session.long_lease.id)
            if batch and (len(batch) == JOBS_MAX or size + len(operations) > OPERATIONS_MAX):
                await self._write(batch, session)
                batch, size = {}, 0
            batch[job] = operations
            size += len(operations)
        if batch:
            await self._write(batch, session)

    async def _write(self, batch: dict[JobKey, list[Op]], session: Session) -> None:
        now, last = self._clock.boot(), list[Compare]()
        for job in batch:
            key, written = keys.status(self._node, job), self._written[job]
            last.append(Compare(key, "mod", "=", written.revision))
            written.times.append(now)
        operations = [operation for made in batch.values() for operation in made]
        self._session = None  # in doubt, until the answer is here
        result = await self._store.txn((*self._membership.fence(), *last), operations)
        if not result.succeeded:
            # Somebody else wrote, or holds the node's record: membership finds out about that.
            raise Unavailable(f"the status of {', '.join(map(str, batch))} was changed by another")
        self._session = session
        for job in batch:
            self._book(job, self._wishes.get(job, NO_WISH), session.long_lease.id, result.revision)
        self._local.execution.set()  # who waits for names to be withdrawn may go on

    def _book(self, job: JobKey, wish: Wish, lease: int, revision: int) -> None:
        """The store holds what was wished for."""
        self._open.discard(job)
        if not wish.instances:
            del self._written[job]
            return
        written = self._written[job]
        written.instances = dict(wish.instances)
        written.lease = lease
        written.revision = revision
        written.names = {key: (value, lease) for key, value in wish.names().items()}

    def _operations(self, job: JobKey, wish: Wish, written: Written, lease: int) -> list[Op]:
        key = keys.status(self._node, job)
        told = dict(sorted(wish.instances.items()))
        operations: list[Op] = [Put(key, codec.encode(told), lease) if told else Delete(key)]
        names = wish.names()
        for name, value in names.items():
            if written.names.get(name) != (value, lease):
                operations.append(Put(name, value, lease))
        for name, (value, _) in written.names.items():
            if name not in names:
                ours = (Compare(name, "value", "=", value),)
                operations.append(Txn(ours, (Delete(name),)))
        return operations


def _is_of(status: InstanceStatus, pod: PodId) -> bool:
    return (status.uid, status.version, status.generation) == (pod.uid, pod.version, pod.generation)
