"""Pools: asks their sources how much is pending, each by one peer at a time, and makes the steps.

Which peer asks is told by a hash of pool and node among the living, so all agree without a word.
When two do not (one has not seen yet that the other is gone), both may ask, but only one makes the
step: the head counts them, and a step is made on the count that was seen when the question was
sent. A period is counted on the peer's own clock from when it saw the last step; nothing here goes
by the wall clock but freeze windows.

A source that hangs or lies costs its own pool a period and nobody else anything: every question is
a task of its own, bounded in time and size.
"""

import asyncio
from dataclasses import dataclass

from ozymandias.core.autoscale import Answer, Asked, plan_look, pools, read_pending, steps_of
from ozymandias.daemon.events import EventLog
from ozymandias.daemon.membership import Membership
from ozymandias.daemon.scheduling import delay
from ozymandias.model.job import Autoscale, JobHead, JobKey, JobRecord, PendingSource
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Clock, PendingWork, SourceFailed, Store, StoreError
from ozymandias.problems import Problem
from ozymandias.store.commit import Committed, Committer
from ozymandias.store.mirror import Mirror
from ozymandias.telemetry import warn

GATHER_SECONDS = 0.5  # what changes within is looked at once
AT_ONCE_MAX = 64  # questions under way
ASK_SECONDS_MAX = 15.0  # the adapter's own limit is below; this one holds whatever it does
KEY_BYTES_MAX = 64 * 2**10


@dataclass(slots=True, kw_only=True)
class _Turn:
    """One pool as this peer knows it: when it is due, on the boot clock."""

    uid: str
    steps: int
    due: float
    is_asking: bool = False


class Autoscaler:
    def __init__(
        self,
        *,
        node: NodeName,
        mirror: Mirror,
        committer: Committer,
        membership: Membership,
        events: EventLog,
        clock: Clock,
        store: Store,
        work: PendingWork,
    ) -> None:
        self._node = node
        self._mirror = mirror
        self._committer = committer
        self._membership = membership
        self._events = events
        self._clock = clock
        self._store = store
        self._work = work
        self._turns: dict[JobKey, _Turn] = {}
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._membership.wait_session()
                revision = self._mirror.revision
                due = self._begin(group)
                await self._sleep(revision, due)

    async def _sleep(self, revision: int, due: float | None) -> None:
        """Until the cluster changes, a little gathered, or until a pool is due."""
        timeout = None if due is None else max(0.0, due - self._clock.boot())
        try:
            async with asyncio.timeout(timeout):
                await self._mirror.changed(revision)
                await asyncio.sleep(GATHER_SECONDS)
        except TimeoutError:
            pass

    def _begin(self, group: asyncio.TaskGroup) -> float | None:
        """Ask for every pool that is due and ours; when the next one will be."""
        now, snapshot = self._clock.boot(), self._mirror.snapshot()
        next_due: list[float] = []
        seen = set()
        for record, rules in pools(snapshot):
            seen.add(record.key)
            turn = self._turn(record, rules, now)
            if not self._is_ours(snapshot, record.key):
                continue
            if turn.due <= now and not turn.is_asking:
                turn.is_asking, turn.due = True, now + rules.every_seconds
                group.create_task(self._look(record, rules, turn), name=f"look {record.key}")
            next_due.append(max(turn.due, now + GATHER_SECONDS))
        for key in self._turns.keys() - seen:
            del self._turns[key]
        return min(next_due, default=None)

    def _turn(self, record: JobRecord, rules: Autoscale, now: float) -> _Turn:
        """A new pool is asked for at once; after a step, whoever made it, a period passes."""
        head, turn = record.head, self._turns.get(record.key)
        if turn is None or turn.uid != head.uid:
            first = now if head.look is None else now + rules.every_seconds
            turn = self._turns[record.key] = _Turn(uid=head.uid, steps=steps_of(head), due=first)
        elif turn.steps != steps_of(head):
            turn.steps, turn.due = steps_of(head), now + rules.every_seconds
        turn.due = min(turn.due, now + rules.every_seconds)  # of a file that was changed since
        return turn

    def _is_ours(self, snapshot: Snapshot, key: JobKey) -> bool:
        return delay(snapshot, f"pool {key}", self._node) == 0

    async def _look(self, record: JobRecord, rules: Autoscale, turn: _Turn) -> None:
        try:
            async with self._slots:
                answer = await self._ask(rules)
            await self._act(record, answer)
        finally:
            turn.is_asking = False

    async def _ask(self, rules: Autoscale) -> Answer:
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                if rules.source is PendingSource.KEY:
                    data = await self._read_key(rules.target)
                else:
                    data = await self._work.ask(rules)
        except TimeoutError:
            return Answer(pending=None, problem=f"no answer within {ASK_SECONDS_MAX:g} s")
        except SourceFailed as error:
            return Answer(pending=None, problem=str(error))
        except StoreError as error:
            return Answer(pending=None, problem=f"the key can't be read: {type(error).__name__}")
        return read_pending(data, rules.path)

    async def _read_key(self, key: str) -> bytes:
        found = await self._store.get(key.encode())
        if found is None:
            raise SourceFailed("there is no such key")
        if len(found.value) > KEY_BYTES_MAX:
            raise SourceFailed(f"the value is over {KEY_BYTES_MAX // 1024} KiB")
        return found.value

    async def _act(self, record: JobRecord, answer: Answer) -> None:
        """``record`` is as it was when the question was sent."""
        key, head, session = record.key, record.head, self._membership.session
        asked = Asked(
            uid=head.uid,
            version=head.version,
            steps=steps_of(head),
            by=self._node,
            now=self._clock.wall(),
        )
        before: list[JobHead] = []

        def decide(snapshot: Snapshot) -> Plan | None:
            if session is None or self._membership.session is not session:
                return None
            if found := snapshot.jobs.get(key):
                before[:] = [found.head]
            return plan_look(snapshot, key, answer, asked)

        try:
            outcome = await self._committer.commit(decide)
        except StoreError as error:
            warn("pool.not_committed", pool=str(key), reason=str(error))
            return
        if isinstance(outcome, Problem):
            warn("pool.not_committed", pool=str(key), reason=outcome.detail)
        elif before:
            self._tell(key, before[0], outcome)

    def _tell(self, key: JobKey, before: JobHead, outcome: Committed) -> None:
        """Steps, and the beginning and the end of a source's silence; not every number it says."""
        change = outcome.plan.job
        if change is None or change.head is None or change.head.look is None:
            return
        look, last = change.head.look, before.look
        if change.head.wanted != before.wanted:
            self._events.emit("pool.scaled", outcome.plan.reason, job=key)
            self._events.narrate(outcome.plan)
        elif look.pending is None and (last is None or last.reason != look.reason):
            self._events.emit("pool.source_failed", look.reason, job=key)
        elif look.pending is not None and last is not None and last.pending is None:
            self._events.emit("pool.source_back", look.reason, job=key)
