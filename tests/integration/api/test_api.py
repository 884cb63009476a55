"""The HTTP API over TCP: documents, problems, the token, limits and streams."""

import json
import socket
import stat
from typing import Any

import pytest

from ozymandias.problems import CATALOGUE
from tests.integration.api.rig import TOKEN, Answer, Cluster, until

SLUGS = {kind.slug for kind in CATALOGUE}


def job_file(name: str, **fields: Any) -> bytes:
    container = {"image": "demo", "ports": ["80:8000"], "memory": "64M"}
    container |= fields.pop("container", {})
    return json.dumps({"name": name, "containers": {"app": container}} | fields).encode()


def problem(answer: Answer, status: int, slug: str) -> dict[str, Any]:
    """It is a problem document of that kind."""
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    document: dict[str, Any] = answer.document
    assert document["type"].endswith(f"#{slug}")
    assert slug in SLUGS
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return document


def healthy(cluster: Cluster, name: str, wanted: int) -> dict[str, Any]:
    def look() -> Any:
        document = cluster.request("GET", f"/v1/jobs/default/{name}").document
        return document if document["up_to_date"] == wanted else None

    found: dict[str, Any] = until(look)
    return found


def test_submit_change_and_stop(cluster: Cluster) -> None:
    """201 for a new job, 200 for a change and for no change; versions count up and stay."""
    path = "/v1/jobs/default/cycle"
    made = cluster.request("POST", "/v1/jobs?file=c.yaml&message=one", job_file("cycle"))
    assert made.status == 201
    assert made.document["changed"] is True
    assert [p["instance"] for p in made.document["plan"]["place"]] == ["cycle-0"]
    healthy(cluster, "cycle", 1)

    same = cluster.request("POST", "/v1/jobs", job_file("cycle"))
    assert (same.status, same.document["changed"], same.document["version"]) == (200, False, 1)
    other = cluster.request("POST", "/v1/jobs", job_file("cycle", container={"image": "demo:2"}))
    assert (other.status, other.document["version"]) == (200, 2)
    assert other.document["uid"] == made.document["uid"]
    until(lambda: healthy(cluster, "cycle", 1)["version"] == 2)

    assert cluster.request("DELETE", path).status == 200
    until(lambda: cluster.request("GET", path).status == 404)
    versions = cluster.request("GET", f"{path}/versions").document["items"]
    assert [v["version"] for v in versions] == [1, 2]
    assert versions[0]["message"] == "one"
    again = cluster.request("POST", "/v1/jobs", job_file("cycle"))
    assert (again.status, again.document["version"]) == (201, 3)
    assert again.document["uid"] != made.document["uid"]


def test_every_answer_says_who_did_what(cluster: Cluster) -> None:
    """A change is an event with the reason, the message and who asked."""
    headers = {"Ozymandias-By": "alice@laptop"}
    cluster.request("POST", "/v1/jobs?message=hello%20there", job_file("said"), headers=headers)

    def look() -> Any:
        events = cluster.request("GET", "/v1/events?namespace=default&job=said").document["items"]
        return [e for e in events if e["kind"] == "job.submitted"]

    (event,) = until(look)
    assert event["reason"] == "version 1 submitted by alice@laptop: hello there"


