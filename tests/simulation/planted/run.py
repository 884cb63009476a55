"""Does the simulator find bugs? Plant one at a time, and count the seeds it takes.

Every `*.patch` beside this file changes a line or two of the product. The package is copied, one
patch applied, and seeds are run on the copy until something is violated. What is never found shows
what the simulated world lacks.

    python tests/simulation/planted/run.py [--seeds 300] [--jobs 2] [NAME ...]

Closing line: `found N of M`. Exit code 0 only when all were found. A patch that does not apply any
more is an error: the product has changed, and the patch must follow.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SECONDS_MAX = 900.0  # of real time, for one patch

HUNT = """
import sys
from ozymandias.sim.schedule import draw
from ozymandias.sim.scenario import run
from ozymandias.sim.search import be_quiet
be_quiet()
for seed in range(int(sys.argv[1])):
    try:
        outcome = run(draw(seed))
    except Exception as error:
        print("FOUND", seed, "S0", "the simulation ended with " + repr(error)[:150])
        break
    if outcome.violations:
        print("FOUND", seed, outcome.invariant, outcome.violations[0])
        break
"""


@dataclass(frozen=True)
class Result:
    name: str
    seed: int | None  # that found it
    what: str
    seconds: float


def hunt(patch: Path, seeds: int) -> Result:
    """Plant one bug in a copy of the package and look for it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as place:
        shutil.copytree(
            ROOT / "ozymandias", Path(place) / "ozymandias", ignore=shutil.ignore_patterns("*.pyc")
        )
        apply(patch, Path(place))
        environment = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", HUNT, str(seeds)],
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
            )
        except subprocess.TimeoutExpired:
            return Result(patch.stem, None, "out of time", time.monotonic() - started)
    words = done.stdout.split(maxsplit=3)
    seconds = time.monotonic() - started
    if words and words[0] == "FOUND":
        return Result(patch.stem, int(words[1]), f"{words[2]} {words[3].strip()}", seconds)
    if done.returncode:
        raise SystemExit(f"{patch.name}: the hunt failed:\n{done.stderr[-2000:]}")
    return Result(patch.stem, None, f"not in {seeds} seeds", seconds)


def apply(patch: Path, place: Path) -> None:
    done = subprocess.run(
        ["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-s", "-i", str(patch)],
        cwd=place,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{patch.name} does not apply any more:\n{done.stdout}{done.stderr}")


def patches(names: list[str]) -> list[Path]:
    found = sorted(HERE.glob("*.patch"))
    unknown = set(names) - {p.stem for p in found}
    if unknown:
        raise SystemExit(f"no such patch: {', '.join(sorted(unknown))}")
    return [p for p in found if not names or p.stem in names]


def _as_they_come(pool: ThreadPoolExecutor, chosen: list[Path], seeds: int) -> Iterator[Result]:
    for done in as_completed([pool.submit(hunt, patch, seeds) for patch in chosen]):
        yield done.result()


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant bugs and see whether they are found.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of patches; default: all")
    parser.add_argument("--seeds", type=int, default=400, help="at most, for each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = patches(options.names)
    results = []
    print(f"{'bug':34} {'seeds':>5} {'time':>6}  found as")
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in _as_they_come(pool, chosen, options.seeds):
            count = "-" if result.seed is None else str(result.seed + 1)
            print(f"{result.name:34} {count:>5} {result.seconds:5.0f}s  {result.what[:110]}")
            sys.stdout.flush()
            results.append(result)
    found = sum(result.seed is not None for result in results)
    print(f"found {found} of {len(results)}")
    return 0 if found == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
