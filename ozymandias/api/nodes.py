"""`/v1/nodes`, `/v1/info`, and the API's own description."""

from aiohttp import web

from ozymandias.api import models
from ozymandias.api.instances import PAGED
from ozymandias.api.request import operations, query
from ozymandias.api.routes import Route


async def list_nodes(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).nodes(**query(request)))


async def info(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).info())


ROUTES = (
    Route(
        method="GET",
        path="/v1/nodes",
        handler=list_nodes,
        about="Nodes, with what they have and what is allocated.",
        answers={200: models.NodeList},
        query=PAGED,
    ),
    Route(
        method="GET",
        path="/v1/info",
        handler=info,
        about="Which cluster and node answers, and its version.",
        answers={200: models.Info},
    ),
)
