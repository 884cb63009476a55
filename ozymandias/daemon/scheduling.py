"""What any peer may decide: lost nodes, system jobs, drains, rollouts, pending instances, tidying.

Level-triggered: whenever the mirror changes the loop asks `core.arbiter` what is to be done. Peers
take turns by rank, a hash of (what, peer): the first acts at once, the others 50 ms apart, and
by then usually find nothing left to do. If the first is dead or cut off, the next one acts.
"""

import asyncio
import hashlib
from collections.abc import Mapping

from ozymandias.core.arbiter import (
    Leisure,
    Proposal,
    propose,
    propose_again,
    proposing_at_leisure,
)
from ozymandias.core.drain import next_deadline
from ozymandias.core.freeze import cluster_frozen
from ozymandias.core.loss import Loss, alive_in, fence_seconds, judge_loss, missing_in
from ozymandias.core.stepwise import at_once
from ozymandias.daemon.events import EventLog
from ozymandias.daemon.lately import Displacements
from ozymandias.daemon.leisure import Pace, unhurried
from ozymandias.daemon.membership import Membership, Session
from ozymandias.model.instance import JobStatus
from ozymandias.model.job import JobKey
from ozymandias.model.node import Node, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Clock, StoreError
from ozymandias.problems import Problem
from ozymandias.store.commit import Committed, Committer
from ozymandias.store.mirror import Mirror
from ozymandias.telemetry import warn

RANK_SECONDS = 0.05
RANK_SECONDS_MAX = 1.0
RETRY_SECONDS = 1.0
PARTS_MAX = 8  # of a large repair that are decided one after the other before all is looked at
MOMENT_SECONDS = 0.1  # for which what was decided holds, if nothing has changed
STALE_LEASES = 2  # how often in a row a lease may run to its end though nobody renews it
OUTDATED_MAX = 3
DEADLINE_LOOK_SECONDS = 30.0  # a wall clock may be set while we sleep towards a deadline


