"""The corpus through the ingress to servers of three kinds: each sees what was sent, no more."""

from pathlib import Path

import pytest

from tests.integration.edge.conftest import exchange, running, wait_until
from tests.integration.edge.malformed import BAD_CHUNKS, CORPUS, ODD, SMUGGLED
from tests.integration.edge.servers import SERVERS

CHUNKS = b"POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("kind", SERVERS)
async def test_no_server_sees_what_was_not_sent(kind: str, tmp_path: Path):
    """Malformed requests reach no server, odd ones exactly as sent; the next answer fits."""
    assert len(CORPUS) + len(BAD_CHUNKS) + len(ODD) >= 120
    expected: list[str] = []

    async def mark(port: int, name: str) -> None:
        """The next request, over a kept connection to the server, gets its own answer."""
        path = f"/marker/{len(expected)}"
        request = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        reply = await exchange(port, request.encode())
        assert reply.startswith(b"HTTP/1.1 200 "), (name, reply)
        assert reply.endswith(b"\r\n\r\n" + path.encode()), (name, reply)
        expected.append(f"GET {path}")

    async with SERVERS[kind](tmp_path) as (server, requests), running() as edge:
        edge.route({"a/": [server], "b/": [server]})
        for name, data, status in CORPUS:
            reply = await exchange(edge.port, data + SMUGGLED)
            assert reply.startswith(b"HTTP/1.1 %d " % status), (name, reply)
            await mark(edge.port, name)
        for name, data, sent in ODD:
            reply = await exchange(edge.port, data)
            assert reply.count(b"HTTP/1.1 200 ") == len(sent), (name, reply)
            expected += sent
            await mark(edge.port, name)
        for name, body in BAD_CHUNKS:
            reply = await exchange(edge.port, CHUNKS + body + SMUGGLED)
            # A server may answer before the body has come; what then fails is its connection.
            assert reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 200 ")), (name, reply)
            assert reply.count(b"HTTP/1.1 ") == 1, (name, reply)
            await mark(edge.port, name)

        def seen() -> list[str]:
            return [line for line in requests() if line != "POST /chunks"]

        await wait_until(lambda: len(seen()) >= len(expected))
        assert seen() == expected
