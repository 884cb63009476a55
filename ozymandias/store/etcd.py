"""The Store port over etcd: a thin client of our own, since no package survives a member's death.

This module is the port; how members are called is in `etcd_calls.py`, watches are in
`etcd_watch.py`, the keep-alive thread in `etcd_lease.py`, messages in `etcd_wire.py`. Beside the
port there is what `ozy doctor` and tests ask for: `status` and `compact`.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never

import grpc.aio

from ozymandias.ports import (
    KV,
    ClusterChanged,
    Compacted,
    Compare,
    Event,
    Lease,
    LeaseLost,
    Listing,
    Op,
    Store,
    StoreError,
    TxnResult,
    Unavailable,
)
from ozymandias.store import etcd_pb2 as pb
from ozymandias.store.etcd_bytes import Encoded, txn_request
from ozymandias.store.etcd_calls import (
    COMPACT,
    GRANT,
    KEEP_ALIVE,
    MEMBERS,
    RANGE,
    REVOKE,
    STALE_RANGE,
    STATUS,
    TXN,
    Calls,
    Credentials,
    Timeouts,
    boot_time,
)
from ozymandias.store.etcd_lease import KeepAlive
from ozymandias.store.etcd_watch import Watch
from ozymandias.store.etcd_wire import kv_of, kvs_of, reads, txn_result, writes
from ozymandias.store.keys import prefix_end

__all__ = ["Credentials", "EtcdStore", "MemberStatus", "Timeouts"]

PAGE_KEYS = 5_000  # a larger page stalls the event loop, a smaller one costs round trips
LISTING_ATTEMPTS_MAX = 5
MEMBERS_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """What one member says of itself; ``problem`` alone when it does not answer."""

    endpoint: str
    version: str = ""
    db_size_bytes: int = 0
    member_id: int = 0
    leader_id: int = 0  # 0: it knows of none
    revision: int = 0
    alarms: tuple[str, ...] = ()
    problem: str = ""


class EtcdStore:
    """Make it with `connect` inside a running event loop; close it with `aclose`."""

    def __init__(self, calls: Calls, keep_alive: KeepAlive, *, is_proved: bool = False) -> None:
        self._calls = calls
        self._keep_alive = keep_alive
        self._is_proved = is_proved  # by certificates of an authority that was given

    @classmethod
    def connect(
        cls,
        endpoints: Sequence[str],
        credentials: Credentials = Credentials(),  # noqa: B008 (frozen)
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
    ) -> "EtcdStore":
        """Never waits: connections are made when they are needed.

        An endpoint is ``host:port``, ``http://host:port`` or ``https://host:port``; the first is
        TLS if the credentials hold a certificate authority.
        """
        return cls(
            Calls(endpoints, credentials, timeouts),
            KeepAlive(endpoints, credentials, timeouts.attempt),
            is_proved=bool(credentials.ca and credentials.cert),
        )

    async def aclose(self) -> None:
        await self._keep_alive.aclose()
        await self._calls.aclose()

    # Keys ---------------------------------------------------------------------------------------

    async def get(self, key: bytes, *, stale_ok: bool = False) -> KV | None:
        request = pb.RangeRequest(key=key, serializable=stale_ok)
        answer = await self._calls.ask(STALE_RANGE if stale_ok else RANGE, request)
        return kv_of(answer.kvs[0]) if answer.kvs else None

    async def range(self, prefix: bytes, *, revision: int = 0) -> Listing:
        for _ in range(LISTING_ATTEMPTS_MAX - 1):
            try:
                return await self._list(prefix, revision)
            except Compacted:
                if revision:
                    raise  # else history went while we were turning pages: begin anew
        return await self._list(prefix, revision)

    async def _list(self, prefix: bytes, revision: int) -> Listing:
        key, kvs, more = prefix or b"\0", list[KV](), True
        while more:
            request = pb.RangeRequest(
                key=key, range_end=prefix_end(prefix), limit=PAGE_KEYS, revision=revision
            )
            answer = await self._calls.ask(RANGE, request)
            revision = revision or answer.header.revision
            kvs += kvs_of(answer.kvs)
            more = answer.more
            key = kvs[-1].key + b"\0" if kvs else key
        return Listing(revision, tuple(kvs))

    async def _one(self, key: bytes) -> Listing:
        answer = await self._calls.ask(RANGE, pb.RangeRequest(key=key))
        return Listing(answer.header.revision, kvs_of(answer.kvs))

    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        request = txn_request(compare, then, otherwise)
        is_write = writes(then) or writes(otherwise)
        answer = await self._calls.ask(TXN, request, write=is_write)
        return txn_result(answer, asked=reads(then if answer.succeeded else otherwise))

    def ready(self, ops: Sequence[Op]) -> Sequence[Op]:
        return Encoded(ops)

    # Changes ------------------------------------------------------------------------------------

    def watch(
        self, prefix: bytes, revision: int, *, prev: bool = False
    ) -> AsyncGenerator[Sequence[Event], None]:
        return Watch(self._calls, prefix, revision, prev=prev).batches()

    async def mirror(
        self, prefix: bytes, *, alone: bool = False
    ) -> AsyncGenerator[Listing | Sequence[Event], None]:
        failures = 0
        while True:
            try:
                listing = await self._one(prefix) if alone else await self.range(prefix)
            except (Unavailable, Compacted, ClusterChanged):
                if self._calls.is_closed:
                    raise
                failures += 1
                await self._calls.back_off(failures * len(self._calls.endpoints))
                continue
            failures = 0
            yield listing
            relist_seconds = self._calls.timeouts.relist * random.uniform(0.8, 1.2)
            end = asyncio.get_running_loop().time() + relist_seconds
            watch = Watch(self._calls, prefix, listing.revision + 1, alone=alone)
            async with contextlib.aclosing(watch.batches()) as batches:
                with contextlib.suppress(Compacted, ClusterChanged, TimeoutError):
                    while True:
                        async with asyncio.timeout_at(end):
                            events = await anext(batches)
                        yield events

    # Leases -------------------------------------------------------------------------------------

    async def grant(self, ttl: int) -> Lease:
        """Repeated if there is no answer: a lease granted twice expires by itself."""
        sent = boot_time()
        answer = await self._calls.ask(GRANT, pb.LeaseGrantRequest(TTL=ttl))
        return Lease(answer.ID, answer.TTL, sent + answer.TTL)

    async def adopt(self, lease_id: int) -> Lease | None:
        sent = boot_time()
        answer = await self._calls.ask(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease_id))
        return Lease(lease_id, answer.TTL, sent + answer.TTL) if answer.TTL > 0 else None

    async def keep(self, lease: Lease) -> Never:
        await self._keep_alive.keep(lease)

    async def revoke(self, lease: Lease) -> None:
        with contextlib.suppress(LeaseLost):
            await self._calls.ask(REVOKE, pb.LeaseRevokeRequest(ID=lease.id))
        lease.lost.set()

    # Beside the port ----------------------------------------------------------------------------

    async def status(self) -> tuple[MemberStatus, ...]:
        """Of every endpoint, whether it answers or not."""
        with contextlib.suppress(Unavailable):
            await self._calls.ensure_login()
        members = range(len(self._calls.endpoints))
        return tuple(await asyncio.gather(*(self._member_status(member) for member in members)))

    async def _member_status(self, member: int) -> MemberStatus:
        endpoint = self._calls.endpoints[member]
        seconds = self._calls.timeouts.attempt
        try:
            answer = await self._calls.ask_member(member, STATUS, pb.StatusRequest(), seconds)
        except grpc.aio.AioRpcError as error:
            return MemberStatus(
                endpoint=endpoint, problem=f"{error.code().name}: {error.details()}"
            )
        return MemberStatus(
            endpoint=endpoint,
            version=answer.version,
            db_size_bytes=answer.dbSize,
            member_id=answer.header.member_id,
            leader_id=answer.leader,
            revision=answer.header.revision,
            alarms=tuple(answer.errors),
        )

    async def follow_members(self) -> None:
        """Learn of members that join later, until cancelled; for TLS alone.

        Certificates prove that an address is of this cluster. Without, what members advertise
        (loopback, often) may be another etcd as seen from here.
        """
        while self._is_proved and not self._calls.is_closed:
            with contextlib.suppress(StoreError):
                answer = await self._calls.ask(MEMBERS, pb.MemberListRequest(linearizable=True))
                urls = [u for m in answer.members if not m.isLearner for u in m.clientURLs]
                known = {endpoint.rpartition("://")[2] for endpoint in self._calls.endpoints}
                fresh = [url for url in urls if url.partition("https://")[2] not in known | {""}]
                if fresh:
                    self._calls.learn(fresh)
                    self._keep_alive.learn(fresh)
            await asyncio.sleep(MEMBERS_SECONDS * random.uniform(0.8, 1.2))

    async def compact(self, revision: int) -> None:
        """Forget the history before a revision."""
        await self._calls.ask(COMPACT, pb.CompactionRequest(revision=revision, physical=True))


if TYPE_CHECKING:

    def _keeps_the_port(store: EtcdStore) -> Store:
        return store
