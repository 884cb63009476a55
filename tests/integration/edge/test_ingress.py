"""The ingress with real instances behind it: routing, forwarding, failures."""

import asyncio
import json
from ipaddress import ip_network

import aiohttp
from aiohttp import web

from ozymandias.edge.limits import Limits
from tests.integration.edge.conftest import (
    RawServer,
    closed_port,
    exchange,
    raw_serving,
    read_head,
    running,
    serving,
    wait_until,
)


async def echo(request: web.Request) -> web.Response:
    body = await request.read()
    return web.json_response(
        {
            "method": request.method,
            "path": request.path_qs,
            "headers": [[k, v] for k, v in request.headers.items()],
            "body": body.decode(errors="replace"),
        }
    )


def headers_of(document: dict) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in document["headers"]:
        found.setdefault(name.lower(), []).append(value)
    return found


def named(name: str):
    async def handler(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=name)

    return handler


async def get(session: aiohttp.ClientSession, url: str, host: str, **more) -> str:
    async with session.get(url, headers={"Host": host}, **more) as response:
        return await response.text()


async def test_routes_by_host_and_longest_path():
    """The host decides, in any spelling of it; then the longest path of whole segments."""
    async with serving(named("web")) as web_, serving(named("api")) as api, running() as edge:
        edge.route({"shop.example/": [web_], "shop.example/api": [api], "Other.Example/": [api]})
        async with aiohttp.ClientSession() as session:
            for host in ("shop.example", "SHOP.example", "shop.example.", "shop.example:8080"):
                assert await get(session, edge.url + "/", host) == "web"
            for path, expected in (
                ("/api", "api"),
                ("/api/v1?x=/", "api"),
                ("/apix", "web"),
                ("/x/api", "web"),
                ("/api/", "api"),
                ("/x/../api/", "api"),
                ("/api/../x", "web"),
                ("/%61pi/x", "api"),
            ):
                head = f"GET {path} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
                reply = await exchange(edge.port, head.encode())
                assert reply.endswith(expected.encode()), (path, reply)
            assert await get(session, edge.url + "/", "other.example") == "api"


async def test_problems_before_any_instance():
    """Unknown host 404, no healthy instance 503 with Retry-After, no table yet 503."""
    async with running() as edge, aiohttp.ClientSession() as session:
        async with session.get(edge.url, headers={"Host": "a"}) as reply:
            assert reply.status == 503
            assert (await reply.json(content_type=None))["type"].endswith("#store-unavailable")
        edge.route({"a/": []})
        async with session.get(edge.url, headers={"Host": "a"}) as reply:
            assert reply.status == 503 and reply.headers["Retry-After"] == "1"
            assert reply.content_type == "application/problem+json"
            assert (await reply.json(content_type=None))["type"].endswith("#no-healthy-instance")
        async with session.get(edge.url, headers={"Host": "b"}) as reply:
            assert reply.status == 404
            assert (await reply.json(content_type=None))["host"] == "b"
        async with session.head(edge.url, headers={"Host": "b"}) as reply:
            assert reply.status == 404 and await reply.read() == b""
        async with session.post(edge.url, headers={"Host": "b"}, data=b"x" * 100000) as reply:
            assert reply.status == 404


async def test_keeps_connections_to_instances():
    """A hundred requests in a row need one connection to the instance."""

    async def talk(reader, writer, state: RawServer) -> None:
        while await read_head(reader, state):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with raw_serving(talk) as server, running() as edge, aiohttp.ClientSession() as session:
        edge.route({"a/": [server.port]})
        for _ in range(100):
            assert await get(session, edge.url, "a") == "ok"
        assert server.connections == 1


async def test_idle_connections_to_instances_are_closed():
    """A kept connection is closed after its time."""
    gone = asyncio.Event()

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert await reader.read(1) == b""
        gone.set()

    limits = Limits(pool_idle_seconds=0.2, drain_seconds=0.5)
    async with raw_serving(talk) as server, running(limits) as edge:
        edge.route({"a/": [server.port]})
        async with aiohttp.ClientSession() as session:
            assert await get(session, edge.url, "a") == "ok"
        async with asyncio.timeout(5):
            await gone.wait()


