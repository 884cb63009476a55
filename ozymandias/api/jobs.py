"""`/v1/jobs` and `/v1/plan`: parse, call, render."""

from aiohttp import web

from ozymandias.api import explained_models, models
from ozymandias.api.access import Document
from ozymandias.api.changes import Asked
from ozymandias.api.instances import LOGS_ABOUT, LOGS_QUERY, PAGED, logs_request
from ozymandias.api.request import (
    ASKED,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    OVERRIDE,
    REPLAYED,
    asked,
    body_of,
    decoded,
    idempotency_key,
    key_of,
    operations,
    override_of,
    query,
    text,
)
from ozymandias.api.routes import Body, Route, number, whole
from ozymandias.api.routes import text as text_parameter
from ozymandias.api.streaming import LineSink, stream
from ozymandias.problems import (
    AUTOSCALED,
    BURST_NODE_NOT_FOUND,
    CHANGED_MEANWHILE,
    CONFLICT,
    FORBIDDEN,
    HOST_TAKEN,
    INSUFFICIENT_CPU,
    INSUFFICIENT_DISK,
    INSUFFICIENT_MEMORY,
    INSUFFICIENT_PORTS,
    INVALID_JOB,
    INVALID_WHAT_IF,
    JOB_NOT_FOUND,
    JOB_STOPPING,
    KEY_REUSED,
    NEIGHBOUR_NOT_FOUND,
    NO_MATCHING_NODE,
    NO_NODES,
    NODE_NOT_FOUND,
    NOT_RUNNING,
    OUTCOME_UNKNOWN,
    PLAN_TOO_LARGE,
    SYSTEM_JOB,
    TOO_LARGE,
)

FILE_CHARACTERS_MAX = 200
MESSAGE_CHARACTERS_MAX = 500
LOSE_ANY_MAX = 10


def _file(request: web.Request) -> str:
    return text(query(request).get("file", ""), FILE_CHARACTERS_MAX) or "<stdin>"


def _answer(found: Document, status: int = 200, *, replayed: bool = False) -> web.Response:
    headers = {"ETag": found["etag"]} | ({REPLAYED: "true"} if replayed else {})
    return web.json_response(found, status=status, headers=headers)


async def submit(request: web.Request) -> web.StreamResponse:
    wanted = asked(request)
    found = await operations(request).submit(
        await body_of(request),
        file=_file(request),
        message=text(query(request).get("message", ""), MESSAGE_CHARACTERS_MAX),
        override_freeze=override_of(request),
        asked=wanted,
        key=idempotency_key(request),
    )
    replayed = wanted.replayed is not None
    return _answer(found, 201 if found["created"] else 200, replayed=replayed)


async def plan(request: web.Request) -> web.StreamResponse:
    losses = {k: v for k, v in query(request).items() if k in ("lose_node", "lose_any")}
    found = await operations(request).plan(
        await body_of(request), file=_file(request), right=request[ASKED].right, **losses
    )
    return web.json_response(found)


async def list_jobs(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).jobs(**query(request)))


async def status(request: web.Request) -> web.StreamResponse:
    given = query(request)
    after, wait = given.get("after", 0), given.get("wait", 0.0)
    found = await operations(request).job_status(key_of(request), after=after, wait_seconds=wait)
    return _answer(found)


def _answer_once(found: Document, wanted: Asked) -> web.Response:
    return _answer(found, replayed=wanted.replayed is not None)


async def stop(request: web.Request) -> web.StreamResponse:
    return _answer(await operations(request).stop(key_of(request), asked(request)))


async def scale(request: web.Request) -> web.StreamResponse:
    wanted = asked(request)
    body = await decoded(request, models.ScaleRequest)
    once = idempotency_key(request)
    found = await operations(request).scale(key_of(request), body.instances, wanted, once)
    return _answer_once(found, wanted)


async def restart(request: web.Request) -> web.StreamResponse:
    wanted, once = asked(request), idempotency_key(request)
    found = await operations(request).restart(
        key_of(request), wanted, once, override_freeze=override_of(request)
    )
    return _answer_once(found, wanted)


async def versions(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).versions(key_of(request)))


async def why(request: web.Request) -> web.StreamResponse:
    right = request[ASKED].right
    return web.json_response(await operations(request).why(key_of(request), right))


async def logs(request: web.Request) -> web.StreamResponse:
    wanted = logs_request(request)
    sink = LineSink(request)
    reading = operations(request).job_logs(key_of(request), wanted, sink)
    return await stream(sink, reading, beats=wanted.follow)


# Routes -----------------------------------------------------------------------------------------

