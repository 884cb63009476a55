"""The only door for schedules: a Plan becomes one compare-and-swap transaction.

A transaction compares everything that the decision relied on:

1. the ledger of every node it touches (and rewrites it: all changes to a node meet there),
2. the head of every job that gains an instance or changes (and rewrites it),
3. the presence of every node that gains an instance, the absence of every node declared dead,
4. the committer's own presence, create revision and lease: who lost its lease can't commit.

The new assignments and ledgers are computed by `core.apply`, which asserts capacity: a plan that
overfills a node never leaves this process. A lost race is an ordinary outcome: once the mirror
shows what was different, the decision is made again, within a limit. An answer that never came is
asked for by the same transaction again: two copies of one compare-and-swap can't both win.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ozymandias.core.apply import apply, touched
from ozymandias.core.routes import Names, dns_records
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import (
    Ambiguous,
    Clock,
    Compare,
    Delete,
    Get,
    LeaseLost,
    Op,
    Put,
    Store,
    TxnResult,
)
from ozymandias.problems import CONFLICT, Problem
from ozymandias.store import codec, keys
from ozymandias.store.mirror import Mirror
from ozymandias.store.names import delete_records
from ozymandias.telemetry import COMMITS

Decide = Callable[[Snapshot], Plan | Problem | None]

ATTEMPTS_MAX = 24  # lost races before the caller is told
REPEATS_MAX = 5  # of a transaction whose answer never came
BACK_OFF_SECONDS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
STUCK_SECONDS = 10.0  # how long the mirror may take to show why a race was lost

NOTHING = Plan(reason="nothing to change")


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    plan: Plan
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A plan made ready to send. ``marked`` are the keys whose values carry the commit's id."""

    compare: tuple[Compare, ...]
    then: tuple[Op, ...]
    marked: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Something the plan relied on had changed, at this revision or (0) by a deletion."""

    revision: int


class Committer:
    """Commits plans in the name of one daemon, one at a time, so that it never races itself."""

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

    async def commit(self, decide: Decide) -> Committed | Problem:
        """Decide on the newest snapshot and commit; decide again whenever a race was lost.

        Raises Unavailable, Ambiguous (the outcome could not be found out) and LeaseLost.
        """
        async with self._turn:
            for attempt in range(ATTEMPTS_MAX):
                snapshot = self._mirror.snapshot()
                plan = decide(snapshot)
                if isinstance(plan, Problem):
                    return plan
                if plan is None or plan.is_empty:
                    return Committed(plan=plan or NOTHING, revision=snapshot.revision)
                revision = await self._try(snapshot, plan)
                if revision is not None:
                    COMMITS.labels("committed").inc()
                    return Committed(plan=plan, revision=revision)
                COMMITS.labels("conflict").inc()
                pause = BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS) - 1)]
                await asyncio.sleep(pause * self._clock.random.uniform(0.5, 1.5))
        COMMITS.labels("gave_up").inc()
        return CONFLICT(
            f"The change lost {ATTEMPTS_MAX} races against other changes.",
            hint="Nothing was changed; try again in a moment.",
            retry_after_seconds=1,
        )

    async def _try(self, snapshot: Snapshot, plan: Plan) -> int | None:
        """The revision of the commit, or None when something it relied on had changed."""
        commit = f"{self._clock.random.getrandbits(64):016x}"
        transaction = prepare(snapshot, plan, commit, self._fence(), self._names)
        outcome = await send(self._store, transaction, commit)
        if not isinstance(outcome, Lost):
            await self._mirror.reached(outcome, STUCK_SECONDS)
            return outcome
        self._fence()  # lost meanwhile? then there is no next try
        # The store is ahead of the snapshot: decide again once the mirror shows the difference.
        seen = max(outcome.revision, snapshot.revision + 1)
        await self._mirror.reached(seen, STUCK_SECONDS)
        return None


async def send(store: Store, transaction: Transaction, commit: str) -> int | Lost:
    """Send until there is an answer: the revision at which it was applied, or Lost.

    After an Ambiguous answer the same compares are sent again. If they hold now, the first copy
    was not applied and never will be. If they fail, the commit's id in a marked value tells that
    it was; without it the caller decides anew on what is there, which is right in either case.
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
        if result.succeeded:
            return result.revision
        if repeat and (revision := _found(result, len(look), commit)):
            return revision
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


