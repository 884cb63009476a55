"""`ozy` when answers get lost on their way, when lists are long, and when others change things."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ozymandias.cli.client import Client
from ozymandias.cli.context import Context
from tests.integration.api.rig import TOKEN, Cluster, Ran
from tests.integration.api.test_api import healthy, job_file


class Losing:
    """Passes requests on to a node, and cuts the answer to the first ``lost`` of them off."""

    def __init__(self, port: int, lost: int, kept_bytes: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self._port, self._lost, self._kept_bytes = port, lost, kept_bytes

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return  # closed: the test is over
            with connection:
                self._pass_on(connection)

    def _pass_on(self, client: socket.socket) -> None:
        request = client.recv(65536)
        self.requests.append(request)
        with socket.create_connection(("127.0.0.1", self._port)) as node:
            node.sendall(request)
            answer = b""
            while part := node.recv(65536):
                answer += part
        is_lost = len(self.requests) <= self._lost
        client.sendall(answer[: self._kept_bytes] if is_lost else answer)

    def keys(self) -> list[bytes]:
        lines = [line for request in self.requests for line in request.split(b"\r\n")]
        return [line for line in lines if line.startswith(b"Idempotency-Key: ")]


@contextmanager
def losing(cluster: Cluster, lost: int, kept_bytes: int = 0) -> Iterator[Losing]:
    relay = Losing(cluster.machines["n1"].port, lost, kept_bytes)
    thread = threading.Thread(target=relay.serve)
    thread.start()
    try:
        yield relay
    finally:
        relay.listener.shutdown(socket.SHUT_RDWR)
        relay.listener.close()
        thread.join(10)


def ozy(cluster: Cluster, endpoint: str, *arguments: str) -> Ran:
    environment = cluster.environment | {"OZY_API": endpoint, "OZY_TOKEN": TOKEN}
    done = subprocess.run(
        [sys.executable, "-m", "ozymandias.cli", *arguments],
        env=environment,
        cwd=cluster.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(code=done.returncode, out=done.stdout, err=done.stderr)


def restarts(cluster: Cluster, job: str) -> int:
    """How often `ozy restart` has taken effect, by the job's ETag."""
    tag = cluster.request("GET", f"/v1/jobs/default/{job}").headers["etag"]
    return int(tag.strip('"').rpartition(".")[2])


@pytest.mark.parametrize("kept_bytes", [0, 40, 400])
def test_a_restart_whose_answer_is_lost_is_sent_again_and_happens_once(
    cluster: Cluster, kept_bytes: int
) -> None:
    """Lost as a whole, within its head, or within its body."""
    name = f"again-{kept_bytes}"
    cluster.request("POST", "/v1/jobs", job_file(name))
    healthy(cluster, name, 1)
    with losing(cluster, 2, kept_bytes) as relay:
        ran = ozy(cluster, relay.endpoint, "restart", name, "--detach")
    assert ran.code == 0, ran.err
    assert restarts(cluster, name) == 1
    assert len(relay.keys()) == 3 and len(set(relay.keys())) == 1


def test_a_submit_and_a_scale_whose_answers_are_lost_happen_once(cluster: Cluster) -> None:
    """The version is the first one still, and the number is what was asked for."""
    file = cluster.job("parcel")
    with losing(cluster, 1) as relay:
        assert ozy(cluster, relay.endpoint, "submit", file, "--detach").code == 0
    with losing(cluster, 1) as relay:
        assert ozy(cluster, relay.endpoint, "scale", "parcel", "3", "--detach").code == 0
    found = cluster.request("GET", "/v1/jobs/default/parcel").document
    assert (found["version"], found["wanted"]) == (1, 3)


def test_an_answer_that_never_comes_is_an_unknown_outcome(cluster: Cluster) -> None:
    """After a few tries `ozy` gives up and says that it does not know."""
    cluster.request("POST", "/v1/jobs", job_file("hush"))
    with losing(cluster, 99) as relay:
        ran = ozy(cluster, relay.endpoint, "restart", "hush", "--detach")
    assert ran.code == 6
    assert "The outcome of the change is not known" in ran.err
    assert len(relay.requests) == 4
    assert restarts(cluster, "hush") == 1


def test_a_stop_whose_answer_is_lost_is_not_sent_again(cluster: Cluster) -> None:
    """It has no key: by the second time the name may be another job's."""
    cluster.request("POST", "/v1/jobs", job_file("halt"))
    with losing(cluster, 99) as relay:
        ran = ozy(cluster, relay.endpoint, "stop", "halt", "--detach")
    assert ran.code == 6
    assert len(relay.requests) == 1


def test_a_key_of_one_request_is_no_key_of_another(cluster: Cluster) -> None:
    """Scale and restart share the keys of submits; another number is another request."""
    cluster.request("POST", "/v1/jobs", job_file("keys"))
    path, headers = "/v1/jobs/default/keys", {"Idempotency-Key": "key-of-scale"}
    for replayed in (None, "true"):
        answer = cluster.request("POST", f"{path}/scale", {"instances": 2}, headers=headers)
        assert (answer.status, answer.document["wanted"]) == (200, 2)
        assert answer.headers.get("idempotency-replayed") == replayed
    for what, body in (("scale", {"instances": 3}), ("restart", None)):
        answer = cluster.request("POST", f"{path}/{what}", body, headers=headers)
        assert answer.status == 422
        assert answer.document["type"].endswith("#idempotency-key-reused")


def test_only_if_the_version_is_still_the_one_that_was_seen(cluster: Cluster) -> None:
    """--if-version refuses with exit code 5 when somebody was quicker, and changes nothing."""
    file = cluster.job("seen")
    cluster.request("POST", "/v1/jobs", job_file("seen"))
    for arguments in (
        ("submit", file, "--if-version", "2"),
        ("scale", "seen", "2", "--if-version", "2"),
        ("restart", "seen", "--if-version", "2"),
        ("stop", "seen", "--if-version", "2"),
    ):
        ran = cluster.ozy(*arguments)
        assert (ran.code, "changed" in ran.err.lower()) == (5, True), ran.err
    found = cluster.request("GET", "/v1/jobs/default/seen").document
    assert (found["version"], found["wanted"]) == (1, 1)
    assert cluster.ozy("scale", "seen", "2", "--if-version", "1", "--detach").code == 0
    assert cluster.ozy("stop", "seen", "--if-version", "1", "--detach").code == 0


def test_lists_are_read_to_their_end(cluster: Cluster) -> None:
    """Page after page: all rows, each once."""
    names = [f"leaf-{number}" for number in range(5)]
    for name in names:
        body = job_file(name, namespace="leaves", container={"memory": "8M"})
        cluster.request("POST", "/v1/jobs", body)
    endpoint = cluster.machines["n1"].endpoint
    client = Client(Context(name="x", endpoints=(endpoint,), token=TOKEN))
    rows = client.items("jobs", namespace="leaves", limit=2)
    assert [row["job"] for row in rows] == names
