"""The state as a file: the same scheduler over it makes the same plan, byte for byte."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ozymandias.model.job import Autoscale, Container, PendingSource
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import ProblemError
from ozymandias.store.replay import canonical, export, load, plan_of
from tests.unit.core.builders import after, cluster, job, lost, node, settled, submit, submitted

AGAIN = """
import sys
from ozymandias.store.replay import canonical, load, plan_of
recorded = load(sys.stdin.buffer.read())
plan = plan_of(recorded.snapshot, recorded.wall)
sys.stdout.buffer.write(canonical({"plan": plan, "recorded": recorded.plan}))
"""


def drawn(seed: int) -> Snapshot:
    """A cluster at some moment: jobs of all sizes, nodes lost, closed and drained."""
    dice = random.Random(seed)
    nodes = [
        node(f"n{i}", f"{dice.randint(2, 8)}G", labels={"zone": dice.choice("abc")})
        for i in range(dice.randint(2, 6))
    ]
    snapshot = cluster(*nodes)
    for number in range(dice.randint(1, 5)):
        wanted = job(f"j{number}", dice.randint(1, 6), "1G", priority=dice.randint(0, 2))
        decision = submit(snapshot, wanted)
        if isinstance(decision, Plan):
            snapshot = after(snapshot, decision)
            if dice.random() < 0.5:
                snapshot = settled(snapshot)
    if dice.random() < 0.7:
        snapshot = lost(snapshot, dice.choice(nodes).name)
    return snapshot


@pytest.mark.parametrize("seed", range(12))
def test_another_process_makes_the_same_plan(seed: int) -> None:
    """Exported at some moment, read by a process with other hashes: the same bytes."""
    snapshot = drawn(seed)
    data = export(snapshot, 1000.0)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1), "PYTHONPATH": os.getcwd()}
    ran = subprocess.run(
        [sys.executable, "-c", AGAIN], input=data, capture_output=True, env=environment
    )
    assert ran.returncode == 0, ran.stderr.decode()
    plan = plan_of(snapshot, 1000.0)
    assert ran.stdout == canonical({"plan": plan, "recorded": plan})


def test_a_file_holds_all_of_a_snapshot() -> None:
    """What is read back is what was written, but for what nobody outside should see."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job("web", 3)))
    found = load(export(snapshot, 5.0, with_environment=True))
    assert found.wall == 5.0
    again = export(found.snapshot, 5.0, with_environment=True)
    assert again == export(snapshot, 5.0, with_environment=True)
    assert found.snapshot.jobs == snapshot.jobs and found.snapshot.nodes == snapshot.nodes
    assert dict(found.snapshot.assignments) == dict(snapshot.assignments)
    assert dict(found.snapshot.statuses) == dict(snapshot.statuses)


def test_secrets_are_left_out() -> None:
    """Values of environments stay at home unless asked for, keys of daemons always."""
    wanted = job("web", 1)
    secret = replace(wanted.containers[0], environment=(("PASSWORD", "hunter2"),))
    pool = Autoscale(min=0, max=2, source=PendingSource.URL, target="http://q/?token=hunter2")
    snapshot = submitted(cluster(n1="4G"), replace(wanted, containers=(secret,), autoscale=pool))
    there = snapshot.nodes[NodeName("n1")]
    assert there.presence
    keyed = replace(there, presence=replace(there.presence, peer_key="hunter3"))
    snapshot = replace(snapshot, nodes={there.name: keyed})
    data = export(snapshot, 0.0)
    assert b"hunter" not in data and b"PASSWORD" in data
    data = export(snapshot, 0.0, with_environment=True)
    assert b"hunter2" in data and b"hunter3" not in data


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", b'{"format":"ozymandias-replay","version":1}', b"[" * 100_000],
)
def test_other_files_are_refused(data: bytes) -> None:
    """Whatever is given as a file: replayed or refused, never a traceback."""
    with pytest.raises(ProblemError) as caught:
        load(data)
    assert caught.value.problem.kind.slug == "invalid-replay"


def test_a_newer_format_is_told() -> None:
    """The problem says which format it is and which this version reads."""
    document = json.loads(export(cluster(n1="4G"), 0.0))
    document["version"] = 2
    with pytest.raises(ProblemError, match="it is of format 2, and this version reads 1"):
        load(canonical(document))


def test_a_damaged_file_is_refused() -> None:
    """Whatever part is missing or of another kind, it is told as damage."""
    good = json.loads(export(submitted(cluster(n1="4G"), job("web", 1)), 0.0))
    for part in good["snapshot"]:
        for value in (None, 7, "x", [3]):
            damaged = {**good, "snapshot": {**good["snapshot"], part: value}}
            try:
                load(canonical(damaged))
            except ProblemError as error:
                assert error.problem.kind.slug == "invalid-replay"


def test_containers_without_environment_are_as_they_were() -> None:
    """Leaving values out changes nothing else of a job."""
    snapshot = submitted(cluster(n1="4G"), job("web", 1))
    found = load(export(snapshot, 0.0)).snapshot
    (container,) = next(iter(found.jobs.values())).versions[1].job.containers
    assert isinstance(container, Container) and container.memory_bytes == 2**30


def test_the_command_needs_no_cluster(tmp_path: Path) -> None:
    """`ozy replay FILE`: the plan for people and for scripts, and exit code 1 when it differs."""
    snapshot = lost(settled(submitted(cluster(n1="4G", n2="4G"), job("web", 4))), "n2")
    path = tmp_path / "state.json"
    path.write_bytes(export(snapshot, 0.0))

    def ozy(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ozymandias.cli", "replay", str(path), *arguments]
        environment = {**os.environ, "OZY_CONTEXT_FILE": str(tmp_path / "none")}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    ran = ozy()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("repair n2: n2 was lost\n")
    assert "The same plan as where the file was written." in ran.stdout
    document = json.loads(ozy("-o", "json").stdout)
    assert document["same"] and document["plan"]["what"] == "repair n2"
    changed = json.loads(path.read_bytes())
    changed["plan"] = None
    path.write_bytes(canonical(changed))
    ran = ozy()
    assert ran.returncode == 1 and "not the plan that was made" in ran.stderr
    path.write_text("something else")
    assert ozy().returncode == 2
