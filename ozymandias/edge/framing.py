"""Heads of requests and responses: bytes in, one meaning out, and bytes again.

What has two readings is refused (request smuggling lives on them): see the corpus in the tests.
What goes on to the other side is never the bytes that came but a new head made from what was
understood. Knows nothing of sockets.
"""

from ozymandias.edge.headers import (
    CONNECTION,
    ENCODING,
    EXPECT,
    FORWARDED,
    HOST,
    LENGTH,
    REQUEST_LINES,
    RESPONSE_LINES,
    TOKEN_BYTES,
    UPGRADE,
    Malformed,
    Special,
    body_length,
    normal_host,
    without_named,
)
from ozymandias.edge.limits import Limits
from ozymandias.problems import HEADER_TOO_LARGE, METHOD_NOT_ALLOWED

CHUNKED = -1  # as a length
UNTIL_CLOSE = -2

IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})
METHODS = IDEMPOTENT | {b"POST", b"PATCH"}
REFUSED_METHODS = frozenset({b"CONNECT", b"TRACE"})
METHOD_BYTES_MAX = 32
REASON_BYTES_MAX = 128
CONNECTION_WORDS = frozenset({b"close", b"keep-alive", b"upgrade"})


class Request:
    """A request's head. Not frozen and not a dataclass: one is made for each request."""

    __slots__ = (
        "expects_continue",
        "forwarded",
        "host",
        "host_sent",
        "is_head",
        "is_replayable",
        "keep_alive",
        "kept",
        "length",
        "method",
        "minor",
        "path",
        "target",
        "upgrade",
        "wire",
    )

    def __init__(self, method: bytes, target: bytes, minor: int) -> None:
        self.method = method
        self.target = target  # as sent on: origin form, or *
        self.path = b"/"
        self.minor = minor  # of HTTP/1.x
        self.host = b""  # as routes have it
        self.host_sent = b""
        self.length = 0  # of the body; or CHUNKED
        self.keep_alive = minor == 1
        self.upgrade = b""
        self.expects_continue = False
        self.forwarded: tuple[Special, ...] = ()
        self.kept = b""  # header lines that go on as they are
        self.is_head = method == b"HEAD"
        self.is_replayable = method in IDEMPOTENT
        self.wire = b""  # the head as sent on; filled in by the connection it came over


def parse_request(head: bytes, limits: Limits) -> Request:
    """``head`` ends before the empty line. Raises Malformed."""
    lines = head.split(b"\r\n")
    if len(lines) > limits.head_lines_max + 1:
        raise Malformed(f"more than {limits.head_lines_max} header lines", HEADER_TOO_LARGE)
    request, authority = _request_line(lines[0])
    known = REQUEST_LINES.known.get
    kept: list[bytes] = []
    specials: list[Special] = []
    for raw in lines[1:]:
        line = known(raw)
        if line is None:
            line = REQUEST_LINES.read(raw)
        if line.__class__ is bytes:
            kept.append(line)
        else:
            specials.append(line)  # type: ignore[arg-type]
    named = _apply(request, specials)
    if authority and authority.lower() != request.host_sent.lower():
        raise Malformed("the request's target and its Host header name different hosts")
    if request.minor == 1 and not request.host:
        raise Malformed("the Host header is missing")
    if named:
        kept = without_named(kept, named)
    request.kept = b"".join(kept)
    if request.length:
        request.is_replayable = False
        request.upgrade = b""
    elif request.upgrade:
        request.is_replayable = False
    return request


