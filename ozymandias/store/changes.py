"""What a mirror gathers between two snapshots, and what it is told of what we write ourselves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ozymandias.model.assignments import Assignments
from ozymandias.model.instance import Assignment, JobStatus
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import Node, NodeName
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Pair, Table
from ozymandias.store import codec


@dataclass(slots=True)
class Changes:
    """What is different from the last snapshot, part by part; None is gone.

    A node is made of what several keys say, when somebody asks for it.
    """

    nodes: set[NodeName] = field(default_factory=set)
    jobs: dict[JobKey, JobRecord | None] = field(default_factory=dict)
    assignments: dict[Pair, Assignment | None] = field(default_factory=dict)
    statuses: dict[Pair, JobStatus | None] = field(default_factory=dict)
    claims: dict[str, JobKey | None] = field(default_factory=dict)
    last_versions: dict[JobKey, int | None] = field(default_factory=dict)
    unknown: dict[bytes, codec.Unknown | None] = field(default_factory=dict)

    def parts(self, before: Snapshot, node: Callable[[NodeName], Node | None]) -> dict[str, Any]:
        """The parts that changed, on top of what was."""
        parts: dict[str, Any] = {}
        if self.nodes:
            changed = {name: node(name) for name in sorted(self.nodes)}
            parts["nodes"] = Table.of(before.nodes).changed(changed)
        if self.jobs:
            parts["jobs"] = Table.of(before.jobs).changed(self.jobs)
        if self.assignments:
            parts["assignments"] = before.assigned.changed(self.assignments)
        if self.statuses:
            parts["statuses"] = before.told.changed(self.statuses)
        if self.claims:
            parts["claims"] = Table.of(before.claims).changed(self.claims)
        if self.last_versions:
            parts["last_versions"] = Table.of(before.last_versions).changed(self.last_versions)
        if self.unknown:
            parts["unknown"] = Table.of(before.unknown).changed(self.unknown)
        return parts


class Written(dict[tuple[bytes, bytes], Any]):
    """What the new bytes of keys mean, in one transaction; no bytes: the key is gone."""

    __slots__ = ("is_all",)

    def __init__(self) -> None:
        super().__init__()
        self.is_all = False  # it writes nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Who wrote at ``revision`` had seen what others had written up to ``others``."""

    revision: int
    others: int
    assignments: Assignments
