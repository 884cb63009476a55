"""Malformed and ambiguous requests are refused, and nothing of them reaches an instance."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.integration.edge.conftest import (
    Edge,
    RawServer,
    exchange,
    raw_serving,
    running,
)
from tests.integration.edge.malformed import BAD_CHUNKS, CORPUS, SMUGGLED


@pytest.fixture
async def edge_and_server() -> AsyncIterator[tuple[Edge, RawServer]]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: RawServer):
        while data := await reader.read(65536):
            state.received += data
            if state.received.endswith(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port], "b/": [server.port]})
        yield edge, server


async def test_ambiguous_heads(edge_and_server: tuple[Edge, RawServer]):
    """Each of the corpus is refused with its status, and no instance sees a byte."""
    edge, server = edge_and_server
    assert len(CORPUS) >= 80
    for name, data, status in CORPUS:
        reply = await exchange(edge.port, data + SMUGGLED)
        assert reply.startswith(b"HTTP/1.1 %d " % status), (name, reply)
        assert b"application/problem+json" in reply, name
        assert reply.count(b"Content-Length: ") == 1, (name, reply)
        assert not server.received, (name, bytes(server.received))


async def test_heads_in_single_bytes(edge_and_server: tuple[Edge, RawServer]):
    """How the bytes are cut into packets changes nothing."""
    edge, server = edge_and_server
    for name, data, status in CORPUS[::6]:
        if len(data) > 200:
            continue
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        for i in range(len(data)):
            writer.write(data[i : i + 1])
            await asyncio.sleep(0)
        writer.write(SMUGGLED)
        async with asyncio.timeout(5):
            reply = await reader.read(-1)
        writer.close()
        assert reply.startswith(b"HTTP/1.1 %d " % status), (name, reply)
        assert not server.received, name


async def test_bad_chunks(edge_and_server: tuple[Edge, RawServer]):
    """A body that breaks off is never ended for the instance, and nothing follows it."""
    edge, server = edge_and_server
    head = b"POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    for name, body in BAD_CHUNKS:
        server.received.clear()
        reply = await exchange(edge.port, head + body + SMUGGLED)
        assert reply.startswith(b"HTTP/1.1 400 "), (name, reply)
        assert reply.count(b"Content-Length: ") == 1, (name, reply)
        assert b"smuggled" not in server.received, name
        assert b"\r\n0\r\n" not in server.received, name


async def test_what_looks_odd_but_is_right(edge_and_server: tuple[Edge, RawServer]):
    """Strict is not fussy: these are good requests."""
    edge, _ = edge_and_server
    end = b"Connection: close\r\n\r\n"
    for data in (
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n" + end,  # one empty line first
        b"GET / HTTP/1.1\r\nhOsT:a\r\n" + end,
        b"GET / HTTP/1.1\r\nHost: \t a \t\r\n" + end,
        b"GET http://a/x HTTP/1.1\r\nHost: a\r\n" + end,
        b"GET http://a?x HTTP/1.1\r\nHost: a\r\n" + end,
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n" + end,
        b"GET /{}|^`<> HTTP/1.1\r\nHost: a\r\n" + end,
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Empty:\r\nX-Bytes: \xff\xfe\r\n" + end,
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n" + end,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n" + end + b"0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n" + end,  # dropped, not believed
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 97 + end,
    ):
        reply = await exchange(edge.port, data)
        assert reply.startswith(b"HTTP/1.1 200 OK"), (data, reply)


async def test_nothing_ambiguous_is_sent_on(edge_and_server: tuple[Edge, RawServer]):
    """What reaches an instance is made anew: one Host, one framing, no hop-by-hop header."""
    edge, server = edge_and_server
    await exchange(
        edge.port,
        b"POST /p HTTP/1.1\r\nhost:a\r\nTransfer-encoding:  Chunked \r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: x\r\nConnection: close, Upgrade, HTTP2-Settings\r\n"
        b"Transfer_Encoding: x\r\nContent_Length: 9\r\n\r\n"
        b"005;ext=1\r\nhello\r\n0\r\nTrailer-A: b\r\n\r\n",
    )
    assert bytes(server.received) == (
        b"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
        b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n\r\n"
        b"5\r\nhello\r\n0\r\n\r\n"
    )
