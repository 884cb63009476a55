"""A production daemon on a simulated host around a simulated etcd, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ozymandias.model.instance import InstanceStatus
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.pod import PodId
from ozymandias.ports import Event
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.host import SimHost
from ozymandias.sim.world import Settings, World
from ozymandias.store import codec, keys

NODE = NodeName("n1")
WEB = keys.job_key("default", "web")

WEB_FILE = """
name: web
containers:
  app:
    image: image
    memory: 64M
    ports: ["80:8000"]
    stop_grace_period: 2
    healthcheck: {type: http, port: 8000, interval: 2, unhealthy_threshold: 2}
"""


class OneNode:
    """The world of one node, with what the tests here ask of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.changes: list[tuple[float, Event]] = []  # every change of the store, with its time
        world.etcd.on_commit.append(self._note)

    def _note(self, revision: int, events: list[Event]) -> None:
        self.changes += [(self.world.loop.time(), event) for event in events]

    @property
    def host(self) -> SimHost:
        return self.world.machines[NODE].host

    @property
    def time(self) -> float:
        return self.world.loop.time()

    @property
    def operations(self) -> Any:
        return self.world.operations()

    async def submit(self, text: str = WEB_FILE) -> None:
        await self.until(lambda: self.operations is not None)
        await self.operations.submit(text.encode())

    async def submit_healthy(self, text: str = WEB_FILE, job: JobKey = WEB) -> None:
        await self.submit(text)
        await self.until(lambda: self.is_healthy(job))

    async def until(self, condition: Callable[[], object], timeout: float = 30.0) -> None:
        end = self.time + timeout
        while not condition():
            assert self.time < end, f"not within {timeout} s; statuses: {self.statuses()}"
            await asyncio.sleep(0.01)

    def statuses(self, job: JobKey = WEB) -> dict[int, InstanceStatus]:
        record = self.world.etcd.get(keys.status(NODE, job))
        return codec.decode_statuses(record.value) if record else {}

    def status(self, job: JobKey = WEB, slot: int = 0) -> InstanceStatus | None:
        return self.statuses(job).get(slot)

    def is_healthy(self, job: JobKey = WEB) -> bool:
        found = self.statuses(job)
        return bool(found) and all(status.healthy for status in found.values())

    def state(self, job: JobKey = WEB) -> str:
        status = self.status(job)
        return str(status.state) if status else ""

    def names(self) -> list[str]:
        return [
            key.decode() for key in self.world.etcd.snapshot_kvs() if key.startswith(keys.SKYDNS)
        ]

    def times_of(self, prefix: bytes, *, deleted: bool) -> list[float]:
        return [
            time
            for time, event in self.changes
            if event.kv.key.startswith(prefix) and event.deleted is deleted
        ]

    def pod(self, job: JobKey = WEB) -> PodId:
        return next(pod for pod in sorted(self.host.pods) if pod.key == job)

    def starts(self, container: str = "app", job: JobKey = WEB) -> int:
        return self.host.pods[self.pod(job)].containers[container].starts


def on_one_node(scenario: Callable[[OneNode], Awaitable[None]], seed: int = 1) -> None:
    """Run a scenario to its end; no invariant may have been violated on the way."""

    async def main() -> None:
        world = World(seed, Settings(nodes=1))
        node = OneNode(world)
        node.host.faults.latency_seconds = (0.001, 0.01)
        async with world.running():
            await scenario(node)
        assert [str(violation) for violation in world.violations] == []

    VirtualLoop(seed).run(main())
