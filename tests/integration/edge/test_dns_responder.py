"""The DNS responder on real sockets: UDP, TCP, forwarding, and packets made to break it."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.asyncquery
import dns.message
import dns.rcode

from ozymandias.edge.dns_sockets import bind_tcp, bind_udp
from ozymandias.edge.forwarder import Forwarder
from ozymandias.edge.responder import Responder
from ozymandias.edge.zone import Zone
from ozymandias.model.routing import DnsRecord
from tests.integration.edge.conftest import wait_until

HERE = "127.0.0.1"


@asynccontextmanager
async def responding(forwarder: Forwarder, slots: int = 3) -> AsyncIterator[tuple[Responder, int]]:
    """A responder with a job `web` on a port of both protocols."""
    zone = Zone("ozy.internal")
    for slot in range(slots):
        zone.put(DnsRecord(name=f"{slot}.web.default.ozy.internal", address=f"10.1.{slot}.1"))
    responder = Responder(zone, forwarder)
    (listener,) = bind_tcp([(HERE, 0)])
    port = listener.getsockname()[1]
    (datagrams,) = bind_udp([(HERE, port)])
    server = await responder.serve_tcp(listener)
    responder.serve_udp(datagrams)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(forwarder.run())
        try:
            yield responder, port
        finally:
            asyncio.get_running_loop().remove_reader(datagrams.fileno())
            datagrams.close()
            server.close()
            responder.close()
            await asyncio.sleep(0)
            running.cancel()


class FakeResolver(asyncio.DatagramProtocol):
    """A resolver of the world: knows one address for every name; some names it treats specially."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, peer) -> None:
        query = dns.message.from_wire(data)
        name = query.question[0].name.to_text()
        self.asked.append(name)
        if name.startswith("silent"):
            return
        answer = self.answer(query, name, "192.0.2.1")
        if name.startswith("large"):
            answer.answer.clear()
            answer.flags |= 0x0200
        if name.startswith("forged"):
            forged = dns.message.make_response(query)
            forged.id = (query.id + 1) & 0xFFFF
            forged.answer.append(dns.rrset.from_text(name, 60, "IN", "A", "192.0.2.66"))
            self.transport.sendto(forged.to_wire(), peer)
        self.transport.sendto(answer.to_wire(), peer)

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
    """Beyond the limit of questions under way the answer is SERVFAIL at once."""
    async with resolving() as (_, address):
        forwarder = Forwarder([address], timeout_seconds=1.0)
        async with responding(forwarder) as (_, port):
            forwarder.in_flight = 512
            query = dns.message.make_query("www.example.org", "A")
            answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
            assert answer.rcode() == dns.rcode.SERVFAIL
            forwarder.in_flight = 0


async def test_ten_thousand_malformed_packets():
    """Whatever arrives, the responder goes on answering, and rightly."""
    dice = random.Random(20)
    good = dns.message.make_query("web.default.ozy.internal", "A", use_edns=0).to_wire()
    async with responding(Forwarder(())) as (responder, port):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect((HERE, port))
            for number in range(10_000):
                packet = bytearray(good)
                match number % 4:
                    case 0:
                        packet = bytearray(dice.randbytes(dice.randrange(0, 80)))
                    case 1:
                        packet = packet[: dice.randrange(len(packet))]
                    case 2:
                        for _ in range(dice.randrange(1, 6)):
                            packet[dice.randrange(len(packet))] = dice.randrange(256)
                    case _:
                        packet += dice.randbytes(dice.randrange(1, 40))
                sender.send(packet)
                if number % 50 == 0:
                    await asyncio.sleep(0)
                    try:
                        while True:
                            wire = sender.recv(65535)
                            assert len(wire) <= 1232 and wire[2] & 0x80
                    except BlockingIOError:
                        pass
        query = dns.message.make_query("web.default.ozy.internal", "A")
        answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=5)
        assert len(addresses(answer)) == 3
        assert responder.malformed > 2000


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
