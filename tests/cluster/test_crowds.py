"""Too much, too many, and people who change their minds: nothing breaks and nothing is left."""

import http.client
import json
import random
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kit import Cluster, shell, until, web

SUBMITS = 1000
THREADS = 50


def test_a_job_file_of_a_megabyte(cluster: Cluster) -> None:
    """Refused within a moment as too large, by the API and by `ozy`; the daemon goes on."""
    for size in (2**20, 2**20 - 200, 100_000):
        body = b"name: large\n# " + b"x" * (size - 14)
        began = time.monotonic()
        answer = cluster.request("POST", "/v1/jobs", body)
        assert answer.status in (413, 422), answer
        assert answer.slug in ("too-large", "invalid-job")
        assert time.monotonic() - began < 10
    file = cluster.directory / "large.yaml"
    file.write_bytes(b"name: large\n# " + b"x" * 2**20)
    assert cluster.ozy("submit", str(file), code=2)["title"]
    assert cluster.get("/v1/jobs")["items"] == []


def test_a_thousand_submits_at_once(cluster: Cluster) -> None:
    """Equal and different jobs through all nodes: each is answered, none with a bug of ours.

    The jobs have no instances: this is about the store and the committers, not about podman.
    """
    local = cluster.local
    token = local.token_file.read_text().strip()
    chosen = random.Random(7)
    bodies = []
    for number in range(SUBMITS):
        name = "equal" if number % 4 == 0 else f"many-{number % 100}"
        job = web(name, instances=0, memory=f"{16 + (number % 3) * (name != 'equal')}M")
        bodies.append((chosen.choice(local.nodes).api_port, json.dumps(job).encode()))
    answers: list[tuple[int, str]] = []
    lock = threading.Lock()

    def work(mine: list[tuple[int, bytes]]) -> None:
        for port, body in mine:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
            try:
                connection.request("POST", "/v1/jobs", body, {"Authorization": f"Bearer {token}"})
                response = connection.getresponse()
                document = json.loads(response.read())
                slug = document.get("type", "").rpartition("#")[2]
                with lock:
                    answers.append((response.status, slug))
            finally:
                connection.close()

    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(bodies[n::THREADS],)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Counter(answers)
    print(f"{SUBMITS} submits by {THREADS} threads in {time.monotonic() - began:.1f} s: {found}")
    assert found.total() == SUBMITS
    assert set(found) <= {(200, ""), (201, ""), (503, "conflict")}
    wanted = {f"many-{n % 100}" for n in range(SUBMITS) if n % 4} | {"equal"}
    assert found[(201, "")] <= len(wanted)

    # Every node tells the same, and the cluster still works.
    def jobs(node: str) -> set[tuple[str, int]]:
        return {(row["job"], row["version"]) for row in cluster.get("/v1/jobs", node=node)["items"]}

    until(lambda: jobs("n1") == jobs("n2") == jobs("n3"))
    assert ("equal", 1) in jobs("n1")
    if (503, "conflict") not in found:
        assert {job for job, _ in jobs("n1")} == wanted
    cluster.submit(web("after"))


def interrupted(process: "subprocess.Popen[str]") -> str:
    """Ctrl-C: the exit code is 130, and no traceback is seen."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    return out + err


@pytest.mark.parametrize(
    "command", [("submit",), ("logs", "-f"), ("events", "-f"), ("exec",), ("scale",)]
)
def test_interrupting_ozy(cluster: Cluster, command: tuple[str, ...]) -> None:
    """Ctrl-C in a command that waits ends it with 130; the job goes on."""
    slow = web("slow", environment={"UNHEALTHY": "1"}, restart="no")
    if command == ("submit",):
        process = cluster.spawn("submit", cluster.file(slow))
        until(lambda: cluster.request("GET", "/v1/jobs/default/slow").status == 200)
        assert process.stdout is not None
        assert "submitted" in process.stdout.readline()
        interrupted(process)
        assert cluster.status("slow")["wanted"] == 1
        return
    cluster.submit(shell("chatty", "while sleep 0.1; do echo line; done"))
    arguments = {
        "logs": ["chatty"],
        "events": [],
        "exec": ["chatty-0", "--", "sleep", "1000"],
        "scale": ["chatty", "2"],
    }[command[0]]
    if command == ("scale",):
        cluster.submit(slow, wait=False)
        arguments = ["slow", "2"]
    process = cluster.spawn(*command, *arguments)
    if command[0] in ("logs", "events", "scale"):
        assert process.stdout is not None
        assert process.stdout.readline()
    else:
        until(lambda: "sleep" in _processes_of(cluster, "chatty-0"))
    interrupted(process)


def _processes_of(cluster: Cluster, instance: str) -> str:
    return cluster.run(instance, "ps")[1].replace("sleep 0.1", "")


def test_clients_that_go_away(cluster: Cluster) -> None:
    """In the middle of a submit, a log, an exec and an event stream: connections and tasks end."""
    cluster.submit(shell("chatty", "while sleep 0.1; do echo line; done"))
    node = cluster.row("chatty-0")["node"]
    before = _connections(cluster)
    streams = ("/v1/instances/default/chatty-0/logs?follow=1", "/v1/events?follow=1")
    for path in streams * 4:
        for name in ("n1", "n2", "n3"):
            _begin_and_leave(cluster, name, path)
    for name in ("n1", node):
        path = "/v1/instances/default/chatty-0/exec"
        _begin_and_leave(cluster, name, path, {"command": ["sleep", "600"], "timeout_seconds": 600})
    _send_and_leave(cluster, b"name: half\n", length=999)  # more is promised than ever comes
    whole = json.dumps(web("whole", instances=0)).encode()
    _send_and_leave(cluster, whole, length=len(whole))  # nobody waits for the answer
    # Connections between nodes and to podman are kept for a while; those of clients are not.
    until(lambda: _connections(cluster) <= before + 6, say="connections closed")
    until(lambda: "sleep 600" not in cluster.run("chatty-0", "ps")[1], say="exec ended with it")
    assert "half" not in {row["job"] for row in cluster.get("/v1/jobs")["items"]}
    assert cluster.row("chatty-0")["healthy"]


def _send_and_leave(cluster: Cluster, body: bytes, *, length: int) -> None:
    head = (
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {cluster.local.token_file.read_text().strip()}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", cluster.local.nodes[0].api_port)) as connection:
        connection.sendall(head.encode() + body)


def _begin_and_leave(cluster: Cluster, node: str, path: str, body: Any = None) -> None:
    local = cluster.local
    found = local.node(node)
    assert found is not None
    connection = http.client.HTTPConnection("127.0.0.1", found.api_port, timeout=20)
    headers = {"Authorization": f"Bearer {local.token_file.read_text().strip()}"}
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
    if body is None:
        assert connection.getresponse().status == 200
    else:
        until(lambda: "sleep 600" in cluster.run("chatty-0", "ps")[1])
    connection.close()


def _connections(cluster: Cluster) -> int:
    """Sockets that the three daemons hold."""
    total = 0
    for node in ("n1", "n2", "n3"):
        pid = cluster.process(node).pid
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                total += str(file.readlink()).startswith("socket:")
            except OSError:
                continue
    return total
