"""The only door for schedules: plans become one compare-and-swap transaction.

A transaction compares everything that the decisions relied on:

1. the ledger of every node it touches (and rewrites it: all changes to a node meet there),
2. the head of every job that gains an instance or changes (and rewrites it),
3. the presence of every node that gains an instance, the absence of every node declared dead,
4. the committer's own presence, create revision and lease: who lost its lease can't commit.

Whoever has the turn takes along everybody who waits for it (`store/batch.py`): a thousand
submissions are a few dozen transactions. New assignments and ledgers are computed by `core.apply`,
which asserts capacity: a plan that overfills a node never leaves this process. A lost race is an
ordinary outcome: once the mirror shows what was different, all is decided again, within a limit
and in ever smaller batches. An answer that never came is asked for by the same transaction again:
two copies of one compare-and-swap can't both win.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ozymandias.core.routes import Names
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import (
    Ambiguous,
    Clock,
    Compare,
    Get,
    LeaseLost,
    Store,
    TxnResult,
    Unavailable,
)
from ozymandias.problems import CONFLICT, Problem
from ozymandias.store.batch import PLANS_MAX, Batch, Transaction
from ozymandias.store.mirror import Mirror
from ozymandias.telemetry import COMMITS

Decide = Callable[[Snapshot], Plan | Problem | None]

ATTEMPTS_MAX = 24  # lost races before the caller is told
REPEATS_MAX = 5  # of a transaction whose answer never came
BACK_OFF_SECONDS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
DECIDING_SECONDS_MAX = 0.1  # for one batch: the older a snapshot, the likelier is a lost race
STUCK_SECONDS = 10.0  # how long the mirror may take to show why a race was lost

NOTHING = Plan(reason="nothing to change")


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    plan: Plan
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Something the plan relied on had changed, at this revision or (0) by a deletion."""

    revision: int


@dataclass(slots=True, eq=False)
class _Ticket:
    """One caller of `commit`: what it wants decided, and where its answer goes."""

    decide: Decide
    answer: asyncio.Future[Committed | Problem]
    decided: Plan | Problem | None = None

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
    """Commits plans in the name of one daemon, one transaction at a time: it never races itself."""

    def __init__(
        self,
        *,
        store: Store,
        mirror: Mirror,
        fence: Callable[[], tuple[Compare, ...]],
        names: Names,
        clock: Clock,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._fence = fence
        self._names = names
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting: deque[_Ticket] = deque()

    async def commit(self, decide: Decide) -> Committed | Problem:
        """Decide on the newest state and commit; decide again whenever a race was lost.

        Raises Unavailable, Ambiguous (the outcome could not be found out) and LeaseLost.
        """
        ticket = _Ticket(decide, asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        try:
            async with self._turn:
                while not ticket.answer.done():  # who had the turn before may have taken it along
                    await self._take_turn()
            return await ticket.answer
        finally:
            ticket.answer.cancel()  # of a caller that went away: nothing is decided for it

    async def _take_turn(self) -> None:
        """Settle as many of those who wait as go into one transaction, the first in any case."""
        tickets: list[_Ticket] = []
        is_sent = False
        try:
            for attempt in range(ATTEMPTS_MAX):
                # A batch that lost is tried again smaller: the quicker it is, the likelier it wins.
                batch = await self._decide_all(tickets, max(1, PLANS_MAX >> 2 * attempt))
                is_sent = bool(batch.plans)
                revision = await self._try(batch) if is_sent else batch.before.revision
                if revision is not None:
                    COMMITS.labels("committed").inc(len(batch.plans))
                    break
                is_sent = False
                COMMITS.labels("conflict").inc()
                pause = BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS) - 1)]
                await asyncio.sleep(pause * self._clock.random.uniform(0.5, 1.5))
            else:
                COMMITS.labels("gave_up").inc(len(tickets))
        except Exception as error:
            for ticket in tickets:
                ticket.fail(error)
        except asyncio.CancelledError:
            self._leave(tickets, is_sent)
            raise
        else:
            for ticket in tickets:
                ticket.decided = ticket.decided if revision is not None else _gave_up()
                ticket.settle(revision or 0)

    def _leave(self, tickets: list[_Ticket], is_sent: bool) -> None:
        """Who has the turn is cancelled: the others go on, unless theirs was on the way."""
        if not is_sent:
            self._waiting.extendleft(reversed(tickets))
            return
        for ticket in tickets:
            ticket.fail(Ambiguous("the request that committed for others was broken off"))

    async def _decide_all(self, tickets: list[_Ticket], size: int) -> Batch:
        """Decide for those of the last attempt and for who came since, each on top of the other.

        ``tickets`` are afterwards those whose answer hangs on the batch.
        """
        self._waiting.extendleft(reversed(tickets))
        tickets.clear()
        batch = Batch(self._mirror.snapshot(), f"{self._clock.random.getrandbits(64):016x}")
        until = self._clock.boot() + DECIDING_SECONDS_MAX
        while self._waiting and len(batch.plans) < size and self._clock.boot() <= until:
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
            if batch.plans:
                tickets.append(ticket)
                await asyncio.sleep(0)  # many decisions take a while; others want to run meanwhile
            else:
                ticket.settle(batch.before.revision)
        return batch

    def _decide(self, ticket: _Ticket, batch: Batch) -> bool:
        plan = ticket.decided = ticket.decide(batch.after)
        if isinstance(plan, Plan) and not plan.is_empty:
            if not batch.takes(plan):
                return False
            batch.add(plan)
        return True

    async def _try(self, batch: Batch) -> int | None:
        """The revision of the commit, or None when something it relied on had changed."""
        transaction = batch.transaction(self._fence(), self._names)
        outcome = await send(self._store, transaction, batch.commit)
        if not isinstance(outcome, Lost):
            await self._mirror.reached(outcome, STUCK_SECONDS)
            return outcome
        self._fence()  # lost meanwhile? then there is no next try
        # The store is ahead of the snapshot: decide again once the mirror shows the difference.
        seen = max(outcome.revision, batch.before.revision + 1)
        await self._mirror.reached(seen, STUCK_SECONDS)
        return None


