"""Large bodies, slow peers, tables that change: what must not grow and what must not break."""

import asyncio
from pathlib import Path

import aiohttp
from aiohttp import web

from ozymandias.edge.limits import Limits
from tests.integration.edge.conftest import (
    RawServer,
    exchange,
    raw_serving,
    read_head,
    running,
    serving,
    wait_until,
)

MEBIBYTE = 1 << 20
LARGE = 64 * MEBIBYTE
GROWTH_MAX = 12 * MEBIBYTE


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


async def test_large_download_with_a_slow_reader():
    """64 MiB to a client that begins to read late: memory stays flat, every byte arrives."""

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE)
        piece = b"d" * 65536
        for _ in range(LARGE // len(piece)):
            writer.write(piece)
            state.received += b"."
            await writer.drain()

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port]})
        before = resident_bytes()
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port, limit=65536)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        sent = -1
        while sent != len(server.received):  # until the instance, too, is held up
            sent = len(server.received)
            await asyncio.sleep(0.2)
        assert sent * 65536 < LARGE // 2
        assert resident_bytes() - before < GROWTH_MAX
        left = LARGE
        while left:
            left -= len(await reader.read(65536))
        assert resident_bytes() - before < GROWTH_MAX
        writer.close()


async def test_large_upload_to_a_slow_instance():
    """64 MiB in chunks to an instance that reads late: the client is held up, nothing is lost."""
    go = asyncio.Event()

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        await go.wait()
        count = 0
        while size := int((await reader.readline()).strip(), 16):
            await reader.readexactly(size + 2)
            count += size
        await reader.readline()
        text = str(count).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port]})
        before = resident_bytes()
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b"u" * 65536 + b"\r\n"
        sent = 0
        try:
            async with asyncio.timeout(1.0):
                for _ in range(LARGE // 65536):
                    writer.write(piece)
                    await writer.drain()
                    sent += 1
        except TimeoutError:
            pass
        assert sent < LARGE // 65536 // 2
        assert resident_bytes() - before < GROWTH_MAX
        go.set()
        for _ in range(LARGE // 65536 - sent - 1):  # the one that was interrupted is on its way
            writer.write(piece)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert int(await reader.readexactly(8)) == LARGE
        assert resident_bytes() - before < GROWTH_MAX
        writer.close()


async def test_streams_are_not_held_back():
    """Each piece of a streamed answer reaches the client before the next one is made."""
    step = asyncio.Semaphore(0)

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for i in range(5):
            await response.write(f"data: {i}\n\n".encode())
            await step.acquire()
        return response

    async with serving(handler) as port, running() as edge, aiohttp.ClientSession() as session:
        edge.route({"a/": [port]})
        async with session.get(edge.url, headers={"Host": "a"}) as reply:
            for i in range(5):
                async with asyncio.timeout(5):
                    assert await reply.content.readuntil(b"\n\n") == f"data: {i}\n\n".encode()
                step.release()
            assert await reply.content.read() == b""


async def test_tables_change_under_load():
    """Thousands of requests while instances come, drain and go: not one fails."""
    async with running() as edge, aiohttp.ClientSession() as session:
        failures: list[str] = []
        count = 0
        is_over = False

        async def ask() -> None:
            nonlocal count
            while not is_over:
                async with session.get(edge.url + "/x", headers={"Host": "a"}) as reply:
                    if reply.status != 200 or await reply.text() != "ok":
                        failures.append(f"{reply.status} {await reply.text()}")
                    count += 1

        async def post() -> None:
            while not is_over:
                async with session.post(edge.url, headers={"Host": "a"}, data=b"b" * 999) as reply:
                    if reply.status != 200:
                        failures.append(f"POST {reply.status} {await reply.text()}")

        async def churn() -> None:
            """A new instance is routed to before an old one leaves and, drained, is stopped."""
            nonlocal is_over
            generations = []
            for _ in range(12):
                context = serving(answer)
                port = await context.__aenter__()
                generations.append((context, port))
                edge.route({"a/": [p for _, p in generations[-2:]], f"job{port}/": [port]})
                if len(generations) > 2:
                    old, old_port = generations.pop(0)
                    pool_busy = [
                        p for u, p in edge.ingress.table.pools.items() if u.port == old_port
                    ]
                    assert not pool_busy
                    await asyncio.sleep(0.05)  # drain_seconds
                    await old.__aexit__(None, None, None)
                target = count + 200
                await wait_until(lambda target=target: count >= target or bool(failures))
            is_over = True
            await asyncio.sleep(0.05)
            for context, _ in generations:
                await context.__aexit__(None, None, None)

        async def answer(request: web.Request) -> web.Response:
            await request.read()
            return web.Response(text="ok")

        context = serving(answer)
        first = await context.__aenter__()
        edge.route({"a/": [first]})
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(ask())
            for _ in range(3):
                group.create_task(post())
            group.create_task(churn())
        await context.__aexit__(None, None, None)
        assert not failures, failures[:3]
        assert count > 2000


async def test_slow_heads_and_bodies_are_ended():
    """A head or body that trickles gets 408; a connection without a request is just closed."""
    limits = Limits(head_seconds=0.3, body_seconds=0.3, idle_seconds=0.3, drain_seconds=0.5)

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        await reader.read(-1)

    async with raw_serving(talk) as server, running(limits) as edge:
        edge.route({"a/": [server.port]})
        assert await exchange(edge.port, b"") == b""
        reply = await exchange(edge.port, b"GET / HTTP/1.1\r\nHost: a\r\nX-")
        assert reply.startswith(b"HTTP/1.1 408 ")
        reply = await exchange(
            edge.port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc"
        )
        assert reply.startswith(b"HTTP/1.1 408 ")

        # Slowloris: a byte now and then does not extend the time.
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")

        async def trickle() -> None:
            while not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(0.05)

        trickling = asyncio.ensure_future(trickle())
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        trickling.cancel()
        writer.close()


async def test_silent_instance():
    """An instance that does not answer in time becomes a 504."""

    async def talk(reader, writer, state: RawServer) -> None:
        await reader.read(-1)

    limits = Limits(response_seconds=0.3, drain_seconds=0.5)
    async with raw_serving(talk) as server, running(limits) as edge:
        edge.route({"a/": [server.port]})
        reply = await exchange(edge.port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 504 ")
        assert b"#upstream-timeout" in reply


async def test_client_that_does_not_read_is_let_go():
    """A client that stops reading for too long loses its connection, and the instance's too."""

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE)
        try:
            while True:
                writer.write(b"d" * 65536)
                await writer.drain()
        except ConnectionError:
            state.received += b"gone"

    limits = Limits(stall_seconds=0.4, drain_seconds=0.5)
    async with raw_serving(talk) as server, running(limits) as edge:
        edge.route({"a/": [server.port]})
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readline()
        await wait_until(lambda: server.received.endswith(b"gone"))
        await wait_until(lambda: not edge.ingress.clients)
        writer.close()


async def test_client_that_goes_away_frees_the_instance():
    """When the client leaves, the connection to the instance is closed and counted no more."""
    gone = asyncio.Event()

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        await reader.read(-1)
        gone.set()

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port]})
        _, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await wait_until(lambda: bool(server.received))
        writer.close()
        async with asyncio.timeout(5):
            await gone.wait()
        assert [p.outstanding for p in edge.ingress.table.pools.values()] == [0]


