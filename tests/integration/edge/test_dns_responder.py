"""The DNS responder on real sockets: UDP, TCP, forwarding, and packets made to break it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.asyncquery
import dns.message
import dns.rcode

from ozymandias.edge.dns_sockets import bind_tcp, bind_udp
from ozymandias.edge.forwarder import IN_FLIGHT_PER_CLIENT_MAX, Forwarder
from ozymandias.edge.responder import Responder
from ozymandias.edge.zone import Zone
from ozymandias.model.routing import DnsRecord
from tests.coredns_server import free_port
from tests.fuzz.fuzz_dns import Fuzz
from tests.integration.edge.conftest import wait_until

HERE = "127.0.0.1"


@asynccontextmanager
async def responding(
    forwarder: Forwarder, slots: int = 3, addresses: tuple[str, ...] = (HERE,)
) -> AsyncIterator[tuple[Responder, int]]:
    """A responder with a job `web` on a port of both protocols."""
    zone = Zone("ozy.internal")
    for slot in range(slots):
        zone.put(DnsRecord(name=f"{slot}.web.default.ozy.internal", address=f"10.1.{slot}.1"))
    responder = Responder(zone, forwarder)
    port = free_port()
    listeners = bind_tcp([(address, port) for address in addresses])
    datagrams = bind_udp([(address, port) for address in addresses])
    servers = [await responder.serve_tcp(listener) for listener in listeners]
    for sock in datagrams:
        responder.serve_udp(sock)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(forwarder.run())
        await asyncio.sleep(0)  # it has begun
        try:
            yield responder, port
        finally:
            for sock in datagrams:
                asyncio.get_running_loop().remove_reader(sock.fileno())
                sock.close()
            for server in servers:
                server.close()
            responder.close()
            await asyncio.sleep(0)
            running.cancel()


class FakeResolver(asyncio.DatagramProtocol):
    """A resolver of the world: knows one address for every name; some names it treats specially."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.offered: list[int] = []  # sizes, 0 without EDNS
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, peer) -> None:
        query = dns.message.from_wire(data)
        name = query.question[0].name.to_text()
        self.asked.append(name)
        self.offered.append(query.payload)
        if name.startswith("silent"):
            return
        answer = self.answer(query, name, "192.0.2.1")
        if name.startswith("sixty"):
            answer.answer.clear()
            texts = [f"192.0.2.{n}" for n in range(60)]
            answer.answer.append(dns.rrset.from_text_list(name, 60, "IN", "A", texts))
        if name.startswith("large"):
            answer.answer.clear()
            answer.flags |= 0x0200
        if name.startswith("forged"):
            forged = dns.message.make_response(query)
            forged.id = (query.id + 1) & 0xFFFF
            forged.answer.append(dns.rrset.from_text(name, 60, "IN", "A", "192.0.2.66"))
            self.transport.sendto(forged.to_wire(), peer)
        self.transport.sendto(answer.to_wire(max_size=65535), peer)

    @staticmethod
    def answer(query: dns.message.Message, name: str, address: str) -> dns.message.Message:
        answer = dns.message.make_response(query, recursion_available=True)
        answer.answer.append(dns.rrset.from_text(name.lower(), 60, "IN", "A", address))
        return answer

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(2), "big")
        query = dns.message.from_wire(await reader.readexactly(size))
        wire = self.answer(query, query.question[0].name.to_text(), "192.0.2.2").to_wire()
        writer.write(len(wire).to_bytes(2, "big") + wire)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def resolving() -> AsyncIterator[tuple[FakeResolver, tuple[str, int]]]:
    resolver = FakeResolver()
    server = await asyncio.start_server(resolver.talk, HERE, 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: resolver, local_addr=(HERE, port))
    try:
        async with server:
            yield resolver, (HERE, port)
    finally:
        transport.close()


def addresses(answer: dns.message.Message) -> list[str]:
    return sorted(r.to_text() for rrset in answer.answer for r in rrset)


