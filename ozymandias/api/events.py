"""`/v1/events`: what happened, as a list, or as server-sent events that go on."""

from aiohttp import web

from ozymandias.api.operations import EVENTS_MAX, EventFilter
from ozymandias.api.request import flag, number, operations, whole
from ozymandias.api.streaming import EventSink, stream


async def events(request: web.Request) -> web.StreamResponse:
    query = request.query
    wanted = EventFilter(
        namespace=query.get("namespace", ""),
        job=query.get("job", ""),
        node=query.get("node", ""),
        since=number(request, "since"),
        limit=whole(request, "limit", least=1, most=EVENTS_MAX) or EVENTS_MAX,
    )
    if not flag(request, "follow"):
        return web.json_response(operations(request).events(wanted))
    sink = EventSink(request)
    return await stream(sink, operations(request).follow_events(wanted, sink), beats=True)


ROUTES = (web.get("/v1/events", events),)
