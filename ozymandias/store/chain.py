"""What the next decisions go on from while our own batches are on their way.

A batch is decided on what the ones before it will leave behind (`store/batch.py`), long before the
mirror shows that. Laying them over the mirror's word again costs more than they do, so it is done
now and then, and whenever others may have changed what counts.
"""

from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Clock
from ozymandias.store.batch import Batch, Rewritten
from ozymandias.store.mirror import Mirror

CHAIN_SECONDS = 0.25  # how long decisions go on from our own batches before the mirror is asked
CHAIN_SHARE = 10  # and so many times as long as asking it took the last time
CHAIN_SECONDS_MAX = 0.5  # older statuses are not decided on
CALM_WINS = 16  # batches without a loss, after which others' changes are not laid beneath at once
LINKS_MAX = 8  # batches that the mirror may be behind: they are laid over it again and again


class Chain:
    """The batches that decisions build on before the mirror shows them.

    What the mirror says is laid beneath whenever it shows all of them, after a loss, and now and
    then in any case; where a race was lost lately, also when others have changed something that
    decisions rely on.
    """

    def __init__(self, mirror: Mirror, clock: Clock) -> None:
        self._mirror = mirror
        self._clock = clock
        self.links: list[Batch] = []  # a new list whenever what was decided on the old one is void
        self._wrote: dict[Rewritten, Batch] = {}
        self._fresh_until = 0.0
        self._tip = Snapshot()  # what the next decisions go on from, while it is fresh
        self._others = -1  # the mirror's last revision of others that is beneath
        self._won = CALM_WINS  # batches since one was not committed

    def is_doubtful(self) -> bool:
        """Whether others have changed what a batch on its way relies on: it will lose.

        Laid over what they made of the cluster it would be neither the one nor the other.
        """
        if not self.links or self._mirror.others_revision <= self._others:
            return False
        snapshot = self._mirror.snapshot()
        return any(not link.revision and not link.holds_over(snapshot) for link in self.links)

    def is_fresh(self, now: float) -> bool:
        """Whether the next decisions go on from our own last batch, and ask the mirror later.

        Where races are lost, what others do is looked at before every batch. Where none are it is
        looked at now and then: laying our batches over it again costs more than they do.
        """
        last = self.links[-1] if self.links else None
        if last is None or 0 < last.revision <= self._mirror.revision:
            return False
        mirror, beneath = self._mirror, self._others
        if now >= self._fresh_until or mirror.members_revision > beneath:
            return False  # who is there is judged, and not all of that is compared
        return mirror.others_revision <= beneath or self.is_calm()

    def is_calm(self) -> bool:
        """Whether no race was lost lately."""
        return self._won >= CALM_WINS

    def late(self) -> int:
        """A revision that the mirror must show before more is decided on top of all these.

        Else a mirror that falls behind would fall further: the more of them it does not show, the
        longer it takes to lay them over what it does, and that is time in which it can't read.
        """
        return self.links[-LINKS_MAX].revision if len(self.links) >= LINKS_MAX else 0

    def next_batch(self, commit: str, compares_max: int) -> Batch:
        now, others = self._clock.boot(), self._mirror.others_revision
        if self.is_fresh(now):
            snapshot = self._tip
        else:
            snapshot = self._mirror.snapshot()
            unseen = self._unseen(snapshot.revision)
            self._wrote = {}
            for link in unseen:
                snapshot = link.over(snapshot, others)
                self._wrote |= link.wrote()
            self.links[:] = unseen
            took = self._clock.boot() - now
            self._fresh_until = now + min(max(CHAIN_SECONDS, CHAIN_SHARE * took), CHAIN_SECONDS_MAX)
            self._others = others
            self._tip = snapshot
        batch = Batch(snapshot, commit, beneath=self._wrote, compares_max=compares_max)
        batch.seen, batch.others = self._mirror.revision, self._others
        batch.links = tuple(self.links)
        return batch

    def _unseen(self, revision: int) -> list[Batch]:
        """Those that are not shown at a revision; with one all before it are, answered or not."""
        shown = [number for number, b in enumerate(self.links, 1) if 0 < b.revision <= revision]
        return self.links[max(shown, default=0) :]

    def add(self, batch: Batch) -> None:
        if batch.plans:
            self.links.append(batch)
            self._wrote = self._wrote | batch.wrote()
            self._tip = batch.after

    def is_older(self, others: int) -> bool:
        """Whether decisions are made on less than others had changed at this revision.

        Of a store that was set back, what the mirror shows now is all there is.
        """
        return self._others < min(others, self._mirror.others_revision)

    def lay_anew(self) -> None:
        """What the mirror says is laid beneath the next batch."""
        self._fresh_until = 0.0

    def let_go(self) -> None:
        """Nobody is deciding: what the mirror shows is not gone on from any more.

        What large batches hold takes a while to be freed. That is better done now than when the
        next decision comes, which may be a repair.
        """
        if self.links and 0 < self.links[-1].revision <= self._mirror.revision:
            self.links.clear()
            self._wrote, self._tip = {}, Snapshot()

    def won(self) -> None:
        self._won += 1

    def broken(self, batch: Batch) -> None:
        """It was not committed, or nobody knows: what is on top of it is void as well.

        That may be there all the same, or will be, where nobody knows. What comes next is decided
        without it, so the mirror is to take it for somebody else's.
        """
        if batch in self.links:
            first = self.links.index(batch)
            self.links, void = self.links[:first], self.links[first:]
            for link in void:
                if link.written is not None:
                    self._mirror.expect_not(link.written)
        self.lay_anew()
        self._won = 0
