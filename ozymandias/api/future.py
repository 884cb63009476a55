"""`/v1/status` and `/v1/what-if`: the cluster at a glance, and as it would be."""

from aiohttp import web

from ozymandias.api import explained_models, models
from ozymandias.api.request import ASKED, decoded, operations
from ozymandias.api.routes import Body, Route
from ozymandias.problems import INVALID_WHAT_IF, TOO_LARGE


async def status(request: web.Request) -> web.StreamResponse:
    return web.json_response(await operations(request).foresight.status())


async def what_if(request: web.Request) -> web.StreamResponse:
    body = await decoded(request, models.WhatIfRequest)
    foresight = operations(request).foresight
    return web.json_response(await foresight.what_if(body.steps, request[ASKED].right))


ROUTES = (
    Route(
        method="GET",
        path="/v1/status",
        handler=status,
        about="The cluster at a glance.\nAlso whether it survives the loss of any one node.",
        answers={200: explained_models.ClusterStatus},
    ),
    Route(
        method="POST",
        path="/v1/what-if",
        handler=what_if,
        about="What would become of the cluster.\nThe steps are supposed one after the other, and"
        " each is played by the scheduler on a working copy until it rests. Nothing is changed.",
        answers={200: explained_models.Outcome},
        problems=(INVALID_WHAT_IF, TOO_LARGE),
        body=Body(model=models.WhatIfRequest),
    ),
)
