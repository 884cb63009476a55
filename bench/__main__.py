"""Runs every figure, one JSON line each, on a cluster of its own that is gone afterwards.

The exit code tells whether all could be measured, not whether all goals were met: that is what
`ok` says, and it depends on how busy the machine is.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import command_line, local_cluster
from bench.figure import report, seconds


def measure_demo() -> None:
    """On a prepared machine, all of it."""
    command = [sys.executable, "-m", "ozymandias.cluster.demo"]
    quiet = subprocess.DEVNULL
    took = seconds(lambda: subprocess.run(command, check=True, stdout=quiet, stderr=quiet))
    report("make demo", took, "s", 60.0, "on a prepared machine, from up to down")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ozy-bench-") as name:
        directory = Path(name)
        os.environ["OZY_CONTEXT"] = str(directory / "context.json")
        for variable in ("OZY_API", "OZY_TOKEN", "KEEP"):
            os.environ.pop(variable, None)
        command_line.measure_help(directory)
        state_dir = directory / "cluster"
        try:
            cluster = local_cluster.measure_up(state_dir)
            command_line.measure_ps(directory)
            local_cluster.measure_idle(cluster)
            local_cluster.measure_submit(cluster)
        finally:
            down = [command_line.OZY, "down", "--state-dir", str(state_dir)]
            subprocess.run(down, check=True, stdout=subprocess.DEVNULL)
        measure_demo()


if __name__ == "__main__":
    main()
