"""One client's connection: reads a request, finds its instance, passes both ways, and again.

One request at a time, in order; later ones on the same connection wait their turn. The life of a
request is a handful of callbacks: nothing is awaited and no task is made unless a new connection to
an instance is needed. Whatever ends badly before the response began becomes a problem document;
afterwards the connection is closed so that nobody takes half an answer for a whole one.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from ozymandias.edge.answers import answer
from ozymandias.edge.bodies import RequestBody
from ozymandias.edge.framing import Request, Response, parse_request, request_head
from ozymandias.edge.headers import Malformed
from ozymandias.edge.limits import LINGER_SECONDS, PIPELINE_BYTES_MAX
from ozymandias.edge.upstreams import Backend, Pool
from ozymandias.problems import (
    HEADER_TOO_LARGE,
    HOST_UNKNOWN,
    NO_HEALTHY_INSTANCE,
    REQUEST_TIMEOUT,
    TOO_LARGE,
    UPSTREAM_FAILED,
    UPSTREAM_TIMEOUT,
    Kind,
    Problem,
    store_unavailable,
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


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_backend",
        "_body",
        "_buffer",
        "_forwarded_for",
        "_is_held",
        "_is_trusted",
        "_keep",
        "_last_head",
        "_last_request",
        "_progress",
        "_replayed",
        "_state",
        "_tried",
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
        self.address = ""
        self.deadline = 0.0  # on ingress.now; looked at by the ingress's sweep
        self.upstream: UpstreamConnection | None = None
        self.request: Request
        self.has_sent_all = True  # of the request's body
        self._state = HEAD
        self._buffer = b""  # bytes of the client not dealt with yet
        self._backend: Backend | None = None
        self._tried: tuple[Pool, ...] = ()
        self._replayed = False
        self._body: RequestBody | None = None
        self._progress = 0
        self._keep = True
        self._is_held = False  # not reading from the client
        self._is_trusted = False
        self._forwarded_for = b""
        self._last_head = b""
        self._last_request: Request | None = None

    # What the transport tells --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send = self.transport.write
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "unknown"
        self._is_trusted = self.ingress.is_trusted(self.address)
        self._forwarded_for = self.address.encode()
        self.deadline = self.ingress.now + self.ingress.limits.head_seconds
        refusal = self.ingress.admit(self)
        if refusal is not None:
            self.send(answer(refusal, keep_alive=False))
            self._close()

    def connection_lost(self, error: Exception | None) -> None:
        self._state = CLOSED
        self.ingress.dismiss(self)
        if self.upstream is not None:
            self.upstream.drop()

    def eof_received(self) -> bool:
        if self.upstream is not None:
            self.upstream.drop()
        return False

    def pause_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.hold()
        self.deadline = self.ingress.now + self.ingress.limits.stall_seconds

    def resume_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.release()
        if self._state == TUNNEL:
            self.deadline = self.ingress.now + self.ingress.limits.tunnel_idle_seconds
        elif self._state == RESPONSE:
            self.deadline = self.ingress.now + self.ingress.limits.stream_idle_seconds

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == HEAD:
            self._read_head(data)
        elif state == TUNNEL:
            self.deadline = self.ingress.now + self.ingress.limits.tunnel_idle_seconds
            if self.upstream is not None:
                self.upstream.transport.write(data)
        elif state in (LINGER, CLOSED):
            return
        elif self.upstream is not None and not self.has_sent_all:
            self._pass_body(data)
        else:
            # A later request, or a body whose instance is still being connected to.
            self._buffer += data
            if len(self._buffer) > PIPELINE_BYTES_MAX:
                self.hold_reading()

    # Reading a request ---------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        if data == self._last_head and not self._buffer and self._last_request is not None:
            self._start(self._last_request, b"")
            return
        searched = 0
        if self._buffer:
            searched = max(0, len(self._buffer) - 3)
            data = self._buffer + data
        else:
            self.deadline = self.ingress.now + self.ingress.limits.head_seconds
        end = data.find(b"\r\n\r\n", searched)
        try:
            if end < 0 or end > self.ingress.limits.head_bytes_max:
                self._wait_for_head(data, end)
                return
            start = 2 if data.startswith(b"\r\n") else 0  # RFC 9112 2.2 forgives one empty line
            request = parse_request(data[start:end], self.ingress.limits)
            request.wire = request_head(request, self._forwarded_for, self._is_trusted)
        except Malformed as error:
            self._finish_with(error.kind(f"Refused: {error.reason}."))
            return
        self._last_head = data if end + 4 == len(data) else data[: end + 4]
        self._last_request = request
        self._start(request, data[end + 4 :])

    def _wait_for_head(self, data: bytes, end: int) -> None:
        limit = self.ingress.limits.head_bytes_max
        if end > limit or len(data) > limit:
            raise Malformed(f"the head is larger than {limit} bytes", HEADER_TOO_LARGE)
        if data.count(b"\n") != data.count(b"\r\n"):
            raise Malformed("a line does not end in CR LF")
        self._buffer = data

    def _start(self, request: Request, rest: bytes) -> None:
        ingress = self.ingress
        self.request = request
        self._buffer = rest
        self._state = REQUEST
        self._keep = request.keep_alive
        self.has_sent_all = not request.length
        table = ingress.table
        if table is None:
            self._finish_with(store_unavailable("the routes have not been read yet"))
            return
        backend = table.find(request.host, request.path)
        if backend is None:
            shown = request.host.decode("ascii", "replace")
            self._finish_with(HOST_UNKNOWN(f"No job answers for {shown} here.", host=shown))
            return
        limit = ingress.limits.body_bytes_max
        if limit and request.length > limit:
            self._finish_with(TOO_LARGE(f"A body may have {limit} bytes at most."))
            return
        self._backend = backend
        self._tried = ()
        self._replayed = False
        self._dispatch()

    # Finding an instance -------------------------------------------------------------------

    def _dispatch(self) -> None:
        backend = self._backend
        assert backend is not None
        ingress = self.ingress
        pool = backend.choose(ingress.now, self._tried)
        if pool is None:
            self._no_instance(backend)
            return
        pool.outstanding += 1
        connection = None
        if not self._replayed:
            connection = pool.take(ingress.now, replayable=self.request.is_replayable)
        if connection is not None:
            self.attach(connection)
        else:
            self.deadline = ingress.now + 2 * ingress.limits.connect_seconds + 1.0
            ingress.connect(pool, self)

    def _no_instance(self, backend: Backend) -> None:
        job = backend.route.job
        if self._tried:
            detail = f"No instance of {job} takes connections at the moment."
            self._finish_with(UPSTREAM_FAILED(detail, job=str(job)))
        else:
            detail = f"{job} has no healthy instance at the moment."
            self._finish_with(NO_HEALTHY_INSTANCE(detail, job=str(job)))

    @property
    def is_waiting(self) -> bool:
        """Still wants the connection that is being made for it."""
        return self._state == REQUEST and self.upstream is None

    def connect_failed(self, pool: Pool) -> None:
        """The request has reached nobody: it may go elsewhere, whatever it is."""
        self._tried += (pool,)
        if len(self._tried) >= self.ingress.limits.connect_attempts_max:
            assert self._backend is not None
            self._no_instance(self._backend)
        else:
            self._dispatch_again()

    def _dispatch_again(self) -> None:
        """By the newest table: what just failed may have left it."""
        table = self.ingress.table
        backend = table.find(self.request.host, self.request.path) if table else None
        self._backend = backend or self._backend
        self._dispatch()

    def attach(self, connection: "UpstreamConnection") -> None:
        """An open connection, whose pool counts this request already."""
        self.upstream = connection
        connection.begin(self)
        connection.transport.write(self.request.wire)
        if self.has_sent_all:
            self.deadline = self.ingress.now + self.ingress.limits.response_seconds
            return
        self._progress = 0
        self._body = RequestBody(self.request.length, self.ingress.limits.body_bytes_max)
        self.deadline = self.ingress.now + self.ingress.limits.body_seconds
        self.release_reading()
        if self._buffer:
            data, self._buffer = self._buffer, b""
            self._pass_body(data)

    def upstream_gone(self, pool: Pool, *, was_reused: bool) -> None:
        """Closed without a byte of an answer: a kept connection may just have ended meanwhile."""
        if was_reused and self.request.is_replayable and not self._replayed:
            self._replayed = True
            if self._backend is not None and len(self._backend.pools) > 1:
                self._tried += (pool,)
            self._dispatch_again()
        else:
            self.upstream_failed("closed the connection without an answer")

    def upstream_failed(self, reason: str, kind: Kind = UPSTREAM_FAILED) -> None:
        assert self._backend is not None
        job = self._backend.route.job
        self._finish_with(kind(f"An instance of {job} {reason}.", job=str(job)))

    # Passing the request's body ------------------------------------------------------------

    def _pass_body(self, data: bytes) -> None:
        upstream, body = self.upstream, self._body
        assert upstream is not None and body is not None
        self._progress += len(data)
        if self._progress >= self.ingress.limits.body_progress_bytes:
            self._progress = 0
            if self._state == REQUEST:
                self.deadline = self.ingress.now + self.ingress.limits.body_seconds
        try:
            out = body.feed(data)
        except Malformed as error:
            upstream.drop()
            self._fail(error.kind(f"Refused: {error.reason}."))
            return
        if body.is_done:
            self._buffer = body.rest
            self._body_sent()
        if out:
            upstream.transport.write(out)

    def _body_sent(self) -> None:
        self.has_sent_all = True
        self._body = None
        if self._state == REQUEST:
            self.deadline = self.ingress.now + self.ingress.limits.response_seconds

    def hold_reading(self) -> None:
        if not self._is_held and not self.transport.is_closing():
            self._is_held = True
            self.transport.pause_reading()
            if self._state == REQUEST and self.upstream is not None:
                self.deadline = self.ingress.now + self.ingress.limits.response_seconds

    def release_reading(self) -> None:
        if self._is_held and not self.transport.is_closing():
            self._is_held = False
            self.transport.resume_reading()
            if self._state == REQUEST and not self.has_sent_all:
                self.deadline = self.ingress.now + self.ingress.limits.body_seconds

    # Passing the response ------------------------------------------------------------------

    @property
    def wants_upgrade(self) -> bool:
        return bool(self.request.upgrade)

    def will_keep_alive(self) -> bool:
        """Decided when the response's head is sent: a body not read by then ends the connection."""
        return self._keep and self.has_sent_all and not self.ingress.is_draining

    def interim(self, response: Response) -> None:
        if self.request.minor:
            self.send(response.fields())

    def begin_response(self, status: int, keep: bool) -> None:
        self._state = RESPONSE
        self._keep = keep
        self._backend.by_class[min(status // 100, 5)] += 1  # type: ignore[union-attr]
        self.deadline = self.ingress.now + self.ingress.limits.stream_idle_seconds

    def touch_stream(self) -> None:
        self.deadline = self.ingress.now + self.ingress.limits.stream_idle_seconds

    def response_done(self) -> None:
        if not self._keep:
            self._close_gently()
            return
        self._state = HEAD
        self.deadline = self.ingress.now + self.ingress.limits.idle_seconds
        if self._is_held:
            self.release_reading()
        if self._buffer:
            self.ingress.loop.call_soon(self._next_request)

    def _next_request(self) -> None:
        if self._state == HEAD and self._buffer:
            data, self._buffer = self._buffer, b""
            self._read_head(data)

    def response_broken(self) -> None:
        """The client must see that it got only a part, so the end is never a proper one."""
        if self.request.minor:
            self._close()
        else:
            self.transport.abort()

    # Tunnels -------------------------------------------------------------------------------

    def tunnel_began(self, response: Response) -> None:
        self._state = TUNNEL
        self._backend.by_class[1] += 1  # type: ignore[union-attr]
        self.deadline = self.ingress.now + self.ingress.limits.tunnel_idle_seconds
        upgrade = response.upgrade or self.request.upgrade
        self.send(response.fields(b"Connection: Upgrade", b"Upgrade: " + upgrade))
        if self._buffer and self.upstream is not None:
            data, self._buffer = self._buffer, b""
            self.upstream.transport.write(data)
        self.release_reading()

    def tunnel_ended(self) -> None:
        self._close()

    # Ends ----------------------------------------------------------------------------------

    def expired(self) -> None:
        """The deadline has passed."""
        state = self._state
        if state == HEAD and self._buffer:
            self._finish_with(REQUEST_TIMEOUT("The head of the request did not come in time."))
        elif state in (HEAD, LINGER):
            self._close()
        elif state == REQUEST:
            self._request_expired()
        else:
            if self.upstream is not None:
                self.upstream.drop()
            self.transport.abort()

    def _request_expired(self) -> None:
        waits_for_client = not self.has_sent_all and not self._is_held
        if self.upstream is not None:
            self.upstream.drop()
        if waits_for_client:
            self._finish_with(REQUEST_TIMEOUT("The body of the request did not come in time."))
        else:
            self.upstream_failed("did not answer in time", kind=UPSTREAM_TIMEOUT)

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
        self.ingress.count_own(problem, self._backend if was_request else None)
        self.send(
            answer(
                problem,
                keep_alive=keep,
                is_head=request is not None and request.is_head,
                minor=request.minor if request is not None else 1,
            )
        )
        if keep:
            self.response_done()
        else:
            self._close_gently()

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
