"""What the scheduler does next with a cluster, and when: for whoever looks at it from outside.

Much hangs on times that only a daemon knows: since when a node has been there, when somebody was
displaced. A `Moment` is what they come to at one moment, as names and not as times, so that it can
be written down: the same snapshot and the same moment make the same answer anywhere.

How long a node has been away is no part of it: whoever is not there counts as dead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ozymandias.core.arbiter import Leisure, Proposal, proposing
from ozymandias.core.freeze import cluster_frozen
from ozymandias.core.preempt import AGAIN_SECONDS, Lately, displaced_in
from ozymandias.core.rebalance import STEADY_SECONDS, planning_rebalance
from ozymandias.core.stepwise import Stepwise
from ozymandias.model.node import Displaced, NodeName
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode
from ozymandias.model.snapshot import Snapshot


class When(StrEnum):
    NOW = "now"
    SETTLED = "settled"  # once all have been there and healthy for long enough
    THAWED = "thawed"  # once a freeze is over
    ASKED = "asked"  # only if somebody says so: it is no more than a suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a daemon's clocks say, without the times."""

    steady_seconds: float = STEADY_SECONDS
    unsettled: tuple[NodeName, ...] = ()  # have not been there for so long; sorted
    displaced: tuple[Displaced, ...] = ()  # so lately that they are not to be displaced again

    @classmethod
    def of(cls, snapshot: Snapshot, leisure: Leisure, lately: Lately) -> "Moment":
        settled = snapshot.nodes.keys() if leisure.settled is None else leisure.settled
        recent = [record for record in displaced_in(snapshot) if lately.is_recent(record)]
        return cls(
            steady_seconds=leisure.steady_seconds,
            unsettled=tuple(sorted(snapshot.nodes.keys() - settled)),
            displaced=tuple(sorted(recent, key=_order)),
        )


def _order(record: Displaced) -> tuple[str, str, int, float]:
    return record.namespace, record.job, record.slot, record.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    proposal: Proposal
    when: When


def upcoming(snapshot: Snapshot, wall: float, moment: Moment) -> Stepwise[Upcoming | None]:
    """The next thing in the order of the arbiter, the sooner before the later; None: it rests."""
    dead = frozenset(name for name, node in snapshot.nodes.items() if not node.is_alive)
    for when, at, leisure, lately in _times(snapshot, wall, moment):
        proposal = yield from proposing(snapshot, dead, at, dead, lately, leisure)
        if proposal is not None:
            return Upcoming(proposal=proposal, when=when)
    asked = replace(snapshot, settings=replace(snapshot.settings, rebalance=RebalanceMode.ON))
    if snapshot.settings.rebalance is not RebalanceMode.ON and (
        plan := (yield from planning_rebalance(asked, wall, steady_seconds=0.0))
    ):
        return Upcoming(proposal=Proposal(what="rebalance", plan=plan), when=When.ASKED)
    return None


def _times(
    snapshot: Snapshot, wall: float, moment: Moment
) -> Iterator[tuple[When, float, Leisure, Lately]]:
    settled = frozenset(snapshot.nodes.keys() - set(moment.unsettled))
    leisure = Leisure(steady_seconds=moment.steady_seconds, settled=settled)
    seen = dict.fromkeys(displaced_in(snapshot), 0.0)
    recent = dict.fromkeys(moment.displaced, AGAIN_SECONDS)
    yield When.NOW, wall, leisure, Lately(wall=wall, boot=AGAIN_SECONDS, seen={**seen, **recent})
    later = Lately(wall=wall, boot=AGAIN_SECONDS, seen=seen)
    yield When.SETTLED, wall, Leisure(steady_seconds=0.0), later
    frozen = cluster_frozen(snapshot.settings, wall)
    if frozen is not None and frozen.until is not None:
        later = replace(later, wall=frozen.until)
        yield When.THAWED, frozen.until, Leisure(steady_seconds=0.0), later
