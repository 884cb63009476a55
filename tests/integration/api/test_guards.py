"""Who may ask what, how often, on which condition, and what is written down about it."""

import json
import os
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from ozymandias.api import app as api_app
from ozymandias.api import streaming
from ozymandias.api.limits import Limits, Rate
from ozymandias.api.table import ROUTES
from ozymandias.store.tokens import hashed, make_token
from tests.integration.api.rig import TOKEN, Answer, Cluster, until
from tests.integration.api.test_api import healthy, job_file, problem
from tests.integration.api.test_streams import open_stream

PLACES = {
    "{namespace}": "default",
    "{job}": "there",
    "{instance}": "there-0",
    "{node}": "n2",
    "{freeze}": "there",
}
CHANGING = [route for route in ROUTES if route.change]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Strangers may knock as often as they like, so that one test does not slow the next."""
    limits = Limits(stranger=Rate(per_second=0, burst=0))
    with Cluster(tmp_path_factory.mktemp("cluster"), limits=limits) as found:
        yield found


def url(path: str) -> str:
    for name, value in PLACES.items():
        path = path.replace(name, value)
    return path


def by_socket(cluster: Cluster, method: str, path: str, body: bytes = b"") -> int:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(cluster.socket))
        head = f"{method} {path} HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n"
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return int(sock.recv(65536).split(b" ")[1])


def lines(cluster: Cluster) -> list[dict[str, Any]]:
    if not cluster.audit_file.exists():
        return []
    return [json.loads(line) for line in cluster.audit_file.read_text().splitlines()]


# Who --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_who_may_ask_what(cluster: Cluster, route: Any) -> None:
    """Every route: nobody without a token or with a wrong one, everybody with it, and root."""
    path = url(route.path)
    for token in ("", "wrong", TOKEN.upper(), f"{TOKEN} x"):
        status = cluster.request(route.method, path, token=token).status
        assert (status == 401) != route.is_open
    assert cluster.request(route.method, path, b"").status not in (401, 403, 500)
    assert by_socket(cluster, route.method, path) not in (401, 403, 500)


def test_a_daemon_is_believed_by_its_presence_record(cluster: Cluster) -> None:
    """A peer shows the key that its record holds; another key, or another node's, is refused."""
    for proof, status in (
        ("Peer n2:key-of-n2", 200),
        ("Peer n2:key-of-n3", 401),
        ("Peer n2:", 401),
        ("Peer nobody:", 401),
        ("Bearer key-of-n2", 401),
    ):
        headers = {"Authorization": proof}
        assert cluster.request("GET", "/v1/info", headers=headers, token="").status == status


def test_only_hashes_are_kept(cluster: Cluster) -> None:
    """The daemon's file holds no token, and a token no two of which are alike."""
    assert TOKEN not in cluster.tokens_file.read_text()
    made = {make_token() for _ in range(100)}
    assert len(made) == 100
    assert all(len(token) >= 40 and token not in str(hashed(token)) for token in made)


def test_a_token_that_is_taken_away_ends_at_once(own_cluster: Cluster) -> None:
    """The file is read again when it changes; unreadable, it lets nobody in."""
    other = make_token()
    text = own_cluster.tokens_file.read_text()
    own_cluster.tokens_file.write_text(f"{text}{hashed(other)}\n")
    assert own_cluster.request("GET", "/v1/info", token=other).status == 200
    own_cluster.tokens_file.write_text(text)
    assert own_cluster.request("GET", "/v1/info", token=other).status == 401
    assert own_cluster.request("GET", "/v1/info").status == 200
    own_cluster.tokens_file.write_text("what is this\n")
    assert own_cluster.request("GET", "/v1/info").status == 401


