"""Sockets of the DNS responder: bound before their address exists, and TCP clients with limits."""

import asyncio
import socket
from collections.abc import Callable, MutableMapping, Sequence
from typing import cast

from ozymandias.edge.forwarder import Reply

RECEIVE_BUFFER_BYTES = 1 << 20
TCP_CONNECTIONS_MAX = 256
TCP_CONNECTIONS_PER_ADDRESS_MAX = 64
TCP_IDLE_SECONDS = 10.0
TCP_PENDING_BYTES_MAX = 65537 * 2

IP_FREEBIND, IPV6_FREEBIND = 15, 78  # not in the socket module; linux/in.h, linux/in6.h

Take = Callable[[bytes, str, Reply], bool]


class TcpClient(asyncio.Protocol):
    """Length and message, again and again; each answer as soon as it is there."""

    def __init__(self, take: Take, connections: MutableMapping["TcpClient", str]) -> None:
        self._take = take
        self._connections = connections
        self._buffer = b""
        self._address = ""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        self._connections[self] = self._address
        same = sum(address == self._address for address in self._connections.values())
        if len(self._connections) > TCP_CONNECTIONS_MAX or same > TCP_CONNECTIONS_PER_ADDRESS_MAX:
            self._transport.abort()
            return
        self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._transport.abort()  # asks, and does not read the answers

    def abort(self) -> None:
        self._transport.abort()

    def _wait(self) -> None:
        """A message must be complete in time, however slowly its bytes come."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TCP_IDLE_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > TCP_PENDING_BYTES_MAX:
            self._transport.abort()
            return
        while len(self._buffer) >= 2:
            size = int.from_bytes(self._buffer[:2], "big")
            if len(self._buffer) < size + 2:
                return
            message = self._buffer[2 : size + 2]
            self._buffer = self._buffer[size + 2 :]
            self._wait()
            if not self._take(message, self._address, self._send):
                self._transport.abort()
                return

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(len(answer).to_bytes(2, "big") + answer)


def send_udp(sock: socket.socket, reply: bytes, peer: tuple[str, int]) -> None:
    try:
        sock.sendto(reply, peer)
    except OSError:
        pass  # the client is gone or its buffer full: it will ask again


def bind_udp(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    return [_bound(address, socket.SOCK_DGRAM) for address in addresses]


def bind_tcp(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    return [_bound(address, socket.SOCK_STREAM) for address in addresses]


def _bound(address: tuple[str, int], kind: socket.SocketKind) -> socket.socket:
    """Bound even if the address is not there yet: the pods' bridge comes with the first pod."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        if kind is socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        else:
            # 127.0.0.1 and ::1 may both be given with one port; each is its own socket.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
