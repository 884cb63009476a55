"""100,000 requests made up from the API's description, against a running daemon.

    python -m tests.fuzz.fuzz_api --count 100000 --seed 1

Ends with 1 and the request as a curl command when an answer is a server error, or none that the
description has.
"""

import argparse
import tempfile
from pathlib import Path

import structlog

from ozymandias.api.limits import Limits, Rate
from tests.integration.api import cases
from tests.integration.api.rig import Cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    structlog.configure(processors=[_drop])
    limits = Limits(caller=Rate(per_second=0, burst=0), stranger=Rate(per_second=0, burst=0))
    print(f"API: {given.count} cases from seed {given.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="ozy-fuzz-") as folder,
        Cluster(Path(folder), nodes=1, limits=limits) as cluster,
    ):
        tally = cases.run(cluster, given.count, given.seed)
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(tally.statuses.items()))
    print(f"API: {tally.cases} cases in {tally.seconds:.0f} s, answers {statuses}")


def _drop(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


if __name__ == "__main__":
    main()
