"""Virtual time: it jumps, it is deterministic, and asyncio works on it as usual."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ozymandias.ports import Clock
from ozymandias.sim.clock import WALL_START, Deadlock, Livelock, SimClock, VirtualLoop


def test_time_jumps() -> None:
    """A year of sleeping takes no time: else this test would not end in time."""

    async def main() -> float:
        await asyncio.sleep(365 * 86_400)
        return asyncio.get_running_loop().time()

    assert VirtualLoop().run(main()) == 365 * 86_400


async def _worker(number: int, trace: list[str], lock: asyncio.Lock) -> None:
    for step in range(5):
        await asyncio.sleep(0.5 if step % 2 else 0)
        async with lock:
            trace.append(f"{number}.{step}")


async def _trace() -> list[str]:
    """Tasks in groups, queues, locks, timeouts, waits, cancellation: what programs are made of."""
    trace: list[str] = []
    lock, queue = asyncio.Lock(), asyncio.Queue[int](2)
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(_worker(number, trace, lock))
        group.create_task(_feed(queue))
        async with asyncio.timeout(60):
            trace += [f"got {await queue.get()}" for _ in range(5)]
    try:
        async with asyncio.timeout(3):
            await asyncio.Event().wait()
    except TimeoutError:
        trace.append(f"timeout at {asyncio.get_running_loop().time()}")
    trace += await _cancelled_together()
    done, _ = await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0, n)) for n in range(5)])
    trace += [f"done {task.result()}" for task in done]
    trace.append(f"thread {await asyncio.to_thread(lambda: 7)}")
    return trace


async def _feed(queue: asyncio.Queue[int]) -> None:
    for number in range(5):
        await queue.put(number)


async def _cancelled_together() -> list[str]:
    """The order in which a group cancels its tasks is that of a set of tasks."""
    order: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            order.append(name)

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(wait(f"cancelled {number}"))
            group.create_task(fail())
    return order


def test_seeds_explore_and_replay() -> None:
    """The same seed runs in the same order; other seeds run in others."""
    traces = [VirtualLoop(seed % 10).run(_trace()) for seed in range(20)]
    assert traces[:10] == traces[10:]
    assert len({tuple(trace) for trace in traces}) > 5
    assert all("timeout at" in " ".join(trace) for trace in traces)


def test_replay_in_another_process() -> None:
    """A seed's order depends neither on hash seeds nor on addresses in memory."""
    code = (
        "from tests.unit.sim.test_clock import VirtualLoop, _trace\n"
        "for seed in range(5): print(VirtualLoop(seed).run(_trace()))"
    )
    outputs = set()
    for hash_seed, ballast in (("1", ""), ("2", "x = [object() for _ in range(99_999)]\n")):
        result = subprocess.run(
            [sys.executable, "-c", ballast + code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        outputs.add(result.stdout)
    assert len(outputs) == 1 and "cancelled 9" in outputs.pop()


def test_deadlock_is_told() -> None:
    """Waiting for what never comes is an error that names the tasks."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait(), name="the one who waits")

    with pytest.raises(Deadlock, match="the one who waits"):
        VirtualLoop().run(main())


def test_livelock_is_told() -> None:
    """Spinning without letting time pass is an error."""

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        VirtualLoop().run(main())


def test_cancelled_timers_do_not_pile_up() -> None:
    """Timeouts that were not needed are forgotten."""

    async def main() -> int:
        for _ in range(5_000):
            async with asyncio.timeout(3_600):
                await asyncio.sleep(0.001)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return len(loop._timers)

    assert VirtualLoop().run(main()) < 500


def test_it_is_fast() -> None:
    """Tens of thousands of callbacks in a second, even on a busy machine."""

    async def main() -> int:
        async def tick(period: float) -> None:
            for _ in range(2_000):
                await asyncio.sleep(period)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(tick(1 + number / 7))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop.callbacks

    began = time.process_time()
    callbacks = VirtualLoop().run(main())
    assert callbacks / (time.process_time() - began) > 20_000


def test_clocks() -> None:
    """Clocks of hosts may be off, drift, be set, and count the time that a host slept."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        right: Clock = SimClock(loop)
        fast = SimClock(loop, drift=0.01, wall_offset=3_600, boot_offset=50)
        await asyncio.sleep(100)
        assert right.wall() == WALL_START + 100 and right.boot() == 100
        assert fast.wall() == WALL_START + 3_700 and fast.boot() == 151
        fast.step_wall(-3_600)
        fast.suspend(10)
        assert fast.wall() == WALL_START + 110 and fast.boot() == 161
        assert SimClock(loop, 3).random.random() == SimClock(loop, 3).random.random()

    VirtualLoop().run(main())
