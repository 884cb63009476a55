"""An ingress on real sockets, on the event loop that it runs on in production."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import uvloop
from aiohttp import web

from ozymandias.edge.http import Ingress
from ozymandias.edge.limits import Limits
from ozymandias.model.job import JobKey, JobName, Namespace
from ozymandias.model.routing import Route, RouteTable, Upstream


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


def listener() -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


def closed_port() -> int:
    """A port that nobody listens on."""
    with listener() as sock:
        port: int = sock.getsockname()[1]
        return port


def job(name: str) -> JobKey:
    return JobKey(Namespace("default"), JobName(name))


def table(routes: dict[str, list[int]]) -> RouteTable:
    """``{"web.localhost/api": [8001, 8002]}``, the ports being those of instances on loopback."""
    hosts: dict[str, list[Route]] = {}
    for place, ports in routes.items():
        host, _, path = place.partition("/")
        upstreams = tuple(
            Upstream(address="127.0.0.1", port=port, instance=f"{host.split('.')[0]}-{i}")
            for i, port in enumerate(ports)
        )
        route = Route(host=host, path="/" + path, job=job(host.split(".")[0]), upstreams=upstreams)
        hosts.setdefault(host, []).append(route)
    return RouteTable(hosts={host: tuple(found) for host, found in hosts.items()})


@dataclass
class Edge:
    ingress: Ingress
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def route(self, routes: dict[str, list[int]]) -> None:
        self.ingress.set_table(table(routes))


@asynccontextmanager
async def running(limits: Limits | None = None, **settings: object) -> AsyncIterator[Edge]:
    sock = listener()
    ingress = Ingress(limits or Limits(drain_seconds=0.5), **settings)  # type: ignore[arg-type]
    await ingress.start([sock])
    async with asyncio.TaskGroup() as group:
        serving_ = group.create_task(ingress.run())
        try:
            yield Edge(ingress=ingress, port=sock.getsockname()[1])
        finally:  # a test that fails must not leave connections: uvloop would not end with them
            ingress.stop()
            await serving_


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    **settings: object,
) -> AsyncIterator[int]:
    """An aiohttp server with this handler for everything; its port."""
    app = web.Application(client_max_size=2**40)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=1.0, **settings)  # type: ignore[arg-type]
    await runner.setup()
    sock = listener()
    site = web.SockSite(runner, sock)
    await site.start()
    try:
        yield sock.getsockname()[1]
    finally:
        await runner.cleanup()


@dataclass
class RawServer:
    """Answers each connection by a script of its own; keeps every byte that it received."""

    port: int
    received: bytearray = field(default_factory=bytearray)
    connections: int = 0


@asynccontextmanager
async def raw_serving(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter, RawServer], Awaitable[None]],
) -> AsyncIterator[RawServer]:
    state = RawServer(port=0)

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        try:
            await talk(reader, writer, state)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    async with server:
        yield state


async def read_head(reader: asyncio.StreamReader, state: RawServer) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    state.received += head
    return head


async def exchange(port: int, data: bytes, timeout: float = 10.0) -> bytes:
    """Send these bytes, and read until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(timeout):
            writer.write(data)
            await writer.drain()
            return await reader.read(-1)
    finally:
        writer.close()


async def wait_until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)
