"""The cluster at one revision of the store: the only input of every decision."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ozymandias.model.assignments import Assignments, OfJob, OnNode
from ozymandias.model.instance import Assigned, Assignment, InstanceStatus, JobStatus
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import Node, NodeName
from ozymandias.model.settings import Settings
from ozymandias.model.tables import Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Read-only by convention: nobody changes these mappings once the snapshot is handed out.

    Assignments and statuses are tables that share (`model/tables.py`), whatever mapping was given:
    what a node or a job has is at hand, and a changed snapshot costs what the change touched.
    """

    revision: int = 0
    nodes: Mapping[NodeName, Node] = field(default_factory=dict)
    jobs: Mapping[JobKey, JobRecord] = field(default_factory=dict)
    assignments: Mapping[tuple[NodeName, JobKey], Assignment] = field(default_factory=dict)
    statuses: Mapping[tuple[NodeName, JobKey], JobStatus] = field(default_factory=dict)
    # Owner of each claimed ingress "host/path": at most one job each.
    claims: Mapping[str, JobKey] = field(default_factory=dict)
    # Highest version number ever used per job name, kept after the job is gone.
    last_versions: Mapping[JobKey, int] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    settings_revision: int = 0  # 0: nobody has settled anything yet
    # Members of stored records that this version has no field for, by the record's key: a newer
    # daemon's, to be kept by whoever rewrites the record.
    unknown: Mapping[bytes, Mapping[str, Any]] = field(default_factory=dict)
    # What was found out about it and is worth keeping for the next who asks; nobody's input.
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.assignments, Assignments):
            object.__setattr__(self, "assignments", Assignments.of(self.assignments))
        if not isinstance(self.statuses, Pairs):
            object.__setattr__(self, "statuses", Pairs.of(self.statuses))

    @property
    def assigned(self) -> Assignments:
        """The assignments, by node and by job."""
        assert isinstance(self.assignments, Assignments)
        return self.assignments

    @property
    def told(self) -> Pairs[JobStatus]:
        """The statuses, by node and by job."""
        assert isinstance(self.statuses, Pairs)
        return self.statuses

    def on(self, node: NodeName) -> OnNode:
        """What one node has, by job."""
        return self.assigned.on(node)

    def of(self, job: JobKey) -> OfJob:
        """What the nodes have of one job."""
        return self.assigned.of_job(job)

    def instances(self, job: JobKey | None = None) -> Iterator[Assigned]:
        """Every assigned instance, of one job or of all, in a stable order."""
        if job is not None:
            for _, assignment in sorted(self.of(job).items()):
                yield from assignment.instances
            return
        for _, row in sorted(self.assigned.by_node.items()):
            for _, assignment in sorted(row.items()):
                yield from assignment.instances

    def instances_on(self, node: NodeName) -> Iterator[Assigned]:
        for _, assignment in sorted(self.on(node).items()):
            yield from assignment.instances

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
