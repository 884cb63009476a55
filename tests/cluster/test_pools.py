"""Pools on a running cluster: real pods come and go with what a real server says is pending."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cluster.kit import Cluster, shell, until

EVERY_SECONDS = 1.0


@dataclass
class Queue:
    """What is pending, and when somebody asked."""

    pending: int = 0
    url: str = ""
    asked: list[float] = field(default_factory=list)


@contextmanager
def served_queue() -> Iterator[Queue]:
    queue = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            queue.asked.append(time.monotonic())
            body = json.dumps({"builds": {"waiting": queue.pending}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        queue.url = f"http://127.0.0.1:{server.server_port}/stats"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield queue
        finally:
            server.shutdown()
            thread.join()


def steps(cluster: Cluster) -> list[str]:
    return [e["reason"] for e in cluster.events("agents") if e["kind"] == "pool.scaled"]


def running(cluster: Cluster) -> int:
    return sum(row["healthy"] for row in cluster.rows("agents"))


def test_pods_follow_what_is_pending(cluster: Cluster) -> None:
    """Up by steps to the most, down to nothing; of three peers one asks and makes each step."""
    others = len(cluster.containers())
    with served_queue() as queue:
        pending = {"url": queue.url, "path": "builds.waiting"}
        rules = {"min": 0, "max": 3, "step": 2, "every": EVERY_SECONDS, "pending": pending}
        cluster.submit(shell("agents", "sleep 1000") | {"autoscale": rules}, wait=False)
        began = time.monotonic()
        until(lambda: len(queue.asked) >= 2, say="asked, and nothing is pending")
        assert cluster.rows("agents") == []

        queue.pending = 5
        until(lambda: running(cluster) == 3, say="the most")
        code, said = cluster.run("agents-2", "env")
        assert code == 0 and "POOL_NAME=agents" in said and "AGENT_NAME=agents-2" in said

        queue.pending = 0
        until(lambda: len(cluster.containers()) == others, say="the last pod is gone")
        asked, seconds = len(queue.asked), time.monotonic() - began
    until(
        lambda: (
            steps(cluster)
            == [
                "pool agents from 0 to 2: 5 pending: 2 more",
                "pool agents from 2 to 3: 5 pending: 1 more",
                "pool agents from 3 to 0: nothing is pending: 0, the least",
            ]
        ),
        say="each step was made once",
    )
    # Three who ask would ask three times as often.
    assert asked <= 2 + 1.5 * seconds / EVERY_SECONDS, (asked, seconds)
    assert "No pools" not in cluster.text("pools")
