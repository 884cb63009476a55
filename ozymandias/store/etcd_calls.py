"""Calls to etcd's members: one gRPC channel each, failover, login, and what failures mean.

All calls go to one member until it fails; then to the next. A read is repeated until its deadline.
A write is repeated only when it surely was not proposed (no connection, no leader, stale token);
otherwise its outcome is unknown and that is what the caller is told: Ambiguous. gRPC's own retries
are off, since they would repeat a write behind our back. No grpc exception leaves the package.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from ozymandias.ports import (
    Ambiguous,
    ClusterChanged,
    Compacted,
    Denied,
    Invalid,
    LeaseLost,
    NoSpace,
    StoreError,
    TooLarge,
    Unavailable,
)
from ozymandias.store import etcd_pb2 as pb

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", -1),  # a watch that catches up gets huge messages
    ("grpc.keepalive_time_ms", 6_000),  # etcd ends connections that ping more often than 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
NEEDS_LEADER = ("hasleader", "true")  # a member that has lost its leader then says so at once
TOKEN_FRESH_SECONDS = 60.0
BACK_OFF_SECONDS_MAX = 1.0

_STALE_TOKEN = ("invalid auth token", "user name is empty", "revision of auth store is old")
_SURELY_UNSENT = (
    *("failed to connect to all addresses", "no leader", "too many requests"),
    "not supported for learner",
)
# By its members, by what they agreed on among themselves, and before they read it.
_TOO_LARGE = ("request is too large", "too many operations", "larger than max")
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,  # also "not a primary lessor", right after an election
    grpc.StatusCode.INTERNAL,  # also a write on a stream that has just broken
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """PEM bytes for TLS (ca alone) and mutual TLS (all three); user and password, if asked for."""

    ca: bytes = b""
    cert: bytes = b""
    key: bytes = field(default=b"", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    attempt: float = 2.0  # until another member is asked; for a write, until it is ambiguous
    call: float = 10.0  # all attempts of a call together
    heartbeat: float = 3.0  # how often a watched member is asked to say something
    silence: float = 7.0  # how long a watched member may say nothing
    relist: float = 600.0  # a mirror lists afresh so often: old servers can lose watch events


@dataclass(frozen=True, slots=True)
class Method:
    path: str
    answer: Any
    is_linearizable: bool = False  # its answer's revision never goes back

    def serialize(self, request: Any) -> bytes:
        """A message, or one that is bytes already (`etcd_bytes.py`)."""
        data: bytes = request if isinstance(request, bytes) else request.SerializeToString()
        return data


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeResponse, is_linearizable=True)
STALE_RANGE = Method("/etcdserverpb.KV/Range", pb.RangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnResponse, is_linearizable=True)
COMPACT = Method("/etcdserverpb.KV/Compact", pb.CompactionResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchResponse)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse)
# A stream to etcd, but one request and one answer are a unary call on the wire.
KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)
STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusResponse)
MEMBERS = Method("/etcdserverpb.Cluster/MemberList", pb.MembersResponse)


def boot_time() -> float:
    """Unlike the monotonic clock it counts the time that the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def open_channel(grpc_module: Any, endpoint: str, credentials: Credentials) -> Any:
    """``host:port`` or a URL. ``grpc_module`` is grpc, or grpc.aio inside a running loop."""
    scheme, separator, address = endpoint.rpartition("://")
    target = address.rstrip("/")
    if scheme == "https" or (not separator and credentials.ca):
        tls = grpc.ssl_channel_credentials(
            credentials.ca or None, credentials.key or None, credentials.cert or None
        )
        return grpc_module.secure_channel(target, tls, options=CHANNEL_OPTIONS)
    if scheme not in ("", "http"):
        raise ValueError(f"{endpoint!r}: an endpoint is HOST:PORT, http://… or https://…")
    return grpc_module.insecure_channel(target, options=CHANNEL_OPTIONS)


def is_stale_token(detail: str) -> bool:
    return any(text in detail for text in _STALE_TOKEN)


def is_passing(code: grpc.StatusCode, detail: str) -> bool:
    """Whether another member, or the same one later, may well answer."""
    return code in _PASSING or "too many requests" in detail


def translate(code: grpc.StatusCode, detail: str) -> StoreError:
    """What a failure that repeating would not heal means."""
    if "compacted" in detail:
        return Compacted(detail)
    if "lease not found" in detail:
        return LeaseLost(detail)
    if "space exceeded" in detail:
        return NoSpace(detail)
    refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    if code in refused or "authentication failed" in detail or is_stale_token(detail):
        return Denied(detail)
    if any(text in detail for text in _TOO_LARGE):
        return TooLarge(detail)
    return Invalid(f"{code.name}: {detail}")


