"""The server behind every SimStore: etcd's revisions, transactions, leases and history, in memory.

It keeps etcd's rules where a client can see them (a differential test holds it against the real
one): compares of nested transactions look at the state before the transaction; a transaction is
one revision; an expired lease deletes its keys in one revision; a put without a lease detaches.
All calls are synchronous and atomic; delays and faults are the client's part (`sim/store.py`), but
for those of the server itself: pause, compaction, early expiry and a restored backup.

`on_commit` hooks see every revision at the moment it is made. They record; they must not raise.
"""

import asyncio
import random
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass, field

from ozymandias.ports import (
    KV,
    Compacted,
    Compare,
    Delete,
    Event,
    Get,
    Invalid,
    LeaseLost,
    Op,
    Put,
    TooLarge,
    Txn,
    TxnResult,
)

LEASE_TTL_MIN = 2  # etcd's, with its default election timeout
REQUEST_BYTES_MAX = 1_536 * 1024
OPERATIONS_MAX = 128  # along one path of nested transactions

CommitHook = Callable[[int, list[Event]], None]


@dataclass(slots=True, eq=False)
class _Lease:
    id: int
    ttl: int
    expires: float = 0.0
    keys: set[bytes] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class SimEtcd:
    """Make it inside a running event loop: leases expire on that loop's time."""

    def __init__(self, seed: int = 0, *, expiry_lag: tuple[float, float] = (0.0, 0.5)) -> None:
        self.revision = 1
        self.compacted = 0
        self.generation = 0  # raised when a backup is restored: clients notice
        self.is_paused = False
        self.on_commit: list[CommitHook] = []
        self._loop = asyncio.get_running_loop()
        self._dice = random.Random(f"etcd {seed}")
        self._expiry_lag = expiry_lag
        self._kvs: dict[bytes, KV] = {}
        self._keys: list[bytes] = []  # sorted
        self._history: list[tuple[Event, ...]] = []  # of revision 2 and on
        self._leases: dict[int, _Lease] = {}
        self._ttls: list[int] = []  # of every lease ever granted: ids count from 1
        self._news = asyncio.Event()

    # Reading ------------------------------------------------------------------------------------

    def snapshot_kvs(self) -> dict[bytes, KV]:
        return dict(self._kvs)

    def get(self, key: bytes) -> KV | None:
        return self._kvs.get(key)

    def select(self, key: bytes, range_end: bytes = b"", revision: int = 0) -> tuple[KV, ...]:
        """The keys of [key, range_end) in order; range_end 0x00 means all from key on."""
        if revision > self.revision:
            raise Invalid("required revision is a future revision")
        if 0 < revision < self.compacted:
            raise Compacted(f"revision {revision} is older than {self.compacted}")
        if 0 < revision < self.revision:
            then = self._state_at(revision)
            return tuple(then[k] for k in sorted(then) if _is_within(k, key, range_end))
        return tuple(self._kvs[k] for k in self._select_keys(key, range_end))

    def events(self, prefix: bytes, start: int) -> list[Event]:
        """What happened under a prefix from revision ``start`` on, in order."""
        if start <= self.compacted:  # our client asks from the revision before on
            raise Compacted(f"the revisions up to {self.compacted} are gone")
        return [
            event
            for commit in self._history[max(0, start - 2) :]
            for event in commit
            if event.kv.key.startswith(prefix)
        ]

    async def news(self) -> None:
        """Wait for the next revision, pause, resume or restored backup."""
        await self._news.wait()

    @property
    def lease_count(self) -> int:
        return len(self._leases)

    def lease_keys(self, lease_id: int) -> frozenset[bytes] | None:
        """The keys under a lease; None when it is gone."""
        lease = self._leases.get(lease_id)
        return frozenset(lease.keys) if lease else None

    def _select_keys(self, key: bytes, range_end: bytes) -> list[bytes]:
        if not range_end:
            return [key] if key in self._kvs else []
        end = len(self._keys) if range_end == b"\0" else bisect_left(self._keys, range_end)
        return self._keys[bisect_left(self._keys, key) : end]

    def _state_at(self, revision: int) -> dict[bytes, KV]:
        state = dict(self._kvs)
        for commit in reversed(self._history[revision - 1 :]):
            for event in reversed(commit):
                if event.prev is None:
                    state.pop(event.kv.key, None)
                else:
                    state[event.kv.key] = event.prev
        return state

    # Writing ------------------------------------------------------------------------------------

    def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        _check_count(OPERATIONS_MAX, compare, then, otherwise)
        if _check_keys(compare, (*then, *otherwise)) > REQUEST_BYTES_MAX:
            raise TooLarge("request is too large")
        _check_overlaps(then)
        _check_overlaps(otherwise)
        succeeded = self._holds(compare)
        steps = list(self._steps(then if succeeded else otherwise))
        for step in steps:
            if isinstance(step, Put):
                self._check_put(step)
        events: list[Event] = []
        results: list[tuple[KV, ...]] = []
        for step in steps:
            if isinstance(step, Put):
                events.append(self._put(step))
            elif isinstance(step, Delete):
                keys = self._select_keys(step.key, step.range_end)
                events.extend(self._delete(key) for key in keys)
            else:
                results.append(self.select(step.key, step.range_end))
        self._commit(events)
        return TxnResult(succeeded, self.revision, tuple(results))

    def _steps(self, ops: Sequence[Op]) -> Iterator[Put | Delete | Get]:
        for op in ops:
            if isinstance(op, Txn):
                yield from self._steps(op.then if self._holds(op.compare) else op.otherwise)
            else:
                yield op

    def _holds(self, compares: Sequence[Compare]) -> bool:
        return all(
            _compare_kv(compare, kv)
            for compare in compares
            for kv in self.select(compare.key, compare.range_end) or (None,)
        )

    def _check_put(self, put: Put) -> None:
        if put.keep_lease and put.key not in self._kvs:
            raise Invalid("key not found")
        if put.lease and put.lease not in self._leases:
            raise LeaseLost("requested lease not found")

    def _put(self, put: Put) -> Event:
        old = self._kvs.get(put.key)
        kv = KV(
            key=put.key,
            value=put.value,
            create_revision=old.create_revision if old else self.revision + 1,
            mod_revision=self.revision + 1,
            version=old.version + 1 if old else 1,
            lease=old.lease if put.keep_lease and old else put.lease,
        )
        if old is None:
            insort(self._keys, put.key)
        self._detach(old)
        if kv.lease:
            self._leases[kv.lease].keys.add(kv.key)
        self._kvs[put.key] = kv
        return Event(kv, deleted=False, prev=old)

    def _delete(self, key: bytes) -> Event:
        old = self._kvs.pop(key)
        del self._keys[bisect_left(self._keys, key)]
        self._detach(old)
        return Event(KV(key, b"", 0, self.revision + 1, 0, 0), deleted=True, prev=old)

    def _detach(self, kv: KV | None) -> None:
        if kv and kv.lease in self._leases:
            self._leases[kv.lease].keys.discard(kv.key)

    def _commit(self, events: list[Event]) -> None:
        if not events:
            return
        self.revision += 1
        before: dict[
            bytes, KV | None
        ] = {}  # of a key written twice, too: "previous" is by revision
        events = [
            e
            if (first := before.setdefault(e.kv.key, e.prev)) is e.prev
            else Event(e.kv, e.deleted, first)
            for e in events
        ]
        self._history.append(tuple(events))
        for hook in self.on_commit:
            hook(self.revision, events)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # Leases -------------------------------------------------------------------------------------

    def grant(self, ttl: int) -> tuple[int, int]:
        """Its id and TTL."""
        self._ttls.append(max(ttl, LEASE_TTL_MIN))
        lease = _Lease(len(self._ttls), self._ttls[-1])
        self._leases[lease.id] = lease
        self._renew(lease)
        return lease.id, lease.ttl

    def refresh(self, lease_id: int) -> int:
        """Its TTL; 0 when it is gone, or past its time and about to go."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.expires < self._loop.time():
            return 0
        lease.expires = self._loop.time() + lease.ttl
        return lease.ttl

    def revoke(self, lease_id: int) -> None:
        """The lease and its keys go, in one revision. Fine if it is gone."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        if lease.timer:
            lease.timer.cancel()
        events = [self._delete(key) for key in sorted(lease.keys)]
        del self._leases[lease_id]
        self._commit(events)

    def expire(self, lease_id: int) -> None:
        """As a confused old leader may do before the time (etcd#15247)."""
        self.revoke(lease_id)

    def _renew(self, lease: _Lease) -> None:
        lease.expires = self._loop.time() + lease.ttl
        self._arm(lease)

    def _arm(self, lease: _Lease) -> None:
        if lease.timer:
            lease.timer.cancel()
        when = lease.expires + self._dice.uniform(*self._expiry_lag)
        # In a context of its own: the daemon that asked for the lease may be frozen for ever.
        lease.timer = self._loop.call_at(when, self._look_at, lease, context=Context())

    def _look_at(self, lease: _Lease) -> None:
        if self.is_paused:
            return  # resume() starts it anew
        if self._loop.time() < lease.expires:
            self._arm(lease)
        else:
            self.revoke(lease.id)

    # The server's own faults --------------------------------------------------------------------

    def compact(self, revision: int) -> None:
        if revision > self.revision:
            raise Invalid("required revision is a future revision")
        if revision <= self.compacted:
            raise Compacted(f"compacted up to {self.compacted} already")
        self.compacted = revision

    def pause(self) -> None:
        """Quorum lost: nobody is answered, nothing expires."""
        self.is_paused = True
        self._wake()

    def resume(self) -> None:
        """A new leader, and as in etcd every lease has its whole TTL again."""
        self.is_paused = False
        for lease in self._leases.values():
            self._renew(lease)
        self._wake()

    def restore(self, revision: int) -> None:
        """As from a backup of that revision: what came later never happened."""
        self._kvs = self._state_at(revision)
        self._keys = sorted(self._kvs)
        del self._history[revision - 1 :]
        self.revision = revision
        self.generation += 1
        for lease in self._leases.values():
            lease.keys.clear()
        for kv in self._kvs.values():
            if kv.lease:  # a lease that had ended since is back, too
                back = _Lease(kv.lease, self._ttls[kv.lease - 1])
                self._leases.setdefault(kv.lease, back).keys.add(kv.key)
        self.resume()


