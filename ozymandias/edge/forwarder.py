"""Questions about other zones, passed to the resolvers of the host: with limits, never for ever.

Each question gets an id of ours and goes over one of several sockets with ports the kernel chose.
An answer counts only if it comes from the resolver asked, with that id and that very question. No
client has more than its share under way, so that one that asks madly does not stop the others.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from ozymandias.edge.wire import (
    SERVER_FAILURE,
    UDP_EDNS_BYTES_MAX,
    edns_size,
    failure,
    question_end,
    truncated,
    udp_room,
)

TIMEOUT_SECONDS = 2.0  # per resolver
RESOLVERS_MAX = 3  # asked in turn; so a client waits three timeouts at most
IN_FLIGHT_MAX = 512
IN_FLIGHT_PER_CLIENT_MAX = 128
SOCKETS_PER_RESOLVER = 8

Reply = Callable[[bytes], None]


@dataclass(slots=True)
class _Resolver(asyncio.DatagramProtocol):
    """One socket to one resolver, and the questions that wait on it."""

    waiting: dict[tuple[int, bytes], asyncio.Future[bytes]] = field(default_factory=dict)
    transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        end = question_end(data)
        if end and len(data) > 12 and data[2] & 0x80:
            key = (int.from_bytes(data[:2], "big"), data[12:end].lower())
            future = self.waiting.get(key)
            if future is not None and not future.done():
                future.set_result(data)

    def error_received(self, error: Exception) -> None:
        for future in self.waiting.values():  # refused: the next resolver is asked at once
            if not future.done():
                future.set_exception(ConnectionRefusedError(str(error)))


class Forwarder:
    """``submit`` in a running event loop; `run` holds the tasks."""

    def __init__(
        self, resolvers: Sequence[tuple[str, int]], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.resolvers = tuple(resolvers)[:RESOLVERS_MAX]
        self.in_flight = 0
        self._in_flight_of: dict[str, int] = {}  # clients that have any
        self._timeout = timeout_seconds
        self._sockets: dict[tuple[str, int], list[_Resolver]] = {}
        self._opening = asyncio.Lock()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None
                for sockets in self._sockets.values():
                    for socket in sockets:
                        if socket.transport is not None:
                            socket.transport.close()

    def submit(self, query: bytes, end: int, is_tcp: bool, reply: Reply, client: str) -> bool:
        """Ask on behalf of a client; False when there is no resolver or too much under way."""
        if self._group is None or not self.resolvers or self.in_flight >= IN_FLIGHT_MAX:
            return False
        own = self._in_flight_of.get(client, 0)
        if own >= IN_FLIGHT_PER_CLIENT_MAX:
            return False
        self.in_flight += 1
        self._in_flight_of[client] = own + 1
        self._group.create_task(self._forward(query, end, is_tcp, reply, client))
        return True

    async def _forward(
        self, query: bytes, end: int, is_tcp: bool, reply: Reply, client: str
    ) -> None:
        try:
            reply(await self._answer(query, end, is_tcp))
        finally:
            self.in_flight -= 1
            self._in_flight_of[client] -= 1
            if not self._in_flight_of[client]:
                del self._in_flight_of[client]

    async def _answer(self, query: bytes, end: int, is_tcp: bool) -> bytes:
        for resolver in self.resolvers:
            try:
                async with asyncio.timeout(self._timeout):
                    if is_tcp:
                        answer = await self._ask_tcp(resolver, query)
                    else:
                        answer = await self._ask_udp(resolver, query, end)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                continue
            if answer[12:end].lower() != query[12:end].lower() or not answer[2] & 0x80:
                continue
            if not is_tcp and len(answer) > udp_room(query, end):
                return truncated(query, end)
            # Our id is replaced by the client's, and its spelling of the name put back.
            return query[:2] + answer[2:12] + query[12:end] + answer[end:]
        return failure(query, end, SERVER_FAILURE)

    async def _ask_udp(self, resolver: tuple[str, int], query: bytes, end: int) -> bytes:
        socket = await self._socket(resolver)
        question = query[12:end].lower()
        key = (secrets.randbelow(65536), question)
        while key in socket.waiting:
            key = (secrets.randbelow(65536), question)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        socket.waiting[key] = future
        try:
            assert socket.transport is not None
            if edns_size(query, end) > UDP_EDNS_BYTES_MAX:
                # What we would not pass on need not be sent to us.
                size = UDP_EDNS_BYTES_MAX.to_bytes(2, "big")
                query = query[: end + 3] + size + query[end + 5 :]
            socket.transport.sendto(key[0].to_bytes(2, "big") + query[2:])
            return await future
        finally:
            del socket.waiting[key]

    async def _socket(self, resolver: tuple[str, int]) -> _Resolver:
        sockets = self._sockets.setdefault(resolver, [])
        async with self._opening:  # or a burst of questions would open one each
            if len(sockets) < SOCKETS_PER_RESOLVER:
                loop = asyncio.get_running_loop()
                _, protocol = await loop.create_datagram_endpoint(_Resolver, remote_addr=resolver)
                sockets.append(protocol)
                return protocol
        return secrets.choice(sockets)

    async def _ask_tcp(self, resolver: tuple[str, int], query: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*resolver)
        try:
            ours = secrets.token_bytes(2) + query[2:]
            writer.write(len(ours).to_bytes(2, "big") + ours)
            size = int.from_bytes(await reader.readexactly(2), "big")
            answer = await reader.readexactly(size)
            if answer[:2] != ours[:2]:
                raise ConnectionError("an answer to another question")
            return answer
        finally:
            writer.close()
