"""The ingress's own answers: problem documents.

An answer is complete in one piece of bytes, with its length, so it can end a connection or not.
"""

import json
from http import HTTPStatus

from ozymandias.problems import Problem

RETRY_AFTER_SECONDS = 1


def answer(problem: Problem, *, keep_alive: bool, is_head: bool = False, minor: int = 1) -> bytes:
    """A whole HTTP response. ``is_head``: the request was HEAD, so the body is left out."""
    status = problem.kind.status
    body = json.dumps(problem.document()).encode() + b"\n"
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
    ]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        seconds = problem.fields.get("retry_after_seconds", RETRY_AFTER_SECONDS)
        lines.append(f"Retry-After: {seconds}")
    if not keep_alive:
        lines.append("Connection: close")
    elif minor == 0:
        lines.append("Connection: keep-alive")
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head if is_head else head + body