def test_scale_and_restart(cluster: Cluster) -> None:
    """Scaling changes what is wanted; a restart replaces instances without a new version."""
    cluster.request("POST", "/v1/jobs", job_file("sized"))
    path = "/v1/jobs/default/sized"
    assert cluster.request("POST", f"{path}/scale", {"instances": 2}).document["wanted"] == 2
    before = {row["address"] for row in healthy(cluster, "sized", 2)["instances"]}
    assert cluster.request("POST", f"{path}/restart").status == 200

    def replaced() -> bool:
        rows = cluster.request("GET", path).document["instances"]
        return len(rows) == 2 and not before & {row["address"] for row in rows}

    until(replaced)
    assert cluster.request("GET", path).document["version"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "slug"),
    [
        ("GET", "/v1/nowhere", None, 404, "not-found"),
        ("GET", "/", None, 404, "not-found"),
        ("PUT", "/v1/jobs", b"", 405, "method-not-allowed"),
        ("GET", "/v1/jobs/default/none", None, 404, "job-not-found"),
        ("DELETE", "/v1/jobs/default/none", None, 404, "job-not-found"),
        ("POST", "/v1/jobs/default/none/restart", None, 404, "job-not-found"),
        ("POST", "/v1/jobs/default/none/scale", {"instances": 1}, 404, "job-not-found"),
        ("POST", "/v1/jobs/default/none/scale", {"instances": "x"}, 400, "invalid-request"),
        ("POST", "/v1/jobs/default/none/scale", {"instances": -1}, 400, "invalid-request"),
        ("POST", "/v1/jobs/default/none/scale", {"instances": True}, 400, "invalid-request"),
        ("POST", "/v1/jobs/default/none/scale", {}, 400, "invalid-request"),
        ("POST", "/v1/jobs/default/none/scale", b"[]", 400, "invalid-request"),
        ("POST", "/v1/jobs/default/none/scale", b"{", 400, "invalid-request"),
        ("POST", "/v1/jobs/default/none/scale", b"[" * 50000, 400, "invalid-request"),
        ("GET", "/v1/jobs/default/none/logs", None, 404, "job-not-found"),
        ("GET", "/v1/jobs/default/none/why", None, 404, "job-not-found"),
        ("GET", "/v1/jobs/default/none/versions", None, 404, "job-not-found"),
        ("GET", "/v1/instances?namespace=default&job=none", None, 404, "job-not-found"),
        ("GET", "/v1/instances/default/none-0/logs", None, 404, "instance-not-found"),
        ("GET", "/v1/instances/default/none/logs", None, 404, "instance-not-found"),
        ("GET", "/v1/instances/default/none-0/why", None, 404, "instance-not-found"),
        (
            "POST",
            "/v1/instances/default/none-0/exec",
            {"command": ["ls"]},
            404,
            "instance-not-found",
        ),
        ("POST", "/v1/instances/default/none-0/exec", {"command": []}, 400, "invalid-request"),
        ("POST", "/v1/instances/default/none-0/exec", {"command": ["\0"]}, 400, "invalid-request"),
        (
            "POST",
            "/v1/instances/default/none-0/exec",
            {"command": ["a"], "timeout_seconds": 1e9},
            400,
            "invalid-request",
        ),
        ("GET", "/v1/events?since=yesterday", None, 400, "invalid-request"),
        ("GET", "/v1/events?limit=0", None, 400, "invalid-request"),
        ("GET", "/v1/jobs/default/none?after=-1", None, 400, "invalid-request"),
        ("POST", "/v1/jobs", b"", 422, "invalid-job"),
        ("POST", "/v1/plan", b"name: [", 422, "invalid-job"),
        ("POST", "/v1/plan", b"\xff\xfe", 422, "invalid-job"),
    ],
)
def test_problems(
    cluster: Cluster, method: str, path: str, body: Any, status: int, slug: str
) -> None:
    """Whatever is wrong with a request, the answer is a problem of the catalogue."""
    problem(cluster.request(method, path, body), status, slug)


def test_a_bad_job_file_is_answered_with_every_mistake(cluster: Cluster) -> None:
    """File, line, column and the nearest known name come back in the body."""
    bad = b"name: web\ncontainers:\n  app:\n    imaje: x\n    memory: 1Q\n"
    document = problem(cluster.request("POST", "/v1/jobs?file=w.yaml", bad), 422, "invalid-job")
    assert document["file"] == "w.yaml"
    assert {(e["line"], e["column"]) for e in document["errors"]} >= {(4, 5), (5, 13)}


