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
    TOKEN,
    UPGRADE,
    Malformed,
    Special,
    normal_host,
    only,
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


TARGET = only(bytes(range(0x21, 0x7F)).replace(b"#", b""))
STATUS_LINES_MAX = 256
# What we say of a client, up to the host that it asked for.
FORWARDED_LINES = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: "


class Request:
    """A request's head. Neither frozen nor a dataclass: one is made for each request.

    What most requests leave as it is lies in the class, as setting it would cost.
    """

    method: bytes
    target: bytes  # as sent on: origin form, or *
    minor: int = 1  # of HTTP/1.x
    host: bytes = b""  # as routes have it
    host_sent: bytes = b""
    length: int = 0  # of the body; or CHUNKED
    keep_alive: bool = True
    upgrade: bytes = b""
    expects_continue: bool = False
    forwarded: tuple[Special, ...] = ()
    kept: list[bytes]  # header lines that go on as they are
    is_head: bool = False
    is_replayable: bool = False
    wire: bytes = b""  # the head as sent on; filled in by the connection it came over


def parse_request(head: bytes, limits: Limits) -> Request:
    """``head`` ends before the empty line. Raises Malformed."""
    lines = head.split(b"\r\n")
    if len(lines) > limits.head_lines_max + 1:
        raise Malformed(f"more than {limits.head_lines_max} header lines", HEADER_TOO_LARGE)
    request = Request()
    authority = _request_line(request, lines.pop(0))
    known = REQUEST_LINES.known.get
    read = REQUEST_LINES.read
    kept: list[bytes] = []
    specials: list[Special] = []
    for raw in lines:
        line = known(raw) or read(raw)
        if line.__class__ is bytes:
            kept.append(line)
        elif line.role == HOST:  # type: ignore[union-attr]
            if request.host:
                raise Malformed("there are two Host headers")
            request.host = line.host  # type: ignore[union-attr]
            request.host_sent = line.value  # type: ignore[union-attr]
        elif not line.is_usual or not request.minor:  # type: ignore[union-attr]
            specials.append(line)  # type: ignore[arg-type]
    request.kept = kept
    if specials:
        named = _apply(request, specials)
        if named:
            request.kept = without_named(kept, named)
        if request.length or request.upgrade:
            request.is_replayable = False
    if authority and authority.lower() != request.host_sent.lower():
        raise Malformed("the request's target and its Host header name different hosts")
    if not request.host and request.minor == 1:
        raise Malformed("the Host header is missing")
    return request


def _request_line(request: Request, line: bytes) -> bytes:
    """Fills in what the line says; the authority of a target in absolute form."""
    parts = line.split(b" ")
    if len(parts) != 3:
        raise Malformed("the request line is not METHOD TARGET VERSION")
    method, target, version = parts
    if version != b"HTTP/1.1":
        if version != b"HTTP/1.0":
            raise Malformed("the version is neither HTTP/1.1 nor HTTP/1.0")
        request.minor = 0
        request.keep_alive = False
    if method in IDEMPOTENT:
        request.is_replayable = True
        request.is_head = method == b"HEAD"
    elif method not in METHODS:
        if not method or len(method) > METHOD_BYTES_MAX or method.translate(TOKEN) != method:
            raise Malformed("the method is not a word")
        if method in REFUSED_METHODS:
            raise Malformed(f"{method.decode()} is not allowed here", METHOD_NOT_ALLOWED)
    if target.translate(TARGET) != target:
        raise Malformed("the target has a character that is not allowed there")
    authority = b""
    if not target.startswith(b"/") and (target != b"*" or method != b"OPTIONS"):
        target, authority = _absolute(target)
    request.method = method
    request.target = target
    return authority


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
    lengths: list[int] = []
    encodings: list[bytes] = []
    upgrade = b""
    for line in specials:
        role = line.role
        if role == CONNECTION:
            connection |= line.tokens
        elif role == LENGTH:
            lengths.append(line.number)
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
        if (
            b"upgrade" in connection
            and request.minor == 1
            and not request.length
            and upgrade.lower() != b"h2c"
        ):
            request.upgrade = upgrade
    return connection - CONNECTION_WORDS


def _framing(lengths: list[int], encodings: list[bytes]) -> int:
    if encodings:
        if lengths:
            raise Malformed("both Content-Length and Transfer-Encoding are given")
        if len(encodings) > 1 or encodings[0].lower() != b"chunked":
            raise Malformed("the Transfer-Encoding is not chunked alone")
        return CHUNKED
    if len(lengths) > 1:
        raise Malformed("Content-Length is given twice")
    return lengths[0]


