"""`make demo` as a person sees it, interrupted and failing; tests/docs has it whole."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ozymandias.cluster import demo

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "ozymandias.cluster.demo"]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Everything temporary in a directory of its own, which must be empty in the end."""
    with tempfile.TemporaryDirectory(prefix="ozy-test-") as directory:
        kept = {k: v for k, v in os.environ.items() if k != "KEEP" and not k.startswith("OZY_")}
        yield kept | {"TMPDIR": directory}
        assert [path.name for path in Path(directory).iterdir()] == []


@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGINT, "ozy scale"), (signal.SIGTERM, "ozy up")]
)
def test_an_interrupted_demo_cleans_up(
    environment: dict[str, str], number: signal.Signals, when: str
) -> None:
    """Ctrl-C or SIGTERM while a step runs: everything is removed, the exit code says so."""
    process = subprocess.Popen(
        COMMAND,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"$ {when}"):
            break
    time.sleep(0.3)  # in the middle of the step
    process.send_signal(number)
    output = process.stdout.read()
    assert process.wait(timeout=60) == 130, output
    process.stdout.close()


def test_a_failing_demo_cleans_up(environment: dict[str, str], tmp_path: Path) -> None:
    """A step that fails ends the demo with its name and a code other than 0."""
    programs = tmp_path / "bin"
    programs.mkdir()
    curl = programs / "curl"
    curl.write_text("#!/bin/sh\nexit 22\n")
    curl.chmod(0o755)
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    done = subprocess.run(
        COMMAND, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "curl" in done.stderr
    assert "ended with 22" in done.stderr


def test_a_demo_that_can_not_clean_up_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine that is too busy for `ozy down` the reader gets the command, no traceback."""
    monkeypatch.setattr(demo, "STEP_SECONDS_MAX", 0.2)
    shown = demo.Demo(tmp_path, Path("job.yaml"))
    busy = tmp_path / "ozy"
    busy.write_text("#!/bin/sh\nexec sleep 60\n")
    busy.chmod(0o755)
    shown.ozy = str(busy)
    shown.state_dir.mkdir()
    (shown.state_dir / "cluster.json").touch()
    shown.clean_up()
    assert f"{busy} down --state-dir {shown.state_dir}" in capsys.readouterr().err
