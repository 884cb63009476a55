"""The HTTP API: routes, what happens around every request, and serving it.

Around a request, from the outside in: a request id, the time it took, problems rendered, the token
checked before anything is read, and for `/v1` the question whether this daemon is a member of its
cluster at all. TCP asks for the bearer token; the Unix socket belongs to root and asks for none.
"""

import asyncio
import hmac
import os
import re
import secrets
import socket
import stat
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from ozymandias.api import events, instances, jobs, metrics, nodes
from ozymandias.api.operations import Operations
from ozymandias.api.problem_response import problem_response
from ozymandias.api.request import BODY_BYTES_MAX, OPERATIONS, too_large
from ozymandias.api.streaming import CLOSING, is_connected
from ozymandias.problems import (
    INTERNAL,
    INVALID_REQUEST,
    METHOD_NOT_ALLOWED,
    RESOURCE_NOT_FOUND,
    UNAUTHORIZED,
    Problem,
    ProblemError,
)
from ozymandias.telemetry import API_SECONDS, warn

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SHUTDOWN_SECONDS = 3.0  # for answers under way when the daemon ends
KEEP_ALIVE_SECONDS = 60.0
REQUEST_ID = "X-Request-Id"
TOKEN = web.AppKey("token", str)  # "" on the Unix socket: none is asked

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REQUEST_ID = web.RequestKey("request_id", str)


def make_app(operations: Operations, token: str) -> web.Application:
    """The application; ``token`` "" serves whoever can reach it (the Unix socket)."""
    app = web.Application(
        middlewares=[_identified, _timed, _problems, _authorized, _member],
        client_max_size=BODY_BYTES_MAX,
    )
    app[OPERATIONS] = operations
    app[TOKEN] = token
    app[CLOSING] = asyncio.Event()
    app.on_shutdown.append(_close_streams)
    for part in (jobs, instances, nodes, events, metrics):
        app.add_routes(part.ROUTES)
    return app


async def _close_streams(app: web.Application) -> None:
    app[CLOSING].set()


# Around every request ---------------------------------------------------------------------------


@web.middleware
async def _identified(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The caller's request id, or a new one, on the answer and in every problem."""
    given = request.headers.get(REQUEST_ID, "")
    request[_REQUEST_ID] = given if _ID.fullmatch(given) else secrets.token_hex(8)
    response = await handler(request)
    if not response.prepared:
        response.headers[REQUEST_ID] = request[_REQUEST_ID]
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
    try:
        return await handler(request)
    except ProblemError as error:
        problem = error.problem
    except web.HTTPRequestEntityTooLarge:
        problem = too_large().problem
    except web.HTTPException as error:
        if error.status < 400:
            raise
        problem = _http_problem(request, error)
    except asyncio.CancelledError:
        raise  # the daemon ends
    except Exception as error:
        if isinstance(error, ConnectionError) and not is_connected(request):
            return web.Response(status=400)  # the client went away: nobody will read it
        reference = request[_REQUEST_ID]
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
    return problem_response(problem, request[_REQUEST_ID])


def _http_problem(request: web.Request, error: web.HTTPException) -> Problem:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return METHOD_NOT_ALLOWED(f"{request.path} takes {allowed}, not {request.method}.")
    if error.status == 404:
        return RESOURCE_NOT_FOUND(f"There is nothing at {request.path}.")
    return INVALID_REQUEST(f"{error.reason} ({error.status})")


@web.middleware
async def _authorized(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The bearer token, compared in constant time, before the body is read."""
    token = request.app[TOKEN]
    if token and request.path not in ("/healthz", "/readyz", "/metrics"):
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # Headers may hold any bytes; undecodable ones arrive as surrogates.
        shown = given.strip().encode("utf-8", "surrogateescape")
        is_right = hmac.compare_digest(shown, token.encode())
        if scheme.lower() != "bearer" or not is_right:
            raise ProblemError(
                UNAUTHORIZED(
                    "The request carries no valid token.",
                    hint="`ozy context show` tells which cluster is asked; $OZY_TOKEN overrides.",
                )
            )
    return await handler(request)


@web.middleware
async def _member(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A daemon that is no member of its cluster has nothing true to say about it."""
    is_known = request.match_info.http_exception is None
    if is_known and request.path.startswith("/v1/"):
        request.app[OPERATIONS].check_session()
    return await handler(request)


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
    token: str = "",
    socket_path: Path | None = None,
) -> AsyncIterator[Served]:
    """Serve while the context lasts. TCP stays closed without a token. OSError: can't listen."""
    async with AsyncExitStack() as stack:
        port = 0
        if listen is not None and token:
            runner = await stack.enter_async_context(_running(make_app(operations, token)))
            await web.TCPSite(runner, *listen).start()
            port = runner.addresses[0][1]
        if socket_path is not None:
            runner = await stack.enter_async_context(_running(make_app(operations, "")))
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
        handle_signals=False,
    )
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


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
