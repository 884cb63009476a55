"""Heads and chunks: every cut of the bytes gives the same meaning, and nothing but Malformed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ozymandias.edge.chunks import ChunkedReader, chunk
from ozymandias.edge.framing import CHUNKED, parse_request, parse_response, request_head
from ozymandias.edge.headers import KNOWN_LINES_MAX, REQUEST_LINES, Malformed
from ozymandias.edge.limits import Limits

LIMITS = Limits()


@given(st.binary(max_size=300))
def test_any_head(data: bytes):
    """Any bytes are a request, or Malformed; what is sent on then reads the same again."""
    try:
        request = parse_request(b"GET / HTTP/1.1\r\nHost: a\r\n" + data, LIMITS)
    except Malformed:
        return
    again = parse_request(request_head(request, b"1.2.3.4", False)[:-4], LIMITS)
    assert (again.method, again.target, again.host) == (b"GET", b"/", b"a")
    assert again.length == request.length


@given(st.binary(max_size=200))
def test_any_response(data: bytes):
    """Any bytes are a response, or Malformed."""
    try:
        parse_response(b"HTTP/1.1 200 OK\r\n" + data)
    except Malformed:
        pass


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6), st.data())
def test_chunks_in_any_pieces(bodies: list[bytes], data: st.DataObject):
    """However a chunked body is cut, the same bytes come out, and the rest is left alone."""
    wire = b"".join(chunk(body) for body in bodies) + b"0\r\nA: b\r\n\r\n"
    wire += b"GET /next"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    reader = ChunkedReader()
    out = rest = b""
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        if reader.is_done:
            rest += wire[start:end]
        else:
            out += reader.feed(wire[start:end])
            rest = reader.rest
    assert reader.is_done and out == b"".join(bodies) and rest == b"GET /next"


def test_many_small_chunks_are_linear():
    """A body of a hundred thousand chunks in one piece is read in one go."""
    reader = ChunkedReader()
    assert len(reader.feed(b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")) == 100_000
    assert reader.is_done


def test_known_lines_are_bounded_and_hold_no_secrets():
    """What is remembered of header lines stays small and has no credentials in it."""
    for number in range(KNOWN_LINES_MAX + 100):
        head = b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nCookie: s=%d" % number
        parse_request(head + b"\r\nX-Number: %d" % number, LIMITS)
    assert len(REQUEST_LINES.known) <= KNOWN_LINES_MAX
    assert not [line for line in REQUEST_LINES.known if b"Bearer" in line or b"Cookie" in line]


@pytest.mark.parametrize(
    ("head", "length", "keep_alive"),
    [
        (b"GET / HTTP/1.1", 0, True),
        (b"GET / HTTP/1.1\r\nConnection: close", 0, False),
        (b"GET / HTTP/1.0", 0, False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive", 0, True),
        (b"POST / HTTP/1.1\r\nContent-Length: 007", 7, True),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked", CHUNKED, True),
    ],
)
def test_framing_of_requests(head: bytes, length: int, keep_alive: bool):
    """Length and keep-alive follow from version and headers."""
    request = parse_request(head + b"\r\nHost: a", LIMITS)
    assert (request.length, request.keep_alive) == (length, keep_alive)


def test_upgrade_is_asked_for_whole():
    """Upgrade counts only with Connection, on HTTP/1.1, without a body, and never as h2c."""
    base = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket"
    assert parse_request(base, LIMITS).upgrade == b""
    assert parse_request(base + b"\r\nConnection: upgrade", LIMITS).upgrade == b"websocket"
    with_body = base + b"\r\nConnection: upgrade\r\nContent-Length: 1"
    assert parse_request(with_body, LIMITS).upgrade == b""
    h2c = base.replace(b"websocket", b"h2c") + b"\r\nConnection: upgrade"
    assert parse_request(h2c, LIMITS).upgrade == b""
