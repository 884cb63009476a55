"""A thin asyncio client of podman's REST API (libpod) over its Unix socket.

It knows HTTP, deadlines and errors, and nothing of pods. Every call ends within its deadline, with
RuntimeHung past it; a refusal is `Refused` with podman's own words; a socket that does not answer
is RuntimeFailed. Nothing of aiohttp leaves this module but the reader of a stream.

Why not podman-py: see docs/decisions/0002-podman-over-http.md.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from ozymandias.ports import RuntimeFailed, RuntimeHung

PREFIX = "http://podman/v4.0.0/libpod"
DEADLINE_SECONDS = 20.0
CONNECTIONS_MAX = 256  # streams (logs, events, exec) hold one each
ANSWER_BYTES_MAX = 64 * 2**20
FRAME_BYTES_MAX = 16 * 2**20
LOOKS_MAX = 10  # at a container whose process ends under each of them
LOOK_SECONDS = 0.1
_HAS_JUST_ENDED = re.compile(r"/proc/[0-9]+/cgroup: no such (process|file or directory)")
# What podman calls the absence of what a path is about, by the path's first part.
_ABSENT = {"containers": "no such container", "pods": "no such pod", "volumes": "no such volume"}


class Refused(RuntimeFailed):
    """podman answered with an error."""

    def __init__(self, what: str, status: int, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.status = status
        self.message = message


class PodmanApi:
    def __init__(self, socket: Path, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self.socket = socket
        self.deadline_seconds = deadline_seconds
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        deadline_seconds: float | None = None,
        accept: tuple[int, ...] = (),
    ) -> tuple[int, Any]:
        """One request; returns status and the JSON of the answer.

        Statuses of 400 and more raise Refused unless they are in `accept`. What vanishes while
        podman answers is a 404 here: podman itself says 500 then, and 404 only of what was gone.
        """
        deadline = self.deadline_seconds if deadline_seconds is None else deadline_seconds
        what = f"podman {method} {path}"
        try:
            async with (
                asyncio.timeout(deadline),
                self._open().request(
                    method, PREFIX + path, params=_parameters(query), json=body
                ) as answer,
            ):
                content = await answer.content.read(ANSWER_BYTES_MAX)
                while chunk := await answer.content.read(ANSWER_BYTES_MAX):
                    content += chunk
                status = answer.status
        except TimeoutError:
            raise RuntimeHung(f"{what}: no answer within {deadline:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RuntimeFailed(f"podman does not answer at {self.socket}: {error}") from error
        if status >= 500 and _is_absent(path, content):
            status = 404
        if status >= 400 and status not in accept:
            raise Refused(what, status, _message(content))
        return status, _decoded(content)

    async def inspect(self, container: str) -> tuple[int, Any]:
        """Status, 200 or 404, and what podman knows of a container, by its id or name.

        It fails where the process ends while it looks; that it has ended it knows soon after.
        """
        path = f"/containers/{segment(container)}/json"
        for _ in range(LOOKS_MAX - 1):
            try:
                return await self.call("GET", path, accept=(404,))
            except Refused as refused:
                if not _HAS_JUST_ENDED.search(refused.message):
                    raise
            await asyncio.sleep(LOOK_SECONDS)
        return await self.call("GET", path, accept=(404,))

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """A request whose answer comes over time; only its beginning has a deadline."""
        what = f"podman {method} {path}"
        try:
            async with asyncio.timeout(self.deadline_seconds):
                answer = await self._open().request(
                    method, PREFIX + path, params=_parameters(query), json=body
                )
        except TimeoutError:
            raise RuntimeHung(f"{what}: no answer within {self.deadline_seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RuntimeFailed(f"podman does not answer at {self.socket}: {error}") from error
        try:
            if answer.status >= 400:
                raise Refused(what, answer.status, _message(await answer.content.read(65536)))
            yield answer.content
        except (aiohttp.ClientError, OSError) as error:
            raise RuntimeFailed(f"{what}: the stream broke off: {error}") from error
        finally:
            answer.close()

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        """No connection is kept: after a restart of the service a kept one would be stale."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(
                    path=str(self.socket), limit=CONNECTIONS_MAX, force_close=True
                ),
                timeout=aiohttp.ClientTimeout(total=None, connect=self.deadline_seconds),
                read_bufsize=2**18,
            )
        return self._session


Frame = tuple[int, bytes]  # 1 is stdout, 2 is stderr


class Frames:
    """Takes a multiplexed stream apart, however it was cut into pieces on its way."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, piece: bytes) -> list[Frame]:
        """The frames that this piece completes."""
        self._rest += piece
        found = []
        while len(self._rest) >= 8:
            end = 8 + int.from_bytes(self._rest[4:8])
            if end > FRAME_BYTES_MAX:
                raise RuntimeFailed("podman sent a stream that can't be understood")
            if len(self._rest) < end:
                break
            found.append((self._rest[0], bytes(self._rest[8:end])))
            del self._rest[:end]
        return found


async def frames(reader: aiohttp.StreamReader) -> AsyncGenerator[Frame, None]:
    """The parts of a multiplexed stream. Ends with the stream."""
    parser = Frames()
    while piece := await reader.readany():
        for frame in parser.take(piece):
            yield frame


def segment(text: str) -> str:
    """A name as one part of a path."""
    return quote(text, safe="")


def filters(**values: list[str]) -> str:
    """podman's filter parameter."""
    return json.dumps(values, separators=(",", ":"))


def _parameters(query: Mapping[str, Any] | None) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (query or {}).items()
        if value is not None
    }


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content) if content.strip() else None
    except ValueError:
        return content.decode(errors="replace")  # a stream of documents; the caller knows


def _is_absent(path: str, content: bytes) -> bool:
    """Is what the path is about the very thing that podman misses?

    A pod's removal that misses one of its containers is none: the pod may still be there.
    """
    words = _ABSENT.get(path.split("/", 2)[1])
    decoded = _decoded(content)
    return words is not None and isinstance(decoded, dict) and decoded.get("cause") == words


def _message(content: bytes) -> str:
    decoded = _decoded(content)
    if isinstance(decoded, dict):
        return str(decoded.get("message") or decoded.get("cause") or decoded)
    return str(decoded)
