"""Three HTTP servers that have nothing in common, each writing down every request it understood.

Each answers with the target of the request, so that an answer to the wrong request shows.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.integration.edge.conftest import closed_port, serving

READY_SECONDS = 15.0

NGINX = """\
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 256; }}
http {{
  log_format line '$request_method $request_uri'; access_log {directory}/requests line;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  underscores_in_headers on; ignore_invalid_headers off;
  server {{
    listen 127.0.0.1:{port};
    location / {{ default_type text/plain; return 200 $request_uri; }}
  }}
}}
"""
NODE = """\
const fs = require("fs");
const log = fs.openSync(process.argv[2], "a");
require("http").createServer((request, response) => {
  fs.writeSync(log, request.method + " " + request.url + "\\n");
  request.on("data", () => {});
  request.on("end", () => response.end(request.url));
}).listen(Number(process.argv[3]), "127.0.0.1");
"""

Requests = Callable[[], list[str]]


@asynccontextmanager
async def _program(command: list[str], port: int) -> AsyncIterator[None]:
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                assert running.poll() is None and time.monotonic() < deadline, command
                await asyncio.sleep(0.02)
        yield
    finally:
        running.kill()  # it has nothing to lose, and could wait for its connections
        running.wait()


def _lines(file: Path) -> Requests:
    return lambda: file.read_text().splitlines() if file.exists() else []


@asynccontextmanager
async def nginx(directory: Path) -> AsyncIterator[tuple[int, Requests]]:
    port = closed_port()
    (directory / "nginx.conf").write_text(NGINX.format(directory=directory, port=port))
    command = ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")]
    async with _program(command, port):
        yield port, _lines(directory / "requests")


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[tuple[int, Requests]]:
    port = closed_port()
    (directory / "server.js").write_text(NODE)
    log = directory / "requests"
    async with _program(["node", str(directory / "server.js"), str(log), str(port)], port):
        yield port, _lines(log)


@asynccontextmanager
async def aiohttp(directory: Path) -> AsyncIterator[tuple[int, Requests]]:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(f"{request.method} {request.raw_path}")
        with contextlib.suppress(ConnectionError):  # the ingress hung up: the body was bad
            await request.read()
        return web.Response(text=request.raw_path)

    async with serving(handler) as port:
        yield port, lambda: seen


SERVERS = {"nginx": nginx, "node": node, "aiohttp": aiohttp}
