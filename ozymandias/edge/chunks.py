"""The chunked transfer coding, read strictly (RFC 9112 section 7.1).

Whatever another server might read differently is refused: a bare line feed, a sign or prefix in
the size, spaces around it, data longer than announced. Extensions and trailers are read past and
not passed on. Work is linear in the bytes received, whatever the sizes of the pieces.
"""

from ozymandias.edge.headers import REQUEST_LINES, VALUE_BYTES, Malformed
from ozymandias.edge.limits import CHUNK_LINE_BYTES_MAX, TRAILER_BYTES_MAX

HEX_BYTES = b"0123456789abcdefABCDEF"
SIZE_DIGITS_MAX = 15


# What comes next; plain numbers, as an Enum's members are slow to look up.
SIZE, DATA, DATA_END, TRAILERS, NOTHING = range(5)


class ChunkedReader:
    """``feed`` takes what came and gives the body's bytes in it; then see is_done and rest."""

    __slots__ = ("_expect", "_left", "_line", "_trailer_bytes", "is_done", "rest")

    def __init__(self) -> None:
        self._expect = SIZE
        self._left = 0
        self._line = b""
        self._trailer_bytes = 0
        self.is_done = False
        self.rest = b""  # what came after the body's end

    def feed(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        position = 0
        if self._line:
            data = self._line + data
            self._line = b""
        size = len(data)
        while position < size and not self.is_done:
            if self._expect == DATA:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._expect = DATA_END
                continue
            end = data.find(b"\n", position)
            if end < 0:
                self._keep_line(data[position:])
                return b"".join(pieces)
            if end == position or data[end - 1] != 13:
                raise Malformed("a line of the chunked body does not end in CR LF")
            self._take_line(data[position : end - 1])
            position = end + 1
        self.rest = data[position:] if self.is_done else b""
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def _keep_line(self, line: bytes) -> None:
        if self._expect == DATA_END and line != b"\r":
            raise Malformed("a chunk is longer than its size")
        limit = TRAILER_BYTES_MAX if self._expect == TRAILERS else CHUNK_LINE_BYTES_MAX
        if len(line) > limit:
            raise Malformed("a line of the chunked body is too long")
        self._line = line

    def _take_line(self, line: bytes) -> None:
        if self._expect == SIZE:
            self._left = chunk_size(line)
            self._expect = DATA if self._left else TRAILERS
        elif self._expect == DATA_END:
            if line:
                raise Malformed("a chunk is longer than its size")
            self._expect = SIZE
        elif line:
            self._trailer_bytes += len(line) + 2
            if self._trailer_bytes > TRAILER_BYTES_MAX:
                raise Malformed("the trailers of the body are too large")
            REQUEST_LINES.read(line)  # it must be well formed, though it goes no further
        else:
            self._expect = NOTHING
            self.is_done = True


def chunk_size(line: bytes) -> int:
    if len(line) > CHUNK_LINE_BYTES_MAX:
        raise Malformed("a chunk's size line is too long")
    digits, semicolon, extension = line.partition(b";")
    if not digits or len(digits) > SIZE_DIGITS_MAX or digits.translate(None, HEX_BYTES):
        raise Malformed("a chunk's size is not a plain hexadecimal number")
    if semicolon and extension.translate(None, VALUE_BYTES):
        raise Malformed("a chunk's extension has a control character")
    return int(digits, 16)


def chunk(data: bytes) -> bytes:
    """One chunk of this data (which must not be empty: that would end the body)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
