"""Whether the cluster survives the loss of any node, or of any K of them.

Each loss is a `Future` of its own, played until it rests. There are many ways to lose several of
many nodes: up to a limit all are played, beyond it those among the fullest nodes, and the answer
says how many of how many it looked at.

Moves for a better layout decide who runs, both ways: what has moved together leaves a larger room,
and what was drawn to one node is lost with it. So they are played as the settings let them happen,
before the loss and after it, and the answer is that of `ozy what-if`. But a look for moves takes
longer than all the rest. After a loss they are left out as long as nobody lacks anything: a move
starts only where there is room and stops nothing before it is replaced, so all have their places
afterwards too. And there is a limit to what moves may cost: beyond it they are left out, and the
answer says so, for only then may a what-if come to another one.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb

from ozymandias.core.outlook import Fate, Future, fates, hurt_words
from ozymandias.core.rebalance import may_move
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.whatif import Step, Verb
from ozymandias.model.node import NodeName
from ozymandias.model.snapshot import Snapshot

LOSSES_MAX = 256  # ways of losing nodes that are played for one answer
WORK_MAX = 10**9  # that looking for moves may come to, for whoever has the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One way of losing nodes and what became of the jobs that are worse off for it."""

    nodes: tuple[NodeName, ...]
    hurt: tuple[Fate, ...]

    @property
    def weight(self) -> tuple[int, int]:
        """The worse the larger: jobs with nothing left first, then instances without a place."""
        none_left = sum(1 for fate in self.hurt if not fate.after)
        return none_left, sum(fate.missing - fate.missing_before for fate in self.hurt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """The answer for losses of ``count`` nodes at a time."""

    count: int
    played: int
    ways: int  # that there are
    worst: Loss | None  # None: no loss hurts any job
    without_moves: bool = False  # which might have changed it

    @property
    def is_sample(self) -> bool:
        return self.played < self.ways


def ways_to_lose(snapshot: Snapshot, count: int) -> tuple[list[tuple[NodeName, ...]], int]:
    """The losses to be played, the fullest nodes first, and how many ways there are in all."""
    alive = [node for node in snapshot.nodes.values() if node.is_alive]
    fullest = sorted(alive, key=lambda n: (-n.ledger.promised.resources.memory_bytes, n.name))
    ways = comb(len(alive), count)
    size = len(fullest)
    while size > count and comb(size, count) > LOSSES_MAX:
        size -= 1
    names = sorted(node.name for node in fullest[:size])
    return list(combinations(names, count)), ways


def _lose(base: Future, nodes: tuple[NodeName, ...], *, with_moves: bool) -> Future:
    """These nodes are gone at once, and nothing has been done about it yet."""
    future = base.copy(at_leisure=with_moves)
    text = f"lose {' '.join(nodes)}"
    problem = future.suppose(Step(verb=Verb.LOSE, text=text, nodes=nodes))
    assert problem is None, problem
    return future


class Judging:
    """Losses played one after the other, so that whoever asks can do other things between.

    ``start`` is the cluster as it is, at leisure; ``moves_work_max`` is how much may be spent on
    looking for moves: each look counts as many as there are nodes times (node, job) pairs.
    """

    def __init__(self, start: Future, count: int, *, moves_work_max: int) -> None:
        self._start, self._count = start, count
        self._played = self._ways = 0
        self._work, self._left = work_of(start.now), moves_work_max
        self._has_moves = start.is_at_leisure and may_move(start.now)
        self.found: list[Loss] = []  # those that hurt

    def judging(self) -> Stepwise[Survival]:
        base = yield from self._at_rest(self._start)
        losses, self._ways = ways_to_lose(base.now, self._count)
        for nodes in losses:
            future = _lose(base, nodes, with_moves=False)
            yield from future.playing()
            if self._has_moves and any(fate.missing for fate in fates(base.now, future.now)):
                moved = _lose(base, nodes, with_moves=True)
                future = moved if (yield from self._spend(moved)) else future
            hurt = tuple(fate for fate in fates(base.now, future.now) if fate.is_worse)
            if hurt:
                self.found.append(Loss(nodes=nodes, hurt=hurt))
            self._played += 1
            yield
        return self._answer()

    def _at_rest(self, start: Future) -> Stepwise[Future]:
        """What is under way or due comes first."""
        base = start.copy()
        if self._has_moves and (yield from self._spend(base)):
            return base
        base = start.copy(at_leisure=False)
        return (yield from base.playing())

    def _spend(self, future: Future) -> Stepwise[bool]:
        """Play it with moves; False if that takes more than is left, and from then on."""
        self._left -= self._work
        while self._left >= 0 and (yield from future.advancing()):
            self._left -= self._work
            yield
        self._has_moves = self._left >= 0
        return self._has_moves

    def _answer(self) -> Survival:
        # Of losses alike the first.
        return Survival(
            count=self._count,
            played=self._played,
            ways=self._ways,
            worst=max(self.found, key=lambda loss: loss.weight, default=None),
            without_moves=not self._has_moves and may_move(self._start.now),
        )


def work_of(snapshot: Snapshot) -> int:
    """What one look at all of a cluster comes to."""
    return len(snapshot.nodes) * len(snapshot.assignments)


def judge(
    snapshot: Snapshot, count: int = 1, wall: float = 0.0, *, moves_work_max: int = WORK_MAX
) -> Survival:
    """All at once, for a small cluster."""
    start = Future(snapshot, wall, at_leisure=True)
    return at_once(Judging(start, count, moves_work_max=moves_work_max).judging())


def survival_words(survival: Survival) -> str:
    """``survives the loss of any one node: no: web-3 would wait (n2 lost)``."""
    many = "one node" if survival.count == 1 else f"{survival.count} nodes"
    start = f"survives the loss of any {many}"
    if not survival.ways:
        return f"{start}: no: there are not that many nodes"
    among = f" (the worst of {survival.played} of {survival.ways} ways)"
    moves = ", moves left out" if survival.without_moves else ""
    if survival.worst is None:
        sample = f", as far as {survival.played} of {survival.ways} ways tell"
        return f"{start}: yes" + (sample if survival.is_sample else "") + moves
    lost = " and ".join(survival.worst.nodes)
    return f"{start}: no: {hurt_words(survival.worst.hurt)} ({lost} lost{moves})" + (
        among if survival.is_sample else ""
    )
