"""The control plane dies, hangs or is away: pods, ingress and DNS go on, and nothing restarts.

`OZY_LONG=1` has etcd away for a minute instead of three leases.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ozymandias.cluster.programs import etcd_command, render_toml
from ozymandias.model.record import replace
from tests.cluster.kit import BIN, Answer, Cluster, Requester, running_cluster, until, web

LEASE_SECONDS = 6.0
OUTAGE_SECONDS = 60.0 if os.environ.get("OZY_LONG") else 3 * LEASE_SECONDS


@contextmanager
def undisturbed(cluster: Cluster, job: str) -> Iterator[Requester]:
    """Meanwhile no request fails, no container is restarted, and afterwards the job is healthy."""
    before = cluster.containers()
    with Requester(cluster, f"{job}.localhost") as requester:
        yield requester
        requester.more()
    cluster.wait_healthy(job)
    assert requester.failures == []
    assert cluster.containers() == before
    print(f"{requester.answers} requests meanwhile, none failed")


def is_ready(cluster: Cluster, *names: str) -> bool:
    """All these nodes answer and say that all of them are ready."""
    try:
        return all(
            cluster.nodes(node=name)[other]["state"] == "ready" for name in names for other in names
        )
    except (OSError, AssertionError):
        return False


def test_daemons_that_end_and_return() -> None:
    """kill -9 of all, and SIGTERM as for an upgrade: leases and pods stay, nothing moves."""
    names = ("n1", "n2", "n3")
    with running_cluster(lease_seconds=60) as mine:
        mine.submit(web("steady", instances=3))
        where = {row["instance"]: row["node"] for row in mine.rows("steady")}
        for number in (signal.SIGKILL, signal.SIGTERM):
            began = time.monotonic()
            with undisturbed(mine, "steady"):
                for name in names:
                    mine.kill(name, number)
                until(lambda: is_ready(mine, *names))
                print(f"all ready {time.monotonic() - began:.1f} s after {number.name}")
            assert {row["instance"]: row["node"] for row in mine.rows("steady")} == where
        kinds = [event["kind"] for event in mine.events()]
        assert "node.lost" not in kinds
        assert {row["restarts"] for row in mine.rows("steady")} == {0}


def test_a_machine_whose_daemon_is_away_for_long() -> None:
    """Its lease is gone when it returns, and nobody could take its pods: they are reclaimed."""
    with running_cluster("--nodes=1") as mine:
        mine.submit(web("steady", instances=2))
        name = "steady.default.ozy.internal"
        with undisturbed(mine, "steady"):
            before = mine.containers()
            with mine.hanging("supervisor"):
                mine.process("n1").kill(signal.SIGKILL)
                deadline = time.monotonic() + LEASE_SECONDS * 1.5
                while time.monotonic() < deadline:
                    assert len(mine.resolve(name)) == 2
                    assert mine.fetch("steady.localhost").status == 200
            until(lambda: is_ready(mine, "n1"))
            until(lambda: mine.status("steady")["healthy"] == 2)
            assert mine.containers() == before


def test_a_killed_podman_service(cluster: Cluster) -> None:
    """It is started again; pods and traffic do not notice, and the next job runs."""
    cluster.submit(web("steady", instances=2))
    with undisturbed(cluster, "steady"):
        cluster.kill("podman")
        cluster.submit(web("next"))
        cluster.stop("next")
        until(lambda: is_ready(cluster, "n1", "n2", "n3"))


def test_killed_edges(cluster: Cluster) -> None:
    """Ingress and DNS are back within seconds, with all routes and names."""
    cluster.submit(web("steady", instances=2))
    before = cluster.containers()
    for name in ("ingress", "dns"):
        cluster.kill(name)

    def answers() -> bool:
        try:
            return (
                cluster.fetch("steady.localhost").status == 200
                and len(cluster.resolve("steady.default.ozy.internal")) == 2
            )
        except Exception:
            return False

    taken = until(answers)
    print(f"ingress and DNS answer {taken:.1f} s after kill -9")
    assert cluster.containers() == before


def unavailable(answer: Answer) -> bool:
    """503 as a problem, with the time to try again."""
    return (
        answer.status == 503
        and answer.slug in ("store-unavailable", "outcome-unknown")
        and int(answer.headers["retry-after"]) > 0
    )


def test_a_killed_etcd(cluster: Cluster) -> None:
    """It comes back with its data; sessions go on; nothing restarts; submits work again."""
    cluster.submit(web("steady", instances=3))
    with undisturbed(cluster, "steady"):
        cluster.kill("etcd")
        began = time.monotonic()
        until(lambda: cluster.request("POST", "/v1/jobs", web("after")).status in (200, 201))
        print(f"submits work {time.monotonic() - began:.1f} s after kill -9 of etcd")
        cluster.wait_healthy("after")
        cluster.stop("after")
        until(lambda: is_ready(cluster, "n1", "n2", "n3"))


@pytest.mark.timeout(180)
def test_etcd_is_gone_for_long() -> None:
    """Pods, ingress and DNS go on; the API answers 503 with Retry-After; then zero restarts."""
    with running_cluster("--nodes=2") as mine:
        mine.submit(web("steady", instances=3))
        names = mine.resolve("steady.default.ozy.internal")
        where = {row["instance"]: row["node"] for row in mine.rows("steady")}
        began = time.monotonic()
        with undisturbed(mine, "steady") as requester:
            with mine.hanging("etcd"):
                # Within the lease's time and a little, every node knows that it can't vouch.
                for node in ("n1", "n2"):
                    request = _quick(mine, node)
                    until(lambda request=request: unavailable(request("GET", "/v1/jobs")))
                    assert unavailable(request("POST", "/v1/jobs", web("other")))
                    assert request("GET", "/healthz").status == 200
                    assert request("GET", "/readyz").status == 503
                assert mine.text("ps", code=6)
                while time.monotonic() - began < OUTAGE_SECONDS:
                    assert mine.resolve("steady.default.ozy.internal") == names
                    assert mine.fetch("steady.localhost").status == 200
                    requester.more(100)
            back = until(lambda: is_ready(mine, "n1", "n2"))
            print(f"all nodes ready {back:.1f} s after etcd's return")
        assert {row["instance"]: row["node"] for row in mine.rows("steady")} == where
        assert {row["restarts"] for row in mine.rows("steady")} == {0}
        mine.ozy("scale", "steady", "4")


def _quick(cluster: Cluster, node: str) -> Callable[..., Answer]:
    def request(method: str, path: str, body: Any = None) -> Answer:
        return cluster.request(method, path, body, node=node, timeout=15)

    return request


def test_a_hanging_podman(cluster: Cluster) -> None:
    """The nodes are shown as degraded; reads, pods and traffic go on; then all is well again."""
    cluster.submit(web("steady", instances=2))
    with undisturbed(cluster, "steady"):
        with cluster.hanging("podman"):
            taken = until(
                lambda: {n["state"] for n in cluster.nodes().values()} == {"degraded"}, 60
            )
            print(f"degraded {taken:.1f} s after podman began to hang")
            assert "podman" in cluster.nodes()["n1"]["reason"]
            assert len(cluster.rows("steady")) == 2
            assert len(cluster.resolve("steady.default.ozy.internal")) == 2
            refused = cluster.request("POST", "/v1/jobs", web("other"))
            assert refused.slug == "no-nodes"
            assert "degraded" in refused.body.decode()
        back = until(lambda: is_ready(cluster, "n1", "n2", "n3"))
        print(f"ready {back:.1f} s after podman went on")
        cluster.submit(web("other"))
        cluster.stop("other")


# A daemon alone -----------------------------------------------------------------------------------


@contextmanager
def daemon(config: Path) -> Iterator["subprocess.Popen[str]"]:
    log = config.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", str(BIN / "ozymandias"), "--config", str(config)],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def settings_like(cluster: Cluster, node: str, file: Path, **changes: Any) -> Path:
    """The settings of that node with others in their place: `node__name="n9"`."""
    tables = tomllib.loads(cluster.local.config_file(node).read_text())
    tables["api"]["listen"] = f"127.0.0.1:{free_port()}"
    tables["api"]["socket"] = str(file.with_suffix(".sock"))
    for path, value in changes.items():
        table, _, key = path.partition("__")
        tables[table][key] = value
    tables["etcd"]["endpoints"] = tuple(tables["etcd"]["endpoints"])
    file.write_text(render_toml(tables))
    return file


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_two_daemons_with_one_name(cluster: Cluster, tmp_path: Path) -> None:
    """On another machine: refused, the first one undisturbed. In one directory: already running."""
    other = settings_like(
        cluster,
        "n1",
        tmp_path / "other.toml",
        node__state_dir=str(tmp_path / "other"),
        node__machine_id="another-machine",
    )
    with daemon(other) as process:
        assert process.wait(timeout=60) == 1
    words = other.with_suffix(".log").read_text()
    assert "name is taken" in words or "taken by" in words, words
    assert "n1" in words
    assert "Traceback" not in words

    same = settings_like(cluster, "n1", tmp_path / "same.toml")
    with daemon(same) as process:
        assert process.wait(timeout=60) == 1
    words = same.with_suffix(".log").read_text()
    assert "Another daemon holds" in words, words
    assert "Traceback" not in words
    assert is_ready(cluster, "n1", "n2", "n3")


def test_etcd_is_not_there_at_start(cluster: Cluster, tmp_path: Path) -> None:
    """The daemon waits and says so, by log and by API; when etcd appears, it joins."""
    etcd_port, peer_port = free_port(), free_port()
    api_port = free_port()
    token = cluster.local.token_file.read_text().strip()
    config = settings_like(
        cluster,
        "n1",
        tmp_path / "early.toml",
        node__state_dir=str(tmp_path / "early"),
        node__cluster="0" * 8,
        node__name="early",
        etcd__endpoints=[f"127.0.0.1:{etcd_port}"],
        api__listen=f"127.0.0.1:{api_port}",
    )
    log = config.with_suffix(".log")
    with daemon(config) as process:
        until(lambda: _answer(api_port, "/healthz", token)[0] == 200)
        status, retry_after, body = _answer(api_port, "/v1/jobs", token)
        assert (status, int(retry_after) > 0) == (503, True), body
        assert "store-unavailable" in body
        assert "etcd" in body
        assert _answer(api_port, "/readyz", token)[0] == 503
        until(lambda: "etcd" in log.read_text())
        assert process.poll() is None
        local = replace(
            cluster.local, state_dir=tmp_path, etcd_port=etcd_port, etcd_peer_port=peer_port
        )
        etcd = subprocess.Popen(
            etcd_command(local), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            taken = until(lambda: _answer(api_port, "/readyz", token)[0] == 200)
            print(f"joined {taken:.1f} s after etcd was started")
            assert _answer(api_port, "/v1/jobs", token)[0] == 200
        finally:
            etcd.kill()
            etcd.wait()
    assert "Traceback" not in log.read_text()


def _answer(port: int, path: str, token: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.headers.get("Retry-After", "0"), response.read().decode()
    except OSError:
        return 0, "0", ""
    finally:
        connection.close()
