"""Probes of servers that mean no good. No pod is needed: they listen on this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ozymandias.model.job import HealthCheck, HealthKind
from ozymandias.ports import ProbeResult
from ozymandias.runtime.probes import BODY_BYTES_MAX, make_session, probe_http, probe_tcp

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that reads a request's head and then does as it is told; requests are kept."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], requests
    finally:
        listening.close()
        await listening.wait_closed()


async def probe(port: int, path: str = "/", timeout: float = 2.0) -> ProbeResult:
    check = HealthCheck(kind=HealthKind.HTTP, port=port, path=path, timeout_seconds=timeout)
    async with make_session() as session:
        return await probe_http(session, "127.0.0.1", check)


def saying(*parts: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


@pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 404, 500, 503])
async def test_only_200_is_healthy(status: int) -> None:
    """Every other answer is unhealthy and named, and a redirect is not followed."""
    head = f"HTTP/1.1 {status} X\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"
    async with server(saying(head.encode())) as (port, requests):
        result = await probe(port)
    assert (result.healthy, result.reason) == (False, f"HTTP {status}")
    assert len(requests) == 1


async def test_endless_body_is_cut_off() -> None:
    """A body without end is read up to the cap, and the answer counts."""
    sent = 0

    async def pour(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 100 * BODY_BYTES_MAX:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with server(pour) as (port, _):
        result = await probe(port)
    assert (result.healthy, result.reason) == (True, "HTTP 200")
    assert sent < 100 * BODY_BYTES_MAX


async def test_silent_server_times_out() -> None:
    """A server that accepts and says nothing is unhealthy after the check's own timeout."""

    told = asyncio.Event()

    async def wait(writer: asyncio.StreamWriter) -> None:
        await told.wait()

    async with server(wait) as (port, _):
        result = await probe(port, timeout=0.3)
        told.set()  # not before: nothing but the timeout can have ended it
    assert not result.healthy and "0.3s" in result.reason


@pytest.mark.parametrize(
    "nonsense", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b" * 50000]
)
async def test_nonsense_is_unhealthy(nonsense: bytes) -> None:
    """What is no HTTP answer is a reason, never an exception."""
    async with server(saying(nonsense)) as (port, _):
        result = await probe(port)
    assert not result.healthy and result.reason


@pytest.mark.parametrize("path", ["@192.0.2.1/", "//192.0.2.1/", "/a?b=c d", "http://192.0.2.1/"])
async def test_a_path_never_leads_elsewhere(path: str) -> None:
    """Whatever the path looks like, the request goes to the pod."""
    async with server(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (port, requests):
        result = await probe(port, path)
    assert result.healthy or not requests  # refused as a whole, or sent to the right place


async def test_tcp() -> None:
    """A connection is enough for tcp; none is a reason in plain words."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        check = HealthCheck(kind=HealthKind.TCP, port=port, timeout_seconds=1.0)
        assert (await probe_tcp("127.0.0.1", check)).healthy
    result = await probe_tcp("127.0.0.1", check)
    assert (result.healthy, result.reason) == (False, "connection refused")
