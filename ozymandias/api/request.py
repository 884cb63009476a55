"""What handlers take out of a request, checked: names, bodies, conditions. Nothing is trusted."""

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from ozymandias.api.changes import Asked, Condition
from ozymandias.api.operations import Operations
from ozymandias.api.routes import text as text_parameter
from ozymandias.model.job import JobKey
from ozymandias.problems import INVALID_REQUEST, REQUEST_TIMEOUT, TOO_LARGE, ProblemError
from ozymandias.store.keys import job_key

T = TypeVar("T")

OPERATIONS = web.AppKey("operations", Operations)
QUERY: web.RequestKey[dict[str, Any]] = web.RequestKey("query", dict)
ASKED = web.RequestKey("asked", Asked)
BODY_BYTES_MAX = 2**20
BODY_SECONDS_MAX = 30.0
PASSED_ON = "Ozymandias-Passed-On"  # set by a peer that hands a request to the instance's node
BY = "Ozymandias-By"  # who asks, for the record; the token is what is believed
REASON_CHARACTERS_MAX = 500
OVERRIDE = text_parameter(
    "override_freeze",
    "Why this does not wait for the end of a freeze window; recorded.",
    REASON_CHARACTERS_MAX,
)
IF_MATCH = "If-Match"
IDEMPOTENCY_KEY = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\uffff]")
_IDEMPOTENCY = re.compile(r"[!-~]{1,255}")


def operations(request: web.Request) -> Operations:
    return request.app[OPERATIONS]


def query(request: web.Request) -> dict[str, Any]:
    """The parameters that the route declares and the request gives, read as what they are."""
    return request[QUERY]


def key_of(request: web.Request) -> JobKey:
    return job_key(request.match_info["namespace"], request.match_info["job"])


def asked(request: web.Request) -> Asked:
    """By whom a change is asked for, and on which condition; the audit reads it afterwards."""
    found = request[ASKED]
    found.by = text(request.headers.get(BY, ""), 100)
    found.condition = Condition.parse(request.headers.get(IF_MATCH, ""))
    return found


def idempotency_key(request: web.Request) -> str:
    given = request.headers.get(IDEMPOTENCY_KEY, "")
    if given and not _IDEMPOTENCY.fullmatch(given):
        raise ProblemError(
            INVALID_REQUEST(f"{IDEMPOTENCY_KEY} must be 1 to 255 characters without spaces.")
        )
    return given


def text(value: str, characters_max: int) -> str:
    return _UNPRINTABLE.sub("", value)[:characters_max]


def override_of(request: web.Request) -> str:
    """Why a change does not wait for the end of a freeze window; "" when it does.

    An empty reason is none: who gives it means to override, and would wait without knowing.
    """
    given = query(request).get(OVERRIDE.name)
    why = text(given or "", REASON_CHARACTERS_MAX).strip()
    if given is not None and not why:
        raise ProblemError(
            INVALID_REQUEST(
                "override_freeze is empty: to override a freeze window needs a reason.",
                hint="Say why; it is recorded. Or leave it out, to wait for the window's end.",
            )
        )
    return why


async def body_of(request: web.Request) -> bytes:
    if (request.content_length or 0) > BODY_BYTES_MAX:
        raise too_large()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await request.read()
    except TimeoutError:
        raise ProblemError(
            REQUEST_TIMEOUT(f"The body did not arrive within {BODY_SECONDS_MAX:.0f} s.")
        ) from None


def too_large() -> ProblemError:
    return ProblemError(
        TOO_LARGE(
            f"The request's body is over {BODY_BYTES_MAX} bytes.",
            hint="A job file is a few kilobytes; data belongs in images and volumes.",
        )
    )


async def decoded(request: web.Request, model: type[T]) -> T:
    """The body as one of the types of `api/models.py`."""
    try:
        return msgspec.json.decode(await body_of(request), type=model)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProblemError(INVALID_REQUEST(f"The body is not as it must be: {error}.")) from None
