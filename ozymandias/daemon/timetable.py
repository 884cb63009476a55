"""When to look at which instance again though nothing has changed: one time for each.

A heap with the times that still hold beside it: a thousand waits cost no more than those that are
over. It must not know what is waited for.
"""

import heapq

from ozymandias.model.instance import InstanceId


class Timetable:
    def __init__(self) -> None:
        self._at: dict[InstanceId, float] = {}
        self._heap: list[tuple[float, InstanceId]] = []  # also entries that hold no more

    def put(self, instance: InstanceId, at: float | None) -> None:
        """Its only time from now on; None: none."""
        if at is None:
            self._at.pop(instance, None)
        elif self._at.get(instance) != at:
            self._at[instance] = at
            heapq.heappush(self._heap, (at, instance))

    def take(self, now: float) -> set[InstanceId]:
        """Those whose time has come; they have none any more."""
        taken: set[InstanceId] = set()
        while (first := self.first()) is not None and first <= now:
            _, instance = heapq.heappop(self._heap)
            del self._at[instance]
            taken.add(instance)
        return taken

    def first(self) -> float | None:
        """The next time of all."""
        while self._heap:
            at, instance = self._heap[0]
            if self._at.get(instance) == at:
                return at
            heapq.heappop(self._heap)
        return None
