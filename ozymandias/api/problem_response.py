"""Problem -> application/problem+json (RFC 9457), with Retry-After where trying again helps."""

import json
from collections.abc import Iterable

from aiohttp import web

from ozymandias.problems import Problem

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2


def problem_response(
    problem: Problem, request_id: str = "", allow: Iterable[str] = ()
) -> web.Response:
    instance = f"urn:ozymandias:request:{request_id}" if request_id else ""
    document = problem.document(instance=instance)
    headers = {}
    if problem.kind.status in (429, 503):
        headers["Retry-After"] = str(problem.fields.get("retry_after_seconds", RETRY_AFTER_SECONDS))
    if problem.kind.status == 405:
        headers["Allow"] = ", ".join(sorted(allow))
    if problem.kind.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="ozymandias"'
    return web.Response(
        status=problem.kind.status,
        body=json.dumps(document).encode() + b"\n",
        content_type=CONTENT_TYPE,
        headers=headers,
    )