def test_a_job_that_does_not_fit(cluster: Cluster) -> None:
    """Submit refuses with numbers per node and a change that fits; plan says the same with 200."""
    big = job_file("big", numInstances=4, container={"memory": "3G"})
    document = problem(cluster.request("POST", "/v1/jobs", big), 409, "insufficient-memory")
    assert document["title"] == "Insufficient memory for job"
    assert document["detail"].startswith("Job requires 12G of memory but only ")
    assert len(document["nodes"]) == 3
    assert document["suggestions"]
    planned = cluster.request("POST", "/v1/plan", big)
    assert planned.status == 200
    assert planned.document["fits"] is False
    assert planned.document["problem"]["detail"] == document["detail"]
    assert cluster.request("GET", "/v1/jobs/default/big").status == 404


def test_plan_fills_in_the_defaults_and_changes_nothing(cluster: Cluster) -> None:
    """A container without `memory` is planned with 256M."""
    plain = b"name: plain\ncontainers: {app: {image: demo}}\n"
    document = cluster.request("POST", "/v1/plan", plain).document
    assert document["memory_bytes"] == 256 * 2**20
    assert document["containers"][0]["memory_bytes"] == 256 * 2**20
    assert [p["instance"] for p in document["place"]] == ["plain-0"]
    assert {"fits", "place", "stop", "move", "problem"} <= document.keys()
    assert cluster.request("GET", "/v1/jobs/default/plain").status == 404


def test_a_megabyte_is_refused_clearly(cluster: Cluster) -> None:
    """A job file just under the limit is a job problem, one above it is too large."""
    problem(cluster.request("POST", "/v1/jobs", b"#" * (2**20 - 10)), 422, "invalid-job")
    problem(cluster.request("POST", "/v1/jobs", b"#" * (2**20 + 1)), 413, "too-large")


