"""One etcd of three members for all the tests that leave its members alone."""

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from ozymandias.store.etcd import EtcdStore
from tests.etcd_server import EtcdCluster


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(3) as cluster:
        yield cluster


@pytest.fixture
async def etcd_store(shared_etcd: EtcdCluster) -> AsyncIterator[EtcdStore]:
    store = EtcdStore.connect(shared_etcd.endpoints)
    yield store
    await store.aclose()


@pytest.fixture
def prefix() -> bytes:
    return b"/test/" + secrets.token_hex(4).encode() + b"/"
