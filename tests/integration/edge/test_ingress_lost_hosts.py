"""An instance whose host loses its power with a request or in the middle of an answer: no end of
the connection ever comes, only silence. The host is a network namespace that from some moment on
drops every packet. And its opposite: an instance that is slow, on a host that is well.
"""

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from subprocess import PIPE

import pytest

from ozymandias.edge.limits import PROBE_AFTER_SECONDS, PROBE_SECONDS, PROBES
from ozymandias.edge.upstreams import Pool
from ozymandias.model.routing import Route, RouteTable, Upstream
from tests.integration.edge.conftest import Edge, job, running, wait_until

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PORT = 8000
LOST_SECONDS = PROBE_AFTER_SECONDS + PROBE_SECONDS * PROBES  # then a host is given up
NOTICED_SECONDS = LOST_SECONDS + 10.0  # at the latest
SLOW_SECONDS = LOST_SECONDS + 3.0
BODY = b"x" * 2_000_000  # more than a kernel takes for an instance that does not read
# Says which path was asked for. Answers /sized with half of what it promises, /upgrade with a
# tunnel, /whole with all; /silent never, /slow and /unread after a while, the latter without having
# read. A connection is read from until its end.
SERVER = """\
import socketserver, sys, time
WHOLE = b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nwhole"
ANSWERS = {
    b"/sized": b"HTTP/1.1 200 OK\\r\\nContent-Length: 8\\r\\n\\r\\nhalf",
    b"/chunks": b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n4\\r\\nhalf\\r\\n",
    b"/close": b"HTTP/1.1 200 OK\\r\\n\\r\\nhalf",
    b"/upgrade": b"HTTP/1.1 101 Go\\r\\nConnection: Upgrade\\r\\nUpgrade: x\\r\\n\\r\\nhalf",
    b"/whole": WHOLE, b"/slow": WHOLE, b"/unread": WHOLE, b"/silent": b"",
}
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            length, target = 0, line.split(b" ")[1]
            while (line := self.rfile.readline()) != b"\\r\\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line[15:])
            print(target.decode(), flush=True)
            if target in (b"/slow", b"/unread"):
                time.sleep(float(sys.argv[1]))
            if target != b"/silent":
                self.rfile.read(length)
            self.wfile.write(ANSWERS[target])
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
with Server(("0.0.0.0", %d), Handler) as server:
    print("ready", flush=True)
    server.serve_forever()
"""


def call(*command: str) -> None:
    subprocess.run(command, check=True, timeout=20)


@dataclass
class Host:
    name: str
    address: str
    server: subprocess.Popen[str]

    @property
    def upstream(self) -> Upstream:
        return Upstream(address=self.address, port=PORT, instance=self.name)

    def asked(self) -> str:
        """The next path that its instance was asked for, or "ready"; waits for it."""
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def lose_power(self) -> None:
        """From now on nothing comes in and nothing goes out, and nobody is told."""
        self._filter(
            f"chain {way} {{ type filter hook {way} priority 0; policy drop; }}"
            for way in ("input", "output")
        )

    def lose_packets(self, number: int) -> None:
        """So many of TCP in a row do not come in, then one does, and again."""
        hook = "type filter hook input priority 0; policy accept;"
        rule = f"meta l4proto tcp numgen inc mod {number + 1} < {number} drop;"
        self._filter([f"chain input {{ {hook} {rule} }}"])

    def _filter(self, chains: Iterable[str]) -> None:
        rules = "table inet dead {\n" + "\n".join(chains) + "\n}\n"
        command = [*inside(self.name), "nft", "-f", "-"]
        subprocess.run(command, input=rules, text=True, check=True, timeout=20)


def inside(name: str) -> tuple[str, ...]:
    """To run something in a namespace of the network alone.

    `ip netns exec` gives it a copy of all mounts as well, which keeps the volumes of others busy
    that are unmounted meanwhile.
    """
    return "nsenter", f"--net=/run/netns/{name}"