async def test_connection_limits():
    """Beyond the limits, per address and in all, a connection is refused with a problem."""
    for limits in (Limits(connections_max=3), Limits(connections_per_address_max=3)):
        async with running(limits) as edge:
            opened = [await asyncio.open_connection("127.0.0.1", edge.port) for _ in range(3)]
            await wait_until(lambda edge=edge: len(edge.ingress.clients) == 3)
            reply = await exchange(edge.port, b"")
            assert reply.startswith(b"HTTP/1.1 503 ") and b"#too-many-connections" in reply
            for _, writer in opened:
                writer.close()
            await wait_until(lambda edge=edge: not edge.ingress.clients)
            reply = await exchange(edge.port, b"\r\n\r\n")
            assert b"HTTP/1.1 400 " in reply


async def test_body_limit():
    """A body beyond the limit is refused, announced or not."""

    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async with serving(handler) as port, running(Limits(body_bytes_max=1000)) as edge:
        edge.route({"a/": [port]})
        head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        for size, status in ((1000, b"200"), (1001, b"413")):
            sized = head + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
            assert (await exchange(edge.port, sized)).startswith(b"HTTP/1.1 " + status)
            chunks = head + b"Transfer-Encoding: chunked\r\n\r\n"
            chunks += b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size)
            assert (await exchange(edge.port, chunks)).startswith(b"HTTP/1.1 " + status)


async def test_early_answer_to_an_unread_body():
    """An instance that answers before the body has come: the client gets it, then a close."""

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.sleep(0.2)

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port]})
        reply = await exchange(
            edge.port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n" + b"x" * 9
        )
        assert reply.startswith(b"HTTP/1.1 413 Too Large") and reply.endswith(b"no")
        assert b"Connection: close" in reply


async def test_stop_lets_requests_in_flight_end():
    """After stop no connection is taken, idle ones close, and the one in flight gets its answer."""
    go = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        await go.wait()
        return web.Response(text="done")

    async with serving(handler) as port, running(Limits(drain_seconds=5)) as edge:
        edge.route({"a/": [port]})
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", edge.port)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(exchange(edge.port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
            await wait_until(lambda: any(p.outstanding for p in edge.ingress.table.pools.values()))
            edge.ingress.stop()
            async with asyncio.timeout(2):
                assert await idle_reader.read() == b""
            go.set()
        reply = asked.result()
        assert reply.endswith(b"done") and b"Connection: close" in reply
        idle_writer.close()
