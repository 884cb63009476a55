"""What will be: suppositions played through by the very planners, until nothing is left to do.

A `Future` is a working copy of the cluster in which all goes well: whatever is started gets
healthy, whatever stops is gone at the next step, and what waits for its room gets it. It asks the
arbiter again and again, as the peers do, and applies what it says as a commit would. So what it
shows is what the scheduler will do, and in that order; only how long it takes is left out.

Two things follow from what is left out. A number is free as soon as its instance stops, while the
cluster gives another its number only when the pod is gone, and the next one until then: so an
instance may have another number than here. And a node that comes back is empty here, for what is
still on its disk nobody knows while it is away. It registers the pods that it finds: what of them
runs and is pending goes on as it runs (`core/reclaim.py`), the others keep their numbers and their
room until they are removed. So who was waiting gets other numbers, and where not all fit, who
fits beside those pods comes first.

When nothing is left to do, time goes by: first the minute after which new nodes and instances
count as settled and the displaced may be displaced again, then up to the next deadline of a drain.
It does not go by to the end of a freeze; what waits for that is another future (`Future.thawed`).

Moves for a better layout are looked for only `at_leisure`: that takes longer than all the rest. Who
leaves them out learns what is so until the first of them; they too decide who finds a place.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice

from ozymandias.core.apply import apply
from ozymandias.core.arbiter import Leisure, Proposal, proposing
from ozymandias.core.buckets import census, is_system
from ozymandias.core.drain import next_deadline
from ozymandias.core.freeze import Frozen, cluster_frozen
from ozymandias.core.in_vain import jobs_alike
from ozymandias.core.nodes import plan_begin_drain, plan_cordon, plan_end_drain, plan_uncordon
from ozymandias.core.preempt import AGAIN_SECONDS, Lately, displaced_in
from ozymandias.core.rebalance import STEADY_SECONDS, foreseeing
from ozymandias.core.schedule import plan_scale, plan_stop
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.system import wanted_of
from ozymandias.core.upkeep import telling_pending
from ozymandias.core.vacate import plan_vacate
from ozymandias.core.whatif import Step, Verb, complaint
from ozymandias.model.instance import (
    Assigned,
    Assignment,
    InstanceId,
    InstanceState,
    InstanceStatus,
    JobStatus,
    SlotState,
)
from ozymandias.model.job import JobKey
from ozymandias.model.node import Drain, Ledger, Node, NodeName, Presence
from ozymandias.model.plan import LIVE, Pending, Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem

PLANS_MAX = 500  # that are played for one step; whatever goes on beyond is said not to rest
VACATING_MAX = 3  # rounds in which room is handed on from one to the next
NODES_NAMED_MAX = 20
NAMED_MAX = 5  # instances that a sentence names
SUGGESTED_MAX = 20  # moves

Pair = tuple[NodeName, JobKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One instance that comes (``origin`` is ""), goes (``to`` is "") or moves."""

    instance: InstanceId
    origin: NodeName | str
    to: NodeName | str
    reason: str


def _all_well(
    assignment: Assignment | None, known: JobStatus | None, since: float, *, is_steady: bool = False
) -> JobStatus | None:
    """What a node would say of a job of which everything that runs is healthy, or has ended well.

    ``known`` is what it said before, and whatever is new is so ``since`` then; if all of it
    ``is_steady``, everything is.
    """
    if assignment is None:
        return None
    said = known.instances if known else {}
    found = {
        a.slot: _well(a, said.get(a.slot), since)
        for a in assignment.instances
        if a.state is SlotState.RUNNING
    }
    if is_steady:
        found = {slot: replace(one, since=since) for slot, one in found.items()}
    return JobStatus(node=assignment.node, job=assignment.job, instances=found)


def _well(assigned: Assigned, known: InstanceStatus | None, since: float) -> InstanceStatus:
    is_well = known and (known.healthy or known.state is InstanceState.COMPLETED)
    run = (assigned.uid, assigned.version, assigned.generation)
    if known and is_well and (known.uid, known.version, known.generation) == run:
        return known
    return InstanceStatus(
        slot=assigned.slot,
        uid=assigned.uid,
        version=assigned.version,
        generation=assigned.generation,
        state=InstanceState.HEALTHY,
        healthy=True,
        since=since,
    )


