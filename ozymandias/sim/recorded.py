"""Decisions on record, against ground truth (S18): whoever gives work says what it was decided on.

A record lies in the revision that carries the decision out. What it says of the nodes that were
given work is what their ledgers said just before, and it names everything that was given.
"""

from collections.abc import Sequence

from ozymandias.model.decision import Decision
from ozymandias.ports import Event
from ozymandias.sim.truth import Change
from ozymandias.store import codec, keys
from ozymandias.store.decisions import decode


def check_recorded(change: Change, events: Sequence[Event], *, is_ours: bool) -> list[str]:
    """``is_ours``: a daemon wrote the revision, and nobody else could have."""
    records = [e.kv for e in events if e.kv.key.startswith(keys.DECISIONS) and not e.deleted]
    if not is_ours or change.presences:
        return []  # garbage of somebody else's; or a node that joins and keeps what it has
    if not records:
        return [f"S18 {job} is given to {node} without a record" for node, job in change.given]
    found = []
    for kv in records:
        try:
            found += _check(change, decode(kv.value))
        except codec.Undecodable as error:
            found.append(f"S18 the record {kv.key.decode()} can't be read: {error}")
    return found


def _check(change: Change, decision: Decision) -> list[str]:
    found = []
    named = {(step.node, step.job) for step in decision.steps if step.before is None}
    for node, job in sorted(change.given - named):
        if not decision.left_out:
            found.append(f"S18 {job} is given to {node}, and the record does not say so")
    for name, seen in sorted(decision.nodes.items()):
        ledger = change.ledgers.get(name)
        if ledger and (seen.held, seen.promised) != (ledger.held, ledger.promised):
            found.append(f"S18 the record {decision.name} has other sums of {name} than its ledger")
    return found
