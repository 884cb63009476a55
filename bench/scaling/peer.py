"""One production daemon, with its API, that the bench tells what to submit.

Everything in it is as in production (mirror, membership, committer, scheduling loop, executor, API)
but for the containers, of which it gets none: it offers no memory. The bench's submits enter where
the API's do, at `Committer.commit(plan_submit)`.

    python -m bench.scaling.peer NAME PORT ENDPOINTS
"""

import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import uvloop

from bench.scaling.children import Answer, Used, serve
from bench.scaling.shapes import job_of
from ozymandias import telemetry
from ozymandias.api.app import serving
from ozymandias.api.callers import Tokens
from ozymandias.api.limits import Limits, Rate
from ozymandias.api.peers import HttpPeers
from ozymandias.core.buckets import census
from ozymandias.core.routes import Names
from ozymandias.core.schedule import plan_submit
from ozymandias.daemon.daemon import Daemon, Ports
from ozymandias.daemon.main import settle_memory
from ozymandias.daemon.membership import Identity
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Job
from ozymandias.model.node import NodeName, Resources
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import StoreError
from ozymandias.problems import Problem
from ozymandias.runtime.host import SystemClock
from ozymandias.sim.host import Faults, SimHost
from ozymandias.sim.runtime import SimRuntime
from ozymandias.store.commit import Committed, Decide
from ozymandias.store.etcd import Credentials, EtcdStore
from ozymandias.store.tokens import hashed

TOKEN = "bench"
NAMES = Names()
WAIT_SECONDS_MAX = 600.0
ATTEMPTS_MAX = 5  # of one submit
REASON_MAX = 40  # letters of an error: alike ones are counted together
NO_LIMIT = Limits(caller=Rate(per_second=0.0, burst=0.0))


@dataclass(slots=True)
class Tally:
    """What came of the submits; as in the API, the plans themselves are not kept."""

    revisions: set[int] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Committed | Problem) -> None:
        if isinstance(outcome, Problem):
            self.refused[outcome.kind.slug] += 1
            return
        self.revisions.add(outcome.revision)


class Peer:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._mirror = daemon.mirror

    async def do_join(self) -> Answer:
        session = await self._daemon.membership.wait_session()
        return {"revision": session.revision}

    async def do_see(self, alive: int) -> Answer:
        """Wait until so many nodes are there, itself included."""

        def are_there() -> bool:
            return sum(n.is_alive for n in self._mirror.snapshot().nodes.values()) >= alive

        await self._until(are_there)
        return {}

    async def do_submit(
        self, prefix: str, first: int, jobs: int, instances: int, max_per_node: int
    ) -> Answer:
        """All at once, as if so many requests were waiting; until the last is committed."""
        before = _outcomes()
        # Job files are read before: this is about deciding and committing.
        decides = [
            partial(self._submit, job_of(f"{prefix}-{number:06d}", instances, max_per_node))
            for number in range(first, first + jobs)
        ]
        gc.collect()
        used = Used()
        tally = Tally()

        async def submit(decide: Decide) -> None:
            for _ in range(ATTEMPTS_MAX):
                try:
                    tally.add(await self._daemon.committer.commit(decide))
                    return
                except StoreError as error:  # as a caller does who was told to try again
                    tally.refused[f"{type(error).__name__}: {error}"[:REASON_MAX]] += 1
                    await asyncio.sleep(1.0)

        await asyncio.gather(*map(submit, decides))
        return {
            **used.answer(),
            **_placed(self._mirror.snapshot(), prefix),
            "refused": dict(tally.refused),
            "transactions": len(tally.revisions),
            "conflicts": _outcomes()["conflict"] - before["conflict"],
        }

    async def do_repair(self, nodes: list[str]) -> Answer:
        """From the first notice that one of these nodes is gone until none of them has anything."""
        names = [NodeName(name) for name in nodes]
        held = {name: _promised(self._mirror.snapshot(), name) for name in names}
        print_ready()
        await self._until(lambda: any(self._is_gone(name) for name in names))
        used, noticed = Used(), self._mirror.revision
        waiting = [*names]

        def are_empty() -> bool:
            """From the last one back: what is empty is not looked at again."""
            while waiting and not _promised(self._mirror.snapshot(), waiting[-1]):
                waiting.pop()
            return not waiting

        await self._until(are_empty)
        answer = used.answer()
        is_moved = any(held.values())
        return {**answer, "revisions": self._mirror.revision - noticed, "is_moved": is_moved}

    async def do_count(self, revision: int = 0) -> Answer:
        """What is live, and what is reported healthy, by the mirror at that revision or later."""
        await self._mirror.reached(revision, WAIT_SECONDS_MAX)
        snapshot = self._mirror.snapshot()
        healthy = sum(
            status.healthy
            for job in snapshot.statuses.values()
            for status in job.instances.values()
        )
        return {"live": sum(census(snapshot).live.values()), "healthy": healthy, **Used().answer()}

    def _submit(self, job: Job, snapshot: Snapshot) -> Plan | Problem:
        uid = f"{hash(job.name) & (2**64 - 1):016x}"
        return plan_submit(snapshot, job, uid=uid, names=NAMES, peer=self._daemon.node)

    async def _until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not is_true():
            if time.monotonic() > deadline:
                raise TimeoutError("it did not come about")
            await self._mirror.told(self._mirror.revision)

    def _is_gone(self, name: NodeName) -> bool:
        return not self._mirror.snapshot().nodes[name].is_alive


