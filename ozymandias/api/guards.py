"""What stands before every handler: limits, names, tokens, the audit, the query, rights.

In this order, each before anything that costs more: which host the request is meant for, who asks,
how often; then, for a change, the line of the audit; then whether this daemon is a member of its
cluster at all, whether the query is one that the route declares, and whether the caller has the
right to it. The body is read by the handler alone, so nobody without a token gets a byte of it
parsed.
"""

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from ozymandias.api import rights
from ozymandias.api.audit import Audit
from ozymandias.api.callers import CALLER, Caller, Door
from ozymandias.api.changes import Asked
from ozymandias.api.limits import Buckets, Limits
from ozymandias.api.request import ASKED, OPERATIONS, QUERY
from ozymandias.api.routes import Route
from ozymandias.problems import HOST_NOT_ALLOWED, INVALID_REQUEST, RATE_LIMITED, ProblemError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST_ID = web.RequestKey("request_id", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What one listener lets in."""

    door: Door
    limits: Limits
    hosts: frozenset[str]
    audit: Audit
    callers: Buckets
    strangers: Buckets

    @classmethod
    def of(cls, door: Door, limits: Limits, hosts: frozenset[str], audit: Audit) -> "Guard":
        return cls(
            door=door,
            limits=limits,
            hosts=hosts,
            audit=audit,
            callers=Buckets(limits.caller),
            strangers=Buckets(limits.stranger),
        )

    def check_host(self, header: str) -> None:
        """An address, localhost, or a name of this node: what a hostile name can't look like."""
        name = header.strip().lower()
        if self.door.tokens is None:
            return
        host = name.rpartition(":")[0] if name.rpartition(":")[2].isdecimal() else name
        if host in self.hosts or host == "localhost" or _is_address(host.strip("[]")):
            return
        raise ProblemError(
            HOST_NOT_ALLOWED(
                "The request is meant for a name that is not this node's.",
                hint="Ask by address, or list the name under [api] hosts.",
            )
        )

    def admit(self, request: web.Request) -> Caller:
        address = request.remote or ""
        try:
            caller = self.door.admit(request)
        except ProblemError:
            wait = self.strangers.wait_seconds(address)
            self.strangers.take(address)
            if wait:
                raise _limited("wrong tokens", wait) from None
            raise
        if not caller.is_peer:
            wait = self.callers.wait_seconds(caller.name)
            if wait:
                raise _limited("requests", wait)
            self.callers.take(caller.name)
        return caller


GUARD = web.AppKey("guard", Guard)
TABLE: web.AppKey[dict[tuple[str, str], Route]] = web.AppKey("table", dict)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _limited(what: str, wait: int) -> ProblemError:
    return ProblemError(
        RATE_LIMITED(f"Too many {what}.", hint=f"Try again in {wait} s.", retry_after_seconds=wait)
    )


def route_of(request: web.Request) -> Route | None:
    """None for what is not in the table: unknown paths and methods."""
    resource = request.match_info.route.resource
    return request.app[TABLE].get((request.method, resource.canonical)) if resource else None


@web.middleware
async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
    route = route_of(request)
    if route is None or not route.is_open:
        guard = request.app[GUARD]
        guard.check_host(request.headers.get("Host", ""))
        request[CALLER] = guard.admit(request)
    return await handler(request)


@web.middleware
async def audited(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One line per change that is asked for, whatever comes of it."""
    route = route_of(request)
    caller = request.get(CALLER)
    asked = request[ASKED] = Asked(right=caller.right) if caller else Asked()
    # What a peer passes on was written down where it came in.
    if route is None or not route.change or request[CALLER].is_peer:
        return await handler(request)
    outcome = "broken-off"
    try:
        response = await handler(request)
        outcome = "done" if asked.changed else "replayed" if asked.replayed else "unchanged"
        return response
    except ProblemError as error:
        outcome = error.problem.kind.slug
        raise
    except asyncio.CancelledError:
        raise
    except web.HTTPException as error:
        outcome = f"http-{error.status}"
        raise
    except Exception:
        outcome = "internal"
        raise
    finally:
        request.app[GUARD].audit.write(_line(request, route.change, asked, outcome))


def _line(request: web.Request, change: str, asked: Asked, outcome: str) -> dict[str, object]:
    return {
        "time": round(time.time(), 3),
        "request": request[REQUEST_ID],
        "node": request.app[OPERATIONS].info()["node"],
        "who": request[CALLER].name,
        "by": asked.by,
        "address": request.remote or "",
        "what": change,
        **_subject(request, asked),
        "before": asked.before,
        "after": asked.after if outcome in ("done", "unchanged", "replayed") else None,
        "outcome": outcome,
    }


def _subject(request: web.Request, asked: Asked) -> dict[str, object]:
    """What was to be changed; a node is the target, for `node` is the one that was asked."""
    found = asked.subject or dict(request.match_info)
    return {"target" if name == "node" else name: value for name, value in found.items()}


@web.middleware
async def member(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A daemon that is no member of its cluster has nothing true to say about it."""
    route = route_of(request)
    if route is not None and not route.is_open and route.path != "/v1/openapi.json":
        request.app[OPERATIONS].check_session()
    return await handler(request)


@web.middleware
async def parsed(request: web.Request, handler: Handler) -> web.StreamResponse:
    route = route_of(request)
    if route is not None:
        if any("\0" in value for value in request.match_info.values()):
            raise ProblemError(INVALID_REQUEST("The path holds a NUL."))
        request[QUERY] = route.read_query(request)
    return await handler(request)


@web.middleware
async def permitted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Here and not in handlers: also a daemon that passes a request on refuses it first."""
    route = route_of(request)
    if route is not None and route.change:
        rights.check(request[CALLER].right, route.change)
        if request[QUERY].get("override_freeze") is not None:  # empty it is no reason, but meant
            rights.check_override(request[CALLER].right)
    return await handler(request)
