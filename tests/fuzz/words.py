"""What users, operators and queues ask of a cluster on paper, drawn by chance.

Each word is a decision by the very planner that the API calls for it. Whether it makes sense is
left to the planner: a problem is as good an answer as a plan.
"""

import random
from collections.abc import Callable, Mapping

from ozymandias.core.autoscale import Answer, Asked, plan_look, pools, steps_of
from ozymandias.core.looks import plan_ask
from ozymandias.core.nodes import (
    plan_begin_drain,
    plan_cordon,
    plan_end_drain,
    plan_label,
    plan_uncordon,
)
from ozymandias.core.schedule import plan_restart, plan_scale, plan_stop, plan_submit
from ozymandias.core.settings import SettingsChange, plan_freeze, plan_settings, plan_unfreeze
from ozymandias.jobspec.parse import parse
from ozymandias.model.job import JobKey, JobRecord
from ozymandias.model.node import Drain
from ozymandias.model.settings import FreezeWindow, RebalanceMode
from ozymandias.problems import ProblemError
from ozymandias.sim.job_files import JobFiles
from ozymandias.sim.pools import SAID, Pools
from ozymandias.sim.scenario import POOLS
from ozymandias.sim.schedule import SIZES, Step
from ozymandias.store import keys
from tests.fuzz.paper_cluster import NAMES, Ask, PaperCluster

SUBMIT_WEIGHT = 8
# What a life may have beside submits, with its weight; and what takes it back.
WEIGHTS = {"scale": 4, "stop": 1, "restart": 2, "agents": 2, "drain": 2, "cordon": 1, "label": 2}
WEIGHTS |= {"pool": 1, "mode": 2, "hold": 1, "rebalance": 1}
TAKEN_BACK = {"drain": ("undrain", 3), "cordon": ("uncordon", 2), "label": ("unlabel", 2)}
TAKEN_BACK |= {"hold": ("thaw", 2)}
KIND_SHARE = 0.55  # of the kinds above are in a life: with all at once none gets deep
DRAIN_SECONDS = 5.0  # until the deadline of a drain, if it has one
WINDOW = FreezeWindow(name="calm", start=0, end=0, weekdays=(0, 2, 3, 4, 5, 6))  # also on Fridays
POOL_SECONDS = 6.0  # between two steps of a pool: its period is shorter


def draw_weights(dice: random.Random) -> dict[str, int]:
    """The kinds of words in one life (swarm testing)."""
    weights = {kind: weight for kind, weight in WEIGHTS.items() if dice.random() < KIND_SHARE}
    back = dict(TAKEN_BACK[kind] for kind in weights if kind in TAKEN_BACK)
    return {"submit": SUBMIT_WEIGHT, **weights, **back}


