"""Words, losses and statuses in any order, for the planners: no revision may violate anything.

    python -m tests.fuzz.fuzz_plans --count 100000 --seed 1

A life is a cluster on paper (`paper_cluster.py`) of two to four nodes. In each of its steps
somebody decides, nodes do some of their work, one is lost, returns, or is short of something. The
simulator's witness looks at every revision. In the end all heals, and it must come to rest.

``--count`` is the number of steps, 40 to 120 of which make a life; the last one is lived to its
end. A life depends on its seed alone, and the next one has the next. Ends with 1 when something was
violated, with what happened before and the seed; ``--count 1`` with that seed is that life again.
"""

import argparse
import random
import sys
import time
import traceback
from dataclasses import dataclass

from ozymandias.core.arbiter import Leisure
from ozymandias.model.node import Load, NodeName
from ozymandias.ports import Listing
from ozymandias.sim import rest
from ozymandias.sim.clock import VirtualLoop
from ozymandias.sim.job_files import JobFiles
from ozymandias.sim.pools import Pools
from ozymandias.sim.scenario import FULL_BYTES
from ozymandias.sim.schedule import Options
from ozymandias.sim.search import be_quiet
from ozymandias.store import keys
from tests.fuzz.paper_cluster import WALL, Ask, PaperCluster
from tests.fuzz.words import Words, draw_weights

STEPS = (40, 80, 120)  # of a life
PAUSES_SECONDS = (0.05, 0.3, 0.7, 1.0, 3.0)  # between two
SOON_SECONDS = 0.05  # until the next peer goes on
ROOMY_BYTES = 4 * 2**30  # of memory, of a node in a life that is not full
NARROW_SHARE = 0.3  # of lives with three nodes or more: only two of them schedule
ROUNDS_MAX = 600  # until it must have come to rest
PLANS_MAX = 200  # of the cluster's own accord, in one round
QUIET_SECONDS = 70.0  # in which nobody wrote: whoever was displaced is not spared any more
BUSY_SECONDS, IDLE_SECONDS = 1.0, 7.0  # from one round to the next, after which nothing changed
AT_ONCE = Leisure(steady_seconds=0.0)
TOLD_LINES = 40  # of a story, at its end
UNNAMED = "has no name"  # nobody gives names here


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What one life came to; ``violation`` is "" when all was well."""

    seed: int
    steps: int
    revisions: int
    violation: str
    story: tuple[str, ...]


class Life:
    """Make it inside a running event loop."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = random.Random(f"plans {seed}")
        nodes = dice.choice([2, 3, 3, 4])
        is_full = dice.random() < 0.6
        self.cluster = PaperCluster(
            dice,
            nodes=nodes,
            schedulers=2 if dice.random() < NARROW_SHARE else nodes,
            memory_bytes=FULL_BYTES if is_full else ROOMY_BYTES,
        )
        options = Options(
            nodes=nodes,
            jobs=dice.choice([2, 3, 4]),
            has_odd_jobs=False,
            has_upkeep=dice.random() < 0.8,
            is_full=is_full,
        )
        self.pools = Pools(
            truth=self.cluster.witness.truth,
            queues={},
            now=self.cluster.clock.boot,
            say=self.cluster.say,
            violate=self.cluster.violate,
        )
        self.cluster.witness.on_head.append(self.pools.head_changed)
        files = JobFiles(seed=seed, options=options, nodes=sorted(self.cluster.hosts))
        self.words = Words(self.cluster, files, self.pools, draw_weights(dice))
        self.steps = 0
        self._steps_max = dice.choice(STEPS)
        self._prompt_share = dice.choice([0.3, 0.6, 0.9])  # of the times that a node works
        self._crowd_share = dice.choice([0.0, 0.3, 0.9])  # of decisions go with more than usual
        losses, pressure = dice.choice([0, 3, 6]), dice.choice([0, 0, 3])
        self._acts = {
            self._decide: 55,
            self._work: 30,
            self._lose: losses,
            self._return: 10 - losses,
            self._press: pressure,
        }

    def live(self) -> None:
        """Until something is violated, or all has come to rest."""
        cluster = self.cluster
        for name in cluster.hosts:
            cluster.join(name)
        while self.steps < self._steps_max and not cluster.violations:
            self.steps += 1
            cluster.clock.seconds += self.dice.choice(PAUSES_SECONDS)
            if cluster.schedulers:
                self.dice.choices(list(self._acts), list(self._acts.values()))[0]()
            else:
                self._return()
        if not cluster.violations:
            self._heal()
        if not cluster.violations and self._comes_to_rest():
            self._check_rest()

    # Trouble ------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """One peer decides what has gathered, and others may go on from there at once."""
        schedulers = self.cluster.schedulers
        node = self.dice.choice(schedulers)
        self.cluster.commit(node, self._gathered(node))
        for _ in range(self.dice.choice([0, 1, 2, 4])):
            self.cluster.clock.seconds += SOON_SECONDS
            if not self.cluster.commit(self.dice.choice(schedulers), [self.cluster.own()]):
                return

    def _gathered(self, node: NodeName) -> list[Ask]:
        dice, asks = self.dice, list[Ask]()
        if dice.random() < 0.8:
            is_idle = dice.random() < 0.3
            leisure = Leisure(steady_seconds=dice.choice([0.0, 1.0])) if is_idle else None
            asks.append(self.cluster.own(leisure))
        count = dice.choice([0, 1, 1, 2])
        count += dice.randint(0, 2) if dice.random() < self._crowd_share else 0
        asks += [self.words.draw() for _ in range(count)]
        if dice.random() < 0.15 and (step := self.words.pool_step()):
            asks.append(step)
        if dice.random() < 0.3:
            asks.append(self.cluster.vacate(node))
        dice.shuffle(asks)
        return asks

    def _work(self) -> None:
        for name in self.cluster.alive:
            if self.cluster.violations:
                return
            self.cluster.work(name, is_prompt=self.dice.random() < self._prompt_share)

    def _lose(self) -> None:
        if len(alive := self.cluster.alive) > 1:
            self.cluster.lose(self.dice.choice(alive))

    def _return(self) -> None:
        if gone := self.cluster.gone:
            self.cluster.join(self.dice.choice(gone))

    def _press(self) -> None:
        """A host is short of something, and wants to be rid of an instance perhaps; or no more."""
        dice, node = self.dice, self.dice.choice(self.cluster.alive)
        if dice.random() < 0.3:
            self.cluster.press(node, Load())
            return
        held = sum(1 for a in self.cluster.witness.truth.assigned() if a.node == node)
        load = Load(
            taint=dice.choice(["memory pressure: by chance", "disk pressure: by chance"]),
            tainted_at=WALL,
            shed_to=dice.choice([-1, max(0, held - 1)]),
            is_urgent=dice.random() < 0.3,
        )
        self.cluster.press(node, load)

    # Recovery -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        """All nodes are there, none is short of anything, and nothing is frozen."""
        cluster = self.cluster
        cluster.say("all heals")
        for name in cluster.gone:
            cluster.join(name)
        for name, load in sorted(cluster.witness.truth.loads.items()):
            if load.taint:
                cluster.press(name, Load())
        if cluster.witness.truth.settings.freezes:
            cluster.commit(cluster.schedulers[0], [self.words.thaw()])

    def _comes_to_rest(self) -> bool:
        """Whether everybody does its work, and in the end nobody writes any more."""
        clock = self.cluster.clock
        quiet_since = clock.seconds
        for _ in range(ROUNDS_MAX):
            is_busy = self._round()
            if self.cluster.violations:
                return False
            if is_busy:
                quiet_since = clock.seconds
            elif clock.seconds - quiet_since >= QUIET_SECONDS:
                return True
            clock.seconds += BUSY_SECONDS if is_busy else IDLE_SECONDS
        self.cluster.violate("L2 it does not come to rest")
        return False

    def _round(self) -> bool:
        """Whether anything was written."""
        cluster = self.cluster
        node, before = cluster.schedulers[0], cluster.etcd.revision
        for step in self.words.last_pool_steps():
            cluster.commit(node, [step])
        for name in cluster.hosts:
            cluster.work(name, is_prompt=True)
        for _ in range(PLANS_MAX):
            if not cluster.commit(node, [cluster.own(AT_ONCE)]):
                return cluster.etcd.revision != before
            cluster.clock.seconds += SOON_SECONDS
        cluster.violate("L2 one plan follows the other without end")
        return True

    def _check_rest(self) -> None:
        cluster = self.cluster
        truth, etcd = cluster.witness.truth, cluster.etcd
        pods = {name: frozenset(host.pods) for name, host in cluster.hosts.items()}
        found = [f"L2 {line}" for line in rest.differences(truth, pods, cluster.hosts.keys())]
        found += [f"L2 {line}" for line in rest.being_moved(truth)]
        if more := rest.still_to_do(cluster.mirror.snapshot(), cluster.clock.wall()):
            found.append(f"L2 {more.what} is still to do: {more.plan.reason}")
        kvs = etcd.select(keys.ROOT, keys.prefix_end(keys.ROOT))
        found += rest.check_mirror(cluster.mirror, Listing(etcd.revision, kvs))
        for what in (*found, *self.pools.differences()):
            if UNNAMED not in what:
                cluster.violate(what)


