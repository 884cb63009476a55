"""Looks for a move before it is decided: an operator's word for moves, and the next move itself.

Whether any move is worth it takes a search through the whole cluster. While a commit decides,
nobody else is answered, so it does not search: that is done before, in steps. Whether what was
found then holds in the snapshot that is decided on is seen at once: a move by looking at this one
again; that there was none, if nothing has changed that it could come from. Where it does not hold
there is no decision, and whoever asks has to look again.
"""

from dataclasses import dataclass

from ozymandias.core.layout import is_healing
from ozymandias.core.rebalance import MOVES_MAX, Search, Step, begin, only_heals, search_of
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import Rebalancing
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The first move of those that are worth it, None if there is none, and where that is so."""

    snapshot: Snapshot
    step: Step | None

    def holds(self, snapshot: Snapshot, now: float) -> bool:
        """Whether another one has the same move, or none for the same reason."""
        if self.step is None:
            return _is_alike(snapshot, self.snapshot)
        old, to = self.step.instance, self.step.placed.node
        search = Search(snapshot, now=now, steady_seconds=0.0, jobs=frozenset((old.job,)))
        return search.again(old.job, old.node, to) is not None


def looking(snapshot: Snapshot, now: float) -> Stepwise[Look]:
    search = Search(snapshot, now=now, steady_seconds=0.0)
    yield
    step = yield from search.looking()
    return Look(snapshot=snapshot, step=step)


def _is_alike(one: Snapshot, other: Snapshot) -> bool:
    """Whether all is the same that makes a move possible, or worth it."""
    return (
        one.nodes is other.nodes
        and one.jobs is other.jobs
        and one.assignments is other.assignments
        and one.statuses is other.statuses
        and one.settings == other.settings
    )


def plan_ask(
    snapshot: Snapshot,
    moves: int,
    now: float,
    by: str = "",
    *,
    override_freeze: str = "",
    look: Look | None = None,
) -> Plan | None:
    """An operator's word: so many moves at most, from now on; 0 takes back what was asked for.

    ``override_freeze`` is why they do not wait for the end of a freeze window; it goes with them.
    ``look`` is what was found before, without one it is looked for here and now. None: that does
    not hold any more.
    """
    settings = snapshot.settings
    if moves <= 0:
        if settings.rebalancing is None:
            return Plan(reason="no rebalance is under way")
        ended = replace(settings, rebalancing=None)
        return Plan(reason="the rebalance is ended: no more moves begin", settings=ended)
    if look is None:
        look = at_once(looking(snapshot, now))
    elif not look.holds(snapshot, now):
        return None
    if look.step is None:
        return Plan(reason="no move is worth it: nothing to change")
    count = min(moves, MOVES_MAX)
    asked = Rebalancing(moves=count, since=now, by=by, override_freeze=override_freeze)
    hurry = f", not waiting for the end of a freeze ({override_freeze})" * bool(override_freeze)
    return Plan(
        reason=f"the cluster is laid out better, by at most {counted(count, 'move')}{hurry}",
        settings=replace(settings, rebalancing=asked),
    )


def plan_again(
    snapshot: Snapshot,
    plan: Plan,
    now: float,
    *,
    is_frozen: bool,
    steady_seconds: float,
    settled: frozenset[NodeName] | None,
) -> Plan | None:
    """The move that a plan begins on another snapshot, if it is worth it on this one as well.

    Which other move might be worth more by now is not looked for. None: look again.
    """
    head = plan.job.head if plan.job else None
    if plan.job is None or head is None or head.move is None or not plan.edits:
        return None
    key, move = plan.job.key, head.move
    search = search_of(
        snapshot,
        now,
        is_frozen=is_frozen,
        steady_seconds=steady_seconds,
        settled=settled,
        jobs=frozenset((key,)),
    )
    step = search.again(key, NodeName(move.node), NodeName(move.to)) if search else None
    if step is None or (only_heals(snapshot.settings) and not is_healing(step.gain)):
        return None
    return begin(snapshot, step, now)