class Future:
    """A cluster as it will be. ``now`` is how far it has come, ``changes`` how it came there."""

    def __init__(self, snapshot: Snapshot, wall: float = 0.0, *, at_leisure: bool = False) -> None:
        self.wall = wall  # the wall clock there
        self._at_leisure = at_leisure
        self.now = snapshot
        self.changes: list[Change] = []
        self.is_at_rest = False
        self._played = 0
        self._lately = Lately(wall=wall)
        self._settled: frozenset[NodeName] = frozenset()
        self._fresh = frozenset(snapshot.assignments)  # where something is not healthy for long yet
        self._let_settle()
        self._vacate(snapshot.assigned.by_node)

    @property
    def is_at_leisure(self) -> bool:
        """Whether moves for a better layout are part of it."""
        return self._at_leisure

    def copy(self, *, at_leisure: bool | None = None) -> "Future":
        """Another one that goes its own way from here, with nothing noted yet.

        ``at_leisure`` as this one if not said. It may be left out, but is not taken up again.
        """
        assert not at_leisure or self._at_leisure, "what is new since then was not noted"
        twin = copy(self)
        twin.changes, twin._played, twin.is_at_rest = [], 0, False
        twin._at_leisure = self._at_leisure if at_leisure is None else at_leisure
        return twin

    @property
    def frozen(self) -> Frozen | None:
        """The window in which it stands still."""
        return cluster_frozen(self.now.settings, self.wall)

    def thawed(self) -> "Future | None":
        """What follows when the freeze is over; None: there is none, or no end to it in sight."""
        if (frozen := self.frozen) is None or frozen.until is None:
            return None
        twin = self.copy()
        twin.wall = frozen.until
        return twin

    def advancing(self) -> Stepwise[Plan | None]:
        """Do the next thing that the arbiter wants done; None when it wants nothing more."""
        proposal = yield from self._asking()
        while proposal is None and self._let_time_pass():
            proposal = yield from self._asking()
        if proposal is None:
            self.is_at_rest = True
        elif self._played < PLANS_MAX:
            self._played += 1
            yield  # a plan may be as long as the way to it
            self.carry_out(proposal.plan)
            return proposal.plan
        return None

    def _asking(self) -> Stepwise[Proposal | None]:
        # Whoever is not there is given up in the end, whatever is waited for before.
        dead = frozenset(name for name, node in self.now.nodes.items() if not node.is_alive)
        leisure = Leisure(settled=self._settled) if self._at_leisure else None
        return proposing(self.now, dead, self.wall, dead, self._lately, leisure)

    # Time -------------------------------------------------------------------------------------

    def _let_time_pass(self) -> bool:
        """Until something may be done that could not be done yet; False: that never comes."""
        if self._is_unsettled():
            self._let_settle()
            return True
        deadline, frozen = next_deadline(self.now, self.wall), self.frozen
        if deadline is None or (frozen and (frozen.until is None or frozen.until < deadline)):
            return False
        self.wall = deadline
        return True

    def _is_unsettled(self) -> bool:
        if any(map(self._lately.is_recent, displaced_in(self.now))):
            return True
        return self._at_leisure and (bool(self._fresh) or self._there() != self._settled)

    def _there(self) -> frozenset[NodeName]:
        return frozenset(name for name, node in self.now.nodes.items() if node.is_schedulable)

    def _let_settle(self) -> None:
        """A minute goes by: whoever came, returned or was displaced is nothing new any more."""
        long_ago = self.wall - 2 * STEADY_SECONDS
        there, told = self.now.assignments, self.now.told
        well = {
            pair: _all_well(there.get(pair), told.get(pair), long_ago, is_steady=True)
            for pair in sorted(self._fresh)
        }
        self.now = replace(self.now, statuses=told.changed(well))
        self._fresh, self._settled = frozenset(), self._there()
        # Whoever was displaced before may be again; whoever is from now on is not within a minute.
        # The same instance by the same job is another record then: its clock has gone on.
        seen = dict.fromkeys(displaced_in(self.now), 0.0)
        wall = max(self.wall, self._lately.wall) + AGAIN_SECONDS
        self._lately = Lately(wall=wall, boot=AGAIN_SECONDS, seen=seen)

    def playing(self) -> Stepwise["Future"]:
        """Until it rests, or until the limit."""
        while (yield from self.advancing()):
            yield
        return self

    def play(self) -> "Future":
        return at_once(self.playing())

    def carry_out(self, plan: Plan) -> None:
        """Apply a plan as a commit would, note what it moves, and let all go well."""
        nodes, pairs = plan.touched, plan.pairs
        before = self.now
        self._apply(plan)
        self.is_at_rest = False
        self.changes += _changes(before, self.now, plan, pairs)
        self._vacate(nodes)

    def suppose(self, step: Step) -> Problem | None:
        """Let a step be so; the problem, if the cluster would refuse it."""
        self._played, self.is_at_rest = 0, False
        if step.verb in (Verb.LOSE, Verb.START):
            return self._presence(step)
        if step.verb is Verb.ADD:
            return self._add(step)
        decision = self._decide(step)
        if isinstance(decision, Problem):
            return replace(decision, fields={**decision.fields, "column": step.column})
        self.carry_out(decision)
        return None

    def _decide(self, step: Step) -> Plan | Problem:
        if step.job is not None:
            if step.job not in self.now.jobs:
                alike = jobs_alike(self.now, step.job)
                meant = f"Did you mean {' or '.join(alike)}?"
                hint = meant if alike else "`ozy jobs` lists them."
                return complaint(step.column, f"there is no job {step.job}.", hint)
            if step.verb is Verb.SCALE:
                return plan_scale(self.now, step.job, step.count, self._lately)
            return plan_stop(self.now, step.job)
        (name,) = step.nodes
        if name not in self.now.nodes:
            return self._unknown(step, name)
        if step.verb is Verb.CORDON:
            return plan_cordon(self.now, name)
        if step.verb is Verb.UNCORDON:
            return plan_uncordon(self.now, name)
        if step.verb is Verb.UNDRAIN:
            return plan_end_drain(self.now, name)
        return plan_begin_drain(self.now, name, Drain(since=self.wall))

    def _presence(self, step: Step) -> Problem | None:
        changed: dict[NodeName, Node] = {}
        for name in step.nodes:
            node = self.now.nodes.get(name)
            if node is None:
                return self._unknown(step, name)
            if node.is_alive is (step.verb is Verb.START):
                word = "there already" if node.is_alive else "not there already"
                return complaint(step.column, f"{name} is {word}.")
            changed[name] = _present(node) if step.verb is Verb.START else _absent(node)
        self.now = replace(self.now, nodes={**self.now.nodes, **changed})
        return None

    def _unknown(self, step: Step, name: NodeName) -> Problem:
        known = ", ".join(sorted(self.now.nodes)[:NODES_NAMED_MAX]) or "none"
        return complaint(step.column, f"there is no node {name}.", f"Nodes: {known}.")

    def _add(self, step: Step) -> Problem | None:
        (name,) = step.nodes
        if name in self.now.nodes:
            hint = "`start NODE` is for one that is not there now."
            return complaint(step.column, f"there is a node {name} already.", hint)
        ledger = Ledger(capacity=step.capacity, labels=step.labels)
        node = _present(Node(name=name, ledger=ledger, ledger_revision=1))
        self.now = replace(self.now, nodes={**self.now.nodes, name: node})
        return None

    def _vacate(self, nodes: Iterable[NodeName]) -> None:
        """What stops is gone, what waits runs: by the nodes' own planner."""
        busy = [name for name in sorted(nodes) if _is_busy(self.now, name)]
        for _ in range(VACATING_MAX):
            plans = 0
            for name in busy:
                if plan := plan_vacate(self.now, name, frozenset()):
                    plans += 1
                    self._apply(plan)
            if not plans:
                return

    def _apply(self, plan: Plan) -> None:
        before, after = self.now, apply(self.now, plan, "")
        changed = before.assigned.difference(after.assigned)
        well = {
            pair: _all_well(after.assignments.get(pair), after.told.get(pair), self.wall)
            for pair in changed
        }
        self.now = replace(after, statuses=after.told.changed(well))
        if self._at_leisure:
            self._fresh |= well.keys()


