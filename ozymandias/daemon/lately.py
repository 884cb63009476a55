"""When this daemon first saw that an instance was displaced, on its own steady clock.

Wall clocks of hosts may differ by any amount, so a record's age counts from here. What a daemon
finds as it starts counts as new: it can only be late in displacing somebody again, never early.
"""

from ozymandias.core.preempt import AGAIN_SECONDS, Lately, displaced_in
from ozymandias.model.node import Displaced
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Clock


class Displacements:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Displaced, float] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Take in what ledgers say now, and forget what they no longer do."""
        there = displaced_in(snapshot)
        if there or self._seen:
            now = self._clock.boot()
            self._seen = {record: self._seen.get(record, now) for record in there}

    def lately(self) -> Lately:
        """For a decision that is made now."""
        return Lately(wall=self._clock.wall(), boot=self._clock.boot(), seen=self._seen)

    def due(self) -> float | None:
        """When the next of them is long enough ago; on the boot clock."""
        now = self._clock.boot()
        times = (seen + AGAIN_SECONDS for seen in self._seen.values())
        return min((time for time in times if time > now), default=None)
