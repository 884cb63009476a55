"""What would be, without HTTP: what-ifs, losses of nodes, and the cluster at a glance.

Nothing here changes anything: suppositions are played on a working copy (`core/outlook.py`). Long
ones let other work in between their steps. Whether the cluster survives the loss of a node is
worked out anew only when something that it hangs on has changed, and not at all where that would
take a daemon's time from its own work.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from ozymandias.api import documents
from ozymandias.api.access import Access, Document
from ozymandias.api.rights import told
from ozymandias.api.stepwise import step_by_step
from ozymandias.api.upkeep import blocked
from ozymandias.core.departures import foresee_drain
from ozymandias.core.drift import drifting
from ozymandias.core.foresee import Foreseen, foreseeing
from ozymandias.core.freeze import cluster_frozen
from ozymandias.core.nodes import found
from ozymandias.core.outlook import Change, Fate, Future, fates, suggesting, telling_waiting
from ozymandias.core.survival import Judging, Loss, Survival, survival_words, work_of
from ozymandias.core.whatif import Step, Verb, parse_steps
from ozymandias.model.instance import InstanceState
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem, ProblemError
from ozymandias.store.tokens import Right

# Losses of one node are judged unasked while nodes x (node, job) pairs is below this: it takes some
# 10 microseconds each, a part of a second in all.
WORK_MAX = 50_000
# A look for moves takes some 100 nanoseconds each, and there may be hundreds of them.
LEISURE_WORK_MAX = 200_000
# What all looks for moves of one judgement may come to, unasked and asked: where many would be made
# each takes up to 4 microseconds, and so the part of a second, or some seconds.
MOVES_WORK_MAX = 200_000
MOVES_WORK_ASKED_MAX = 2_000_000
TOO_MUCH = "not worked out: the cluster is large (`ozy what-if` and `--lose-any` do it on demand)"


class Foresight:
    def __init__(self, access: Access) -> None:
        self._access = access
        self._judged: tuple[tuple[object, ...], Survival] | None = None
        self._judging = asyncio.Lock()

    # What if ------------------------------------------------------------------------------------

    async def what_if(self, text: str, right: Right = Right.ADMIN) -> Document:
        """Each step on top of the one before, played until the cluster rests.

        ``right`` is of who asks: advice to a step that would be refused fits it.
        """
        steps = parse_steps(text)
        if isinstance(steps, Problem):
            raise ProblemError(steps)
        future = await step_by_step(self._future().playing())
        base, first = future.now, [change_row(change) for change in future.changes]
        rows = [await self._play(future, step, right) for step in steps]
        return {
            "first": first,
            "steps": rows,
            **await outcome(base, future),
            **await self._later(future),
        }

    def _future(self) -> Future:
        snapshot = self._snapshot()
        is_small = work_of(snapshot) <= LEISURE_WORK_MAX
        return Future(snapshot, self._access.clock.wall(), at_leisure=is_small)

    async def _later(self, future: Future) -> Document:
        """What waits for a freeze to end, and what nobody does unasked."""
        frozen, thawed = future.frozen, future.thawed()
        end = await step_by_step(thawed.playing()) if thawed else future
        moves = await step_by_step(suggesting(end)) if end.is_at_leisure else []
        return {
            "frozen": frozen.words if frozen else "",
            "thawed": [change_row(change) for change in thawed.changes] if thawed else [],
            "rebalance": future.now.settings.rebalance.value,
            "with_moves": end.is_at_leisure,
            "suggested": [change_row(change) for change in moves],
        }

    async def _play(self, future: Future, step: Step, right: Right = Right.ADMIN) -> Document:
        before, noted = future.now, len(future.changes)
        forced = _forced(before, step)
        problem = future.suppose(step)
        if problem is not None and problem.kind.slug == "invalid-what-if":
            raise ProblemError(problem)  # of no node or job of that name: nothing to suppose
        await step_by_step(future.playing())
        hurt = [fate for fate in fates(before, future.now) if fate.is_worse]
        return {
            "step": step.text,
            "problem": told(right, problem).document() if problem else None,
            "forced": forced.document() if forced else None,
            "changes": [change_row(change) for change in future.changes[noted:]],
            "hurt": [fate_row(fate) for fate in hurt],
        }

    async def after(self, plan: Plan, *, lose_node: str = "", lose_any: int = 0) -> Document:
        """What losses would do to the cluster once a plan is carried out and has come to rest."""
        names = tuple(map(NodeName, lose_node.split(",") if lose_node else ()))
        for name in names:
            there = found(self._snapshot(), name)
            if isinstance(there, Problem):
                raise ProblemError(there)
        future = self._future()
        future.carry_out(plan)
        if lose_any:
            judged = await self._judge(future, lose_any, MOVES_WORK_ASKED_MAX)
            return survival_document(judged)
        placed = len(future.changes)  # the plan itself is shown as such
        await step_by_step(future.playing())
        lost = future.copy()
        step = Step(verb=Verb.LOSE, text=f"lose {' '.join(names)}", nodes=names)
        first = [change_row(change) for change in future.changes[placed:]]
        row = await self._play(lost, step)
        return {
            "first": first,
            "steps": [row],
            **await outcome(future.now, lost),
            **await self._later(lost),
        }

    async def following(self, snapshot: Snapshot, plan: Plan | None) -> Foreseen:
        """What will follow from a plan that changes a job, as the peers will go on from it."""
        if plan is None:
            return Foreseen(edits=())
        return await step_by_step(foreseeing(snapshot, plan, self._access.clock.wall()))

    async def _judge(self, start: Future, count: int, moves_work_max: int) -> Survival:
        judging = Judging(start, count, moves_work_max=moves_work_max)
        return await step_by_step(judging.judging())

    # At a glance --------------------------------------------------------------------------------

    async def status(self) -> Document:
        snapshot = self._snapshot()
        rows = [documents.node_row(snapshot, node) for node in snapshot.nodes.values()]
        jobs = documents.job_rows(snapshot, self._access.names)
        instances = documents.instance_rows(snapshot)
        states = Counter(row["state"] for row in instances)
        return {
            "cluster": self._access.cluster or self._access.mirror.cluster,
            "nodes": dict(sorted(Counter(row["state"] for row in rows).items())),
            "memory_bytes": _sum(rows, "memory_bytes"),
            "disk_bytes": _sum(rows, "disk_bytes"),
            "jobs": dict(sorted(Counter(row["state"] for row in jobs).items())),
            "instances": dict(sorted(states.items())),
            "pending": [
                {key: row[key] for key in ("instance", "job", "namespace", "reason")}
                for row in instances
                if row["state"] == InstanceState.PENDING.value
            ],
            "drifting": drifting(snapshot),
            "survival": await self.survival(),
        }

    async def survival(self) -> Document:
        """Whether the cluster, as it is, survives the loss of any one node."""
        survival = await self._survives()
        if survival is None:
            text = f"survives the loss of any one node: {TOO_MUCH}"
            empty = {"ways": 0, "played": 0, "with_moves": False, "worst": None}
            return {"survives": None, "text": text, **empty}
        return survival_document(survival)

    async def _survives(self) -> Survival | None:
        async with self._judging:
            snapshot = self._snapshot()
            if work_of(snapshot) > WORK_MAX:
                return None
            key = _what_it_hangs_on(snapshot, self._access.clock.wall())
            if self._judged is None or self._judged[0] != key:
                self._judged = (key, await self._judge(self._future(), 1, MOVES_WORK_MAX))
            return self._judged[1]

    def _snapshot(self) -> Snapshot:
        return self._access.mirror.snapshot()


def _forced(snapshot: Snapshot, step: Step) -> Problem | None:
    """What a drain would be refused for without `--force`: it is played as with that."""
    there = snapshot.nodes.get(step.nodes[0]) if step.verb is Verb.DRAIN else None
    return blocked(there, foresee_drain(snapshot, there.name)) if there else None


def _what_it_hangs_on(snapshot: Snapshot, wall: float) -> tuple[object, ...]:
    """Kept as it is, not hashed: comparing what is mostly the same objects is quick."""
    nodes = {
        n: (node.is_alive, node.is_schedulable, node.ledger) for n, node in snapshot.nodes.items()
    }
    frozen = cluster_frozen(snapshot.settings, wall)
    parts = (snapshot.jobs, snapshot.assignments, snapshot.settings)
    return nodes, *parts, frozen, _completed(snapshot)


def _completed(snapshot: Snapshot) -> frozenset[tuple[NodeName, JobKey]]:
    """Where something has ended well: of all that statuses tell, it is what keeps from moving."""
    return frozenset(
        pair
        for pair, status in snapshot.statuses.items()
        if any(one.state is InstanceState.COMPLETED for one in status.instances.values())
    )


def _sum(rows: Sequence[Document], what: str) -> Document:
    """Of the nodes that are there."""
    there = [row[what] for row in rows if row["state"] != "lost"]
    return {part: sum(row[part] for row in there) for part in ("total", "reserved", "allocated")}


# Rows -------------------------------------------------------------------------------------------


async def outcome(before: Snapshot, future: Future) -> Document:
    """How the jobs fare, what waits, what the nodes have, and whether it came to rest at all."""
    every = fates(before, future.now)
    nodes = sorted(future.now.nodes.values(), key=lambda node: node.name)
    return {
        "survives": not any(fate.is_worse for fate in every),
        "at_rest": future.is_at_rest,
        "jobs": [fate_row(fate) for fate in every],
        "waiting": [
            {**_job(pending.job), "count": pending.count, "reason": pending.reason}
            for pending in await step_by_step(telling_waiting(future))
        ],
        "nodes": [documents.node_row(future.now, node) for node in nodes],
    }


def _job(key: JobKey) -> Document:
    return {"job": key.name, "namespace": key.namespace}


def fate_row(fate: Fate) -> Document:
    return {
        **_job(fate.job),
        "priority": fate.priority,
        "outcome": fate.outcome,
        "wanted": fate.wanted,
        "before": fate.before,
        "after": fate.after,
        "waiting": [f"{fate.job.name}-{instance.slot}" for instance in fate.waiting],
    }


def change_row(change: Change) -> Document:
    return {
        "instance": f"{change.instance.job.name}-{change.instance.slot}",
        **_job(change.instance.job),
        "from": change.origin or None,
        "to": change.to or None,
        "reason": change.reason,
    }


def foreseen_document(foreseen: Foreseen) -> Document:
    """Of what follows from a plan, what is not the job's own."""
    return {
        "others": [change_row(change) for change in foreseen.others],
        "others_left_out": foreseen.left_out,
        "missing": foreseen.missing,
        "outdated": foreseen.outdated,
        "hurt": [fate_row(fate) for fate in foreseen.hurt],
    }


def survival_document(survival: Survival) -> Document:
    return {
        "survives": survival.worst is None and survival.ways > 0,
        "text": survival_words(survival),
        "ways": survival.ways,
        "played": survival.played,
        "with_moves": not survival.without_moves,
        "worst": _loss_row(survival.worst) if survival.worst else None,
    }


def _loss_row(loss: Loss) -> Document:
    return {"lost": list(loss.nodes), "hurt": [fate_row(fate) for fate in loss.hurt]}