async def test_least_outstanding_and_in_turn():
    """Idle instances are asked in turn; a busy one is passed over."""
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await release.wait()
        return web.Response(text="0")

    async with (
        serving(slow) as a,
        serving(named("1")) as b,
        serving(named("2")) as c,
        running() as edge,
        aiohttp.ClientSession() as session,
    ):
        edge.route({"a/": [a, b, c]})
        first = [await get(session, edge.url, "a") for _ in range(6)]
        assert sorted(first) == ["0", "0", "1", "1", "2", "2"]
        async with asyncio.TaskGroup() as group:
            slow_ones = [group.create_task(get(session, edge.url + "/slow", "a")) for _ in range(3)]
            await wait_until(lambda: sum(t.done() for t in slow_ones) == 2)
            rest = {await get(session, edge.url, "a") for _ in range(10)}
            release.set()
        assert rest == {"1", "2"}


async def test_forwarded_headers_can_not_be_forged():
    """What the client says of its origin is dropped; ours is set; hop-by-hop headers end here."""
    async with serving(echo) as port, running() as edge:
        edge.route({"a.example/": [port]})
        reply = await exchange(
            edge.port,
            b"GET /x HTTP/1.1\r\nHost: A.example:80\r\nX-Forwarded-For: 6.6.6.6\r\n"
            b"X_Forwarded_For: 6.6.6.6\r\nx-forwarded-proto: https\r\nForwarded: for=6.6.6.6\r\n"
            b"X-Forwarded-Host: evil\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-User: root\r\n"
            b"Connection: close, X-Secret, X-Forwarded-For\r\nX-Secret: s\r\nKeep-Alive: 5\r\n"
            b"TE: trailers\r\nProxy-Authorization: x\r\nX-Plain:  kept \r\n\r\n",
        )
        seen = headers_of(json.loads(reply.partition(b"\r\n\r\n")[2]))
        assert seen["x-forwarded-for"] == ["127.0.0.1"]
        assert seen["x-forwarded-proto"] == ["http"]
        assert seen["x-forwarded-host"] == ["A.example:80"]
        assert seen["host"] == ["A.example:80"]
        assert seen["x-plain"] == ["kept"]
        assert seen.keys() == {
            *("host", "x-plain", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host")
        }


async def test_trusted_proxies_are_believed():
    """From a trusted proxy the chain goes on, and its protocol and host hold."""
    trusted = (ip_network("127.0.0.0/8"),)
    async with serving(echo) as port, running(trusted_proxies=trusted) as edge:
        edge.route({"a/": [port]})
        reply = await exchange(
            edge.port,
            b"GET /x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 9.9.9.9\r\n"
            b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: www.example\r\n"
            b"Connection: close\r\n\r\n",
        )
        seen = headers_of(json.loads(reply.partition(b"\r\n\r\n")[2]))
        assert seen["x-forwarded-for"] == ["9.9.9.9, 127.0.0.1"]
        assert seen["x-forwarded-proto"] == ["https"]
        assert seen["x-forwarded-host"] == ["www.example"]


async def test_methods_and_bodies_arrive():
    """Every method, with and without a body, sized and chunked, arrives as it was sent."""
    async with serving(echo) as port, running() as edge, aiohttp.ClientSession() as session:
        edge.route({"a/": [port]})
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"):
            for body in (None, b"sized " * 1000, chunked_body()):
                async with session.request(
                    method, edge.url + "/p?q=1", headers={"Host": "a"}, data=body
                ) as reply:
                    seen = await reply.json()
                assert seen["method"] == method and seen["path"] == "/p?q=1"
                expected = {None: ""}.get(body, "sized " * 1000)
                assert seen["body"] == expected


async def chunked_body():
    for _ in range(10):
        yield b"sized " * 100


async def test_head_and_empty_answers():
    """HEAD, 204 and 304 have no body and leave the connection usable."""

    async def handler(request: web.Request) -> web.StreamResponse:
        status = int(request.path[1:])
        body = None if status in (204, 304) else b"12345"
        return web.Response(status=status, body=body)

    async with serving(handler) as port, running() as edge:
        edge.route({"a/": [port]})
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(3):
                async with session.head(edge.url + "/200", headers={"Host": "a"}) as reply:
                    assert reply.status == 200 and reply.headers["Content-Length"] == "5"
                for status in (204, 304, 200):
                    async with session.get(edge.url + f"/{status}", headers={"Host": "a"}) as reply:
                        assert reply.status == status
                        assert await reply.read() == (b"12345" if status == 200 else b"")


async def test_http_1_0_clients():
    """An HTTP/1.0 client gets no chunks and a closed end, or keeps the connection if it asks."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/sized":
            return web.Response(body=b"sized")
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"one ")
        await response.write(b"two")
        return response

    async with serving(handler) as port, running() as edge:
        edge.route({"a/": [port]})
        reply = await exchange(edge.port, b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        assert reply.endswith(b"\r\n\r\none two") and b"chunked" not in reply
        reply = await exchange(
            edge.port,
            b"GET /sized HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"
            b"GET /sized HTTP/1.0\r\nHost: a\r\n\r\n",
        )
        assert reply.count(b"sized") == 2
        assert reply.count(b"Connection: keep-alive") == 1
        assert reply.count(b"Connection: close") == 1
        reply = await exchange(edge.port, b"GET / HTTP/1.0\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 404 ")


async def test_pipelined_requests_are_answered_in_order():
    """Requests sent without waiting are answered one by one, bodies between them included."""
    async with serving(echo) as port, running() as edge:
        edge.route({"a/": [port]})
        wanted = []
        data = b""
        for i in range(50):
            if i % 3 == 0:
                data += f"GET /{i} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
            elif i % 3 == 1:
                data += f"POST /{i} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc".encode()
            else:
                data += (
                    f"POST /{i} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                    "3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n"
                ).encode()
            wanted.append(f'"path": "/{i}"'.encode())
        data += b"GET /missing HTTP/1.1\r\nHost: b\r\n\r\n"
        data += b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        reply = await exchange(edge.port, data)
        places = [reply.index(want) for want in wanted]
        assert places == sorted(places)
        assert reply.count(b"HTTP/1.1 200 OK") == 51 and reply.count(b"HTTP/1.1 404 ") == 1
        assert reply.rindex(b'"path": "/last"') > reply.index(b"HTTP/1.1 404 ")


async def test_expect_continue():
    """The instance's 100 Continue comes through, and the body after it."""
    async with serving(echo) as port, running() as edge, aiohttp.ClientSession() as session:
        edge.route({"a/": [port]})
        async with session.post(
            edge.url, headers={"Host": "a"}, data=b"z" * 1000, expect100=True
        ) as reply:
            assert (await reply.json())["body"] == "z" * 1000


async def test_websocket_echo():
    """A websocket is spliced after the instance's 101, both ways, large messages included."""

    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data)
        return socket

    async with serving(handler) as port, running() as edge, aiohttp.ClientSession() as session:
        edge.route({"a/": [port]})
        async with session.ws_connect(edge.url, headers={"Host": "a"}, max_msg_size=0) as socket:
            for size in (1, 1000, 3_000_000):
                await socket.send_bytes(b"m" * size)
                assert await socket.receive_bytes() == b"m" * size


