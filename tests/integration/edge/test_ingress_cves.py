"""What went wrong in other proxies must not go wrong here: one test for each kind of hole."""

import asyncio
from ipaddress import ip_network

import pytest

from ozymandias.edge.chunks import ChunkedReader
from ozymandias.edge.headers import Malformed
from ozymandias.edge.limits import Limits
from tests.integration.edge.conftest import (
    RawServer,
    exchange,
    raw_serving,
    read_head,
    running,
)

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSE = b"Connection: close\r\n\r\n"


async def answer_each(reader, writer, state: RawServer) -> None:
    while await read_head(reader, state):
        writer.write(ANSWER)


@pytest.mark.parametrize("status", [b"400 Bad Request", b"200 OK", b"403 Forbidden"])
async def test_cve_2018_1002105_failed_upgrade_leaves_no_pipe(status: bytes):
    """Kubernetes: after an Upgrade that was refused, what follows is a request like any other."""

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        state.received += await reader.read(65536)

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port]})
        reply = await exchange(
            edge.port,
            b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            b"GET /secret HTTP/1.1\r\nHost: other\r\nX-Forwarded-For: 10.0.0.1\r\n" + CLOSE,
        )
        assert reply.startswith(b"HTTP/1.1 " + status)
        assert b"HTTP/1.1 404 " in reply  # read by us, and nobody answers for that host
        assert b"secret" not in server.received


async def test_cve_2024_45410_connection_can_not_strip_our_headers():
    """Traefik: naming X-Forwarded-* in Connection takes none of ours away, trusted or not."""
    names = (b"X-Forwarded-For", b"X-Forwarded-Host", b"X-Forwarded-Proto", b"Host", b"X-Real-Ip")
    for trusted in ((), (ip_network("127.0.0.0/8"),)):
        async with (
            raw_serving(answer_each) as server,
            running(trusted_proxies=trusted) as edge,
        ):
            edge.route({"a/": [server.port]})
            for name in names:
                server.received.clear()
                named = b"Connection: close, " + name.lower() + b"\r\n\r\n"
                await exchange(edge.port, b"GET / HTTP/1.1\r\nHost: a\r\n" + named)
                for line in (b"Host: a", b"X-Forwarded-For: 127.0.0.1", b"X-Forwarded-Host: a"):
                    assert server.received.count(b"\r\n" + line + b"\r\n") == 1, (name, line)
                assert b"\r\nX-Forwarded-Proto: http\r\n" in server.received


async def test_cve_2026_39858_aliases_of_trusted_headers():
    """Traefik: X_Forwarded_For and the like, in any spelling, reach no instance."""
    forged = (
        b"X_Forwarded_For: 6.6.6.6\r\nx_forwarded-host: 6.6.6.6\r\nX-Forwarded_Proto: 6.6.6.6\r\n"
        b"X_Real_IP: 6.6.6.6\r\nX-Forwarded-Port: 6.6.6.6\r\nX-Forwarded-Anything: 6.6.6.6\r\n"
        b"X-FORWARDED-FOR: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n"
    )
    async with raw_serving(answer_each) as server, running() as edge:
        edge.route({"a/": [server.port]})
        await exchange(edge.port, b"GET / HTTP/1.1\r\nHost: a\r\n" + forged + CLOSE)
        assert server.received and b"6.6.6.6" not in server.received
    trusted = (ip_network("127.0.0.0/8"),)
    async with raw_serving(answer_each) as server, running(trusted_proxies=trusted) as edge:
        edge.route({"a/": [server.port]})
        await exchange(edge.port, b"GET / HTTP/1.1\r\nHost: a\r\n" + forged + CLOSE)
        assert b"_" not in server.received  # an alias is not believed from anybody
        assert b"\r\nX-Forwarded-For: 6.6.6.6, 127.0.0.1\r\n" in server.received


async def test_cve_2026_34525_two_hosts():
    """aiohttp: a second Host, equal or not, is never chosen from."""
    async with raw_serving(answer_each) as server, running() as edge:
        edge.route({"a/": [server.port], "b/": [server.port]})
        for hosts in (
            b"Host: a\r\nHost: b\r\n",
            b"Host: a\r\nhost: a\r\n",
            b"Host: a\r\nHOST:\r\n",
        ):
            reply = await exchange(edge.port, b"GET / HTTP/1.1\r\n" + hosts + CLOSE)
            assert reply.startswith(b"HTTP/1.1 400 "), hosts
        assert not server.received


def test_cve_2025_69229_work_on_chunks_is_linear():
    """aiohttp: a body of many tiny chunks, however cut, keeps no more than a line in mind."""
    body = b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n"
    reader = ChunkedReader()
    count = 0
    for start in range(0, len(body), 7):
        count += len(reader.feed(body[start : start + 7]))
        assert len(reader._line) < 16
    assert reader.is_done and count == 50_000


def test_cve_2026_22815_trailers_are_bounded():
    """aiohttp: trailers without end are refused after a few kilobytes."""
    reader = ChunkedReader()
    reader.feed(b"0\r\n")
    with pytest.raises(Malformed):
        for number in range(100_000):
            reader.feed(b"X-%d: y\r\n" % number)
    assert number < 2000


async def test_haproxy_empty_header_name():
    """HAProxy: an empty name ends nobody's list of headers early."""
    async with raw_serving(answer_each) as server, running() as edge:
        edge.route({"a/": [server.port]})
        for line in (b": x", b":", b" : x", b"\t: x"):
            head = b"POST / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\nContent-Length: 0\r\n" + CLOSE
            reply = await exchange(edge.port, head)
            assert reply.startswith(b"HTTP/1.1 400 "), line
        assert not server.received


async def test_cve_2020_7218_connections_without_a_request_are_bounded():
    """Nomad: connections that say nothing take no more than their share, by address."""
    limits = Limits(connections_per_address_max=20, drain_seconds=0.5)
    async with raw_serving(answer_each) as server, running(limits) as edge:
        edge.route({"a/": [server.port]})
        silent = [await asyncio.open_connection("127.0.0.1", edge.port) for _ in range(40)]
        refused = [reader for reader, _ in silent[20:]]
        for reader in refused:
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", edge.port, local_addr=("127.0.0.9", 0)
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n" + CLOSE)
        assert (await reader.read()).endswith(b"ok")  # another address is not concerned
        for _, each in (*silent, (reader, writer)):
            each.close()