@contextmanager
def host() -> Iterator[Host]:
    """A namespace with the server in it, joined to this host by a cable of its own."""
    token = secrets.token_hex(3)
    name, cable = f"ozy-edge-{token}", f"oe{token}"
    octets = secrets.randbelow(250) + 1, 4 * secrets.randbelow(60)
    ours, theirs = (f"198.18.{octets[0]}.{octets[1] + last}" for last in (1, 2))
    call("ip", "netns", "add", name)
    server = None
    try:
        call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        call("ip", "address", "add", f"{ours}/30", "dev", cable)
        call("ip", "link", "set", cable, "up")
        for command in (f"address add {theirs}/30 dev eth0", "link set eth0 up", "link set lo up"):
            call("ip", "-n", name, *command.split())
        program = [*inside(name), sys.executable, "-c", SERVER % PORT]
        server = subprocess.Popen([*program, str(SLOW_SECONDS)], stdout=PIPE, text=True)
        made = Host(name=name, address=theirs, server=server)
        assert made.asked() == "ready"
        yield made
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        call("ip", "netns", "delete", name)  # and the cable with it


def route(edge: Edge, *upstreams: Upstream) -> None:
    made = Route(host="a", path="/", job=job("a"), upstreams=upstreams)
    edge.ingress.set_table(RouteTable(hosts={"a": (made,)}))


