"""Small DNS server where CoreDNS is absent: our zone from memory, the rest passed on.

A usual question costs one look into a dict: whole answers are kept by whole questions (all but
the id and the spelling), until the zone changes under them. Whoever is not on a private or loopback
address is refused, in few words and seldom, so that nobody can be flooded with our answers, nor
use us to ask the world. A packet that can't be read is dropped or gets FORMERR; none can stop us.
"""

import asyncio
import ipaddress
import socket
import time
from bisect import bisect_right

from ozymandias.edge import wire
from ozymandias.edge.dns_sockets import TcpClient, send_udp
from ozymandias.edge.forwarder import Forwarder, Reply
from ozymandias.edge.wire import FORMAT_ERROR, NOT_IMPLEMENTED, REFUSED, SERVER_FAILURE
from ozymandias.edge.zone import Answer, Zone
from ozymandias.telemetry import warn

BATCH_PACKETS = 64  # read at a time, so that others get their turn
PACKET_BYTES_MAX = 2048  # of a question; one that is larger can't be read and gets FORMERR
CLIENTS_KNOWN_MAX = 4096
REFUSALS_PER_SECOND_MAX = 50  # to strangers, all together; the rest is dropped
READY_MAX = 4096  # whole answers kept
READY_BYTES_MAX = 4096  # of all turns of one of them

FORWARD = None  # what `reply` says when the question is for somebody else


class _Ready:
    """The answers to one packet in any spelling: one for each turn of its addresses."""

    __slots__ = ("answer", "end", "header", "next", "sections")

    def __init__(self, answer: Answer, replies: list[bytes], end: int) -> None:
        self.answer = answer
        self.end = end  # of the question
        self.header = replies[0][2:12]  # after the id
        self.sections = [reply[end:] for reply in replies]
        self.next = 0


