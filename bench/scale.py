"""A million instances: the production scheduler and commit path into real etcd, one JSON line each.

    python -m bench.scale [--factor 0.1] [--only million loss …] [--shapes apart ten uncapped]

Nodes are simulated (`bench/scaling/nodes.py`: registered by lease, statuses as the daemons write
them), the daemons that schedule are whole ones (`bench/scaling/peer.py`), each a process of its
own; so is etcd, fresh for each part. Every run measures the limit first (`bench/scaling/limit.py`):
on a machine that others use, too, only ratios within one run tell something.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

from bench.figure import report
from bench.scaling.shapes import PER_NODE, SHAPES, Size, node_name
from bench.scaling.slices import slices
from bench.scaling.world import World, world
from ozymandias.model.record import replace

GIGABYTE = 1e9
PEER_INSTANCES = 10  # of each job when peers race
SLICED_PART = 4  # of the jobs when peers race with a slice of a processor each
GROWTH_NODES = 50
CONNECTIONS = 64


def measure_limit(size: Size, instances: int, max_per_node: int) -> float:
    """Placements per second of raw transactions: jobs as the scheduler lays them out."""
    with world() as alone:
        writer = alone.child("bench.scaling.limit", alone.endpoints)
        writer.ask("register", nodes=size.nodes)
        before = alone.etcd_cpu_seconds()
        found = writer.ask(
            "write",
            instances=instances,
            max_per_node=max_per_node,
            jobs=size.jobs,
            seconds=size.limit_seconds,
        )
        used = alone.etcd_cpu_seconds() - before
    rate = float(found["placements_per_second"])
    how = f"{found['transactions']} transactions, {found['depth']} under way, {used:.1f} s of etcd"
    inform(f"limit: {instances} on {found['pairs']:.1f} nodes each", rate, "placements/s", how)
    return rate


def inform(figure: str, value: float, unit: str, how: str) -> None:
    """A figure without a goal of its own."""
    report(figure, value, unit, 0.0, how, ok=True)


# Parts ------------------------------------------------------------------------------------------


def million(size: Size, shape: str, *, then: Callable[[Size, World], None] | None = None) -> None:
    """All jobs at once on all nodes, until the simulated nodes have reported every instance."""
    wanted = size.jobs * size.instances
    limit = measure_limit(size, size.instances, SHAPES[shape])
    with world(peers=1, nodes=size.nodes) as cluster:
        peer, nodes = cluster.peers[0], cluster.simulated
        if size.is_beside:
            nodes.ask("report")
        etcd = cluster.etcd_cpu_seconds()
        done = peer.ask(
            "submit",
            prefix=shape,
            first=0,
            jobs=size.jobs,
            instances=size.instances,
            max_per_node=SHAPES[shape],
        )
        etcd = cluster.etcd_cpu_seconds() - etcd
        placed, seconds = done["placed"], done["seconds"]
        name = f"{wanted} instances, {shape}"
        how = (
            f"{placed} placed on {done['pairs'] / size.jobs:.1f} nodes each in {seconds:.1f} s,"
            f" {done['transactions']} transactions, {done['conflicts']} conflicts,"
            f" refused: {done['refused']}"
        )
        rate = placed / seconds
        ratio = rate / limit
        inform(f"{name}: placements per second", rate, "placements/s", how)
        report(f"{name}: rate / limit", ratio, "", 0.5, f"of {limit:.0f}/s", ok=ratio >= 0.5)
        if shape == "ten":
            report(f"{name}: seconds", seconds, "s", 10.0, "decided and committed")
        ours, theirs = 1e6 * done["cpu_seconds"] / placed, 1e6 * etcd / placed
        how = f"{ours:.1f} against {theirs:.1f} µs per placement"
        report(f"{name}: CPU / etcd's", ours / max(theirs, 1e-9), "", 1.0, how)
        if not size.is_beside:
            nodes.ask("report")
        told = nodes.ask("until", healthy=wanted)
        how = f"{told['transactions']} transactions of statuses, {told['cpu_seconds']:.0f} s of CPU"
        told_seconds = seconds + told["seconds"]
        report(f"{name}: all reported running", told_seconds, "s", 300.0, how)
        count = peer.ask("count", revision=told["revision"])
        how = f"live {count['live']}, healthy {count['healthy']} by its mirror"
        is_whole = count["live"] == wanted
        peak = count["peak_bytes"] / GIGABYTE
        report(f"{name}: peak RSS", peak, "GB", 1.5, how, ok=is_whole and peak <= 1.5)
        if then is not None:
            then(size, cluster)


def loss(size: Size, cluster: World) -> None:
    """One node, then a tenth of all, in the cluster that `million` has filled."""
    names = [node_name(number) for number in range(1 + size.lost_nodes)]
    for lost, goal, unit in ((names[:1], 200.0, "ms"), (names[1:], 20.0, "s")):
        before = cluster.peers[0].ask("count")["live"]
        cluster.peers[0].tell("repair", nodes=lost)
        cluster.peers[0].answer()  # it watches
        cluster.simulated.ask("lose", nodes=lost)
        done = cluster.peers[0].answer()
        count = cluster.peers[0].ask("count")
        took = done["seconds"] * (1000 if unit == "ms" else 1)
        how = (
            f"from the first notice; {count['live']} of {before} live after,"
            f" {done['cpu_seconds']:.2f} s of CPU, {done['revisions']} revisions"
        )
        is_whole = bool(done["is_moved"]) and count["live"] == before
        name = f"{len(lost)} nodes lost of {size.nodes}"
        report(name, took, unit, goal, how, ok=is_whole and took <= goal)


def singles(size: Size) -> None:
    """Jobs of one instance, each a request of its own to one daemon."""
    with world(peers=1, nodes=size.nodes) as cluster:
        client = cluster.child("bench.scaling.client", str(cluster.ports[0]))
        half = size.singles // 2
        flood = client.ask("flood", first=0, jobs=half, connections=CONNECTIONS)
        rate = flood["jobs_per_second"]
        how = f"{half} by {CONNECTIONS} connections, answers {flood['statuses']}"
        is_whole = flood["statuses"] == {"201": half}
        report("jobs by HTTP", rate, "jobs/s", 1000.0, how, ok=is_whole and rate >= 1000)
        pace = client.ask(
            "pace",
            first=half,
            jobs=size.singles - half,
            connections=4 * CONNECTIONS,
            per_second=rate / 2,
        )
        how = f"at {rate / 2:.0f}/s: p50 {pace['p50_ms']:.0f} ms, answers {pace['statuses']}"
        report("jobs by HTTP at half that rate: p99", pace["p99_ms"], "ms", 250.0, how)


def peers(size: Size) -> None:
    """The same number of jobs by one daemon alone, then by several at once."""
    with world(peers=1, nodes=size.nodes) as cluster:
        alone = _race(cluster, "alone", size.peer_jobs)
        cluster.add_peers(size.peers - 1)
        together = _race(cluster, "together", size.peer_jobs)
    ratio = together.rate / alone.rate
    how = f"{together.rate:.0f} against {alone.rate:.0f} placements/s, jobs of {PEER_INSTANCES}"
    report(f"{size.peers} peers / one alone", ratio, "", 1.0, how, ok=ratio >= 1.0)
    how = f"of the transactions of {size.peers} peers; alone {100 * alone.lost:.1f} %"
    report("conflicts", 100 * together.lost, "%", 5.0, how)
    # Each follows what all of them write, and here they share the processors of one machine.
    how = f"{together.cpu_seconds:.2f} against {alone.cpu_seconds:.2f} s, etcd's not counted"
    inform("CPU of all peers / of one alone", together.cpu_seconds / alone.cpu_seconds, "", how)
    busiest = together.busiest_seconds
    how = f"{busiest:.2f} s: what bounds them on machines of their own, beside etcd"
    inform("CPU of the busiest peer / of one alone", busiest / alone.cpu_seconds, "", how)
    _peers_apart(size)


def _peers_apart(size: Size) -> None:
    """The same where each has its own, as on machines of their own: all of them, one processor."""
    jobs, share = max(size.peers, size.peer_jobs // SLICED_PART), 1 / size.peers
    figure = f"{size.peers} peers / one alone, each with {share:.3f} of a processor"
    try:
        alone, together = (_sliced_race(size, count, jobs, share) for count in (1, size.peers))
    except OSError as error:
        report(figure, 0.0, "", 1.0, f"not measured, it is for root to set: {error}", ok=False)
        return
    ratio = together.rate / alone.rate
    how = (
        f"{together.rate:.0f} against {alone.rate:.0f} placements/s, {jobs} jobs, CPU"
        f" {together.cpu_seconds:.2f} against {alone.cpu_seconds:.2f} s,"
        f" conflicts {100 * together.lost:.1f} %"
    )
    report(figure, ratio, "", 1.0, how, ok=ratio >= 1.0)


def _sliced_race(size: Size, peers: int, jobs: int, share: float) -> "Race":
    with slices(share) as given, world(peers=peers, nodes=size.nodes) as cluster:
        _race(cluster, "before", peers)  # each has come to know its nodes, which it does once
        for peer in cluster.peers:
            given.give(peer.pid)
        return _race(cluster, "sliced", jobs)


class Race(NamedTuple):
    rate: float  # placements per second
    lost: float  # share of the transactions
    cpu_seconds: float
    busiest_seconds: float  # of one peer


def _race(cluster: World, prefix: str, jobs: int) -> Race:
    each = jobs // len(cluster.peers)
    for number, peer in enumerate(cluster.peers):
        peer.tell(
            "submit",
            prefix=f"{prefix}{number}",
            first=0,
            jobs=each,
            instances=PEER_INSTANCES,
            max_per_node=0,
        )
    done = [peer.answer() for peer in cluster.peers]
    placed = sum(one["placed"] for one in done)
    assert placed == each * PEER_INSTANCES * len(cluster.peers), "all of it fits"
    won = sum(one["transactions"] for one in done)
    lost = sum(one["conflicts"] for one in done)
    used = [one["cpu_seconds"] for one in done]
    seconds = max(one["seconds"] for one in done)
    return Race(placed / seconds, lost / (won + lost), sum(used), max(used))


def growth(size: Size) -> None:
    """The same jobs on few nodes and on many: CPU per placement, of the second half of them.

    With the first half a daemon has come to know its nodes, which it does once.
    """
    found = []
    instances = 100 if size.instances >= 100 else size.instances
    jobs = min(GROWTH_NODES * PER_NODE * 2 // 3 // instances, 10 * size.jobs) // 2
    for nodes in (GROWTH_NODES, size.nodes):
        with world(peers=1, nodes=nodes) as cluster:
            for prefix in ("first", "then"):
                done = cluster.peers[0].ask(
                    "submit",
                    prefix=prefix,
                    first=0,
                    jobs=jobs,
                    instances=instances,
                    max_per_node=10,
                )
            found.append(1e6 * done["cpu_seconds"] / done["placed"])
    how = (
        f"{found[1]:.1f} against {found[0]:.1f} µs per placement, {jobs} jobs of {instances},"
        f" at {size.nodes} and {GROWTH_NODES} nodes"
    )
    report("CPU per placement, many nodes / few", found[1] / found[0], "", 2.0, how)


def followers(size: Size) -> None:
    """What one daemon commits beside idle ones that follow what is theirs, and without them."""
    rates: list[float] = []
    used: list[tuple[float, float]] = []  # CPU seconds of etcd, and of the idle daemons
    for idle in (0, size.followers):
        with world(peers=1, nodes=size.nodes) as cluster:
            child = cluster.child("bench.scaling.followers", cluster.endpoints)
            cluster.nodes += child.ask("join", first=cluster.nodes, nodes=idle)["nodes"]
            cluster.see_all()
            before = cluster.etcd_cpu_seconds(), child.ask("count")["cpu_seconds"]
            jobs = max(4, size.jobs // 5)
            done = cluster.peers[0].ask(
                "submit",
                prefix="write",
                first=0,
                jobs=jobs,
                instances=size.instances,
                max_per_node=10,
            )
            rates.append(done["placed"] / done["seconds"])
            after = cluster.etcd_cpu_seconds(), child.ask("count")["cpu_seconds"]
            used.append((after[0] - before[0], after[1] - before[1]))
    ratio = rates[1] / rates[0]
    how = (
        f"{rates[1]:.0f} against {rates[0]:.0f} placements/s, {size.followers} idle daemons;"
        f" CPU of etcd {used[1][0]:.1f} against {used[0][0]:.1f} s, their own {used[1][1]:.1f} s"
    )
    report("rate beside idle daemons / alone", ratio, "", 0.5, how, ok=ratio >= 0.5)


# The command line -------------------------------------------------------------------------------

SIZES = [field for field in fields(Size) if field.type is not bool]
PARTS = ("million", "loss", "singles", "peers", "growth", "followers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factor", type=float, default=1.0, help="of all sizes, e.g. 0.1")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES))
    for field in SIZES:
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float, default=None)
    parser.add_argument(
        "--beside", action="store_true", help="nodes report while jobs are still being placed"
    )
    given = parser.parse_args()
    size = replace(Size.scaled(given.factor), is_beside=given.beside)
    for field in SIZES:
        value = getattr(given, field.name)
        if value is not None:
            value = value if field.type is float else int(value)
            size = replace(size, **{field.name: value})
    if not size.holds():
        parser.error(f"{size} does not fit: a node takes {PER_NODE} instances")
    # Told to end, it takes its processes and their data with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run(size, given.only, given.shapes)


def run(size: Size, only: tuple[str, ...], shapes: tuple[str, ...]) -> None:
    for shape in shapes if "million" in only else ("ten",) if "loss" in only else ():
        million(size, shape, then=loss if "loss" in only and shape == "ten" else None)
    for name, part in (
        ("singles", singles),
        ("peers", peers),
        ("growth", growth),
        ("followers", followers),
    ):
        if name in only:
            part(size)


if __name__ == "__main__":
    main()
