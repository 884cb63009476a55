"""How long a machine waits before it takes a node's name over from another machine.

Who joins tells which pods are there, and what is not there is started, here or elsewhere. Of the
machine that had the name before it says nothing: that one may be cut off, and runs what it has on.
For most jobs that is a node that was lost. What must never run twice (`on_partition: stop`) is
ended there by the guard within a lease of the record's end, so whoever takes the name over waits as
long as a replacement elsewhere would, while anything of that kind is assigned under the name.

Who had it last, and under which lease, stands in the ledger; nobody knows when its record went. It
is counted from when we first saw that it was gone, on our own clock: too long rather than too
short, and anew after a restart or when another stretch of membership came and went meanwhile.
"""

from dataclasses import dataclass

from ozymandias.core.upkeep import may_still_run
from ozymandias.model.node import NodeName
from ozymandias.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who had the name last: a machine, and the lease under which it joined."""

    machine: str = ""  # "": not known, so it may be any other
    lease: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    seconds: float
    reason: str  # after "waiting for"; the same as long as it is the same wait


class Vacancy:
    """A name without a record, as seen by the machine that wants it."""

    def __init__(self, *, node: NodeName, machine: str, seconds: float) -> None:
        self._node = node
        self._machine = machine
        self._seconds = seconds
        self._gone: tuple[Holder, float] | None = None  # who, and when it was first seen gone

    def holder(self, snapshot: Snapshot) -> Holder:
        node = snapshot.nodes.get(self._node)
        return Holder(machine=node.ledger.machine, lease=node.ledger.lease) if node else Holder()

    def seen_gone(self, holder: Holder, now: float) -> None:
        """There is no record. ``holder`` was read before that was asked: its record is gone.

        A record never comes back under the same lease, so what was gone once stays gone.
        """
        if self._gone is None or self._gone[0] != holder:
            self._gone = (holder, now)

    def wait(self, snapshot: Snapshot, now: float) -> Wait | None:
        """What is to be waited for before joining on what the snapshot says; None: nothing."""
        holder = self.holder(snapshot)
        if holder.machine == self._machine:
            return None
        there = sorted(snapshot.on(self._node))
        exclusive = [str(job) for job in there if may_still_run(snapshot, (self._node, job))]
        if not exclusive:
            return None
        since = self._gone[1] if self._gone and self._gone[0] == holder else now
        if now >= since + self._seconds:
            return None
        who = "another machine" if holder.machine else "perhaps another machine"
        reason = (
            f"{who} that was {self._node} before to have ended {', '.join(exclusive)}, which must"
            f" never run twice ({self._seconds:g} s from when this daemon saw it gone)"
        )
        return Wait(seconds=since + self._seconds - now, reason=reason)
