"""Records of decisions in the store: a ring per node, each a compressed value of a few kilobytes.

Making one must not cost a large plan its speed: it is cut before it is written (`core/decision.py`)
and goes into the transaction that carries the decision out, as one more put. They are kept as they
come, compressed, and opened only when somebody asks why.
"""

import functools
import zlib
from collections.abc import Iterable, Sequence

from ozymandias.core.decision import is_recorded, record
from ozymandias.model.decision import Decision
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Clock, Put
from ozymandias.store import codec, keys
from ozymandias.store.mirror import Mirror

BYTES_MAX = 16 * 2**10  # of a record in the store
OPENED_BYTES_MAX = 4 * 2**20
QUICKLY = 1  # zlib's level: a third larger than at its best, and several times as quick


def encode(decision: Decision) -> bytes:
    """Within the limit: what is too large loses its contests, its nodes, then most of its steps."""
    data = zlib.compress(codec.encode(decision), QUICKLY)
    if len(data) > BYTES_MAX and decision.contests:
        decision = replace(decision, contests=())
        data = zlib.compress(codec.encode(decision), QUICKLY)
    if len(data) > BYTES_MAX:
        decision = replace(decision, nodes={}, assignments=())
        data = zlib.compress(codec.encode(decision), QUICKLY)
    while len(data) > BYTES_MAX and decision.steps:
        kept = decision.steps[: len(decision.steps) // 2]
        lost = len(decision.steps) - len(kept)
        decision = replace(decision, steps=kept, left_out=decision.left_out + lost, jobs=())
        data = zlib.compress(codec.encode(decision), QUICKLY)
    return data


@functools.lru_cache(maxsize=1024)
def decode(data: bytes) -> Decision:
    """Undecodable when it is not one of ours."""
    opener = zlib.decompressobj()
    try:
        plain = opener.decompress(data, OPENED_BYTES_MAX)
    except zlib.error as error:
        raise codec.Undecodable(f"Decision: {error}") from error
    return codec.decode(Decision, plain)


def readable(values: Iterable[bytes]) -> list[Decision]:
    """Those that this version can read."""
    found = []
    for value in values:
        try:
            found.append(decode(value))
        except codec.Undecodable:
            continue
    return found


class DecisionLog:
    """Numbers the records of one daemon, and makes them."""

    def __init__(self, *, node: NodeName, mirror: Mirror, clock: Clock) -> None:
        self._node, self._mirror, self._clock = node, mirror, clock
        self._next: int | None = None

    def put(self, snapshot: Snapshot, plans: Sequence[Plan]) -> Put | None:
        """The put that goes along with these plans; None where nothing was placed."""
        if not is_recorded(plans):
            return None
        if self._next is None:
            known = readable(self._mirror.decisions(self._node))
            self._next = max((decision.number for decision in known), default=-1) + 1
        number, self._next = self._next, self._next + 1
        made = record(snapshot, plans, number=number, by=self._node, time=self._clock.wall())
        return Put(keys.decision(self._node, number), encode(made))
