"""The only door for schedules: plans become one compare-and-swap transaction.

A transaction compares everything that the decisions relied on:

1. the ledger of every node it touches (and rewrites it: all changes to a node meet there),
2. the head of every job that gains an instance or changes (and rewrites it),
3. the presence of every node that gains an instance, the absence of every node declared dead,
4. the settings of the cluster, where an instance is placed: it may be there by a pool of theirs,
5. the committer's own presence, create revision and lease: who lost its lease can't commit.

All who wait at the same time are decided for together (`store/batch.py`): a thousand submissions
are a few dozen transactions. While one is on its way the next is decided on what it will leave
behind, and made ready, so that the store and this process work at the same time. A large one even
leaves before the answer, unless races were lost lately: it compares what the one before it writes,
and so can't be there without it. `Committer.run` does all of that, and who asks does no more than
wait: a caller that goes away is nobody else's loss. New assignments and ledgers are computed by
`core.apply`, which asserts capacity: a plan that overfills a node never leaves this process.

A lost race is an ordinary outcome: once the mirror shows what was different, all is decided again,
within a limit, and so is what was decided on top of it. Batches become smaller with every loss and
larger again while all goes well: the more nodes a transaction touches, the likelier it loses to
another peer's. An answer that never came is another matter (`store/sending.py`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from ozymandias.core.routes import Names
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted
from ozymandias.ports import (
    Ambiguous,
    Clock,
    Compare,
    Put,
    Store,
    StoreError,
    TooLarge,
    Unavailable,
)
from ozymandias.problems import CONFLICT, PLAN_TOO_LARGE, Problem
from ozymandias.store import keys
from ozymandias.store.batch import COMPARES_ANYWHERE, COMPARES_MAX, PLACES_MAX, PLANS_MAX, Batch
from ozymandias.store.chain import Chain
from ozymandias.store.mirror import Mirror
from ozymandias.store.sending import Lost, send, send_ahead
from ozymandias.store.transaction import Draft, completed, drafted
from ozymandias.store.under_way import UnderWay
from ozymandias.telemetry import COMMITS

Decide = Callable[[Snapshot], Plan | Problem | None]

ATTEMPTS_MAX = 24  # lost races before the caller is told
BACK_OFF_SECONDS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
DECIDING_SECONDS_MAX = 0.1  # for one batch: the older a snapshot, the likelier is a lost race
BATCH_SECONDS_MAX = 0.25  # with all that this process does in between
HELD_SECONDS_MAX = 0.2  # how long a decision may wait for the answer to the one before it
UNDER_WAY_MAX = 2  # transactions: the store has one to work at while the other travels
AHEAD_BYTES_MIN = 300_000  # about: what is smaller may as well wait, and others with it
AHEAD_BYTES_MAX = 1_500_000  # about: with the values that it compares; etcd takes 1.5 MiB
STUCK_SECONDS = 10.0  # how long the mirror may take to show what it must show
# Between these factors about one transaction in thirty is lost when peers race all the time.
SHRINK, GROW = 0.25, 1.05

NOTHING = Plan(reason="nothing to change")
REHEARSED_MIN = 32  # places; any etcd takes so many at once
REHEARSAL_SECONDS_MAX = 1.0
NEVER = Compare(keys.FORMAT, "create", "=", -1)
ENDING = "this daemon is being ended"


class Committed(Struct, frozen=True, kw_only=True):
    plan: Plan
    revision: int


@dataclass(slots=True, eq=False)
class _Ticket:
    """One caller of `commit`: what it wants decided, and where its answer goes."""

    decide: Decide
    answer: asyncio.Future[Committed | Problem]
    asked: int  # the last revision of others that could be seen then
    is_part: bool = False  # of more than one transaction takes
    decided: Plan | Problem | None = None
    losses: int = 0

    def settle(self, revision: int) -> None:
        if self.answer.done():
            return
        if isinstance(self.decided, Problem):
            self.answer.set_result(self.decided)
        else:
            self.answer.set_result(Committed(plan=self.decided or NOTHING, revision=revision))

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # looked at: whoever asked may be gone


class Committer:
    """Commits plans in the name of one daemon, one after the other: it never races itself."""

    def __init__(
        self,
        *,
        store: Store,
        mirror: Mirror,
        fence: Callable[[], tuple[Compare, ...]],
        names: Names,
        clock: Clock,
        record: Callable[[Snapshot, Sequence[Plan]], Put | None] = lambda before, plans: None,
        eager: bool = False,
    ) -> None:
        """``record`` is asked for one more put: what the plans of a transaction were decided on.

        ``eager``: whatever may leave before the answer to the one before it does.
        """
        self._record = record
        self._store = store
        self._mirror = mirror
        self._fence = fence
        self._names = names
        self._clock = clock
        self.deciding = asyncio.Lock()  # nobody decides while somebody else has it
        self._under_way = UnderWay()
        self._eager = eager
        self._waiting: deque[_Ticket] = deque()
        self._unanswered: dict[_Ticket, None] = {}  # those who wait, and those decided for
        self._called = asyncio.Event()  # somebody waits
        self._is_over = False
        self._chain = Chain(mirror, clock)
        self._plans_max = float(PLANS_MAX)
        self._places_max = PLACES_MAX
        self._places_known = REHEARSED_MIN  # the store takes so many at once: it was asked
        self._compares_max = COMPARES_MAX
        self._seen_first = 0  # a revision that the mirror must show before anything is decided

    async def commit(self, decide: Decide, *, is_part: bool = False) -> Committed | Problem:
        """Decide on the newest state and commit; decide again whenever a race was lost.

        ``is_part``: of many that wait at once, each as large as a transaction takes, decided on
        what is compared and on who is there: nothing else is tried to be put beside one, and it may
        wait for the answer to the one before it as long as nobody comes or goes.
        The mirror shows it by then, unless it is far behind: what is committed is told in any case.
        Raises Unavailable, Ambiguous (the outcome could not be found out) and LeaseLost.
        """
        if self._is_over:
            raise Unavailable(ENDING)
        answer: asyncio.Future[Committed | Problem] = asyncio.get_running_loop().create_future()
        ticket = _Ticket(decide, answer, self._mirror.others_revision, is_part)
        self._unanswered[ticket] = None
        self._waiting.append(ticket)
        self._called.set()
        try:
            return await answer  # of a caller that goes away it is cancelled: nobody decides for it
        finally:
            del self._unanswered[ticket]

    async def run(self) -> None:
        """Decide for those who wait, and send it, until cancelled. Then all of them are told.

        What is on its way belongs to this, and not to one of those who asked for it: it goes on
        to its answer whoever of them goes away, and ends with the daemon.
        """
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._called.wait()
                    self._called.clear()
                    while self._waiting:
                        await self._take_turn(group)
        finally:
            self._is_over = True
            for ticket in self._waiting:
                ticket.fail(Unavailable(ENDING))
            for ticket in self._unanswered:
                ticket.fail(Ambiguous(ENDING))

    async def rehearse(self, snapshot: Snapshot, plan: Plan) -> Problem | None:
        """Whether the store would take a plan, by its own word: the problem if it is too large.

        It is asked with a compare that never holds, so that nothing is written. Who only wants to
        know does not wait for a store that does not answer.
        """
        if plan.is_divisible or len(plan.pairs) <= self._places_known:
            return None
        batch = Batch(snapshot, "")
        batch.add(plan)
        transaction = completed(drafted(batch, self._names), batch, (NEVER,))
        try:
            async with asyncio.timeout(REHEARSAL_SECONDS_MAX):
                await self._store.txn(transaction.compare, transaction.then)
            self._places_known = len(plan.pairs)
        except TooLarge as error:
            return _too_large(plan, str(error))
        except (StoreError, TimeoutError):
            pass
        return None

    async def _take_turn(self, group: asyncio.TaskGroup) -> None:
        """Settle as many of those who wait as go into one transaction, the first in any case."""
        tickets: list[_Ticket] = []
        try:
            async with self.deciding:
                if self._under_way:
                    await asyncio.sleep(0)  # what is ready leaves before the next is decided
                ready = await self._ready(tickets)
        except Exception as error:
            # Before anybody was decided for it is the same for all who wait.
            for ticket in tickets or self._take_all():
                ticket.fail(error)
            return
        except asyncio.CancelledError:
            self._wait_again(tickets)  # nothing was sent for them
            raise
        if ready is not None:
            group.create_task(self._deliver(*ready, tickets))

    def _take_all(self) -> list[_Ticket]:
        tickets = list(self._waiting)
        self._waiting.clear()
        return tickets

    async def _deliver(self, batch: Batch, draft: Draft, tickets: list[_Ticket]) -> None:
        """Send it, and answer those who asked once the mirror shows it."""
        revision: int | None = None
        try:
            revision = await self._send(batch, draft, tickets)
        except Exception as error:
            batch.is_unknown = not isinstance(error, Unavailable)
            self._chain.broken(batch)
            for ticket in tickets:
                ticket.fail(error)
        finally:
            self._under_way.remove(batch)
        if revision is not None:
            try:
                # Unless it is far behind: what is committed is told in any case.
                with contextlib.suppress(Unavailable):
                    await self._mirror.reached(revision, STUCK_SECONDS)
            finally:
                for ticket in tickets:
                    ticket.settle(revision)
        if not (self._waiting or self.deciding.locked() or self._under_way):
            self._chain.let_go()

    async def _ready(self, tickets: list[_Ticket]) -> tuple[Batch, Draft] | None:
        """A batch whose turn it is to be sent, on top of nothing that failed meanwhile.

        ``tickets`` are afterwards those whose answers hang on it; None: there are none.
        """
        while True:
            await self._mirror.reached(max(self._seen_first, self._chain.late()), STUCK_SECONDS)
            if not self._chain.is_fresh(self._clock.boot()) and self._chain.is_doubtful():
                await self._under_way.at_most(0)
                continue
            links = self._chain.links
            batch = await self._decide_all(tickets)
            if not tickets:
                return None
            batch.until = self._clock.boot() + HELD_SECONDS_MAX
            batch.members = self._mirror.members_revision
            draft = self._drafted(batch)
            await self._under_way.at_most(UNDER_WAY_MAX - 1 if self._goes_ahead(batch) else 0)
            if self._chain.links is links and not self._is_late(batch, tickets):
                self._chain.add(batch)
                self._under_way.add(batch)
                return batch, draft
            self._wait_again(tickets)

    def _is_late(self, batch: Batch, tickets: list[_Ticket]) -> bool:
        """It relies on more than is compared: who is healthy, and who is missed since when."""
        is_late = self._clock.boot() > batch.until
        if is_late and all(ticket.is_part for ticket in tickets):
            is_late = self._mirror.members_revision > batch.members
        return is_late

    def _goes_ahead(self, batch: Batch) -> bool:
        """Whether it may leave before the answer to the one before it.

        A small one does not, for more of those who come meanwhile go into the next. Where races are
        lost two would be lost at once. What is too large with the values that it would compare is
        refused, and sent again. And what is there already is told after the answer.
        """
        if not batch.plans or batch.size_ahead_bytes > AHEAD_BYTES_MAX:
            return False
        is_large = batch.reach.size_bytes >= AHEAD_BYTES_MIN
        return self._eager or (is_large and self._chain.is_calm())

    def _drafted(self, batch: Batch) -> Draft:
        """All that can be done before the batch beneath is committed."""
        record = self._record(batch.before, batch.plans) if batch.plans else None
        draft = drafted(batch, self._names, record)
        return replace(draft, then=self._store.ready(draft.then))

    async def _decide_all(self, tickets: list[_Ticket]) -> Batch:
        """Decide for those who wait, each on top of the other."""
        commit = f"{self._clock.random.getrandbits(64):016x}"
        batch = self._chain.next_batch(commit, self._compares_max)
        spent, until = 0.0, self._clock.boot() + BATCH_SECONDS_MAX
        losses = max((t.losses for t in self._waiting), default=0)
        most = min(int(self._plans_max), max(1, PLANS_MAX >> 2 * losses))
        while self._waiting and len(batch.plans) < most and not batch.is_full:
            began = self._clock.boot()
            if spent > DECIDING_SECONDS_MAX or began > until:
                break
            ticket = self._waiting.popleft()
            if ticket.answer.done():
                continue
            try:
                is_taken = self._decide(ticket, batch)
            except Exception as error:  # a bug in one decision is that caller's alone
                ticket.fail(error)
                continue
            if not is_taken:
                self._waiting.appendleft(ticket)
                break
            tickets.append(ticket)
            if ticket.is_part:
                break  # it fills the transaction
            spent += self._clock.boot() - began
            await asyncio.sleep(0)  # many decisions take a while; others want to run meanwhile
        return batch

    def _decide(self, ticket: _Ticket, batch: Batch) -> bool:
        plan = ticket.decide(batch.after)
        if isinstance(plan, Plan):
            plan = plan.first(self._places_max)
        ticket.decided = plan
        if isinstance(plan, Plan) and not plan.is_empty:
            if not batch.takes(plan):
                return False
            batch.add(plan)
        elif self._chain.is_older(ticket.asked):
            # Nothing compares what a refusal was decided on: who asks knows as much as it must.
            self._chain.lay_anew()
            return False
        return True

    def _wait_again(self, tickets: list[_Ticket]) -> None:
        self._waiting.extendleft(reversed(tickets))
        self._called.set()
        tickets.clear()

    async def _send(self, batch: Batch, draft: Draft, tickets: list[_Ticket]) -> int | None:
        """The revision that those who asked are to see; None if they wait again, or know it all."""
        if not batch.plans:
            # They are to see what this was decided on, or would ask the same again at once.
            links = (link.revision for link in self._chain.links)
            return max(batch.before.revision, *links, 0)
        if batch not in self._chain.links:
            self._wait_again(tickets)  # void before it left
            return None
        batch.then, batch.written = draft.then, draft.written
        fence = self._fence()
        self._mirror.expect(draft.written)
        try:
            if batch.unanswered():
                outcome = await self._send_ahead(batch, draft, fence, tickets)
            else:
                outcome = await self._send_in_turn(batch, draft, fence)
            if isinstance(outcome, int):
                batch.committed(outcome)
                self._mirror.committed(draft.written, outcome)
        except TooLarge as error:
            self._chain.broken(batch)
            self._make_smaller(batch, tickets, str(error))
            return None
        finally:
            if not batch.revision:
                self._mirror.expect_not(draft.written)
        if outcome is None:
            self._chain.broken(batch)
            self._wait_again(tickets)
            return None
        if isinstance(outcome, Lost):
            await self._lost(batch, outcome, tickets)
            return None
        COMMITS.labels("committed").inc(len(batch.plans))
        self._plans_max = min(self._plans_max * GROW, PLANS_MAX)
        self._chain.won()
        return outcome

    async def _send_ahead(
        self, batch: Batch, draft: Draft, fence: tuple[Compare, ...], tickets: list[_Ticket]
    ) -> int | Lost | None:
        """None: nothing was written, for what it was decided on is not there, or is old by now."""
        beneath = batch.unanswered()

        async def in_its_turn(is_doubtful: bool) -> int | Lost | None:
            await self._under_way.answered(beneath)
            if revision := max(below.on_top[batch.commit] for below in beneath):
                return revision  # the answer to one of those has told it
            if not is_doubtful and self._is_late(batch, tickets):
                return None
            if all(below.revision for below in beneath):
                return await self._send_in_turn(batch, draft, fence, is_doubtful=is_doubtful)
            if is_doubtful and any(below.is_unknown for below in beneath):
                raise Ambiguous("nor is it known of what it builds on")
            return None

        for below in beneath:
            below.on_top[batch.commit] = 0
        if len(list(batch.falls_with())) < len(beneath):
            return await in_its_turn(False)  # it could be there without one of those
        outcome = await send_ahead(self._store, completed(draft, batch, fence), in_its_turn)
        if isinstance(outcome, int):
            for below in beneath:
                below.on_top[batch.commit] = outcome
        return outcome

    async def _send_in_turn(
        self,
        batch: Batch,
        draft: Draft,
        fence: tuple[Compare, ...],
        *,
        is_doubtful: bool = False,
    ) -> int | Lost:
        transaction, mark = completed(draft, batch, fence), batch.commit
        try:
            return await send(
                self._store, transaction, mark, on_top=batch.on_top, is_doubtful=is_doubtful
            )
        except Ambiguous:
            if revision := max(batch.on_top.values(), default=0):
                return revision  # what was sent ahead of the answer is there, so this is
            raise

    def _make_smaller(self, batch: Batch, tickets: list[_Ticket], why: str) -> None:
        """Decide again for less at once; what can't be less is too large."""
        is_one, plan = len(batch.plans) == 1, batch.plans[0]
        if is_one and plan.is_divisible and len(plan.pairs) > 1:
            self._places_max = min(self._places_max, max(1, len(plan.pairs) // 2))
        elif not is_one and "operations" in why and self._compares_max > COMPARES_ANYWHERE:
            # Not an etcd that we started: it takes far fewer operations in one transaction.
            self._compares_max = COMPARES_ANYWHERE
        elif not is_one:
            self._plans_max = max(1.0, len(batch.plans) * SHRINK)
        else:
            [refused] = [ticket for ticket in tickets if ticket.decided is plan]
            refused.decided = _too_large(plan, why)
            refused.settle(batch.before.revision)
            tickets.remove(refused)  # whoever came after it was decided for as if it were there
        self._wait_again(tickets)

    async def _lost(self, batch: Batch, lost: Lost, tickets: list[_Ticket]) -> None:
        """All of it is decided again, once the mirror shows what is different."""
        COMMITS.labels("conflict").inc()
        self._chain.broken(batch)
        self._fence()  # lost meanwhile? then there is no next try
        self._plans_max = max(1.0, min(self._plans_max, len(batch.plans)) * SHRINK)
        self._seen_first = max(lost.revision, batch.seen + 1)
        losses = max(ticket.losses for ticket in tickets)
        pause = BACK_OFF_SECONDS[min(losses, len(BACK_OFF_SECONDS) - 1)]
        await asyncio.sleep(pause * self._clock.random.uniform(0.5, 1.5))
        again: list[_Ticket] = []
        for ticket in tickets:
            ticket.losses += 1
            if ticket.losses < ATTEMPTS_MAX:
                again.append(ticket)
                continue
            COMMITS.labels("gave_up").inc()
            ticket.decided = _gave_up()
            ticket.settle(0)
        self._wait_again(again)


def _gave_up() -> Problem:
    return CONFLICT(
        f"The change lost {ATTEMPTS_MAX} races against other changes.",
        hint="Nothing was changed; try again in a moment.",
        retry_after_seconds=1,
    )


def _too_large(plan: Plan, why: str) -> Problem:
    places = max(1, len(plan.pairs))
    most = max(1, min(places // 2, PLACES_MAX) * len(plan.edits) // places)
    much = f"{counted(len(plan.edits), 'instance')} in {counted(places, 'place')}"
    return PLAN_TOO_LARGE(
        f"{plan.reason}: that is {much}, and the store does"
        f" not take so much in one transaction ({why}).",
        hint="Nothing was changed. Begin with fewer instances, and change their number by"
        f" {most} at a time, with `ozy scale`.",
    )
