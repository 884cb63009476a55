"""HTTP answers of strangers: no more is heard of them than a bound, whatever they send.

aiohttp bounds the lines of an answer, and whoever reads a body bounds that. Between them there is
no end to what may be sent: "100 Continue" again and again, extensions of chunks, trailers. Each is
parsed and kept as it comes, with nothing else run meanwhile, so that a server which sends fast
enough would hold up the whole daemon.
"""

import functools
from asyncio import AbstractEventLoop

import aiohttp
from aiohttp.client_proto import ResponseHandler

from ozymandias.runtime.lookup import OwnThreads

HEARD_BYTES_MAX = 256 * 2**10  # of one connection; bodies of 64 KiB are read, some in small chunks


class SentTooMuch(aiohttp.ClientPayloadError):
    """Over `HEARD_BYTES_MAX` came before the answer was whole."""


def connector_for_strangers() -> aiohttp.TCPConnector:
    """Every request has a connection of its own."""
    connector = aiohttp.TCPConnector(
        force_close=True, limit=0, use_dns_cache=False, resolver=OwnThreads()
    )
    connector._factory = functools.partial(_bounded, loop=connector._loop)
    return connector


def _bounded(loop: AbstractEventLoop) -> ResponseHandler:
    return _Bounded(loop)


class _Bounded(ResponseHandler):
    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__(loop)
        self._left = HEARD_BYTES_MAX

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            return
        left, self._left = self._left, self._left - len(data)
        super().data_received(data[:left])
        if self._left < 0 and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._left < 0:
            exc = SentTooMuch()
            if self._payload is not None:
                self._payload.set_exception(exc)
            self._parser = None  # it would say that the answer is not whole
        super().connection_lost(exc)
