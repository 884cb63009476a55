"""Small DNS server where CoreDNS is absent: our zone from memory, the rest passed on.

A usual question costs one look into a dict and one concatenation. Whoever is not on a private or
loopback address is refused, so that nobody can be flooded with our answers, nor use us to ask the
world. A packet that can't be read is dropped or gets FORMERR; none can stop the server.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import cast

from ozymandias.edge.forwarder import Forwarder, Reply, failure, question_end
from ozymandias.edge.zone import Answer, Zone
from ozymandias.telemetry import warn

UDP_PLAIN_BYTES = 512
UDP_EDNS_BYTES_MAX = 1232  # does not fragment anywhere
BATCH_PACKETS = 64  # read at a time, so that others get their turn
RECEIVE_BUFFER_BYTES = 1 << 20
CLIENTS_KNOWN_MAX = 4096
TCP_CONNECTIONS_MAX = 256
TCP_CONNECTIONS_PER_ADDRESS_MAX = 64
TCP_IDLE_SECONDS = 10.0
TCP_PENDING_BYTES_MAX = 65537 * 2

FORMAT_ERROR, SERVER_FAILURE, NOT_IMPLEMENTED, REFUSED = 1, 2, 4, 5
OPT = b"\0\0\x29" + UDP_EDNS_BYTES_MAX.to_bytes(2, "big") + b"\0\0\0\0\0\0"
OPT_BAD_VERSION = b"\0\0\x29" + UDP_EDNS_BYTES_MAX.to_bytes(2, "big") + b"\1\0\0\0\0\0"
FORWARD = None  # what `reply` says when the question is for somebody else


class Responder:
    """Questions in, answers out; sockets are added by `serve_udp` and `serve_tcp`."""

    def __init__(self, zone: Zone, forwarder: Forwarder) -> None:
        self.zone = zone
        self.forwarder = forwarder
        self.answered = 0
        self.refused = 0
        self.malformed = 0
        self._clients: dict[str, bool] = {}
        self._connections: dict[_TcpClient, str] = {}

    def allows(self, address: str) -> bool:
        known = self._clients.get(address)
        if known is None:
            if len(self._clients) >= CLIENTS_KNOWN_MAX:
                self._clients.clear()
            try:
                peer = ipaddress.ip_address(address.partition("%")[0])
                mapped = getattr(peer, "ipv4_mapped", None)
                known = (mapped or peer).is_private
            except ValueError:
                known = False
            self._clients[address] = known
        return known

    def reply(self, data: bytes, end: int, is_tcp: bool) -> bytes | None:
        """The answer to a query whose question ends at ``end``; FORWARD if it is not ours."""
        question = data[12:end]
        lower = question.lower()
        answer = self.zone.known(lower)
        if answer is None:
            if not self._is_ours(lower):
                return FORWARD
            if lower[-2:] != b"\0\1":  # not of class IN
                return failure(data, end, REFUSED)
            answer = self.zone.answer(lower)
        limit = 65535 if is_tcp else UDP_PLAIN_BYTES
        extra = b""
        if len(data) > end:
            size = edns_size(data, end)
            if size < 0:
                return _bad_version(data, question) if size == -2 else failure(data, end, 1)
            extra = OPT
            if not is_tcp:
                limit = min(max(size, UDP_PLAIN_BYTES), UDP_EDNS_BYTES_MAX)
        elif data[10:12] != b"\0\0":
            return failure(data, end, FORMAT_ERROR)
        return _message(data, question, answer, extra, limit, bool(self.forwarder.resolvers))

    def _is_ours(self, lower: bytes) -> bool:
        """In the zone: its wire form is the name's end, and begins at a label."""
        zone = self.zone.wire
        name = lower[:-4]
        if not name.endswith(zone):
            return False
        start = len(name) - len(zone)
        position = 0
        while position < start:
            position += name[position] + 1
        return position == start

    def refuse_early(self, data: bytes, address: str) -> tuple[int, bytes | None]:
        """Where the question ends; or 0 and an answer, or None for no answer at all."""
        if len(data) < 12 or data[2] & 0x80:
            self.malformed += 1
            return 0, None
        if not self.allows(address):
            self.refused += 1
            return 0, failure(data, question_end(data), REFUSED)
        if data[2] & 0x78:
            return 0, failure(data, 0, NOT_IMPLEMENTED)
        end = question_end(data)
        if not end or data[4:10] != b"\0\1\0\0\0\0" or data[2] & 0x02:
            self.malformed += 1
            return 0, failure(data, 0, FORMAT_ERROR)
        return end, None

    # Sockets -------------------------------------------------------------------------------

    def serve_udp(self, sock: socket.socket) -> None:
        """Answer on a bound socket, as long as the event loop runs."""
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read_udp, sock)

    def _read_udp(self, sock: socket.socket) -> None:
        for _ in range(BATCH_PACKETS):
            try:
                data, peer = sock.recvfrom(65535)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an earlier answer could not be delivered
            try:
                self._answer_udp(sock, data, peer)
            except Exception as error:
                # One packet must not stop the server; it is a bug, so it is said.
                warn("dns.packet.failed", error=repr(error))

    def _answer_udp(self, sock: socket.socket, data: bytes, peer: tuple[str, int]) -> None:
        end, answer = self.refuse_early(data, peer[0])
        if end:
            answer = self.reply(data, end, False)
            if answer is FORWARD:

                def send(reply: bytes) -> None:
                    _send_udp(sock, reply, peer)

                answer = self.forward(data, end, False, send)
        if answer:
            self.answered += 1
            _send_udp(sock, answer, peer)

    def forward(self, data: bytes, end: int, is_tcp: bool, send: Reply) -> bytes | None:
        """None when an answer will be sent later."""
        if not self.forwarder.resolvers:
            return failure(data, end, REFUSED)
        if self.forwarder.submit(data, end, is_tcp, send):
            return None
        return failure(data, end, SERVER_FAILURE)

    async def serve_tcp(self, sock: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _TcpClient(self, self._connections), sock=sock)

    def close(self) -> None:
        """End the TCP connections; the caller closes its own sockets and servers."""
        for connection in list(self._connections):
            connection.abort()


