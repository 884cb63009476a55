"""The HTTP API: what happens around every request, and serving it.

Around a request, from the outside in: a request id, the time it took, problems rendered, and then
the guards (`api/guards.py`). TCP asks for a token; the Unix socket belongs to root and asks for
none. Connections are limited before anybody has said a word: their number, and how long the first
request may take to arrive.
"""

import asyncio
import os
import re
import secrets
import socket
import ssl
import stat
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ozymandias.api.audit import Audit
from ozymandias.api.callers import CALLER, Door, Tokens
from ozymandias.api.guards import (
    GUARD,
    REQUEST_ID,
    TABLE,
    Guard,
    admitted,
    audited,
    member,
    parsed,
    permitted,
)
from ozymandias.api.limits import Limits
from ozymandias.api.operations import Operations
from ozymandias.api.problem_response import problem_response
from ozymandias.api.relay import RELAY, Relay, acquainted, relayed
from ozymandias.api.request import BODY_BYTES_MAX, OPERATIONS, too_large
from ozymandias.api.rights import told
from ozymandias.api.streaming import CLOSING, DOOR, is_connected
from ozymandias.api.table import ROUTES
from ozymandias.problems import (
    BAD_HTTP_REQUEST,
    INTERNAL,
    INVALID_REQUEST,
    METHOD_NOT_ALLOWED,
    RESOURCE_NOT_FOUND,
    Problem,
    ProblemError,
)
from ozymandias.telemetry import API_SECONDS, warn

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SHUTDOWN_SECONDS = 3.0  # for answers under way when the daemon ends
KEEP_ALIVE_SECONDS = 60.0
FIRST_REQUEST_SECONDS = 15.0  # from the connection to the end of the first request's head
LINGER_SECONDS = 2.0  # for the rest of a body that nobody wants
BACKLOG = 1024
REQUEST_ID_HEADER = "X-Request-Id"

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SILENT: web.AppKey[dict[int, asyncio.TimerHandle]] = web.AppKey("silent", dict)


def make_app(operations: Operations, guard: Guard, relay: Relay | None = None) -> web.Application:
    around = [_identified, _timed, _problems, acquainted]
    guards = [admitted, audited, member, parsed, permitted]
    app = web.Application(
        middlewares=[*around, *guards, relayed],
        client_max_size=BODY_BYTES_MAX,
    )
    app[OPERATIONS] = operations
    app[GUARD] = guard
    app[RELAY] = relay
    app[DOOR] = guard.door
    app[TABLE] = {route.key: route for route in ROUTES}
    app[CLOSING] = asyncio.Event()
    app[_SILENT] = {}
    app.on_shutdown.append(_close_streams)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, route.handler)
    return app


async def _close_streams(app: web.Application) -> None:
    app[CLOSING].set()


# Around every request ---------------------------------------------------------------------------


