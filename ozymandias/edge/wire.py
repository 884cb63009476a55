"""DNS messages as bytes: reading a question and its EDNS record, writing headers and records.

Only what the responder and the forwarder need, so that a question costs microseconds. Whatever a
stranger sends is data: nothing here raises on it. Names in questions are never compressed, and
the names we write point back into the question or into our own answer.
"""

import ipaddress

from ozymandias.model.routing import DnsRecord

HEADER_BYTES = 12
NAME_BYTES_MAX = 255
UDP_PLAIN_BYTES = 512
UDP_EDNS_BYTES_MAX = 1232  # does not fragment anywhere
MESSAGE_BYTES_MAX = 65535
POINTER_OFFSET_MAX = 0x3FFF

A, SOA, SRV, HINFO, AAAA, ANY = 1, 6, 33, 13, 28, 255
NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NAME_ERROR, NOT_IMPLEMENTED, REFUSED = range(6)
SRV_PRIORITY = 10  # CoreDNS's default

IN_CLASS = b"\0\1"
WITH_DO = 0x80
NO_EDNS, BAD_EDNS, BAD_EDNS_VERSION = 0, -1, -2

LABEL_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789-_"
_OPT = b"\0\0\x29" + UDP_EDNS_BYTES_MAX.to_bytes(2, "big")
OPT = _OPT + bytes(6)
OPT_DO = _OPT + b"\0\0\x80\0\0\0"
_OPT_BAD_VERSION = _OPT + b"\1\0\0\0\0\0"


# Reading -------------------------------------------------------------------------------------


def question_end(data: bytes) -> int:
    """Where the first question of a message ends; 0 if it can't be read."""
    position = HEADER_BYTES
    size = len(data)
    while position < size:
        length = data[position]
        if not length:
            end = position + 5
            return end if end <= size and position - HEADER_BYTES < NAME_BYTES_MAX else 0
        if length > 63:
            return 0
        position += length + 1
    return 0


def edns_size(data: bytes, end: int) -> int:
    """The size the client's OPT record offers, at least 512; NO_EDNS without such a record;
    BAD_EDNS if what follows the question is anything else; BAD_EDNS_VERSION for a later one."""
    if len(data) == end and data[10:12] == b"\0\0":
        return NO_EDNS
    if data[10:12] != b"\0\1" or data[end : end + 3] != b"\0\0\x29" or len(data) < end + 11:
        return BAD_EDNS
    if len(data) != end + 11 + int.from_bytes(data[end + 9 : end + 11], "big"):
        return BAD_EDNS
    if data[end + 6]:
        return BAD_EDNS_VERSION
    position = end + 11
    while position < len(data):  # options: code, length, data; to be whole is all we ask of them
        if position + 4 > len(data):
            return BAD_EDNS
        position += 4 + int.from_bytes(data[position + 2 : position + 4], "big")
    if position != len(data):
        return BAD_EDNS
    return max(int.from_bytes(data[end + 3 : end + 5], "big"), UDP_PLAIN_BYTES)


def udp_room(data: bytes, end: int) -> int:
    """How large an answer this query may have over UDP."""
    return max(UDP_PLAIN_BYTES, min(edns_size(data, end), UDP_EDNS_BYTES_MAX))


def name_text(wire: bytes) -> str | None:
    """A name of lower-case labels as text; None if a label has bytes that none of ours has."""
    labels = []
    position = 0
    while length := wire[position]:
        label = wire[position + 1 : position + 1 + length]
        if label.translate(None, LABEL_BYTES) and label != b"*":
            return None
        labels.append(label)
        position += length + 1
    return b".".join(labels).decode("ascii")


def name_wire(text: str) -> bytes:
    """A checked name (without the final dot) as it stands in a message."""
    labels = text.encode("ascii").split(b".")
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


# Writing -------------------------------------------------------------------------------------


def pointer(offset: int) -> bytes:
    return (0xC000 | offset).to_bytes(2, "big")


def record(owner: bytes, kind: int, ttl: int, data: bytes) -> bytes:
    head = owner + kind.to_bytes(2, "big") + IN_CLASS + ttl.to_bytes(4, "big")
    return head + len(data).to_bytes(2, "big") + data


def address_record(owner: bytes, address: str, ttl: int) -> bytes:
    packed = ipaddress.ip_address(address).packed
    return record(owner, A if len(packed) == 4 else AAAA, ttl, packed)


def service_records(
    owner: bytes, entries: list[DnsRecord], start: int
) -> tuple[list[bytes], list[bytes]]:
    """SRV records which begin at ``start`` of the message, and the addresses of their targets.

    A target may not be compressed (RFC 2782); its address points at it.
    """
    weight = max(1, 100 // len(entries))
    ttl = min(entry.ttl_seconds for entry in entries)
    services, addresses = [], []
    position = start
    for entry in entries:
        target = name_wire(entry.name)
        numbers = (SRV_PRIORITY, weight, entry.port)
        data = b"".join(number.to_bytes(2, "big") for number in numbers) + target
        service = record(owner, SRV, ttl, data)
        services.append(service)
        position += len(service)
        place = position - len(target)
        name = pointer(place) if place <= POINTER_OFFSET_MAX else target
        addresses.append(address_record(name, entry.address, entry.ttl_seconds))
    return services, addresses


def soa_record(zone: bytes, serial: int, negative_ttl: int) -> bytes:
    """``zone`` is a name or a pointer to one."""
    numbers = (serial & 0xFFFFFFFF, 7200, 1800, 86400, negative_ttl)
    data = b"\x02ns\x03dns" + zone + b"\x0ahostmaster" + zone
    data += b"".join(number.to_bytes(4, "big") for number in numbers)
    return record(zone, SOA, negative_ttl, data)


def failure(query: bytes, end: int, rcode: int) -> bytes:
    """An answer that has nothing but the question and a code."""
    flags = bytes((0x80 | (query[2] & 0x79), 0x80 | rcode))
    questions = b"\0\1" if end else b"\0\0"
    return query[:2] + flags + questions + b"\0\0\0\0\0\0" + query[12:end]


def truncated(query: bytes, end: int) -> bytes:
    """An answer that says: ask again over TCP."""
    empty = failure(query, end, NO_ERROR)
    return empty[:2] + bytes((empty[2] | 0x02,)) + empty[3:]


def bad_version(query: bytes, end: int) -> bytes:
    """BADVERS: the upper half of the code is in our OPT record."""
    header = bytes((0x80 | (query[2] & 0x01), 0, 0, 1, 0, 0, 0, 0, 0, 1))
    return query[:2] + header + query[HEADER_BYTES:end] + _OPT_BAD_VERSION
