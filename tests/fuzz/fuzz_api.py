"""100,000 requests made up from the API's description, against running daemons.

    python -m tests.fuzz.fuzz_api --count 100000 --seed 1

Four fifths of the time go into making requests up, so each of ``--jobs`` processes does that for a
cluster of its own, with rounds of its own. Ends with 1 and the request as a curl command when an
answer is a server error, or none that the description has.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import structlog

from ozymandias.api.limits import Limits, Rate
from tests.integration.api import cases
from tests.integration.api.rig import Cluster

LEASE_SECONDS = 600  # a machine that is busy with this is no lost node: 503 would be a finding
ROUNDS_MAX = 1_000_000  # of one process: the next one's begin there


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    print(f"API: {given.count} cases from seed {given.seed}, {given.jobs} processes", flush=True)
    started, share = time.monotonic(), -(-given.count // given.jobs)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        seeds = [given.seed + number * ROUNDS_MAX for number in range(given.jobs)]
        outcomes = list(pool.map(_explore, [share] * given.jobs, seeds))
    statuses = sum((found for found, _ in outcomes), Counter[int]())
    told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    took = time.monotonic() - started
    print(f"API: {statuses.total()} cases in {took:.0f} s, answers {told}")
    return 0 if all(is_well for _, is_well in outcomes) else 1


def _explore(count: int, seed: int) -> tuple[Counter[int], bool]:
    """What was answered, and whether all of it was right; a failure is told at once."""
    structlog.configure(processors=[_drop])
    limits = Limits(caller=Rate(per_second=0, burst=0), stranger=Rate(per_second=0, burst=0))
    tally = cases.Tally()
    with (
        tempfile.TemporaryDirectory(prefix="ozy-fuzz-") as folder,
        Cluster(Path(folder), nodes=1, limits=limits, lease_seconds=LEASE_SECONDS) as cluster,
    ):
        try:
            cases.run(cluster, count, seed, tally)
        except BaseExceptionGroup:  # of failed checks
            print(f"API: seed {seed}, after {tally.cases} cases", file=sys.stderr)
            traceback.print_exc()
            return tally.statuses, False
    return tally.statuses, True


def _drop(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
