"""Streams: they go on, they end properly, and a client that goes away harms nothing."""

import asyncio
import json
import socket
import time
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from tests.integration.api.rig import TOKEN, Cluster, until
from tests.integration.api.test_api import healthy, job_file


def open_stream(
    cluster: Cluster, path: str, node: str = "n1"
) -> tuple[HTTPConnection, HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", cluster.machines[node].port, timeout=15)
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert answer.status == 200
    return connection, answer


def next_event(answer: HTTPResponse) -> Any:
    while True:
        line = answer.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            return json.loads(line[6:])


def test_events_are_followed(cluster: Cluster) -> None:
    """What happens after the request arrives by itself, as server-sent events."""
    connection, answer = open_stream(cluster, "/v1/events?follow=1&job=followed")
    assert answer.getheader("Content-Type") == "text/event-stream"
    cluster.request("POST", "/v1/jobs", job_file("followed"), node="n2")
    kinds = []
    while "instance.healthy" not in kinds:
        event = next_event(answer)
        assert event["job"] == "followed"
        kinds.append(event["kind"])
    assert "job.submitted" in kinds
    assert len(kinds) == len(set(kinds))
    connection.close()


def test_logs_are_followed_through_a_peer(cluster: Cluster) -> None:
    """A line written on one node arrives through another."""
    cluster.request("POST", "/v1/jobs", job_file("talk"))
    (row,) = healthy(cluster, "talk", 1)["instances"]
    other = next(name for name in cluster.machines if name != row["node"])
    connection, answer = open_stream(
        cluster, "/v1/instances/default/talk-0/logs?follow=1", node=other
    )
    assert json.loads(answer.readline())["text"] == "started"
    host = cluster.machines[row["node"]].host

    def speak() -> None:
        (pod,) = [p for p in host.pods.values() if p.pod.id.job == "talk"]
        host.say(pod.containers["app"], "hello again")
        host.notify()

    cluster.do(speak)
    line = json.loads(answer.readline())
    assert (line["instance"], line["container"], line["text"]) == ("talk-0", "app", "hello again")
    connection.close()


def test_clients_that_go_away_harm_nothing(cluster: Cluster) -> None:
    """Half a request, half an answer, a stream dropped at once: the API goes on answering."""
    port = cluster.machines["n1"].port
    head = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    for text in (
        "POST /v1/jo",
        f"POST /v1/jobs HTTP/1.1\r\n{head}Content-Length: 5000\r\n\r\nname: ha",
        f"POST /v1/jobs HTTP/1.1\r\n{head}Content-Length: 2\r\n\r\n{{}}",
        f"GET /v1/events?follow=1 HTTP/1.1\r\n{head}\r\n",
        f"GET /v1/jobs/default/none?after=99999999&wait=20 HTTP/1.1\r\n{head}\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.sendall(text.encode())
    assert cluster.request("GET", "/v1/info").status == 200
    assert cluster.request("GET", "/v1/jobs/default/ha").status == 404


def test_a_dropped_stream_is_let_go(cluster: Cluster) -> None:
    """The handler of a follower that vanished ends with the next thing it would send."""

    def streams() -> int:
        tasks = cluster.do(lambda: [str(t.get_coro()) for t in asyncio.all_tasks()])
        return sum("_guarded" in text for text in tasks)

    until(lambda: streams() == 0, 20)
    connection, answer = open_stream(cluster, "/v1/events?follow=1")
    until(lambda: streams() == 1)
    answer.close()
    connection.close()
    cluster.request("POST", "/v1/jobs", job_file("noise"))
    until(lambda: streams() == 0)


def test_streams_end_properly_when_the_daemon_does(own_cluster: Cluster) -> None:
    """A shutdown is the end of the answer, not a torn connection, and takes no time."""
    followers = [open_stream(own_cluster, "/v1/events?follow=1") for _ in range(3)]
    own_cluster.request("POST", "/v1/jobs", job_file("last"))
    healthy(own_cluster, "last", 1)
    followers.append(open_stream(own_cluster, "/v1/jobs/default/last/logs?follow=1"))
    started = time.monotonic()
    own_cluster.kill("n1")
    for connection, answer in followers:
        answer.read()  # raises IncompleteRead if it was torn
        connection.close()
    assert time.monotonic() - started < 5
    assert not own_cluster.socket.exists()
