"""The Store port over a simulated etcd: one client's view of it, with that client's faults.

Every call travels there and back; on the way it may be slow, find nobody, or lose its answer. What
happens is drawn from a seed. The answers themselves come from `sim/etcd.py`, which keeps etcd's
rules; `tests/integration/store/` holds both this and the real client to one contract.

Works on a VirtualLoop and on an ordinary event loop alike.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Never, TypeVar

from ozymandias.ports import (
    KV,
    Ambiguous,
    Clock,
    ClusterChanged,
    Compacted,
    Compare,
    Delete,
    Event,
    Lease,
    LeaseLost,
    Listing,
    Op,
    Put,
    Store,
    StoreError,
    Txn,
    TxnResult,
    Unavailable,
)
from ozymandias.sim.clock import Deadline
from ozymandias.sim.etcd import SimEtcd
from ozymandias.store.etcd_wire import OPERATIONS_MAX, fold
from ozymandias.store.keys import prefix_end

__all__ = ["Cut", "Faults", "SimEtcd", "SimStore"]

T = TypeVar("T")
Transact = Callable[[Sequence[Compare], Sequence[Op], Sequence[Op]], TxnResult]

KEEP_ALIVE_ATTEMPT_SECONDS = 2.0
BACK_OFF_SECONDS = 0.2
TICK_SECONDS = 0.001  # a shorter sleep may be lost in rounding, and time would stand still


class Cut(StrEnum):
    """Which way the line to the server is cut."""

    NONE = ""
    BOTH = "both ways"
    ANSWERS = "answers"  # requests arrive and are carried out, nothing comes back
    REQUESTS = "requests"  # nothing is carried out; what a watch sends still arrives


@dataclass(slots=True, kw_only=True)
class Faults:
    """What may go wrong for one client; probabilities are per call. May be changed at any time."""

    latency: tuple[float, float] = (0.0, 0.0)  # each way, seconds
    watch_lag: tuple[float, float] = (0.0, 0.0)
    unavailable: float = 0.0  # nobody answers within the deadline
    ambiguous: float = 0.0  # a write whose answer is lost: applied, not applied, or applied later
    timeout: float = 10.0  # the deadline of a call


class SimStore:
    def __init__(
        self,
        server: SimEtcd,
        clock: Clock,
        seed: int = 0,
        faults: Faults | None = None,
        txn: Transact | None = None,
    ) -> None:
        """``txn`` stands for the server's own: somebody wants to know who writes."""
        self.faults = faults or Faults()
        self._server = server
        self._txn = txn or server.txn
        self._clock = clock
        self._dice = random.Random(f"store {seed}")
        self._generation = server.generation
        self._is_closed = False
        self._cut = Cut.NONE
        self._is_stuck = False
        self._healed = asyncio.Event()
        self._first_sent: dict[int, float] = {}  # by a hash of the transaction
        self.adopted_at = -math.inf  # when it last went on with a lease that it found
        self.sent_at = 0.0  # when the one that is being carried out was sent, for the first time

    # The network between this client and the server ---------------------------------------------

    def partition(self, cut: Cut = Cut.BOTH) -> None:
        """From now on this client reaches nobody, or hears nobody, or both."""
        self._cut = cut
        self._wake()

    def heal(self) -> None:
        self._cut = Cut.NONE
        self._wake()

    def stick(self, is_stuck: bool = True) -> None:
        """Watches say nothing and do not fail; calls are answered."""
        self._is_stuck = is_stuck
        self._wake()

    @property
    def is_partitioned(self) -> bool:
        return self._cut is not Cut.NONE

    @property
    def is_stuck(self) -> bool:
        return self._is_stuck

    def _wake(self) -> None:
        self._healed.set()
        self._healed = asyncio.Event()

    async def _sendable(self) -> None:
        while (cut := self._cut in (Cut.BOTH, Cut.REQUESTS)) or self._server.is_paused:
            await (self._healed.wait() if cut else self._server.news())

    async def _audible(self) -> None:
        while (cut := self._cut in (Cut.BOTH, Cut.ANSWERS)) or self._server.is_paused:
            await (self._healed.wait() if cut else self._server.news())

    async def _travel(self) -> None:
        low, high = self.faults.latency
        await asyncio.sleep(low + (high - low) * self._dice.random())

    async def _call(self, apply: Callable[[], T], *, write: bool = False) -> T:
        """Ask the server; ``apply`` is what it does. A read is repeated, a write never."""
        if self._is_closed:
            raise Unavailable("the client is closed")
        if self._dice.random() < self.faults.unavailable:
            await asyncio.sleep(self._dice.uniform(0.0, self.faults.timeout))
            raise Unavailable("nobody answered in time")
        is_sent = False
        try:
            with Deadline(self.faults.timeout):
                while True:
                    await self._travel()
                    await self._sendable()
                    self._notice_restored_backup()
                    is_sent = True
                    if write and self._dice.random() < self.faults.ambiguous:
                        await self._lose_answer(apply)
                    answer = apply()
                    await self._travel()
                    if self._cut is Cut.ANSWERS:
                        await self._audible()  # it is sent again until it arrives
                    if self._cut is not Cut.BOTH:
                        return answer
                    if write:
                        raise Ambiguous("the answer was lost")
        except TimeoutError:
            if write and (is_sent or self._dice.random() < self.faults.ambiguous):
                raise Ambiguous("no answer in time") from None
            raise Unavailable("nobody answered in time") from None

    async def _lose_answer(self, apply: Callable[[], object]) -> Never:
        def apply_unseen() -> None:
            if self._server.is_paused:
                _server_side(BACK_OFF_SECONDS, apply_unseen)
            else:
                with contextlib.suppress(StoreError):
                    apply()

        fate = self._dice.choice(("applied", "later", "lost"))
        if fate == "applied":
            apply_unseen()
        elif fate == "later":
            delay = self._dice.uniform(0.0, self.faults.timeout)
            _server_side(delay, apply_unseen)
        await asyncio.sleep(self._dice.uniform(0.0, min(2.0, self.faults.timeout / 2)))
        raise Ambiguous("the answer was lost")

    def _notice_restored_backup(self) -> None:
        if self._generation != self._server.generation:
            self._generation = self._server.generation
            raise ClusterChanged("the revision went back")

    # The port -----------------------------------------------------------------------------------

    async def get(self, key: bytes, *, stale_ok: bool = False) -> KV | None:
        if stale_ok and not self._cut and not self._is_closed:
            await self._travel()  # a member without a leader answers too
            return self._server.get(key)
        return await self._call(lambda: self._server.get(key))

    async def range(self, prefix: bytes, *, revision: int = 0) -> Listing:
        def select() -> Listing:
            at = revision or self._server.revision
            kvs = self._server.select(prefix or b"\0", prefix_end(prefix), at)
            return Listing(at, kvs)

        return await self._call(select)

    def ready(self, ops: Sequence[Op]) -> Sequence[Op]:
        return ops

    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        then = fold(then, OPERATIONS_MAX, len(compare))
        otherwise = fold(otherwise, OPERATIONS_MAX, len(compare))
        now = asyncio.get_running_loop().time()
        sent_at = self._first_sent.setdefault(hash((*compare, *then)), now)

        def carry_out() -> TxnResult:
            self.sent_at = sent_at
            return self._txn(compare, then, otherwise)

        return await self._call(
            carry_out,
            write=_writes(then) or _writes(otherwise),
        )

    async def watch(
        self, prefix: bytes, revision: int, *, prev: bool = False
    ) -> AsyncGenerator[Sequence[Event], None]:
        if revision < 1:
            raise ValueError("a watch starts at revision 1 or later")
        position = revision
        while True:
            await self._audible()
            if self._is_stuck:
                await self._healed.wait()
                continue
            if self._server.revision < position - 1:
                self._generation = self._server.generation
                raise ClusterChanged("the revision went back")
            if self._server.revision < position:
                await self._server.news()
                continue
            await asyncio.sleep(self._dice.uniform(*self.faults.watch_lag))
            is_silent = self._cut in (Cut.BOTH, Cut.ANSWERS) or self._is_stuck
            if is_silent or self._server.is_paused or self._server.revision < position:
                continue
            events = self._server.events(prefix, position)
            position = self._server.revision + 1
            if events:
                yield events if prev else [Event(e.kv, e.deleted) for e in events]

    async def mirror(
        self, prefix: bytes, *, alone: bool = False
    ) -> AsyncGenerator[Listing | Sequence[Event], None]:
        def is_meant(kv: KV) -> bool:
            return not alone or kv.key == prefix

        while True:
            try:
                listing = await self.range(prefix)
                yield Listing(listing.revision, tuple(filter(is_meant, listing.kvs)))
                async with contextlib.aclosing(self.watch(prefix, listing.revision + 1)) as batches:
                    async for events in batches:
                        if found := [event for event in events if is_meant(event.kv)]:
                            yield found
            except (Compacted, ClusterChanged):
                continue
            except Unavailable:
                if self._is_closed:
                    raise
                await asyncio.sleep(BACK_OFF_SECONDS)

    async def grant(self, ttl: int) -> Lease:
        sent = self._clock.boot()
        lease_id, granted = await self._call(lambda: self._server.grant(ttl))
        return Lease(lease_id, granted, sent + granted)

    async def adopt(self, lease_id: int) -> Lease | None:
        sent = self._clock.boot()
        ttl = await self._call(lambda: self._server.refresh(lease_id))
        self.adopted_at = asyncio.get_running_loop().time()
        return Lease(lease_id, ttl, sent + ttl) if ttl > 0 else None

    async def keep(self, lease: Lease) -> Never:
        try:
            while True:
                await self._sleep_until(lease.deadline - lease.ttl * 2 / 3)
                sent = self._clock.boot()
                if sent >= lease.deadline:
                    raise LeaseLost(f"lease {lease.id:x}: no answer within its TTL")
                ttl = await self._refresh(lease, lease.deadline - sent)
                if ttl is None:
                    continue
                if ttl <= 0:
                    raise LeaseLost(f"lease {lease.id:x} has expired")
                lease.extend(ttl, sent + ttl)
        except LeaseLost:
            lease.lost.set()
            raise

    async def _refresh(self, lease: Lease, seconds_left: float) -> int | None:
        """The TTL from the server, or None when an attempt got no answer."""
        attempt = min(KEEP_ALIVE_ATTEMPT_SECONDS, lease.ttl / 3, max(seconds_left, TICK_SECONDS))
        try:
            with Deadline(attempt):
                await self._travel()
                await self._sendable()
                ttl = self._server.refresh(lease.id)
                await self._travel()
                await self._audible()
                return ttl
        except TimeoutError:
            return None

    async def _sleep_until(self, boot: float) -> None:
        # The clock may run slower or faster than the loop: look again after sleeping.
        while (left := boot - self._clock.boot()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(max(left, TICK_SECONDS))

    async def revoke(self, lease: Lease) -> None:
        await self._call(lambda: self._server.revoke(lease.id))
        lease.lost.set()

    async def aclose(self) -> None:
        self._is_closed = True


def _server_side(delay: float, work: Callable[[], None]) -> None:
    """Later, whatever becomes of the daemon that asked."""
    asyncio.get_running_loop().call_later(delay, work, context=Context())


def _writes(ops: Sequence[Op]) -> bool:
    return any(
        _writes(op.then) or _writes(op.otherwise)
        if isinstance(op, Txn)
        else isinstance(op, Put | Delete)
        for op in ops
    )


if TYPE_CHECKING:

    def _keeps_the_port(store: SimStore) -> Store:
        return store
