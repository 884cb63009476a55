"""Twenty daemons race for the work of one that died: one plan wins, hardly anybody tries in vain.

Daemons, etcd and time are real; pods are simulated, since they are not what is tried here.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from ozymandias.core.routes import Names
from ozymandias.daemon import scheduling
from ozymandias.daemon.daemon import Daemon, Ports
from ozymandias.daemon.membership import Identity
from ozymandias.model.node import NodeName, Resources
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Compare, Delete, Op, Put, TxnResult
from ozymandias.runtime.host import SystemClock
from ozymandias.sim.host import Faults, SimHost
from ozymandias.sim.runtime import SimRuntime
from ozymandias.sim.world import NoPeers
from ozymandias.store import keys
from ozymandias.store.etcd import EtcdStore
from tests.cluster.kit import shell
from tests.etcd_server import EtcdCluster

PEERS = 20
JOBS = 4
INSTANCES = 50  # of each job
TTL_SECONDS = 6
FAILED_MAX = 2  # transactions of one peer
WAIT_SECONDS_MAX = 60.0
VICTIM = NodeName("victim")
pytestmark = pytest.mark.timeout(180)


class CountingStore(EtcdStore):
    """etcd, with an account of what was asked of it."""

    moved: int = 0  # transactions that took something away from the victim
    failed: int = 0

    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        result = await super().txn(compare, then, otherwise)
        there = keys.assignments(VICTIM)
        takes = any(isinstance(op, Delete | Put) and op.key.startswith(there) for op in then)
        self.moved += result.succeeded and takes
        self.failed += not result.succeeded
        return result


@dataclass(kw_only=True)
class Peer:
    name: NodeName
    store: CountingStore
    daemon: Daemon
    task: asyncio.Task[None] | None = None


@dataclass(kw_only=True)
class Peers:
    endpoints: Sequence[str]
    group: asyncio.TaskGroup
    all: dict[NodeName, Peer] = field(default_factory=dict)

    def start(self, name: NodeName, number: int) -> Peer:
        store = CountingStore.connect(self.endpoints)
        assert isinstance(store, CountingStore)
        host = SimHost(seed=number, subnet=f"10.200.{number}", wall=time.time)
        host.faults = Faults(latency_seconds=(0.0, 0.01))
        daemon = Daemon(
            Identity(
                name=name,
                machine_id=f"machine-{name}",
                address=f"10.200.{number}.1",
                api=f"http://{name}",
                daemon_version="0",
                capacity=Resources(memory_bytes=8 * 2**30, disk_bytes=2**30),
                lease_ttl_seconds=TTL_SECONDS,
            ),
            Names(),
            Ports(store=store, runtime=SimRuntime(host), clock=SystemClock(), peers=NoPeers()),
        )
        peer = self.all[name] = Peer(name=name, store=store, daemon=daemon)
        peer.task = self.group.create_task(daemon.run(), name=f"daemon {name}")
        return peer

    async def kill(self, name: NodeName) -> None:
        """The process is gone and tells nobody; its lease runs out."""
        peer = self.all.pop(name)
        assert peer.task is not None
        peer.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await peer.task
        await peer.store.aclose()

    def snapshot(self) -> Snapshot:
        """As one of them sees it."""
        return next(iter(self.all.values())).daemon.mirror.snapshot()


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(3, options=("--max-txn-ops", "8192")) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def running(etcd: EtcdCluster) -> AsyncIterator[Peers]:
    """Twenty peers and the victim, ended whatever happens."""
    async with asyncio.TaskGroup() as group:
        peers = Peers(endpoints=etcd.endpoints, group=group)
        try:
            peers.start(VICTIM, 100)
            for number in range(1, PEERS + 1):
                peers.start(NodeName(f"p{number}"), number)
            yield peers
        finally:
            for name in tuple(peers.all):
                await peers.kill(name)


async def until(condition: Callable[[], object], what: str) -> float:
    """Wait until it is true; how long that took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < WAIT_SECONDS_MAX, f"never: {what}"
        await asyncio.sleep(0.02)
    return time.monotonic() - started


def healthy(snapshot: Snapshot) -> Counter[NodeName]:
    """How many instances of all jobs are healthy, by node."""
    return Counter(
        node
        for (node, _), status in snapshot.statuses.items()
        for told in status.instances.values()
        if told.healthy
    )


def placed(snapshot: Snapshot) -> Counter[NodeName]:
    found = (a for record in snapshot.assignments.values() for a in record.instances)
    return Counter(a.node for a in found)


async def fill_victim(peers: Peers) -> None:
    """All instances are on the victim: nobody else took work when they were placed."""
    names = [name for name in peers.all if name != VICTIM]
    await until(
        lambda: sum(node.is_alive for node in peers.snapshot().nodes.values()) == PEERS + 1,
        "all are members",
    )
    operations = peers.all[VICTIM].daemon.operations
    for name in names:
        await operations.upkeep.cordon(name)
    for number in range(JOBS):
        job = shell(f"job{number}", "sleep 1000", numInstances=INSTANCES)
        await operations.submit(json.dumps(job).encode())
    await until(lambda: placed(peers.snapshot())[VICTIM] == JOBS * INSTANCES, "all are placed")
    await until(lambda: healthy(peers.snapshot())[VICTIM] == JOBS * INSTANCES, "all are healthy")
    for name in names:
        await operations.upkeep.uncordon(name)


@pytest.mark.parametrize(
    "turns",
    [pytest.param(True, id="in turn", marks=pytest.mark.long), pytest.param(False, id="at once")],
)
async def test_twenty_peers_race(
    etcd: EtcdCluster, turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction moves everything, whether peers let each other go first or not."""
    if not turns:
        monkeypatch.setattr(scheduling, "RANK_SECONDS", 0.0)
    async with running(etcd) as peers:
        await fill_victim(peers)
        for peer in peers.all.values():
            peer.store.failed = peer.store.moved = 0
        await peers.kill(VICTIM)
        total = JOBS * INSTANCES
        gone = await until(lambda: not peers.snapshot().nodes[VICTIM].is_alive, "the lease is gone")
        planned = await until(lambda: not placed(peers.snapshot())[VICTIM], "moved")
        back = await until(lambda: healthy(peers.snapshot()).total() == total, "healthy elsewhere")
        spread = placed(peers.snapshot())
        failed = {name: peer.store.failed for name, peer in peers.all.items()}
        moved = {name: peer.store.moved for name, peer in peers.all.items() if peer.store.moved}
    print(f"\n  lease gone {gone:.1f} s after the end, {total} instances planned {planned:.2f} s")
    print(f"  later, healthy {back:.1f} s after that; failed transactions by peer: {failed}")
    assert list(moved.values()) == [1], f"more than one plan: {moved}"
    assert max(failed.values()) <= FAILED_MAX, failed
    assert spread.total() == total and spread.keys() == failed.keys()  # all have a share
