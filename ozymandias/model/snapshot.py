"""The cluster at one revision of the store: the only input of every decision."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from ozymandias.model.assignments import Assignments, OfJob, OnNode
from ozymandias.model.instance import Assigned, Assignment, InstanceStatus, JobStatus
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import Node, NodeName
from ozymandias.model.record import once
from ozymandias.model.settings import Settings
from ozymandias.model.tables import Pairs, Table

T = TypeVar("T")


class Snapshot(Struct, frozen=True, kw_only=True, dict=True):
    """Read-only by convention: nobody changes these mappings once the snapshot is handed out.

    Assignments and statuses are tables that share (`model/tables.py`), whatever mapping was given:
    what a node or a job has is at hand, and a changed snapshot costs what the change touched.
    """

    revision: int = 0
    nodes: Mapping[NodeName, Node] = {}
    jobs: Mapping[JobKey, JobRecord] = {}
    assignments: Mapping[tuple[NodeName, JobKey], Assignment] = {}
    statuses: Mapping[tuple[NodeName, JobKey], JobStatus] = {}
    # Owner of each claimed ingress "host/path": at most one job each.
    claims: Mapping[str, JobKey] = {}
    # Highest version number ever used per job name, kept after the job is gone.
    last_versions: Mapping[JobKey, int] = {}
    settings: Settings = Settings()
    settings_revision: int = 0  # 0: nobody has settled anything yet
    # Members of stored records that this version has no field for, by the record's key: a newer
    # daemon's, to be kept by whoever rewrites the record.
    unknown: Mapping[bytes, Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        if not isinstance(self.assignments, Assignments):
            force_setattr(self, "assignments", Assignments.of(self.assignments))
        if not isinstance(self.statuses, Pairs):
            force_setattr(self, "statuses", Pairs.of(self.statuses))

    @once
    def _found(self) -> dict[str, Any]:
        return {}

    def find(self, what: str, look: "Callable[[Snapshot], T]") -> T:
        """What follows from this snapshot alone: looked for once, whoever asks."""
        if what not in self._found:
            self._found[what] = look(self)
        found: T = self._found[what]
        return found

    def nodes_where(self, holds: Callable[[Node], Any]) -> Mapping[NodeName, Node]:
        """The few nodes of which something holds, found by a look at those that changed."""
        return Table.of(self.nodes).where(holds)

    def jobs_where(self, holds: Callable[[JobRecord], Any]) -> Mapping[JobKey, JobRecord]:
        """The few jobs of which something holds, found in the same way."""
        return Table.of(self.jobs).where(holds)

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
