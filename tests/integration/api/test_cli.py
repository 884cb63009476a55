"""`ozy` as a person and a script use it: another process, over TCP, against running daemons."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from ozymandias.ports import ProbeResult
from ozymandias.sim.host import Behaviour
from tests.integration.api.rig import Cluster, until

PS_MEMBERS = {
    *("instance", "job", "namespace", "node", "state", "healthy", "address", "version"),
    *("restarts", "reason"),
}


def behave(cluster: Cluster, job: str, behaviour: Behaviour) -> None:
    """Instances of one job behave like this from now on, everywhere."""

    def chosen(before: Callable[..., Behaviour]) -> Callable[..., Behaviour]:
        return lambda pod, container, start: (
            behaviour if pod.job == job else before(pod, container, start)
        )

    for machine in cluster.machines.values():
        machine.host.behave = chosen(machine.host.behave)


def never_healthy(cluster: Cluster, name: str) -> str:
    """A job file whose health check is answered with 503, so that its deploy does not end."""

    def chosen(before: Callable[..., ProbeResult | None]) -> Callable[..., ProbeResult | None]:
        return lambda pod, container, check: (
            ProbeResult(healthy=False, reason="HTTP 503")
            if pod.job == name
            else before(pod, container, check)
        )

    for machine in cluster.machines.values():
        machine.host.probe = chosen(machine.host.probe)
    check = {"type": "http", "port": 8000, "interval": 1, "start_period": 300}
    return cluster.job(name, container={"healthcheck": check})


def test_submit_waits_and_says_where(cluster: Cluster) -> None:
    """Plain lines on changes, the final count, and the URL through the ingress."""
    ran = cluster.ozy("submit", cluster.job("web", numInstances=2), "-m", "first")
    assert (ran.code, ran.err) == (0, "")
    assert "web version 1 submitted: 2 to place." in ran.out
    assert "2 of 2 instances healthy" in ran.out
    assert "http://web.localhost:8080/" in ran.out
    assert "\x1b" not in ran.out
    again = cluster.ozy("submit", "web.yaml")
    assert "web is unchanged at version 1." in again.out


def test_submit_from_standard_input_as_json(cluster: Cluster) -> None:
    """With -o json only the final status document is printed."""
    text = "name: piped\ncontainers: {app: {image: demo, memory: 16M}}\n"
    ran = cluster.ozy("submit", "-", "-o", "json", stdin=text)
    assert (ran.code, ran.err) == (0, "")
    members = {"job", "namespace", "version", "wanted", "healthy", "pending", "instances"}
    assert {*members, "problem", "hosts", "state"} <= ran.document.keys()
    assert (ran.document["healthy"], ran.document["problem"]) == (1, None)


def test_ps_nodes_and_status_for_scripts(cluster: Cluster) -> None:
    """Arrays and documents with the members of the contract, in JSON and in YAML."""
    cluster.ozy("submit", cluster.job("listed"))
    rows = cluster.ozy("ps", "-o", "json").document
    assert {frozenset(row) for row in rows} == {frozenset(PS_MEMBERS)}
    assert yaml.safe_load(cluster.ozy("-o", "yaml", "ps", "listed").out) == [
        row for row in rows if row["job"] == "listed"
    ]
    nodes = cluster.ozy("nodes", "-o", "json").document
    assert [n["name"] for n in nodes] == ["n1", "n2", "n3"]
    assert set(nodes[0]["memory_bytes"]) == {"total", "reserved", "allocated"}
    status = cluster.ozy("status", "listed", "-o", "json").document
    assert [row["instance"] for row in status["instances"]] == ["listed-0"]
    table = cluster.ozy("ps", "listed").out.splitlines()
    assert table[0].split() == [
        *("INSTANCE", "NODE", "STATE", "VERSION", "RESTARTS", "ADDRESS", "REASON")
    ]
    assert table[1].startswith("listed-0")


def test_a_namespace_is_given_in_either_way(cluster: Cluster) -> None:
    """`-n shop web` and `shop/web` are the same; two that differ are bad usage."""
    cluster.ozy("submit", cluster.job("till", namespace="shop"))
    for arguments in (("status", "shop/till"), ("status", "-n", "shop", "till")):
        assert cluster.ozy(*arguments).out.startswith("shop/till version 1 is healthy")
    assert cluster.ozy("-n", "other", "status", "shop/till").code == 2
    assert cluster.ozy("status", "till").code == 4


def test_plan_shows_defaults_and_reasons(cluster: Cluster) -> None:
    """Nothing changes; the default of 256M is shown; JSON has the contract's members."""
    name = cluster.write("plain.yaml", "name: plain\ncontainers: {app: {image: demo}}\n")
    ran = cluster.ozy("plan", name)
    assert "memory 256M" in ran.out
    assert "  + plain-0 on n" in ran.out
    document = cluster.ozy("plan", name, "-o", "json").document
    assert {"fits", "place", "stop", "move", "problem"} <= document.keys()
    assert set(document["place"][0]) == {"instance", "job", "namespace", "node", "reason"}
    assert cluster.ozy("status", "plain").code == 4


