"""Job files of a simulated life: each is drawn from its seed, its options and the step it is for.

What a kind of life adds (rivals where there is not room for all, rules where operators are at work)
comes from dice of its own, so that the rest of the file is as it would be without.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.sim.mishaps import IMAGES
from ozymandias.sim.schedule import SIZES, Options, Step
from ozymandias.sim.users import MARK

CORES = ("", "", "    cpu: 0.5\n", "    cpu: 1.5\n")  # what a container asks for
EXCLUSIVE_RATE = 0.2  # of the jobs must never run twice


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    seed: int
    options: Options
    nodes: Sequence[NodeName]  # sorted

    def draw(self, step: Step, key: JobKey, dice: random.Random) -> tuple[bytes, int]:
        """The file, and how many instances it asks for."""
        options, counts = self.options, SIZES[self.options.size].counts
        image = dice.choice(IMAGES) if options.has_odd_jobs and dice.random() < 0.5 else IMAGES[0]
        memory = dice.choice(["128M", "256M", "1G", "3G"])
        port = dice.choice(["", "", ", {host: 8080, container: 9000}"])
        count = dice.choice(counts if memory == "128M" else [1, 2, 3, 4])
        text = (
            f"name: {key.name}\nnumInstances: {count}\ncontainers:\n  app:\n    image: {image}\n"
            f"    memory: {memory}\n    ports: ['80:8000'{port}]\n"
            f"    environment: {{{MARK}: '{step.index}'}}\n    stop_grace_period: 2\n"
            f"    healthcheck: {{type: http, port: 8000, interval: {dice.choice([2, 5, 10])}}}\n"
        )
        if random.Random(f"exclusive {self.seed} {step.index}").random() < EXCLUSIVE_RATE:
            text += "on_partition: stop\n"
        if options.is_full:
            text = self._rival(step, text, memory)
        if options.has_upkeep:
            text, count = self._fussy(step, key, text, count)
        return text.encode(), count

    def _rival(self, step: Step, text: str, memory: str) -> str:
        """The same job where there is not room for all, more or less important than others."""
        dice = random.Random(f"rival {self.seed} {step.index}")
        text = text.replace(f"memory: {memory}", f"memory: {dice.choice(['256M', '512M', '1G'])}")
        text += "protected: true\n" if dice.random() < 0.1 else ""
        text += "preempt: never\n" if dice.random() < 0.15 else ""
        if not self.options.has_upkeep:  # those have priorities of their own
            text += f"priority: {dice.choice([0, 1, 5, 9])}\n"
        return text

    def _fussy(self, step: Step, key: JobKey, text: str, count: int) -> tuple[str, int]:
        """The same job with rules of its own, or one on every node; from dice of their own."""
        dice = random.Random(f"fussy {self.seed} {step.index}")
        rules = dice.choice(
            ["", "", "require: [role == infra]", "prefer: [role == infra]", "max_per_node: 1"]
        )
        if dice.random() < 0.3:
            text = text.replace(f"numInstances: {count}\n", "type: system\n")
            rules, count = rules if "require" in rules else "", 0
        elif dice.random() < 0.5:
            least = max(0, count - dice.randint(0, 1))
            # In percent it says the same, until the job is scaled.
            is_percent = random.Random(f"percent {self.seed} {step.index}").random() < 0.4
            text += (
                f"min_available: {100 * least // max(1, count)}%\n"
                if is_percent
                else (f"min_available: {least}\n")
            )
        text += f"priority: {dice.randint(0, 2)}\n"
        if count:
            rules = ", ".join(filter(None, (rules, *self._neighbourly(step, key))))
            cores = random.Random(f"cores {self.seed} {step.index}").choice(CORES)
            text = text.replace("    memory:", f"{cores}    memory:")
        return text + (f"placement: {{{rules}}}\n" if rules else ""), count

    def _neighbourly(self, step: Step, key: JobKey) -> Iterator[str]:
        """Rules about other jobs and particular nodes; again from dice of their own."""
        dice = random.Random(f"neighbours {self.seed} {step.index}")
        other = f"job-{dice.randint(1, self.options.jobs)}"
        word, weight = dice.choice(["near", "apart", "apart"]), dice.choice(["", "", ", weight: 5"])
        if dice.random() < 0.4 and other != key.name:
            yield f"{word}: [{{job: {other}{weight}}}]"
        if dice.random() < 0.2:
            yield "spread: role"
        node = dice.choice(self.nodes)
        if dice.random() < 0.2:
            yield f"burst: {{after: {dice.randint(1, 2)}, node: {node}}}"
