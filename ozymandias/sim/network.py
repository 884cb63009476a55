"""A simulated pods' network: always there, unless a test says that it fails."""

import asyncio

from ozymandias.ports import NetworkFailed, PodNetwork


class SimNetwork:
    """The Network port. Set `failure` to a reason, and `ensure` fails with it."""

    def __init__(self, *, name: str = "sim", prefix: str = "10.200.0") -> None:
        self._made = PodNetwork(name=name, subnet=f"{prefix}.0/24", gateway=f"{prefix}.1")
        self.failure = ""

    async def ensure(self) -> PodNetwork:
        await asyncio.sleep(0)
        if self.failure:
            raise NetworkFailed(self.failure)
        return self._made