@web.middleware
async def _identified(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The caller's request id, or a new one, on the answer and in every problem."""
    if handle := request.app[_SILENT].pop(id(request.protocol), None):
        handle.cancel()
    given = request.headers.get(REQUEST_ID_HEADER, "")
    request[REQUEST_ID] = given if _ID.fullmatch(given) else secrets.token_hex(8)
    response = await handler(request)
    if not response.prepared:
        response.headers[REQUEST_ID_HEADER] = request[REQUEST_ID]
    return response


@web.middleware
async def _timed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Time by route, not by path: the number of series must not grow with the jobs."""
    started = time.monotonic()
    try:
        return await handler(request)
    finally:
        resource = request.match_info.route.resource
        route = resource.canonical if resource else "unknown"
        API_SECONDS.labels(request.method, route).observe(time.monotonic() - started)


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure leaves as a problem document; a bug of ours as `internal`, with a log line."""
    allow: Collection[str] = ()
    try:
        return await handler(request)
    except ProblemError as error:
        caller = request.get(CALLER)
        problem = told(caller.right, error.problem) if caller else error.problem
    except web.HTTPRequestEntityTooLarge:
        problem = too_large().problem
    except web.HTTPException as error:
        if error.status < 400:
            raise
        problem = _http_problem(request, error)
        if isinstance(error, web.HTTPMethodNotAllowed):
            allow = error.allowed_methods
    except asyncio.CancelledError:
        raise  # the daemon ends
    except Exception as error:
        if isinstance(error, ConnectionError) and not is_connected(request):
            return web.Response(status=400)  # the client went away: nobody will read it
        reference = request[REQUEST_ID]
        warn(
            "api.internal_error",
            request=reference,
            method=request.method,
            path=request.path,
            error=repr(error),
            traceback="".join(traceback.format_exception(error)),
        )
        problem = INTERNAL(
            "The node failed to handle this request. That is a mistake in Ozymandias.",
            hint=f"Its log has the details under request {reference}.",
        )
    return problem_response(problem, request[REQUEST_ID], allow)


def _http_problem(request: web.Request, error: web.HTTPException) -> Problem:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return METHOD_NOT_ALLOWED(f"{request.path} takes {allowed}, not {request.method}.")
    if error.status == 404:
        return RESOURCE_NOT_FOUND(f"There is nothing at {request.path}.")
    return INVALID_REQUEST(f"{error.reason} ({error.status})")


# Serving ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Where the API answers: ``port`` is 0 when TCP is closed."""

    port: int
    socket: Path | None


@asynccontextmanager
async def serving(
    operations: Operations,
    *,
    listen: tuple[str, int] | None = None,
    tokens: Tokens | None = None,
    socket_path: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    hosts: frozenset[str] = frozenset(),
    audit: Audit | None = None,
    tls: ssl.SSLContext | None = None,
    relay: Relay | None = None,
) -> AsyncIterator[Served]:
    """Serve while the context lasts. TCP stays closed without tokens. OSError: can't listen."""
    audit = audit or Audit()
    async with AsyncExitStack() as stack:
        port = 0
        if listen is not None and tokens:
            is_peer = relay.others.is_peer if relay else operations.is_peer
            door = Door(tokens=tokens, is_peer=is_peer)
            app = make_app(operations, Guard.of(door, limits, hosts, audit), relay)
            runner = await stack.enter_async_context(_running(app))
            port = await stack.enter_async_context(_listening(runner, *listen, tls))
        if socket_path is not None:
            guard = Guard.of(Door(tokens=None), limits, hosts, audit)
            runner = await stack.enter_async_context(_running(make_app(operations, guard, relay)))
            bound = _bind_socket(socket_path)
            stack.callback(_remove_socket, socket_path)
            await web.SockSite(runner, bound).start()
        yield Served(port=port, socket=socket_path)


@asynccontextmanager
async def _running(app: web.Application) -> AsyncIterator[web.AppRunner]:
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        lingering_time=LINGER_SECONDS,
        handle_signals=False,
    )
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _listening(
    runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[int]:
    """TCP, with limits that hold before anything is known of who connects."""
    loop = asyncio.get_running_loop()
    server, app = runner.server, runner.app
    assert server is not None
    silent, most = app[_SILENT], app[GUARD].limits.connections_max

    def hang_up(handler: web.RequestHandler) -> None:
        silent.pop(id(handler), None)
        if handler.transport is not None:
            handler.transport.abort()

    def accept() -> asyncio.Protocol:
        if len(server.connections) >= most:
            return _Refused()
        handler = _Connection(server, loop=loop, **server._kwargs)
        silent[id(handler)] = loop.call_later(FIRST_REQUEST_SECONDS, hang_up, handler)
        return handler

    listener = await loop.create_server(
        accept, host, port, reuse_address=True, backlog=BACKLOG, ssl=tls
    )
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for handle in silent.values():
            handle.cancel()


class _Connection(web.RequestHandler):
    """What is not HTTP at all is told so like everything else, and is no news for the log."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500 or not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        response = problem_response(BAD_HTTP_REQUEST("What was sent is not an HTTP request."))
        response.headers[REQUEST_ID_HEADER] = secrets.token_hex(8)
        response.force_close()
        return response


class _Refused(asyncio.Protocol):
    """A connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _bind_socket(path: Path) -> socket.socket:
    """A Unix socket that only its owner may use, from the moment it exists."""
    _remove_socket(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(before)
    return bound


def _remove_socket(path: Path) -> None:
    """What a former daemon left; anything but a socket is left alone."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass
