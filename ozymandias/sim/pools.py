"""Pools in a simulated life: their sources, what happens to them, and what must hold of them.

A source is a queue that somebody fills and empties; it may also lie, fail, be slow or hang. Freeze
windows of a life hold at any time that its clocks can show, so whether one holds is a matter of the
store alone and not of anybody's clock.

    P1  a pool's step stays within its bounds, and goes where the number that it heard of leads
    P2  one step in a period, whoever makes it
    P3  no step in a freeze window; one in the very revision that sets it came before it
    P4  at rest, with nothing pending, a pool has its least
"""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ozymandias.api.models_settings import FreezeRequest
from ozymandias.core.autoscale import pool_of
from ozymandias.model.job import Autoscale, JobHead, JobKey, JobRecord
from ozymandias.ports import SourceFailed
from ozymandias.problems import ProblemError
from ozymandias.sim.schedule import Step
from ozymandias.sim.truth import Truth
from ozymandias.sim.users import MARK, PATIENCE_SECONDS, is_step
from ozymandias.store import keys

NAMES = ("pool-1", "pool-2")
LIES = (b"-3", b"NaN", b"1e999", b"{}", b'"7"', b"", b"7.5", b"[" * 4096, b"1" * 4096)
SAID = (0, 0, 1, 3, 50)  # by honest queues
SLOW_SECONDS = 8.0  # at most
HANG_SECONDS = 3600.0
WINDOWS = ("calm", "quiet")
ALL_BUT_ONE = "wed-mon"  # the simulated clocks show a Friday
PERIOD_SHARE = 0.95  # of a period must lie between two steps: clocks differ in rate
THAW_TRIES = 30


@dataclass(slots=True, kw_only=True)
class Queue:
    """One source, as it is now."""

    pending: int = 0
    mode: str = "honest"


@dataclass(slots=True, kw_only=True)
class SimWork:
    """The port: every daemon hears the same of a queue, as well as it can be heard."""

    queues: dict[str, Queue]
    dice: random.Random

    async def ask(self, source: Autoscale) -> bytes:
        queue = self.queues.setdefault(source.target.rpartition("/")[2], Queue())
        await asyncio.sleep(self.dice.uniform(0.001, 0.05))
        match queue.mode:
            case "fails":
                raise SourceFailed("HTTP 500")
            case "hangs":
                await asyncio.sleep(HANG_SECONDS)
            case "slow":
                await asyncio.sleep(self.dice.uniform(0, SLOW_SECONDS))
            case "lies":
                lie = self.dice.choice(LIES)
                return lie if self.dice.random() < 0.3 else b'{"jobs": {"waiting": %s}}' % lie
        return json.dumps({"jobs": {"waiting": queue.pending}}).encode()


