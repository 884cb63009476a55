"""What a mirror gathers between two snapshots, and what it is told of what we write ourselves."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ozymandias.model.assignments import Assignments
from ozymandias.model.instance import Assignment, JobStatus
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import Ledger, Node, NodeName
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Pair, Table
from ozymandias.ports import Delete, Put
from ozymandias.store import codec


@dataclass(slots=True)
class Changes:
    """What is different from the last snapshot, part by part; None is gone.

    A node or a job is made of what several keys say, when somebody asks for it.
    """

    nodes: set[NodeName] = field(default_factory=set)
    members: bool = False  # some of those came, went, or told anew who they are
    jobs: dict[JobKey, None] = field(default_factory=dict)  # in the order in which they changed
    # All assignments as they were once, if known; the others have come since.
    assigned: Assignments | None = None
    assignments: dict[Pair, Assignment | None] = field(default_factory=dict)
    statuses: dict[Pair, JobStatus | None] = field(default_factory=dict)
    claims: dict[str, JobKey | None] = field(default_factory=dict)
    last_versions: dict[JobKey, int | None] = field(default_factory=dict)
    unknown: dict[bytes, codec.Unknown | None] = field(default_factory=dict)

    def node(self, name: NodeName, *, is_member: bool) -> None:
        """``is_member``: it came or went, or told anew who it is."""
        self.nodes.add(name)
        self.members |= is_member

    def parts(
        self,
        before: Snapshot,
        node: Callable[[NodeName], Node | None],
        job: Callable[[JobKey], JobRecord | None],
    ) -> dict[str, Any]:
        """The parts that changed, on top of what was."""
        parts: dict[str, Any] = {}
        if self.nodes:
            nodes = {name: node(name) for name in sorted(self.nodes)}
            lasts = not self.members and all(nodes.values())  # none is left out
            parts["nodes"] = Table.of(before.nodes).changed(nodes, lasts=lasts)
        if self.jobs:
            jobs = {key: job(key) for key in self.jobs}
            parts["jobs"] = Table.of(before.jobs).changed(jobs)
        if self.assigned is not None:
            parts["assignments"] = self.assigned
        if self.assignments:
            assigned = before.assigned if self.assigned is None else self.assigned
            parts["assignments"] = assigned.changed(self.assignments)
        if self.statuses:
            parts["statuses"] = before.told.changed(self.statuses)
        if self.claims:
            parts["claims"] = Table.of(before.claims).changed(self.claims)
        if self.last_versions:
            parts["last_versions"] = Table.of(before.last_versions).changed(self.last_versions)
        if self.unknown:
            parts["unknown"] = Table.of(before.unknown).changed(self.unknown)
        return parts


class Written:
    """What one transaction of ours writes, and what it means.

    A mirror that is shown it, whole, enters what is known instead of reading it. Only where it is
    shown together with something else each key and its new bytes are looked for.
    """

    __slots__ = (
        *("_meanings", "_rest", "assigned", "is_all", "jobs", "known", "ledgers", "ops", "others"),
    )

    def __init__(self, *, assigned: Assignments | None = None, others: int = 0) -> None:
        self.ops: list[Put | Delete] = []
        self.known: list[Any] = []  # of each of them; None: the key is gone
        self.is_all = False  # the transaction writes nothing else
        self.ledgers: dict[NodeName, Ledger] = {}
        self.jobs: set[JobKey] = set()  # whose assignments it changes
        # All assignments as they are then, if others have changed nothing since that revision.
        self.assigned, self.others = assigned, others
        self._meanings: dict[tuple[bytes, bytes], Any] | None = None
        self._rest: list[tuple[Put | Delete, Any]] = []

    def add(self, op: Put | Delete, known: Any) -> None:
        """Anything but a ledger, or an assignment that is there then."""
        self.ops.append(op)
        self.known.append(known)
        self._rest.append((op, known))

    def is_first(self, key: bytes, value: bytes) -> bool:
        return bool(self.ops) and _written(self.ops[0]) == (key, value)

    @property
    def meanings(self) -> dict[tuple[bytes, bytes], Any]:
        """By key and new bytes; no bytes: the key is gone. Who has seen one takes it out."""
        if self._meanings is None:
            self._meanings = dict(zip(map(_written, self.ops), self.known, strict=True))
        return self._meanings

    def rest(self) -> Iterator[tuple[bytes, bytes, Any]]:
        """All but ledgers, and assignments that are there then."""
        for op, known in self._rest:
            yield *_written(op), known

    def assignments(self) -> Iterator[Assignment]:
        return (known for known in self.known if isinstance(known, Assignment))


def _written(op: Put | Delete) -> tuple[bytes, bytes]:
    return op.key, op.value if isinstance(op, Put) else b""