def request_head(request: Request, address: bytes, is_trusted: bool) -> bytes:
    """The head as sent to the instance, for a request that came from ``address``."""
    host = request.host_sent
    method = request.method
    lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (method, request.target, host), *request.kept]
    length = request.length
    if length > 0:
        lines.append(b"Content-Length: %d" % length)
    elif length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    elif method == b"POST" or method == b"PUT" or method == b"PATCH":
        lines.append(b"Content-Length: 0")
    if length and request.expects_continue:
        lines.append(b"Expect: 100-continue")
    if request.upgrade:
        lines.append(b"Connection: Upgrade\r\nUpgrade: " + request.upgrade)
    if is_trusted and request.forwarded:
        lines += _believed(request, address)
    else:
        lines.append(FORWARDED_LINES % address + host + b"\r\n\r\n")
    return b"\r\n".join(lines)


def _believed(request: Request, address: bytes) -> list[bytes]:
    """What a trusted proxy says of the origin, and that it was this proxy."""
    forwarded_for = address
    proto = b"http"
    host = request.host_sent
    others: list[bytes] = []
    for line in request.forwarded:
        if line.name == b"x-forwarded-for":
            forwarded_for = line.value + b", " + address
        elif line.name == b"x-forwarded-proto":
            proto = line.value
        elif line.name == b"x-forwarded-host":
            host = line.value
        else:
            others.append(line.name + b": " + line.value)
    return [
        *others,
        b"X-Forwarded-For: " + forwarded_for,
        b"X-Forwarded-Proto: " + proto,
        b"X-Forwarded-Host: " + host,
        b"",
        b"",
    ]


class Response:
    """A response's head, and the head that goes to the client in the usual case."""

    status: int
    length: int = UNTIL_CLOSE  # or CHUNKED, or a number
    keep_alive: bool = True
    upgrade: bytes = b""
    fixed: bytes  # the status line and the lines that go on as they are
    plain: bytes  # for an HTTP/1.1 client whose connection stays

    def fields(self, *more: bytes) -> bytes:
        """The whole head, with these lines added."""
        return self.fixed + b"\r\n".join((*more, b"", b""))


_status_lines: dict[bytes, tuple[int, bytes, bool]] = {}


def parse_response(head: bytes) -> Response:
    """``head`` ends before the empty line. Raises Malformed."""
    lines = head.split(b"\r\n")
    first = lines.pop(0)
    response = Response()
    response.status, sent, response.keep_alive = _status_lines.get(first) or _status_line(first)
    known = RESPONSE_LINES.known.get
    read = RESPONSE_LINES.read
    kept: list[bytes] = []
    specials: list[Special] = []
    for raw in lines:
        found = known(raw) or read(raw)
        if found.__class__ is bytes:
            kept.append(found)
        elif not found.is_usual or not response.keep_alive:  # type: ignore[union-attr]
            specials.append(found)  # type: ignore[arg-type]
    if len(specials) == 1 and specials[0].role == LENGTH:
        response.length = specials[0].number
    elif specials:
        named = _apply_response(response, specials)
        if named:
            kept = without_named(kept, named)
    response.fixed = b"\r\n".join((sent, *kept, b""))
    response.plain = response_head(response, response.length, True, 1)
    return response


def _status_line(line: bytes) -> tuple[int, bytes, bool]:
    """The status, the line as sent on, whether the connection stays if nothing is said of it."""
    version, _, rest = line.partition(b" ")
    code, _, reason = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit():
        raise Malformed("the status line is malformed")
    status = int(code)
    if status < 100 or not reason.isascii() or not reason.decode().isprintable():
        raise Malformed("the status line is malformed")
    sent = b"HTTP/1.1 " + code + b" " + reason[:REASON_BYTES_MAX]
    found = status, sent, version == b"HTTP/1.1"
    if len(line) <= REASON_BYTES_MAX:
        if len(_status_lines) >= STATUS_LINES_MAX:
            _status_lines.clear()
        _status_lines[line] = found
    return found


def _apply_response(response: Response, specials: list[Special]) -> frozenset[bytes]:
    """Take in the special lines; the names of headers that Connection names."""
    lengths: list[int] = []
    encodings: list[bytes] = []
    connection: frozenset[bytes] = frozenset()
    for found in specials:
        role = found.role
        if role == LENGTH:
            lengths.append(found.number)
        elif role == ENCODING:
            encodings.append(found.value)
        elif role == CONNECTION:
            connection = connection | found.tokens if connection else found.tokens
        elif role == UPGRADE:
            response.upgrade = found.value
    if lengths or encodings:
        response.length = _framing(lengths, encodings)
    if b"close" in connection:
        response.keep_alive = False
    elif b"keep-alive" in connection:
        response.keep_alive = True
    return connection - CONNECTION_WORDS


def response_head(response: Response, length: int, keep_alive: bool, minor: int) -> bytes:
    """The head as sent to the client, with the body framed as ``length`` says."""
    framing = end = b""
    if length >= 0:
        framing = b"Content-Length: %d\r\n" % length
    elif length == CHUNKED:
        framing = b"Transfer-Encoding: chunked\r\n"
    if not keep_alive:
        end = b"Connection: close\r\n"
    elif minor == 0:
        end = b"Connection: keep-alive\r\n"
    return b"%b%b%b\r\n" % (response.fixed, framing, end)
