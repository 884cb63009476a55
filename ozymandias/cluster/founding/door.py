"""The door: what a host that is not a member yet may say to the cluster, and nothing more.

Served by the keeper of hosts that hold the authority's key, on a port of its own, with TLS:

- `GET /authority`: the authority's certificate. No secret: the join token says which it must be.
- `POST /join`: a token, a name, an address, requests for two certificates. The answer has the
  certificates, the cluster's settings, the hashes of API tokens, and where etcd is.
- `POST /renew`: the same without a token, for a host that shows its certificate of this cluster.
- `POST /reach`: whether the host that shows its certificate is reached from here, by port.

Strangers can reach this: bodies are small, tries are counted by address, and every refusal that
could tell a guesser something says the same.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from ozymandias.cluster.founding import credentials, members, record, registry
from ozymandias.cluster.founding.authority import COMMON_NAMES, Pair
from ozymandias.cluster.founding.messages import JoinAnswer, JoinRequest
from ozymandias.cluster.founding.record import HostRecord, KnownHost, Places
from ozymandias.ports import Store, StoreError
from ozymandias.problems import (
    INVALID_REQUEST,
    JOIN_REFUSED,
    RATE_LIMITED,
    Problem,
    ProblemError,
    store_unavailable,
)
from ozymandias.store.etcd_admin import EtcdAdmin
from ozymandias.telemetry import log, warn

BODY_BYTES_MAX = 64 * 2**10
TRIES_MAX = 10  # refusals of one address within the time below
TRIES_SECONDS = 60.0
REACH_SECONDS_MAX = 2.0


class Door:
    def __init__(self, host: HostRecord, places: Places, store: Store, admin: EtcdAdmin) -> None:
        self._host = host
        self._places = places
        self._store = store
        self._admin = admin
        self._refusals: dict[str, list[float]] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._problems], client_max_size=BODY_BYTES_MAX)
        app.router.add_get("/authority", self._authority)
        app.router.add_post("/join", self._join)
        app.router.add_post("/renew", self._renew)
        app.router.add_post("/reach", self._reach)
        return app

    async def _authority(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._pair().cert, content_type="application/x-pem-file")

    async def _join(self, request: web.Request) -> web.StreamResponse:
        asked = await _asked(request)
        now = time.time()
        known = KnownHost(
            name=asked.name,
            address=asked.address,
            machine_id=asked.machine_id,
            part="client",
            joined=now,
            version=asked.version,
        )
        id_, _, secret = asked.token.partition(":")
        if not id_.isalnum() or not asked.machine_id.isprintable() or not asked.machine_id:
            raise ProblemError(INVALID_REQUEST("The request lacks a token or a machine id."))
        entered = await registry.admit(self._store, id_, secret, known)
        if isinstance(entered, Problem):
            raise ProblemError(entered)
        log("door.joined", host=asked.name, address=asked.address, token=id_)
        return await self._signed(asked, now)

    async def _renew(self, request: web.Request) -> web.StreamResponse:
        asked = await _asked(request)
        shown = _shown_name(request)
        known = {host.name: host for host in await registry.hosts(self._store)}
        there = known.get(shown)
        if there is None or asked.name != shown or there.address != asked.address:
            raise ProblemError(
                JOIN_REFUSED(
                    "The certificate shown is not one of a host of this cluster.",
                    hint="`ozy cluster join` with a new token lets the host in again.",
                )
            )
        log("door.renewed", host=shown)
        return await self._signed(asked, time.time())

    async def _reach(self, request: web.Request) -> web.StreamResponse:
        known = {host.name: host for host in await registry.hosts(self._store)}
        there = known.get(_shown_name(request))
        if there is None:
            raise ProblemError(JOIN_REFUSED("The certificate shown is not one of a host here."))
        ports = [record.API_PORT, *([record.ETCD_PEER_PORT] if there.part == "store" else [])]
        found = {str(port): await _try(there.address, port) for port in ports}
        return web.json_response(found)

    async def _signed(self, asked: JoinRequest, now: float) -> web.StreamResponse:
        pair = self._pair()
        try:
            certificates = credentials.sign_all(
                pair, asked.requests, name=asked.name, address=asked.address, now=now
            )
        except (ValueError, KeyError) as error:
            raise ProblemError(INVALID_REQUEST(f"A certificate request is bad: {error}.")) from None
        found = await self._admin.members()
        settings = await registry.settings_of(self._store) or self._host.cluster
        urls = {url for member in found for url in member.peer_urls}
        peer_url = f"https://{asked.address}:{record.ETCD_PEER_PORT}"
        holds_store = peer_url in urls or len(found) < settings.members_max
        answer = JoinAnswer(
            cluster=settings,
            authority=pair.cert,
            certificates=certificates,
            endpoints=members.serving(found, self._host.peer_url),
            token_hashes=self._places.token_hashes.read_text(),
            time=now,
            authority_key=pair.key if holds_store else "",
        )
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    def _pair(self) -> Pair:
        pair = credentials.read_authority(self._places)
        if pair is None:
            raise ProblemError(JOIN_REFUSED("This host can't sign: it has no authority's key."))
        return pair

    # Around every request -----------------------------------------------------------------------

    @web.middleware
    async def _problems(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]
    ) -> web.StreamResponse:
        address = request.remote or ""
        try:
            self._check_tries(address)
            response: web.StreamResponse = await handler(request)
            return response
        except ProblemError as error:
            problem = error.problem
        except StoreError as error:
            problem = store_unavailable(str(error) or type(error).__name__)
        except web.HTTPException as error:
            problem = INVALID_REQUEST(f"{error.reason} ({error.status})")
        if problem.kind is JOIN_REFUSED:
            self._refusals.setdefault(address, []).append(time.monotonic())
            warn("door.refused", address=address, reason=problem.detail)
        return web.Response(
            status=problem.kind.status,
            body=msgspec.json.encode(problem.document()),
            content_type="application/problem+json",
        )

    def _check_tries(self, address: str) -> None:
        now = time.monotonic()
        recent = [t for t in self._refusals.get(address, ()) if now - t < TRIES_SECONDS]
        self._refusals = {a: ts for a, ts in self._refusals.items() if now - ts[-1] < TRIES_SECONDS}
        if recent:
            self._refusals[address] = recent
        if len(recent) >= TRIES_MAX:
            raise ProblemError(RATE_LIMITED("Too many refused tries.", hint="Wait a minute."))


async def _try(address: str, port: int) -> str:
    """Why a connection is not made; "" when it is."""
    try:
        async with asyncio.timeout(REACH_SECONDS_MAX):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return f"no answer within {REACH_SECONDS_MAX:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""


async def _asked(request: web.Request) -> JoinRequest:
    try:
        asked = msgspec.json.decode(await request.read(), type=JoinRequest)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProblemError(INVALID_REQUEST(f"The request can't be read: {error}.")) from None
    problem = record.check(asked.name, asked.address)
    if problem is not None:
        raise ProblemError(JOIN_REFUSED(problem.detail, hint=problem.hint))
    return asked


def _shown_name(request: web.Request) -> str:
    """The host that the client's certificate is for; "" without one."""
    shown = request.get_extra_info("peercert") or {}
    subject = {key: value for part in shown.get("subject", ()) for key, value in part}
    is_host = subject.get("commonName") == COMMON_NAMES["host"]
    return str(subject.get("organizationalUnitName", "")) if is_host else ""


def context(places: Places) -> ssl.SSLContext:
    """Clients may show a certificate; what they show must be of our authority."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(places.cert("host"), places.key("host"))
    made.load_verify_locations(places.authority_cert)
    made.verify_mode = ssl.CERT_OPTIONAL
    return made


@asynccontextmanager
async def serving(door: Door, places: Places, address: str) -> AsyncIterator[None]:
    """OSError when it can't listen."""
    runner = web.AppRunner(door.app(), access_log=None, shutdown_timeout=2.0, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, record.DOOR_PORT, ssl_context=context(places))
        await asyncio.wait_for(site.start(), 10.0)
        yield
    finally:
        await runner.cleanup()
