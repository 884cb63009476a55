"""Why, without HTTP: decisions on record, why not there, and files to replay."""

from ozymandias.api.access import Access, Document
from ozymandias.api.rights import advised
from ozymandias.api.stepwise import step_by_step
from ozymandias.core.advice import advising
from ozymandias.core.contest import Weighed, of_victim, of_winner
from ozymandias.core.explain import why
from ozymandias.core.nodes import found
from ozymandias.core.retrace import Explained, Verdict, explain, find
from ozymandias.core.upkeep import VERSIONS_KEPT
from ozymandias.core.whynot import asking_why_not, verdicts_now
from ozymandias.model.decision import Decision
from ozymandias.model.event import DECIDED, EventRecord
from ozymandias.model.instance import Assigned, InstanceId, Slots
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import NodeName
from ozymandias.model.units import format_duration
from ozymandias.problems import RESOURCE_NOT_FOUND, Problem, ProblemError
from ozymandias.store.decisions import readable
from ozymandias.store.replay import export_decision, exporting
from ozymandias.store.tokens import Right

CLOCKS_DIFFER_SECONDS = 1.0  # from one host to the next


class Explaining:
    def __init__(self, access: Access) -> None:
        self._access = access

    async def job(self, key: JobKey, right: Right = Right.ADMIN) -> Document:
        """Of a job that is there."""
        snapshot = self._access.mirror.snapshot()
        found = await step_by_step(advising(snapshot, key))
        suggestions = [advised(right, suggestion) for suggestion in found]
        return {
            "lines": list(why(snapshot, key, suggestions)),
            "suggestions": [suggestion.document() for suggestion in suggestions],
        }

    async def why_not(self, key: JobKey, name: NodeName, right: Right = Right.ADMIN) -> Document:
        snapshot = self._access.mirror.snapshot()
        there = found(snapshot, name)
        if isinstance(there, Problem):
            raise ProblemError(there)
        answer = await step_by_step(asking_why_not(snapshot, key, name))
        return {
            "job": key.name,
            "namespace": key.namespace,
            "node": name,
            "lines": list(answer.lines),
            "nodes": [verdict_row(verdict) for verdict in answer.verdicts],
            "suggestions": [advised(right, one).document() for one in answer.suggestions],
        }

    def decision_of(self, assigned: Assigned) -> tuple[Document | None, list[str]]:
        """The decision that placed an instance; or, in words, that no record is left, and now."""
        known = find(self._decisions(), assigned)
        if known:
            decision, number = known
            explained = explain(decision, number)
            return decision_row(decision, explained, of_winner(decision, number)), []
        lines = ["  No record of the decision is left; each node keeps its last hundred."]
        snapshot = self._access.mirror.snapshot()
        record = snapshot.jobs.get(assigned.job)
        if record and record.current:
            first = next((v for v in verdicts_now(snapshot, record) if v.rank == 1), None)
            where = f"would go to {first.node}" if first else "would have no place"
            lines.append(f"  Now, one more instance of {assigned.job} {where}.")
        return None, lines

    def displacement_of(self, instance: InstanceId) -> Document | None:
        """How one was chosen that had to leave for something more important, if it is on record."""
        job = self._access.mirror.snapshot().jobs.get(instance.job)
        known = of_victim(self._decisions(), instance, job.head.uid) if job else None
        if known is None:
            return None
        decision, weighed = known
        about = {"id": decision.name, "time": decision.time, "by": decision.by}
        return {**about, "contest": contest_row(weighed)}

    def events_of(self, key: JobKey, instance: str) -> list[str]:
        """What happened to an instance, in words; not to one of a former job of that name."""
        now, names = self._access.clock.wall(), (instance, f"{key.namespace}/{instance}")
        since = _since(self._access.mirror.snapshot().jobs.get(key))
        return [
            f"  {format_duration(max(0.0, round(now - event.time)))} ago:"
            f" {event.kind}{_where(event)}: {event.reason}"
            for event in self._access.mirror.events()
            if event.namespace == key.namespace and event.instance in names and event.time >= since
        ]

    async def replay(self, *, with_environment: bool = False, decision: str = "") -> bytes:
        """The state now, or what a recorded decision was made on, as one file."""
        if decision:
            return export_decision(self._decision(decision))
        snapshot, wall = self._access.mirror.snapshot(), self._access.clock.wall()
        steps = exporting(
            snapshot,
            wall,
            with_environment=with_environment,
            leisure=self._access.leisure(snapshot),
            lately=self._access.lately(),
        )
        return await step_by_step(steps)

    def _decision(self, name: str) -> Decision:
        for decision in self._decisions():
            if decision.name == name:
                return decision
        raise ProblemError(
            RESOURCE_NOT_FOUND(
                f"There is no record of a decision {name!r}.",
                hint="`ozy why INSTANCE` names the one that placed it; old ones are gone.",
            )
        )

    def _decisions(self) -> list[Decision]:
        return readable(self._access.mirror.decisions())


