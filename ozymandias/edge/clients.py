"""One client's connection: reads a request, finds its instance, passes both ways, and again.

One request at a time, in order; later ones on the same connection wait their turn. The life of a
request is a handful of callbacks: nothing is awaited and no task is made unless a new connection to
an instance is needed. How it ends otherwise than well is in `endings`.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from ozymandias.edge.answers import answer
from ozymandias.edge.bodies import RequestBody
from ozymandias.edge.endings import (
    CLOSED,
    HEAD,
    LINGER,
    REQUEST,
    RESPONSE,
    TUNNEL,
    EndingConnection,
)
from ozymandias.edge.framing import (
    FORWARDED_LINES,
    Request,
    Response,
    parse_request,
    request_head,
)
from ozymandias.edge.headers import Malformed
from ozymandias.edge.limits import LOOK_SECONDS, PIPELINE_BYTES_MAX
from ozymandias.edge.quick import quick_request
from ozymandias.edge.traffic import now
from ozymandias.edge.upstreams import Backend, Pool
from ozymandias.problems import (
    HEADER_TOO_LARGE,
    HOST_UNKNOWN,
    NO_HEALTHY_INSTANCE,
    TOO_LARGE,
    UPSTREAM_FAILED,
    store_unavailable,
)

if TYPE_CHECKING:
    from ozymandias.edge.http import Ingress
    from ozymandias.edge.responses import UpstreamConnection

VANISHED = "had the request when its host fell silent; whether it was carried out is not known"


class ClientConnection(EndingConnection):
    __slots__ = (
        "_body",
        "_forwarded",
        "_forwarded_for",
        "_is_trusted",
        "_last_head",
        "_last_request",
        "_progress",
        "_replayed",
        "_tried",
        "last_answer",
        "last_answer_head",
    )

    def __init__(self, ingress: "Ingress") -> None:
        super().__init__(ingress)
        self._tried: tuple[Pool, ...] = ()
        self._replayed = False
        self._body: RequestBody | None = None
        self._progress = 0
        self._is_trusted = False
        self._forwarded = b""
        self._forwarded_for = b""
        self._last_head = b""
        self._last_request: Request | None = None
        self.last_answer_head = b""
        self.last_answer: Response

    # What the transport tells --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send = self.transport.write
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "unknown"
        self._is_trusted = self.ingress.is_trusted(self.address)
        self._forwarded_for = self.address.encode()
        self._forwarded = FORWARDED_LINES % self._forwarded_for
        self.deadline = self.ingress.now + self.ingress.limits.head_seconds
        refusal = self.ingress.admit(self)
        if refusal is not None:
            self.send(answer(refusal, keep_alive=False))
            self._close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._status:
            self._count(self._status)  # broken off, or a tunnel's end
            self._status = 0
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
            self._allow(self.ingress.limits.stall_seconds)
        else:
            self.deadline = self.ingress.now + self.ingress.limits.stall_seconds

    def resume_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.release()
        if self._state in (RESPONSE, TUNNEL):
            self.touch_stream()

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == HEAD:
            if data == self._last_head and not self._buffer:
                assert self._last_request is not None
                self._start(self._last_request, b"")
            else:
                self._read_head(data)
        elif state == TUNNEL:
            self.touch_stream()
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
        limits = self.ingress.limits
        if not self._buffer and len(data) <= limits.head_bytes_max:
            found = quick_request(data, self._forwarded, limits.head_lines_max)
            if found is not None:
                self._take(data, *found)
                return
        searched = 0
        if self._buffer:
            searched = max(0, len(self._buffer) - 3)
            data = self._buffer + data
        end = data.find(b"\r\n\r\n", searched)
        try:
            if end < 0 or end > limits.head_bytes_max:
                self._wait_for_head(data, end)
                return
            start = 2 if data.startswith(b"\r\n") else 0  # RFC 9112 2.2 forgives one empty line
            request = parse_request(data[start:end], limits)
            request.wire = request_head(request, self._forwarded_for, self._is_trusted)
        except Malformed as error:
            self._finish_with(error.kind(f"Refused: {error.reason}."))
            return
        self._take(data, request, end + 4)

    def _take(self, data: bytes, request: Request, end: int) -> None:
        """The request that the first bytes are."""
        if end == len(data):
            self._last_head = data
            rest = b""
        else:
            self._last_head = data[:end]
            rest = data[end:]
        self._last_request = request
        self._start(request, rest)

    def _wait_for_head(self, data: bytes, end: int) -> None:
        limit = self.ingress.limits.head_bytes_max
        if end > limit or len(data) > limit:
            raise Malformed(f"the head is larger than {limit} bytes", HEADER_TOO_LARGE)
        if data.count(b"\n") != data.count(b"\r\n"):
            raise Malformed("a line does not end in CR LF")
        if not self._buffer:
            self.deadline = self.ingress.now + self.ingress.limits.head_seconds
        self._buffer = data

    def _start(self, request: Request, rest: bytes) -> None:
        ingress = self.ingress
        self._started = now()
        self.request = request
        self._buffer = rest
        self._state = REQUEST
        self._keep = request.keep_alive
        self.has_sent_all = not request.length
        self._backend = None
        table = ingress.table
        if table is None:
            self._finish_with(store_unavailable("the routes have not been read yet"))
            return
        self._backend = backend = table.find(request.host, request.target)
        if backend is None:
            shown = request.host.decode("ascii", "replace")
            self._finish_with(HOST_UNKNOWN(f"No job answers for {shown} here.", host=shown))
            return
        limit = ingress.limits.body_bytes_max
        if limit and request.length > limit:
            self._finish_with(TOO_LARGE(f"A body may have {limit} bytes at most."))
            return
        self._tried = ()
        self._replayed = False
        self._dispatch(backend)

    # Finding an instance -------------------------------------------------------------------

    def _dispatch(self, backend: Backend) -> None:
        ingress = self.ingress
        pool = backend.choose(ingress.now, self._tried)
        if pool is None:
            self._no_instance(backend)
            return
        pool.outstanding += 1
        connection = None
        if not self._replayed:
            connection = pool.take(ingress.now, self.request.is_replayable)
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
            self._backend = self._newest_backend()
            self._dispatch(self._backend)

    def _newest_backend(self) -> Backend:
        """By the newest table: what just failed may have left it."""
        table = self.ingress.table
        backend = table.find(self.request.host, self.request.target) if table else None
        backend = backend or self._backend
        assert backend is not None
        return backend

    def attach(self, connection: "UpstreamConnection") -> None:
        """An open connection, whose pool counts this request already."""
        self.upstream = connection
        connection.begin(self)
        connection.send(self.request.wire)
        limits = self.ingress.limits
        self.deadline = self.ingress.now + LOOK_SECONDS
        if self.has_sent_all:
            self._allow(limits.response_seconds)
            return
        self._progress = 0
        self._body = RequestBody(self.request.length, limits.body_bytes_max)
        self._allow(limits.body_seconds)
        self.release_reading()
        if self._buffer:
            data, self._buffer = self._buffer, b""
            self._pass_body(data)

    def upstream_gone(self, pool: Pool, *, was_reused: bool, has_vanished: bool) -> None:
        """Ended without a byte of an answer: once more, if that does no harm and may help.

        A kept connection may just have ended meanwhile; and a host that loses power ends new ones.
        """
        self._backend = backend = self._newest_backend()
        has_others = any(other is not pool for other in backend.pools)
        may_help = was_reused or has_others
        if may_help and self.request.is_replayable and not self._replayed:
            self._replayed = True
            if has_others:
                self._tried += (pool,)
            self._dispatch(backend)
        elif has_vanished:
            self.upstream_failed(VANISHED)
        else:
            self.upstream_failed("closed the connection without an answer")

    # Passing the request's body ------------------------------------------------------------

    def _pass_body(self, data: bytes) -> None:
        upstream, body = self.upstream, self._body
        assert upstream is not None and body is not None
        self._progress += len(data)
        if self._progress >= self.ingress.limits.body_progress_bytes:
            self._progress = 0
            if self._state == REQUEST:
                self._allow(self.ingress.limits.body_seconds)
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
            upstream.send(out)

    def _body_sent(self) -> None:
        self.has_sent_all = True
        self._body = None
        if self._state == REQUEST:
            self._allow(self.ingress.limits.response_seconds)

    # Passing the response ------------------------------------------------------------------

    @property
    def wants_upgrade(self) -> bool:
        return bool(self.request.upgrade)

    def interim(self, response: Response) -> None:
        if self.request.minor:
            self.send(response.fields())

    def begin_response(self, status: int, keep: bool) -> None:
        self._state = RESPONSE
        self._status = status
        self._keep = keep
        self.touch_stream()

    def response_done(self) -> None:
        self.answered(self._status)

    def answered(self, status: int) -> None:
        """The whole answer has been sent."""
        self._status = 0
        self._count(status)
        if self._keep:
            self._next()
        else:
            self._close_gently()

    def _next_request(self) -> None:
        if self._state == HEAD and self._buffer:
            data, self._buffer = self._buffer, b""
            self._read_head(data)

    # Tunnels -------------------------------------------------------------------------------

    def tunnel_began(self, response: Response) -> None:
        self._state = TUNNEL
        self._status = response.status
        self.touch_stream()
        upgrade = response.upgrade or self.request.upgrade
        self.send(response.fields(b"Connection: Upgrade", b"Upgrade: " + upgrade))
        if self._buffer and self.upstream is not None:
            data, self._buffer = self._buffer, b""
            self.upstream.send(data)
        self.release_reading()

    def tunnel_ended(self) -> None:
        self._close()
