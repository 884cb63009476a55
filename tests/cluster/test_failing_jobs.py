"""Jobs that can't work: the reason is told, tries come ever more slowly, nobody else suffers."""

import socket
import subprocess
from itertools import pairwise

from tests.cluster.kit import Cluster, podman, shell, until, web


def reason_of(cluster: Cluster, instance: str, *words: str) -> str:
    """Wait until the instance's reason holds all the words; returns it."""

    def reason() -> str:
        return str(cluster.row(instance).get("reason", ""))

    until(lambda: all(word in reason() for word in words), say=f"{instance}: {words}")
    return reason()


def test_a_missing_image(cluster: Cluster) -> None:
    """ps and why name the image; tries wait longer each time; submit ends and says so."""
    job = shell("absent", "true", image="localhost/no-such-image:1")
    problem = cluster.ozy("submit", cluster.file(job), "--timeout", "30", code=1)
    assert problem["type"].rpartition("#")[2] in ("deploy-failed", "deploy-timeout")
    assert "localhost/no-such-image:1" in str(problem)
    reason = reason_of(cluster, "absent-0", "localhost/no-such-image:1")
    assert "next try after" in reason, reason
    assert "localhost/no-such-image:1" in cluster.text("why", "absent")
    text = cluster.text("submit", cluster.file(job), "--timeout", "0.5", code=1)
    assert "localhost/no-such-image:1" in text
    print(f"image missing: {reason}")


def test_a_port_of_the_host_is_a_resource(cluster: Cluster) -> None:
    """Each node gives it once: four instances on three nodes do not fit, with the number told."""
    port = _free_port()
    ports = [{"host": port, "container": 8000}]
    refused = cluster.request("POST", "/v1/jobs", web("four", instances=4, ports=ports))
    assert refused.slug == "insufficient-ports"
    assert refused.status == 409
    assert str(port) in refused.body.decode()


def test_a_port_taken_by_a_stranger(cluster: Cluster) -> None:
    """The pod waits with the port's number as its reason, and runs once the stranger has gone."""
    with socket.socket() as stranger:
        stranger.bind(("0.0.0.0", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        job = web("wanting", ports=[{"host": port, "container": 8000}])
        cluster.submit(job, wait=False)
        reason = reason_of(cluster, "wanting-0", str(port))
        assert "in use" in reason or "taken" in reason, reason
        print(f"port taken: {reason}")
        assert all(node["state"] == "ready" for node in cluster.nodes().values())
    cluster.wait_healthy("wanting")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_out_of_memory(cluster: Cluster) -> None:
    """A container beyond its limit is killed, shown as out of memory with 137, and tried again."""
    hungry = web("hungry", environment={"EAT_MEMORY": "64M"}, healthcheck={"disable": True})
    cluster.submit(web("neighbour"))
    cluster.submit(hungry, wait=False)
    reason = reason_of(cluster, "hungry-0", "137")
    assert "memory" in reason, reason
    print(f"out of memory: {reason}")
    until(lambda: cluster.row("hungry-0")["restarts"] >= 1)
    assert cluster.row("neighbour-0")["restarts"] == 0


def test_exit_codes_and_back_off(cluster: Cluster) -> None:
    """A crash loop shows its exit code and when it is tried again; the waits grow."""
    cluster.submit(shell("crashing", "echo words; exit 42"), wait=False)
    reason = reason_of(cluster, "crashing-0", "42", "next try after")
    print(f"crash loop: {reason}")
    until(lambda: cluster.row("crashing-0")["restarts"] >= 3)
    starts = [e["time"] for e in cluster.events("crashing") if e["kind"] == "instance.started"]
    starts += [e["time"] for e in cluster.events("crashing") if e["kind"] == "instance.restarted"]
    starts.sort()
    waits = [after - before for before, after in pairwise(starts)]
    assert len(waits) >= 2, cluster.events("crashing")
    assert waits[-1] > waits[0] * 1.2, waits
    print(f"crash loop: waits {[round(wait, 1) for wait in waits]} s")
    assert cluster.log("crashing-0").count("words") >= 1


def test_restart_policies(cluster: Cluster) -> None:
    """`no` rests after one run, `on-failure:2` after two more, and 0 is an end with success."""
    jobs = [
        shell("once", "exit 3", restart="no"),
        shell("thrice", "exit 4", restart="on-failure:2"),
        shell("done", "exit 0", restart="on-failure"),
    ]
    for job in jobs:
        cluster.submit(job, wait=False)
    once = reason_of(cluster, "once-0", "exit code 3")
    until(lambda: cluster.row("done-0").get("state") == "completed")
    until(lambda: cluster.row("thrice-0").get("state") == "failed")
    assert cluster.row("thrice-0")["restarts"] == 2
    assert cluster.row("once-0")["state"] == "failed"
    assert cluster.row("once-0")["restarts"] == 0
    assert "exit code 4" in cluster.row("thrice-0")["reason"]
    print(f"restart: no -> {once!r}; on-failure:2 -> {cluster.row('thrice-0')['reason']!r}")


def test_strangers_are_left_alone(cluster: Cluster) -> None:
    """A container without our labels runs on, whatever the cluster does."""
    name = f"stranger-of-{cluster.local.id}"
    command = ["podman", "run", "--detach", "--name", name, "--network=none", "--stop-timeout=0"]
    environment = cluster.environment | {"CONTAINERS_CONF": str(cluster.local.containers_conf)}
    subprocess.run(
        [*command, "localhost/ozy-busybox:1", "sleep", "1000"],
        env=environment,
        check=True,
        capture_output=True,
    )
    try:
        started = podman("inspect", "--format={{.State.StartedAt}}", name)
        cluster.submit(web("ours"))
        cluster.kill(cluster.row("ours-0")["node"])
        until(lambda: cluster.request("GET", "/healthz").status == 200)
        cluster.stop("ours")
        assert podman("inspect", "--format={{.State.StartedAt}}", name) == started
    finally:
        podman("rm", "--force", "--time=0", name)
