"""The last words of containers: kept when they end, never at the cost of what is to be done."""

import asyncio
from collections.abc import AsyncIterator

from ozymandias.daemon.keeping import BYTES_MAX, LINES_MAX, Keeper
from ozymandias.model.job import JobName, Namespace
from ozymandias.model.node import NodeName
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, PodId
from ozymandias.ports import EndedRun, LogLine, RuntimeFailed
from ozymandias.runtime.ended import EndedInMemory
from ozymandias.runtime.host import SystemClock
from ozymandias.sim.host import Behaviour
from tests.unit.daemon.one_node import WEB, OneNode, on_one_node

POD = PodId(NodeName("n1"), Namespace("default"), JobName("web"), 0, "u1", 1, 0)


async def kept(node: OneNode) -> tuple[EndedRun, ...]:
    operations = node.operations
    found: tuple[EndedRun, ...] = await operations._access.ended.find("default", "web")
    return found


def test_a_crash_is_kept_while_its_restart_is_awaited() -> None:
    """With exit code and OOM mark; each run has its own lines only."""

    async def scenario(node: OneNode) -> None:
        node.host.behave = lambda *_: Behaviour(exit_after_seconds=5.0, exit_code=137, is_oom=True)
        await node.submit()
        await node.until(lambda: node.state() == "backoff")
        await asyncio.sleep(0.1)
        (first,) = await kept(node)
        assert (first.exit_code, first.oom_killed) == (137, True)
        assert first.reason == "killed: out of memory"
        texts = [line.text for line in first.lines]
        assert texts
        await node.until(lambda: node.starts() == 2)
        await node.until(lambda: node.state() == "backoff")
        await asyncio.sleep(0.1)
        second, again = await kept(node)
        assert again == first
        assert [line.text for line in second.lines] == texts

    on_one_node(scenario)


def test_a_stopped_instance_is_kept_before_it_is_removed() -> None:
    """With the reason of its stop, though nobody has seen its exit code."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        await node.operations.stop(WEB)
        await node.until(lambda: not node.host.pods)
        (run,) = await kept(node)
        assert (run.exit_code, run.oom_killed) == (None, False)
        assert run.reason == "stopped: its slot is to stop"
        assert [line.text for line in run.lines][:1] == ["started"]

    on_one_node(scenario)


def test_an_unhealthy_container_is_kept_before_its_restart() -> None:
    """Why it was restarted is the cause of its end."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        from ozymandias.ports import ProbeResult

        node.host.probe = lambda *_: ProbeResult(healthy=False, reason="HTTP 503")
        await node.until(lambda: node.starts() == 2, 60)
        (run,) = await kept(node)
        assert "unhealthy: HTTP 503" in run.reason

    on_one_node(scenario)


class Reader:
    """A runtime of which only the logs are asked."""

    def __init__(self, lines: list[LogLine], *, hangs: bool = False, fails: bool = False) -> None:
        self.lines, self.hangs, self.fails = lines, hangs, fails

    async def logs(
        self, pod: PodId, container: str, *, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        if self.fails:
            raise RuntimeFailed("no such container")
        if self.hangs:
            await asyncio.sleep(3600)
        for line in self.lines[-(tail or 0) :]:
            yield line


def line(time: float, text: str) -> LogLine:
    return LogLine(container="app", time=time, stream="stdout", text=text)


def ended_pod(started: float, finished: float) -> ObservedPod:
    container = ObservedContainer(
        name="app",
        state=ContainerState.EXITED,
        started_at=started,
        finished_at=finished,
        exit_code=1,
    )
    return ObservedPod(id=POD, containers=(container,))


def keeper(reader: Reader, shelf: EndedInMemory) -> Keeper:
    return Keeper(runtime=reader, ended=shelf, clock=SystemClock())  # type: ignore[arg-type]


async def test_runs_within_one_second_are_told_apart() -> None:
    """The runtime's times are whole seconds; a line belongs to one run nevertheless."""
    reader, shelf = Reader([line(100, "one"), line(100, "two")]), EndedInMemory()
    keep = keeper(reader, shelf)
    await keep.observed(ended_pod(100.1, 100.2))
    reader.lines += [line(100, "three"), line(101, "four")]
    await keep.observed(ended_pod(100.8, 101.3))
    second, first = await shelf.find("default", "web")
    assert [found.text for found in first.lines] == ["one", "two"]
    assert [found.text for found in second.lines] == ["three", "four"]


async def test_only_the_last_words_are_kept() -> None:
    """So many lines, so many bytes."""
    shelf = EndedInMemory()
    many = [line(100, str(number)) for number in range(2 * LINES_MAX)]
    await keeper(Reader(many), shelf).observed(ended_pod(100, 101))
    long = [line(200, "x" * 1000) for _ in range(LINES_MAX)]
    await keeper(Reader(long), shelf).observed(ended_pod(200, 201))
    by_bytes, by_lines = await shelf.find("default", "web")
    assert [found.text for found in by_lines.lines] == [found.text for found in many[-LINES_MAX:]]
    assert len(by_bytes.lines) == BYTES_MAX // 1000


async def test_a_runtime_that_fails_or_hangs_holds_nothing_up() -> None:
    """Within its deadline it gives up, says so in the log, and does not try again."""
    pod = ended_pod(100, 101)
    for reader in (Reader([], fails=True), Reader([], hangs=True)):
        shelf = EndedInMemory()
        keep = keeper(reader, shelf)
        assert keep.fresh([pod]) == (pod,)
        async with asyncio.timeout(4):
            await keep.leaving(pod, "its slot is to stop")
        assert await shelf.find("default", "web") == ()
        assert keep.fresh([pod]) == ()
    keep.forget_others({})
    assert keep.fresh([pod]) == (pod,)  # what is gone is forgotten
