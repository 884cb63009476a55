"""Simulated nodes, thousands in one process: registered by lease, reporting what they are given.

Each joins by the production's own registration, with a presence under its lease and statuses under
its longer one. What a node is given it reports as the daemons do: `starting`, then `healthy` once
its containers would run, with the names of its healthy instances in the same transaction; fenced by
its own presence, comparing the revision of what it wrote last; several jobs at once when they wait;
and no key more often than the daemons write one. None of them schedules. There are no containers,
no log of events, and one watch for all of them: five thousand watches in one process would measure
that process.

    python -m bench.scaling.nodes ENDPOINTS
"""

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import uvloop

from bench.scaling.children import Answer, Used, serve
from bench.scaling.shapes import CAPACITY, job_of, node_name
from ozymandias.core.routes import Names, dns_records
from ozymandias.daemon.statuses import JOBS_MAX, WRITES_MAX, WRITES_WINDOW_SECONDS
from ozymandias.model.instance import ContainerStatus, InstanceState, InstanceStatus, SlotState
from ozymandias.model.job import Job, JobKey
from ozymandias.model.node import NodeName, Presence, Resources
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import KV, Compare, Lease, Listing, Op, Put
from ozymandias.store import codec, keys
from ozymandias.store.etcd import EtcdStore, Timeouts
from ozymandias.store.names import put_records
from ozymandias.store.registration import Offer, prepare_registration
from ozymandias.store.sending import Lost, send

PATIENT = Timeouts(attempt=30.0, call=60.0)  # of a machine that others keep busy
TTL_SECONDS = 3600  # longer than any part takes: ten thousand keep-alives are not what is measured
JOINING_MAX = 32
WRITING_MAX = 32  # transactions of statuses under way
START_SECONDS = 0.5  # of a container
LOOK_SECONDS = WRITES_WINDOW_SECONDS / WRITES_MAX
NAMES = Names()
APP = (ContainerStatus(name="app", state="running", healthy=True),)


@dataclass(slots=True)
class Reported:
    """What a node was given of one job, and what it has said of it."""

    groups: tuple[tuple[str, int, tuple[int, ...]], ...]  # uid, version, slots
    since: float  # when it was given
    said: InstanceState | None = None
    revision: int = 0  # of the status key


@dataclass(slots=True)
class SimNode:
    name: NodeName
    number: int
    lease: Lease
    fence: tuple[Compare, ...]
    long_lease: int
    jobs: dict[JobKey, Reported] = field(default_factory=dict)
    open: set[JobKey] = field(default_factory=set)  # not all said of these
    is_due: bool = False  # somebody will see to it