def test_a_body_without_a_length_is_limited_too(cluster: Cluster) -> None:
    """Chunks are counted, not believed."""
    with socket.create_connection(("127.0.0.1", cluster.machines["n1"].port), 10) as sock:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            sock.sendall(b"10000\r\n" + b"#" * 65536 + b"\r\n")
        sock.sendall(b"0\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer \xfc"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/nowhere", "/v1/info"])
def test_without_the_token_nothing_is_told(
    cluster: Cluster, headers: dict[str, str], path: str
) -> None:
    """401 for everything under /v1, known or not."""
    answer = cluster.request("GET", path, headers=headers, token="")
    problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_machines_that_watch_need_no_token(cluster: Cluster) -> None:
    """healthz, readyz and metrics are open; metrics count requests by route."""
    assert cluster.request("GET", "/healthz", token="").document == {"status": "alive"}
    assert cluster.request("GET", "/readyz", token="").document == {"status": "ready"}
    cluster.request("GET", "/v1/jobs/default/some-job")
    text = cluster.request("GET", "/metrics", token="").body.decode()
    assert 'route="/v1/jobs/{namespace}/{job}"' in text
    assert "some-job" not in text


def test_the_unix_socket_is_roots_and_asks_for_no_token(cluster: Cluster) -> None:
    """Mode 0600; whoever can open it is believed."""
    assert stat.S_IMODE(cluster.socket.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(cluster.socket))
        sock.sendall(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b'"node": "n1"' in answer


def test_requests_are_identified(cluster: Cluster) -> None:
    """The caller's request id comes back, also inside problems; a wild one is replaced."""
    answer = cluster.request("GET", "/v1/x", headers={"X-Request-Id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    assert answer.document["instance"] == "urn:ozymandias:request:abc-1"
    wild = cluster.request("GET", "/v1/info", headers={"X-Request-Id": "a b<c>"})
    assert wild.headers["x-request-id"] not in ("a b<c>", "")


def test_lists(cluster: Cluster) -> None:
    """Nodes, jobs, instances: items with the members of the contract."""
    cluster.request("POST", "/v1/jobs", job_file("listed", namespace="shop"))
    nodes = cluster.request("GET", "/v1/nodes").document["items"]
    assert [n["name"] for n in nodes] == ["n1", "n2", "n3"]
    assert set(nodes[0]) >= {"name", "state", "memory_bytes", "disk_bytes", "labels", "instances"}
    jobs = cluster.request("GET", "/v1/jobs?namespace=shop").document["items"]
    assert [j["job"] for j in jobs] == ["listed"]
    rows = cluster.request("GET", "/v1/instances?namespace=shop").document["items"]
    assert [(r["instance"], r["namespace"]) for r in rows] == [("listed-0", "shop")]
    info = cluster.request("GET", "/v1/info", node="n2").document
    assert (info["cluster"], info["node"]) == ("test", "n2")


def test_a_status_can_be_waited_for(cluster: Cluster) -> None:
    """With `after` and `wait` the answer comes with the next change, not by the clock."""
    cluster.request("POST", "/v1/jobs", job_file("awaited"))
    first = healthy(cluster, "awaited", 1)
    seen = cluster.request(
        "GET", f"/v1/jobs/default/awaited?after={first['revision']}&wait=0.05"
    ).document
    assert seen["revision"] >= first["revision"]
    cluster.request("POST", "/v1/jobs/default/awaited/scale", {"instances": 2}, node="n2")
    later = cluster.request(
        "GET", f"/v1/jobs/default/awaited?after={first['revision']}&wait=10"
    ).document
    assert later["revision"] > first["revision"]


def test_logs_and_exec_are_passed_on_to_the_right_node(cluster: Cluster) -> None:
    """Any node answers for any instance; a job's logs come from all its nodes, sorted by time."""
    cluster.request("POST", "/v1/jobs", job_file("spread", numInstances=3))
    rows = healthy(cluster, "spread", 3)["instances"]
    assert {row["node"] for row in rows} == {"n1", "n2", "n3"}
    for row in rows:
        path = f"/v1/instances/default/{row['instance']}"
        (line,) = cluster.request("GET", f"{path}/logs").body.splitlines()
        assert json.loads(line)["text"] == "started"
        done = cluster.request("POST", f"{path}/exec", {"command": ["echo", "hi"]}).document
        assert (done["exit_code"], done["stdout"], done["stderr"]) == (0, "hi\n", "")
    lines = cluster.request("GET", "/v1/jobs/default/spread/logs?tail=5").body.splitlines()
    found = [json.loads(line) for line in lines]
    assert {line["instance"] for line in found} == {"spread-0", "spread-1", "spread-2"}
    assert [line["time"] for line in found] == sorted(line["time"] for line in found)


def test_looking_into_what_is_not_there(cluster: Cluster) -> None:
    """An unknown container is named with those there are."""
    cluster.request("POST", "/v1/jobs", job_file("inside"))
    healthy(cluster, "inside", 1)
    path = "/v1/instances/default/inside-0"
    answer = cluster.request("GET", f"{path}/logs?container=nope")
    assert problem(answer, 400, "invalid-request")["hint"] == "It has app."
    body = {"container": "nope", "command": ["ls"]}
    problem(cluster.request("POST", f"{path}/exec", body), 400, "invalid-request")


def test_a_passed_on_request_is_not_passed_on_again(cluster: Cluster) -> None:
    """Two nodes with different views can't send a request back and forth."""
    cluster.request("POST", "/v1/jobs", job_file("once"))
    (row,) = healthy(cluster, "once", 1)["instances"]
    other = next(name for name in cluster.machines if name != row["node"])
    answer = cluster.request(
        "GET",
        "/v1/instances/default/once-0/logs",
        node=other,
        headers={"Ozymandias-Passed-On": "1"},
    )
    problem(answer, 502, "node-unreachable")


def test_a_runtime_that_fails_is_a_problem(cluster: Cluster) -> None:
    """What podman says is passed on as runtime-failed, also through a peer."""
    cluster.request("POST", "/v1/jobs", job_file("broken"))
    (row,) = healthy(cluster, "broken", 1)["instances"]
    host = cluster.machines[row["node"]].host
    for node in cluster.machines:
        cluster.do(lambda: host.faults.fail_next.update(exec=1))
        body = {"command": ["ls"]}
        answer = cluster.request("POST", "/v1/instances/default/broken-0/exec", body, node=node)
        assert "simulated failure" in problem(answer, 502, "runtime-failed")["detail"]
