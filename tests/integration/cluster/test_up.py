"""`ozy up` where it must refuse, and two of them at the same moment."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ozymandias.cluster import state
from tests.integration.cluster import faults

# Chooses and writes down, says what, and lives on until its input ends; nothing is started.
PLANNER = """
import json, sys
from pathlib import Path
from ozymandias.cluster import planning
from ozymandias.problems import ProblemError
directory, api_port = Path(sys.argv[1]), json.loads(sys.argv[2])
directory.mkdir()
sys.stdin.readline()
try:
    found = planning.plan(planning.Wish(state_dir=directory, nodes=1, api_port=api_port))
    print(json.dumps({"id": found.id, "ports": found.ports, "subnet": found.subnet}), flush=True)
except ProblemError as error:
    print(json.dumps({"problem": error.problem.detail}), flush=True)
sys.stdin.readline()
"""

# The modules are loaded as root: nobody may not be allowed to read them.
AS_NOBODY = """
import os, sys
from ozymandias.cli import cluster, main
from ozymandias.cli import complain, render
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main.run(sys.argv[1:]))
"""


@pytest.mark.parametrize("asks", [False, True])
def test_clusters_made_at_the_same_moment_share_nothing(tmp_path: Path, asks: bool) -> None:
    """Ports and subnets of four are all different; a port asked for by all is given once."""
    asked = json.dumps(faults.free_port() if asks else None)
    planners = [
        subprocess.Popen(
            [sys.executable, "-c", PLANNER, str(tmp_path / str(n)), asked],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    answers = []
    try:
        for planner in planners:
            assert planner.stdin is not None
            planner.stdin.write("\n")
            planner.stdin.flush()
        for planner in planners:
            assert planner.stdout is not None
            answers.append(json.loads(planner.stdout.readline()))
    finally:
        for planner in planners:
            planner.communicate("\n", timeout=30)
        for answer in answers:
            if "id" in answer:
                shutil.rmtree(state.RUN_BASE / answer["id"])
    made = [answer for answer in answers if "id" in answer]
    ports = [port for answer in made for port in answer["ports"]]
    assert len(ports) == len(set(ports))
    assert len({answer["subnet"] for answer in made}) == len(made)
    if asks:
        problems = [answer["problem"] for answer in answers if "problem" in answer]
        assert len(made) == 1
        assert all(f"Port {asked} of 127.0.0.1" in problem for problem in problems)
    else:
        assert len(made) == 4


def test_ports_of_a_dead_attempt_are_free_again(tmp_path: Path) -> None:
    """A reservation holds as long as the process that made it."""
    planner = subprocess.run(
        [sys.executable, "-c", PLANNER, str(tmp_path / "a"), "0"],
        input="\n\n",
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(planner.stdout)
    try:
        assert (state.RUN_BASE / found["id"] / "ports").exists()
        assert not state.reserved_ports() & set(found["ports"])
    finally:
        shutil.rmtree(state.RUN_BASE / found["id"])


@pytest.mark.parametrize("command", [["up"], ["down"], ["node", "kill", "n1"]])
def test_refusal_without_root(tmp_path: Path, command: list[str]) -> None:
    """Anybody but root is told so at once, with what to do; nothing is made."""
    tmp_path.chmod(0o777)
    where = tmp_path / "cluster"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *command, "--state-dir", str(where)],
        env=kept | {"OZY_CONTEXT": str(tmp_path / "context.json"), "HOME": str(tmp_path)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "takes root" in done.stderr
    assert "sudo" in done.stderr
    assert not where.exists()