class Nodes:
    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self._nodes: dict[str, SimNode] = {}
        self._due: asyncio.Queue[SimNode] = asyncio.Queue()
        self._healthy = 0  # instances, as the store says
        self._transactions = 0
        self._revision = 0  # of the last of them
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # Joining ------------------------------------------------------------------------------------

    async def do_register(self, first: int, nodes: int, has_room: bool = True) -> Answer:
        turns = asyncio.Semaphore(JOINING_MAX)

        async def join(number: int) -> None:
            async with turns:
                await self._join(number, has_room)

        async with asyncio.TaskGroup() as group:
            for number in range(first, first + nodes):
                group.create_task(join(number))
        return {"nodes": len(self._nodes)}

    async def _join(self, number: int, has_room: bool) -> None:
        name = node_name(number)
        lease = await self._store.grant(TTL_SECONDS)
        long_lease = await self._store.grant(TTL_SECONDS)
        presence = Presence(
            address=f"10.{number >> 8}.{number & 255}.1",
            machine_id=f"machine-{name}",
            session=f"{number:016x}",
            daemon_version="0",
            api=f"http://10.{number >> 8}.{number & 255}.1:7700",
            long_lease=long_lease.id,
            schedules=False,
        )
        offer = Offer(
            node=name,
            presence=presence,
            capacity=CAPACITY if has_room else Resources(),
            reserve=Resources(),
            labels={"zone": f"z{number % 3}"},
            found=(),
        )
        transaction, _ = prepare_registration(Snapshot(), offer, {}, lease.id, f"{number:016x}")
        revision = await send(self._store, transaction, f"{number:016x}")
        assert not isinstance(revision, Lost), "nobody else has these names"
        key = keys.node(name)
        fence = (
            Compare(key, "create", "=", revision),
            Compare(key, "lease", "=", lease.id),
        )
        self._nodes[name] = SimNode(name, number, lease, fence, long_lease.id)

    async def do_lose(self, nodes: list[str]) -> Answer:
        """Their leases end, as when their machines have lost their power."""
        lost = [self._nodes.pop(name) for name in nodes]
        self._healthy -= sum(_healthy(r) for node in lost for r in node.jobs.values())
        used = Used()
        for some in _batches(lost, JOINING_MAX):
            await asyncio.gather(*(self._store.revoke(node.lease) for node in some))
        return used.answer()

    # Reporting ----------------------------------------------------------------------------------

    async def do_report(self) -> Answer:
        """Begin to follow what the nodes are given, and to say what becomes of it."""
        is_ready = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._follow(is_ready)))
        self._tasks += [asyncio.create_task(self._write()) for _ in range(WRITING_MAX)]
        await is_ready.wait()
        return {}

    async def do_until(self, healthy: int) -> Answer:
        """Wait until so many instances are reported as healthy."""
        used = Used()
        while self._healthy < healthy:
            self._changed.clear()
            await self._changed.wait()
            for task in self._tasks:
                if task.done():
                    task.result()
        return {
            **used.answer(),
            "transactions": self._transactions,
            "revision": self._revision,
        }

    async def _follow(self, is_ready: asyncio.Event) -> None:
        async for item in self._store.mirror(keys.ASSIGNMENTS):
            if isinstance(item, Listing):
                self._take((kv, False) for kv in item.kvs)
                is_ready.set()
            else:
                self._take((event.kv, event.deleted) for event in item)

    def _take(self, changes: Iterable[tuple[KV, bool]]) -> None:
        now = time.monotonic()
        for kv, is_deleted in changes:
            name, namespace, job_name = keys.parts(kv.key, keys.ASSIGNMENTS)
            node = self._nodes.get(name)
            if node is None:
                continue
            job = keys.job_key(namespace, job_name)
            before = node.jobs.get(job)
            self._healthy -= _healthy(before) if before else 0
            if is_deleted:
                node.jobs.pop(job, None)
                continue
            groups = tuple(
                (group.uid, group.version, tuple(group.slots))
                for group in codec.decode_groups(kv.value)
                if group.state is SlotState.RUNNING
            )
            node.jobs[job] = Reported(groups, now, revision=before.revision if before else 0)
            node.open.add(job)
            self._call(node, 0.0)

    def _call(self, node: SimNode, seconds: float) -> None:
        if not node.is_due:
            node.is_due = True
            loop = asyncio.get_running_loop()
            loop.call_later(seconds, self._due.put_nowait, node)

    async def _write(self) -> None:
        while True:
            node = await self._due.get()
            wait = None
            if node.name in self._nodes:
                wait = await self._report(node)
            node.is_due = False
            if wait is not None or node.open:
                self._call(node, max(wait or 0.0, LOOK_SECONDS))

    async def _report(self, node: SimNode) -> float | None:
        """Say what is to be said; when to come back if something is left."""
        now = time.monotonic()
        saying: dict[JobKey, InstanceState] = {}
        later = [LOOK_SECONDS]
        for job in list(node.open):
            reported = node.jobs.get(job)
            if reported is None:
                node.open.discard(job)
                continue
            age = now - reported.since
            state = InstanceState.HEALTHY if age >= START_SECONDS else InstanceState.STARTING
            if state is reported.said:
                later.append(START_SECONDS - age)
                continue
            saying[job] = state
            if len(saying) == JOBS_MAX:
                break
        if saying:
            await self._say(node, saying)
        return min(later) if node.open else None

    async def _say(self, node: SimNode, saying: dict[JobKey, InstanceState]) -> None:
        compare = [*node.fence]
        then: list[Op] = []
        about = {job: node.jobs[job] for job in saying}
        for job, state in saying.items():
            key = keys.status(node.name, job)
            compare.append(Compare(key, "mod", "=", about[job].revision))
            then += _puts(node, job, about[job], state, key)
        result = await self._store.txn(compare, then)
        if not result.succeeded:
            return  # it is lost, or about to be
        self._transactions += 1
        self._revision = max(self._revision, result.revision)
        for job, state in saying.items():
            reported = about[job]
            reported.said, reported.revision = state, result.revision
            if node.jobs.get(job) is not reported:
                if job in node.jobs:  # it was given more meanwhile
                    node.jobs[job].revision = result.revision
            elif state is InstanceState.HEALTHY:
                node.open.discard(job)
                self._healthy += _healthy(reported)
        self._changed.set()


def _puts(
    node: SimNode, job: JobKey, reported: Reported, state: InstanceState, key: bytes
) -> Sequence[Op]:
    """The status of one job's instances on one node, and their names once they are healthy."""
    is_healthy = state is InstanceState.HEALTHY
    told: dict[int, InstanceStatus] = {}
    names: list[Op] = []
    spec = _spec(job)
    for uid, version, slots in reported.groups:
        for slot in slots:
            address = f"10.{node.number >> 8}.{node.number & 255}.{2 + slot % 250}"
            told[slot] = InstanceStatus(
                slot=slot,
                uid=uid,
                version=version,
                state=state,
                healthy=is_healthy,
                address=address if is_healthy else "",
                since=1.7e9,
                containers=APP if is_healthy else (),
            )
            if is_healthy:
                names += put_records(dns_records(spec, slot, address, NAMES), node.long_lease)
    return [Put(key, codec.encode(told), node.long_lease), *names]


def _spec(job: JobKey) -> Job:
    return job_of(job.name, 1, 0)


def _healthy(reported: Reported) -> int:
    if reported.said is not InstanceState.HEALTHY:
        return 0
    return sum(len(slots) for _, _, slots in reported.groups)


def _batches(items: list[SimNode], size: int) -> Iterable[list[SimNode]]:
    return (items[start : start + size] for start in range(0, len(items), size))


async def main() -> None:
    store = EtcdStore.connect(sys.argv[1].split(","), timeouts=PATIENT)
    try:
        await serve(Nodes(store))
    finally:
        await store.aclose()


if __name__ == "__main__":
    uvloop.run(main())
