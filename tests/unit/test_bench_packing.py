"""The bench of packing: its inputs repeat, and whoever packs keeps to the rules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.packing import others, ours
from bench.packing.clusters import Cluster, Machine, Work, drawn, faults, placed

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".cache" / "packing" / "bin" / "python"  # of `make bench-packing`

WAYS = {
    "all at once": ours.all_at_once,
    "one by one": ours.one_by_one,
    **{
        name: lambda cluster, score=score, order=order: others.packed(cluster, score, order)
        for name, (score, order) in others.OTHERS.items()
    },
}


def test_a_seed_is_a_cluster() -> None:
    """The same seed and number draw the same cluster, others another."""
    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(1, 3) != drawn(2, 3)


@pytest.mark.parametrize("way", sorted(WAYS))
def test_every_way_keeps_to_the_rules(way: str) -> None:
    """Nobody's packing exceeds a node or breaks a rule of a job, and each places something."""
    for number in range(10):
        cluster = drawn(7, number)
        packing = WAYS[way](cluster)
        assert faults(cluster, packing) == []
        assert 0 < placed(packing) <= cluster.wanted


def test_the_judge_sees_what_is_wrong() -> None:
    """Every rule that a packing can break is named."""
    machines = (
        Machine(name="n1", memory=1024, disk=1024, cpu=1000, role="infra"),
        Machine(name="n2", memory=1024, disk=1024, cpu=0, role="apps"),
    )
    works = (
        Work(name="big", instances=3, memory=512, disk=600, cpu=600),
        Work(name="port", instances=2, memory=1, port=80, role="apps"),
        Work(name="few", instances=9, memory=1, per_node=1, apart="big", near="port"),
    )
    cluster = Cluster(name="wrong", machines=machines, works=works)
    packing = {("big", "n1"): 4, ("port", "n1"): 2, ("few", "n2"): 2, ("few", "n1"): 1}
    assert faults(cluster, packing) == [
        "n1 has 2051 of 1024 memory",
        "n1 has 2400 of 1024 disk",
        "n1 has 2400 of 1000 cpu",
        "n1 gives a port twice",
        "port is on n1, which is not apps",
        "few and big are both on n1",
        "n2 has 2 of few",
        "few is on n2 without port",
        "4 of big",
    ]


# What deciding imports from outside of the standard library, by the names of their packages.
IMPORTED = """
import sys
from importlib.metadata import packages_distributions
before = set(sys.modules)
import bench.packing.ours
of = packages_distributions()
fresh = {name.partition(".")[0] for name in sys.modules.keys() - before}
packages = {found.lower().replace("_", "-") for name in fresh & of.keys() for found in of[name]}
print(*packages - {"ozymandias"})
"""


def test_the_benchs_own_environment_has_what_deciding_imports() -> None:
    """Nobody has the solver but who asks for the bench: there it would be noticed last."""
    command = [sys.executable, "-c", IMPORTED]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lock = (ROOT / "bench" / "packing" / "requirements.lock").read_text()
    locked = {line.partition("==")[0] for line in lock.splitlines() if "==" in line}
    assert set(found.stdout.split()) <= locked


@pytest.mark.parametrize("limit_seconds", ["10", "0.0001"])
def test_the_bench_runs(limit_seconds: str) -> None:
    """Two clusters against the solver: a figure for each way, none above the optimum.

    Nor when the solver has no time at all: what it does not know flatters nobody.
    """
    if not PYTHON.exists():
        pytest.skip("the solver is not installed: `make bench-packing` does that")
    command = [str(PYTHON), "-m", "bench.packing", "--seed", "7", "--clusters", "2"]
    command += ["--limit-seconds", limit_seconds]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    shares = [line["value"] for line in lines if line["figure"].endswith("/ optimum")]
    assert len(shares) == len(WAYS)
    assert all(0 < share <= 1 for share in shares)