async def test_udp_and_tcp():
    """The same answers over both; over TCP several on one connection."""
    async with responding(Forwarder(())) as (_, port):
        query = dns.message.make_query("web.default.ozy.internal", "A")
        for ask in (dns.asyncquery.udp, dns.asyncquery.tcp):
            answer = await ask(query, HERE, port=port, timeout=5)
            assert addresses(answer) == ["10.1.0.1", "10.1.1.1", "10.1.2.1"]
        reader, writer = await asyncio.open_connection(HERE, port)
        wire = query.to_wire()
        frame = len(wire).to_bytes(2, "big") + wire
        for piece in (frame * 2 + frame[:7], frame[7:]):
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(5):
            for _ in range(3):
                size = int.from_bytes(await reader.readexactly(2), "big")
                assert len(addresses(dns.message.from_wire(await reader.readexactly(size)))) == 3
        writer.close()


async def test_truncated_then_tcp():
    """A large answer is truncated over UDP and whole over TCP, as resolvers expect."""
    async with responding(Forwarder(()), slots=200) as (_, port):
        query = dns.message.make_query("web.default.ozy.internal", "A")
        answer, used_tcp = await dns.asyncquery.udp_with_fallback(query, HERE, port=port, timeout=5)
        assert used_tcp and len(addresses(answer)) == 200


async def test_other_names_are_forwarded():
    """Other zones go to the resolver and come back with the client's id and spelling."""
    async with resolving() as (resolver, address), responding(Forwarder([address])) as (_, port):
        for _ in range(3):
            query = dns.message.make_query("wWw.Example.ORG", "A", use_edns=0)
            answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
            assert addresses(answer) == ["192.0.2.1"]
            assert answer.question[0].name.to_text() == "wWw.Example.ORG."
        answer = await dns.asyncquery.tcp(query, HERE, port=port, timeout=5)
        assert addresses(answer) == ["192.0.2.2"]
        query = dns.message.make_query("large.example.org", "A")
        answer, used_tcp = await dns.asyncquery.udp_with_fallback(query, HERE, port=port, timeout=5)
        assert used_tcp and addresses(answer) == ["192.0.2.2"]
        query = dns.message.make_query("forged.example.org", "A")
        answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
        assert addresses(answer) == ["192.0.2.1"]
        query = dns.message.make_query("nope.default.ozy.internal", "A")
        before = len(resolver.asked)
        answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
        assert answer.rcode() == dns.rcode.NXDOMAIN and len(resolver.asked) == before