class Scheduler:
    def __init__(
        self,
        *,
        node: NodeName,
        mirror: Mirror,
        committer: Committer,
        membership: Membership,
        events: EventLog,
        clock: Clock,
        breaker_seconds: float,
        displacements: Displacements,
        steady_seconds: float,
    ) -> None:
        self._node = node
        self._mirror = mirror
        self._committer = committer
        self._membership = membership
        self._events = events
        self._clock = clock
        self._breaker_seconds = breaker_seconds
        self._displacements = displacements
        self._pace = Pace(steady_seconds)
        self._session: Session | None = None
        self._started = clock.boot()  # of the session
        self._missing_since: dict[NodeName, float] = {}
        self._seen_alive: set[NodeName] = set()
        self._present: set[NodeName] = set()  # had a record when we last looked
        self._seen_there: set[NodeName] = set()  # had a record at some time of the session
        self._first_told: Mapping[tuple[NodeName, JobKey], JobStatus] | None = None
        self._held_back: frozenset[NodeName] = frozenset()
        self._first_wanted: tuple[str, float] = ("", 0.0)  # what, and since when
        self._is_long = False  # to look for what can wait
        self._outdated = 0  # times in a row that what was found was over when it was decided

    async def run(self) -> None:
        while True:
            session = await self._membership.wait_session()
            if session is not self._session:
                self._begin(session)
            revision = self._mirror.revision
            due = await self._step()
            await self._sleep(revision, due)

    def _begin(self, session: Session) -> None:
        """Who was away itself has not seen who else was: the others get time to come back too."""
        self._session = session
        self._started = self._clock.boot()
        self._seen_alive.clear()
        self._present.clear()
        self._seen_there = set(session.there)
        self._first_told = None
        self._missing_since.clear()
        self._held_back = frozenset()

    async def _sleep(self, revision: int, due: float | None) -> None:
        """Until the cluster changes, or until a time on the boot clock."""
        timeout = None if due is None else max(0.0, due - self._clock.boot())
        try:
            async with asyncio.timeout(timeout):
                await self._mirror.changed(revision)
        except TimeoutError:
            pass

    async def _step(self) -> float | None:
        """Do what is due now; when to look again at the latest."""
        now = self._clock.boot()
        snapshot = self._mirror.snapshot()
        loss = self._look_for_losses(snapshot, now)
        self._displacements.look(snapshot)
        leisure = self._pace.leisure(snapshot, now)
        proposal = self._propose(snapshot, loss.dead, loss.fenced)
        if proposal is None and leisure is not None:
            looking = proposing_at_leisure(snapshot, self._clock.wall(), leisure)
            proposal, self._is_long = await unhurried(looking)
        if proposal is None:
            self._outdated = 0
            self._first_wanted = ("", 0.0)
            due = _sooner(self._deadline(snapshot, now), self._displacements.due())
            return _sooner(loss.look_again, _sooner(due, self._rest(snapshot, now, leisure)))
        if self._first_wanted[0] != proposal.what:
            self._first_wanted = (proposal.what, now)
        due = self._first_wanted[1] + delay(snapshot, proposal.what, self._node)
        if now < due:
            return _sooner(due, loss.look_again)
        return await self._commit(snapshot, loss, leisure, proposal)

    def leisure(self, snapshot: Snapshot) -> Leisure:
        """What would be looked at if moves were looked for now."""
        return self._pace.at(snapshot, self._clock.boot())

    def _rest(self, snapshot: Snapshot, began: float, leisure: Leisure | None) -> float | None:
        """Nothing is to be done: say what could be; when to look for moves again."""
        wall = self._clock.wall()
        if leisure is not None:
            # One of the peers looks, and says it.
            is_ours = not delay(snapshot, "suggest", self._node) and self._pace.may_suggest(began)
            if is_ours and (words := self._pace.suggestion(snapshot, leisure, wall)):
                self._events.emit("rebalance.suggested", f"`ozy rebalance` would move {words}")
            self._pace.looked(began, self._clock.boot())
        return self._pace.look_again(snapshot, self._clock.boot(), wall)

    def _propose(
        self,
        snapshot: Snapshot,
        dead: frozenset[NodeName],
        fenced: frozenset[NodeName],
    ) -> Proposal | None:
        lately = self._displacements.lately()
        return propose(snapshot, dead, self._clock.wall(), fenced, lately)

    def _propose_again(
        self, snapshot: Snapshot, proposal: Proposal, leisure: Leisure
    ) -> Proposal | None:
        """What there is to do at leisure where it is decided, and nobody is answered meanwhile.

        In a large cluster only what was found is looked at again; if that is nothing so many times
        in a row, all of it.
        """
        wall = self._clock.wall()
        if self._is_long and self._outdated < OUTDATED_MAX:
            found = propose_again(snapshot, proposal, wall, leisure)
            self._outdated = 0 if found else self._outdated + 1
            return found
        self._outdated = 0
        return at_once(proposing_at_leisure(snapshot, wall, leisure))

    def _deadline(self, snapshot: Snapshot, now: float) -> float | None:
        """When to look whether a drain is past its deadline or a freeze over: by the wall clock."""
        wall = self._clock.wall()
        frozen = cluster_frozen(snapshot.settings, wall)
        deadline = _sooner(next_deadline(snapshot, wall), frozen.until if frozen else None)
        return None if deadline is None else now + min(deadline - wall, DEADLINE_LOOK_SECONDS)

    async def _commit(
        self, seen: Snapshot, loss: Loss, leisure: Leisure | None, proposal: Proposal
    ) -> float | None:
        """Decide on what is true at the commit, not on what was true when the wait began.

        Where that is the very same, and a moment ago, it is decided already.
        """
        session, since = self._session, self._clock.boot()

        parts = _parts(loss, proposal.plan)

        def decide(snapshot: Snapshot) -> Plan | None:
            if self._membership.session is not session:
                return None  # who is dead was judged in a session that is over
            # While this waited for its turn, more nodes may have gone, or the dead come back.
            now = self._look_for_losses(snapshot, self._clock.boot())
            dead, fenced = loss.dead & now.dead, loss.fenced & now.fenced
            is_same = _is_same(snapshot, seen, proposal.plan)
            is_same = is_same and (dead, fenced) == (loss.dead, loss.fenced)
            if is_same and self._clock.boot() < since + MOMENT_SECONDS:
                return proposal.plan
            found = self._propose(snapshot, dead, fenced)
            if found is None and leisure is not None:
                found = self._propose_again(snapshot, proposal, leisure)
            if found is None or (parts > 1 and not found.plan.dead):
                return None  # the last part was smaller than the first
            return found.plan

        # Of many losses the next part is decided while the one before is on its way to the store.
        outcomes = await asyncio.gather(
            *(self._committer.commit(decide, is_part=parts > 1) for _ in range(parts)),
            return_exceptions=True,
        )
        is_done = [self._told(outcome) for outcome in outcomes]
        if not all(is_done):
            return self._clock.boot() + RETRY_SECONDS
        self._first_wanted = ("", 0.0)
        return self._clock.boot()  # there may be more to do

    def _told(self, outcome: Committed | Problem | BaseException) -> bool:
        """Say what became of a plan; False: try again in a while."""
        if isinstance(outcome, Committed):
            if not outcome.plan.is_empty:
                self._events.narrate(outcome.plan)
            return True
        if isinstance(outcome, BaseException) and not isinstance(outcome, StoreError):
            raise outcome
        reason = outcome.detail if isinstance(outcome, Problem) else str(outcome)
        warn("schedule.not_committed", reason=reason)
        return False

    def _fence_seconds(self) -> float:
        session = self._session
        return fence_seconds(session.lease.ttl) if session else self._breaker_seconds

    def _look_for_losses(self, snapshot: Snapshot, now: float) -> Loss:
        self._look_for_life(snapshot, now)
        missing, there = missing_in(snapshot), snapshot.nodes
        for name in [n for n in self._missing_since if n in there and n not in missing]:
            del self._missing_since[name]
        for name in missing:
            self._missing_since.setdefault(name, now)
        loss = judge_loss(
            snapshot,
            missing_since=self._missing_since,
            seen_alive=self._seen_alive,
            seen_there=self._seen_there,
            started=self._started,
            now=now,
            held_back=self._held_back,
            breaker_seconds=self._breaker_seconds,
            fence_seconds=self._fence_seconds(),
        )
        if loss.held - self._held_back and not delay(snapshot, "held back", self._node):
            self._events.emit("node.held_back", loss.reason)
        self._held_back = loss.held
        return loss

    def _look_for_life(self, snapshot: Snapshot, now: float) -> None:
        """Who has shown in our session that it lives.

        A record that is older than the session does not: when all hosts lose power at once, it is
        there again with the store, as we are, and lapses only now, or once more after an election.
        A host that takes longer to boot is not to be emptied for that. A record made since, word of
        an instance, or a record that outlived the lease does show it.
        """
        session = self._session
        if session is None:
            return
        is_settled = now >= self._started + STALE_LEASES * session.lease.ttl
        if self._first_told is None:
            self._first_told = snapshot.statuses
        elif not is_settled:
            told = self._first_told
            self._seen_alive |= {
                node
                for node, row in snapshot.told.by_node.items()
                if node not in self._seen_alive
                and any(told.get((node, job)) != status for job, status in row.items())
            }
        there, alive = snapshot.nodes, alive_in(snapshot)
        self._seen_alive.update(
            name
            for name in alive - self._seen_alive
            if there[name].presence_revision > session.revision
        )
        if is_settled:
            self._seen_alive |= self._present & there.keys()
        self._present -= missing_in(snapshot).keys()
        self._present |= alive
        self._seen_there |= alive


