"""One cluster of three nodes for all tests of a module that do not break it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.rig import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that a test may break."""
    with Cluster(tmp_path) as found:
        yield found
