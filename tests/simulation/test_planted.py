"""The planted bugs keep up with the product: each applies, and cheap ones are found here too."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ROOT / "tests" / "simulation" / "planted"
PATCHES = sorted(PLANTED.glob("*.patch"))
PATCHES_MIN = 30
CHEAP = ("dead-node-keeps-statuses", "claims-kept", "cordon-ignored")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PLANTED / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_applies(patch: Path) -> None:
    """It changes the product as it is now, a few lines of it, and says what for."""
    command = ["git", "apply", "--check", "--verbose", str(patch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    story, empty, *lines = patch.read_text().splitlines()
    assert story.endswith(".") and not empty
    changed = [line for line in lines if re.match(r"[+-](?![+-]{2} )", line)]
    assert 0 < len(changed) <= 16


def test_planted_bugs_are_found() -> None:
    """Cheap ones within a few seeds; all of them is what `make planted` is for."""
    assert len(PATCHES) >= PATCHES_MIN
    done = run("--seeds", "20", "--jobs", "2", "--anew", *CHEAP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"found {len(CHEAP)} of {len(CHEAP)}"


def test_an_interrupted_hunt_says_how_far_it_came() -> None:
    """Ctrl-C ends the hunters too, with code 130 and the closing line so far."""
    process = subprocess.Popen(
        [sys.executable, "-u", str(PLANTED / "run.py"), "--anew", "--jobs", "2", "no-floor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            assert process.stdout and process.stdout.readline().startswith("bug ")
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130 and "Traceback" not in text
    assert text.startswith("interrupted; until then found 0 of 0")


def test_a_bug_that_nobody_planted() -> None:
    """A name that is not there is said so, and nothing is found."""
    done = run("--only", "no-such-bug")
    assert done.returncode == 1 and "no such patch: no-such-bug" in done.stderr
    assert run("--seeds", "0").returncode == 2
