"""What is kept of ended runs: both stores keep the same promises."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ozymandias.model.job import JobName, Namespace
from ozymandias.model.node import NodeName
from ozymandias.model.pod import PodId
from ozymandias.ports import EndedRun, EndedRuns, LogLine
from ozymandias.runtime import ended
from ozymandias.runtime.ended import EndedFiles, EndedInMemory


def run(
    job: str = "web", slot: int = 0, at: float = 1000.0, text: str = "bye", code: int = 3
) -> EndedRun:
    pod = PodId(NodeName("n1"), Namespace("default"), JobName(job), slot, "u1", 1, 0)
    line = LogLine(container="app", time=at, stream="stderr", text=text)
    return EndedRun(
        pod=pod,
        container="app",
        started_at=at - 1,
        ended_at=at,
        exit_code=code,
        oom_killed=code == 137,
        reason=f"ended with exit code {code}",
        lines=(line,),
    )


@pytest.fixture(params=["memory", "files"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> EndedRuns:
    return EndedInMemory() if request.param == "memory" else EndedFiles(tmp_path / "ended")


async def test_what_was_kept_is_found_newest_first(kept: EndedRuns) -> None:
    """Whole, of one instance or of the whole job, and of nobody else."""
    runs = [run(at=1000.0), run(slot=1, at=1002.0), run(at=1001.0, text="Ünïcode \x00 \n")]
    for one in (*runs, run("other")):
        await kept.keep(one)
    assert await kept.find("default", "web", 0) == (runs[2], runs[0])
    assert await kept.find("default", "web") == (runs[1], runs[2], runs[0])
    assert await kept.find("elsewhere", "web") == ()
    assert await kept.find("default", "we") == ()


async def test_the_same_run_is_kept_once(kept: EndedRuns) -> None:
    """A daemon that was restarted sees an end again; the first record stays."""
    await kept.keep(run(text="first"))
    await kept.keep(run(text="second"))
    (found,) = await kept.find("default", "web")
    assert found.lines[0].text == "first"


async def test_one_instance_does_not_push_out_the_others(kept: EndedRuns) -> None:
    """A crash loop keeps its newest records, and what others left behind stays."""
    await kept.keep(run("quiet", at=1.0))
    for number in range(3 * ended.RECORDS_PER_INSTANCE_MAX):
        await kept.keep(run("loop", at=1000.0 + number))
    found = await kept.find("default", "loop")
    assert len(found) == ended.RECORDS_PER_INSTANCE_MAX
    assert found[0].ended_at == 1000.0 + 3 * ended.RECORDS_PER_INSTANCE_MAX - 1
    assert len(await kept.find("default", "quiet")) == 1


@pytest.mark.parametrize(("records", "size"), [(5, ended.BYTES_MAX), (200, 4000)])
async def test_the_whole_is_bounded(
    kept: EndedRuns, records: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number and by bytes; the oldest go."""
    monkeypatch.setattr(ended, "RECORDS_MAX", records)
    monkeypatch.setattr(ended, "BYTES_MAX", size)
    for number in range(20):
        await kept.keep(run(slot=number, at=1000.0 + number, text="x" * 500))
    found = await kept.find("default", "web")
    assert 3 <= len(found) <= 5
    assert [one.pod.slot for one in found] == list(range(19, 19 - len(found), -1))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ended"


async def test_files_outlive_the_daemon(directory: Path) -> None:
    """Another process finds them, and nobody but root can read them."""
    await EndedFiles(directory).keep(run())
    assert await EndedFiles(directory).find("default", "web", 0) == (run(),)
    (file,) = directory.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


SPOILT: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: data[: len(data) // 2],
    lambda data: json.dumps(json.loads(data) | {"format": 99}).encode(),
    lambda data: b"[]",
]


@pytest.mark.parametrize("spoil", SPOILT)
async def test_a_spoilt_file_hides_nothing_else(
    directory: Path, spoil: Callable[[bytes], bytes]
) -> None:
    """Half written, of another version, or nonsense: it is passed over."""
    kept = EndedFiles(directory)
    await kept.keep(run(at=1000.0))
    (file,) = directory.iterdir()
    file.write_bytes(spoil(file.read_bytes()))
    await kept.keep(run(at=1001.0))
    assert await kept.find("default", "web") == (run(at=1001.0),)


async def test_what_is_not_ours_is_left_alone(directory: Path) -> None:
    """A file that somebody else put there is neither read nor removed."""
    directory.mkdir()
    other = directory / "notes.json"
    other.write_text("mine")
    kept = EndedFiles(directory)
    for number in range(2 * ended.RECORDS_PER_INSTANCE_MAX):
        await kept.keep(run(at=1000.0 + number))
    assert other.read_text() == "mine"


async def test_a_disk_that_refuses_leaves_no_draft(directory: Path) -> None:
    """The failure is the caller's to hear, and nothing half made stays behind."""
    directory.write_text("a file where the directory should be")
    with pytest.raises(OSError):
        await EndedFiles(directory).keep(run())
