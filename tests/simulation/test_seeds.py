"""Random lives of whole clusters: the production daemons against everything that may break."""

import os
import subprocess
import sys

import pytest

from ozymandias.sim.scenario import run_seed

SEEDS = int(os.environ.get("OZY_SEEDS", "120"))
CHUNK = 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_invariants_hold_and_the_cluster_comes_to_rest(first: int) -> None:
    """Capacity, one place per instance, no zombie commit, true names; and it converges."""
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed)
        story = "\n".join(outcome.history)
        assert not outcome.violations, f"seed {seed}: {outcome.violations}\n{story}"


def test_a_seed_replays_exactly_in_another_process() -> None:
    """The same seed gives the same history, whatever the hash seed of the process is."""
    code = (
        "import hashlib; from ozymandias.sim.scenario import run_seed; o = run_seed(3);"
        "print(hashlib.sha256('\\n'.join(o.history).encode()).hexdigest(), o.revisions)"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for hash_seed in ("1", "2")
    }
    assert len(prints) == 1
