"""Does the simulator find bugs? Plant one at a time, and count the seeds it takes.

Every `*.patch` beside this file changes a line or two of the product. The package is copied, one
patch applied, and seeds are run on the copy until something is violated that is not violated on
the same seed without the patch. What is never found shows what the simulated world lacks.

    python tests/simulation/planted/run.py [--seeds 3000] [--jobs 2] [--only NAME] [--write]

Closing line: `found N of M`. Exit code 0 only when all were found, 1 when one was not, 2 when a
patch does not apply any more: the product has changed, and the patch must follow. What was found
is remembered (`.cache/planted.json`) as long as neither the package nor the patch changes, so an
interrupted run goes on where it was; --anew forgets. --write puts the table into the docs.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MEMORY = ROOT / ".cache" / "planted.json"
PAGE = ROOT / "docs" / "reliability.md"
HEADING = "## Planted bugs\n"
SEEDS = 3000
SECONDS = 600.0  # of processor time, for one patch: other work must not make bugs invisible
PATIENCE = 30  # times as much real time

HUNT = """
import sys, time
from ozymandias.sim.schedule import draw
from ozymandias.sim.scenario import run
from ozymandias.sim.search import be_quiet
be_quiet()
first, end, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
word, found = "NONE", ()
for seed in range(first, end):
    try:
        outcome = run(draw(seed))
        found = outcome.violations and (outcome.invariant, outcome.violations[0])
    except Exception as error:
        found = ("S0", "the simulation ended with " + repr(error)[:150])
    if found:
        word = "FOUND"
        break
    if time.process_time() > seconds:
        break
print(word, seed, time.process_time(), *found)
"""


class PatchFailed(Exception):
    """It does not apply any more."""


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    seed: int | None  # that found it
    what: str
    seconds: float  # of processor time

    @property
    def is_found(self) -> bool:
        return self.seed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    is_found: bool
    seed: int  # the last one
    seconds: float
    what: str


class Processes:
    """Whoever hunts; ended together when the run is interrupted."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._is_over = False

    def hunt(self, place: Path, first: int, end: int, seconds: float) -> Hunt:
        """Until a seed is violated, or there are no more of them, or no more time."""
        environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
        with self._lock:
            if self._is_over:
                raise InterruptedError
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", HUNT, str(first), str(end), str(seconds)],
                cwd=place,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the one that gathers
            )
            self._running.add(process)
        try:
            output, errors = process.communicate(timeout=seconds * PATIENCE + 60)
        except subprocess.TimeoutExpired:
            return Hunt(is_found=False, seed=first, seconds=seconds, what="")
        finally:
            process.kill()
            process.wait()
            with self._lock:
                self._running.discard(process)
        if self._is_over:
            raise InterruptedError
        if process.returncode:
            raise RuntimeError(f"the hunt failed:\n{errors[-2000:]}")
        word, seed, used, *what = output.split(maxsplit=3)
        return Hunt(
            is_found=word == "FOUND", seed=int(seed), seconds=float(used), what=" ".join(what)
        )

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            for process in self._running:
                process.kill()


class Garden:
    """Copies of the package with one bug each, and one copy without."""

    def __init__(self, place: Path, processes: Processes, seeds: int, seconds: float) -> None:
        self._place = place
        self._processes = processes
        self._seeds = seeds
        self._seconds = seconds
        self._clean = self._copy("clean")
        self._known: dict[int, bool] = {}  # seed: is it violated without any patch?
        self._lock = threading.Lock()

    def _copy(self, name: str) -> Path:
        target = self._place / name
        ignored = shutil.ignore_patterns("*.pyc", "__pycache__")
        shutil.copytree(ROOT / "ozymandias", target / "ozymandias", ignore=ignored)
        return target

    def hunt(self, patch: Path) -> Result:
        """Plant one bug and look for it."""
        place = self._copy(patch.stem)
        apply(patch, place)
        first, seconds = 0, 0.0
        try:
            while first < self._seeds and seconds < self._seconds:
                left = self._seconds - seconds
                hunt = self._processes.hunt(place, first, self._seeds, left)
                seconds += hunt.seconds
                if hunt.is_found and not self._is_dirty(hunt.seed):
                    return Result(patch.stem, hunt.seed, hunt.what.strip(), seconds)
                first = hunt.seed + 1
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return Result(patch.stem, None, f"not in {first} seeds", seconds)

    def _is_dirty(self, seed: int) -> bool:
        with self._lock:
            known = self._known.get(seed)
        if known is None:
            known = self._processes.hunt(self._clean, seed, seed + 1, self._seconds).is_found
            with self._lock:
                self._known[seed] = known
        return known