async def test_refused_upgrade_leaves_no_tunnel():
    """After anything but a 101 the bytes that follow are a request, and are read as one."""
    async with serving(echo) as port, running() as edge:
        edge.route({"a/": [port]})
        reply = await exchange(
            edge.port,
            b"GET /one HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            b"GET /two HTTP/1.1\r\nHost: missing\r\nConnection: close\r\n\r\n",
        )
        assert reply.startswith(b"HTTP/1.1 200 OK") and reply.count(b"HTTP/1.1 ") == 2
        assert b"HTTP/1.1 404 Not Found" in reply


async def test_unasked_101_is_refused():
    """An instance that switches protocols unasked gets no tunnel."""

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
        await reader.read(-1)

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port]})
        reply = await exchange(edge.port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 502 ")


async def test_dead_instances_are_passed_over():
    """Refused connections send the request, of any method, to another instance."""
    dead = closed_port()
    async with serving(echo) as port, running() as edge, aiohttp.ClientSession() as session:
        edge.route({"a/": [dead, port, closed_port()]})
        for i in range(20):
            async with session.post(edge.url, headers={"Host": "a"}, data=b"b" * i) as reply:
                assert reply.status == 200 and (await reply.json())["body"] == "b" * i
        edge.route({"a/": [dead]})
        async with session.get(edge.url, headers={"Host": "a"}) as reply:
            assert reply.status == 502
            assert (await reply.json(content_type=None))["type"].endswith("#upstream-failed")


async def test_kept_connection_that_ended_is_not_an_error():
    """A GET over a kept connection which the instance closes at that moment is sent once more."""

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await read_head(reader, state)  # and closes without an answer

    async with raw_serving(talk) as server, running() as edge, aiohttp.ClientSession() as session:
        edge.route({"a/": [server.port]})
        for _ in range(10):
            assert await get(session, edge.url, "a") == "ok"
        async with session.post(edge.url, headers={"Host": "a"}, data=b"x") as reply:
            assert reply.status == 502  # it may have been carried out: never twice


async def test_instance_that_loses_power_before_it_answers():
    """A GET that got no byte of an answer is sent to another instance; a POST is not, nor twice."""

    async def vanish(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)

    async with (
        serving(echo) as port,
        raw_serving(vanish) as one,
        raw_serving(vanish) as two,
        running() as edge,
        aiohttp.ClientSession() as session,
    ):
        edge.route({"a/": [one.port, port], "b/": [one.port, two.port], "c/": [one.port]})
        for _ in range(10):
            async with session.get(edge.url, headers={"Host": "a"}) as reply:
                assert reply.status == 200
        asked = [(await session.post(edge.url, headers={"Host": "a"})).status for _ in range(10)]
        assert set(asked) == {200, 502}
        for host, number in (("b", 2), ("c", 1)):
            before = one.connections + two.connections
            assert (await session.get(edge.url, headers={"Host": host})).status == 502
            assert one.connections + two.connections - before == number


async def test_instance_that_dies_in_the_middle():
    """Half an answer never looks like a whole one, however it was framed."""
    answers = {
        "/sized": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "/head": b"HTTP/1.1 200 OK\r\nContent-Le",
        "/nothing": b"",
        "/garbage": b"220 mail.example ESMTP\r\n\r\n",
        "/two": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "/both": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na",
    }

    async def talk(reader, writer, state: RawServer) -> None:
        head = await read_head(reader, state)
        writer.write(answers[head.split(b" ")[1].decode()])
        await writer.drain()

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port]})
        for path in answers:
            request = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
            reply = await exchange(edge.port, request)
            if path in ("/sized", "/chunked"):
                assert reply.startswith(b"HTTP/1.1 200 OK")
                assert not reply.endswith(b"0\r\n\r\n") and b"half" in reply
            else:
                assert reply.startswith(b"HTTP/1.1 502 "), (path, reply)


async def test_body_until_close_is_framed_for_the_client():
    """An instance's unframed answer reaches the client in chunks, with a proper end."""

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(b"HTTP/1.0 200 OK\r\nX-A: b\r\n\r\nsome ")
        await writer.drain()
        writer.write(b"text")

    async with raw_serving(talk) as server, running() as edge, aiohttp.ClientSession() as session:
        edge.route({"a/": [server.port]})
        for _ in range(3):
            assert await get(session, edge.url, "a") == "some text"


async def test_early_hints_come_through():
    """Interim answers are passed on before the final one."""

    async def talk(reader, writer, state: RawServer) -> None:
        await read_head(reader, state)
        writer.write(
            b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        )
        await reader.read(-1)

    async with raw_serving(talk) as server, running() as edge:
        edge.route({"a/": [server.port]})
        reply = await exchange(edge.port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200")