def test_what_does_not_fit(cluster: Cluster) -> None:
    """Exit code 3, every node with what it is short of, and something that would fit."""
    name = cluster.job("huge", numInstances=4, container={"memory": "3G"})
    for command in ("plan", "submit"):
        ran = cluster.ozy(command, name)
        assert ran.code == 3
        assert "Insufficient memory for job" in ran.err
        assert "Job requires 12G of memory but only" in ran.err
        assert all(f"  n{number} " in ran.err for number in (1, 2, 3))
        assert "It would fit if you:" in ran.err
    assert cluster.ozy("plan", name, "-o", "json").document["fits"] is False
    refused = cluster.ozy("submit", name, "-o", "json")
    assert (refused.code, refused.err) == (3, "")
    assert refused.document["title"] == "Insufficient memory for job"


def test_a_bad_job_file_points_at_the_mistake(cluster: Cluster) -> None:
    """The server's complaint is shown with the line of the file and a caret."""
    name = cluster.write("bad.yaml", "name: bad\ncontainers:\n  app:\n    imaje: x\n")
    ran = cluster.ozy("submit", name)
    assert ran.code == 2
    assert 'bad.yaml:4:5: containers.app.imaje: unknown field "imaje"' in ran.err
    assert "    4 |     imaje: x\n      |     ^\n" in ran.err


def test_a_job_that_crashes_fails_the_submit(cluster: Cluster) -> None:
    """After three restarts it is clear: exit code 1, the reason, and where to look."""
    behave(cluster, "crash", Behaviour(exit_after_seconds=0.02, exit_code=3))
    ran = cluster.ozy("submit", cluster.job("crash"))
    assert ran.code == 1
    assert "The job did not become healthy" in ran.err
    assert "exit code 3" in ran.err
    assert "ozy logs crash-0" in ran.err
    assert cluster.ozy("stop", "crash").code == 0


def test_a_timeout_is_no_failure_of_the_job(cluster: Cluster) -> None:
    """--timeout ends the wait with exit code 1 and says that the job goes on."""
    ran = cluster.ozy("submit", never_healthy(cluster, "slow"), "--timeout", "0.5")
    assert ran.code == 1
    assert "The job is not healthy yet" in ran.err
    assert "It goes on" in ran.err
    detached = cluster.ozy("submit", "slow.yaml", "--detach")
    assert (detached.code, "Not waiting" in detached.out) == (0, True)