async def test_resolvers_that_fail():
    """A dead resolver is passed over at once, a silent one after its time; then SERVFAIL."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind((HERE, 0))
        dead = closed.getsockname()
    async with resolving() as (_, address):
        forwarder = Forwarder([dead, address], timeout_seconds=0.3)
        async with responding(forwarder) as (_, port):
            query = dns.message.make_query("www.example.org", "A")
            answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
            assert addresses(answer) == ["192.0.2.1"]
            query = dns.message.make_query("silent.example.org", "A")
            answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
            assert answer.rcode() == dns.rcode.SERVFAIL
            await wait_until(lambda: forwarder.in_flight == 0)


async def test_no_resolvers():
    """Without resolvers other names are refused."""
    async with responding(Forwarder(())) as (_, port):
        query = dns.message.make_query("www.example.org", "A")
        answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
        assert answer.rcode() == dns.rcode.REFUSED


async def test_forwarding_is_bounded():
    """Beyond its share of questions under way a client gets SERVFAIL at once; others go on."""
    async with resolving() as (_, address):
        forwarder = Forwarder([address], timeout_seconds=1.0)
        async with responding(forwarder) as (_, port):
            with socket.socket(type=socket.SOCK_DGRAM) as greedy:
                greedy.connect((HERE, port))
                for number in range(IN_FLIGHT_PER_CLIENT_MAX):
                    greedy.send(dns.message.make_query(f"silent{number}.org", "A").to_wire())
                    if number % 16 == 0:
                        await asyncio.sleep(0)
                await wait_until(lambda: forwarder.in_flight == IN_FLIGHT_PER_CLIENT_MAX)
                query = dns.message.make_query("www.example.org", "A")
                answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=0.9)
                assert answer.rcode() == dns.rcode.SERVFAIL
                answer = await dns.asyncquery.udp(
                    query, HERE, port=port, timeout=5, source="127.0.0.2"
                )
                assert addresses(answer) == ["192.0.2.1"]
                query = dns.message.make_query("web.default.ozy.internal", "A")
                assert addresses(await dns.asyncquery.udp(query, HERE, port=port, timeout=5))
                await wait_until(lambda: forwarder.in_flight == 0)
            answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
            assert answer.rcode() == dns.rcode.NOERROR
            assert not forwarder._in_flight_of


async def test_resolvers_that_send_too_much():
    """An answer larger than the client takes is not passed on: it is told to ask over TCP."""
    async with resolving() as (resolver, address), responding(Forwarder([address])) as (_, port):
        for edns, is_cut in ((None, True), (512, True), (4096, False)):
            query = dns.message.make_query("sixty.example.org", "A")
            if edns:
                query.use_edns(0, payload=edns)
            answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
            assert bool(answer.flags & 0x0200) is is_cut
            assert len(addresses(answer)) == (0 if is_cut else 60)
        assert resolver.offered[-1] == 1232  # of a client's 4096


async def test_turns_and_changes():
    """The same packet again and again: every address comes first in turn, in the client's own
    spelling, and a change shows in the very next answer."""
    async with responding(Forwarder(())) as (responder, port):
        for name in ("web.default.ozy.internal.", "wEb.DEFAULT.ozy.Internal."):
            query = dns.message.make_query(name, "A", use_edns=0)
            firsts = []
            for _ in range(7):
                answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
                assert answer.answer[0].name.to_text() == name and len(addresses(answer)) == 3
                firsts.append(answer.answer[0][0].to_text())
            assert set(firsts) == {"10.1.0.1", "10.1.1.1", "10.1.2.1"}
        responder.zone.remove("1.web.default.ozy.internal")
        answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
        assert addresses(answer) == ["10.1.0.1", "10.1.2.1"]
        for slot in (0, 2):
            responder.zone.remove(f"{slot}.web.default.ozy.internal")
        answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
        assert answer.rcode() == dns.rcode.NXDOMAIN


async def test_over_ipv6():
    """Both protocols on an IPv6 address, beside IPv4 on the same port."""
    async with responding(Forwarder(()), addresses=(HERE, "::1")) as (_, port):
        query = dns.message.make_query("web.default.ozy.internal", "A")
        for where in (HERE, "::1"):
            for ask in (dns.asyncquery.udp, dns.asyncquery.tcp):
                assert len(addresses(await ask(query, where, port=port, timeout=5))) == 3


def test_twenty_thousand_strange_packets():
    """Whatever arrives, what the responder answers is right by a model of its own, and what is
    in order is answered."""
    codes = Fuzz(seed=20).run(20_000)
    assert codes["FORMERR"] > 2000 and codes["NOERROR"] > 2000 and codes["silence"] > 1000


async def test_tcp_that_misbehaves():
    """Half a frame, a zero frame or garbage costs its connection and nobody else's."""
    async with responding(Forwarder(())) as (_, port):
        for data in (b"\0", b"\0\0", b"\0\5hello", b"\xff\xff" + b"\x80" * 140000):
            reader, writer = await asyncio.open_connection(HERE, port)
            writer.write(data)
            if data != b"\0":
                async with asyncio.timeout(5):
                    try:
                        assert await reader.read() == b""
                    except ConnectionError:
                        pass
            writer.close()
        query = dns.message.make_query("web.default.ozy.internal", "A")
        answer = await dns.asyncquery.tcp(query, HERE, port=port, timeout=5)
        assert len(addresses(answer)) == 3
