"""`/metrics`, `/healthz`, `/readyz`: for machines that watch this one. No token is asked."""

from math import nan

from aiohttp import web
from prometheus_client import generate_latest

from ozymandias.api import models
from ozymandias.api.request import operations
from ozymandias.api.routes import Route
from ozymandias.problems import STORE_UNAVAILABLE
from ozymandias.telemetry import REGISTRY, SURVIVES


async def metrics(request: web.Request) -> web.StreamResponse:
    survives = (await operations(request).foresight.survival())["survives"]
    SURVIVES.set(nan if survives is None else survives)
    return web.Response(
        body=generate_latest(REGISTRY),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def healthz(request: web.Request) -> web.StreamResponse:
    """The process answers. Nothing is said about the store: restarting would not mend that."""
    return web.json_response({"status": "alive"})


async def readyz(request: web.Request) -> web.StreamResponse:
    operations(request).check_session()
    return web.json_response({"status": "ready"})


ROUTES = (
    Route(
        method="GET",
        path="/metrics",
        handler=metrics,
        about="Counters in Prometheus' text format.",
        answers={200: str},
        media=("text/plain",),
        is_open=True,
    ),
    Route(
        method="GET",
        path="/healthz",
        handler=healthz,
        about="Whether the process answers.",
        answers={200: models.Pulse},
        is_open=True,
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=readyz,
        about="Whether this daemon is a member of its cluster.",
        answers={200: models.Pulse},
        problems=(STORE_UNAVAILABLE,),
        is_open=True,
    ),
)