_FILE = text_parameter("file", "Name of the job file, for messages about it.", FILE_CHARACTERS_MAX)
_MESSAGE = text_parameter("message", "Why, for the record.", MESSAGE_CHARACTERS_MAX)
_FITS = (
    *(INSUFFICIENT_MEMORY, INSUFFICIENT_DISK, INSUFFICIENT_PORTS, INSUFFICIENT_CPU),
    *(NO_NODES, NO_MATCHING_NODE),
)
_CHANGING = (CHANGED_MEANWHILE, JOB_STOPPING, PLAN_TOO_LARGE, CONFLICT, OUTCOME_UNKNOWN)
_JOB = "/v1/jobs/{namespace}/{job}"

ROUTES = (
    Route(
        method="POST",
        path="/v1/jobs",
        handler=submit,
        about="Create or change a job.\n201 for a new one, 200 for a change or none. All instances"
        " are placed, or nothing is changed.",
        answers={200: models.Changed, 201: models.Changed},
        problems=(
            *(INVALID_JOB, TOO_LARGE, HOST_TAKEN, KEY_REUSED),
            *(NEIGHBOUR_NOT_FOUND, BURST_NODE_NOT_FOUND),
            *_FITS,
            *_CHANGING,
        ),
        query=(_FILE, _MESSAGE, OVERRIDE),
        body=Body(),
        headers=(IF_MATCH, IDEMPOTENCY_KEY),
        change="job.submit",
    ),
    Route(
        method="GET",
        path="/v1/jobs",
        handler=list_jobs,
        about="All jobs.",
        answers={200: models.JobList},
        query=(text_parameter("namespace", "Only of this namespace."), *PAGED),
    ),
    Route(
        method="POST",
        path="/v1/plan",
        handler=plan,
        about="What a submit would do now.\nDecided as for a submit, and thrown away.",
        answers={200: explained_models.Planned},
        problems=(FORBIDDEN, INVALID_JOB, TOO_LARGE, NODE_NOT_FOUND, INVALID_WHAT_IF),
        query=(
            _FILE,
            text_parameter("lose_node", "And then this node is lost; several: n1,n2."),
            whole("lose_any", "And then any so many nodes are lost.", least=1, most=LOSE_ANY_MAX),
        ),
        body=Body(),
    ),
    Route(
        method="GET",
        path=_JOB,
        handler=status,
        about="One job with its instances.",
        answers={200: models.JobStatus},
        problems=(JOB_NOT_FOUND,),
        query=(
            whole("after", "Answer once the cluster is beyond this revision.", most=2**62),
            number("wait", "Seconds to wait for that at most; 30 is the most.", most=3600.0),
        ),
    ),
    Route(
        method="DELETE",
        path=_JOB,
        handler=stop,
        about="Stop the job and its instances.",
        answers={200: models.Changed},
        problems=(JOB_NOT_FOUND, *_CHANGING),
        headers=(IF_MATCH,),
        change="job.stop",
    ),
    Route(
        method="POST",
        path=f"{_JOB}/scale",
        handler=scale,
        about="Change the number of instances.",
        answers={200: models.Changed},
        problems=(JOB_NOT_FOUND, SYSTEM_JOB, AUTOSCALED, TOO_LARGE, KEY_REUSED, *_FITS, *_CHANGING),
        body=Body(model=models.ScaleRequest),
        headers=(IF_MATCH, IDEMPOTENCY_KEY),
        change="job.scale",
    ),
    Route(
        method="POST",
        path=f"{_JOB}/restart",
        handler=restart,
        about="Replace every instance, one at a time.",
        answers={200: models.Changed},
        problems=(JOB_NOT_FOUND, KEY_REUSED, *_CHANGING),
        query=(OVERRIDE,),
        headers=(IF_MATCH, IDEMPOTENCY_KEY),
        change="job.restart",
    ),
    Route(
        method="GET",
        path=f"{_JOB}/versions",
        handler=versions,
        about="The kept versions, oldest first.\nAt most 20; they outlive the job.",
        answers={200: models.VersionList},
        problems=(JOB_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=f"{_JOB}/why",
        handler=why,
        about="Why the job is as it is, in plain words.",
        answers={200: explained_models.JobWhy},
        problems=(JOB_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=f"{_JOB}/logs",
        handler=logs,
        about=f"Logs of all instances.\n{LOGS_ABOUT}",
        answers={200: models.LogLine},
        media=("application/x-ndjson",),
        problems=(JOB_NOT_FOUND, NOT_RUNNING),
        query=LOGS_QUERY,
    ),
)
