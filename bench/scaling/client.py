"""Submits of jobs of one instance over HTTP, by a client that costs little beside the daemon.

As many connections as asked for, kept alive; requests are bytes made before. `flood` sends the next
as soon as an answer is there and tells the rate; `pace` sends at a rate, whatever the answers do,
and counts the time of each from when it was to be sent.

    python -m bench.scaling.client PORT
"""

import asyncio
import json
import sys
import time
from collections import Counter

import uvloop

from bench.scaling.children import Answer, serve
from bench.scaling.peer import TOKEN


class Client:
    def __init__(self, port: int) -> None:
        self._port = port

    async def do_flood(self, first: int, jobs: int, connections: int) -> Answer:
        waiting = iter([_request(number, self._port) for number in range(first, first + jobs)])
        statuses: Counter[int] = Counter()

        async def send() -> None:
            connection = await _Connection.open(self._port)
            for request in waiting:
                statuses[await connection.ask(request)] += 1
            connection.close()

        started = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(connections)))
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "jobs_per_second": jobs / seconds, "statuses": dict(statuses)}

    async def do_pace(self, first: int, jobs: int, connections: int, per_second: float) -> Answer:
        free: asyncio.Queue[_Connection] = asyncio.Queue()
        for _ in range(connections):
            free.put_nowait(await _Connection.open(self._port))
        requests = [_request(number, self._port) for number in range(first, first + jobs)]
        delays: list[float] = []
        statuses: Counter[int] = Counter()
        started = time.perf_counter()

        async def send(number: int, request: bytes) -> None:
            due = started + number / per_second
            await asyncio.sleep(due - time.perf_counter())
            connection = await free.get()
            statuses[await connection.ask(request)] += 1
            delays.append(time.perf_counter() - due)
            free.put_nowait(connection)

        await asyncio.gather(*(send(number, request) for number, request in enumerate(requests)))
        seconds = time.perf_counter() - started
        delays.sort()
        return {
            "seconds": seconds,
            "jobs_per_second": jobs / seconds,
            "p50_ms": 1000 * delays[len(delays) // 2],
            "p99_ms": 1000 * delays[min(len(delays) - 1, len(delays) * 99 // 100)],
            "statuses": dict(statuses),
        }


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "_Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> int:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        await self._reader.readexactly(length)
        return int(head.split(None, 2)[1])

    def close(self) -> None:
        self._writer.close()


def _request(number: int, port: int) -> bytes:
    container = {"image": "registry.example/app:1", "memory": "64M"}
    body = json.dumps({"name": f"single-{number:06d}", "containers": {"app": container}})
    return (
        "POST /v1/jobs HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {TOKEN}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


if __name__ == "__main__":
    uvloop.run(serve(Client(int(sys.argv[1]))))
