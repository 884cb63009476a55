"""One cluster for all tests that leave it as they found it; three hosts for a module of tests."""

from collections.abc import Iterator

import pytest

from tests.cluster.hosts.cluster import HostCluster, running
from tests.cluster.kit import Cluster, running_cluster


@pytest.fixture(scope="session")
def shared() -> Iterator[Cluster]:
    """Three nodes of 1G; every test names its jobs as it likes and stops them."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The shared cluster, without jobs before and after."""
    yield shared
    left = [row["job"] for row in shared.get("/v1/jobs")["items"]]
    shared.stop(*left)


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[HostCluster]:
    """A cluster of three hosts, in namespaces of their own; each test puts them right again."""
    with running(3) as cluster:
        yield cluster