def _is_within(candidate: bytes, key: bytes, range_end: bytes) -> bool:
    if not range_end:
        return candidate == key
    return candidate >= key and (range_end == b"\0" or candidate < range_end)


def _compare_kv(compare: Compare, kv: KV | None) -> bool:
    actual: int | bytes
    if compare.target == "value":
        if kv is None:
            return False  # a missing value is neither equal nor unequal to anything
        actual = kv.value
    elif kv is None:
        actual = 0
    else:
        actual = {
            "version": kv.version,
            "create": kv.create_revision,
            "mod": kv.mod_revision,
            "lease": kv.lease,
        }[compare.target]
    wanted = compare.operand
    if type(actual) is not type(wanted):
        raise Invalid(f"compare of {compare.target} with {type(wanted).__name__}")
    less, equal = actual < wanted, actual == wanted  # type: ignore[operator]
    return {"=": equal, "!=": not equal, "<": less, ">": not less and not equal}[compare.op]


def _check_count(
    budget: int, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]
) -> None:
    count = max(len(compares), len(then), len(otherwise))
    if count > budget:
        raise TooLarge("too many operations in txn request")
    for op in (*then, *otherwise):
        if isinstance(op, Txn):
            _check_count(budget - count, op.compare, op.then, op.otherwise)


