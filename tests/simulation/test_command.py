"""`python -m ozymandias.sim` as people use it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ozymandias.model.record import replace
from ozymandias.sim import __main__ as command
from ozymandias.sim.page import render
from ozymandias.sim.scenario import Outcome
from ozymandias.sim.schedule import Options, Schedule, draw
from ozymandias.sim.search import Tally
from ozymandias.sim.shrink import shrink
from ozymandias.sim.speed import measure
from ozymandias.sim.trace import Entry

LARGE = next(seed for seed in range(1000) if draw(seed).options.size == "large")
BAD = Outcome(
    seed=4,
    options=Options(),
    violations=("t=1.000 revision 2: S1 n1 <holds> too much",),
    story=(
        Entry(0.5, "n1", "pod", "web-0: first start"),
        Entry(0.7, "n1", "fault", "power cut"),
        Entry(0.9, "n2", "commit", "r2 job web written"),
        Entry(1.0, "", "violation", "VIOLATION S1"),
    ),
    fingerprint="0123",
    revisions=2,
    faults={"power": 1},
    calls=0,
    seconds=2.0,
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seed", "x"],
        ["--seed", "-1"],
        ["--seed", "9" * 40],
        ["--seeds", "5"],
        ["--seeds", "9-3"],
        ["--minutes", "0"],
        ["--minutes", "nan"],
        ["--jobs", "0"],
        ["--html", "no/such/place/page.html"],
        ["--html", "."],
        ["--seeds", "1-2", "--minutes", "1"],
        ["--what"],
    ],
)
def test_bad_usage_is_said_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad seeds and flags end with code 2 and a sentence."""
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    assert end.value.code == 2
    assert "error:" in capsys.readouterr().err.splitlines()[-1]


def test_a_good_seed_ends_with_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    """Replaying says what the life was like, and the hash of its trace."""
    assert command.main(["--seed", "11"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("trace ") and "0 violations" in last


def test_a_range_is_searched_and_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary tells seeds, cluster time, ratio, faults and revisions."""
    assert command.main(["--seeds", "20-22"]) == 0
    text = capsys.readouterr().out
    assert "3 seeds, 0 bad" in text and "x per core" in text and "faults:" in text


def test_a_violation_is_told_with_its_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    """What led to it stands before it."""
    command.tell(BAD)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("power cut") and "S1 n1 <holds>" in lines[-1]
    tally = Tally()
    tally.add(BAD, 1.0)
    assert tally.bad == [4] and "violated: S1 1" in tally.summary()[-1]


def test_the_page_is_whole_and_escaped(tmp_path: Path) -> None:
    """Lanes, marks and the story, in one file that asks for nothing."""
    page = render(BAD)
    assert "&lt;holds&gt;" in page and "violation-line" in page
    assert 'data-n="1"' in page and ">n2</text>" in page and "<title>web-0, 0.500 to" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    file = tmp_path / "page.html"
    assert command.main(["--seed", "11", "--html", str(file)]) == 0
    assert "Nothing was violated" in file.read_text()


def test_shrinking_keeps_what_is_needed() -> None:
    """Of many steps only those stay without which nothing would be violated."""
    schedule = draw(5)
    needed = {schedule.steps[2].index, schedule.steps[-3].index}

    def live(candidate: Schedule) -> Outcome:
        kept = {step.index for step in candidate.steps}
        return BAD if needed <= kept else replace(BAD, violations=())

    smallest, outcome = shrink(schedule, BAD, live=live)
    assert {step.index for step in smallest.steps} == needed and outcome is BAD


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_search_says_how_far_it_came(jobs: str) -> None:
    """Ctrl-C, which a terminal sends to all processes, ends with code 130 and the summary."""
    code, text = interrupt(["--minutes", "5", "--jobs", jobs], after="searching ")
    assert code == 130 and "interrupted" in text and "seeds," in text
    assert "Traceback" not in text


def test_nothing_is_left_of_a_search_that_is_killed() -> None:
    """Its processes would wait for more seeds, for ever."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "ozymandias.sim", "--minutes", "5", "--jobs", "2"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout and "processes: 2" in process.stdout.readline()
        while len(_children(process.pid)) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.wait()
        while _is_there(process.pid):  # its group; the test's own limit ends this
            time.sleep(0.05)


def _children(process: int) -> list[str]:
    children = Path(f"/proc/{process}/task/{process}/children")
    return [
        child
        for child in children.read_text().split()
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    ]


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupted_replay_just_ends() -> None:
    """Ctrl-C in one long life ends with code 130 and a word."""
    code, text = interrupt(["--seed", str(LARGE), "--story"], after=f"seed {LARGE}")
    assert code == 130 and text.split() == ["interrupted"]


def interrupt(arguments: list[str], after: str) -> tuple[int, str]:
    """Ctrl-C once that line is there; the exit code and what is said then, errors included."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "ozymandias.sim", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout and process.stdout.readline().startswith(after)
            os.killpg(process.pid, signal.SIGINT)
            text, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, text


def test_the_speed_is_measured_on_a_life_that_holds() -> None:
    """Five nodes and fifty instances for a minute, and nothing is violated in it."""
    speed = measure(60.0)
    assert speed.violations == ()
    assert speed.virtual_seconds >= 60.0
    assert "5 nodes, 50 instances" in str(speed)
