"""Keep-alive of leases, in a thread of its own, so that a blocked event loop costs no lease.

One daemon thread refreshes any number of leases with gRPC's synchronous calls, on channels of its
own. It lives as long as there is a lease to keep. A member that does not answer within an attempt
is left for the next; a lease is lost when etcd says so, or at its deadline by our own clock,
whichever comes first. The deadline is counted from when the last answered keep-alive was *sent*:
etcd's own always lies later.
"""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Never

import grpc

from ozymandias.ports import Lease, LeaseLost
from ozymandias.store import etcd_pb2 as pb
from ozymandias.store.etcd_calls import (
    AUTHENTICATE,
    KEEP_ALIVE,
    NEEDS_LEADER,
    Credentials,
    Method,
    boot_time,
    is_stale_token,
    open_channel,
)

RETRY_SECONDS = 0.2  # after a failure that came at once
LOOK_AGAIN_SECONDS = 1.0  # waits are cut so, since waiting does not count a suspended machine


@dataclass(slots=True, eq=False)
class _Kept:
    lease: Lease
    loop: asyncio.AbstractEventLoop
    lost: asyncio.Future[str]  # with the reason
    due: float

    def report(self, reason: str) -> None:
        def tell() -> None:
            if not self.lost.done():
                self.lost.set_result(reason)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            self.loop.call_soon_threadsafe(tell)


class KeepAlive:
    def __init__(
        self, endpoints: Sequence[str], credentials: Credentials, attempt_seconds: float
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._credentials = credentials
        self._attempt_seconds = attempt_seconds
        self._changed = threading.Condition()  # guards what follows
        self._kept: list[_Kept] = []
        self._thread: threading.Thread | None = None
        self._call: Any = None  # the one under way

    def learn(self, endpoints: Sequence[str]) -> None:
        """More members, after those that are known."""
        with self._changed:
            self._endpoints = (*self._endpoints, *endpoints)

    async def keep(self, lease: Lease) -> Never:
        loop = asyncio.get_running_loop()
        kept = _Kept(lease, loop, loop.create_future(), due=lease.deadline - lease.ttl * 2 / 3)
        self._add(kept)
        try:
            reason = await kept.lost
        finally:
            self._drop(kept)
        lease.lost.set()
        raise LeaseLost(f"lease {lease.id:x}: {reason}")

    async def aclose(self) -> None:
        with self._changed:
            kept, thread = list(self._kept), self._thread
        for one in kept:
            one.report("the client was closed")
            self._drop(one)
        if thread:
            await asyncio.to_thread(thread.join)

    def _add(self, kept: _Kept) -> None:
        with self._changed:
            self._kept.append(kept)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="keep-alive", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _drop(self, kept: _Kept) -> None:
        with self._changed:
            if kept in self._kept:
                self._kept.remove(kept)
            if not self._kept and self._call is not None:
                self._call.cancel()
            self._changed.notify()

    # In the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        members = _Members(self._endpoints, self._credentials)
        try:
            while (kept := self._wait_for_next()) is not None:
                members.extend(self._endpoints)
                self._refresh(kept, members)
        except BaseException as error:  # a bug: nobody may believe that their lease is kept
            with self._changed:
                self._thread = None
                abandoned = list(self._kept)
            for kept in abandoned:
                self._lose(kept, f"the keep-alive failed: {error!r}")
            raise
        finally:
            members.close()

    def _wait_for_next(self) -> _Kept | None:
        """The lease that is due next, when it is due; None, and the thread ends, without any."""
        with self._changed:
            while self._kept:
                kept = min(self._kept, key=lambda one: one.due)
                wait = kept.due - boot_time()
                if wait <= 0:
                    return kept
                self._changed.wait(min(wait, LOOK_AGAIN_SECONDS))
            self._thread = None
            return None

    def _refresh(self, kept: _Kept, members: "_Members") -> None:
        lease, sent = kept.lease, boot_time()
        if sent >= lease.deadline:
            self._lose(kept, "no answer within its TTL")
            return
        seconds = min(self._attempt_seconds, max(0.5, lease.ttl / 3), lease.deadline - sent)
        try:
            answer = self._ask(members, KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease.id), seconds)
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if _is_denial(error):
                members.is_logged_in = False
            else:
                members.turn()
            kept.due = max(sent + RETRY_SECONDS, boot_time())
            return
        if answer.TTL <= 0:
            self._lose(kept, "it has expired")
            return
        lease.extend(answer.TTL, sent + answer.TTL)
        kept.due = sent + answer.TTL / 3

    def _ask(self, members: "_Members", method: Method, request: Any, seconds: float) -> Any:
        if self._credentials.user and not members.is_logged_in and method is not AUTHENTICATE:
            self._login(members, seconds)
        with self._changed:
            if not self._kept:
                raise grpc.FutureCancelledError
            self._call = members.start(method, request, seconds)
        try:
            return self._call.result()
        finally:
            self._call = None

    def _login(self, members: "_Members", seconds: float) -> None:
        request = pb.AuthenticateRequest(
            name=self._credentials.user, password=self._credentials.password
        )
        members.token = ""
        try:
            members.token = self._ask(members, AUTHENTICATE, request, seconds).token
        except grpc.RpcError as error:
            if "not enabled" not in _detail(error):
                raise
        members.is_logged_in = True

    def _lose(self, kept: _Kept, reason: str) -> None:
        kept.report(reason)
        self._drop(kept)


def _detail(error: Exception) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else ""


def _is_denial(error: Exception) -> bool:
    detail = _detail(error)
    return is_stale_token(detail) or "permission denied" in detail


class _Members:
    """The keep-alive thread's own channels, one per member."""

    def __init__(self, endpoints: Sequence[str], credentials: Credentials) -> None:
        self.token = ""
        self.is_logged_in = False
        self._credentials = credentials
        self._channels: list[Any] = []
        self._current = 0
        self.extend(endpoints)

    def extend(self, endpoints: Sequence[str]) -> None:
        """Channels to those that came after the ones that are open."""
        for endpoint in endpoints[len(self._channels) :]:
            self._channels.append(open_channel(grpc, endpoint, self._credentials))

    def start(self, method: Method, request: Any, seconds: float) -> Any:
        """A call under way: a future that can be cancelled from another thread."""
        stub = self._channels[self._current].unary_unary(
            method.path,
            request_serializer=method.serialize,
            response_deserializer=method.answer.FromString,
        )
        token = (("token", self.token),) if self.token else ()
        return stub.future(request, timeout=seconds, metadata=(NEEDS_LEADER, *token))

    def turn(self) -> None:
        self._current = (self._current + 1) % len(self._channels)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
