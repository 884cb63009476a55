"""What the ingress counts per job, and the access log."""

import json
from pathlib import Path

from aiohttp import web

from ozymandias.edge.traffic import AccessLog, metrics
from tests.integration.edge.conftest import exchange, running, serving


async def by_path(request: web.Request) -> web.Response:
    return web.Response(status=int(request.path[1:]), text="x")


def get(path: str, host: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


async def test_counts_per_job():
    """Requests, status classes, latency and requests in flight, and they outlive a new table."""
    async with serving(by_path) as port, running() as edge:
        edge.route({"web.x/": [port], "web.y/": [port], "api.x/": [port]})
        for path, host in (("/200", "web.x"), ("/404", "web.y"), ("/500", "web.x"), ("/200", "n")):
            await exchange(edge.port, get(path, host))
        edge.route({"web.y/": [port], "web.z/": [port], "idle.x/": []})
        await exchange(edge.port, get("/200", "idle.x"))
        text = metrics(edge.ingress, 7)
    for line in (
        "ozymandias_ingress_revision 7",
        'ozymandias_ingress_requests_total{job="web"} 3',
        'ozymandias_ingress_responses_total{job="web",class="2xx"} 1',
        'ozymandias_ingress_responses_total{job="web",class="4xx"} 1',
        'ozymandias_ingress_responses_total{job="web",class="5xx"} 1',
        'ozymandias_ingress_responses_total{job="idle",class="5xx"} 1',
        'ozymandias_ingress_request_seconds_bucket{job="web",le="+Inf"} 3',
        'ozymandias_ingress_request_seconds_count{job="web"} 3',
        'ozymandias_ingress_in_flight{job="web"} 0',
        'ozymandias_ingress_own_answers_total{status="404"} 1',
    ):
        assert f"{line}\n" in text, (line, text)
    assert 'job="api"' not in text


async def test_access_log(tmp_path: Path):
    """One line of JSON per request, also for our own answers; the file may be moved meanwhile."""
    log = AccessLog(tmp_path / "access.log")
    async with serving(by_path) as port, running(access_log=log) as edge:
        edge.route({"web.x/": [port]})
        await exchange(edge.port, get("/200?q=1", "web.x"))
        log.flush()
        (tmp_path / "access.log").rename(tmp_path / "old")
        await exchange(edge.port, get("/", "nobody"))
    first, second = (json.loads((tmp_path / n).read_text()) for n in ("old", "access.log"))
    assert (first["job"], first["status"], first["target"]) == ("web", 200, "/200?q=1")
    assert (first["client"], first["method"], first["host"]) == ("127.0.0.1", "GET", "web.x")
    assert (second["job"], second["status"], second["host"]) == (None, 404, "nobody")


async def test_access_log_that_can_not_be_written(tmp_path: Path):
    """A log that can't be written costs its lines, not the requests."""
    log = AccessLog(tmp_path / "missing" / "access.log")
    async with serving(by_path) as port, running(access_log=log) as edge:
        edge.route({"web.x/": [port]})
        assert b" 200 " in await exchange(edge.port, get("/200", "web.x"))
    assert log.dropped == 1
