"""Whether the cluster survives the loss of any node, or of any K of them.

Each loss is a `Future` of its own, played until it rests. There are many ways to lose several of
many nodes: up to a limit all are played, beyond it those among the fullest nodes, and the answer
says how many of how many it looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

from ozymandias.core.outlook import Fate, Future, fates, hurt_words
from ozymandias.core.whatif import Step, Verb
from ozymandias.model.node import NodeName
from ozymandias.model.snapshot import Snapshot

LOSSES_MAX = 256  # ways of losing nodes that are played for one answer


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


def play_loss(base: Future, nodes: tuple[NodeName, ...]) -> tuple[Future, Loss]:
    """Lose these nodes at once and see it through."""
    future = base.copy()
    text = f"lose {' '.join(nodes)}"
    problem = future.suppose(Step(verb=Verb.LOSE, text=text, nodes=nodes))
    assert problem is None, problem
    future.play()
    hurt = tuple(fate for fate in fates(base.now, future.now) if fate.is_worse)
    return future, Loss(nodes=nodes, hurt=hurt)


class Judging:
    """Losses played one after the other, so that whoever asks can do other things between."""

    def __init__(self, base: Future, count: int) -> None:
        self._base, self._count = base, count
        self._losses, self._ways = ways_to_lose(base.now, count)
        self._worst: Loss | None = None

    def steps(self) -> Iterator[None]:
        for nodes in self._losses:
            _, loss = play_loss(self._base, nodes)
            if loss.hurt and (self._worst is None or loss.weight > self._worst.weight):
                self._worst = loss
            yield

    def answer(self) -> Survival:
        return Survival(
            count=self._count, played=len(self._losses), ways=self._ways, worst=self._worst
        )


def judge(snapshot: Snapshot, count: int = 1, wall: float = 0.0) -> Survival:
    """All at once, for a small cluster."""
    judging = Judging(Future(snapshot, wall).play(), count)
    for _ in judging.steps():
        pass
    return judging.answer()


def survival_words(survival: Survival) -> str:
    """``survives the loss of any one node: no: web-3 would wait (n2 lost)``."""
    many = "one node" if survival.count == 1 else f"{survival.count} nodes"
    start = f"survives the loss of any {many}"
    if not survival.ways:
        return f"{start}: no: there are not that many nodes"
    among = f" (the worst of {survival.played} of {survival.ways} ways)"
    if survival.worst is None:
        sample = f", as far as {survival.played} of {survival.ways} ways tell"
        return f"{start}: yes" + (sample if survival.is_sample else "")
    lost = " and ".join(survival.worst.nodes)
    return f"{start}: no: {hurt_words(survival.worst.hurt)} ({lost} lost)" + (
        among if survival.is_sample else ""
    )
