"""The names of strangers' hosts: each is looked up in a thread of its own.

The host's resolver may wait half a minute for a name server that does not answer, and a loop has
four threads for all of its names: a few that nobody answers for would keep all others waiting. A
thread that nobody waits for any more ends by itself, and holds up nothing, not even an exit.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

LookUp = Callable[..., list[Any]]


class OwnThreads(AbstractResolver):
    def __init__(self, look_up: LookUp = socket.getaddrinfo) -> None:
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=address[1],
                family=family,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for family, _, proto, _, address in await self._found(host, port, family)
        ]

    async def _found(self, host: str, port: int, family: int) -> list[Any]:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[list[Any]] = loop.create_future()

        def tell(found: list[Any] | None, error: Exception | None) -> None:
            if waiting.done():
                return
            if error is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(found or [])

        def look() -> None:
            found, failed = None, None
            try:
                found = self._look_up(
                    host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
                )
            except (OSError, ValueError) as error:  # UnicodeError: no name at all
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(tell, found, failed)

        threading.Thread(target=look, name=f"look up {host}", daemon=True).start()
        return await waiting

    async def close(self) -> None:
        """Nothing is kept."""
