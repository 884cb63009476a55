"""Many lives: run seeds on some processes, gather what they were like, stop at the first failure.

A seed that never ends in real time is a failure too: its process is given REAL_SECONDS_MAX.
"""

import faulthandler
import gc
import logging
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import structlog

from ozymandias.sim.scenario import Outcome, run_seed

REAL_SECONDS_MAX = 300.0  # of one seed; usually it takes a second
CHUNK = 4  # seeds that a process takes at a time
GARBAGE = 100_000  # objects after which cycles are looked for; by default it is a tenth of the time


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


def _run(seed: int) -> tuple[Outcome, float]:
    be_quiet()
    gc.set_threshold(GARBAGE)
    faulthandler.dump_traceback_later(REAL_SECONDS_MAX, exit=True, file=2)
    before = time.process_time()
    try:
        return run_seed(seed), time.process_time() - before
    finally:
        faulthandler.cancel_dump_traceback_later()


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[tuple[Outcome, float]]:
    """Of each seed, as they come in; in order when there is one process only."""
    if jobs <= 1:
        yield from map(_run, seeds)
        return
    # Forked processes would share the parent's event loop policy and file positions.
    ignore = (signal.SIGINT, signal.SIG_IGN)  # the one that gathers decides
    with multiprocessing.get_context("spawn").Pool(jobs, signal.signal, ignore) as pool:
        yield from pool.imap_unordered(_run, seeds, CHUNK)


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