def live(seed: int) -> Lived:
    """One life, from its seed alone; an exception out of the product is a violation as well."""

    async def lived() -> Lived:
        life = Life(seed)
        try:
            life.live()
        except Exception as error:
            life.cluster.violate(f"S0 {type(error).__name__}: {error}")
            life.cluster.story += traceback.format_exc().splitlines()
        return Lived(
            seed=seed,
            steps=life.steps,
            revisions=life.cluster.etcd.revision,
            violation=next(iter(life.cluster.violations), ""),
            story=tuple("\n".join(life.cluster.story).splitlines()),
        )

    return VirtualLoop(seed).run(lived())


def run(seed: int, count: int) -> list[Lived]:
    """Lives from that seed on, until there were so many steps or one of them is bad."""
    lives = [live(seed)]
    while sum(one.steps for one in lives) < count and not lives[-1].violation:
        lives.append(live(seed + len(lives)))
    return lives


def complaint(life: Lived) -> str:
    """What went wrong, and how to see all of it."""
    again = f"python -m tests.fuzz.fuzz_plans --count 1 --seed {life.seed} --story"
    return f"plans: seed {life.seed}: {life.violation}\nplans: again, and all of it: {again}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.fuzz_plans")
    parser.add_argument("--count", type=int, default=100_000, help="steps to take, some 80 a life")
    parser.add_argument("--seed", type=int, default=1, help="of the first life")
    parser.add_argument("--story", action="store_true", help="tell all of the last life")
    arguments = parser.parse_args()
    be_quiet()
    started = time.monotonic()
    lives = run(arguments.seed, arguments.count)
    steps, revisions = sum(one.steps for one in lives), sum(one.revisions for one in lives)
    last, took = lives[-1], time.monotonic() - started
    if arguments.story or last.violation:
        print("\n".join(last.story if arguments.story else last.story[-TOLD_LINES:]))
    if last.violation:
        print(complaint(last))
        return 1
    print(
        f"plans: {steps} steps of {len(lives)} lives from seed {arguments.seed}, {took:.0f} s:"
        f" {revisions} revisions, nothing violated"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
