"""Contests on record: who could have left for an instance that fits nowhere, and at what cost.

`contest_of` keeps what `core/preempt.py` chose its victims on, cut to what a record may hold: the
node that was chosen, those that would have cost least besides, and of each what is lacking there
and who could be asked to leave. `weigh` makes the choice again, by the same functions.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from ozymandias.core.victims import Candidate, Offer, Site
from ozymandias.model.contest import Contender, Contest, ContestedNode, Staying
from ozymandias.model.decision import DecidedStep, Decision
from ozymandias.model.instance import Assigned, InstanceId, Slots, SlotState
from ozymandias.model.job import Job, JobKey
from ozymandias.model.node import Demand, NodeName

DISPLACES = "fits nowhere else, so it displaces"  # what is said of who is placed so
DISPLACED = "displaced by"  # and of who leaves for it
CONTESTS_MAX = 8  # of one decision
NODES_MAX = 8  # of one contest
ROWS_MAX = 16  # of one node: runs of instances alike


# The record ---------------------------------------------------------------------------------------


def contest_of(
    job: Job,
    chosen: Offer,
    offers: Collection[Offer],
    refused: Sequence[tuple[Site, str]],
    others: Iterable[Site],
    staying: Iterable[tuple[Assigned, str]],
) -> Contest:
    """``offers`` are all there are; ``others`` are nodes where nobody could make enough room.

    ``refused`` would have cost less than the ``chosen`` one, but something else spoke against them.
    """
    best = heapq.nsmallest(NODES_MAX, offers, key=lambda offer: offer.rank)
    nodes = [_contested(offer.site) for offer in best if offer is not chosen]
    nodes += [_contested(site, against) for site, against in refused]
    nodes = [_contested(chosen.site), *nodes]
    hopeless = [_contested(site) for site in islice(others, max(0, NODES_MAX - len(nodes)))]
    kept = [*nodes, *hopeless][:NODES_MAX]
    return Contest(
        job=job.key,
        priority=job.priority,
        node=chosen.node,
        victims=tuple(victim.assigned.instance for victim in chosen.victims),
        nodes=tuple(kept),
        left_out=max(0, len(offers) + len(refused) + len(hopeless) - len(kept)),
        staying=tuple(islice(_staying(staying), ROWS_MAX)),
    )


def _contested(site: Site, against: str = "") -> ContestedNode:
    rows = [
        Contender(
            job=key,
            slots=Slots.of(c.assigned.slot for c in run),
            priority=priority,
            is_ready=is_ready,
            demand=demand,
        )
        for (key, priority, is_ready, demand), run in groupby(site.candidates, key=_kind)
    ]
    kept = rows[:ROWS_MAX]
    return ContestedNode(
        node=site.node,
        lack=site.lack,
        ports=tuple(sorted(site.ports)),
        displaced=site.displaced,
        contenders=tuple(kept),
        left_out=len(site.candidates) - sum(len(row.slots) for row in kept),
        against=against,
    )


def _kind(candidate: Candidate) -> tuple[JobKey, int, bool, Demand]:
    assigned = candidate.assigned
    return assigned.job, candidate.priority, candidate.is_ready, assigned.demand


def _staying(found: Iterable[tuple[Assigned, str]]) -> Iterable[Staying]:
    rows: dict[tuple[JobKey, str], list[int]] = {}
    for assigned, why in found:
        rows.setdefault((assigned.job, why), []).append(assigned.slot)
    return (Staying(job=key, slots=Slots.of(s), why=why) for (key, why), s in rows.items())


# The choice again ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one node would have cost: who would have left, or why that was out of the question."""

    node: NodeName
    victims: tuple[Candidate, ...]
    waste: int = 0  # bytes of memory freed beyond what is needed
    against: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    contest: Contest
    costs: tuple[Cost, ...]  # the least first, those that were out of the question last
    # The recorded victims came out again, as the least; None: too much was left out to tell.
    is_same: bool | None


def weigh(contest: Contest) -> Weighed:
    """Who would have had to leave each node, and whether those who did cost least."""
    offers: list[Offer] = []
    costs: list[Cost] = []
    is_cut = False
    for seen in contest.nodes:
        site = _site(seen)
        offer = None if seen.against else site.offer(contest.priority)
        if offer:
            offers.append(offer)
        else:
            against = seen.against or site.why_no_offer(contest.priority)
            costs.append(Cost(node=seen.node, victims=(), against=against))
        is_cut |= bool(seen.left_out)
    offers.sort(key=lambda offer: offer.rank)
    least = [Cost(node=o.node, victims=o.victims, waste=o.waste) for o in offers]
    is_same = bool(least) and (least[0].node, _names(least[0].victims)) == (
        contest.node,
        set(contest.victims),
    )
    told = is_same or (None if is_cut else False)
    return Weighed(contest=contest, costs=(*least, *costs), is_same=told)


def _names(victims: Iterable[Candidate]) -> set[InstanceId]:
    return {victim.assigned.instance for victim in victims}


def _site(seen: ContestedNode) -> Site:
    candidates = [
        Candidate(
            assigned=Assigned(
                node=seen.node,
                job=row.job,
                slot=slot,
                uid="",
                version=0,
                generation=0,
                state=SlotState.RUNNING,
                demand=row.demand,
            ),
            priority=row.priority,
            is_ready=row.is_ready,
        )
        for row in seen.contenders
        for slot in row.slots
    ]
    return Site(
        node=seen.node,
        candidates=tuple(sorted(candidates, key=lambda c: c.order)),
        lack=seen.lack,
        ports=frozenset(seen.ports),
        displaced=seen.displaced,
    )


def of_winner(decision: Decision, number: int) -> Weighed | None:
    """The contest for an instance that a step of a decision places, if there was one."""
    step = decision.steps[number]
    if not _is_won(step):
        return None
    place = step.job, step.node
    before = sum((s.job, s.node) == place for s in decision.steps[:number] if _is_won(s))
    here = (one for one in decision.contests if (one.job, one.node) == place)
    found = next(islice(here, before, None), None)
    return weigh(found) if found else None


def _is_won(step: DecidedStep) -> bool:
    return step.before is None and step.reason.startswith(DISPLACES)


def of_victim(
    decisions: Iterable[Decision], victim: InstanceId, uid: str
) -> tuple[Decision, Weighed] | None:
    """The newest contest by which an instance had to leave, and its decision."""
    for decision in sorted(decisions, key=lambda d: (d.revision, d.time), reverse=True):
        is_of_it = any(s.job == victim.job and s.uid == uid for s in decision.steps)
        for contest in decision.contests if is_of_it else ():
            if victim in contest.victims:
                return decision, weigh(contest)
    return None