def _sooner(one: float | None, other: float | None) -> float | None:
    times = [time for time in (one, other) if time is not None]
    return min(times, default=None)


def _parts(loss: Loss, first: Plan) -> int:
    """How many plans to make at once: of a repair as many as it takes, each like the first."""
    left = loss.dead - first.dead
    if not (first.dead and left):
        return 1
    return min(1 - (-len(left) // len(first.dead)), PARTS_MAX)


def _is_same(snapshot: Snapshot, seen: Snapshot, plan: Plan) -> bool:
    """Whether a plan that was decided on one is what would be decided on the other.

    What nodes tell of their instances is nothing to a repair.
    """
    return snapshot is seen or (
        bool(plan.dead)
        and snapshot.nodes is seen.nodes
        and snapshot.jobs is seen.jobs
        and snapshot.assignments is seen.assignments
        and snapshot.settings == seen.settings
    )


def _schedules(node: Node) -> bool:
    return node.presence is not None and node.presence.schedules


def delay(snapshot: Snapshot, what: str, node: NodeName) -> float:
    """How long this peer lets others go first: its rank among those that schedule times 50 ms."""
    order = sorted(
        snapshot.nodes_where(_schedules),
        key=lambda name: hashlib.blake2b(f"{what}\0{name}".encode(), digest_size=8).digest(),
    )
    rank = order.index(node) if node in order else len(order)
    return min(rank * RANK_SECONDS, RANK_SECONDS_MAX)
