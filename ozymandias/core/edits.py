"""Ways to spell an edit: the next step of an instance that is there, or a new one."""

from ozymandias.core.placement import Placement
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobHead, JobKey
from ozymandias.model.node import Demand
from ozymandias.model.plan import Edit

# Of a plan that goes on step by step. The steps of a job belong together (it stops here and waits
# there), so such a plan is not cut later where a transaction is full.
EDITS_MAX = 750


def step(assigned: Assigned, after: SlotState | None, reason: str) -> Edit:
    """What happens next to an instance that is somewhere already."""
    return Edit(
        node=assigned.node,
        job=assigned.job,
        slot=assigned.slot,
        uid=assigned.uid,
        version=assigned.version,
        generation=assigned.generation,
        before=assigned.state,
        after=after,
        demand=assigned.demand,
        reason=reason,
    )


def stop(assigned: Assigned, reason: str) -> Edit:
    """A running instance is stopped; a waiting one never ran and is simply gone."""
    after = None if assigned.state is SlotState.WAITING else SlotState.STOPPING
    return step(assigned, after, reason)


def new_instance(
    key: JobKey, head: JobHead, slot: int, demand: Demand, placed: Placement, why: str = ""
) -> Edit:
    """A current instance of a job where it was placed."""
    return Edit(
        node=placed.node,
        job=key,
        slot=slot,
        uid=head.uid,
        version=head.version,
        generation=head.restart,
        before=None,
        after=placed.state,
        demand=demand,
        reason=why + placed.reason,
        score=placed.score,
    )
