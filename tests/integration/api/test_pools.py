"""Pools over real HTTP: sources that are honest, slow, huge, redirect or lie, and `ozy pools`."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.integration.api.rig import Cluster, until


class Source:
    """Answers as it is told to; ``asked`` counts."""

    def __init__(self) -> None:
        self.mode, self.pending, self.asked = "honest", 0, 0
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                outer.answer(self)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/stats"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        if self.mode == "slow":
            self.released.wait(60)
        status = {"redirect": 302, "broken": 500}.get(self.mode, 200)
        to.send_response(status)
        to.send_header("Location", self.url)
        to.end_headers()
        try:
            if self.mode == "huge":
                for _ in range(160):
                    to.wfile.write(b"1" * 2**16)
            elif self.mode == "lies":
                to.wfile.write(b'{"builds": {"waiting": -5}}')
            else:
                to.wfile.write(json.dumps({"builds": {"waiting": self.pending}}).encode())
        except OSError:
            pass  # whoever asked has heard enough


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.released.set()
    made.server.shutdown()
    made.server.server_close()


def pool(source: Source, name: str = "agents", **rules: object) -> bytes:
    autoscale = {
        "min": 0,
        "max": 3,
        "step": 2,
        "every": 1,
        "pending": {"url": source.url, "path": "builds.waiting"},
    }
    container = {"image": "demo", "memory": "64M"}
    document = {"name": name, "containers": {"app": container}, "autoscale": autoscale | rules}
    return json.dumps(document).encode()


def row(cluster: Cluster, name: str = "agents") -> Any:
    rows = cluster.request("GET", "/v1/pools").document["items"]
    return next(row for row in rows if row["pool"] == name)


def healthy(cluster: Cluster, name: str) -> int:
    return int(cluster.request("GET", f"/v1/jobs/default/{name}").document["healthy"])


def test_a_pool_follows_what_is_pending(own_cluster: Cluster, source: Source) -> None:
    """Up by steps to the most, down to nothing, by one of three peers; all of it is seen."""
    ozy = own_cluster.ozy
    assert "No pools" in ozy("pools").out
    source.pending = 4
    file = own_cluster.folder / "agents.yaml"
    file.write_bytes(pool(source))
    submitted = ozy("submit", str(file), "--detach")
    assert "agents version 1 submitted: it has no instances for now." in submitted.out
    until(lambda: healthy(own_cluster, "agents") == 3, 30)
    until(lambda: "3, the most" in row(own_cluster)["reason"], 30)
    found = row(own_cluster)
    assert (found["wanted"], found["min"], found["max"], found["pending"]) == (3, 0, 3, 4)
    shown = ozy("pools").out
    assert "PENDING  SINCE" in shown
    assert "agents  default    3     3       0    3    4" in shown and "3, the most" in shown
    assert "It is a pool of 0 to 3, 3 now: 4 pending: 3, the most." in ozy("why", "agents").out
    by_hand = ozy("scale", "agents", "1")
    assert by_hand.code == 2 and "is a pool: it has 0 to 3 instances" in by_hand.err
    source.pending = 0
    until(lambda: row(own_cluster)["live"] == 0, 30)
    told = [
        "pool agents from 0 to 2: 4 pending: 2 more",
        "pool agents from 2 to 3: 4 pending: 1 more",
        "pool agents from 3 to 0: nothing is pending: 0, the least",
    ]
    until(lambda: scaled(own_cluster) == told, 30)  # the log follows what it tells of


def scaled(cluster: Cluster) -> list[str]:
    events = cluster.ozy("events", "-o", "json").document
    return [e["reason"] for e in events if e["kind"] == "pool.scaled"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("huge", "the answer is over 64 KiB"),
        ("redirect", "HTTP 302, and redirects are not followed"),
        ("broken", "HTTP 500"),
        ("lies", "the answer is below 0"),
        ("slow", "no whole answer within 10 s"),
    ],
)
def test_a_bad_source_harms_its_own_pool_only(
    own_cluster: Cluster, source: Source, mode: str, words: str
) -> None:
    """The pool stays as it is, with the reason; another one goes on, and so does the rest."""
    ask = own_cluster.request
    good = Source()
    thread = threading.Thread(target=good.server.serve_forever, daemon=True)
    thread.start()
    try:
        source.mode, good.pending = mode, 1
        assert ask("POST", "/v1/jobs", pool(source)).status == 201
        assert ask("POST", "/v1/jobs", pool(good, "good", min=1)).status == 201
        until(lambda: row(own_cluster, "good")["live"] == 3, 30)
        until(lambda: words in row(own_cluster)["reason"], 30)
        found = row(own_cluster)
        assert (found["pending"], found["wanted"], found["live"]) == (None, 0, 0)
        began = time.monotonic()
        assert ask("GET", "/v1/pools").status == 200
        assert time.monotonic() - began < 5
        assert words in own_cluster.ozy("pools").out
        until(lambda: "pool.source_failed" in own_cluster.ozy("events").out, 10)
        source.mode = "honest"
        source.released.set()
        until(lambda: row(own_cluster)["pending"] == 0, 30)
        until(lambda: "pool.source_back" in own_cluster.ozy("events").out, 10)
    finally:
        good.server.shutdown()
        good.server.server_close()


def test_a_freeze_holds_a_pool(own_cluster: Cluster, source: Source) -> None:
    """Nothing is scaled until the window ends; the pool says which window it is."""
    ask, ozy = own_cluster.request, own_cluster.ozy
    assert ozy("freeze", "now", "--for", "1h").code == 0
    source.pending = 2
    assert ask("POST", "/v1/jobs", pool(source)).status == 201
    until(lambda: "but frozen by now until" in row(own_cluster)["reason"], 20)
    seen = source.asked
    until(lambda: source.asked > seen + 2, 20)
    assert row(own_cluster)["wanted"] == 0
    assert ozy("freeze", "remove", "now", "--reason", "builds").code == 0
    until(lambda: healthy(own_cluster, "agents") == 3, 30)
