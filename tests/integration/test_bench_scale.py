"""`bench/scale.py` at a tiny size: that it runs, not what it measures."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

FIGURES = (
    "limit: ",
    ": placements per second",
    ": rate / limit",
    ": CPU / etcd's",
    ": all reported running",
    ": peak RSS",
    "1 nodes lost of ",
    "2 nodes lost of ",
    "jobs by HTTP",
    "jobs by HTTP at half that rate: p99",
    "2 peers / one alone",
    "conflicts",
    "CPU per placement, many nodes / few",
    "rate beside idle daemons / alone",
)


def test_the_bench_of_scale_measures_every_part() -> None:
    """Each part brings its figures, and everything that was wanted was placed and reported."""
    command = [sys.executable, "-m", "bench.scale", "--factor", "0.004", "--shapes", "ten"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, env=dict(os.environ), check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for wanted in FIGURES:
        assert any(wanted in line["figure"] for line in lines), wanted
    told = {line["figure"]: line["how"] for line in lines}
    assert told["400 instances, ten: peak RSS"] == "live 400, healthy 400 by its mirror"
    assert "400 of 400 live" in told["2 nodes lost of 20"]


def test_a_bench_that_is_told_to_end_leaves_nothing_behind() -> None:
    """Neither its processes nor the data of its etcd, which may be gigabytes of memory."""
    command = [sys.executable, "-m", "bench.scale", "--factor", "0.004", "--shapes", "ten"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as bench:
        assert bench.stdout is not None
        bench.stdout.readline()  # the limit is measured, the next etcd is about to come
        while not (found := _data_directories(children := psutil.Process(bench.pid).children())):
            assert bench.poll() is None
        bench.terminate()
        assert bench.wait(30) == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert not [path for path in found if path.exists()]


def _data_directories(processes: list[psutil.Process]) -> list[Path]:
    option = "--data-dir="
    words = [word for process in processes for word in _command(process)]
    return [Path(word.removeprefix(option)).parent for word in words if word.startswith(option)]


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []
