"""A transaction sent until there is an answer.

An answer that never came is asked for by the same transaction again: two copies of one
compare-and-swap can't both win. Who lost learns what was different, who lost its lease that.

One may be sent ahead of the answer to the one that it builds on: it compares what that one writes,
so it can't be applied without it. If it comes first it is refused, and sent again in its turn.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ozymandias.ports import (
    KV,
    Ambiguous,
    Compare,
    Get,
    LeaseLost,
    Store,
    StoreError,
    TooLarge,
    TxnResult,
    Unavailable,
)
from ozymandias.store.transaction import Transaction
from ozymandias.telemetry import COMMITS

REPEATS_MAX = 5  # of a transaction whose answer never came
LOOKED_AT_MAX = 32  # values that a lost transaction brings back


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Something the plan relied on had changed, at this revision or (0) by a deletion."""

    revision: int


async def send_ahead(
    store: Store,
    transaction: Transaction,
    in_its_turn: Callable[[bool], Awaitable[int | Lost | None]],
) -> int | Lost | None:
    """The revision at which it was applied, ahead of the answer to what it builds on.

    If it was not, or nobody knows (True), it is sent ``in_its_turn``.
    """
    is_doubtful = False
    try:
        result = await store.txn(transaction.compare, transaction.then)
        if result.succeeded:
            return result.revision
    except Ambiguous:
        COMMITS.labels("ambiguous").inc()
        is_doubtful = True
    except (Unavailable, TooLarge):
        pass  # what is compared takes less room then
    return await in_its_turn(is_doubtful)


async def send(
    store: Store,
    transaction: Transaction,
    commit: str,
    *,
    on_top: dict[str, int] | None = None,
    is_doubtful: bool = False,
) -> int | Lost:
    """Send until there is an answer: the revision at which it was applied, or Lost.

    After an Ambiguous answer the same compares are sent again. If they hold now, the first copy
    was not applied and never will be. If they fail, the commit's id in a marked value tells that
    it was, and a marked value as old as it was tells that it was not. Where all were rewritten by
    others since, nobody can tell: deciding anew could do it a second time, over what came between.

    ``on_top``: commits that can't be there without this one. Where only one of those is found, this
    was applied before it, and at which revision that was is noted there. ``is_doubtful``: a copy of
    this was sent already.
    """
    on_top = {} if on_top is None else on_top
    compare, then = transaction.compare, transaction.then
    look = tuple(Get(key) for key in transaction.marked[:LOOKED_AT_MAX])
    fence = tuple(Get(c.key) for c in compare if c.target == "lease")
    for repeat in range(int(is_doubtful), REPEATS_MAX):
        try:
            result = await store.txn(compare, then, (*look, *fence))
        except Ambiguous:
            COMMITS.labels("ambiguous").inc()
            if repeat == REPEATS_MAX - 1:
                raise
            continue
        except StoreError as error:
            if repeat and not isinstance(error, LeaseLost):
                raise Ambiguous(str(error)) from error  # the copy before this one is still in doubt
            raise
        if result.succeeded:
            return result.revision
        if repeat and (revision := _found(result, len(look), commit)):
            return revision
        for above in on_top if repeat else ():
            if revision := _found(result, len(look), above):
                on_top[above] = revision
                return revision
        if repeat and not _is_untouched(transaction, result, len(look)):
            raise Ambiguous("others have changed the same since")
        _check_fence(compare, result, len(look))
        found = [*result.results, *await _others(store, transaction.marked[LOOKED_AT_MAX:])]
        return Lost(revision=max((kv.mod_revision for kvs in found for kv in kvs), default=0))
    raise Ambiguous("no answer")


async def _others(store: Store, keys: tuple[bytes, ...]) -> tuple[tuple[KV, ...], ...]:
    """What else may have been different, of a transaction that looked at a part of it only."""
    if not keys:
        return ()
    return (await store.txn((), tuple(Get(key) for key in keys))).results


def _found(result: TxnResult, marked: int, commit: str) -> int | None:
    mark = commit.encode()
    for kvs in result.results[:marked]:
        for kv in kvs:
            if mark in kv.value:
                return kv.mod_revision
    return None


def _is_untouched(transaction: Transaction, result: TxnResult, marked: int) -> bool:
    """Whether something that the transaction would have rewritten is as it was before.

    What is not there now, as it was not before, tells nothing: it may have come and gone since.
    """
    before = {c.key: c.operand for c in transaction.compare if c.target == "mod"}
    found = zip(transaction.marked[:marked], result.results[:marked], strict=True)
    return any(
        before.get(key) == kvs[0].mod_revision for key, kvs in found if key in before and kvs
    )


def _check_fence(compare: tuple[Compare, ...], result: TxnResult, skip: int) -> None:
    """Raise LeaseLost when our own presence record is not under our lease any more."""
    leases = [c for c in compare if c.target == "lease"]
    for wanted, kvs in zip(leases, result.results[skip:], strict=True):
        if not kvs or kvs[0].lease != wanted.operand:
            raise LeaseLost(f"{wanted.key.decode()} is not held by this daemon any more")