class Responder:
    """Questions in, answers out; sockets are added by `serve_udp` and `serve_tcp`."""

    def __init__(self, zone: Zone, forwarder: Forwarder) -> None:
        self.zone = zone
        self.forwarder = forwarder
        self.answered = 0
        self.refused = 0
        self.malformed = 0
        self._clients: dict[str, bool] = {}
        self._ready: dict[bytes, _Ready] = {}
        self._connections: dict[TcpClient, str] = {}
        self._refusals = 0
        self._refusals_second = 0

    def allows(self, address: str) -> bool:
        """Addresses that the world does not route: loopback, private, link-local, shared."""
        known = self._clients.get(address)
        if known is None:
            if len(self._clients) >= CLIENTS_KNOWN_MAX:
                self._clients.clear()
            try:
                peer = ipaddress.ip_address(address.partition("%")[0])
                peer = getattr(peer, "ipv4_mapped", None) or peer
                known = not peer.is_global and not peer.is_multicast
            except ValueError:
                known = False
            self._clients[address] = known
        return known

    def reply(self, data: bytes, end: int, is_tcp: bool) -> bytes | None:
        """The answer to a query whose question ends at ``end``; FORWARD if it is not ours."""
        lower = data[12:end].lower()
        answer = self.zone.known(lower)
        size = wire.edns_size(data, end)
        if size < 0:
            # Judged before anything else, as it is about the packet, not about the question.
            is_version = size == wire.BAD_EDNS_VERSION
            return wire.bad_version(data, end) if is_version else wire.failure(data, end, 1)
        if answer is None:
            if lower[-2:] != wire.IN_CLASS:
                return wire.failure(data, end, REFUSED)
            if not self.zone.has(lower):
                return FORWARD
            if not self.zone.is_known:
                return wire.failure(data, end, SERVER_FAILURE)
            answer = self.zone.answer(lower)
        limit = wire.MESSAGE_BYTES_MAX
        if not is_tcp:
            limit = min(max(size, wire.UDP_PLAIN_BYTES), wire.UDP_EDNS_BYTES_MAX)
        return _message(data, end, answer, limit, bool(self.forwarder.resolvers))

    def refuse_early(self, data: bytes, address: str) -> tuple[int, bytes | None]:
        """Where the question ends; or 0 and an answer, or None for no answer at all."""
        if len(data) < 12 or data[2] & 0x80:
            self.malformed += 1
            return 0, None
        if not self.allows(address):
            self.refused += 1
            return 0, wire.failure(data, 0, REFUSED) if self._may_refuse() else None
        if data[2] & 0x78:
            return 0, wire.failure(data, 0, NOT_IMPLEMENTED)
        end = wire.question_end(data)
        if not end or data[4:10] != b"\0\1\0\0\0\0" or data[2] & 0x02:
            self.malformed += 1
            return 0, wire.failure(data, 0, FORMAT_ERROR)
        return end, None

    def _may_refuse(self) -> bool:
        """A stranger's address may be forged: what we send there must never add up."""
        second = int(time.monotonic())
        if second != self._refusals_second:
            self._refusals_second, self._refusals = second, 0
        self._refusals += 1
        return self._refusals <= REFUSALS_PER_SECOND_MAX

    # Sockets -------------------------------------------------------------------------------

    def serve_udp(self, sock: socket.socket) -> None:
        """Answer on a bound socket, as long as the event loop runs."""
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self.read_udp, sock)

    def read_udp(self, sock: socket.socket) -> None:
        """Answer what has come."""
        receive, send = sock.recvfrom, sock.sendto
        find, clients = self._ready.get, self._clients
        for _ in range(BATCH_PACKETS):
            try:
                data, peer = receive(PACKET_BYTES_MAX)
                ready = find(data[2:].lower())
                if ready is not None and ready.answer.is_live and clients.get(peer[0]):
                    self.answered += 1
                    sections = ready.sections
                    ready.next = turn = (ready.next or len(sections)) - 1
                    send(data[:2] + ready.header + data[12 : ready.end] + sections[turn], peer)
                    continue
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
                    send_udp(sock, reply, peer)

                answer = self.forward(data, end, False, peer[0], send)
            else:
                self._keep(data, end, answer)
        if answer:
            self.answered += 1
            send_udp(sock, answer, peer)

    def _keep(self, data: bytes, end: int, reply: bytes) -> None:
        """Have the answer ready for the next such packet, with every turn of its addresses.

        Packets count as equal when they are in lower case: names are, and of the other bytes
        (type, class, EDNS) none that would be another letter means another answer, if only the
        answer fits whatever size is offered.
        """
        answer = self.zone.known(data[12:end].lower())
        if answer is None or reply[2] & 0x02:
            return  # what a truncated answer leaves out must get its turn
        fits = len(reply) <= wire.UDP_PLAIN_BYTES
        turns = answer.turn // answer.step if answer.turn else 1
        is_small = turns * len(reply) <= READY_BYTES_MAX
        if not is_small or not (fits or wire.udp_room(data, end) == wire.UDP_EDNS_BYTES_MAX):
            return
        if len(self._ready) >= READY_MAX:
            self._ready.clear()
        more = (self.reply(data, end, False) for _ in range(turns - 1))
        replies = [one for one in (reply, *more) if one]
        self._ready[data[2:].lower()] = _Ready(answer, replies, end)

    def forward(
        self, data: bytes, end: int, is_tcp: bool, address: str, send: Reply
    ) -> bytes | None:
        """None when an answer will be sent later."""
        if not self.forwarder.resolvers:
            return wire.failure(data, end, REFUSED)
        if self.forwarder.submit(data, end, is_tcp, send, address):
            return None
        return wire.failure(data, end, SERVER_FAILURE)

    async def serve_tcp(self, sock: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: TcpClient(self._answer_tcp, self._connections), sock=sock
        )

    def _answer_tcp(self, data: bytes, address: str, send: Reply) -> bool:
        """False when whoever sends such a thing deserves no further attention."""
        end, answer = self.refuse_early(data, address)
        if end:
            answer = self.reply(data, end, True)
            if answer is FORWARD:
                answer = self.forward(data, end, True, address, send)
        elif answer is None:
            return False
        if answer:
            self.answered += 1
            send(answer)
        return True

    def close(self) -> None:
        """End the TCP connections; the caller closes its own sockets and servers."""
        for connection in list(self._connections):
            connection.abort()


def _message(data: bytes, end: int, answer: Answer, limit: int, recurses: bool) -> bytes:
    an, ns, ar = answer.counts
    sections = answer.rotated()
    first = 0x84 | (data[2] & 0x01)  # an authoritative answer
    extra = b""
    if len(data) > end:
        extra = wire.OPT_DO if data[end + 7] & wire.WITH_DO else wire.OPT
    room = limit - end - len(extra)
    if len(sections) > room:
        # Truncated: the client asks again over TCP. Those that can't still get what fits.
        first |= 0x02
        fitting = bisect_right(answer.ends, room)
        sections = sections[: answer.ends[fitting - 1]] if fitting else b""
        an, ns, ar = min(fitting, an), 0, max(0, fitting - an)
    second = answer.rcode | (data[3] & 0x10) | (0x80 if recurses else 0)
    if extra:
        ar += 1
    header = bytes((first, second, 0, 1, an >> 8, an & 255, 0, ns, ar >> 8, ar & 255))
    return data[:2] + header + data[12:end] + sections + extra