def _request_line(line: bytes) -> tuple[Request, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise Malformed("the request line is not METHOD TARGET VERSION")
    method, target, version = parts
    if version == b"HTTP/1.1":
        minor = 1
    elif version == b"HTTP/1.0":
        minor = 0
    else:
        raise Malformed("the version is neither HTTP/1.1 nor HTTP/1.0")
    if method not in METHODS:
        if not method or len(method) > METHOD_BYTES_MAX or method.translate(None, TOKEN_BYTES):
            raise Malformed("the method is not a word")
        if method in REFUSED_METHODS:
            raise Malformed(f"{method.decode()} is not allowed here", METHOD_NOT_ALLOWED)
    if not target.isascii() or not target.decode("ascii").isprintable() or b"#" in target:
        raise Malformed("the target has a character that is not allowed there")
    authority = b""
    if not target.startswith(b"/") and (target != b"*" or method != b"OPTIONS"):
        target, authority = _absolute(target)
    request = Request(method, target, minor)
    if target != b"*":
        request.path = target.partition(b"?")[0]
    return request, authority


def _absolute(target: bytes) -> tuple[bytes, bytes]:
    """``http://host/path`` -> ``/path`` and ``host``, which must be the Host header's."""
    if target[:7].lower() != b"http://":
        raise Malformed("the target is neither a path nor an http address")
    rest = target[7:]
    ends = [i for i in (rest.find(b"/"), rest.find(b"?")) if i >= 0]
    end = min(ends) if ends else len(rest)
    authority, path = rest[:end], rest[end:]
    normal_host(authority)
    return (path if path.startswith(b"/") else b"/" + path), authority


def _apply(request: Request, specials: list[Special]) -> frozenset[bytes]:
    """Take in the special lines; the names of headers that Connection names."""
    connection: frozenset[bytes] = frozenset()
    lengths: list[bytes] = []
    encodings: list[bytes] = []
    upgrade = b""
    for line in specials:
        role = line.role
        if role == HOST:
            if request.host:
                raise Malformed("there are two Host headers")
            request.host = line.host
            request.host_sent = line.value
        elif role == CONNECTION:
            connection |= line.tokens
        elif role == LENGTH:
            lengths.append(line.value)
        elif role == ENCODING:
            encodings.append(line.value)
        elif role == UPGRADE:
            if upgrade:
                raise Malformed("there are two Upgrade headers")
            upgrade = line.value
        elif role == FORWARDED:
            request.forwarded += (line,)
        elif role == EXPECT:
            if line.value.lower() != b"100-continue":
                raise Malformed("the Expect header asks for something unknown")
            request.expects_continue = request.minor == 1
    if lengths or encodings:
        if encodings and request.minor == 0:
            raise Malformed("HTTP/1.0 has no Transfer-Encoding")
        request.length = _framing(lengths, encodings)
    if connection:
        request.keep_alive = b"close" not in connection and (
            request.minor == 1 or b"keep-alive" in connection
        )
        # h2c would let the client speak past us to whatever else the instance serves.
        if b"upgrade" in connection and request.minor == 1 and upgrade.lower() != b"h2c":
            request.upgrade = upgrade
    return connection - CONNECTION_WORDS


def _framing(lengths: list[bytes], encodings: list[bytes]) -> int:
    if encodings:
        if lengths:
            raise Malformed("both Content-Length and Transfer-Encoding are given")
        if len(encodings) > 1 or encodings[0].lower() != b"chunked":
            raise Malformed("the Transfer-Encoding is not chunked alone")
        return CHUNKED
    if len(lengths) > 1:
        raise Malformed("Content-Length is given twice")
    return body_length(lengths[0])


def request_head(request: Request, address: bytes, is_trusted: bool) -> bytes:
    """The head as sent to the instance, for a request that came from ``address``."""
    forwarded_for = address
    proto = b"http"
    host = request.host_sent
    believed = b""
    if is_trusted:
        for line in request.forwarded:
            if line.name == b"x-forwarded-for":
                forwarded_for = line.value + b", " + address
            elif line.name == b"x-forwarded-proto":
                proto = line.value
            elif line.name == b"x-forwarded-host":
                host = line.value
            else:
                believed += line.name + b": " + line.value + b"\r\n"
    framing = b""
    if request.length > 0:
        framing = b"Content-Length: %d\r\n" % request.length
    elif request.length == CHUNKED:
        framing = b"Transfer-Encoding: chunked\r\n"
    elif request.method in (b"POST", b"PUT", b"PATCH"):
        framing = b"Content-Length: 0\r\n"
    if request.expects_continue and request.length:
        framing += b"Expect: 100-continue\r\n"
    if request.upgrade:
        framing += b"Connection: Upgrade\r\nUpgrade: " + request.upgrade + b"\r\n"
    return (
        b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b%bX-Forwarded-For: %b\r\n"
        b"X-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n\r\n"
    ) % (
        request.method,
        request.target,
        request.host_sent,
        request.kept,
        framing,
        believed,
        forwarded_for,
        proto,
        host,
    )


class Response:
    """A response's head, and the head that goes to the client in the usual case."""

    __slots__ = ("keep_alive", "kept", "length", "line", "plain", "status", "upgrade")

    def __init__(self, status: int, line: bytes) -> None:
        self.status = status
        self.line = line
        self.kept = b""
        self.length = UNTIL_CLOSE  # or CHUNKED, or a number
        self.keep_alive = True
        self.upgrade = b""
        self.plain = b""  # for an HTTP/1.1 client whose connection stays


def parse_response(head: bytes) -> Response:
    """``head`` ends before the empty line. Raises Malformed."""
    lines = head.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    code, _, reason = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit():
        raise Malformed("the status line is malformed")
    status = int(code)
    if status < 100 or not reason.isascii() or not reason.decode().isprintable():
        raise Malformed("the status line is malformed")
    line = b"HTTP/1.1 " + code + b" " + reason[:REASON_BYTES_MAX] + b"\r\n"
    response = Response(status, line)
    known = RESPONSE_LINES.known.get
    kept: list[bytes] = []
    lengths: list[bytes] = []
    encodings: list[bytes] = []
    connection: frozenset[bytes] = frozenset()
    for raw in lines[1:]:
        found = known(raw)
        if found is None:
            found = RESPONSE_LINES.read(raw)
        if isinstance(found, bytes):
            kept.append(found)
        elif found.role == LENGTH:
            lengths.append(found.value)
        elif found.role == ENCODING:
            encodings.append(found.value)
        elif found.role == CONNECTION:
            connection |= found.tokens
        elif found.role == UPGRADE:
            response.upgrade = found.value
    if lengths or encodings:
        response.length = _framing(lengths, encodings)
    response.keep_alive = b"close" not in connection and (
        version == b"HTTP/1.1" or b"keep-alive" in connection
    )
    if connection - CONNECTION_WORDS:
        kept = without_named(kept, connection - CONNECTION_WORDS)
    response.kept = b"".join(kept)
    response.plain = response_head(response, response.length, keep_alive=True, minor=1)
    return response


def response_head(response: Response, length: int, *, keep_alive: bool, minor: int) -> bytes:
    """The head as sent to the client, with the body framed as ``length`` says."""
    framing = b""
    if length >= 0:
        framing = b"Content-Length: %d\r\n" % length
    elif length == CHUNKED:
        framing = b"Transfer-Encoding: chunked\r\n"
    connection = b""
    if not keep_alive:
        connection = b"Connection: close\r\n"
    elif minor == 0:
        connection = b"Connection: keep-alive\r\n"
    return b"".join((response.line, response.kept, framing, connection, b"\r\n"))
