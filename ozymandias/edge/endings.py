"""How a request and its connection end: counted, answered by ourselves, lingering, cut off.

The half of a client's connection that does not depend on how requests are read and passed on.
Whatever ends badly before the response began becomes a problem document; afterwards the connection
is closed so that nobody takes half an answer for a whole one.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from ozymandias.edge.answers import answer
from ozymandias.edge.framing import Request
from ozymandias.edge.limits import LINGER_SECONDS
from ozymandias.edge.traffic import now
from ozymandias.edge.upstreams import Backend
from ozymandias.problems import (
    REQUEST_TIMEOUT,
    UPSTREAM_FAILED,
    UPSTREAM_TIMEOUT,
    Kind,
    Problem,
)

if TYPE_CHECKING:
    from ozymandias.edge.http import Ingress
    from ozymandias.edge.responses import UpstreamConnection


# What a connection is about. Plain numbers: looking up a member of an Enum costs more than a dict
# does, and these are looked at several times for each request.
HEAD = 0  # waiting for a request
REQUEST = 1  # one is with an instance, or on its way there; no byte of the answer yet
RESPONSE = 2  # its answer is coming
TUNNEL = 3
LINGER = 4  # answered for good: reading on only so that the answer is not lost
CLOSED = 5


class EndingConnection(asyncio.Protocol):
    __slots__ = (
        "_backend",
        "_buffer",
        "_is_held",
        "_keep",
        "_limit",
        "_started",
        "_state",
        "_status",
        "address",
        "deadline",
        "has_sent_all",
        "ingress",
        "request",
        "send",
        "transport",
        "upstream",
    )

    def __init__(self, ingress: "Ingress") -> None:
        self.ingress = ingress
        self.transport: asyncio.Transport
        self.send: Callable[[bytes], None]
        self.address = ""
        self.deadline = 0.0  # on ingress.now; then the ingress's sweep calls `expired`
        self.upstream: UpstreamConnection | None = None
        self.request: Request
        self.has_sent_all = True  # of the request's body
        self._state = HEAD
        self._buffer = b""  # bytes of the client not dealt with yet
        self._backend: Backend | None = None
        self._keep = True
        self._is_held = False  # not reading from the client
        self._limit = 0.0  # while an instance has the request: when it is too long
        self._status = 0  # of an answer that has begun
        self._started = 0.0  # when the request's head was read

    # Counting ------------------------------------------------------------------------------

    def _count(self, status: int) -> None:
        """An answer has ended, well or not."""
        seconds = now() - self._started
        backend = self._backend
        if backend is not None:
            backend.traffic.count(status, seconds)
        log = self.ingress.access_log
        if log is not None:
            request = self.request
            log.add(
                client=self.address,
                method=request.method,
                host=request.host,
                target=request.target,
                status=status,
                seconds=seconds,
                job=backend.route.job if backend is not None else None,
            )

    # Reading or not ------------------------------------------------------------------------

    def hold_reading(self) -> None:
        if not self._is_held and not self.transport.is_closing():
            self._is_held = True
            self.transport.pause_reading()
            if self._state == REQUEST and self.upstream is not None:
                self._allow(self.ingress.limits.response_seconds)

    def release_reading(self) -> None:
        if self._is_held and not self.transport.is_closing():
            self._is_held = False
            self.transport.resume_reading()
            if self._state == REQUEST and not self.has_sent_all:
                self._allow(self.ingress.limits.body_seconds)

    # Ends ----------------------------------------------------------------------------------

    def will_keep_alive(self) -> bool:
        """Decided when the response's head is sent: a body not read by then ends the connection."""
        return self._keep and self.has_sent_all and not self.ingress.is_draining

    def expired(self) -> None:
        """The deadline has passed."""
        state = self._state
        if state == HEAD and self._buffer:
            self._finish_with(REQUEST_TIMEOUT("The head of the request did not come in time."))
        elif state in (HEAD, LINGER):
            self._close()
        elif self.upstream is not None and self.ingress.now < self._limit:
            if seconds := self.upstream.look():
                self.deadline = min(self._limit, self.ingress.now + seconds)
        elif state == REQUEST:
            self._request_expired()
        else:
            if self.upstream is not None:
                self.upstream.drop()
            self.transport.abort()

    def _allow(self, seconds: float) -> None:
        """The instance has that long from now on. A look at it is due no later than before."""
        self._limit = limit = self.ingress.now + seconds
        if limit < self.deadline:
            self.deadline = limit

    def touch_stream(self) -> None:
        """Something moves in a response's body or a tunnel: it may go on."""
        limits = self.ingress.limits
        is_tunnel = self._state == TUNNEL
        self._allow(limits.tunnel_idle_seconds if is_tunnel else limits.stream_idle_seconds)

    def _request_expired(self) -> None:
        waits_for_client = not self.has_sent_all and not self._is_held
        if self.upstream is not None:
            self.upstream.drop()
        if waits_for_client:
            self._finish_with(REQUEST_TIMEOUT("The body of the request did not come in time."))
        else:
            self.upstream_failed("did not answer in time", kind=UPSTREAM_TIMEOUT)

    def upstream_failed(self, reason: str, kind: Kind = UPSTREAM_FAILED) -> None:
        assert self._backend is not None
        job = self._backend.route.job
        self._finish_with(kind(f"An instance of {job} {reason}.", job=str(job)))

    def _fail(self, problem: Problem) -> None:
        """After the upstream was dropped: an answer if none has begun, else a broken end."""
        if self._state == REQUEST:
            self._finish_with(problem)
        else:
            self.transport.abort()

    def _finish_with(self, problem: Problem) -> None:
        """Our own answer. The connection stays only if there is no doubt where we are in it."""
        was_request = self._state == REQUEST
        request = self.request if was_request else None
        keep = request is not None and self.will_keep_alive()
        self._keep = keep
        self.ingress.own_answers[problem.kind.status] += 1
        if was_request:
            self._count(problem.kind.status)
        self.send(
            answer(
                problem,
                keep_alive=keep,
                is_head=request is not None and request.is_head,
                minor=request.minor if request is not None else 1,
            )
        )
        if keep:
            self._next()
        else:
            self._close_gently()

    def _next(self) -> None:
        """Ready for the client's next request, which may have come already."""
        self._state = HEAD
        self.deadline = self.ingress.now + self.ingress.limits.idle_seconds
        if self._is_held:
            self.release_reading()
        if self._buffer:
            self.ingress.loop.call_soon(self._next_request)

    @abstractmethod
    def _next_request(self) -> None:
        """Take up what has come already: how a request is read, who extends this knows."""

    def response_broken(self) -> None:
        """The client must see that it got only a part, so the end is never a proper one."""
        if self.request.minor:
            self._close()
        else:
            self.transport.abort()

    def _close_gently(self) -> None:
        """Closing with unread bytes would reset the connection and lose the answer."""
        if self.has_sent_all and self._state != HEAD:
            self._close()
            return
        self._state = LINGER
        self._buffer = b""
        self.deadline = self.ingress.now + LINGER_SECONDS
        self.release_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def drain(self) -> None:
        """No further request after the present one."""
        self._keep = False
        if self._state == HEAD and not self._buffer:
            self._close()

    def _close(self) -> None:
        self._state = CLOSED
        self.deadline = self.ingress.now + self.ingress.limits.stall_seconds
        self.transport.close()