def _gave_up() -> Problem:
    return CONFLICT(
        f"The change lost {ATTEMPTS_MAX} races against other changes.",
        hint="Nothing was changed; try again in a moment.",
        retry_after_seconds=1,
    )


async def send(store: Store, transaction: Transaction, commit: str) -> int | Lost:
    """Send until there is an answer: the revision at which it was applied, or Lost.

    After an Ambiguous answer the same compares are sent again. If they hold now, the first copy
    was not applied and never will be. If they fail, the commit's id in a marked value tells that
    it was, and a marked value as old as it was tells that it was not. Where all were rewritten by
    others since, nobody can tell: deciding anew could do it a second time, over what came between.
    """
    compare, then = transaction.compare, transaction.then
    look = tuple(Get(key) for key in transaction.marked)
    fence = tuple(Get(c.key) for c in compare if c.target == "lease")
    for repeat in range(REPEATS_MAX):
        try:
            result = await store.txn(compare, then, (*look, *fence))
        except Ambiguous:
            COMMITS.labels("ambiguous").inc()
            if repeat == REPEATS_MAX - 1:
                raise
            continue
        except Unavailable as error:
            if repeat:  # the copy before this one is still in doubt
                raise Ambiguous(str(error)) from error
            raise
        if result.succeeded:
            return result.revision
        if repeat and (revision := _found(result, len(look), commit)):
            return revision
        if repeat and not _is_untouched(transaction, result):
            raise Ambiguous("others have changed the same since")
        _check_fence(compare, result, len(look))
        return Lost(
            revision=max((kv.mod_revision for kvs in result.results for kv in kvs), default=0)
        )
    raise Ambiguous("no answer")


def _found(result: TxnResult, marked: int, commit: str) -> int | None:
    mark = commit.encode()
    for kvs in result.results[:marked]:
        for kv in kvs:
            if mark in kv.value:
                return kv.mod_revision
    return None


def _is_untouched(transaction: Transaction, result: TxnResult) -> bool:
    """Whether something that the transaction would have rewritten is as it was before.

    What is not there now, as it was not before, tells nothing: it may have come and gone since.
    """
    before = {c.key: c.operand for c in transaction.compare if c.target == "mod"}
    found = zip(transaction.marked, result.results, strict=False)
    return any(
        before.get(key) == kvs[0].mod_revision for key, kvs in found if key in before and kvs
    )


def _check_fence(compare: tuple[Compare, ...], result: TxnResult, skip: int) -> None:
    """Raise LeaseLost when our own presence record is not under our lease any more."""
    leases = [c for c in compare if c.target == "lease"]
    for wanted, kvs in zip(leases, result.results[skip:], strict=True):
        if not kvs or kvs[0].lease != wanted.operand:
            raise LeaseLost(f"{wanted.key.decode()} is not held by this daemon any more")
