"""What happened on this node and what it decided: a ring of 500 records in the store.

`emit` never waits. Records are gathered for a moment and written in batches under the daemon's
fence; while there is no session they are kept, the newest ones, and written once there is one
again.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable

from ozymandias.model.event import EventRecord
from ozymandias.model.instance import Slots, SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Edit, Plan
from ozymandias.ports import Clock, Compare, LeaseLost, Put, Store, StoreError
from ozymandias.store import codec, keys
from ozymandias.store.mirror import Mirror
from ozymandias.telemetry import log, warn

BATCH_MAX = 64
GATHER_SECONDS = 0.2  # what happens within is one write: things rarely happen alone
RETRY_SECONDS = 1.0
INDIVIDUAL_MAX = 20  # more edits of one kind are told as one event per job and node


class EventLog:
    def __init__(
        self,
        *,
        store: Store,
        mirror: Mirror,
        node: NodeName,
        clock: Clock,
        fence: Callable[[], tuple[Compare, ...]],
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._node = node
        self._clock = clock
        self._fence = fence
        self._queue: deque[EventRecord] = deque(maxlen=keys.EVENTS_PER_NODE)
        self._wake = asyncio.Event()
        self._next: int | None = None

    def emit(
        self, kind: str, reason: str, *, job: JobKey | None = None, instance: str = ""
    ) -> None:
        log(
            kind,
            reason=reason,
            **({"job": str(job)} if job else {}),
            **({"instance": instance} if instance else {}),
        )
        self._queue.append(
            EventRecord(
                number=0,
                time=self._clock.wall(),
                node=self._node,
                kind=kind,
                reason=reason,
                namespace=job.namespace if job else "",
                job=job.name if job else "",
                instance=instance,
            )
        )
        self._wake.set()

    def narrate(self, plan: Plan) -> None:
        """Tell what a committed plan changes, each step with its reason."""
        for node in sorted(plan.dead):
            self.emit("node.lost", f"{node} does not answer: its lease has run out")
        for kind, edits in itertools.groupby(sorted(plan.edits, key=_kind), key=_kind):
            for job, instance, reason in _told(tuple(edits)):
                self.emit(kind, reason, job=job, instance=instance)
        for pending in plan.pending:
            self.emit("instance.pending", f"{pending.count} × {pending.reason}", job=pending.job)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()
            # What comes meanwhile is gathered again: else each write takes along only what came
            # during the one before, and a busy daemon writes more of these than schedules.
            writes = -(-len(self._queue) // BATCH_MAX)
            while writes and self._queue:
                if await self._write():
                    writes -= 1
                else:
                    await asyncio.sleep(RETRY_SECONDS)

    async def _write(self) -> bool:
        """One batch; False when it could not be written now. Writing a record twice is harmless."""
        try:
            fence = self._fence()
        except LeaseLost:
            return False
        if self._next is None:
            own = (e.number for e in self._mirror.events() if e.node == self._node)
            self._next = max(own, default=-1) + 1
        batch = list(itertools.islice(self._queue, BATCH_MAX))
        puts = []
        for number, record in enumerate(batch, self._next):
            numbered = _numbered(record, number)
            puts.append(Put(keys.event(self._node, number), codec.encode(numbered)))
        try:
            result = await self._store.txn(fence, puts)
        except StoreError as error:
            warn("events.not_written", reason=str(error))
            return False
        if not result.succeeded:
            return False
        self._next += len(batch)
        # What was dropped from the left meanwhile was among those just written.
        for record in batch:
            if self._queue and self._queue[0] is record:
                self._queue.popleft()
        return True


def _numbered(record: EventRecord, number: int) -> EventRecord:
    return EventRecord(
        number=number,
        time=record.time,
        node=record.node,
        kind=record.kind,
        reason=record.reason,
        namespace=record.namespace,
        job=record.job,
        instance=record.instance,
    )


_KINDS = {
    (None, SlotState.RUNNING): "instance.placed",
    (None, SlotState.WAITING): "instance.waiting",
    (SlotState.RUNNING, SlotState.STOPPING): "instance.stopping",
    (SlotState.WAITING, None): "instance.cancelled",
    (SlotState.WAITING, SlotState.RUNNING): "instance.admitted",
    (SlotState.STOPPING, None): "instance.released",
    (SlotState.RUNNING, None): "instance.lost",
}


def _kind(edit: Edit) -> str:
    return _KINDS.get((edit.before, edit.after), "instance.changed")


def _told(edits: tuple[Edit, ...]) -> Iterable[tuple[JobKey, str, str]]:
    """One line per edit, or per job and node when there are many."""
    if len(edits) <= INDIVIDUAL_MAX:
        for edit in edits:
            yield edit.job, str(edit.instance), _reason(edit)
        return
    groups: dict[tuple[JobKey, NodeName], list[Edit]] = {}
    for edit in edits:
        groups.setdefault((edit.job, edit.node), []).append(edit)
    for (job, _), members in groups.items():
        slots = Slots.of(e.slot for e in members)
        yield job, f"{job}-{slots}", _reason(members[0])


def _reason(edit: Edit) -> str:
    """In plain words, and with the node's name once."""
    return edit.reason if edit.node in edit.reason else f"{edit.node}: {edit.reason}"
