"""What handlers take out of a request, checked: names, numbers, bodies. Nothing is trusted."""

import json
import re
from typing import Any

from aiohttp import web

from ozymandias.api.operations import Operations
from ozymandias.model.job import JobKey
from ozymandias.problems import INVALID_REQUEST, TOO_LARGE, ProblemError
from ozymandias.store.keys import job_key

OPERATIONS = web.AppKey("operations", Operations)
BODY_BYTES_MAX = 2**20
PASSED_ON = "Ozymandias-Passed-On"  # set by a peer that hands a request to the instance's node
BY = "Ozymandias-By"  # who asks, for the record; the token is what is believed

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\uffff]")


def operations(request: web.Request) -> Operations:
    return request.app[OPERATIONS]


def key_of(request: web.Request) -> JobKey:
    return job_key(request.match_info["namespace"], request.match_info["job"])


def who(request: web.Request) -> str:
    return text(request.headers.get(BY, ""), 100)


def text(value: str, characters_max: int) -> str:
    return _UNPRINTABLE.sub("", value)[:characters_max]


async def body_of(request: web.Request) -> bytes:
    if (request.content_length or 0) > BODY_BYTES_MAX:
        raise too_large()
    return await request.read()


def too_large() -> ProblemError:
    return ProblemError(
        TOO_LARGE(
            f"The request's body is over {BODY_BYTES_MAX} bytes.",
            hint="A job file is a few kilobytes; data belongs in images and volumes.",
        )
    )


async def object_of(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object."""
    try:
        found = json.loads(await body_of(request))
    except (ValueError, RecursionError) as error:
        raise ProblemError(INVALID_REQUEST(f"The body is not JSON: {error}")) from None
    if not isinstance(found, dict):
        raise ProblemError(INVALID_REQUEST("The body must be a JSON object."))
    return found


def whole(request: web.Request, name: str, *, least: int = 0, most: int = 10**9) -> int | None:
    """A whole number of the query, None when it is not given."""
    given = request.query.get(name, "")
    if not given:
        return None
    if not given.isdecimal() or len(given) > 18 or not least <= int(given) <= most:
        raise ProblemError(
            INVALID_REQUEST(f"{name} must be a whole number from {least} to {most}.")
        )
    return int(given)


def number(request: web.Request, name: str, default: float = 0.0) -> float:
    try:
        found = float(request.query.get(name, default))
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e12:
        raise ProblemError(INVALID_REQUEST(f"{name} must be a number that is not negative."))
    return found


def flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("1", "true", "yes")
