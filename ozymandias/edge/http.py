"""Host-header HTTP/1.1 ingress, engine `builtin`: listeners, the table, limits, the sweep.

It is handed a RouteTable and swaps it in between two requests; it knows nothing of the store. The
rest of the engine: `clients` (one client's connection), `responses` (one instance's), `upstreams`
(pools and choosing), `framing`, `headers`, `chunks` (what may be said), `answers` (our own words).
"""

import asyncio
import errno
import ipaddress
import socket
from collections import Counter
from collections.abc import Sequence

from ozymandias.edge.clients import ClientConnection
from ozymandias.edge.headers import KNOWN_SECONDS, REQUEST_LINES, RESPONSE_LINES
from ozymandias.edge.limits import Limits
from ozymandias.edge.responses import UpstreamConnection
from ozymandias.edge.traffic import AccessLog
from ozymandias.edge.upstreams import Pool, Table
from ozymandias.model.routing import RouteTable
from ozymandias.problems import TOO_MANY_CONNECTIONS, Problem

BACKLOG = 4096
# A sweep lets requests go first after so many: ten thousand connections must not hold them up.
SWEPT_AT_ONCE = 512
EXPIRED_AT_ONCE = 4
OUR_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)  # not the instance's

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class Ingress:
    """``await start(...)``, ``set_table(...)`` at any time, ``await run()`` until ``stop()``."""

    def __init__(
        self,
        limits: Limits | None = None,
        trusted_proxies: Sequence[IpNetwork] = (),
        access_log: AccessLog | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.access_log = access_log
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()  # as of the last sweep: good enough for every deadline
        self.table: Table | None = None  # None: the store has not been read yet
        self.is_draining = False
        self.clients: set[ClientConnection] = set()
        self.own_answers: Counter[int] = Counter()  # by status
        self._trusted = tuple(trusted_proxies)
        self._addresses: Counter[str] = Counter()
        self._servers: list[asyncio.Server] = []
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._empty = asyncio.Event()  # while draining: the last client has left
        self._waiting: list[tuple[Pool, ClientConnection]] = []

    # Life ----------------------------------------------------------------------------------

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on these bound sockets; `run` must follow."""
        for listener in sockets:
            self._servers.append(
                await self.loop.create_server(
                    lambda: ClientConnection(self), sock=listener, backlog=BACKLOG
                )
            )

    async def run(self) -> None:
        """Until `stop`; then no new connection, and a while for the requests in flight."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for pool, client in self._waiting:
                group.create_task(self._connect(pool, client))
            self._waiting.clear()
            sweep = group.create_task(self._sweep_for_ever())
            await self._stopping.wait()
            for server in self._servers:
                server.close()
            self.is_draining = True
            for client in list(self.clients):
                client.drain()
            if self.clients:
                try:
                    async with asyncio.timeout(self.limits.drain_seconds):
                        await self._empty.wait()
                except TimeoutError:
                    pass
            sweep.cancel()
            if self.access_log is not None:
                self.access_log.flush()
            for client in list(self.clients):
                client.transport.abort()
            for pool in self.table.pools.values() if self.table else ():
                pool.retire()
            await asyncio.sleep(0)  # lets the connections end before the event loop does
        self._group = None

    def stop(self) -> None:
        self._stopping.set()

    def set_table(self, routes: RouteTable) -> None:
        """In force for the next request; those in flight keep the instance they have."""
        self.table = Table(routes, self.limits, self.table)
        for pool in self.table.left:
            pool.retire()

    async def _sweep_for_ever(self) -> None:
        forget_at = self.now + KNOWN_SECONDS
        while True:
            await asyncio.sleep(self.limits.tick_seconds)
            await self._sweep_clients()
            now = self.now
            if self.table is not None:
                for pool in self.table.pools.values():
                    if pool.idle:
                        pool.sweep(now)
            if self.access_log is not None:
                self.access_log.flush()
            if now > forget_at:
                forget_at = now + KNOWN_SECONDS
                REQUEST_LINES.forget()
                RESPONSE_LINES.forget()

    async def _sweep_clients(self) -> None:
        self.now = now = self.loop.time()
        expired = 0
        for looked_at, client in enumerate(list(self.clients), 1):
            if client.deadline < now and client in self.clients:
                client.expired()
                expired += 1
            if expired == EXPIRED_AT_ONCE or not looked_at % SWEPT_AT_ONCE:
                expired = 0
                await asyncio.sleep(0)
                self.now = now = self.loop.time()

    # What connections ask ------------------------------------------------------------------

    def admit(self, client: ClientConnection) -> Problem | None:
        """Takes the connection in; a problem when there are too many already."""
        self.clients.add(client)
        self._addresses[client.address] += 1
        if len(self.clients) > self.limits.connections_max:
            return TOO_MANY_CONNECTIONS("The ingress holds as many connections as it may.")
        if self._addresses[client.address] > self.limits.connections_per_address_max:
            return TOO_MANY_CONNECTIONS("Too many connections come from this address.")
        return None

    def dismiss(self, client: ClientConnection) -> None:
        self.clients.discard(client)
        if self.is_draining and not self.clients:
            self._empty.set()
        self._addresses[client.address] -= 1
        if not self._addresses[client.address]:
            del self._addresses[client.address]

    def is_trusted(self, address: str) -> bool:
        if not self._trusted:
            return False
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(peer in network for network in self._trusted)

    def connect(self, pool: Pool, client: ClientConnection) -> None:
        """Make a connection for this request, whose pool counts it already."""
        if self._group is None:
            self._waiting.append((pool, client))
        else:
            self._group.create_task(self._connect(pool, client))

    async def _connect(self, pool: Pool, client: ClientConnection) -> None:
        upstream = pool.upstream
        try:
            async with asyncio.timeout(self.limits.connect_seconds):
                _, connection = await self.loop.create_connection(
                    lambda: UpstreamConnection(pool), upstream.address, upstream.port
                )
        except OSError as error:  # also TimeoutError
            pool.outstanding -= 1
            if error.errno not in OUR_FAULT:
                pool.connect_failed(self.loop.time())
            if client.is_waiting:
                client.connect_failed(pool)
            return
        pool.connected()
        if client.is_waiting and connection.is_open:
            client.attach(connection)
            return
        pool.outstanding -= 1
        if client.is_waiting:
            client.connect_failed(pool)
        elif not pool.give_back(connection, self.now):
            connection.close()
