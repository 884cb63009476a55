"""`/v1/freezes`: times in which nothing is changed that can wait."""

from aiohttp import web

from ozymandias.api import models_settings as models
from ozymandias.api.request import IF_MATCH, asked, decoded, operations, query, text
from ozymandias.api.routes import Body, Route
from ozymandias.api.routes import text as text_parameter
from ozymandias.api.settings import CHANGING, answered
from ozymandias.problems import FREEZE_NOT_FOUND

REASON_CHARACTERS_MAX = 200


async def list_freezes(request: web.Request) -> web.StreamResponse:
    found = operations(request).settings.freezes()
    return answered(found, found["etag"])


async def freeze(request: web.Request) -> web.StreamResponse:
    wanted = asked(request)
    body = await decoded(request, models.FreezeRequest)
    body.reason = text(body.reason, REASON_CHARACTERS_MAX)
    found = await operations(request).settings.freeze(request.match_info["freeze"], body, wanted)
    return answered(found, found["freezes"]["etag"])


async def unfreeze(request: web.Request) -> web.StreamResponse:
    why = text(query(request).get("reason", ""), REASON_CHARACTERS_MAX).strip()
    found = await operations(request).settings.unfreeze(
        request.match_info["freeze"], asked(request), why
    )
    return answered(found, found["freezes"]["etag"])


# Routes -----------------------------------------------------------------------------------------

_FREEZE = "/v1/freezes/{freeze}"

ROUTES = (
    Route(
        method="GET",
        path="/v1/freezes",
        handler=list_freezes,
        about="Freeze windows of the cluster, and which of them holds now.",
        answers={200: models.FreezeList},
    ),
    Route(
        method="PUT",
        path=_FREEZE,
        handler=freeze,
        about="Add or replace a freeze window.\nRollouts, rebalancing and autoscaling wait while it"
        " holds. Windows that would leave no minute of the week free are refused.",
        answers={200: models.FreezeChanged},
        problems=CHANGING,
        body=Body(model=models.FreezeRequest),
        headers=(IF_MATCH,),
        change="freeze.set",
    ),
    Route(
        method="DELETE",
        path=_FREEZE,
        handler=unfreeze,
        about="Remove a freeze window.\nWhat waited for its end goes on at once, so one that holds"
        " now is removed only with a reason.",
        answers={200: models.FreezeChanged},
        problems=(FREEZE_NOT_FOUND, *CHANGING),
        query=(text_parameter("reason", "Why it ends; recorded.", REASON_CHARACTERS_MAX),),
        headers=(IF_MATCH,),
        change="freeze.remove",
    ),
)