class Calls:
    def __init__(
        self, endpoints: Sequence[str], credentials: Credentials, timeouts: Timeouts
    ) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint")
        self.endpoints = tuple(endpoints)
        self.timeouts = timeouts
        self.current = 0  # the member that is asked
        self.logins = 0
        self._credentials = credentials
        self._channels = [open_channel(grpc.aio, e, credentials) for e in self.endpoints]
        self._stubs: dict[tuple[int, Method], Any] = {}
        self._token = ""
        self._token_time = 0.0
        self._login_lock = asyncio.Lock()
        self._cluster_id = 0
        self._revision = 0  # the newest seen in a linearizable answer
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True
        await asyncio.gather(*(channel.close(None) for channel in self._channels))

    def learn(self, endpoints: Sequence[str]) -> None:
        """More members, to be turned to when others fail."""
        self._channels += [open_channel(grpc.aio, e, self._credentials) for e in endpoints]
        self.endpoints = (*self.endpoints, *endpoints)

    # One call -----------------------------------------------------------------------------------

    async def ask(
        self, method: Method, request: Any, *, write: bool = False, with_token: bool = True
    ) -> Any:
        """The answer of the first member that gives one, before the deadline."""
        end = boot_time() + self.timeouts.call
        failures = renewals = 0
        while True:
            if with_token:
                await self.ensure_login()
            member, logins, floor = self.current, self.logins, self._revision
            seconds = max(0.05, min(self.timeouts.attempt, end - boot_time()))
            reason = f"{self.endpoints[member]}: no connection"
            try:
                if not write or await self._is_connected(member, seconds):
                    answer = await self.ask_member(member, method, request, seconds)
                    self.check_cluster(answer.header)
                    if method.is_linearizable:
                        self._check_revision(answer.header.revision, floor)
                    return answer
            except grpc.aio.AioRpcError as error:
                code, detail = error.code(), error.details() or ""
                if with_token and is_stale_token(detail) and renewals < 2:
                    renewals += 1
                    await self.login(logins)
                    continue
                if not is_passing(code, detail):
                    raise translate(code, detail) from error
                reason = f"{self.endpoints[member]}: {code.name}: {detail}"
                if write and not any(text in detail for text in _SURELY_UNSENT):
                    self.turn_from(member)
                    raise Ambiguous(reason) from error
            self.turn_from(member)
            failures += 1
            if boot_time() >= end:
                raise Unavailable(f"no answer in {self.timeouts.call:g} s; last {reason}")
            await self.back_off(failures)

    async def ask_member(self, member: int, method: Method, request: Any, seconds: float) -> Any:
        """One attempt at one member. Raises grpc's own error."""
        with self.closing():
            stub = self._stub(member, method)
            return await stub(request, timeout=seconds, metadata=self._metadata(method))

    def open_stream(self, member: int, method: Method, requests: Any) -> Any:
        with self.closing():
            return self._stub(member, method, streams=True)(
                requests, metadata=self._metadata(method)
            )

    def open_answers(self, method: Method, request: Any, seconds: float) -> Any:
        """One request, many answers, of the member that is asked at present."""
        with self.closing():
            return self._channels[self.current].unary_stream(
                method.path,
                request_serializer=method.serialize,
                response_deserializer=method.answer.FromString,
            )(request, timeout=seconds, metadata=self._metadata(method))

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Calls under way when the client is closed end as cancelled; their tasks were not."""
        if self.is_closed:
            raise Unavailable("the client is closed")
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.is_closed and task and not task.cancelling():
                raise Unavailable("the client is closed") from None
            raise

    def _stub(self, member: int, method: Method, *, streams: bool = False) -> Any:
        if (member, method) not in self._stubs:
            channel = self._channels[member]
            make = channel.stream_stream if streams else channel.unary_unary
            self._stubs[member, method] = make(
                method.path,
                request_serializer=method.serialize,
                response_deserializer=method.answer.FromString,
            )
        return self._stubs[member, method]

    def _metadata(self, method: Method) -> tuple[tuple[str, str], ...]:
        leader = () if method in (STALE_RANGE, STATUS) else (NEEDS_LEADER,)
        has_token = self._token and method is not AUTHENTICATE  # which refuses an old one
        return (*leader, ("token", self._token)) if has_token else leader

    async def _is_connected(self, member: int, seconds: float) -> bool:
        """Known before a write is handed to gRPC: what was never sent is not ambiguous."""
        channel = self._channels[member]
        state = channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(seconds):
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True

    # Which member, and which cluster ------------------------------------------------------------

    def turn_from(self, member: int) -> None:
        if member == self.current:
            self.current = (member + 1) % len(self._channels)

    async def back_off(self, failures: int) -> None:
        """The other members are tried at once; a pause, growing, comes after each round."""
        rounds, rest = divmod(failures, len(self._channels))
        if failures and rest == 0:
            pause = min(BACK_OFF_SECONDS_MAX, 0.05 * 2.0 ** min(rounds, 8))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    def check_cluster(self, header: pb.Header) -> None:
        if self._cluster_id and header.cluster_id != self._cluster_id:
            was, self._cluster_id, self._revision = self._cluster_id, header.cluster_id, 0
            raise ClusterChanged(f"cluster {header.cluster_id:x} answers, not {was:x}")
        self._cluster_id = header.cluster_id

    def _check_revision(self, revision: int, floor: int) -> None:
        # Answers overtake each other: only what was known when the question was sent counts.
        if revision < floor:
            self._revision = revision
            raise ClusterChanged(f"the revision went back from {floor} to {revision}")
        self._revision = max(self._revision, revision)

    # Login --------------------------------------------------------------------------------------

    @property
    def has_user(self) -> bool:
        return bool(self._credentials.user)

    async def ensure_login(self, fresh_seconds: float = float("inf")) -> None:
        """A token, no older than that. (On opening a watch an old one reads as no permission.)"""
        is_known = self.logins > 0 and boot_time() - self._token_time < fresh_seconds
        if self.has_user and not is_known:
            await self.login(self.logins)

    async def login(self, logins: int) -> None:
        """A new token, unless another task has renewed it since ``logins`` was read."""
        async with self._login_lock:
            if self.logins != logins:
                return
            request = pb.AuthenticateRequest(
                name=self._credentials.user, password=self._credentials.password
            )
            try:
                answer = await self.ask(AUTHENTICATE, request, with_token=False)
                self._token = answer.token
            except Invalid as error:
                if "not enabled" not in str(error):
                    raise
                self._token = ""  # nobody is asked for a password yet
            self.logins += 1
            self._token_time = boot_time()
