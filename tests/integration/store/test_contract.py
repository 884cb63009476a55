"""The contract of the Store port, kept by the client of real etcd and by the simulated one."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ozymandias.ports import Store
from ozymandias.sim.clock import SimClock
from ozymandias.sim.store import SimEtcd, SimStore
from ozymandias.store.etcd import EtcdStore
from tests.etcd_server import EtcdCluster
from tests.integration.store.contract import Compact, StoreContract


class TestEtcd(StoreContract):
    @pytest.fixture
    def store(self, etcd_store: EtcdStore) -> Store:
        return etcd_store

    @pytest.fixture
    async def other(self, shared_etcd: EtcdCluster) -> AsyncIterator[Store]:
        store = EtcdStore.connect(shared_etcd.endpoints[::-1])
        yield store
        await store.aclose()

    @pytest.fixture
    def compact(self, etcd_store: EtcdStore) -> Compact:
        return etcd_store.compact


class TestSimulated(StoreContract):
    @pytest.fixture
    async def server(self) -> SimEtcd:
        return SimEtcd()

    @pytest.fixture
    async def store(self, server: SimEtcd) -> Store:
        return SimStore(server, SimClock(asyncio.get_running_loop()), 1)

    @pytest.fixture
    async def other(self, server: SimEtcd) -> Store:
        return SimStore(server, SimClock(asyncio.get_running_loop()), 2)

    @pytest.fixture
    def compact(self, server: SimEtcd) -> Compact:
        async def compact(revision: int) -> None:
            server.compact(revision)

        return compact
