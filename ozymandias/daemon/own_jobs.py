"""What the newest snapshot assigns to this node, job by job, and which of it has changed.

The mirror notes the jobs it has applied something of; of these, the ones are picked whose entry
for this node, or a version that this entry needs, is another than before. So the cost of a change
somewhere in the cluster does not grow with what this node runs.
"""

from ozymandias.model.instance import Assigned, Assignment, SlotState
from ozymandias.model.job import JobKey, JobVersion
from ozymandias.model.node import NodeName
from ozymandias.store.mirror import Mirror

_Entry = tuple[Assignment, tuple[JobVersion | None, ...]]


class OwnJobs:
    def __init__(self, node: NodeName, mirror: Mirror) -> None:
        self._node = node
        self._mirror = mirror
        self._applied = mirror.follow_jobs()
        self._entries: dict[JobKey, _Entry] = {}
        self._changed: set[JobKey] = set()
        self._restless: set[JobKey] = set()  # with slots that stop or wait

    def has_changed(self) -> bool:
        """Whether `take` has something to give."""
        self._read()
        return bool(self._changed)

    def take(self) -> set[JobKey]:
        """The jobs of which something has changed for this node since the last time."""
        self._read()
        taken, self._changed = self._changed, set()
        return taken

    @property
    def is_restless(self) -> bool:
        """Whether a slot here is stopping or waiting."""
        self._read()
        return bool(self._restless)

    def restless(self) -> list[Assigned]:
        """Every slot here that is stopping or waiting."""
        self._read()
        return [
            assigned
            for job in sorted(self._restless)
            for assigned in self._entries[job][0].instances
            if assigned.state is not SlotState.RUNNING
        ]

    def _read(self) -> None:
        if not self._applied:
            return
        snapshot = self._mirror.snapshot()
        for job in self._applied:
            assignment = snapshot.assignments.get((self._node, job))
            entry: _Entry | None = None
            if assignment is not None:
                record = snapshot.jobs.get(job)
                versions = record.versions if record else {}
                needed = tuple(versions.get(group.version) for group in assignment.groups)
                entry = (assignment, needed)
            if entry != self._entries.get(job):
                self._set(job, entry)
        self._applied.clear()

    def _set(self, job: JobKey, entry: _Entry | None) -> None:
        self._changed.add(job)
        self._restless.discard(job)
        if entry is None:
            del self._entries[job]
            return
        self._entries[job] = entry
        if any(group.state is not SlotState.RUNNING for group in entry[0].groups):
            self._restless.add(job)
