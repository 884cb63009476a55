"""Why not there, and `/v1/replay`: the state as a file for the same scheduler elsewhere."""

from aiohttp import web

from ozymandias.api import explained_models
from ozymandias.api.request import ASKED, key_of, operations, query
from ozymandias.api.routes import Route, flag, text
from ozymandias.model.node import NodeName
from ozymandias.problems import JOB_NOT_FOUND, NODE_NOT_FOUND, RESOURCE_NOT_FOUND


async def why_not(request: web.Request) -> web.StreamResponse:
    node = NodeName(request.match_info["node"])
    right = request[ASKED].right
    return web.json_response(await operations(request).why_not(key_of(request), node, right))


async def replay(request: web.Request) -> web.StreamResponse:
    given = query(request)
    body = await operations(request).explaining.replay(
        with_environment=given.get("environment", False), decision=given.get("decision", "")
    )
    return web.Response(body=body, content_type="application/json")


ROUTES = (
    Route(
        method="GET",
        path="/v1/jobs/{namespace}/{job}/why-not/{node}",
        handler=why_not,
        about="Why another instance of the job would not go to this node.\nWhat speaks against it,"
        " or by what others beat it, and changes that were tried and would do.",
        answers={200: explained_models.WhyNot},
        problems=(JOB_NOT_FOUND, NODE_NOT_FOUND),
    ),
    Route(
        method="GET",
        path="/v1/replay",
        handler=replay,
        about="The state as one file.\n`ozy replay` runs the same scheduler over it, without a"
        " cluster, and comes to the same plan byte for byte.",
        answers={200: dict},
        problems=(RESOURCE_NOT_FOUND,),
        query=(
            flag("environment", "With the values of environment variables."),
            text("decision", "What a recorded decision was made on instead: `n1/17`."),
        ),
    ),
)