class Words:
    def __init__(
        self, cluster: PaperCluster, files: JobFiles, pools: Pools, weights: Mapping[str, int]
    ) -> None:
        self._cluster, self._files, self._pools = cluster, files, pools
        self._kinds, self._weights = list(weights), list(weights.values())
        self._dice = cluster.dice
        self._drawn = 0
        self._stepped: dict[tuple[JobKey, str], float] = {}  # when each pool was last asked
        self._makers: dict[str, Callable[[], Ask]] = {
            "submit": self._submit,
            "agents": self._agents,
            "scale": self._scale,
            "stop": self._stop,
            "restart": self._restart,
            "pool": self._pool,
            "mode": self._mode,
            "rebalance": self._rebalance,
            "hold": self._hold,
            "thaw": self.thaw,
        }

    def draw(self) -> Ask:
        self._drawn += 1
        kind = self._dice.choices(self._kinds, self._weights)[0]
        maker = self._makers.get(kind)
        return maker() if maker else self._upkeep(kind)

    # Users --------------------------------------------------------------------------------------

    def _key(self) -> JobKey:
        return keys.job_key("default", f"job-{self._dice.randint(1, self._files.options.jobs)}")

    def _step(self, kind: str) -> Step:
        return Step(self._drawn, self._cluster.clock.seconds, kind)

    def _submit(self) -> Ask:
        text, _ = self._files.draw(self._step("submit"), self._key(), self._dice)
        return self._submitted(text)

    def _agents(self) -> Ask:
        _, text, _ = self._pools.job_file(self._step("agents"), self._dice)
        return self._submitted(text)

    def _submitted(self, text: bytes) -> Ask:
        uid = f"u{self._drawn}"
        try:
            job = parse(text)
        except ProblemError as error:  # rules that exclude each other are drawn, too
            problem = error.problem
            return Ask("submit", lambda snapshot: problem)
        return Ask(
            f"submit {job.key}",
            lambda snapshot: plan_submit(
                snapshot, job, uid=uid, names=NAMES, lately=self._cluster.displacements.lately()
            ),
        )

    def _scale(self) -> Ask:
        key = self._key()
        count = self._dice.randint(0, max(SIZES[self._files.options.size].counts))
        return Ask(
            f"scale {key} to {count}",
            lambda snapshot: plan_scale(
                snapshot, key, count, lately=self._cluster.displacements.lately()
            ),
        )

    def _stop(self) -> Ask:
        key = self._key()
        return Ask(f"stop {key}", lambda snapshot: plan_stop(snapshot, key))

    def _restart(self) -> Ask:
        key = self._key()
        return Ask(f"restart {key}", lambda snapshot: plan_restart(snapshot, key))

    # Operators ----------------------------------------------------------------------------------

    def _upkeep(self, kind: str) -> Ask:
        name, wall = self._dice.choice(self._files.nodes), self._cluster.clock.wall()
        deadline = self._dice.choice([0.0, 0.0, wall + DRAIN_SECONDS])
        drain = Drain(since=wall, deadline=deadline, by="", reason="")
        decide = {
            "drain": lambda snapshot: plan_begin_drain(snapshot, name, drain),
            "undrain": lambda snapshot: plan_end_drain(snapshot, name),
            "cordon": lambda snapshot: plan_cordon(snapshot, name),
            "uncordon": lambda snapshot: plan_uncordon(snapshot, name),
            "label": lambda snapshot: plan_label(snapshot, name, {"role": "infra"}, []),
            "unlabel": lambda snapshot: plan_label(snapshot, name, {}, ["role"]),
        }[kind]
        return Ask(f"{kind} {name}", decide, tends=name)

    def _pool(self) -> Ask:
        which = self._dice.choice(list(POOLS))
        change = SettingsChange(pools=POOLS[which])
        return Ask(which, lambda snapshot: plan_settings(snapshot, change))

    def _mode(self) -> Ask:
        mode = self._dice.choice(list(RebalanceMode))
        change = SettingsChange(rebalance=mode)
        return Ask(f"rebalance {mode}", lambda snapshot: plan_settings(snapshot, change))

    def _rebalance(self) -> Ask:
        moves, wall = self._dice.choice([0, 1, 3, 100]), self._cluster.clock.wall()
        return Ask(f"rebalance by {moves}", lambda snapshot: plan_ask(snapshot, moves, wall))

    def _hold(self) -> Ask:
        wall = self._cluster.clock.wall()
        return Ask("hold", lambda snapshot: plan_freeze(snapshot, WINDOW, wall))

    def thaw(self) -> Ask:
        """The freeze window goes."""
        wall = self._cluster.clock.wall()
        return Ask("thaw", lambda snapshot: plan_unfreeze(snapshot, WINDOW.name, wall, "over"))

    # Queues -------------------------------------------------------------------------------------

    def pool_step(self) -> Ask | None:
        """Some pool's queue is asked; None when that one was asked a moment ago."""
        found = list(pools(self._cluster.mirror.snapshot()))
        if not found:
            return None
        record, _ = self._dice.choice(found)
        return self._ask_queue(record, self._dice.choice(SAID)) if self._is_due(record) else None

    def last_pool_steps(self) -> list[Ask]:
        """Every queue is asked that was not a moment ago, and has nothing pending any more."""
        found = pools(self._cluster.mirror.snapshot())
        return [self._ask_queue(record, 0) for record, _ in found if self._is_due(record)]

    def _is_due(self, record: JobRecord) -> bool:
        last = self._stepped.get((record.key, record.head.uid), -POOL_SECONDS)
        return self._cluster.clock.seconds - last >= POOL_SECONDS

    def _ask_queue(self, record: JobRecord, pending: int) -> Ask:
        key, head, answer = record.key, record.head, Answer(pending=pending)
        self._stepped[key, head.uid] = self._cluster.clock.seconds
        asked = Asked(
            uid=head.uid,
            version=head.version,
            steps=steps_of(head),
            by="n1",
            now=self._cluster.clock.wall(),
        )
        return Ask(
            f"{key} has {answer.pending} pending",
            lambda snapshot: plan_look(snapshot, key, answer, asked),
        )
