"""Answers that go on: logs as lines of JSON, events as server-sent events.

A stream ends when its source ends, when the client goes away, when its token is taken away, or when
the daemon shuts down; that is a proper end of the answer, not a torn connection. A quiet stream
carries a beat every few seconds, so that a client that vanished is noticed. Problems before the
first byte are ordinary answers; later ones are the stream's last line. Work that takes long without
a word (exec) is given up as well when its client goes away.
"""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

from ozymandias.api.access import Document
from ozymandias.api.callers import CALLER, Door
from ozymandias.problems import ProblemError

BEAT_SECONDS = 5.0
LOOK_SECONDS = 0.5  # how often it is looked whether the client is still there
CLOSING = web.AppKey("closing", asyncio.Event)
DOOR = web.AppKey("door", Door)
Result = TypeVar("Result")


class LineSink:
    """One JSON object per line."""

    content_type = "application/x-ndjson"
    beat = b"\n"

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.response = web.StreamResponse(
            headers={"Content-Type": self.content_type, "Cache-Control": "no-store"}
        )

    async def begin(self) -> None:
        if not self.response.prepared:
            await self.response.prepare(self.request)

    async def send(self, document: Document) -> None:
        await self.begin()
        await self.response.write(self.render(document))

    def render(self, document: Document) -> bytes:
        return json.dumps(document).encode() + b"\n"


class EventSink(LineSink):
    content_type = "text/event-stream"
    beat = b": still here\n\n"

    def render(self, document: Document) -> bytes:
        name = f"{document['node']}:{document['number']}" if "number" in document else "problem"
        data = json.dumps(document)
        return f"id: {name}\nevent: {document.get('kind', 'problem')}\ndata: {data}\n\n".encode()


async def stream(
    sink: LineSink, reading: Coroutine[Any, Any, None], *, beats: bool
) -> web.StreamResponse:
    """Let ``reading`` fill the sink until one of them ends."""
    closing = sink.request.app[CLOSING]
    try:
        async with asyncio.TaskGroup() as group:
            source = group.create_task(_guarded(sink, reading))
            others = [group.create_task(_closed(closing))]
            if beats:
                others.append(group.create_task(_beat(sink)))
            await asyncio.wait({source, *others}, return_when=asyncio.FIRST_COMPLETED)
            for task in (source, *others):
                task.cancel()
    except ExceptionGroup as failed:
        first = failed.exceptions[0]
        if not isinstance(first, ConnectionError):  # the client went away: nobody to tell
            raise first from None
        return sink.response
    await sink.begin()
    try:
        await sink.response.write_eof()
    except ConnectionError:
        pass
    return sink.response


async def _guarded(sink: LineSink, reading: Coroutine[Any, Any, None]) -> None:
    try:
        await reading
    except ProblemError as error:
        if not sink.response.prepared:
            raise
        await sink.send({"problem": error.problem.document()})


async def _closed(closing: asyncio.Event) -> None:
    await closing.wait()


async def _beat(sink: LineSink) -> None:
    """Signs of life, for as long as who asked would still be let in."""
    request = sink.request
    while request.app[DOOR].still_admits(request[CALLER]):
        await asyncio.sleep(BEAT_SECONDS)
        if sink.response.prepared:
            await sink.response.write(sink.beat)


# One answer that takes its time -------------------------------------------------------------------


async def while_connected(request: web.Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work returns. It is cancelled when the client goes: nobody else would end it."""
    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work)
            leaving = group.create_task(_left(request))
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            is_done = working.done()
            working.cancel()
            leaving.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    if not is_done:
        raise ConnectionResetError("the client went away")
    return working.result()


async def _left(request: web.Request) -> None:
    while is_connected(request):  # noqa: ASYNC110 - aiohttp has no event for it
        await asyncio.sleep(LOOK_SECONDS)


def is_connected(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
