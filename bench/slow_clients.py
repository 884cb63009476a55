"""Ten thousand clients that never finish their request: `python -m bench.slow_clients PORT COUNT`.

Each opens a connection, sends the beginning of a head and then a byte now and then. Who is cut off
comes again. Prints `ready` once all have connected, and goes on until it is killed.
"""

import asyncio
import random
import resource
import sys

BEGINNING = b"GET / HTTP/1.1\r\nHost: job7.localhost\r\nX-Slow: "
ADDRESSES = 8  # the ingress allows each only so many
TRICKLE_SECONDS = 5.0
OPENING_MAX = 200  # at once


async def trickle(number: int, port: int, opening: asyncio.Semaphore, ready: list[int]) -> None:
    address = (f"127.0.0.{2 + number % ADDRESSES}", 0)
    is_first = True
    while True:
        try:
            async with opening:
                _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=address)
            writer.write(BEGINNING)
            if is_first:
                is_first = False
                ready.append(number)
            while not writer.is_closing():
                await asyncio.sleep(random.uniform(0.5, 1.5) * TRICKLE_SECONDS)
                writer.write(b"x")
        except OSError:
            await asyncio.sleep(0.5)


async def main(port: int, count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opening = asyncio.Semaphore(OPENING_MAX)
    ready: list[int] = []
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(trickle(number, port, opening, ready))
        while len(ready) < count:
            await asyncio.sleep(0.1)
        print("ready", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
