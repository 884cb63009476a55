"""The cluster at one revision of the store: the only input of every decision."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ozymandias.model.instance import Assigned, Assignment, InstanceStatus, JobStatus, instances_of
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import Node, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Read-only by convention: nobody changes these mappings once the snapshot is handed out."""

    revision: int = 0
    nodes: Mapping[NodeName, Node] = field(default_factory=dict)
    jobs: Mapping[JobKey, JobRecord] = field(default_factory=dict)
    assignments: Mapping[tuple[NodeName, JobKey], Assignment] = field(default_factory=dict)
    statuses: Mapping[tuple[NodeName, JobKey], JobStatus] = field(default_factory=dict)
    # Owner of each claimed ingress "host/path": at most one job each.
    claims: Mapping[str, JobKey] = field(default_factory=dict)
    # Highest version number ever used per job name, kept after the job is gone.
    last_versions: Mapping[JobKey, int] = field(default_factory=dict)
    # Members of stored records that this version has no field for, by the record's key: a newer
    # daemon's, to be kept by whoever rewrites the record.
    unknown: Mapping[bytes, Mapping[str, Any]] = field(default_factory=dict)

    def instances(self, job: JobKey | None = None) -> Iterator[Assigned]:
        """Every assigned instance, of one job or of all, in a stable order."""
        for (_, key), assignment in sorted(self.assignments.items()):
            if job is None or key == job:
                yield from instances_of(assignment)

    def instances_on(self, node: NodeName) -> Iterator[Assigned]:
        for (name, _), assignment in sorted(self.assignments.items()):
            if name == node:
                yield from instances_of(assignment)

    def status(self, assigned: Assigned) -> InstanceStatus | None:
        """What its node last said of this very instance (same uid, version and generation)."""
        record = self.statuses.get((assigned.node, assigned.job))
        found = record.instances.get(assigned.slot) if record else None
        if found and (found.uid, found.version, found.generation) == (
            assigned.uid,
            assigned.version,
            assigned.generation,
        ):
            return found
        return None