def test_ctrl_c_leaves_the_job_running(cluster: Cluster) -> None:
    """Exit code 130 and a line that says how to look at it."""
    process = cluster.start_ozy("submit", never_healthy(cluster, "held"))
    until(lambda: cluster.request("GET", "/v1/jobs/default/held").status == 200)
    assert process.stdout is not None
    until(lambda: "held-0" in process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "held goes on. `ozy status held` shows it." in err
    assert "Traceback" not in err


def test_scale_restart_and_stop_wait_for_their_effect(cluster: Cluster) -> None:
    """Each command ends when what it asked for is so."""
    cluster.ozy("submit", cluster.job("elastic"))
    assert "3 of 3 instances healthy" in cluster.ozy("scale", "elastic", "3").out
    assert len(cluster.ozy("ps", "elastic", "-o", "json").document) == 3
    before = {row["address"] for row in cluster.ozy("ps", "elastic", "-o", "json").document}
    assert cluster.ozy("restart", "elastic").code == 0
    rows = cluster.ozy("ps", "elastic", "-o", "json").document
    assert not before & {row["address"] for row in rows if row["state"] != "stopping"}
    stopped = cluster.ozy("stop", "elastic", "-o", "json")
    assert stopped.document == {"job": "elastic", "namespace": "default", "stopped": True}
    assert cluster.ozy("status", "elastic").code == 4


def test_logs_exec_events_and_why(cluster: Cluster) -> None:
    """Looking inside works for jobs and for instances, whatever node they are on."""
    cluster.ozy("submit", cluster.job("seen", numInstances=2))
    assert sorted(cluster.ozy("logs", "seen").out.splitlines()) == [
        "seen-0 app | started",
        "seen-1 app | started",
    ]
    lines = cluster.ozy("logs", "seen-1", "--tail", "1", "-o", "json").document
    assert [line["text"] for line in lines] == ["started"]
    ran = cluster.ozy("exec", "seen-0", "-c", "app", "--", "ls", "-l")
    assert (ran.code, ran.out) == (0, "ls -l\n")
    assert "seen is at version 1: 2 wanted, 2 healthy." in cluster.ozy("why", "seen").out
    why = cluster.ozy("why", "seen-1").out
    assert why.startswith("seen-1 on n")
    assert re.search(r"s ago: instance\.healthy on n\d: ", why), why
    kinds = {e["kind"] for e in cluster.ozy("events", "--job", "seen", "-o", "json").document}
    assert {"job.submitted", "instance.healthy"} <= kinds
    assert "job.submitted" in cluster.ozy("events", "--tail", "500").out


def test_following_ends_quietly(cluster: Cluster) -> None:
    """Ctrl-C on a follower is exit code 130 without a traceback."""
    cluster.ozy("submit", cluster.job("chatty"))
    process = cluster.start_ozy("logs", "chatty", "-f")
    assert process.stdout is not None
    assert process.stdout.readline() == "chatty-0 app | started\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, "Traceback" in err) == (130, False)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("status", "wbe"), 4, "No such job"),
        (("logs", "nothing-here"), 4, "No such job"),
        (("logs", "nothing-7"), 4, "No such instance"),
        (("exec", "nothing-7", "ls"), 4, "No such instance"),
        (("scale", "nothing", "2"), 4, "No such job"),
        (("scale", "nothing", "-2"), 2, "No such option"),
        (("submit", "nofile.yaml"), 2, "nofile.yaml: No such file"),
        (("status", "a/b/c"), 2, "not JOB or NAMESPACE/JOB"),
        (("ps", "--context", "none"), 6, "no context 'none'"),
    ],
)
def test_errors_and_exit_codes(
    cluster: Cluster, arguments: tuple[str, ...], code: int, said: str
) -> None:
    """Each failure has its exit code, a sentence on stderr and nothing on stdout."""
    ran = cluster.ozy(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    as_json = cluster.ozy(*arguments[:1], "-o", "json", *arguments[1:])
    assert (as_json.code, as_json.err) == (code, "")
    assert as_json.document["type"]


def test_a_wrong_token(cluster: Cluster) -> None:
    """Exit code 1, and the problem says what to look at."""
    environment = cluster.environment | {"OZY_TOKEN": "wrong"}
    ran = subprocess.run(
        [sys.executable, *("-m", "ozymandias.cli", "jobs", "-o", "json")],
        env=environment,
        capture_output=True,
        text=True,
    )
    document: Any = json.loads(ran.stdout)
    assert (ran.returncode, document["status"]) == (1, 401)


def test_the_unix_socket_serves_the_cli(cluster: Cluster) -> None:
    """$OZY_API may name the socket of the node itself, and no token is needed."""
    environment = cluster.environment | {"OZY_API": f"unix://{cluster.socket}"}
    ran = subprocess.run(
        [sys.executable, *("-m", "ozymandias.cli", "version")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "(node n1)" in ran.stdout


def test_a_megabyte_of_job_file(cluster: Cluster) -> None:
    """The refusal is shown, not a broken connection."""
    ran = cluster.ozy("submit", cluster.write("long.yaml", "#" * (3 * 2**20)))
    assert ran.code == 2
    assert "Request is too large" in ran.err
