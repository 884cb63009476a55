"""The ingress's own answers: problem documents.

An answer is complete in one piece of bytes, with its length, so it can end a connection or not.
"""

import json
from functools import lru_cache
from http import HTTPStatus

from ozymandias.problems import Kind, Problem

RETRY_AFTER_SECONDS = 1
REMEMBERED_MAX = 64


def answer(problem: Problem, *, keep_alive: bool, is_head: bool = False, minor: int = 1) -> bytes:
    """A whole HTTP response. ``is_head``: the request was HEAD, so the body is left out."""
    if problem.fields or problem.hint:
        return _render(problem, keep_alive, is_head, minor)
    return _remembered(problem.kind, problem.detail, keep_alive, is_head, minor)


@lru_cache(REMEMBERED_MAX)
def _remembered(kind: Kind, detail: str, keep_alive: bool, is_head: bool, minor: int) -> bytes:
    """Thousands of slow clients are told the same."""
    return _render(kind(detail), keep_alive, is_head, minor)


def _render(problem: Problem, keep_alive: bool, is_head: bool, minor: int) -> bytes:
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