class _TcpClient(asyncio.Protocol):
    """Length and message, again and again; each answer as soon as it is there."""

    def __init__(self, responder: Responder, connections: dict["_TcpClient", str]) -> None:
        self._responder = responder
        self._connections = connections
        self._buffer = b""
        self._address = ""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        self._connections[self] = self._address
        same = sum(address == self._address for address in self._connections.values())
        if len(self._connections) > TCP_CONNECTIONS_MAX or same > TCP_CONNECTIONS_PER_ADDRESS_MAX:
            self._transport.abort()
            return
        self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._transport.abort()  # asks, and does not read the answers

    def abort(self) -> None:
        self._transport.abort()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TCP_IDLE_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > TCP_PENDING_BYTES_MAX:
            self._transport.abort()
            return
        while len(self._buffer) >= 2:
            size = int.from_bytes(self._buffer[:2], "big")
            if len(self._buffer) < size + 2:
                return
            message = self._buffer[2 : size + 2]
            self._buffer = self._buffer[size + 2 :]
            self._wait()
            self._take(message)

    def _take(self, data: bytes) -> None:
        responder = self._responder
        end, answer = responder.refuse_early(data, self._address)
        if end:
            answer = responder.reply(data, end, True)
            if answer is FORWARD:
                answer = responder.forward(data, end, True, self._send)
        elif answer is None:
            self._transport.abort()
            return
        if answer:
            responder.answered += 1
            self._send(answer)

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(len(answer).to_bytes(2, "big") + answer)


def edns_size(data: bytes, end: int) -> int:
    """The size the client's OPT record offers; -1 if what follows is no such record; -2 if its
    version is unknown. Other additional records (a signature) are not for us to judge."""
    if data[10:12] != b"\0\1" or data[end : end + 3] != b"\0\0\x29" or len(data) < end + 11:
        return -1
    if len(data) != end + 11 + int.from_bytes(data[end + 9 : end + 11], "big"):
        return -1
    if data[end + 6]:
        return -2
    return int.from_bytes(data[end + 3 : end + 5], "big")


def _message(
    data: bytes, question: bytes, answer: Answer, extra: bytes, limit: int, recurses: bool
) -> bytes:
    an, ns, ar = answer.counts
    sections = answer.rotated()
    first = 0x84 | (data[2] & 0x01)  # an authoritative answer
    if 12 + len(question) + len(sections) + len(extra) > limit:
        first |= 0x02  # truncated: the client asks again over TCP
        an = ns = ar = 0
        sections = b""
    second = answer.rcode | (0x80 if recurses else 0)
    if extra:
        ar += 1
    header = bytes((first, second, 0, 1, an >> 8, an & 255, 0, ns, ar >> 8, ar & 255))
    return data[:2] + header + question + sections + extra


def _bad_version(data: bytes, question: bytes) -> bytes:
    header = bytes((0x80 | (data[2] & 0x01), 0, 0, 1, 0, 0, 0, 0, 0, 1))
    return data[:2] + header + question + OPT_BAD_VERSION


def _send_udp(sock: socket.socket, reply: bytes, peer: tuple[str, int]) -> None:
    try:
        sock.sendto(reply, peer)
    except OSError:
        pass  # the client is gone or its buffer full: it will ask again


def bind_udp(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    return [_bound(address, socket.SOCK_DGRAM) for address in addresses]


def bind_tcp(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    return [_bound(address, socket.SOCK_STREAM) for address in addresses]


IP_FREEBIND = 15  # not in the socket module; linux/in.h


def _bound(address: tuple[str, int], kind: socket.SocketKind) -> socket.socket:
    """Bound even if the address is not there yet: the pods' bridge comes with the first pod."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        if kind is socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