def _since(record: JobRecord | None) -> float:
    """When a job began, as far as its versions tell; the first ones of many are gone."""
    if record is None or len(record.versions) >= VERSIONS_KEPT:
        return 0.0
    own = (v.submitted_at for v in record.versions.values() if v.uid == record.head.uid)
    return min(own, default=0.0) - CLOCKS_DIFFER_SECONDS


def _where(event: EventRecord) -> str:
    """A decision may be about another node than that of the peer who made it."""
    return f", decided by {event.node}" if event.kind in DECIDED else f" on {event.node}"


def decision_row(
    decision: Decision, explained: Explained, weighed: Weighed | None = None
) -> Document:
    return {
        "id": decision.name,
        "time": decision.time,
        "by": decision.by,
        "reason": explained.step.reason,
        "exact": explained.is_exact,
        "nodes_total": decision.nodes_total,
        "feasible": explained.feasible,
        "rejected": dict(explained.rejected),
        "nodes": [verdict_row(verdict) for verdict in explained.verdicts],
        "contest": contest_row(weighed) if weighed else None,
    }


def contest_row(weighed: Weighed) -> Document:
    contest = weighed.contest
    here = contest.nodes[0]
    victims = set(contest.victims)
    return {
        **_job_row(contest.job),
        "priority": contest.priority,
        "node": contest.node,
        "exact": weighed.is_same is True,
        "nodes": [
            {
                "node": cost.node,
                "chosen": cost.node == contest.node,
                "victims": [
                    {
                        **_job_row(victim.assigned.job),
                        "instance": f"{victim.assigned.job.name}-{victim.assigned.slot}",
                        "priority": victim.priority,
                        "serves": victim.is_ready,
                    }
                    for victim in cost.victims
                ],
                "waste_bytes": cost.waste,
                "against": cost.against,
            }
            for cost in weighed.costs
        ],
        "nodes_left_out": contest.left_out,
        "candidates": [
            {
                **_job_row(row.job),
                "slots": str(row.slots),
                "left": str(Slots.of(s for s in row.slots if InstanceId(row.job, s) in victims)),
                "priority": row.priority,
                "serves": row.is_ready,
                "memory_bytes": row.demand.memory_bytes,
            }
            for row in here.contenders
        ],
        "candidates_left_out": here.left_out,
        "staying": [
            {**_job_row(row.job), "slots": str(row.slots), "reason": row.why}
            for row in contest.staying
        ],
    }


def _job_row(key: JobKey) -> Document:
    return {"job": key.name, "namespace": key.namespace}


def verdict_row(verdict: Verdict) -> Document:
    return {
        "node": verdict.node,
        "rank": verdict.rank or None,
        "chosen": verdict.is_chosen,
        "against": verdict.against,
        "terms": dict(verdict.terms),
    }
