"""`/v1/nodes` and `/v1/info`."""

from aiohttp import web

from ozymandias.api.request import operations


async def list_nodes(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).nodes())


async def info(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).info())


ROUTES = (web.get("/v1/nodes", list_nodes), web.get("/v1/info", info))
