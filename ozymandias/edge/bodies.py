"""A request's body on its way to an instance: framed anew, counted, and ended exactly.

The bytes that come after its end belong to the client's next request and are handed back.
"""

from ozymandias.edge.chunks import LAST_CHUNK, ChunkedReader, chunk
from ozymandias.edge.framing import CHUNKED
from ozymandias.edge.headers import Malformed
from ozymandias.problems import TOO_LARGE


class RequestBody:
    """``feed`` takes the client's bytes and gives the instance's; then see is_done and rest."""

    __slots__ = ("_chunks", "_count", "_left", "_limit", "is_done", "rest")

    def __init__(self, length: int, limit: int) -> None:
        self._chunks = ChunkedReader() if length == CHUNKED else None
        self._left = length
        self._limit = limit  # in bytes; 0: none. A length beyond it was refused with the head.
        self._count = 0
        self.is_done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Raises Malformed, also for a body beyond the limit."""
        if self._chunks is not None:
            return self._feed_chunks(self._chunks, data)
        left = self._left
        if len(data) > left:
            self.rest = data[left:]
            data = data[:left]
        self._left = left - len(data)
        self.is_done = not self._left
        return data

    def _feed_chunks(self, reader: ChunkedReader, data: bytes) -> bytes:
        body = reader.feed(data)
        self._count += len(body)
        if self._limit and self._count > self._limit:
            raise Malformed(f"the body is larger than {self._limit} bytes", TOO_LARGE)
        out = chunk(body) if body else b""
        if reader.is_done:
            self.is_done = True
            self.rest = reader.rest
            out += LAST_CHUNK
        return out