def _check_keys(compares: Sequence[Compare], ops: Sequence[Op]) -> int:
    """How many bytes the request has, about."""
    size = sum(len(c.operand) for c in compares if isinstance(c.operand, bytes))
    for op in ops:
        if isinstance(op, Txn):
            size += _check_keys(op.compare, (*op.then, *op.otherwise))
        elif not op.key:
            raise Invalid("key is not provided")
        elif isinstance(op, Put):
            if op.keep_lease and op.lease:
                raise Invalid("lease is provided")
            size += len(op.key) + len(op.value)
    if not all(compare.key for compare in compares):
        raise Invalid("key is not provided")
    return size


def _check_overlaps(ops: Sequence[Op]) -> tuple[set[bytes], list[Delete]]:
    """A key may be written once in a transaction; the two branches of one exclude each other."""
    deletes = [op for op in ops if isinstance(op, Delete)]
    puts: set[bytes] = set()

    def add(keys: set[bytes], allowed: set[bytes]) -> None:
        for key in keys:
            deleted = any(_is_within(key, d.key, d.range_end) for d in deletes)
            if deleted or (key in puts and key not in allowed):
                raise Invalid("duplicate key given in txn request")
        puts.update(keys)

    for op in ops:
        if isinstance(op, Txn):
            then_puts, then_deletes = _check_overlaps(op.then)
            else_puts, else_deletes = _check_overlaps(op.otherwise)
            add(then_puts, set())
            add(else_puts, then_puts)
            deletes += then_deletes + else_deletes
    for op in ops:
        if isinstance(op, Put):
            add({op.key}, set())
    return puts, deletes
