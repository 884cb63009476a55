"""Draws faults by a seed, lets several hold at a time, heals each when its time has come.

One thread does it all, so what happens happens in one order. Kinds that have happened are drawn
less often, and some can't happen at a moment: so two runs of a seed are alike only at first.
"""

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import Begun, Faults

AT_ONCE_MAX = 3
BETWEEN_SECONDS = (0.5, 6.0)
HEAL_SECONDS_MAX = 60.0
TROUBLES = (AssertionError, OSError, ValueError, LookupError, subprocess.SubprocessError)
# Rare, since everything else is hidden behind it for a while.
WEIGHTS = {"power-cut-of-all": 0.4, "etcd-away": 0.4, "memory-hog": 0.6}


@dataclass(slots=True, kw_only=True)
class Happened:
    """A line of the timeline; times are monotonic."""

    kind: str
    host: str
    what: str
    begin: float
    heal: float = 0.0  # 0: it still holds
    ingresses: tuple[str, ...] = ()
    lingers: float = 0.0  # seconds beyond that in which not all can be well yet
    trouble: str = ""  # why it did not heal at the first attempt


class Nemesis:
    def __init__(
        self,
        cluster: ChaosCluster,
        seed: int,
        say: Callable[[str], None],
        *,
        only: tuple[str, ...] = (),
        skip: tuple[str, ...] = (),
    ) -> None:
        self._cluster = cluster
        self._dice = random.Random(f"nemesis {seed}")
        self._say = say
        found = Faults(cluster).kinds()
        self.kinds = {
            kind: fault
            for kind, fault in found.items()
            if (not only or kind in only) and kind not in skip
        }
        self._holding: list[tuple[float, Begun, Happened]] = []
        self.timeline: list[Happened] = []
        self.refused: Counter[str] = Counter()

    def run(self, until: float, stop: threading.Event) -> None:
        """Faults until that time or an early stop, then heal all that is left."""
        while time.monotonic() < until and not stop.is_set():
            if len(self._holding) < AT_ONCE_MAX:
                self._draw()
            pause = time.monotonic() + self._dice.uniform(*BETWEEN_SECONDS)
            while time.monotonic() < pause and not stop.wait(0.1):
                self._heal_due(time.monotonic())
        while self._holding:
            self._heal_due(float("inf"))

    def _draw(self) -> None:
        kinds = sorted(self.kinds)
        dice = random.Random(self._dice.random())
        # Kinds that have not happened for long come first: a short run sees many of them.
        counts = Counter(one.kind for one in self.timeline)
        weights = [WEIGHTS.get(kind, 1.0) / (1 + counts[kind]) ** 2 for kind in kinds]
        kind = dice.choices(kinds, weights)[0]
        host = dice.choice(self._cluster.names)
        if host in self._cluster.off and not kind.startswith("etcd"):
            return
        begin = time.monotonic()
        try:
            with self._cluster.lock:
                begun = self.kinds[kind](host, dice)
        except TROUBLES as error:
            self.refused[kind] += 1
            self._say(f"{kind} at {host} could not be: {str(error)[:160]}")
            return
        if begun is None:
            self.refused[kind] += 1
            return
        line = Happened(
            kind=kind,
            host=host,
            what=begun.what,
            begin=begin,
            ingresses=begun.ingresses,
            lingers=begun.lingers,
        )
        self.timeline.append(line)
        self._holding.append((begin + begun.seconds, begun, line))
        self._say(f"fault  {begun.what} (for {begun.seconds:.1f} s)")

    def _heal_due(self, now: float) -> None:
        for item in sorted(self._holding, key=lambda item: item[0]):
            if item[0] <= now:
                self._holding.remove(item)
                self._heal(item[1], item[2])

    def _heal(self, begun: Begun, line: Happened) -> None:
        """As often as it takes: what heals may itself need something that is broken now."""
        deadline = time.monotonic() + HEAL_SECONDS_MAX
        while True:
            try:
                # Booting takes long and other locks are held within: each takes its own.
                begun.heal()
                break
            except TROUBLES as error:
                line.trouble = line.trouble or str(error)[:200]
                if self._holding and time.monotonic() < deadline:
                    self._holding.append((time.monotonic() + 2.0, begun, line))
                    return
                assert time.monotonic() < deadline, f"{line.what} does not heal: {error}"
                time.sleep(1.0)
        line.heal = time.monotonic()
        self._say(f"healed {line.what}")
