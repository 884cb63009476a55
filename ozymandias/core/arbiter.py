"""The one arbiter: of all that the cluster could do of its own accord, the most urgent.

Every planner looks at the same snapshot, and they are asked in a fixed order, so that no two of
them can fight: what an earlier one wants is done before a later one is asked at all. The peers'
loops, what-ifs and replays all come here; none of them has an order of its own.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from ozymandias.core.drain import plan_drain
from ozymandias.core.drift import planning_drift
from ozymandias.core.freeze import cluster_frozen
from ozymandias.core.looks import plan_again
from ozymandias.core.moves import plan_moves
from ozymandias.core.preempt import Lately, planning_preempt
from ozymandias.core.rebalance import STEADY_SECONDS, planning_rebalance
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.shed import plan_shed
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.system import plan_system
from ozymandias.core.upkeep import plan_stopped, plan_tidy, planning_pending, planning_repair
from ozymandias.core.vacate import plan_admit
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot

MOVE = "rebalance"

Planner = Callable[[Snapshot], Plan | Stepwise[Plan | None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Something to be done, and what it is called so that peers rank themselves alike."""

    what: str
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Leisure:
    """There is time for what can wait: moves that make the cluster better laid out, and notes."""

    steady_seconds: float = STEADY_SECONDS
    settled: frozenset[NodeName] | None = None  # nodes that have been there for a while


def propose(
    snapshot: Snapshot,
    dead: frozenset[NodeName],
    wall: float = 0.0,
    fenced: frozenset[NodeName] | None = None,
    lately: Lately | None = None,
    leisure: Leisure | None = None,
) -> Proposal | None:
    """The most urgent thing to be done, in this order; ``wall`` is the wall clock.

    Repair, what has waited long enough, the rest of a stop, system jobs, shedding, drain, moves
    under way, rollout, pending, preemption, tidying; and at leisure new moves, and notes of what
    is given up.
    """
    return at_once(proposing(snapshot, dead, wall, fenced, lately, leisure))


def proposing(
    snapshot: Snapshot,
    dead: frozenset[NodeName],
    wall: float = 0.0,
    fenced: frozenset[NodeName] | None = None,
    lately: Lately | None = None,
    leisure: Leisure | None = None,
) -> Stepwise[Proposal | None]:
    """The same, planner by planner; those that take long plan in steps of their own."""
    if dead and (plan := (yield from planning_repair(snapshot, dead, fenced))):
        return Proposal(what="repair " + " ".join(sorted(dead)), plan=plan)
    planners: tuple[tuple[str, Planner], ...] = (
        ("admit", plan_admit),
        ("stop", plan_stopped),
        ("system", lambda snapshot: plan_system(snapshot, wall)),
        ("shed", plan_shed),
        ("drain", lambda snapshot: plan_drain(snapshot, wall)),
        ("move", lambda snapshot: plan_moves(snapshot, wall)),
        ("rollout", lambda snapshot: plan_rollout(snapshot, wall)),
        ("pending", planning_pending),
        ("preempt", lambda snapshot: planning_preempt(snapshot, lately or Lately(wall=wall))),
        ("tidy", plan_tidy),
    )
    for name, planner in planners:
        found = planner(snapshot)
        plan = (yield from found) if isinstance(found, Generator) else found
        if plan:
            return Proposal(what=name, plan=plan)
        yield
    return (yield from proposing_at_leisure(snapshot, wall, leisure)) if leisure else None


def proposing_at_leisure(
    snapshot: Snapshot, wall: float, leisure: Leisure
) -> Stepwise[Proposal | None]:
    """What can wait, if nothing that is more urgent is to be done."""
    plan = yield from planning_rebalance(
        snapshot,
        wall,
        is_frozen=cluster_frozen(snapshot.settings, wall) is not None,
        steady_seconds=leisure.steady_seconds,
        settled=leisure.settled,
    )
    if plan:
        return Proposal(what=MOVE, plan=plan)
    plan = yield from planning_drift(snapshot, wall)
    return Proposal(what="drift", plan=plan) if plan else None


def propose_again(
    snapshot: Snapshot, proposal: Proposal, wall: float, leisure: Leisure
) -> Proposal | None:
    """What was proposed at leisure for another state of the cluster, if it is right for this too.

    Only a move is: whatever else there is at leisure is found by looking at all of the cluster.
    """
    if proposal.what != MOVE:
        return None
    plan = plan_again(
        snapshot,
        proposal.plan,
        wall,
        is_frozen=cluster_frozen(snapshot.settings, wall) is not None,
        steady_seconds=leisure.steady_seconds,
        settled=leisure.settled,
    )
    return Proposal(what=MOVE, plan=plan) if plan else None