def print_ready() -> None:
    """A line of its own, before the answer: from now on it is watched."""
    print("{}", flush=True)


def _placed(snapshot: Snapshot, prefix: str) -> Answer:
    """Instances, and on how many nodes, summed over the jobs.

    They are counted where they are: who was told to try again may have placed them at first.
    """
    found = [
        sum(len(group.slots) for group in assignment.groups if group.state is SlotState.RUNNING)
        for (_, job), assignment in snapshot.assignments.items()
        if job.name.startswith(f"{prefix}-")
    ]
    return {"placed": sum(found), "pairs": len(found)}


def _promised(snapshot: Snapshot, name: NodeName) -> int:
    return snapshot.nodes[name].ledger.promised.resources.memory_bytes


def _outcomes() -> Counter[str]:
    found: Counter[str] = Counter()
    for metric in telemetry.COMMITS.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                found[sample.labels["outcome"]] = int(sample.value)
    return found


async def main(name: str, port: int, endpoints: str) -> None:
    clock = SystemClock()
    host = SimHost(seed=0, subnet="10.200.0", wall=clock.wall)
    host.faults = Faults(latency_seconds=(0.0, 0.01))
    identity = Identity(
        name=NodeName(name),
        machine_id=f"machine-{name}",
        address="127.0.0.1",
        api=f"http://127.0.0.1:{port}",
        daemon_version="0",
        cluster="bench",
        capacity=Resources(memory_bytes=1, disk_bytes=1),
        lease_ttl_seconds=60,
    )
    store = EtcdStore.connect(endpoints.split(","), Credentials())
    ports = Ports(
        store=store, runtime=SimRuntime(host), clock=clock, peers=HttpPeers(name, "bench")
    )
    daemon = Daemon(identity, NAMES, ports)
    tokens = Tokens(tokens=(hashed(TOKEN),))
    listen = ("127.0.0.1", port)
    async with serving(daemon.operations, listen=listen, tokens=tokens, limits=NO_LIMIT):
        running = asyncio.create_task(daemon.run())
        serving_bench = asyncio.create_task(serve(Peer(daemon)))
        await asyncio.wait((running, serving_bench), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await store.aclose()


if __name__ == "__main__":
    telemetry.configure()
    settle_memory()
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