def suggested(future: Future) -> list[Change]:
    """The moves that `ozy rebalance` would make then, and nobody makes unasked."""
    return at_once(suggesting(future))


def suggesting(future: Future) -> Stepwise[list[Change]]:
    if future.now.settings.rebalance is RebalanceMode.ON:
        return []
    found = yield from foreseeing(future.now, future.wall, moves_max=SUGGESTED_MAX)
    return [
        Change(
            instance=step.instance.instance,
            origin=step.instance.node,
            to=step.placed.node,
            reason=step.reason,
        )
        for step in found.steps
    ]


def _is_busy(snapshot: Snapshot, name: NodeName) -> bool:
    node = snapshot.nodes.get(name)
    return bool(node and node.is_alive) and any(
        group.state is not SlotState.RUNNING
        for assignment in snapshot.on(name).values()
        for group in assignment.groups
    )


def _present(node: Node) -> Node:
    presence = Presence(address="", machine_id="", session="", daemon_version="", api="")
    return replace(node, presence=presence, presence_revision=1)


def _absent(node: Node) -> Node:
    return replace(node, presence=None, presence_revision=0, presence_lease=0, load=None)


def _changes(
    before: Snapshot, after: Snapshot, plan: Plan, pairs: Iterable[Pair]
) -> Iterator[Change]:
    """In the order of the plan's edits: those of higher priority come first there."""
    was, will = _live(before, pairs), _live(after, pairs)
    reasons = {(edit.node, edit.instance): edit.reason for edit in plan.edits}
    seen: set[InstanceId] = set()
    for _, instance in reasons:
        origin, to = was.get(instance, ""), will.get(instance, "")
        if origin != to and instance not in seen:
            seen.add(instance)
            reason = reasons[NodeName(to or origin), instance]
            yield Change(instance=instance, origin=origin, to=to, reason=reason)


