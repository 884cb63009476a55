"""`/v1/jobs` and `/v1/plan`: parse, call, render."""

from aiohttp import web

from ozymandias.api.instances import logs_request
from ozymandias.api.request import (
    body_of,
    flag,
    key_of,
    number,
    object_of,
    operations,
    text,
    who,
    whole,
)
from ozymandias.api.streaming import LineSink, stream
from ozymandias.problems import INVALID_REQUEST, ProblemError

FILE_CHARACTERS_MAX = 200


def _file(request: web.Request) -> str:
    return text(request.query.get("file", ""), FILE_CHARACTERS_MAX) or "<stdin>"


async def submit(request: web.Request) -> web.StreamResponse:
    found = await operations(request).submit(
        await body_of(request),
        file=_file(request),
        message=text(request.query.get("message", ""), 500),
        by=who(request),
    )
    return web.json_response(found, status=201 if found["created"] else 200)


async def plan(request: web.Request) -> web.StreamResponse:
    found = await operations(request).plan(await body_of(request), file=_file(request))
    return web.json_response(found)


async def list_jobs(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).jobs(namespace=request.query.get("namespace", "")))


async def status(request: web.Request) -> web.StreamResponse:
    """With ``after`` and ``wait`` it answers once the cluster is beyond that revision."""
    found = await operations(request).job_status(
        key_of(request),
        after=whole(request, "after", most=2**62) or 0,
        wait_seconds=number(request, "wait"),
    )
    return web.json_response(found)


async def stop(request: web.Request) -> web.StreamResponse:
    return web.json_response(await operations(request).stop(key_of(request), by=who(request)))


async def scale(request: web.Request) -> web.StreamResponse:
    body = await object_of(request)
    if "instances" not in body:
        raise ProblemError(INVALID_REQUEST('The body must be {"instances": <number>}.'))
    found = await operations(request).scale(key_of(request), body["instances"], by=who(request))
    return web.json_response(found)


async def restart(request: web.Request) -> web.StreamResponse:
    return web.json_response(await operations(request).restart(key_of(request), by=who(request)))


async def versions(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).versions(key_of(request)))


async def why(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).why(key_of(request)))


async def logs(request: web.Request) -> web.StreamResponse:
    wanted = logs_request(request)
    sink = LineSink(request)
    reading = operations(request).job_logs(key_of(request), wanted, sink)
    return await stream(sink, reading, beats=flag(request, "follow"))


ROUTES = (
    web.post("/v1/jobs", submit),
    web.get("/v1/jobs", list_jobs),
    web.post("/v1/plan", plan),
    web.get("/v1/jobs/{namespace}/{job}", status),
    web.delete("/v1/jobs/{namespace}/{job}", stop),
    web.post("/v1/jobs/{namespace}/{job}/scale", scale),
    web.post("/v1/jobs/{namespace}/{job}/restart", restart),
    web.get("/v1/jobs/{namespace}/{job}/versions", versions),
    web.get("/v1/jobs/{namespace}/{job}/why", why),
    web.get("/v1/jobs/{namespace}/{job}/logs", logs),
)
