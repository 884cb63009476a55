"""The usual heads, read by one match each: most requests and responses need no more.

A head matches only if every line is already spelled as it would be sent on, nothing in it frames a
body in an unusual way or steers the connection, and its host is plain. Whatever does not match is
read line by line by `framing`, which alone decides what is refused. Both read the same meaning and
make the same bytes of it: a test holds them against each other.

There is one way only to divide a head into what the expressions repeat, so that the time they take
grows with its bytes alone, whatever a stranger sends. (Possessive repetition would say so itself,
but Python had it wrong before 3.11.5.)
"""

import re

from ozymandias.edge.framing import Request, Response
from ozymandias.edge.headers import REQUEST_ROLES, RESPONSE_ROLES, TOKEN_BYTES

LINE_BYTES_MIN = 6  # "A: b" and its end
# RFC 9110's, without the underscore: some servers take it for a hyphen, so it needs a closer look.
NAME_BYTES = TOKEN_BYTES.replace(b"_", b"")
REST = rb"[%b]*: [\x21-\x7e\x80-\xff][\t\x20-\x7e\x80-\xff]*(?<![\t ])\r\n" % re.escape(NAME_BYTES)
KEEP_ALIVE = b"Connection: keep-alive\r\n"  # says nothing in HTTP/1.1, and goes no further


def _lines(special: list[bytes]) -> bytes:
    """An expression for lines that go on as they are: none of these names.

    It looks at the first letter first: with that most names are known not to be special.
    """
    ends: dict[bytes, list[bytes]] = {}
    for name in special:
        ends.setdefault(name[:1].upper() + name[:1], []).append(re.escape(name[1:]))
    taken = b"".join(ends)
    free = b"".join(re.escape(bytes((byte,))) for byte in NAME_BYTES if byte not in taken)
    others = b"|".join(rb"[%b](?!(?i:%b))" % (k, b"|".join(found)) for k, found in ends.items())
    return rb"(?:[%b]%b|(?:%b)%b)*" % (free, REST, others, REST)


_OF_REQUESTS = _lines([*(name + b":" for name in REQUEST_ROLES), b"x-forwarded-"])
_OF_RESPONSES = _lines([name + b":" for name in RESPONSE_ROLES])
REQUEST = re.compile(
    rb"((GET|HEAD|DELETE) (/[\x21\x22\x24-\x7e]*) HTTP/1\.1\r\n"
    rb"Host: (([0-9a-z_\-]+(?:\.[0-9a-z_\-]+)*)(?::[0-9]{1,5})?)\r\n%b)(?:%b(%b))?\r\n"
    % (_OF_REQUESTS, KEEP_ALIVE, _OF_REQUESTS)
).match
RESPONSE = re.compile(
    rb"(HTTP/1\.1 ([2-5][0-9][0-9]) [\x20-\x7e]{0,100}\r\n%b)"
    rb"Content-Length: (0|[1-9][0-9]{0,16})\r\n(%b)(?:%b(%b))?\r\n"
    % (_OF_RESPONSES, _OF_RESPONSES, KEEP_ALIVE, _OF_RESPONSES)
).match


class UsualRequest(Request):
    """A request without a body, whose connection stays; what is not set here lies in the class."""

    is_replayable = True


def quick_request(data: bytes, forwarded: bytes, lines_max: int) -> tuple[Request, int] | None:
    """The request at the beginning of ``data`` and where it ends; None: look closer.

    ``forwarded`` is what we say of the client, up to the host that it asked for.
    """
    found = REQUEST(data)
    if found is None:
        return None
    end = found.end()
    if end > LINE_BYTES_MIN * lines_max and data.count(b"\n", 0, end) > lines_max + 2:
        return None
    head, method, target, sent, host, more = found.groups()
    request = UsualRequest()
    request.method = method
    request.target = target
    request.host = host
    request.wire = b"%b%b%b%b\r\n\r\n" % (head, more or b"", forwarded, sent)
    if method == b"HEAD":
        request.is_head = True
    return request, end


def quick_response(data: bytes) -> tuple[Response, int] | None:
    """The response at the beginning of ``data`` and where its head ends; None: look closer."""
    found = RESPONSE(data)
    if found is None:
        return None
    head, status, length, lines, more = found.groups()
    response = Response()
    response.status = int(status)
    response.length = int(length)
    response.fixed = fixed = b"%b%b%b" % (head, lines, more or b"")
    response.plain = b"%bContent-Length: %b\r\n\r\n" % (fixed, length)
    return response, found.end()
