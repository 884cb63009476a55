"""Idle daemons that do not schedule, hundreds in one process: each follows what is its own.

Every one of them has a connection to etcd, a presence under a lease that it keeps, and the
production's mirror of its own part (`store/own_part.py`). They offer no room, so nothing ever
happens to them; what they cost is what etcd does for them while others write.

    python -m bench.scaling.followers ENDPOINTS
"""

import asyncio
import sys
import time

import uvloop

from bench.scaling.children import Answer, serve
from bench.scaling.shapes import node_name
from ozymandias.model.node import Presence, Resources
from ozymandias.model.snapshot import Snapshot
from ozymandias.store.etcd import EtcdStore
from ozymandias.store.mirror import Mirror
from ozymandias.store.own_part import OwnPart
from ozymandias.store.registration import Offer, prepare_registration
from ozymandias.store.sending import Lost, send

TTL_SECONDS = 15
JOINING_MAX = 16


class Followers:
    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints
        self._tasks: list[asyncio.Task[None]] = []

    async def do_count(self) -> Answer:
        """CPU seconds of this process until now."""
        return {"cpu_seconds": time.process_time()}

    async def do_join(self, first: int, nodes: int) -> Answer:
        turns = asyncio.Semaphore(JOINING_MAX)

        async def join(number: int) -> None:
            async with turns:
                is_ready = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._live(number, is_ready)))
                await is_ready.wait()

        await asyncio.gather(*(join(number) for number in range(first, first + nodes)))
        return {"nodes": nodes}

    async def _live(self, number: int, is_ready: asyncio.Event) -> None:
        store, name = EtcdStore.connect(self._endpoints), node_name(number)
        lease = await store.grant(TTL_SECONDS)
        presence = Presence(
            address="10.0.0.1",
            machine_id=name,
            session=name,
            daemon_version="0",
            api="",
            schedules=False,
        )
        offer = Offer(
            node=name,
            presence=presence,
            capacity=Resources(),
            reserve=Resources(),
            labels={},
            found=(),
        )
        transaction, _ = prepare_registration(Snapshot(), offer, {}, lease.id, name)
        assert not isinstance(await send(store, transaction, name), Lost)
        part = OwnPart(store, name)
        mirror = Mirror(part, patient=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(store.keep(lease))
            group.create_task(part.run())
            group.create_task(mirror.run())
            while not mirror.is_ready:
                await mirror.wait()
            is_ready.set()


if __name__ == "__main__":
    uvloop.run(serve(Followers(sys.argv[1].split(","))))
