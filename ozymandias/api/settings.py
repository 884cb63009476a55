"""`/v1/settings`: what the operators have settled for the whole cluster."""

from aiohttp import web

from ozymandias.api import models_settings as models
from ozymandias.api.access import Document
from ozymandias.api.request import IF_MATCH, asked, decoded, operations
from ozymandias.api.routes import Body, Route
from ozymandias.api.settling import change_of
from ozymandias.problems import (
    CHANGED_MEANWHILE,
    CONFLICT,
    INVALID_SETTING,
    OUTCOME_UNKNOWN,
    TOO_LARGE,
)


def answered(found: Document, tag: str) -> web.Response:
    return web.json_response(found, headers={"ETag": tag})


async def show(request: web.Request) -> web.StreamResponse:
    found = operations(request).settings.show()
    return answered(found, found["etag"])


async def change(request: web.Request) -> web.StreamResponse:
    wanted = asked(request)
    body = await decoded(request, models.SettingsRequest)
    found = await operations(request).settings.change(change_of(body), wanted)
    return answered(found, found["settings"]["etag"])


# Routes -----------------------------------------------------------------------------------------

CHANGING = (INVALID_SETTING, TOO_LARGE, CHANGED_MEANWHILE, CONFLICT, OUTCOME_UNKNOWN)

ROUTES = (
    Route(
        method="GET",
        path="/v1/settings",
        handler=show,
        about="What is settled for the whole cluster.",
        answers={200: models.ClusterSettings},
    ),
    Route(
        method="PATCH",
        path="/v1/settings",
        handler=change,
        about="Change settings of the cluster.\nWhat is left out stays; a class or pool that is"
        " null is taken away. All of it is changed, or nothing.",
        answers={200: models.SettingsChanged},
        problems=CHANGING,
        body=Body(model=models.SettingsRequest),
        headers=(IF_MATCH,),
        change="settings.change",
    ),
)
