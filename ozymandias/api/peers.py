"""Other daemons' APIs over HTTP, with this daemon's own key. What they say is passed through.

A peer that is slow to accept is given up after two seconds; a stream lives as long as its beats
come. The peer's own problem documents become the same problems here.
"""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
from yarl import URL

from ozymandias.api.access import Document, Sink
from ozymandias.api.request import PASSED_ON
from ozymandias.problems import CATALOGUE, INTERNAL, NODE_UNREACHABLE, Problem, ProblemError

CONNECT_SECONDS = 2.0
SILENCE_SECONDS = 30.0
FORWARD_SILENCE_SECONDS = 60.0  # longer than any request may wait for something to happen
LINE_BYTES_MAX = 2**20
_KINDS = {kind.slug: kind for kind in CATALOGUE}
_STANDARD = ("type", "title", "status", "detail", "hint", "instance")


class HttpPeers:
    """One pool of connections; made when first needed, closed with the daemon."""

    def __init__(self, node: str, key: str, tls: ssl.SSLContext | None = None) -> None:
        """``tls``: whose certificates are believed, for peers whose API is https."""
        self._proof = f"Peer {node}:{key}"
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls or True),
                headers={"Authorization": self._proof},
                read_bufsize=LINE_BYTES_MAX,
            )
        return self._session

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, api: str, path: str, body: Document, *, timeout: float) -> Document:
        limits = aiohttp.ClientTimeout(total=timeout, connect=CONNECT_SECONDS)
        headers = {PASSED_ON: "1"}
        sending = self._client().post(api + path, json=body, timeout=limits, headers=headers)
        async with _reaching(api), sending as response:
            await check(response)
            answer: Document = await response.json()
            return answer

    async def stream(self, api: str, path: str, query: Mapping[str, str], sink: Sink) -> None:
        limits = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        )
        given = {name: value for name, value in query.items() if value}
        headers = {PASSED_ON: "1"}
        asking = self._client().get(api + path, params=given, timeout=limits, headers=headers)
        async with _reaching(api), asking as response:
            await check(response)
            await sink.begin()
            async for line in response.content:
                if line.strip():
                    await sink.send(json.loads(line))

    def forward(
        self, api: str, method: str, path: URL, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Somebody else's request, as it is; aiohttp's own errors when it can't be carried out."""
        limits = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_SECONDS, sock_read=FORWARD_SILENCE_SECONDS
        )
        return self._client().request(
            method,
            URL(api).join(path),
            data=body or None,
            headers={**headers, "Authorization": self._proof},
            timeout=limits,
            allow_redirects=False,
        )


@asynccontextmanager
async def _reaching(api: str) -> AsyncIterator[None]:
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ProblemError(
            NODE_UNREACHABLE(f"The node at {api} does not answer: {error or type(error).__name__}")
        ) from error


async def check(response: aiohttp.ClientResponse) -> None:
    """Raise the problem that a peer answers with, as what it is."""
    if response.status < 400:
        return
    try:
        document = json.loads(await response.read())
        kind = _KINDS.get(document["type"].rpartition("#")[2], INTERNAL)
        fields = {k: v for k, v in document.items() if k not in _STANDARD}
        hint = document.get("hint", "")
        problem = Problem(kind=kind, detail=document["detail"], hint=hint, fields=fields)
    except (ValueError, KeyError, AttributeError, TypeError):
        problem = NODE_UNREACHABLE(f"The node answers {response.status} without saying why.")
    raise ProblemError(problem)