def test_cve_2022_3867_a_stream_ends_with_its_token(
    own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nomad's event streams went on after the token had expired; ours end with a proper end."""
    monkeypatch.setattr(streaming, "BEAT_SECONDS", 0.2)
    connection, answer = open_stream(own_cluster, "/v1/events?follow=1")
    own_cluster.tokens_file.write_text("")
    answer.read()  # to its end; raises when it was torn
    connection.close()


def test_cve_2020_8558_loopback_is_nobody(cluster: Cluster) -> None:
    """What comes from this machine proves nothing: 127.0.0.1 needs the token like all others."""
    for headers in ({}, {"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}):
        problem(cluster.request("GET", "/v1/jobs", headers=headers, token=""), 401, "unauthorized")


def test_cve_2022_24685_no_token_no_parsing(cluster: Cluster) -> None:
    """Nomad parsed jobs of strangers; ours are refused before the body has even arrived."""
    with socket.create_connection(("127.0.0.1", cluster.machines["n1"].port), 10) as sock:
        head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        sock.sendall(head.encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_cve_2020_7218_strangers_hold_no_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are counted, and those that say nothing are closed, before any token."""
    monkeypatch.setattr(api_app, "FIRST_REQUEST_SECONDS", 0.5)
    with Cluster(tmp_path, nodes=1, limits=Limits(connections_max=10)) as cluster:
        port = cluster.machines["n1"].port
        silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(10)]
        with socket.create_connection(("127.0.0.1", port), 10) as late:
            assert late.recv(1) == b""
        for sock in silent:
            assert sock.recv(1) == b""
            sock.close()
        until(lambda: _answers(cluster))


def _answers(cluster: Cluster) -> bool:
    try:
        return cluster.request("GET", "/v1/info").status == 200
    except OSError:
        return False


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:7400", 200),
        ("[::1]:7400", 200),
        ("10.1.2.3", 200),
        ("evil.example", 421),
        ("evil.example:7400", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_names_that_are_not_this_nodes(cluster: Cluster, host: str, status: int) -> None:
    """A web page on a hostile name that resolves to this node gets nothing (DNS rebinding)."""
    assert cluster.request("GET", "/v1/info", headers={"Host": host}).status == status
    assert cluster.request("GET", "/healthz", headers={"Host": host}).status == 200


# How often --------------------------------------------------------------------------------------


@pytest.fixture
def slow_cluster(tmp_path: Path) -> Iterator[Cluster]:
    rates = Limits(caller=Rate(per_second=0.5, burst=5), stranger=Rate(per_second=0.1, burst=3))
    with Cluster(tmp_path, nodes=1, limits=rates) as found:
        yield found


def test_too_many_requests(slow_cluster: Cluster) -> None:
    """429 with the seconds to wait; strangers are slowed by themselves, not the token's holder."""
    strangers = [slow_cluster.request("GET", "/v1/info", token="wrong") for _ in range(6)]
    assert [a.status for a in strangers] == [401] * 3 + [429] * 3
    answers = [slow_cluster.request("GET", "/v1/info") for _ in range(8)]
    assert [a.status for a in answers[:5]] == [200] * 5
    limited = answers[7]
    problem(limited, 429, "rate-limited")
    assert 1 <= int(limited.headers["retry-after"]) <= 2
    assert slow_cluster.request("GET", "/healthz", token="").status == 200


# On which condition -----------------------------------------------------------------------------


def change(cluster: Cluster, method: str, path: str, match: str, body: Any = None) -> Answer:
    return cluster.request(method, path, body, headers={"If-Match": match})


def test_if_match(cluster: Cluster) -> None:
    """A change meant for another state of the job is refused, whatever the change."""
    made = cluster.request("POST", "/v1/jobs", job_file("matched"))
    tag, path = made.headers["etag"], "/v1/jobs/default/matched"
    assert tag == made.document["etag"] == cluster.request("GET", path).headers["etag"]
    for match in ('"2"', '"0.1.1.0"', '"7", "8"'):
        for method, url_, body in (
            ("POST", "/v1/jobs", job_file("matched", container={"image": "demo:2"})),
            ("POST", f"{path}/scale", {"instances": 3}),
            ("POST", f"{path}/restart", None),
            ("DELETE", path, None),
        ):
            answer = change(cluster, method, url_, match, body)
            assert problem(answer, 412, "changed-meanwhile")["version"] == 1
    assert change(cluster, "POST", f"{path}/scale", tag, {"instances": 2}).status == 200
    stale = change(cluster, "POST", f"{path}/scale", tag, {"instances": 3})
    problem(stale, 412, "changed-meanwhile")
    for match in ('"1"', "*", '"9", "1"'):
        assert change(cluster, "POST", f"{path}/restart", match).status == 200
    for match in ("1", '"x"', 'W/"1"', '"1" "2"'):
        problem(change(cluster, "DELETE", path, match), 400, "invalid-request")
    absent = change(cluster, "POST", "/v1/jobs", '"1"', job_file("absent"))
    problem(absent, 412, "changed-meanwhile")


def test_a_submit_with_a_key_happens_once(cluster: Cluster) -> None:
    """Sent again, also to another node, it answers the same; with another body it is refused."""
    body, headers = job_file("keyed"), {"Idempotency-Key": "k-1"}
    first = cluster.request("POST", "/v1/jobs", body, headers=headers)
    assert first.status == 201
    assert "idempotency-replayed" not in first.headers
    for node in ("n1", "n2", "n3"):
        until(lambda n=node: cluster.request("GET", "/v1/jobs/default/keyed", node=n).status == 200)
        again = cluster.request("POST", "/v1/jobs", body, headers=headers, node=node)
        assert again.status == 201
        assert again.headers["idempotency-replayed"] == "true"
        same = ("job", "uid", "version", "wanted", "changed", "created")
        assert {m: again.document[m] for m in same} == {m: first.document[m] for m in same}
    other = job_file("keyed", container={"image": "demo:2"})
    for wrong in (other, job_file("keyed-2")):
        answer = cluster.request("POST", "/v1/jobs", wrong, headers=headers)
        problem(answer, 422, "idempotency-key-reused")
    newer = cluster.request("POST", "/v1/jobs", other)
    assert newer.document["version"] == 2
    late = cluster.request("POST", "/v1/jobs", body, headers=headers)
    assert (late.status, late.document["version"]) == (201, 1)
    assert cluster.request("GET", "/v1/jobs/default/keyed").document["version"] == 2
    bad = cluster.request("POST", "/v1/jobs", body, headers={"Idempotency-Key": "a b"})
    problem(bad, 400, "invalid-request")


def test_a_key_also_holds_for_a_change_of_the_number(cluster: Cluster) -> None:
    """A submit that only scales is not done again after somebody scaled otherwise."""
    path, headers = "/v1/jobs/default/counted", {"Idempotency-Key": "k-2"}
    cluster.request("POST", "/v1/jobs", job_file("counted"))
    cluster.request("POST", "/v1/jobs", job_file("counted", numInstances=3), headers=headers)
    cluster.request("POST", f"{path}/scale", {"instances": 2})
    again = cluster.request(
        "POST", "/v1/jobs", job_file("counted", numInstances=3), headers=headers
    )
    assert (again.status, again.document["wanted"]) == (200, 3)
    assert cluster.request("GET", path).document["wanted"] == 2


# Pages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["jobs", "instances", "nodes"])
def test_lists_come_in_pages(cluster: Cluster, what: str) -> None:
    """Pages put together are the whole list, once each; a cursor of elsewhere is refused."""
    for number in range(3):
        body = job_file(f"page-{number}", namespace="pages", container={"memory": "8M"})
        cluster.request("POST", "/v1/jobs", body)
    only = "" if what == "nodes" else "&namespace=pages"
    whole = cluster.request("GET", f"/v1/{what}?limit=1000{only}").document
    assert whole["next"] is None
    found, cursor = [], ""
    while True:
        page = cluster.request("GET", f"/v1/{what}?limit=2&cursor={cursor}{only}").document
        assert len(page["items"]) <= 2
        found += page["items"]
        if page["next"] is None:
            break
        cursor = page["next"]
    key = {"jobs": "job", "instances": "instance", "nodes": "name"}[what]
    assert [row[key] for row in found] == [row[key] for row in whole["items"]]
    for bad in ("zzz", "W10", "WzFd", "e30", "bnVsbA"):
        problem(cluster.request("GET", f"/v1/{what}?cursor={bad}"), 400, "invalid-request")


def test_events_page_back(cluster: Cluster) -> None:
    """The newest come first as a page, and `next` leads to those before."""
    cluster.request("POST", "/v1/jobs", job_file("paged"))
    healthy(cluster, "paged", 1)
    whole = until(
        lambda: (
            items
            if len(items := cluster.request("GET", "/v1/events?job=paged").document["items"]) >= 4
            else None
        )
    )
    newest = cluster.request("GET", "/v1/events?job=paged&limit=2").document
    older = cluster.request("GET", f"/v1/events?job=paged&limit=2&cursor={newest['next']}").document
    numbers = [(e["node"], e["number"]) for e in older["items"] + newest["items"]]
    assert set(numbers[-2:]).isdisjoint(numbers[:-2])
    assert len(whole) >= 4
    assert older["items"][-1]["time"] <= newest["items"][0]["time"]


def test_unknown_parameters_are_refused(cluster: Cluster) -> None:
    """A misspelt parameter is an error and not ignored; so is one that is given twice."""
    answer = cluster.request("GET", "/v1/events?folow=1")
    assert "follow" in problem(answer, 400, "invalid-request")["hint"]
    problem(cluster.request("GET", "/v1/jobs?limit=1&limit=2"), 400, "invalid-request")


# The record -------------------------------------------------------------------------------------

BODIES = {
    "job.submit": job_file("there"),
    "job.scale": {"instances": 2},
    "node.drain": {},
    "node.label": {"set": {"zone": "a"}},
    "settings.change": {"target_percent": 75},
    "freeze.set": {"from": "03:00", "to": "03:01"},
    "rebalance": {"max_moves": 1},
}
EXEC = {"command": ["sh", "-c", "echo s3cr3t"]}


@pytest.mark.parametrize("route", CHANGING, ids=lambda r: r.change)
def test_every_change_is_one_line_of_the_audit(cluster: Cluster, route: Any) -> None:
    """Done, refused, broken, for a job that is not there: one line each, with the outcome."""
    cluster.request("POST", "/v1/jobs", job_file("there"))
    until(lambda: cluster.request("GET", "/v1/jobs/default/there").status == 200)
    healthy(cluster, "there", 1)
    body = EXEC if route.change == "instance.exec" else BODIES.get(route.change)
    missing = url(route.path).replace("there", "missing").replace("/n2", "/n9")
    headers = {"X-Request-Id": "audited-1", "Ozymandias-By": "alice"}
    outcomes = []
    for path, given in ((missing, body), (url(route.path), b"{"), (url(route.path), body)):
        if route.change == "freeze.remove":  # a window that is gone is not found
            cluster.request("PUT", url(route.path), BODIES["freeze.set"])
        before = len(lines(cluster))
        answer = cluster.request(route.method, path, given, headers=headers)
        found = lines(cluster)[before:]
        assert len(found) == 1
        (line,) = found
        assert (line["what"], line["request"], line["by"]) == (route.change, "audited-1", "alice")
        assert line["who"] == f"token:{hashed(TOKEN).id}"
        is_problem = answer.status >= 400
        assert is_problem == (line["outcome"] not in ("done", "unchanged", "replayed"))
        if is_problem:
            assert answer.document["type"].endswith(line["outcome"])
        outcomes.append(line["outcome"])
    assert outcomes[-1] in ("done", "unchanged")
    assert "s3cr3t" not in cluster.audit_file.read_text()
    before = len(lines(cluster))
    cluster.request(route.method, url(route.path), body, token="wrong")
    assert len(lines(cluster)) == before
    cluster.request("DELETE", "/v1/jobs/default/there")
    until(lambda: cluster.request("GET", "/v1/jobs/default/there").status == 404)


def test_the_audit_tells_before_and_after(cluster: Cluster) -> None:
    """Versions and numbers as they were and as they became; root on the socket by its uid."""
    cluster.request("POST", "/v1/jobs", job_file("told"))
    cluster.request("POST", "/v1/jobs/default/told/scale", {"instances": 2})
    submit, scale = [line for line in lines(cluster) if line.get("job") == "told"]
    assert (submit["before"], submit["after"]) == (None, {"version": 1, "wanted": 1, "restart": 0})
    assert (scale["before"]["wanted"], scale["after"]["wanted"]) == (1, 2)
    assert by_socket(cluster, "DELETE", "/v1/jobs/default/told") == 200
    assert lines(cluster)[-1]["who"] == f"uid:{os.getuid()}"


def test_what_is_passed_on_is_written_down_once(cluster: Cluster) -> None:
    """Exec on another node is a line where it came in, also for who claims to be a peer."""
    cluster.request("POST", "/v1/jobs", job_file("passed"))
    (row,) = healthy(cluster, "passed", 1)["instances"]
    other = next(name for name in cluster.machines if name != row["node"])
    path = "/v1/instances/default/passed-0/exec"
    for node, headers in ((other, {}), (row["node"], {"Ozymandias-Passed-On": "1"})):
        before = len(lines(cluster))
        assert cluster.request("POST", path, EXEC, node=node, headers=headers).status == 200
        (line,) = lines(cluster)[before:]
        assert (line["what"], line["after"]) == ("instance.exec", {"exit_code": 0})


def test_a_body_that_never_comes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """408 after a while, and the connection is free again."""
    monkeypatch.setattr("ozymandias.api.request.BODY_SECONDS_MAX", 0.3)
    connection = HTTPConnection("127.0.0.1", cluster.machines["n1"].port, timeout=10)
    connection.putrequest("POST", "/v1/jobs")
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.putheader("Content-Length", "100")
    connection.endheaders()
    started = time.monotonic()
    assert connection.getresponse().status == 408
    assert time.monotonic() - started < 5
    connection.close()
