"""An instance whose host loses its power in the middle of an answer: no end of the connection ever
comes, only silence. The host is a network namespace that from some moment on drops every packet.
"""

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import pytest

from ozymandias.edge.limits import PROBE_SECONDS, PROBES, QUIET_SECONDS
from ozymandias.model.routing import Route, RouteTable, Upstream
from tests.integration.edge.conftest import Edge, job, running, wait_until

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PORT = 8000
NOTICED_SECONDS = QUIET_SECONDS + PROBE_SECONDS * (PROBES + 2) + 4.0
# Answers /sized with half of what it promises, /upgrade with a tunnel, all else in chunks; then it
# says nothing more, and reads on.
SERVER = """\
import socketserver
HEADS = {
    b"/sized": b"HTTP/1.1 200 OK\\r\\nContent-Length: 8\\r\\n\\r\\nhalf",
    b"/chunks": b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n4\\r\\nhalf\\r\\n",
    b"/close": b"HTTP/1.1 200 OK\\r\\n\\r\\nhalf",
    b"/upgrade": b"HTTP/1.1 101 Go\\r\\nConnection: Upgrade\\r\\nUpgrade: x\\r\\n\\r\\nhalf",
}
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        target = self.rfile.readline().split(b" ")[1]
        while self.rfile.readline() != b"\\r\\n":
            pass
        self.wfile.write(HEADS[target])
        self.rfile.read()
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

    def lose_power(self) -> None:
        """From now on nothing comes in and nothing goes out, and nobody is told."""
        chain = "chain {0} {{ type filter hook {0} priority 0; policy drop; }}\n"
        rules = "table inet dead {\n" + chain.format("input") + chain.format("output") + "}\n"
        command = ["ip", "netns", "exec", self.name, "nft", "-f", "-"]
        subprocess.run(command, input=rules, text=True, check=True, timeout=20)


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
        program = ["ip", "netns", "exec", name, sys.executable, "-c", SERVER % PORT]
        server = subprocess.Popen(program, stdout=subprocess.PIPE)
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        yield Host(name=name, address=theirs)
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        call("ip", "netns", "delete", name)  # and the cable with it


@asynccontextmanager
async def client(edge: Edge, upstream: Upstream) -> AsyncIterator[Client]:
    """A connection to the ingress, whose only instance is this one."""
    route = Route(host="a", path="/", job=job("a"), upstreams=(upstream,))
    edge.ingress.set_table(RouteTable(hosts={"a": (route,)}))
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("kind", ["sized", "chunks", "close", "upgrade"])
async def test_a_host_that_vanishes_in_the_middle_of_an_answer(kind: str):
    """The client's connection ends in bounded time, unlike a whole answer; nothing is kept."""
    with host() as lost:
        upstream = Upstream(address=lost.address, port=PORT, instance="a-0")
        async with running() as edge, client(edge, upstream) as (reader, writer):
            more = b"Connection: Upgrade\r\nUpgrade: x\r\n" if kind == "upgrade" else b""
            writer.write(b"GET /%b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (kind.encode(), more))
            begun = await reader.readuntil(b"half")
            assert begun.startswith(b"HTTP/1.1 101" if kind == "upgrade" else b"HTTP/1.1 200")
            lost.lose_power()
            start = time.monotonic()
            async with asyncio.timeout(NOTICED_SECONDS):
                rest = await reader.read(-1)
            assert time.monotonic() - start > QUIET_SECONDS / 2  # it was not told by anybody
            assert b"0\r\n\r\n" not in rest
            await wait_until(lambda: not edge.ingress.clients)
            assert edge.ingress.table is not None
            pool = edge.ingress.table.pools[upstream]
            assert (pool.outstanding, pool.idle) == (0, [])


async def test_a_quiet_stream_is_left_alone_while_its_host_is_there():
    """A stream that is silent for longer than a lost host would be suffered goes on."""
    with host() as quiet:
        upstream = Upstream(address=quiet.address, port=PORT, instance="a-0")
        async with running() as edge, client(edge, upstream) as (reader, writer):
            writer.write(b"GET /sized HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"half")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(NOTICED_SECONDS):
                    await reader.read(1)
            assert len(edge.ingress.clients) == 1
