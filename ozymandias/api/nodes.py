"""`/v1/nodes`, what operators do to them, `/v1/info`."""

from aiohttp import web

from ozymandias.api import models
from ozymandias.api.instances import PAGED
from ozymandias.api.request import ASKED, asked, decoded, operations, query, text
from ozymandias.api.routes import Body, Route
from ozymandias.api.upkeep import REASON_CHARACTERS_MAX
from ozymandias.model.node import NodeName
from ozymandias.problems import (
    CONFLICT,
    DRAIN_BLOCKED,
    NODE_DRAINING,
    NODE_NOT_FOUND,
    OUTCOME_UNKNOWN,
    TOO_LARGE,
)


def _name(request: web.Request) -> NodeName:
    return NodeName(request.match_info["node"])


async def list_nodes(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).nodes(**query(request)))


async def one_node(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).upkeep.node(_name(request)))


async def cordon(request: web.Request) -> web.StreamResponse:
    found = await operations(request).upkeep.cordon(_name(request), asked(request))
    return web.json_response(found)


async def uncordon(request: web.Request) -> web.StreamResponse:
    found = await operations(request).upkeep.uncordon(_name(request), asked(request))
    return web.json_response(found)


async def drain(request: web.Request) -> web.StreamResponse:
    wanted = asked(request)
    body = await decoded(request, models.DrainRequest)
    upkeep = operations(request).upkeep
    if body.dry_run:
        return web.json_response(upkeep.outlook(_name(request)))
    found = await upkeep.drain(
        _name(request),
        deadline_seconds=body.deadline_seconds,
        force=body.force,
        reason=text(body.reason, REASON_CHARACTERS_MAX),
        asked=wanted,
    )
    return web.json_response(found)


async def undrain(request: web.Request) -> web.StreamResponse:
    found = await operations(request).upkeep.undrain(_name(request), asked(request))
    return web.json_response(found)


async def label(request: web.Request) -> web.StreamResponse:
    wanted = asked(request)
    body = await decoded(request, models.LabelRequest)
    upkeep = operations(request).upkeep
    return web.json_response(await upkeep.label(_name(request), body.set, body.remove, wanted))


async def shedding(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).upkeep.shedding(_name(request)))


async def info(request: web.Request) -> web.StreamResponse:
    right = request[ASKED].right.value
    return web.json_response({**operations(request).info(), "right": right})


# Routes -----------------------------------------------------------------------------------------

_NODE = "/v1/nodes/{node}"
_CHANGING = (NODE_NOT_FOUND, CONFLICT, OUTCOME_UNKNOWN)

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
        path=_NODE,
        handler=one_node,
        about="One node; while it is drained, with what is in the way.",
        answers={200: models.NodeRow},
        problems=(NODE_NOT_FOUND,),
    ),
    Route(
        method="POST",
        path=f"{_NODE}/cordon",
        handler=cordon,
        about="Let the node take no new work.\nWhat is on it stays.",
        answers={200: models.NodeChanged},
        problems=_CHANGING,
        change="node.cordon",
    ),
    Route(
        method="POST",
        path=f"{_NODE}/uncordon",
        handler=uncordon,
        about="Let the node take work again.",
        answers={200: models.NodeChanged},
        problems=(NODE_DRAINING, *_CHANGING),
        change="node.uncordon",
    ),
    Route(
        method="POST",
        path=f"{_NODE}/drain",
        handler=drain,
        about="Empty the node.\nIts instances start elsewhere, and stop here once the new ones are"
        " healthy. Refused, unless forced, when something could not move. With `dry_run` nothing is"
        " changed: the answer has what would move where, and what could not.",
        answers={200: models.Drained},
        problems=(DRAIN_BLOCKED, TOO_LARGE, *_CHANGING),
        body=Body(model=models.DrainRequest),
        change="node.drain",
    ),
    Route(
        method="POST",
        path=f"{_NODE}/undrain",
        handler=undrain,
        about="End a drain.\nWhat has not left stays.",
        answers={200: models.NodeChanged},
        problems=_CHANGING,
        change="node.undrain",
    ),
    Route(
        method="POST",
        path=f"{_NODE}/labels",
        handler=label,
        about="Set and take away labels.\nThey win over those of the node's settings.",
        answers={200: models.NodeChanged},
        problems=(TOO_LARGE, *_CHANGING),
        body=Body(model=models.LabelRequest),
        change="node.label",
    ),
    Route(
        method="GET",
        path=f"{_NODE}/shed",
        handler=shedding,
        about="Who leaves the node while pressure on its host lasts, in order, and who does not."
        "\nNothing is changed.",
        answers={200: models.Shedding},
        problems=(NODE_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path="/v1/info",
        handler=info,
        about="Which cluster and node answers, and its version.",
        answers={200: models.Info},
    ),
)
