"""`/v1/drift` and `/v1/rebalance`: what is given up, and what would move to have it."""

from aiohttp import web

from ozymandias.api import models_moves as models
from ozymandias.api.request import (
    IF_MATCH,
    OVERRIDE,
    asked,
    decoded,
    operations,
    override_of,
    query,
)
from ozymandias.api.routes import Body, Route, whole
from ozymandias.core.rebalance import MOVES_MAX
from ozymandias.problems import CHANGED_MEANWHILE, CONFLICT, OUTCOME_UNKNOWN, TOO_LARGE


async def drift(request: web.Request) -> web.StreamResponse:
    return web.json_response(await operations(request).moving.drift())


async def foresee(request: web.Request) -> web.StreamResponse:
    return web.json_response(await operations(request).moving.foresee(**query(request)))


async def rebalance(request: web.Request) -> web.StreamResponse:
    wanted = asked(request)
    body = await decoded(request, models.RebalanceRequest)
    found = await operations(request).moving.rebalance(
        body.max_moves, wanted, override_freeze=override_of(request)
    )
    return web.json_response(found)


# Routes -----------------------------------------------------------------------------------------

ROUTES = (
    Route(
        method="GET",
        path="/v1/drift",
        handler=drift,
        about="What jobs prefer and do without.\nSince when, why, and whether a move would heal it"
        " now.",
        answers={200: models.DriftList},
    ),
    Route(
        method="GET",
        path="/v1/rebalance",
        handler=foresee,
        about="What a rebalance would move, and what that gains.\nNothing is changed.",
        answers={200: models.RebalanceView},
        query=(whole("max_moves", "At most so many moves.", least=1, most=MOVES_MAX),),
    ),
    Route(
        method="POST",
        path="/v1/rebalance",
        handler=rebalance,
        about="Lay the cluster out better.\nMoves begin one after the other, each instance healthy"
        " elsewhere before it stops here, none in a freeze window unless a reason overrides it."
        " 0 moves ends it.",
        answers={200: models.RebalanceBegun},
        problems=(TOO_LARGE, CHANGED_MEANWHILE, CONFLICT, OUTCOME_UNKNOWN),
        query=(OVERRIDE,),
        body=Body(model=models.RebalanceRequest),
        headers=(IF_MATCH,),
        change="rebalance",
    ),
)
