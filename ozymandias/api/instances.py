"""`/v1/instances`: rows, and looking into one: logs, exec, why."""

from aiohttp import web

from ozymandias.api import explained_models, models
from ozymandias.api.inside import ExecRequest, LogsRequest
from ozymandias.api.pages import LIMIT_MAX
from ozymandias.api.request import PASSED_ON, asked, decoded, operations, query
from ozymandias.api.routes import Body, Route, cursor, flag, text, whole
from ozymandias.api.streaming import LineSink, stream, while_connected
from ozymandias.problems import (
    INSTANCE_NOT_FOUND,
    INVALID_REQUEST,
    JOB_NOT_FOUND,
    NODE_UNREACHABLE,
    NOT_RUNNING,
    RUNTIME_FAILED,
    TOO_LARGE,
    ProblemError,
)


async def list_instances(request: web.Request) -> web.StreamResponse:
    return web.json_response(operations(request).instances(**query(request)))


def logs_request(request: web.Request) -> LogsRequest:
    return LogsRequest(**query(request), is_passed_on=PASSED_ON in request.headers)


async def logs(request: web.Request) -> web.StreamResponse:
    wanted = logs_request(request)
    sink = LineSink(request)
    reading = operations(request).inside.instance_logs(*_named(request), wanted, sink)
    return await stream(sink, reading, beats=wanted.follow)


async def run_command(request: web.Request) -> web.StreamResponse:
    noted, body = asked(request), await decoded(request, models.ExecRequest)
    if any("\0" in word for word in (*body.command, body.container)):
        raise ProblemError(INVALID_REQUEST("command and container must be without NUL."))
    namespace, instance = _named(request)
    noted.subject = {"namespace": namespace, "instance": instance, "container": body.container}
    wanted = ExecRequest(
        container=body.container,
        command=tuple(body.command),
        timeout_seconds=body.timeout_seconds,
        is_passed_on=PASSED_ON in request.headers,
        right=noted.right,
    )
    running = operations(request).inside.exec(namespace, instance, wanted)
    found = await while_connected(request, running)
    noted.changed, noted.after = True, {"exit_code": found["exit_code"]}
    return web.json_response(found)


async def why(request: web.Request) -> web.StreamResponse:
    return web.json_response(await operations(request).inside.why(*_named(request)))


def _named(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["instance"]


# Routes -----------------------------------------------------------------------------------------

PAGED = (
    whole("limit", f"At most so many items; {LIMIT_MAX} if not given.", least=1, most=LIMIT_MAX),
    cursor(),
)
LOGS_QUERY = (
    text("container", "Only this container."),
    whole("tail", "Only the last so many lines of each container.", most=1_000_000),
    flag("follow", "Go on with what is written from now on."),
    flag("previous", "What is left of runs that have ended, instead."),
    text("run", "Of several at once, the one of this version and generation: `3.0`."),
)
LOGS_ABOUT = (
    "One JSON object per line: LogLine, or EndedRun with `previous`; an empty line is a sign of"
    " life. A problem after the first line is the stream's last line, as `problem`."
)
_INSTANCE = "/v1/instances/{namespace}/{instance}"

ROUTES = (
    Route(
        method="GET",
        path="/v1/instances",
        handler=list_instances,
        about="Instances, and those that wait for a place.",
        answers={200: models.InstanceList},
        problems=(JOB_NOT_FOUND,),
        query=(
            text("namespace", "Only of this namespace."),
            text("job", "Only of jobs of this name."),
            *PAGED,
        ),
    ),
    Route(
        method="GET",
        path=f"{_INSTANCE}/logs",
        handler=logs,
        about=f"What an instance has written.\n{LOGS_ABOUT}",
        answers={200: models.LogLine},
        media=("application/x-ndjson",),
        problems=(INSTANCE_NOT_FOUND, NOT_RUNNING, NODE_UNREACHABLE, RUNTIME_FAILED),
        query=LOGS_QUERY,
    ),
    Route(
        method="POST",
        path=f"{_INSTANCE}/exec",
        handler=run_command,
        about="Run a command in a container, to its end.",
        answers={200: models.ExecAnswer},
        problems=(INSTANCE_NOT_FOUND, NOT_RUNNING, NODE_UNREACHABLE, RUNTIME_FAILED, TOO_LARGE),
        body=Body(model=models.ExecRequest),
        change="instance.exec",
    ),
    Route(
        method="GET",
        path=f"{_INSTANCE}/why",
        handler=why,
        about="Why the instance is where and as it is.\nWith what every node was to it when it was"
        " placed, computed again from what the decision was made on.",
        answers={200: explained_models.InstanceWhy},
        problems=(INSTANCE_NOT_FOUND, NOT_RUNNING),
    ),
)
