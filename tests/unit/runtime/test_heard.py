"""What strangers answer over HTTP: bounded as a whole, before the answer and in between as well."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiohttp
import pytest
import uvloop
from aiohttp.client_proto import ResponseHandler

from ozymandias.model.job import Autoscale, HealthCheck, HealthKind, PendingSource
from ozymandias.ports import ProbeResult, SourceFailed
from ozymandias.runtime.heard import HEARD_BYTES_MAX
from ozymandias.runtime.pending import OutsideWork
from ozymandias.runtime.probes import make_session, probe_http

T = TypeVar("T")
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n5"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def over(part: bytes) -> bytes:
    return part * (HEARD_BYTES_MAX // len(part) + 1)


TOO_MUCH = {
    "100": over(GO_ON) + WHOLE,
    "103": over(HINT) + WHOLE,
    "chunks": CHUNKED + over(b"1\r\n \r\n") + b"1\r\n5\r\n" + END,
    "extension": CHUNKED + b"1;" + over(b"x") + b"\r\n5\r\n" + END,
}


def answered(answer: bytes, ask: Callable[[int], Awaitable[T]]) -> T:
    """What is made of an answer that a server on this port gives, whatever it was asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        except OSError:
            pass  # whoever asked has heard enough
        finally:
            writer.close()

    async def run() -> T:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await ask(server.sockets[0].getsockname()[1])

    return uvloop.run(run())  # as the daemon does


async def pending(port: int) -> bytes:
    source = Autoscale(min=0, max=1, source=PendingSource.URL, target=f"http://127.0.0.1:{port}/")
    return await OutsideWork().ask(source)


async def probed(port: int) -> ProbeResult:
    check = HealthCheck(kind=HealthKind.HTTP, port=port, timeout_seconds=10.0)
    async with make_session() as session:
        return await probe_http(session, "127.0.0.1", check)


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_source_that_sends_without_end_is_cut_off(what: str) -> None:
    """Whatever it sends so much of, and though an answer would have come in the end."""
    with pytest.raises(SourceFailed, match=r"^it sent over 256 KiB$"):
        answered(TOO_MUCH[what], pending)


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_health_check_that_sends_without_end_is_cut_off(what: str) -> None:
    """A container does not hold up the daemon that looks after it."""
    found = answered(TOO_MUCH[what], probed)
    assert not found.healthy and found.reason == "not a proper HTTP answer: SentTooMuch"


def test_what_is_within_the_bound_is_heard() -> None:
    """Some words before the answer, and of a long page as much as a health check needs."""
    assert answered(GO_ON * 3 + HINT * 100 + WHOLE, pending) == b"5"
    body = b"x" * 10 * 2**20
    page = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert answered(page, probed) == ProbeResult(healthy=True, reason="HTTP 200")


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", CHUNKED], ids=["whole", "chunked"])
def test_a_large_page_is_healthy_however_fast_it_comes(head: bytes) -> None:
    """It may be in the host's buffers as a whole before the first of it is read."""
    page = b"x" * HEARD_BYTES_MAX

    async def at_once(port: int) -> ProbeResult:
        check = HealthCheck(kind=HealthKind.HTTP, port=port, timeout_seconds=10.0)
        async with make_session() as session:
            connector = session.connector
            assert isinstance(connector, aiohttp.TCPConnector)
            made = connector._factory

            def hasty() -> ResponseHandler:
                """Hears of all that has come in one go."""
                handler, heard = made(), bytearray()
                receive = handler.data_received

                def gather(data: bytes) -> None:
                    heard.extend(data)
                    if len(heard) > HEARD_BYTES_MAX:
                        receive(bytes(heard))
                        heard.clear()

                handler.data_received = gather  # type: ignore[method-assign]
                return handler

            connector._factory = hasty  # type: ignore[assignment]
            return await probe_http(session, "127.0.0.1", check)

    body = b"%x\r\n%b\r\n%b" % (len(page), page, END) if head is CHUNKED else page
    assert answered(head + body, at_once) == ProbeResult(healthy=True, reason="HTTP 200")
