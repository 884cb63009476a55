"""What a daemon that does not schedule does with its callers: it passes them on to one that does.

Its own mirror holds its own part alone, so it has nothing to say of the cluster. Whoever asks it is
let in here, by a token or the Unix socket, and written down here; then the request goes as it is to
a peer that schedules, under this daemon's own key and with the right of who asked, and the answer
comes back as it is, streams included. What peers ask of the instances on this node is answered
here.

Who the peers are is read from the store when it is needed, and known for a few seconds.
"""

import asyncio
import hmac
import zlib
from collections.abc import Sequence

import aiohttp
from aiohttp import web

from ozymandias.api.access import translated
from ozymandias.api.callers import CALLER
from ozymandias.api.guards import Handler, route_of
from ozymandias.api.peers import HttpPeers, check
from ozymandias.api.request import ASKED, PASSED_ON, body_of
from ozymandias.api.rights import RIGHT
from ozymandias.model.node import NodeName, Presence
from ozymandias.ports import Store
from ozymandias.problems import NODE_UNREACHABLE, OUTCOME_UNKNOWN, Problem, ProblemError
from ozymandias.store import codec, keys

KNOWN_SECONDS = 5.0
PEERS_MAX = 3  # that are asked before it is given up
OWN = frozenset({"/v1/info", "/v1/openapi.json"})  # what every daemon can tell
# What belongs to one connection, or is said anew for the next.
HOPS = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "date",
        "host",
        "keep-alive",
        RIGHT.lower(),
        "server",
        "te",
        "transfer-encoding",
        "upgrade",
    }
)


class Others:
    """The presences of other nodes, for a daemon whose mirror has its own alone."""

    def __init__(self, store: Store, node: NodeName) -> None:
        self._store = store
        self._node = node
        self._known: dict[NodeName, Presence] = {}
        self._read_at = -KNOWN_SECONDS
        self._turn = asyncio.Lock()

    async def refresh(self) -> None:
        """Read them, unless that was done just now."""
        async with self._turn:
            now = asyncio.get_running_loop().time()
            if now < self._read_at + KNOWN_SECONDS:
                return
            with translated():
                listing = await self._store.range(keys.NODES)
            self._read_at, self._known = now, {}
            for kv in listing.kvs:
                try:
                    presence = codec.decode(Presence, kv.value)
                except codec.Undecodable:
                    continue  # a newer daemon's: it is not asked
                self._known[NodeName(kv.key[len(keys.NODES) :].decode())] = presence

    def is_peer(self, node: str, key: str) -> bool:
        found = self._known.get(NodeName(node))
        known = found.peer_key if found else ""
        shown = key.encode("utf-8", "surrogateescape")
        return bool(known) and hmac.compare_digest(known.encode(), shown)

    async def schedulers(self) -> Sequence[str]:
        """The APIs of those that schedule; each daemon has an order of its own."""
        await self.refresh()
        found = {name: p.api for name, p in self._known.items() if p.schedules and p.api}
        order = sorted(found, key=lambda name: zlib.crc32(f"{self._node}\0{name}".encode()))
        return [found[name] for name in order]


class Relay:
    def __init__(self, others: Others, peers: HttpPeers) -> None:
        self.others = others
        self._peers = peers

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request)
        route = route_of(request)
        is_change = bool(route and route.change)
        for api in (await self.others.schedulers())[:PEERS_MAX]:
            try:
                return await self._ask(api, request, body, is_change)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                continue  # it never heard of it: another may be asked
            except (aiohttp.ClientError, TimeoutError) as error:
                if is_change:
                    raise ProblemError(_unknown(api, error)) from error
        raise ProblemError(
            NODE_UNREACHABLE(
                "This node does not schedule, and no node that does answers.",
                hint="`ozy doctor` shows the nodes that schedule; ask one of them.",
            )
        )

    async def _ask(
        self, api: str, request: web.Request, body: bytes, is_change: bool
    ) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOPS}
        headers[RIGHT] = request[CALLER].right
        asking = self._peers.forward(api, request.method, request.rel_url, headers, body)
        async with asking as answer:
            await check(answer)
            told = {k: v for k, v in answer.headers.items() if k.lower() not in HOPS}
            if is_change:  # told when it is written down, not before
                request[ASKED].changed = True
                return web.Response(status=answer.status, headers=told, body=await answer.read())
            response = web.StreamResponse(status=answer.status, headers=told)
            if answer.content_length is not None:
                response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response


RELAY: web.AppKey[Relay | None] = web.AppKey("relay", object)  # type: ignore[arg-type]


@web.middleware
async def acquainted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A peer that calls a daemon which does not schedule is looked up before its key is."""
    relay = request.app[RELAY]
    if relay is not None and request.headers.get("Authorization", "").lower().startswith("peer "):
        await relay.others.refresh()
    return await handler(request)


@web.middleware
async def relayed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What is about the cluster goes to a daemon that sees it."""
    relay, route = request.app[RELAY], route_of(request)
    is_here = relay is None or route is None or route.is_open or route.path in OWN
    if relay is None or is_here or (PASSED_ON in request.headers and request[CALLER].is_peer):
        return await handler(request)
    return await relay.pass_on(request)


def _unknown(api: str, error: Exception) -> Problem:
    return OUTCOME_UNKNOWN(
        f"The request was passed on to {api}, and no answer came: {error or type(error).__name__}.",
        hint="`ozy status JOB` shows what became of it; doing it again is safe.",
        retry_after_seconds=2,
    )
