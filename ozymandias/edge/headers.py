"""One header line at a time: checked strictly, sorted by what the ingress must do with it.

A line is either passed on (as bytes, rebuilt from name and value) or special: it frames the
message, steers the connection, or speaks of where the request came from. The same lines come again
and again, so what was found out about a line is remembered, up to a bound and for a while. Lines
that carry secrets are not, nor are more than a few lines of one name: some are new each time.
"""

from dataclasses import dataclass

from ozymandias.problems import BAD_HTTP_REQUEST, Kind

# RFC 9110 section 5.6.2.
TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
VALUE_BYTES = b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
HOST_BYTES = b"0123456789abcdefghijklmnopqrstuvwxyz.-_"
ADDRESS_BYTES = b"0123456789abcdef:."  # between the brackets of an IPv6 host


def only(allowed: bytes) -> bytes:
    """A table for `translate` that changes every byte but these.

    Text is clean if its translation is equal to it: four times as fast as deleting what is allowed.
    """
    return bytes(byte if byte in allowed else (byte + 1) % 256 for byte in range(256))


TOKEN = only(TOKEN_BYTES)
VALUE = only(VALUE_BYTES)

KNOWN_LINES_MAX = 8192
KNOWN_LINE_BYTES_MAX = 256
KNOWN_LINES_PER_NAME_MAX = 64  # of Host as many as there are
KNOWN_NAMES_MAX = 2048
KNOWN_NAME_BYTES_MAX = 64
KNOWN_SECONDS = 30.0  # then all is forgotten, as what comes often is soon known again


class Malformed(Exception):
    """The message can't be understood in exactly one way, or breaks a limit."""

    def __init__(self, reason: str, kind: Kind = BAD_HTTP_REQUEST) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


# What a special line is for. Plain numbers, as an Enum's members are slow to look up.
HOST = 0
LENGTH = 1
ENCODING = 2
CONNECTION = 3
UPGRADE = 4
EXPECT = 5
FORWARDED = 6  # where the request came from: believed from trusted proxies only
DROPPED = 7


@dataclass(frozen=True, slots=True)
class Special:
    role: int
    name: bytes  # lower case
    value: bytes
    tokens: frozenset[bytes] = frozenset()  # of Connection, lower case
    host: bytes = b""  # of Host, as routes have it
    number: int = 0  # of Content-Length
    is_usual: bool = False  # Connection: keep-alive, which in HTTP/1.1 says nothing


Line = bytes | Special

HOP_BY_HOP = (
    b"keep-alive",
    b"proxy-connection",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"te",
    b"trailer",
    b"http2-settings",
)
_COMMON = dict.fromkeys(HOP_BY_HOP, DROPPED) | {
    b"content-length": LENGTH,
    b"transfer-encoding": ENCODING,
    b"connection": CONNECTION,
    b"upgrade": UPGRADE,
}
REQUEST_ROLES = _COMMON | {
    b"host": HOST,
    b"expect": EXPECT,
    b"forwarded": FORWARDED,
    b"x-real-ip": FORWARDED,
}
RESPONSE_ROLES = _COMMON
SECRET_NAMES = frozenset({b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"})


class Name:
    """What is known of a header's name."""

    __slots__ = ("lower", "role", "room")

    def __init__(self, lower: bytes, role: int | None) -> None:
        self.lower = lower
        self.role = role  # None: passed on
        self.room = KNOWN_LINES_MAX if role == HOST else KNOWN_LINES_PER_NAME_MAX
        if lower in SECRET_NAMES:
            self.room = 0  # for further lines to remember


class LineReader:
    """Sorts header lines by a table of special names. Raises Malformed."""

    def __init__(self, roles: dict[bytes, int]) -> None:
        self._roles = roles
        self._names: dict[bytes, Name] = {}
        self.known: dict[bytes, Line] = {}

    def read(self, raw: bytes) -> Line:
        """The slow way; look into ``known`` first."""
        name, colon, value = raw.partition(b":")
        if not colon:
            raise Malformed("a header line has no colon")
        about = self._names.get(name) or self._read_name(name)
        if value.translate(VALUE) != value:
            raise Malformed("a header value has a control character")
        bare = value.strip(b" \t")
        if about.role is not None:
            line: Line = _special(about.role, about.lower, bare)
        elif value.startswith(b" ") and len(bare) == len(value) - 1:
            line = raw  # just what would be made of name and value
        else:
            line = b"%b: %b" % (name, bare)
        if about.room and len(raw) <= KNOWN_LINE_BYTES_MAX:
            about.room -= 1
            if len(self.known) >= KNOWN_LINES_MAX:
                self.forget()
            self.known[raw] = line
        return line

    def forget(self) -> None:
        self.known.clear()
        self._names.clear()

    def _read_name(self, name: bytes) -> Name:
        if not name or name.translate(TOKEN) != name:
            # Also a folded line (it begins with a space) and a space before the colon.
            raise Malformed("a header name is empty or has a character that is not allowed there")
        lower = name.lower()
        # Some servers read Content_Length as Content-Length: such an alias never gets through.
        hyphened = lower.replace(b"_", b"-")
        role = self._roles.get(hyphened)
        if role is None and hyphened.startswith(b"x-forwarded-") and HOST in self._roles.values():
            role = FORWARDED
        if role is not None and hyphened != lower:
            role = DROPPED
        about = Name(lower, role)
        if len(self._names) >= KNOWN_NAMES_MAX:
            self.forget()
        if len(name) <= KNOWN_NAME_BYTES_MAX:
            self._names[name] = about
        return about


def _special(role: int, lower: bytes, value: bytes) -> Special:
    if role == CONNECTION:
        words = frozenset(t.strip(b" \t") for t in value.lower().split(b",")) - {b""}
        return Special(role, lower, value, words, is_usual=words == {b"keep-alive"})
    if role == LENGTH:
        return Special(role, lower, value, number=body_length(value))
    if role == HOST:
        return Special(role, lower, value, host=normal_host(value))
    return Special(role, lower, value)


REQUEST_LINES = LineReader(REQUEST_ROLES)
RESPONSE_LINES = LineReader(RESPONSE_ROLES)


def normal_host(value: bytes) -> bytes:
    """A Host header's name as routes have it: lower case, no port, no trailing dot."""
    text = value.lower()
    if text.startswith(b"["):
        name, bracket, port = text[1:].partition(b"]")
        bad = not bracket or not name or bool(name.translate(None, ADDRESS_BYTES))
        if port and not (port.startswith(b":") and (port == b":" or port[1:].isdigit())):
            bad = True
        if bad:
            raise Malformed("the Host header is not a host name")
        return b"[" + name + b"]"
    name, colon, port = text.partition(b":")
    if name.endswith(b"."):
        name = name[:-1]
    if not name or name.translate(None, HOST_BYTES) or name.startswith(b".") or b".." in name:
        raise Malformed("the Host header is not a host name")
    if colon and port and not (port.isdigit() and len(port) <= 5):
        raise Malformed("the Host header has a port that is not a number")
    return name


def body_length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise Malformed("Content-Length is not a plain number")
    return int(value)


def without_named(lines: list[bytes], names: frozenset[bytes]) -> list[bytes]:
    """Leaves out the lines whose names the Connection header names."""
    return [line for line in lines if line[: line.index(b":")].lower() not in names]
