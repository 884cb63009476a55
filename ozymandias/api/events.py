"""`/v1/events`: what happened, as a list, or as server-sent events that go on."""

from aiohttp import web

from ozymandias.api import models
from ozymandias.api.operations import EVENTS_MAX, EventFilter
from ozymandias.api.request import operations, query
from ozymandias.api.routes import Route, cursor, flag, number, text, whole
from ozymandias.api.streaming import EventSink, stream


async def events(request: web.Request) -> web.StreamResponse:
    given = dict(query(request))
    follow, place = given.pop("follow", False), given.pop("cursor", "")
    wanted = EventFilter(**given)
    if not follow:
        return web.json_response(operations(request).events(wanted, cursor=place))
    sink = EventSink(request)
    return await stream(sink, operations(request).follow_events(wanted, sink), beats=True)


ROUTES = (
    Route(
        method="GET",
        path="/v1/events",
        handler=events,
        about="What happened, oldest first.\nThe newest ones; `next` leads to those before. With"
        " `follow` they are sent as server-sent events, and what happens from now on as well.",
        answers={200: models.EventList},
        media=("application/json", "text/event-stream"),
        query=(
            text("namespace", "Only of this namespace."),
            text("job", "Only of jobs of this name."),
            text("node", "Only what this node tells."),
            number("since", "Only from this time on, in seconds since 1970."),
            flag("follow", "Go on with what happens from now on."),
            whole("limit", "At most so many.", least=1, most=EVENTS_MAX),
            cursor(),
        ),
    ),
)
