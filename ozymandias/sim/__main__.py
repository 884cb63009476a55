"""`python -m ozymandias.sim`: replay one seed, or search many for a violation.

    python -m ozymandias.sim --seed 7             one life, with a hash of its trace
    python -m ozymandias.sim --seed 7 --shrink    leave out what the failure does not need
    python -m ozymandias.sim --minutes 10         search from --seed on, for that long
    python -m ozymandias.sim --seeds 0-999        these, all of them
    python -m ozymandias.sim --speed              how fast it is: five nodes, fifty instances

Exit codes: 0 nothing was violated, 1 something was, 2 bad usage, 130 interrupted.
"""

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

from ozymandias.sim.page import render
from ozymandias.sim.scenario import Outcome, run
from ozymandias.sim.schedule import SEED_MAX, Schedule, draw
from ozymandias.sim.search import Interrupted, Tally, be_quiet, search
from ozymandias.sim.shrink import shrink
from ozymandias.sim.speed import measure

PROGRESS_EVERY = 50  # seeds
TIMELINE_LINES = 120  # before the violation
AFTER_LINES = 12  # what is still different, when the violation is that it does not come to rest


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ozymandias.sim", description="Whole clusters in virtual time."
    )
    parser.add_argument("--seed", type=_seed, default=1, help="replay this one (default: 1)")
    parser.add_argument("--seeds", type=_seeds, metavar="A-B", help="run all of these")
    parser.add_argument(
        "--minutes", type=_minutes, metavar="M", help="search for that long, from --seed on"
    )
    parser.add_argument("--jobs", type=_jobs, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--shrink", action="store_true", help="reduce a failure to what it takes")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page of the timeline")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first")
    parser.add_argument("--speed", action="store_true", help="measure it, on one processor")
    parser.add_argument("--story", action="store_true", help="show the timeline of a good seed too")
    found = parser.parse_args(arguments)
    if found.seeds and found.minutes is not None:
        parser.error("--seeds and --minutes exclude each other")
    if found.html and not (found.html.parent.is_dir() and os.access(found.html.parent, os.W_OK)):
        parser.error(f"--html: can't write into {found.html.parent}")
    if found.html and found.html.is_dir():
        parser.error(f"--html: {found.html} is a directory")
    return found


def _seed(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number < SEED_MAX:
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 on, not {text!r}")
    return number


def _seeds(text: str) -> range:
    first, separator, last = text.partition("-")
    if not separator:
        raise argparse.ArgumentTypeError(f"a range of seeds looks like 0-999, not {text!r}")
    start, end = _seed(first), _seed(last)
    if end < start:
        raise argparse.ArgumentTypeError(f"{text!r} is empty: the first seed comes first")
    return range(start, end + 1)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 < minutes < 1e6:
        raise argparse.ArgumentTypeError(f"minutes must be a number above 0, not {text!r}")
    return minutes


def _jobs(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 256:
        raise argparse.ArgumentTypeError(f"a number of processes from 1 to 256, not {text!r}")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    be_quiet()
    try:
        if options.speed:
            say(str(measure()))
            return 0
        if options.seeds or options.minutes is not None:
            return _search(options)
        return _replay(options, draw(options.seed))
    except Interrupted as interrupted:
        say("\ninterrupted")
        for line in interrupted.tally.summary():
            say(line)
        return 130
    except KeyboardInterrupt:
        say("\ninterrupted")
        return 130
    except BrokenProcessPool:
        say("a process died: of a seed that never ends, see above; of too little memory, or killed")
        return 1


@contextmanager
def _ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process where it is: nothing outside of it was made that must be put back.

    An exception, raised wherever the life happens to be, would make noise of each of its tasks.
    """

    def end(number: int, frame: object) -> None:
        os.write(sys.stdout.fileno(), b"\ninterrupted\n")
        os._exit(130)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _replay(options: argparse.Namespace, schedule: Schedule) -> int:
    with _ends_at_once():
        say(f"seed {schedule.seed}: {schedule.options}")
        outcome = run(schedule, keeps_story=options.story or bool(options.html))
        if outcome.violations and options.shrink:
            say(f"{outcome.violations[0]}\nshrinking {len(schedule.steps)} steps ...")
            schedule, outcome = shrink(schedule, outcome, say)
            say("what is left: " + ", ".join(f"{s.at:.1f} s {s.kind}" for s in schedule.steps))
    if outcome.violations or options.story:
        tell(outcome, whole=options.story)
    if options.html:
        _write_page(options.html, outcome)
    faults = sum(outcome.faults.values())
    say(
        f"trace {outcome.fingerprint}: {outcome.seconds:.1f} s, {outcome.revisions} revisions,"
        f" {faults} faults, {outcome.calls} API calls, {len(outcome.violations)} violations"
    )
    return 1 if outcome.violations else 0


def _search(options: argparse.Namespace) -> int:
    seeds: Iterable[int] = options.seeds or itertools.count(options.seed)
    seconds = None if options.minutes is None else options.minutes * 60
    failures: list[Outcome] = []
    where = f"seeds {options.seeds[0]} to {options.seeds[-1]}" if options.seeds else "seeds"
    span = f" for {options.minutes:g} min from {options.seed} on" if options.minutes else ""

    def begin() -> None:
        say(f"searching {where}{span}; processes: {options.jobs}")

    def hear(tally: Tally, outcome: Outcome) -> None:
        if outcome.violations:
            failures.append(outcome)
            say(f"seed {outcome.seed}: {outcome.violations[0]}")
        if tally.seeds % PROGRESS_EVERY == 0:
            say(tally.progress())

    tally = search(
        seeds,
        jobs=options.jobs,
        seconds=seconds,
        stops_at_first=not options.keep_going,
        begin=begin,
        tell=hear,
    )
    for line in tally.summary():
        say(line)
    if not failures:
        return 0
    say()
    _replay(options, draw(failures[0].seed))
    say(f"replay it: make simulate SEED={failures[0].seed}")
    return 1


def tell(outcome: Outcome, *, whole: bool = False) -> None:
    """The violations and what led to them, for people."""
    entries = list(outcome.story)
    if not whole:
        first = next((i for i, e in enumerate(entries) if e.kind == "violation"), len(entries))
        entries = entries[max(0, first - TIMELINE_LINES) : first + 1 + AFTER_LINES]
    for entry in entries:
        say(str(entry))
    for violation in outcome.violations:
        say(violation)


def _write_page(path: Path, outcome: Outcome) -> None:
    path.write_text(render(outcome), encoding="utf-8")
    say(f"timeline: {path}")


if __name__ == "__main__":
    sys.exit(main())