@asynccontextmanager
async def client(edge: Edge, *upstreams: Upstream) -> AsyncIterator[Client]:
    """A connection to the ingress, with these instances behind it."""
    route(edge, *upstreams)
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request(method: str, path: str, body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if method != "GET" else ""
    return f"{method} {path} HTTP/1.1\r\nHost: a\r\n{length}\r\n".encode() + body


async def whole(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The next answer on this connection: its status and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
    body = await reader.readexactly(int(lines[b"Content-Length"]))
    return int(head.split(b" ")[1]), body.decode()


def pool(edge: Edge, upstream: Upstream) -> Pool:
    assert edge.ingress.table is not None
    return edge.ingress.table.pools[upstream]


def is_forgotten(edge: Edge, upstream: Upstream) -> bool:
    """No request is counted as being with this instance, and no connection to it is kept."""
    return not pool(edge, upstream).outstanding and not pool(edge, upstream).idle


# The host is gone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sized", "chunks", "close", "upgrade"])
async def test_a_host_that_vanishes_in_the_middle_of_an_answer(kind: str):
    """The client's connection ends in bounded time, unlike a whole answer; nothing is kept."""
    with host() as lost:
        async with running() as edge, client(edge, lost.upstream) as (reader, writer):
            more = b"Connection: Upgrade\r\nUpgrade: x\r\n" if kind == "upgrade" else b""
            writer.write(b"GET /%b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (kind.encode(), more))
            begun = await reader.readuntil(b"half")
            assert begun.startswith(b"HTTP/1.1 101" if kind == "upgrade" else b"HTTP/1.1 200")
            lost.lose_power()
            async with asyncio.timeout(NOTICED_SECONDS):
                rest = await reader.read(-1)
            assert b"0\r\n\r\n" not in rest
            await wait_until(lambda: not edge.ingress.clients)
            assert is_forgotten(edge, lost.upstream)


async def test_a_talkative_tunnel_to_a_host_that_vanishes():
    """A client that goes on sending does not keep its tunnel to nowhere open."""
    with host() as lost:
        async with running() as edge, client(edge, lost.upstream) as (reader, writer):
            upgrade = b"Connection: Upgrade\r\nUpgrade: x\r\n"
            writer.write(b"GET /upgrade HTTP/1.1\r\nHost: a\r\n%b\r\n" % upgrade)
            await reader.readuntil(b"half")
            lost.lose_power()
            async with asyncio.timeout(NOTICED_SECONDS):
                with suppress(ConnectionError):
                    while not reader.at_eof():
                        writer.write(b"still there?")
                        await writer.drain()
                        await asyncio.sleep(0.1)
            await wait_until(lambda: not edge.ingress.clients)
            assert is_forgotten(edge, lost.upstream)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_host_that_vanishes_with_a_request(method: str):
    """What does no harm twice goes to another instance; else the client is told what is known."""
    with host() as lost, host() as other:
        async with running() as edge, client(edge, lost.upstream) as (reader, writer):
            writer.write(request(method, "/silent"))
            assert await asyncio.to_thread(lost.asked) == "/silent"
            lost.lose_power()
            route(edge, lost.upstream, other.upstream)
            if method == "GET":
                async with asyncio.timeout(NOTICED_SECONDS):
                    assert await asyncio.to_thread(other.asked) == "/silent"
            else:
                async with asyncio.timeout(NOTICED_SECONDS):
                    status, problem = await whole(reader)
                assert status == 502
                assert "its host fell silent; whether it was carried out is not known" in problem
            assert is_forgotten(edge, lost.upstream)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_host_that_vanished_before_the_request(method: str):
    """Over a kept connection, it is acknowledged by nobody; it goes elsewhere if it may."""
    with host() as lost, host() as other:
        async with running() as edge, client(edge, lost.upstream) as (reader, writer):
            writer.write(request("GET", "/whole"))
            assert await whole(reader) == (200, "whole")
            lost.lose_power()
            writer.write(request(method, "/whole"))
            await wait_until(lambda: pool(edge, lost.upstream).outstanding == 1)
            route(edge, lost.upstream, other.upstream)
            async with asyncio.timeout(NOTICED_SECONDS):
                status, text = await whole(reader)
            assert status == (200 if method == "GET" else 502), text
            assert ("whole" if method == "GET" else "fell silent") in text
            assert is_forgotten(edge, lost.upstream)


async def test_a_host_that_vanishes_while_it_is_sent_a_body():
    """An upload to nowhere ends with an answer, in bounded time, though the client goes on."""
    with host() as lost:
        async with running() as edge, client(edge, lost.upstream) as (reader, writer):
            writer.write(request("POST", "/whole", BODY)[: len(BODY) // 2])
            assert await asyncio.to_thread(lost.asked) == "/whole"
            lost.lose_power()
            writer.write(BODY[len(BODY) // 2 :])
            async with asyncio.timeout(NOTICED_SECONDS):
                status, problem = await whole(reader)
            assert (status, "fell silent" in problem) == (502, True)
            assert is_forgotten(edge, lost.upstream)


# The host is well, only slow ----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/slow", "/unread"])
async def test_a_slow_instance_is_waited_for(path: str):
    """Also one that has no room for the request while it is busy: its kernel says that it lives."""
    with host() as slow:
        async with running() as edge, client(edge, slow.upstream) as (reader, writer):
            writer.write(request("POST", path, BODY if path == "/unread" else b""))
            async with asyncio.timeout(SLOW_SECONDS + 20.0):
                assert await whole(reader) == (200, "whole")


async def test_a_quiet_stream_is_left_alone_while_its_host_is_there():
    """A stream that is silent for longer than a lost host would be suffered goes on."""
    with host() as quiet:
        async with running() as edge, client(edge, quiet.upstream) as (reader, writer):
            writer.write(b"GET /sized HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"half")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SLOW_SECONDS):
                    await reader.read(1)
            assert len(edge.ingress.clients) == 1


async def test_a_lost_probe_or_two_end_nothing():
    """A stream that is silent outlives packets that get lost, as long as some come through."""
    with host() as quiet:
        async with running() as edge, client(edge, quiet.upstream) as (reader, writer):
            writer.write(b"GET /sized HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"half")
            quiet.lose_packets(PROBES - 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SLOW_SECONDS):
                    await reader.read(1)
            assert len(edge.ingress.clients) == 1
