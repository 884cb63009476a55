"""All routes: the one table that the application, its document and its tests go by."""

import functools
import json

from aiohttp import web

from ozymandias.api import (
    balance,
    events,
    explain,
    freezes,
    future,
    instances,
    jobs,
    metrics,
    nodes,
    pools,
    settings,
)
from ozymandias.api.openapi import describe
from ozymandias.api.routes import Route


async def description(request: web.Request) -> web.StreamResponse:
    return web.Response(body=described(), content_type="application/json")


ROUTES: tuple[Route, ...] = (
    *jobs.ROUTES,
    *instances.ROUTES,
    *nodes.ROUTES,
    *pools.ROUTES,
    *settings.ROUTES,
    *future.ROUTES,
    *freezes.ROUTES,
    *explain.ROUTES,
    *balance.ROUTES,
    *events.ROUTES,
    *metrics.ROUTES,
    Route(
        method="GET",
        path="/v1/openapi.json",
        handler=description,
        about="This description.",
        answers={200: dict},
    ),
)


@functools.cache
def described() -> bytes:
    """Drawn when somebody first asks for it."""
    return json.dumps(describe(ROUTES), separators=(",", ":")).encode()
