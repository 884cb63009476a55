"""`/v1/instances`: rows, and looking into one: logs, exec, why."""

from aiohttp import web

from ozymandias.api.inside import EXEC_SECONDS_MAX, ExecRequest, LogsRequest
from ozymandias.api.request import PASSED_ON, flag, object_of, operations, whole
from ozymandias.api.streaming import LineSink, stream, while_connected
from ozymandias.problems import INVALID_REQUEST, ProblemError

EXEC_SECONDS_DEFAULT = 60.0


async def list_instances(request: web.Request) -> web.StreamResponse:
    found = operations(request).instances(
        namespace=request.query.get("namespace", ""), job=request.query.get("job", "")
    )
    return web.json_response(found)


def logs_request(request: web.Request) -> LogsRequest:
    return LogsRequest(
        container=request.query.get("container", ""),
        tail=whole(request, "tail", most=1_000_000),
        follow=flag(request, "follow"),
        previous=flag(request, "previous"),
        run=request.query.get("run", ""),
        is_passed_on=PASSED_ON in request.headers,
    )


async def logs(request: web.Request) -> web.StreamResponse:
    wanted = logs_request(request)
    sink = LineSink(request)
    reading = operations(request).inside.instance_logs(*_named(request), wanted, sink)
    return await stream(sink, reading, beats=wanted.follow)


async def run_command(request: web.Request) -> web.StreamResponse:
    wanted = await _exec_request(request)
    running = operations(request).inside.exec(*_named(request), wanted)
    return web.json_response(await while_connected(request, running))


async def why(request: web.Request) -> web.StreamResponse:
    return web.json_response(await operations(request).inside.why(*_named(request)))


def _named(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["instance"]


async def _exec_request(request: web.Request) -> ExecRequest:
    body = await object_of(request)
    command, container = body.get("command"), body.get("container") or ""
    seconds = body.get("timeout_seconds", EXEC_SECONDS_DEFAULT)
    if not isinstance(command, list) or not command or not all(isinstance(c, str) for c in command):
        raise ProblemError(INVALID_REQUEST("command must be a list of words, and not empty."))
    if any("\0" in word for word in command) or not isinstance(container, str):
        raise ProblemError(INVALID_REQUEST("command and container must be plain text."))
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ProblemError(INVALID_REQUEST("timeout_seconds must be a number."))
    if not 0 < seconds <= EXEC_SECONDS_MAX:
        raise ProblemError(
            INVALID_REQUEST(f"timeout_seconds must be over 0 and at most {EXEC_SECONDS_MAX:.0f}.")
        )
    return ExecRequest(
        container=container,
        command=tuple(command),
        timeout_seconds=float(seconds),
        is_passed_on=PASSED_ON in request.headers,
    )


ROUTES = (
    web.get("/v1/instances", list_instances),
    web.get("/v1/instances/{namespace}/{instance}/logs", logs),
    web.post("/v1/instances/{namespace}/{instance}/exec", run_command),
    web.get("/v1/instances/{namespace}/{instance}/why", why),
)
