"""Answers per CPU-second: the built-in responder against CoreDNS with its etcd plugin and cache.

Both serve the same records of one etcd, pinned to the same core in turns; dnsperf asks from the
other. CPU is the scheduler's count for the whole process, so that a busy machine matters little.
Three figures: records as nodes write them; records without leases, which cost CoreDNS less; and
every question in a spelling of its own.
"""

import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figure import report
from bench.local_cluster import cpu_seconds
from ozymandias.model.routing import DnsRecord
from ozymandias.store.etcd import EtcdStore
from ozymandias.store.names import put_records
from tests.coredns_server import HERE, CoreDns, free_port, wait_answering
from tests.etcd_server import EtcdCluster

JOBS = 200
INSTANCES = 3
SPELLINGS = 30000
TURNS = 3
TURN_SECONDS = 3
LEASE_SECONDS = 300
GOAL = 1.0


def names() -> list[tuple[str, int]]:
    found = []
    for job in range(JOBS):
        for slot in range(INSTANCES):
            base = f"{slot}.job{job}.default.ozy.internal"
            found.append((base, 0))
            found.append((base.replace(".job", "._80._tcp.job"), 80))
    return found


async def write(etcd: EtcdCluster, ttl: int, *, is_leased: bool) -> None:
    records = [
        DnsRecord(name=name, address=f"10.1.{n >> 8}.{n & 255}", port=port, ttl_seconds=ttl)
        for n, (name, port) in enumerate(names())
    ]
    store = EtcdStore.connect(etcd.endpoints)
    try:
        lease = (await store.grant(LEASE_SECONDS)).id if is_leased else 0
        operations = list(put_records(records, lease))
        for start in range(0, len(operations), 100):
            await store.txn((), operations[start : start + 100])
    finally:
        await store.aclose()


def questions() -> list[str]:
    """Jobs mostly, some single instances and services, a few names that are not there."""
    lines = []
    for job in range(JOBS):
        base = f"job{job}.default.ozy.internal"
        lines += [f"{base} A", f"{base} A", f"1.{base} A", f"_80._tcp.{base} SRV"]
        if job % 10 == 0:
            lines += [f"{base} AAAA", f"nope{job}.default.ozy.internal A"]
    return lines


def spelled(lines: list[str]) -> list[str]:
    """As resolvers do against forgery (0x20): upper and lower case by dice."""
    dice = random.Random(20)
    return [
        "".join(dice.choice((c, c.upper())) for c in name) + " " + kind
        for name, _, kind in (dice.choice(lines).partition(" ") for _ in range(SPELLINGS))
    ]


@contextmanager
def responder(etcd: EtcdCluster, directory: Path, prefix: list[str]) -> Iterator[tuple[int, int]]:
    """(port, process id) of `ozymandias-dns`."""
    port = free_port()
    file, log = directory / "ozymandias.toml", directory / "log"
    file.write_text(
        f'[etcd]\nendpoints = ["{etcd.endpoints[0]}"]\n[dns]\nlisten = "{HERE}:{port}"\n'
    )
    command = [*prefix, sys.executable, "-m", "ozymandias.daemon.dns", "--config", str(file)]
    with log.open("wb") as out:
        running = subprocess.Popen(command, stderr=out)
    try:
        wait_answering(port, running, log)
        yield port, running.pid
    finally:
        running.terminate()
        running.wait()


def answers_per_cpu_second(port: int, pid: int, file: Path, prefix: list[str]) -> float:
    command = [*prefix, "dnsperf", "-s", HERE, "-p", str(port), "-d", str(file), "-c", "8"]
    command += ["-l", str(TURN_SECONDS), "-q", "100", "-e"]
    before = cpu_seconds(pid)
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = cpu_seconds(pid) - before
    completed = re.search(r"Queries completed:\s+(\d+)", text)
    lost = re.search(r"Queries lost:\s+(\d+)", text)
    assert completed and lost and int(lost[1]) * 100 <= int(completed[1]), text
    return int(completed[1]) / used


def measure(etcd: EtcdCluster, directory: Path, figure: str, lines: list[str], what: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    on_server, on_client = (["taskset", "-c", str(core)] for core in (cores[0], cores[-1]))
    file = directory / "questions"
    file.write_text("\n".join(lines) + "\n")
    found = []
    with (
        responder(etcd, directory, on_server) as ours,
        CoreDns.start(etcd.endpoints, prefix=on_server) as theirs,
    ):
        for _ in range(TURNS + 1):
            mine = answers_per_cpu_second(*ours, file, on_client)
            other = answers_per_cpu_second(theirs.port, theirs.pid, file, on_client)
            found.append((mine, other))
    found = found[1:]  # caches were cold in the first
    ratio = statistics.median(mine / other for mine, other in found)
    mine, other = (statistics.median(pair[i] for pair in found) for i in (0, 1))
    how = (
        f"{mine:,.0f} against {other:,.0f} answers per CPU-second: dnsperf over UDP, A and SRV of"
        f" {JOBS} jobs of {INSTANCES} instances, {what}; median of {TURNS} turns on one core"
    )
    report(figure, ratio, "ratio", GOAL, how, ok=ratio >= GOAL)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ozy-bench-") as name,
        EtcdCluster.start(1) as etcd,
    ):
        directory = Path(name)
        figure = "DNS responder / CoreDNS"
        asyncio.run(write(etcd, 5, is_leased=True))
        measure(etcd, directory, figure, questions(), "records leased and of 5 s")
        asyncio.run(write(etcd, 3600, is_leased=False))
        measure(etcd, directory, figure + ", unleased", questions(), "no leases to look up")
        what = "each question in a spelling of its own"
        measure(etcd, directory, figure + ", spelled", spelled(questions()), what)


if __name__ == "__main__":
    main()
