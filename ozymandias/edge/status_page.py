"""A tiny HTTP listener for /healthz, /readyz and /metrics of the edge's processes.

For operators and probes on a listener of its own, never on the one that serves traffic. One
request per connection, a few kilobytes, a few seconds.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus

HEAD_BYTES_MAX = 8192
TIMEOUT_SECONDS = 5.0

Page = Callable[[], tuple[int, str]]


async def serve_pages(host: str, port: int, pages: Mapping[str, Page]) -> asyncio.Server:
    """Each page gives a status and a text."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_respond(head, pages))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(talk, host, port, limit=HEAD_BYTES_MAX)


def _respond(head: bytes, pages: Mapping[str, Page]) -> bytes:
    parts = head.split(b"\r\n", 1)[0].split(b" ")
    method, path = (parts[0], parts[1].decode("latin-1")) if len(parts) == 3 else (b"", "")
    page = pages.get(path.partition("?")[0])
    if method not in (b"GET", b"HEAD"):
        status, text = 405, "only GET\n"
    elif page is None:
        status, text = 404, f"try {' '.join(pages)}\n"
    else:
        status, text = page()
    body = text.encode()
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    return lines if method == b"HEAD" else lines + body
