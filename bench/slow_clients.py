"""Ten thousand clients that never finish their request: `python -m bench.slow_clients PORT COUNT`.

Each opens a connection, sends the beginning of a head and then a byte now and then. Who is cut off
comes again. Prints `ready` once all have connected, and goes on until it is killed. It does as
little as it can beside: it shares its core with those who ask properly and measure.
"""

import asyncio
import random
import resource
import socket
import sys
from typing import cast

import uvloop

BEGINNING = b"GET / HTTP/1.1\r\nHost: job7.localhost\r\nX-Slow: "
ADDRESSES = 8  # the ingress allows each only so many
TRICKLE_SECONDS = 5.0
OPENING_MAX = 100  # at once
AGAIN_SECONDS = 0.5


class Slow(asyncio.Protocol):
    def __init__(self, lost: "asyncio.Queue[int]", number: int) -> None:
        self._lost = lost
        self._number = number

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(BEGINNING)
        self._later()

    def _later(self) -> None:
        seconds = random.uniform(0.5, 1.5) * TRICKLE_SECONDS
        self._timer = asyncio.get_running_loop().call_later(seconds, self._trickle)

    def _trickle(self) -> None:
        self._transport.write(b"x")
        self._later()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._lost.put_nowait(self._number)


async def opening(port: int, wanted: "asyncio.Queue[int]", opened: set[int]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        number = await wanted.get()
        sock = socket.socket()
        sock.setblocking(False)
        try:
            sock.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.create_connection(lambda n=number: Slow(wanted, n), sock=sock)  # type: ignore[misc]
            opened.add(number)
        except OSError:
            sock.close()
            wanted.put_nowait(number)
            await asyncio.sleep(AGAIN_SECONDS)


async def main(port: int, count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted: asyncio.Queue[int] = asyncio.Queue()
    opened: set[int] = set()
    for number in range(count):
        wanted.put_nowait(number)
    async with asyncio.TaskGroup() as group:
        for _ in range(OPENING_MAX):
            group.create_task(opening(port, wanted, opened))
        while len(opened) < count:
            await asyncio.sleep(0.1)
        print("ready", flush=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