def _live(snapshot: Snapshot, pairs: Iterable[Pair]) -> dict[InstanceId, NodeName]:
    return {
        a.instance: a.node
        for pair in pairs
        if pair in snapshot.assignments
        for a in snapshot.assignments[pair].instances
        if a.state in LIVE
    }


# What became of the jobs --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """One job before and after.

    It survives with all that it wants. It degrades when it is left with some, and more of them are
    missing than before; it lacks some when they were missing before. With none at all it waits.
    """

    job: JobKey
    priority: int
    wanted: int
    before: int  # live, when the supposition began
    after: int
    missing_before: int
    waiting: tuple[InstanceId, ...]  # those that were live and have no place

    @property
    def missing(self) -> int:
        return max(0, self.wanted - self.after)

    @property
    def outcome(self) -> str:
        if not self.missing:
            return "survives"
        if not self.after:
            return "waits"
        return "degrades" if self.is_worse else "lacks"

    @property
    def is_worse(self) -> bool:
        return self.missing > self.missing_before


def fates(before: Snapshot, after: Snapshot) -> list[Fate]:
    """Every job that is wanted afterwards, the most important first."""
    was, will = census(before).live, census(after).live
    found = []
    for key, record in sorted(after.jobs.items()):
        if record.head.deleting:
            continue
        old = before.jobs.get(key)
        wanted, live = wanted_of(after, record), will.get(key, 0)
        missing_before = max(0, wanted_of(before, old) - was.get(key, 0)) if old else 0
        is_worse = wanted - live > missing_before
        gone = _gone(before, after, key) if is_worse and not is_system(record) else []
        found.append(
            Fate(
                job=key,
                priority=record.current.job.priority if record.current else 0,
                wanted=wanted,
                before=was.get(key, 0),
                after=live,
                missing_before=missing_before,
                waiting=tuple(gone[: max(0, wanted - live)]),
            )
        )
    return sorted(found, key=lambda fate: (-fate.priority, fate.job))


def _gone(before: Snapshot, after: Snapshot, key: JobKey) -> list[InstanceId]:
    there = {a.slot for a in after.instances(key) if a.state in LIVE}
    lost = {a.slot for a in before.instances(key) if a.state in LIVE} - there
    return [InstanceId(key, slot) for slot in sorted(lost)]


def waiting_after(future: Future) -> tuple[Pending, ...]:
    """What would have no place, and why, the most important first."""
    return at_once(telling_waiting(future))


def telling_waiting(future: Future) -> Stepwise[tuple[Pending, ...]]:
    """The same, job by job."""

    def rank(pending: Pending) -> tuple[int, JobKey]:
        record = future.now.jobs[pending.job]
        return -(record.current.job.priority if record.current else 0), pending.job

    found = yield from telling_pending(future.now)
    return tuple(sorted(found, key=rank))


def hurt_words(hurt: Sequence[Fate]) -> str:
    """``web-3 and db-0 would wait``; a job without names by its count."""
    names = [str(instance) for fate in hurt for instance in fate.waiting]
    names += [f"{f.missing - f.missing_before} of {f.job}" for f in hurt if not f.waiting]
    shown = list(islice(names, NAMED_MAX))
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more would wait"
    return (" and ".join((", ".join(shown[:-1]), shown[-1])) if shown[1:] else shown[0]) + (
        " would wait"
    )