def apply(patch: Path, place: Path) -> None:
    done = subprocess.run(
        ["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-s", "-i", str(patch)],
        cwd=place,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise PatchFailed(f"{patch.name} does not apply any more:\n{done.stdout}{done.stderr}")


def check_all(chosen: list[Path], place: Path) -> None:
    """Every patch applies, before any time is spent."""
    for patch in chosen:
        target = place / "check"
        for line in patch.read_text().splitlines():
            if line.startswith("--- a/"):
                file = line.removeprefix("--- a/").split("\t")[0]
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, target / file)
        apply(patch, target)
        shutil.rmtree(target)


def patches(names: list[str]) -> list[Path]:
    found = sorted(HERE.glob("*.patch"))
    unknown = set(names) - {p.stem for p in found}
    if unknown:
        raise SystemExit(f"no such patch: {', '.join(sorted(unknown))}")
    return [p for p in found if not names or p.stem in names]


# What earlier runs have found -------------------------------------------------------------------


def digest_of(patch: Path) -> str:
    """Of the package and the patch: what was found holds as long as both are the same."""
    digest = hashlib.sha256(patch.read_bytes())
    for file in sorted((ROOT / "ozymandias").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def remembered(chosen: list[Path]) -> list[Result]:
    try:
        known = json.loads(MEMORY.read_text())
    except (OSError, ValueError):
        return []
    digests = {patch.stem: digest_of(patch) for patch in chosen}
    return [
        Result(**entry["result"])
        for name, entry in known.items()
        if digests.get(name) == entry["digest"]
    ]


def remember(results: list[Result], digests: dict[str, str]) -> None:
    MEMORY.parent.mkdir(exist_ok=True)
    try:
        known = json.loads(MEMORY.read_text())
    except (OSError, ValueError):
        known = {}
    for result in results:
        if result.is_found:
            known[result.name] = {"digest": digests[result.name], "result": asdict(result)}
    draft = MEMORY.with_suffix(".draft")
    draft.write_text(json.dumps(known, indent=1))
    draft.replace(MEMORY)


# Telling ----------------------------------------------------------------------------------------


def row(result: Result) -> str:
    count = str(result.seed + 1) if result.seed is not None else "-"
    return f"{result.name:34} {count:>5} {result.seconds:5.0f}s  {result.what[:110]}"


def closing(results: list[Result]) -> str:
    return f"found {sum(r.is_found for r in results)} of {len(results)}"


def table(results: list[Result]) -> str:
    lines = [
        "| bug | what it does | seeds | seconds | found as |",
        "| --- | --- | --- | --- | --- |",
    ]
    for result in sorted(results, key=lambda r: r.name):
        story = (HERE / f"{result.name}.patch").read_text().splitlines()[0]
        count = str(result.seed + 1) if result.seed is not None else "not found"
        word = result.what.split()[0] if result.is_found else "-"
        line = f"| `{result.name}` | {story} | {count} | {result.seconds:.0f} | {word} |"
        lines.append(line)
    return "\n".join([*lines, "", f"`{closing(results)}`", ""])


def write(results: list[Result]) -> None:
    """Put the table where the page has the heading; what comes before and after it stays."""
    before, _, rest = PAGE.read_text().partition(HEADING)
    words, _, _ = rest.partition("| bug |")
    _, next_heading, after = rest.partition("\n## ")
    PAGE.write_text(before + HEADING + words + table(results) + next_heading + after)


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant bugs and see whether they are found.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of patches; default: all")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="the same")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most, for each")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of processor time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--anew", action="store_true", help="forget what earlier runs have found")
    parser.add_argument("--write", action="store_true", help=f"the table, into {PAGE.name}")
    options = parser.parse_args()
    if options.seeds < 1 or options.jobs < 1 or options.seconds <= 0:
        parser.error("seeds, jobs and seconds are at least 1")
    chosen = patches(options.names + options.only)
    results = [] if options.anew else remembered(chosen)
    done = {result.name for result in results}
    digests = {patch.stem: digest_of(patch) for patch in chosen}
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        try:
            print(f"{'bug':34} {'seeds':>5} {'time':>6}  found as")
            for result in results:
                print(f"{row(result)}  (earlier)")
            check_all(chosen, Path(name))
            processes = Processes()
            garden = Garden(Path(name), processes, options.seeds, options.seconds)
            left = [patch for patch in chosen if patch.stem not in done]
            for result in hunted(garden, processes, left, options.jobs):
                print(row(result), flush=True)
                results.append(result)
                remember([result], digests)
        except PatchFailed as error:
            print(error, file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"interrupted; until then {closing(results)}; the same command goes on")
            return 130
    if options.write:
        write(results)
    print(closing(results))
    return 0 if all(result.is_found for result in results) else 1


def hunted(garden: Garden, processes: Processes, chosen: list[Path], jobs: int) -> Iterator[Result]:
    """As they come in."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(garden.hunt, patch) for patch in chosen]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            processes.end()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


if __name__ == "__main__":
    sys.exit(main())
