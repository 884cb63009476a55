"""One connection to an instance: sends a request, reads its response, is kept for the next.

It belongs to one client connection at a time. Bodies are passed on as they come; when the client
does not read, this side stops reading too. What the instance sends is checked as strictly as what
clients send: a response with two readings becomes a 502, one that breaks off stays broken.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ozymandias.edge.chunks import LAST_CHUNK, ChunkedReader, chunk
from ozymandias.edge.framing import (
    CHUNKED,
    UNTIL_CLOSE,
    Response,
    parse_response,
    response_head,
)
from ozymandias.edge.headers import Malformed
from ozymandias.edge.limits import (
    LOOK_AGAIN_SECONDS,
    LOOK_SECONDS,
    REPEATS,
    RESPONSE_HEAD_BYTES_MAX,
)
from ozymandias.edge.liveness import is_loss_of_host, probe, unanswered
from ozymandias.edge.quick import quick_response
from ozymandias.edge.upstreams import Pool
from ozymandias.problems import UPSTREAM_FAILED

if TYPE_CHECKING:
    from ozymandias.edge.clients import ClientConnection

BODILESS = (204, 304)

# What is read next.
HEAD, LENGTH, CHUNKS, CLOSE, TUNNEL = range(5)


class UpstreamConnection(asyncio.Protocol):
    __slots__ = (
        "_buffer",
        "_chunks",
        "_left",
        "_reading",
        "_rechunk",
        "_response",
        "client",
        "idle_since",
        "is_held",
        "is_open",
        "is_reused",
        "pool",
        "send",
        "transport",
    )

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport
        self.send: Callable[[bytes], None]
        self.client: ClientConnection | None = None
        self.idle_since = 0.0
        self.is_open = False
        self.is_held = False  # not reading, as the client does not
        self.is_reused = False
        self._reading = HEAD
        self._buffer = b""
        self._left = 0
        self._chunks: ChunkedReader | None = None
        self._rechunk = False  # the client gets the body in chunks
        self._response: Response | None = None

    # What the transport tells --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send = self.transport.write
        self.is_open = True
        probe(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(error)

    def _lost(self, error: Exception | None) -> None:
        self.is_open = False
        client = self.client
        has_vanished = is_loss_of_host(error)
        if has_vanished:
            self.pool.vanished(asyncio.get_running_loop().time())
        if client is None:
            self.pool.forget(self)
            return
        if self._reading == CLOSE and error is None:
            if self._rechunk:
                client.send(LAST_CHUNK)
            self._complete(reusable=False)
        elif self._reading == TUNNEL:
            self._detach()
            client.tunnel_ended()
        elif self._reading == HEAD and not self._buffer and self._response is None:
            self._detach()
            client.upstream_gone(self.pool, was_reused=self.is_reused, has_vanished=has_vanished)
        elif self._reading == HEAD:
            self._detach()
            client.upstream_failed("closed the connection in the middle of its answer")
        else:
            self._detach()
            client.response_broken()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.client is not None:
            self.client.hold_reading()

    def resume_writing(self) -> None:
        if self.client is not None:
            self.client.release_reading()

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            self.pool.forget(self)  # nobody asked: this connection can't be trusted any more
            self.transport.abort()
            return
        reading = self._reading
        if reading == HEAD:
            try:
                self._read_head(client, data)
            except Malformed as error:
                self._refuse(client, f"sent a malformed answer: {error.reason}")
            return
        client.touch_stream()
        if reading == LENGTH:
            self._pass_length(client, data)
        elif reading == CHUNKS:
            self._pass_chunks(client, data)
        elif reading == CLOSE:
            client.send(chunk(data) if self._rechunk else data)
        else:
            client.send(data)

    def look(self) -> float:
        """In how many seconds to look again; 0: the host is gone, and with it the connection."""
        if not self.is_open or self.transport.is_closing():
            return LOOK_SECONDS
        count = unanswered(self.transport)
        if count < REPEATS:
            return LOOK_AGAIN_SECONDS if count else LOOK_SECONDS
        self._lost(TimeoutError(errno.ETIMEDOUT, "nothing is acknowledged"))
        self.transport.abort()
        return 0.0

    # One request and its response ----------------------------------------------------------

    def begin(self, client: "ClientConnection") -> None:
        self.client = client
        self._reading = HEAD
        self._response = None
        self._buffer = b""

    def _read_head(self, client: "ClientConnection", data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        # The client's connection remembers the last: of those there are fewer in use at a time, so
        # that it is still in the processor's cache.
        head = client.last_answer_head
        if head and data.startswith(head):
            response = client.last_answer
            end = len(head)
        else:
            found = quick_response(data) or self._closer_look(data)
            if found is None:
                return
            response, end = found
            client.last_answer_head = data[:end]
            client.last_answer = response
        if response.status < 200:
            self._response = response
            self._interim(client, response, data[end:])
        else:
            self._final(client, response, data[end:])

    def _closer_look(self, data: bytes) -> tuple[Response, int] | None:
        """None: there is no whole head yet."""
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            return parse_response(data[:end]), end + 4
        if len(data) > RESPONSE_HEAD_BYTES_MAX:
            raise Malformed("its head is too large")
        self._buffer = data
        return None

    def _interim(self, client: "ClientConnection", response: Response, rest: bytes) -> None:
        if response.status == 101:
            if not client.wants_upgrade:
                raise Malformed("it switched protocols unasked")
            self._reading = TUNNEL
            client.tunnel_began(response)
            if rest:
                client.send(rest)
            return
        self._response = None
        client.interim(response)
        if rest:
            self._read_head(client, rest)

    def _final(self, client: "ClientConnection", response: Response, rest: bytes) -> None:
        length = response.length
        if (
            length == len(rest)
            and client.request.minor
            and not client.request.is_head
            and response.status not in BODILESS
            and client.will_keep_alive()
        ):
            # The usual case: all of it came at once, and both connections stay.
            client.send(response.plain + rest)
            self.client = None
            self.pool.outstanding -= 1
            client.upstream = None
            if self.is_held:
                self.release()
            self._give_back(client, response)
            client.answered(response.status)
            return
        self._response = response
        if client.request.is_head or response.status in BODILESS:
            # The length is the one that the body would have; a chunked one would be a promise.
            shown = length if length >= 0 and response.status != 204 else UNTIL_CLOSE
            keep = client.will_keep_alive()
            head = response_head(response, shown, keep, client.request.minor)
            client.begin_response(response.status, keep)
            client.send(head)
            self._complete(reusable=not rest)
            return
        if length >= 0:
            keep = client.will_keep_alive()
            if keep and client.request.minor:
                head = response.plain
            else:
                head = response_head(response, length, keep, client.request.minor)
            client.begin_response(response.status, keep)
            if len(rest) == length:
                client.send(head + rest)
                self._complete(reusable=True)
                return
            self._reading = LENGTH
            self._left = length
            client.send(head)
            if rest:
                self._pass_length(client, rest)
            return
        self._begin_unsized(client, response, rest)

    def _begin_unsized(self, client: "ClientConnection", response: Response, rest: bytes) -> None:
        """Chunked, or until the connection's end: to an HTTP/1.0 client always the latter."""
        minor = client.request.minor
        self._rechunk = minor == 1
        keep = client.will_keep_alive() and self._rechunk
        length = CHUNKED if self._rechunk else UNTIL_CLOSE
        client.begin_response(response.status, keep)
        client.send(response_head(response, length, keep, minor))
        if response.length == CHUNKED:
            self._reading = CHUNKS
            self._chunks = ChunkedReader()
            if rest:
                self._pass_chunks(client, rest)
        else:
            self._reading = CLOSE
            if rest:
                client.send(chunk(rest) if self._rechunk else rest)

    def _pass_length(self, client: "ClientConnection", data: bytes) -> None:
        self._left -= len(data)
        if self._left > 0:
            client.send(data)
        elif self._left == 0:
            client.send(data)
            self._complete(reusable=True)
        else:
            client.send(data[: self._left])
            self._complete(reusable=False)

    def _pass_chunks(self, client: "ClientConnection", data: bytes) -> None:
        reader = self._chunks
        assert reader is not None
        try:
            body = reader.feed(data)
        except Malformed:
            self._detach()
            self.transport.abort()
            client.response_broken()
            return
        if self._rechunk:
            out = chunk(body) if body else b""
            if reader.is_done:
                out += LAST_CHUNK
        else:
            out = body
        if out:
            client.send(out)
        if reader.is_done:
            self._complete(reusable=not reader.rest)

    def _refuse(self, client: "ClientConnection", reason: str) -> None:
        self._detach()
        self.transport.abort()
        client.upstream_failed(reason, kind=UPSTREAM_FAILED)

    def _complete(self, *, reusable: bool) -> None:
        client = self.client
        response = self._response
        assert client is not None and response is not None
        self._detach()
        if reusable and client.has_sent_all:
            self._give_back(client, response)
        else:
            self.close()
        client.response_done()

    def _give_back(self, client: "ClientConnection", response: Response) -> None:
        """Kept for the next request, if nothing speaks against it."""
        if (
            response.keep_alive
            and self.is_open
            and not self.transport.is_closing()
            and self.pool.give_back(self, client.ingress.now)
        ):
            self.is_reused = True
        else:
            self.close()

    def _detach(self) -> None:
        """From here on the client connection knows nothing of this one."""
        client = self.client
        if client is not None:
            self.client = None
            self.pool.outstanding -= 1
            client.upstream = None
            if self.is_held:
                self.release()

    def hold(self) -> None:
        if self.is_open and not self.is_held and not self.transport.is_closing():
            self.is_held = True
            self.transport.pause_reading()

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            if self.is_open and not self.transport.is_closing():
                self.transport.resume_reading()

    def drop(self) -> None:
        """The client is gone or gave up: what the instance is doing is of no use any more."""
        self._detach()
        if self.is_open:
            self.transport.abort()

    def close(self) -> None:
        if self.is_open:
            self.transport.close()
