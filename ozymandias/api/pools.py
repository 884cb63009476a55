"""`/v1/pools`: jobs that scale themselves by what is pending."""

from aiohttp import web

from ozymandias.api import models_pools as models
from ozymandias.api.instances import PAGED
from ozymandias.api.request import operations, query
from ozymandias.api.routes import Route, text


async def list_pools(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).pools(**query(request)))


ROUTES = (
    Route(
        method="GET",
        path="/v1/pools",
        handler=list_pools,
        about="Pools, with what is pending and what came of it.",
        answers={200: models.PoolList},
        query=(text("namespace", "Only of this namespace."), *PAGED),
    ),
)
