"""What operators do to nodes, without HTTP: cordon, drain, label, and what a drain would do.

Each change is one `plan_*` of `core/nodes.py`, committed as any schedule is. A drain is refused
before it begins when something on the node could not move, with the numbers, unless it is forced.
"""

from typing import Any

from ozymandias.api import documents
from ozymandias.api.access import Access, Document, translated
from ozymandias.api.changes import Asked
from ozymandias.core.departures import Outlook, foresee_drain
from ozymandias.core.nodes import (
    found,
    plan_begin_drain,
    plan_cordon,
    plan_end_drain,
    plan_label,
    plan_uncordon,
)
from ozymandias.core.shed import Leaving, Staying, foresee_shed
from ozymandias.model.node import Drain, Load, Node, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted
from ozymandias.problems import DRAIN_BLOCKED, Problem, ProblemError
from ozymandias.store.commit import Committed, Decide

REASON_CHARACTERS_MAX = 500
BLOCKERS_TOLD = 3  # in the problem's words; its document has all of them


class NodeUpkeep:
    def __init__(self, access: Access) -> None:
        self._access = access

    def node(self, name: NodeName) -> Document:
        snapshot = self._access.mirror.snapshot()
        there = found(snapshot, name)
        if isinstance(there, Problem):
            raise ProblemError(there)
        return documents.node_row(snapshot, there)

    async def cordon(self, name: NodeName, asked: Asked | None = None) -> Document:
        return await self._change(
            "node.cordoned", name, lambda snapshot: plan_cordon(snapshot, name), asked
        )

    async def uncordon(self, name: NodeName, asked: Asked | None = None) -> Document:
        return await self._change(
            "node.uncordoned", name, lambda snapshot: plan_uncordon(snapshot, name), asked
        )

    async def undrain(self, name: NodeName, asked: Asked | None = None) -> Document:
        return await self._change(
            "node.undrained", name, lambda snapshot: plan_end_drain(snapshot, name), asked
        )

    async def label(
        self,
        name: NodeName,
        put: dict[str, str],
        remove: list[str],
        asked: Asked | None = None,
    ) -> Document:
        return await self._change(
            "node.labelled", name, lambda s: plan_label(s, name, put, remove), asked
        )

    def outlook(self, name: NodeName) -> Document:
        """What a drain would do now; nothing is changed."""
        snapshot = self._access.mirror.snapshot()
        there = found(snapshot, name)
        if isinstance(there, Problem):
            raise ProblemError(there)
        row = documents.node_row(snapshot, there)
        revision = snapshot.revision
        document = {"node": row, "changed": False, "reason": "", "revision": revision}
        return document | outlook_document(foresee_drain(snapshot, name))

    def shedding(self, name: NodeName) -> Document:
        """Who would leave, one after the other, while pressure on the host lasts."""
        snapshot = self._access.mirror.snapshot()
        there = found(snapshot, name)
        if isinstance(there, Problem):
            raise ProblemError(there)
        leaving, staying = foresee_shed(snapshot, name)
        load = there.load or Load()

        def row(it: Leaving | Staying) -> Document:
            key = it.assigned.job
            return {
                "instance": f"{key.name}-{it.assigned.slot}",
                "job": key.name,
                "namespace": key.namespace,
                "priority": it.priority,
                "reason": it.reason,
            }

        return {
            "node": name,
            "pressure": load.taint,
            "keeps": load.shed_to if load.shed_to >= 0 else None,
            "leaving": [row(it) | {"to": it.to or None} for it in leaving],
            "staying": [row(it) for it in staying],
        }

    async def drain(
        self,
        name: NodeName,
        *,
        deadline_seconds: float = 0.0,
        force: bool = False,
        reason: str = "",
        asked: Asked | None = None,
    ) -> Document:
        """Begin to empty the node; its work moves while this has long returned."""
        asked = asked or Asked()
        now = self._access.clock.wall()
        drain = Drain(
            since=now,
            deadline=now + deadline_seconds if deadline_seconds else 0.0,
            by=asked.by,
            reason=reason[:REASON_CHARACTERS_MAX],
        )
        seen: list[Outlook] = []

        def decide(snapshot: Snapshot) -> Plan | Problem:
            there = found(snapshot, name)
            if isinstance(there, Problem):
                return there
            seen[:] = [foresee_drain(snapshot, name, has_deadline=bool(drain.deadline))]
            if not force and (problem := blocked(there, seen[0])):
                return problem
            return plan_begin_drain(snapshot, name, drain)

        document = await self._change("node.drained", name, decide, asked)
        return document | outlook_document(seen[0])

    async def _change(
        self, kind: str, name: NodeName, decide: Decide, asked: Asked | None
    ) -> Document:
        asked = asked or Asked()
        asked.subject = {"node": name}
        asked.before = self._state(name)
        with translated():
            committed = await self._access.committer.commit(decide)
        if isinstance(committed, Problem):
            raise ProblemError(committed)
        asked.after, asked.changed = self._state(name), not committed.plan.is_empty
        self._tell(kind, committed, asked.by)
        return {
            "node": self.node(name),
            "changed": asked.changed,
            "reason": committed.plan.reason,
            "revision": committed.revision,
        }

    def _tell(self, kind: str, committed: Committed, by: str) -> None:
        if not committed.plan.is_empty:
            self._access.emit(kind, committed.plan.reason + (f" (by {by})" if by else ""))

    def _state(self, name: NodeName) -> dict[str, Any] | None:
        """What the audit keeps."""
        node = self._access.mirror.snapshot().nodes.get(name)
        if node is None:
            return None
        ledger = node.ledger
        return {
            "cordoned": ledger.is_cordoned,
            "drained": ledger.drain is not None,
            "labels": dict(ledger.set_labels),
        }


def blocked(there: Node, outlook: Outlook) -> Problem | None:
    """What is in the way of a drain that would begin, unless it is forced."""
    if there.ledger.drain is not None or not outlook.blockers:
        return None
    total = len(outlook.movers) + len(outlook.blockers)
    of = counted(total, "instance")
    told = "; ".join(f"{b.instance}: {b.reason}" for b in outlook.blockers[:BLOCKERS_TOLD])
    more = len(outlook.blockers) - BLOCKERS_TOLD
    rest = f"; and {more} more" if more > 0 else ""
    problem = DRAIN_BLOCKED(
        f"{len(outlook.blockers)} of {of} on {there.name} could not move: {told}{rest}.",
        hint="Nothing was changed. Make room and try again; or use --force, and what can't move"
        " stays until there is room or the deadline is past.",
        node=there.name,
    )
    return replace(problem, fields={**problem.fields, **outlook_document(outlook)})


def outlook_document(outlook: Outlook) -> Document:
    return {
        "movers": [
            {
                "instance": mover.instance,
                "job": mover.job.name,
                "namespace": mover.job.namespace,
                "to": mover.to or None,
                "reason": mover.reason,
            }
            for mover in outlook.movers
        ],
        "blockers": [documents.blocker_row(blocker) for blocker in outlook.blockers],
    }
