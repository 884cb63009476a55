"""How the host is doing: measured every few seconds, told to the cluster on notable change only.

`core/pressure.py` judges; what it wants told is compared with what the store has, so a record that
went with a lost lease is written again and a quiet host writes nothing. Facts that can't be read
are no reason for anything: the node is not tainted, and says so once.
"""

import asyncio

from ozymandias.core.pressure import NOTHING, Judgement, judge
from ozymandias.core.shed import leavable
from ozymandias.daemon.events import EventLog
from ozymandias.daemon.membership import Membership, Session
from ozymandias.model.node import Load, NodeName
from ozymandias.model.units import counted
from ozymandias.ports import Clock, Gauge, Put, RuntimeFailed, Store, StoreError
from ozymandias.store import codec, keys
from ozymandias.store.mirror import Mirror
from ozymandias.telemetry import warn

EVERY_SECONDS = 5.0


class Measurer:
    def __init__(
        self,
        *,
        node: NodeName,
        gauge: Gauge,
        store: Store,
        mirror: Mirror,
        membership: Membership,
        events: EventLog,
        clock: Clock,
    ) -> None:
        self._node = node
        self._gauge = gauge
        self._store = store
        self._mirror = mirror
        self._membership = membership
        self._events = events
        self._clock = clock
        self._judgement: Judgement = NOTHING
        self._is_blind = False

    @property
    def taint(self) -> str:
        """What the host is short of, told already or not; "" if nothing."""
        return self._judgement.load.taint

    async def run(self) -> None:
        while True:
            session = await self._membership.wait_session()
            await self._measure()
            await self._tell(session)
            await asyncio.sleep(EVERY_SECONDS)

    async def _measure(self) -> None:
        try:
            facts = await self._gauge.read()
        except RuntimeFailed as error:
            if not self._is_blind:
                self._events.emit("node.not_measured", f"{self._node}: {error}")
            self._is_blind, self._judgement = True, NOTHING
            return
        self._is_blind = False
        live = leavable(self._mirror.snapshot(), self._node) if self._judgement.load.taint else []
        self._judgement = judge(
            self._judgement,
            facts,
            live=len(live),
            now=self._clock.boot(),
            wall=self._clock.wall(),
        )

    async def _tell(self, session: Session) -> None:
        node = self._mirror.snapshot().nodes.get(self._node)
        if node is None or self._membership.session is not session:
            return
        before, wanted = node.load or Load(), self._judgement.load
        if before == wanted:
            return
        put = Put(keys.load(self._node), codec.encode(wanted), session.lease.id)
        try:
            result = await self._store.txn(self._membership.fence(), [put])
            if result.succeeded:
                await self._mirror.reached(result.revision, EVERY_SECONDS)
        except StoreError as error:
            warn("load.not_told", reason=str(error))
            return  # if it was written all the same, once more does no harm
        if result.succeeded:
            self._report(before, wanted)

    def _report(self, before: Load, after: Load) -> None:
        if after.taint and not before.taint:
            self._events.emit("node.tainted", f"{self._node} takes no new work: {after.taint}")
        elif before.taint and not after.taint:
            self._events.emit(
                "node.untainted", f"{self._node} takes work again: no more {before.taint}"
            )
        elif after.shed_to >= 0 and after.shed_to != before.shed_to:
            few = counted(after.shed_to, "instance")
            self._events.emit(
                "node.shedding",
                f"{self._node} is to keep {few}: still {after.taint}",
            )
