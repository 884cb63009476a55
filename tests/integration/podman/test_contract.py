"""The real runtime keeps the same contract as the simulated one."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.podman.conftest import PodmanKit
from tests.runtime_contract import Kit, RuntimeContract


class TestPodmanRuntime(RuntimeContract):
    @pytest.fixture
    async def kit(self, kit: PodmanKit) -> AsyncIterator[Kit]:
        yield kit
