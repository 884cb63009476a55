"""Packs random clusters, and prints one JSON line per way of packing: its share of the optimum.

    python -m bench.packing --seed 1000 --clusters 200 --limit-seconds 10

The share is of sums over all clusters: instances placed by instances that the optimum places. The
mean over clusters and the worst cluster stand beside it, as do the shares by how much was asked
for. Every packing is checked by sums before it counts.

The goal is for what is planned as a whole. One by one nobody knows what comes next, and nothing is
moved for it: there the others are the measure, on the same jobs in the same order.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.figure import report
from bench.packing.clusters import HELD_OUT, Cluster, Packing, drawn, faults, placed
from bench.packing.optimum import optimum
from bench.packing.others import OTHERS, packed
from bench.packing.ours import all_at_once, one_by_one

GOAL = 0.97
OURS: dict[str, tuple[Callable[[Cluster], Packing], float]] = {
    "ours, all at once": (all_at_once, GOAL),
    "ours, one by one": (one_by_one, 0.0),
}
LOADS = ((0.0, 0.85), (0.85, 1.0), (1.0, 9.9))  # of the memory there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One cluster: the most that can be placed, and what each way placed."""

    name: str
    load: float
    most: int
    is_proven: bool
    placed: dict[str, int]


def solved(seed: int, limit_seconds: float, number: int) -> Result:
    cluster = drawn(seed, number)
    best = optimum(cluster, limit_seconds)
    ways: dict[str, Callable[[Cluster], Packing]] = {
        **{name: way for name, (way, _) in OURS.items()},
        **{name: partial(packed, score=s, order=o) for name, (s, o) in OTHERS.items()},
    }
    packings = {name: way(cluster) for name, way in ways.items()}
    for name, packing in {**packings, "the optimum": best.packing}.items():
        if found := faults(cluster, packing):
            raise AssertionError(f"{name} on cluster {cluster.name}: {'; '.join(found)}")
        if placed(packing) > best.most:
            raise AssertionError(f"{name} on cluster {cluster.name} places more than can be placed")
    return Result(
        name=cluster.name,
        load=cluster.load,
        most=best.most,
        is_proven=best.is_proven,
        placed={name: placed(packing) for name, packing in packings.items()},
    )


def tell(results: list[Result]) -> None:
    most = sum(result.most for result in results)
    for name in results[0].placed:
        shares = [(r.placed[name] / r.most if r.most else 1.0, r.name) for r in results]
        by_load = ", ".join(_by_load(results, name))
        share = sum(result.placed[name] for result in results) / most
        how = (
            f"mean of clusters {statistics.fmean(s for s, _ in shares):.4f},"
            f" worst {min(shares)[0]:.3f} (cluster {min(shares)[1]}),"
            f" as many as the optimum in {sum(s >= 1 for s, _ in shares)} of {len(results)};"
            f" memory asked for: {by_load}"
        )
        goal = OURS[name][1] if name in OURS else 0.0
        report(f"packing: {name} / optimum", share, "", goal, how, ok=share >= goal)
    unproven = [result.name for result in results if not result.is_proven]
    how = f"{most} instances in {len(results)} clusters; by its bound: {', '.join(unproven)}"
    report("packing: optima not proven", len(unproven), "clusters", len(results) // 20, how)


def _by_load(results: list[Result], name: str) -> list[str]:
    lines = []
    for low, high in LOADS:
        some = [result for result in results if low <= result.load < high]
        if most := sum(result.most for result in some):
            share = sum(result.placed[name] for result in some) / most
            words = f"over {low:.0%}" if high > 9 else f"{low:.0%} to {high:.0%}"
            lines.append(f"{words} {share:.4f} ({len(some)})")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.packing", description=__doc__)
    parser.add_argument("--seed", type=int, default=HELD_OUT)
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--limit-seconds", type=float, default=10.0, help="of the solver, each")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    started = time.perf_counter()
    with multiprocessing.Pool(options.jobs) as pool:
        work = partial(solved, options.seed, options.limit_seconds)
        results = list(pool.imap(work, range(options.clusters)))
    tell(results)
    took = time.perf_counter() - started
    whose = "held out" if options.seed >= HELD_OUT else "for tuning"
    print(f"seed {options.seed} ({whose}), {took:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
