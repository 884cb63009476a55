"""`ozy logs`: followed over all instances, and what outlives those that have ended."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ozymandias.sim.host import Behaviour
from tests.integration.api.rig import Cluster, Machine, until
from tests.integration.api.terminal import Terminal
from tests.integration.api.test_cli import behave


def say(cluster: Cluster, job: str, text: str) -> None:
    """All instances of a job write a line."""

    def speak(machine: Machine) -> None:
        for pod in machine.host.pods.values():
            if pod.pod.id.job == job:
                machine.host.say(pod.containers["app"], text)
        machine.host.notify()

    for machine in cluster.machines.values():
        cluster.do(lambda machine=machine: speak(machine))  # type: ignore[misc]


@contextmanager
def following(cluster: Cluster, *arguments: str) -> Iterator[Callable[[int], list[str]]]:
    """A follower off a terminal; call it for the next so many lines."""
    process = cluster.start_ozy("logs", "-f", *arguments)
    assert process.stdout is not None
    stdout = process.stdout
    try:
        yield lambda count: [stdout.readline().rstrip("\n") for _ in range(count)]
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert "Traceback" not in err


def test_instances_that_appear_later_join(cluster: Cluster) -> None:
    """With all they have written; a job without an instance can be followed before it has one."""
    cluster.ozy("submit", cluster.job("grow", numInstances=0))
    with following(cluster, "grow") as lines:
        cluster.ozy("scale", "grow", "2")
        assert sorted(lines(2)) == ["grow-0 app | started", "grow-1 app | started"]
        cluster.ozy("scale", "grow", "3")
        assert lines(1) == ["grow-2 app | started"]
        say(cluster, "grow", "hello")
        assert sorted(lines(3)) == [f"grow-{slot} app | hello" for slot in range(3)]


def test_an_update_is_followed_from_run_to_run(cluster: Cluster) -> None:
    """Old and new instances are each read once, and the follower ends with the job."""
    cluster.ozy("submit", cluster.job("roll", numInstances=2))
    with following(cluster, "roll") as lines:
        seen = lines(2)
        assert cluster.ozy("restart", "roll").code == 0
        seen += lines(2)
        assert cluster.ozy("stop", "roll").code == 0
        while rest := lines(1)[0]:  # until the stream's end
            seen.append(rest)
    assert len({line for line in seen if line.endswith("| started")}) == 4
    assert sum("started" in line for line in seen) == 4


def test_every_instance_has_its_colour(cluster: Cluster) -> None:
    """The same one at every time, and the lines stand in one column."""
    cluster.ozy("submit", cluster.job("vivid", numInstances=11))
    with Terminal(cluster, "logs", "-f", "vivid") as terminal:
        text = terminal.until(lambda text: text.count("started") == 11)
        assert terminal.interrupt() == 130
    assert len(terminal.screen.colours - {"0"}) == 11
    assert "\x1b[36mvivid-0" in terminal.raw
    rows = text.splitlines()
    assert len({row.index("|") for row in rows if row.startswith("vivid-10")}) == 1
    with Terminal(cluster, "logs", "vivid-0", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
        assert terminal.screen.colours == set()


def test_what_crashed_is_found_from_any_node(cluster: Cluster) -> None:
    """Node, time, exit code, OOM mark and the last lines; also in `ozy why`."""
    behave(cluster, "doomed", Behaviour(exit_after_seconds=0.3, exit_code=137, is_oom=True))
    assert cluster.ozy("submit", cluster.job("doomed")).code == 1
    node = cluster.ozy("ps", "doomed", "-o", "json").document[0]["node"]
    ran = until(lambda: (r := cluster.ozy("logs", "-p", "doomed-0")).out.count("==>") >= 3 and r)
    assert (ran.code, ran.err) == (0, "")
    head, *rest = ran.out.splitlines()
    assert head.startswith(f"==> doomed-0 app version 1 on {node}, until ")
    assert re.search(r" after \S+s: killed: out of memory \(exit code 137\)$", head)
    assert rest[0] == "started"
    path = "/v1/instances/default/doomed-0/logs?previous=1&tail=1"
    answers = [
        [json.loads(line) for line in cluster.request("GET", path, node=n).body.splitlines()]
        for n in cluster.machines
    ]
    first = answers[0][0]
    assert all(answer[-1] == answers[0][-1] for answer in answers)  # the oldest is the same
    assert (first["node"], first["exit_code"], first["oom_killed"]) == (node, 137, True)
    assert len(first["lines"]) == 1
    ends = [run["ended_at"] for run in answers[0]]
    assert ends == sorted(ends, reverse=True)
    why = cluster.ozy("why", "doomed-0").out
    assert f"last end: container app on {node}, " in why
    assert "killed: out of memory; `ozy logs --previous doomed-0`" in why
    cluster.ozy("stop", "doomed")


def test_what_is_told_to_type_can_be_typed(cluster: Cluster) -> None:
    """In whichever namespace the job is: every command between backquotes finds it."""
    behave(cluster, "doomed", Behaviour(exit_after_seconds=0.3, exit_code=7))
    submitted = cluster.ozy("submit", cluster.job("doomed", namespace="prod"))
    assert submitted.code == 1 and "prod/doomed-0 on " in submitted.err
    until(lambda: "--previous" in cluster.ozy("why", "prod/doomed-0").out)
    shown = submitted.err + cluster.ozy("why", "prod/doomed-0").out
    commands = re.findall(r"`ozy ((?:logs|why|status) [^`]*)`", shown)
    assert "logs --previous prod/doomed-0" in commands and len(commands) >= 2
    for command in commands:
        assert cluster.ozy(*command.split()).code == 0, command
    cluster.ozy("stop", "prod/doomed")


def test_last_words_outlive_the_job(cluster: Cluster) -> None:
    """Of a job that is gone, by its name or by its instance's."""
    cluster.ozy("submit", cluster.job("late", numInstances=2))
    say(cluster, "late", "farewell")
    cluster.ozy("stop", "late")
    for target, count in (("late", 2), ("late-1", 1)):
        ran = cluster.ozy("logs", "--previous", target)
        assert ran.out.count("stopped: its slot is to stop") == count
        assert ran.out.count("farewell") == count
    runs = cluster.ozy("logs", "-p", "late", "-o", "json").document
    assert {run["instance"] for run in runs} == {"late-0", "late-1"}
    assert cluster.ozy("logs", "-p", "never").code == 4
    assert cluster.ozy("logs", "-p", "never-0").code == 4
    assert cluster.ozy("logs", "-p", "-f", "late").code == 2


def test_nothing_has_ended_yet(cluster: Cluster) -> None:
    """A job that runs well has no previous runs, which is no failure."""
    cluster.ozy("submit", cluster.job("young"))
    ran = cluster.ozy("logs", "-p", "young")
    assert (ran.code, ran.out[:26]) == (0, "Nothing is kept of young: ")
    assert cluster.ozy("logs", "-p", "young-0", "-o", "json").document == []


def test_a_node_that_is_gone_does_not_hide_the_others(own_cluster: Cluster) -> None:
    """It is named on stderr; what the others keep is printed."""
    own_cluster.ozy("submit", own_cluster.job("spread", numInstances=3))
    own_cluster.ozy("stop", "spread")
    own_cluster.kill("n3")
    ran = own_cluster.ozy("logs", "-p", "spread")
    assert ran.code == 0
    assert ran.out.count("==>") == 2
    assert "n3: " in ran.err
