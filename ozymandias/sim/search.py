"""Many lives: run seeds on some processes, gather what they were like, stop at the first failure.

A seed that never ends is a failure too: its process is given BUSY_SECONDS_MAX of a processor.
"""

import contextlib
import ctypes
import faulthandler
import functools
import gc
import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice

import structlog

from ozymandias.sim.scenario import Outcome, run_seed

BUSY_SECONDS_MAX = 300.0  # processor time of one seed; usually it takes a tenth of a second
CHUNK = 4  # seeds that a process takes at a time
PR_SET_PDEATHSIG = 1  # prctl(2)
GARBAGE = 1_000_000  # objects after which cycles are looked for; a life seldom makes so many


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a number of lives came to."""

    seeds: int = 0
    bad: list[int] = field(default_factory=list)
    virtual_seconds: float = 0.0
    busy_seconds: float = 0.0  # of processors
    revisions: int = 0
    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    invariants: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)

    def add(self, outcome: Outcome, busy_seconds: float) -> None:
        self.seeds += 1
        self.virtual_seconds += outcome.seconds
        self.busy_seconds += busy_seconds
        self.revisions += outcome.revisions
        self.calls += outcome.calls
        self.faults.update(outcome.faults)
        if outcome.violations:
            self.bad.append(outcome.seed)
            self.invariants[outcome.invariant] += 1

    @property
    def real_seconds(self) -> float:
        return time.monotonic() - self.started

    def progress(self) -> str:
        ratio = self.virtual_seconds / max(self.busy_seconds, 1e-9)
        hours = self.virtual_seconds / 3600
        return (
            f"{self.seeds} seeds, {len(self.bad)} bad, {hours:.1f} h of cluster time in"
            f" {self.real_seconds:.0f} s ({ratio:.0f} x per core)"
        )

    def summary(self) -> list[str]:
        faults = ", ".join(f"{kind} {count}" for kind, count in self.faults.most_common())
        lines = [
            self.progress(),
            f"{self.revisions} revisions, {self.calls} API calls, {self.faults.total()} faults",
            f"faults: {faults or 'none'}",
        ]
        if self.bad:
            found = ", ".join(f"{name} {count}" for name, count in self.invariants.most_common())
            shown = " ".join(map(str, self.bad[:20]))
            lines.append(f"violated: {found}; seeds {shown}")
        return lines


def be_quiet() -> None:
    """What daemons log is of no interest here, and costs time."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        cache_logger_on_first_use=False,
    )


@functools.cache
def spare_garbage() -> None:
    """Look for cycles after a life, not in it, and never among what was there before the first."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def _run(seed: int) -> tuple[Outcome, float]:
    be_quiet()
    spare_garbage()
    # Processor time: on a busy machine a good seed may get none for minutes.
    faulthandler.register(signal.SIGVTALRM, file=2, all_threads=False, chain=True)
    signal.setitimer(signal.ITIMER_VIRTUAL, BUSY_SECONDS_MAX)
    before = time.process_time()
    try:
        outcome = run_seed(seed)
        gc.collect()
        return outcome, time.process_time() - before
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        faulthandler.unregister(signal.SIGVTALRM)


def _end_with(parent: int) -> None:
    """Else a process whose parent was killed waits for seeds for ever."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run_some(seeds: tuple[int, ...]) -> list[tuple[Outcome, float]]:
    return [_run(seed) for seed in seeds]


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[tuple[Outcome, float]]:
    """Of each seed, as they come in; in order when there is one process only.

    BrokenProcessPool: a process has died, and with it what was not told yet.
    """
    if jobs <= 1:
        yield from map(_run, seeds)
        return
    # Forked processes would share the parent's event loop policy and file positions.
    context = multiprocessing.get_context("spawn")
    source, under_way = iter(seeds), set[Future[list[tuple[Outcome, float]]]]()
    pool = ProcessPoolExecutor(jobs, context, _end_with, (os.getpid(),))
    try:
        while True:
            while len(under_way) < 2 * jobs and (some := tuple(islice(source, CHUNK))):
                with _uninterrupted():
                    under_way.add(pool.submit(_run_some, some))
            if not under_way:
                return
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits, and processes made meanwhile never hear it.

    A terminal sends it to all of them. One that dies of it before it is told to ignore it may hold
    the lock of the queue of seeds, and then the pool waits for ever.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def search(
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    seconds: float | None = None,
    stops_at_first: bool = True,
    begin: Callable[[], None] = lambda: None,
    tell: Callable[[Tally, Outcome], None] = lambda tally, outcome: None,
) -> Tally:
    """Run seeds until they end, the time is over, or one is bad; ``tell`` hears of each.

    From ``begin`` on Ctrl-C raises Interrupted, with what was done until then.
    """
    tally = Tally()
    found = outcomes(seeds, jobs)
    # Between two seeds: in the midst of one, asyncio would take it for that life's cancellation.
    interrupts: list[object] = []
    before = signal.signal(signal.SIGINT, lambda *_: interrupts.append(True))
    try:
        begin()
        for outcome, busy in found:
            tally.add(outcome, busy)
            tell(tally, outcome)
            if interrupts:
                raise Interrupted(tally)
            if outcome.violations and stops_at_first:
                break
            if seconds is not None and tally.real_seconds >= seconds:
                break
    finally:
        signal.signal(signal.SIGINT, before)
        found.close()  # type: ignore[attr-defined]
    return tally


class Interrupted(Exception):
    """Ctrl-C; what was done until then."""

    def __init__(self, tally: Tally) -> None:
        super().__init__("interrupted")
        self.tally = tally
