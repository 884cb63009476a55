"""Health checks that go over the network: http and tcp. To the pod's address only.

An answer of 200 is healthy and nothing else is: no redirect is followed, no cookie is kept, at most
64 KiB of the body is read. Whatever goes wrong is a reason in plain words, never an exception.
"""

import asyncio

import aiohttp
from yarl import URL

from ozymandias.model.job import HealthCheck
from ozymandias.model.units import format_duration
from ozymandias.ports import ProbeResult
from ozymandias.runtime.heard import SentTooMuch, connector_for_strangers

BODY_BYTES_MAX = 64 * 2**10
HEADERS = {"User-Agent": "ozymandias-probe", "Accept": "*/*"}


def unhealthy(reason: str) -> ProbeResult:
    return ProbeResult(healthy=False, reason=reason)


def timed_out(check: HealthCheck) -> ProbeResult:
    return unhealthy(f"no answer within {format_duration(check.timeout_seconds)}")


async def probe_tcp(address: str, check: HealthCheck) -> ProbeResult:
    try:
        async with asyncio.timeout(check.timeout_seconds):
            _, writer = await asyncio.open_connection(address, check.port)
    except TimeoutError:
        return timed_out(check)
    except OSError as error:
        return unhealthy(_words(error))
    writer.transport.abort()  # nothing is owed to the other side
    return ProbeResult(healthy=True, reason="connected")


async def probe_http(
    session: aiohttp.ClientSession, address: str, check: HealthCheck
) -> ProbeResult:
    url = URL(f"http://{address}:{check.port}/{check.path.removeprefix('/')}", encoded=True)
    try:
        async with (
            asyncio.timeout(check.timeout_seconds),
            session.get(url, allow_redirects=False, headers=HEADERS) as answer,
        ):
            try:
                taken = 0
                async for chunk in answer.content.iter_chunked(BODY_BYTES_MAX):
                    taken += len(chunk)
                    if taken >= BODY_BYTES_MAX:
                        answer.close()
                        break
            except SentTooMuch:  # a large page may come at once, before any of it is read
                if answer.content.total_bytes < BODY_BYTES_MAX:
                    raise
            return ProbeResult(healthy=answer.status == 200, reason=f"HTTP {answer.status}")
    except TimeoutError:
        return timed_out(check)
    except OSError as error:
        return unhealthy(_words(error))
    except (aiohttp.ClientError, ValueError) as error:
        return unhealthy(f"not a proper HTTP answer: {type(error).__name__}")


def make_session() -> aiohttp.ClientSession:
    """One for all http checks; every check has a connection of its own."""
    return aiohttp.ClientSession(
        connector=connector_for_strangers(),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )


def _words(error: OSError) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset"
    return (error.strerror or str(error) or type(error).__name__).lower()