def _check_fence(compare: tuple[Compare, ...], result: TxnResult, skip: int) -> None:
    """Raise LeaseLost when our own presence record is not under our lease any more."""
    leases = [c for c in compare if c.target == "lease"]
    for wanted, kvs in zip(leases, result.results[skip:], strict=True):
        if not kvs or kvs[0].lease != wanted.operand:
            raise LeaseLost(f"{wanted.key.decode()} is not held by this daemon any more")


# From a plan to a transaction -------------------------------------------------------------------


def prepare(
    snapshot: Snapshot, plan: Plan, commit: str, fence: tuple[Compare, ...], names: Names
) -> Transaction:
    """Everything the plan relied on as compares, everything it changes as operations."""
    after = apply(snapshot, plan, commit)
    nodes, pairs = touched(plan)
    compare: list[Compare] = list(fence)
    then: list[Op] = []
    marked: list[bytes] = []
    for node in sorted(nodes):
        key = keys.ledger(node)
        compare.append(Compare(key, "mod", "=", snapshot.nodes[node].ledger_revision))
        then.append(Put(key, codec.encode(after.nodes[node].ledger)))
        marked.append(key)
    for pair in sorted(pairs):
        assignment = after.assignments.get(pair)
        key = keys.assignment(*pair)
        then.append(Put(key, codec.encode(assignment.groups)) if assignment else Delete(key))
    fenced = {c.key for c in fence}
    for node in sorted(_gaining(plan)):
        if keys.node(node) not in fenced:  # the fence compares our own record already
            epoch = snapshot.nodes[node].presence_revision
            assert epoch, f"{node} gains an instance but is not there"
            compare.append(Compare(keys.node(node), "create", "=", epoch))
    for node in sorted(plan.dead):
        compare.append(Compare(keys.node(node), "version", "=", 0))
        then.extend(_forget(snapshot, node, names))
    for job in sorted(_changing(plan)):
        record = snapshot.jobs.get(job)
        key = keys.job(job)
        compare.append(Compare(key, "mod", "=", record.head_revision if record else 0))
        new = after.jobs.get(job)
        head = replace(new.head, commit=commit) if new else None
        then.append(Put(key, codec.encode(head)) if head else Delete(key))
        marked.append(key)
    if plan.job:
        _change_job(snapshot, plan.job, compare, then)
    return Transaction(compare=tuple(compare), then=tuple(then), marked=tuple(marked))


def _gaining(plan: Plan) -> set[NodeName]:
    return {edit.node for edit in plan.edits if edit.before is None}


def _changing(plan: Plan) -> set[JobKey]:
    """Jobs whose head is compared and rewritten: those that change or gain a slot."""
    gaining = {edit.job for edit in plan.edits if edit.before is None}
    return gaining | ({plan.job.key} if plan.job else set())


def _change_job(
    snapshot: Snapshot, change: JobChange, compare: list[Compare], then: list[Op]
) -> None:
    if change.version:
        key = keys.version(change.key, change.version.version)
        compare.append(Compare(key, "version", "=", 0))
        then.append(Put(key, codec.encode(change.version)))
    owner = codec.encode(f"{change.key.namespace}/{change.key.name}")
    for claim in sorted(change.claim):
        if snapshot.claims.get(claim) != change.key:
            compare.append(Compare(keys.claim(claim), "version", "=", 0))
            then.append(Put(keys.claim(claim), owner))
    then.extend(Delete(keys.claim(claim)) for claim in sorted(change.disclaim))
    then.extend(Delete(keys.version(change.key, number)) for number in change.drop_versions)


def _forget(snapshot: Snapshot, node: NodeName, names: Names) -> Iterator[Op]:
    """Delete a dead node's statuses and the names of its healthy instances."""
    prefix = keys.statuses(node)
    yield Delete(prefix, keys.prefix_end(prefix))
    for (name, job), status in sorted(snapshot.statuses.items()):
        record = snapshot.jobs.get(job)
        if name != node or record is None:
            continue
        for slot, instance in sorted(status.instances.items()):
            version = record.versions.get(instance.version)
            if instance.healthy and instance.address and version:
                yield from delete_records(dns_records(version.job, slot, instance.address, names))