@dataclass(slots=True, kw_only=True)
class Pools:
    """What is done to pools in one life, and what is held against them."""

    truth: Truth
    queues: dict[str, Queue]
    now: Callable[[], float]
    say: Callable[[str], None]
    violate: Callable[[str], None]
    _stepped: dict[tuple[JobKey, str], float] = field(default_factory=dict)

    # What is done -------------------------------------------------------------------------------

    def fill(self, dice: random.Random) -> None:
        name = dice.choice(NAMES)
        queue = self.queues.setdefault(name, Queue())
        queue.mode = dice.choice(["honest"] * 5 + ["slow", "slow", "lies", "fails", "hangs"])
        queue.pending = dice.choice(SAID)
        self.say(f"queue of {name}: {queue.pending}, {queue.mode}")

    def job_file(self, step: Step, dice: random.Random) -> tuple[JobKey, bytes, int]:
        name, least = dice.choice(NAMES), dice.choice([0, 0, 1])
        rules = {
            "min": least,
            "max": dice.choice([2, 3, 5]),
            "step": dice.choice([1, 1, 2]),
            "every": dice.choice([2, 3, 5]),
            "pending": {"url": f"http://queues/{name}", "path": "jobs.waiting"},
        }
        container = {
            "image": "demo",
            "memory": dice.choice(["128M", "1G"]),
            "environment": {MARK: str(step.index)},
            "stop_grace_period": 2,
        }
        document = {"name": name, "containers": {"app": container}, "autoscale": rules}
        return keys.job_key("default", name), json.dumps(document).encode(), least

    async def settle(self, kind: str, operations: Any, dice: random.Random) -> None:
        """A freeze window comes or goes; any problem will do as an answer, a bug will not."""
        name = dice.choice(WINDOWS)
        window = FreezeRequest(start="00:00", end="00:00", weekdays=ALL_BUT_ONE)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if kind == "hold":
                    answer = await operations.settings.freeze(name, window)
                else:
                    answer = await operations.settings.unfreeze(name, why="it can't wait")
        except ProblemError as error:
            self.say(f"{kind} {name}: {error.problem.kind.slug}")
        except TimeoutError:
            self.say(f"{kind} {name}: gave up waiting")
        except AssertionError as error:
            self.violate(f"S0 {kind} {name} hit a bug: {error}")
        else:
            self.say(f"{kind} {name}: {answer['reason']}")

    async def calm_down(self, operations: Callable[[], Any]) -> None:
        """Nothing is pending any more, and nothing is frozen."""
        for queue in self.queues.values():
            queue.mode, queue.pending = "honest", 0
        dice = random.Random("thaw")
        for _ in range(THAW_TRIES):
            if not self.truth.settings.freezes:
                return
            if found := operations():
                await self.settle("thaw", found, dice)
            await asyncio.sleep(0.5)
        self.violate("L2 a freeze window can't be removed")

    # What must hold -----------------------------------------------------------------------------

    def _rules(self, job: JobKey, head: JobHead) -> Autoscale | None:
        version = self.truth.versions.get((job, head.version))
        versions = {head.version: version} if version else {}
        return pool_of(JobRecord(key=job, head=head, head_revision=0, versions=versions))

    def head_changed(
        self, job: JobKey, before: JobHead | None, after: JobHead | None, revision: int
    ) -> None:
        if not is_step(before, after) or before is None or after is None or after.look is None:
            return
        rules, pending = self._rules(job, after), after.look.pending
        if rules is None or pending not in SAID:
            self.violate(f"P1 {job} made a step for {pending}, which nobody said")
            return
        low = min(max(before.wanted, rules.min), rules.max)
        most = low + rules.step
        is_right = low <= after.wanted <= most if pending else after.wanted == rules.min
        if not is_right or not rules.min <= after.wanted <= rules.max:
            change = f"{before.wanted} to {after.wanted} with {pending} pending"
            self.violate(f"P1 {job} went from {change}: {rules.min} to {rules.max}")
        settled = self.truth.kvs.get(keys.SCHEDULING)
        is_new = settled is not None and settled.mod_revision == revision
        if self.truth.settings.freezes and not is_new:
            self.violate(f"P3 {job} made a step in a freeze window")
        last, now = self._stepped.get((job, after.uid)), self.now()
        if last is not None and now - last < self._period(job) * PERIOD_SHARE:
            self.violate(f"P2 {job} made two steps within {now - last:.2f} s")
        self._stepped[job, after.uid] = now

    def _period(self, job: JobKey) -> float:
        """The shortest of any version: it may have been changed since the last step."""
        kept = (version.job for (key, _), version in self.truth.versions.items() if key == job)
        return min(spec.autoscale.every_seconds for spec in kept if spec.autoscale)

    def differences(self) -> list[str]:
        """What is not as it should be at rest."""
        return [
            f"P4 {job} wants {head.wanted}, though nothing is pending and {rules.min} is its least"
            for job, head in sorted(self.truth.heads.items())
            if (rules := self._rules(job, head)) and head.wanted != rules.min
        ]
