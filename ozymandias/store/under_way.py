"""The batches that were sent and have no answer yet, in the order in which they left."""

import asyncio
from collections.abc import Collection

from ozymandias.store.batch import Batch


class UnderWay:
    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._left = asyncio.Event()  # one of them has its answer

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)

    def remove(self, batch: Batch) -> None:
        self._batches.remove(batch)
        self._left.set()
        self._left = asyncio.Event()

    async def at_most(self, number: int) -> None:
        """Wait until there are no more than so many."""
        while len(self._batches) > number:
            await self._left.wait()

    async def answered(self, batches: Collection[Batch]) -> None:
        """Wait until none of these is among them."""
        while any(batch in self._batches for batch in batches):
            await self._left.wait()
