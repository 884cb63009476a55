"""A recorded decision held against what comes out when it is made again.

Placements are computed again from the record, and the best node and its terms are compared with
those that were decided. Of those who had to leave for something more important the choice is made
again too (`core/contest.py`). Of other stops only that is judged which is on record: that the node
was not there, or that nothing would fit without them. Where the record can't tell, that is said
instead of a verdict.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ozymandias.core.contest import weigh
from ozymandias.core.rebalance import MOVES_HERE
from ozymandias.core.retrace import Explained, Verdict, edits_of, explain, snapshot_of
from ozymandias.core.rooms import Room
from ozymandias.model.decision import DecidedStep, Decision
from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.units import counted, is_or_are

NOT_ALIVE = "not alive"
SLOTS_MAX = 16  # of a run that are computed again


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """One step of a decision: ``is_same`` None where the record can't tell, and ``why`` not."""

    step: DecidedStep
    slot: int
    is_same: bool | None
    why: str
    explained: Explained | None = None  # of a placement


def placements(decision: Decision) -> Iterator[Again]:
    """Every placement, computed again; of long runs the first ones."""
    for number, step in enumerate(decision.steps):
        if step.before is None:
            found = explain(decision, number)
            is_same, why = _compared(decision, step, found)
            for slot in step.slots.numbers[:SLOTS_MAX]:
                yield Again(step=step, slot=slot, is_same=is_same, why=why, explained=found)


def stops(decision: Decision) -> Iterator[Again]:
    """Everything that ends by the decision: what a lost node had, predecessors, the displaced."""
    for step in decision.steps:
        if step.before is not None and step.after in (None, SlotState.STOPPING):
            for slot in step.slots.numbers[:SLOTS_MAX]:
                is_same, why = _contested(decision, step, slot) or _stopped(decision, step)
                yield Again(step=step, slot=slot, is_same=is_same, why=why)


# Placements ---------------------------------------------------------------------------------------


def _compared(decision: Decision, step: DecidedStep, found: Explained) -> tuple[bool | None, str]:
    if found.is_exact:
        return True, ""
    if cut := _cut(decision, step):
        return None, cut
    best = next((verdict for verdict in found.verdicts if verdict.rank == 1), None)
    chosen = next(verdict for verdict in found.verdicts if verdict.is_chosen)
    if best and not chosen.against and best.node != step.node and (why := _passed_over(step)):
        return None, why
    return False, _difference(step, chosen, best)


def _cut(decision: Decision, step: DecidedStep) -> str:
    """What the record lacks for an exact answer; "" if nothing."""
    total = counted(decision.nodes_total, "node")
    missing = decision.nodes_total - len(decision.nodes)
    if step.node not in decision.nodes:
        return f"the record was cut: {step.node} is not in it"
    if not any((v.job, v.version) == (step.job, step.version) for v in decision.jobs):
        return f"the record was cut: the rules of {step.job} are not in it"
    if decision.is_shifted:
        return "nodes, settings or other jobs were changed in the same transaction, before it"
    return f"the record was cut: {missing} of {total} {is_or_are(missing)} not in it" * (
        missing > 0
    )


def _passed_over(step: DecidedStep) -> str:
    """Why a better node may have been passed over, by what is said of the placement."""
    if MOVES_HERE in step.reason:
        return "a move passes over nodes that are new, and the record does not tell which were"
    return ""


def _difference(step: DecidedStep, chosen: Verdict, best: Verdict | None) -> str:
    if chosen.against or best is None:
        return f"{step.node} could not have taken it: it is {chosen.against}"
    if best.node != step.node:
        return f"the best is {best.node} now: {_terms_that_differ(best, chosen)}"
    again, decided = dict(chosen.terms), dict(step.score)
    told = [
        f"{name} is {_number(again.get(name))} now, and was {_number(decided.get(name))}"
        for name in {**decided, **again}
        if again.get(name) != decided.get(name)
    ]
    return "; ".join(told)


def _terms_that_differ(best: Verdict, chosen: Verdict) -> str:
    here, there = dict(best.terms), dict(chosen.terms)
    told = [
        f"{name} is {_number(here.get(name))} there, and {_number(there.get(name))} on"
        f" {chosen.node}"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    return "; ".join(told) or f"its terms are those of {chosen.node}"


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:g}"


# Stops --------------------------------------------------------------------------------------------


def _contested(decision: Decision, step: DecidedStep, slot: int) -> tuple[bool, str] | None:
    """Of one who had to leave for another; None: it did not, or how it was chosen can't be told."""
    victim = InstanceId(step.job, slot)
    contest = next((one for one in decision.contests if victim in one.victims), None)
    if contest is None or step.after is not SlotState.STOPPING:
        return None
    weighed = weigh(contest)
    if weighed.is_same is None:
        return None
    if weighed.is_same:
        return True, f"of all who could have left for {contest.job}, this costs least"
    least = weighed.costs[0]
    if not least.victims:
        return False, f"nobody could have left for {contest.job}: on {least.node} {least.against}"
    names = ", ".join(f"{v.assigned.instance} ({v.priority})" for v in least.victims)
    return False, f"it would cost less if {names} left {least.node}"


def _stopped(decision: Decision, step: DecidedStep) -> tuple[bool | None, str]:
    seen = decision.nodes.get(step.node)
    if seen is None:
        return None, f"the record was cut: {step.node} is not in it"
    if seen.closed == NOT_ALIVE:
        return True, f"{step.node} was not alive"
    if step.after is SlotState.STOPPING and _is_needed(decision, step):
        return True, f"without that not everything would fit on {step.node}"
    return None, "who else could have stopped is not on record"


def _is_needed(decision: Decision, step: DecidedStep) -> bool:
    """Whether the node would promise more than it has, had one of these not been stopped."""
    room = Room.of(snapshot_of(decision).nodes[step.node])
    is_spared = False
    placed = []
    for edit in edits_of(decision.steps):
        if edit.node != step.node:
            continue
        if not is_spared and edit.job == step.job and edit.slot == step.slots.numbers[0]:
            is_spared = edit.before is not None
            if is_spared:
                continue
        if edit.before is None and edit.after is not None:
            placed.append((edit.demand, edit.after))
        elif edit.before is not None:
            room.give(edit.demand, edit.before)
            if edit.after is not None:
                room.take(edit.demand, edit.after)
    for demand, state in placed:
        if not room.fits(demand, state):
            return True
        room.take(demand, state)
    return False
