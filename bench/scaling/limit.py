"""The limit: what etcd takes from this client when nothing is decided.

Transactions of the same layout as a schedule's, as full as etcd lets them be: for every job its
head and version, for every node of it the ledger and the assignment; the fence, the absence of the
job and its version, every ledger's revision and every node's presence are compared. Which instances
of a job share a node, and how many jobs share a node within a transaction, is as the scheduler has
it: it decides some jobs before the clock starts (`bench/scaling/layout.py`), and all values are
encoded by then. So what is measured is the client's call and etcd, filled as the run will fill it;
with one or two transactions under way, whichever is quicker.

    python -m bench.scaling.limit ENDPOINTS
"""

import asyncio
import itertools
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import uvloop

from bench.scaling.children import Answer, Used, serve
from bench.scaling.layout import Layout, decided
from bench.scaling.shapes import CAPACITY, INSTANCE_BYTES, job_of, node_name
from ozymandias.model.instance import Group, Slots, SlotState
from ozymandias.model.job import Job, JobHead, JobVersion
from ozymandias.model.node import Demand, Ledger, NodeName, Presence, Resources, Totals
from ozymandias.ports import Compare, Put
from ozymandias.store import codec, keys
from ozymandias.store.etcd import EtcdStore, Timeouts

PATIENT = Timeouts(attempt=30.0, call=60.0)  # of a machine that others keep busy
BYTES_MAX = 1_300_000  # of the 1.5 MiB that etcd takes in one request
COMPARES_MAX = 8000  # of the 8192 that our etcds are started with
TRIAL = 20  # transactions, to learn how many are best under way
READY_MAX = 100  # that are made before they are sent, off the clock
FENCE_TTL_SECONDS = 600
UID = "0123456789abcdef"
COMMIT = "fedcba9876543210"


@dataclass(slots=True)
class Raw:
    """One transaction: which nodes it touches, and its puts, ready."""

    nodes: tuple[int, ...]
    jobs: tuple[int, ...]
    puts: list[Put]
    placed: int


