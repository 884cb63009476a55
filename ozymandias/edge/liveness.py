"""Whether an instance's host is still there, as the kernel knows it: slow is not dead.

A host that loses its power, or its cable, says nothing; an instance that is merely slow has a
kernel that goes on acknowledging. TCP's own limit (`TCP_USER_TIMEOUT`) can't tell the two apart: it
also ends a connection whose other side has no room for more, an upload to a busy instance say. So
probes are left to the kernel, with their own limit, and what is not acknowledged is looked at.
"""

import asyncio
import errno
import socket
import sys

from ozymandias.edge.limits import (
    PROBE_AFTER_SECONDS,
    PROBE_SECONDS,
    PROBES,
    SILENCE_SECONDS,
)

SILENCE_MS = int(1000 * SILENCE_SECONDS)
HOST_LOST = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)

# Of Linux's struct tcp_info.
INFO_BYTES = 60
RETRANSMITS = 2  # one byte: repetitions in a row without an answer
PROBES_OUT = 3  # one byte: questions after room, without an answer
LAST_ACK_RECV = slice(56, 60)  # milliseconds since anything was acknowledged


def probe(transport: asyncio.BaseTransport) -> None:
    """From now on, silence of the other host ends the connection, though nothing is sent."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def unanswered(transport: asyncio.BaseTransport) -> int:
    """How often something was sent anew while nothing at all came back."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    except OSError:
        return 0  # it is ending anyhow
    silence_ms = int.from_bytes(info[LAST_ACK_RECV], sys.byteorder)
    return max(info[RETRANSMITS], info[PROBES_OUT]) if silence_ms >= SILENCE_MS else 0


def is_loss_of_host(error: Exception | None) -> bool:
    """Rather than an end that the other side made, properly or not."""
    return isinstance(error, OSError) and error.errno in HOST_LOST
