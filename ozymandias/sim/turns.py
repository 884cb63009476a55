"""What waits for its turn: S2, over time.

An instance that waits where the one before it is still stopping runs only when that one is gone,
wherever it was. Only what stopped already when the wait began is held against whoever ends it: a
node that returns with a leftover may tell of it at the very moment.
"""

from collections.abc import Iterator

from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.sim.truth import Change, Truth

Place = tuple[NodeName, InstanceId]


class Turns:
    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._waits: dict[JobKey, dict[Place, set[NodeName]]] = {}  # for whom to be gone

    def check(self, change: Change) -> Iterator[str]:
        for job in sorted(change.jobs):
            stopping: dict[InstanceId, set[NodeName]] = {}
            waiting: set[Place] = set()
            running: set[Place] = set()
            for a in self._truth.assigned(job):
                if a.state is SlotState.STOPPING:
                    stopping.setdefault(a.instance, set()).add(a.node)
                else:
                    there = waiting if a.state is SlotState.WAITING else running
                    there.add((a.node, a.instance))
            before = self._waits.pop(job, {})
            for (node, instance), awaited in sorted(before.items()):
                if (node, instance) in running and (
                    left := awaited & stopping.get(instance, set())
                ):
                    yield f"S2 {instance} runs on {node}, and still stops on {', '.join(left)}"
            now = {
                place: before.get(place, stopping.get(place[1], set()))
                & stopping.get(place[1], set())
                for place in waiting
            }
            if now:
                self._waits[job] = now