class Writer:
    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self._revisions: dict[int, int] = {}  # of ledgers
        self._presences: dict[int, int] = {}  # when they were created
        self._fence: tuple[Compare, ...] = ()
        self._jobs = itertools.count()
        self._start = 0

    async def do_register(self, nodes: int) -> Answer:
        """Ledgers and presences as they are, in few transactions; our own one under a lease."""
        lease = await self._store.grant(FENCE_TTL_SECONDS)
        own = keys.node(NodeName("writer"))
        result = await self._store.txn((), [Put(own, codec.encode(_presence()), lease.id)])
        self._fence = (
            Compare(own, "create", "=", result.revision),
            Compare(own, "lease", "=", lease.id),
        )
        puts = []
        for number in range(nodes):
            puts.append(Put(keys.ledger(node_name(number)), codec.encode(_ledger(0))))
            puts.append(Put(keys.node(node_name(number)), codec.encode(_presence())))
        for first in range(0, len(puts), 2000):
            result = await self._store.txn((), puts[first : first + 2000])
            numbers = range(first // 2, min(first // 2 + 1000, nodes))
            self._revisions |= dict.fromkeys(numbers, result.revision)
        self._presences = dict(self._revisions)
        return {"nodes": nodes}

    async def do_write(
        self, instances: int, max_per_node: int, jobs: int, seconds: float
    ) -> Answer:
        """So many jobs or more, for so long or longer: etcd is the slower the more it holds."""
        layouts = decided(len(self._revisions), instances, max_per_node)
        making = self._transactions(instances, itertools.cycle(layouts))
        trials = [await self._run(list(itertools.islice(making, TRIAL)), n) for n in (1, 2)]
        depth = max(trials, key=_rate)["depth"]
        sums: Counter[str] = Counter()
        while sums["placed"] < jobs * instances or sums["seconds"] < seconds:
            part = await self._run(list(itertools.islice(making, READY_MAX)), depth)
            sums.update({name: part[name] for name in ("placed", "seconds", "transactions")})
        pairs = sum(map(len, layouts)) / len(layouts)
        return {**sums, "placements_per_second": _rate(sums), "depth": depth, "pairs": pairs}

    async def _run(self, ready: list[Raw], depth: int) -> Answer:
        """So many under way, none of them beside one that rewrites the same ledger."""
        used = Used()
        under_way: deque[tuple[Raw, asyncio.Task[None]]] = deque()
        async with asyncio.TaskGroup() as group:
            for raw in ready:
                nodes = set(raw.nodes)
                while under_way and (
                    len(under_way) == depth
                    or any(not nodes.isdisjoint(other.nodes) for other, _ in under_way)
                ):
                    await under_way.popleft()[1]
                under_way.append((raw, group.create_task(self._send(raw))))
        answer = used.answer()
        placed = sum(raw.placed for raw in ready)
        return {**answer, "placed": placed, "transactions": len(ready), "depth": depth}

    async def _send(self, raw: Raw) -> None:
        compare = [*self._fence]
        for number in raw.nodes:
            name = node_name(number)
            compare.append(Compare(keys.ledger(name), "mod", "=", self._revisions[number]))
            compare.append(Compare(keys.node(name), "create", "=", self._presences[number]))
        for number in raw.jobs:
            key = _job(number, 1).key
            compare.append(Compare(keys.job(key), "mod", "=", 0))
            compare.append(Compare(keys.version(key, 1), "version", "=", 0))
        result = await self._store.txn(compare, raw.puts)
        assert result.succeeded, "nobody else writes here"
        self._revisions |= dict.fromkeys(raw.nodes, result.revision)

    def _transactions(self, instances: int, layouts: Iterable[Layout]) -> Iterator[Raw]:
        """As full as they may be, for ever; two in a row touch the same node only if they must.

        Which nodes they are is nothing to etcd: every transaction takes the next ones, as many as
        the scheduler would, so that two of them can be under way.
        """
        nodes, waiting = len(self._revisions), iter(layouts)
        layout = next(waiting)
        while True:
            raw, size = Raw((), (), [], 0), 0
            numbers: dict[str, int] = {}  # of the layout's nodes, in this transaction
            while True:
                fresh = [name for name, _ in layout if name not in numbers]
                touched = len(numbers) + len(fresh)
                # Its puts are made before it is known whether they go into this one.
                chosen = numbers | {
                    name: (self._start + index) % nodes for index, name in enumerate(fresh)
                }
                job = next(self._jobs)
                puts = _job_puts(job, instances, [(chosen[name], slots) for name, slots in layout])
                more = sum(len(put.key) + len(put.value) + 80 for put in puts) + 600 * len(fresh)
                compares = 2 * (touched + len(raw.jobs) + 1)
                is_full = size + more > BYTES_MAX or compares > COMPARES_MAX
                if raw.jobs and (is_full or touched > nodes // 2):
                    break
                self._start = (self._start + len(fresh)) % nodes
                numbers = chosen
                raw.jobs += (job,)
                raw.puts += puts
                raw.placed += instances
                size += more
                layout = next(waiting)
            raw.nodes = tuple(numbers.values())
            raw.puts += [
                Put(keys.ledger(node_name(number)), codec.encode(_ledger(job)))
                for number in raw.nodes
            ]
            yield raw


def _job(number: int, instances: int) -> Job:
    return job_of(f"raw-{number:07d}", instances, 0)


def _job_puts(number: int, instances: int, chosen: list[tuple[int, Slots]]) -> list[Put]:
    job = _job(number, instances)
    head = JobHead(uid=UID, version=1, wanted=instances, commit=COMMIT)
    version = JobVersion(uid=UID, version=1, job=job)
    puts = [
        Put(keys.job(job.key), codec.encode(head)),
        Put(keys.version(job.key, 1), codec.encode(version)),
    ]
    for node, slots in chosen:
        group = Group(
            uid=UID, version=1, state=SlotState.RUNNING, slots=slots, demand=Demand.of(job)
        )
        puts.append(Put(keys.assignment(node_name(node), job.key), codec.encode((group,))))
    return puts


def _rate(answer: Mapping[str, float]) -> float:
    return answer["placed"] / answer["seconds"]


def _ledger(number: int) -> Ledger:
    memory = Resources(memory_bytes=(number % 200) * INSTANCE_BYTES)
    totals = Totals(resources=memory)
    return Ledger(capacity=CAPACITY, held=totals, promised=totals, commit=COMMIT, machine=UID)


def _presence() -> Presence:
    return Presence(address="10.0.0.1", machine_id=UID, session=UID, daemon_version="0", api="")


async def main() -> None:
    store = EtcdStore.connect(sys.argv[1].split(","), timeouts=PATIENT)
    try:
        await serve(Writer(store))
    finally:
        await store.aclose()


if __name__ == "__main__":
    uvloop.run(main())
