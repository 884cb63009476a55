"""What will be done to a cluster in one life, drawn from its seed before the life begins.

Swarm testing: each seed draws its own options (how many nodes, how fast, which kinds of trouble at
all), because a life with everything at once rarely gets deep into anything. Most lives are small,
short and dense, for two or three nodes and a handful of instances show most bugs and cost little;
a few are large, for what only a crowd shows. Each step knows its time and its kind only; whatever
else it needs it draws from its own dice when it happens. So a step can be left out and all others
still do what they did, which is how a failure is shrunk.
"""

import random
from dataclasses import dataclass, replace

SEED_MAX = 2**63
UPKEEP_SHARE = 0.5  # of lives
AMBUSH_SHARE = 0.3  # of lives
AMBUSH_SECONDS = 8.0  # between two, on average

# Users' doings, with their weights.
USER_STEPS = {"submit": 6, "scale": 3, "stop": 1, "restart": 2}

# Operators' doings, in lives that have some.
OPERATOR_STEPS = {"drain": 3, "undrain": 2, "cordon": 1, "uncordon": 1, "label": 2, "unlabel": 1}

# Everything that may break, with its weight.
FAULT_STEPS = {
    "kill": 3,
    "power": 2,
    "power-all": 1,
    "partition": 2,
    "partitions": 1,
    "deaf": 2,
    "mute": 1,
    "stuck-watch": 2,
    "slow": 2,
    "weather": 4,
    "freeze": 2,
    "suspend": 1,
    "clock-step": 1,
    "lease": 2,
    "leases": 2,
    "quorum": 2,
    "compact": 2,
    "exit": 2,
    "network": 1,
    "flap": 1,
    "hung": 1,
    "full": 1,
    "image": 1,
    "port": 1,
    "twin": 1,
    "poison": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """From what the extent of a life is drawn."""

    weight: int  # how often, in a hundred lives
    nodes: tuple[int, ...]
    jobs: tuple[int, ...]  # how many different ones
    counts: tuple[int, ...]  # of instances of one job, if they are light
    trouble_seconds: tuple[float, ...]
    pace_seconds: tuple[float, ...]
    lasting: float  # how long faults last, of what they would in a long life
    rest_seconds: float  # for how long nobody may write in the end


SIZES = {
    "small": Size(
        weight=75,
        nodes=(2, 3, 3),
        jobs=(1, 2, 3),
        counts=(1, 2, 4),
        trouble_seconds=(12.0, 20.0, 30.0),
        pace_seconds=(0.7, 1.0, 2.0),
        lasting=0.4,
        rest_seconds=25.0,
    ),
    "middle": Size(
        weight=21,
        nodes=(2, 3, 4, 4),
        jobs=(4, 5),
        counts=(1, 2, 4, 6),
        trouble_seconds=(25.0, 40.0, 60.0),
        pace_seconds=(1.0, 2.0, 3.0),
        lasting=0.7,
        rest_seconds=60.0,
    ),
    "large": Size(
        weight=4,
        nodes=(5, 5, 6, 7),
        jobs=(6, 8),
        counts=(2, 4, 8, 12),
        trouble_seconds=(60.0, 100.0),
        pace_seconds=(1.5, 3.0),
        lasting=1.0,
        rest_seconds=60.0,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    size: str = "small"
    nodes: int = 3
    jobs: int = 3
    lease_ttl_seconds: int = 6
    breaker_seconds: float = 60.0
    trouble_seconds: float = 120.0
    pace_seconds: float = 3.0  # between two steps, on average
    user_share: float = 0.5  # of the steps
    kinds: tuple[str, ...] = ()  # of faults
    drift: float = 0.0  # how far clocks may be off in rate
    has_odd_jobs: bool = True  # jobs that crash, ignore SIGTERM, run out of memory
    has_upkeep: bool = False  # nodes are drained, cordoned, labelled; jobs have rules of their own
    does_core_only: bool = False  # some nodes stay broken for ever
    does_drill: bool = False  # at rest, one more node is lost

    def __str__(self) -> str:
        parts = [f"{self.size}: {self.nodes} nodes", f"TTL {self.lease_ttl_seconds} s"]
        parts += [f"breaker {self.breaker_seconds:g} s", f"a step in {self.pace_seconds:.1f} s"]
        parts += [f"clocks {self.drift:.0%} off"] if self.drift else []
        parts += ["only a core heals"] if self.does_core_only else []
        parts += ["operators at work"] if self.has_upkeep else []
        return ", ".join([*parts, "faults: " + (" ".join(self.kinds) or "none")])


@dataclass(frozen=True, slots=True)
class Step:
    index: int
    at: float
    kind: str

    def dice(self, seed: int) -> random.Random:
        return random.Random(f"step {seed} {self.index}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    seed: int
    options: Options
    steps: tuple[Step, ...]

    def without(self, indexes: set[int]) -> "Schedule":
        return replace(self, steps=tuple(s for s in self.steps if s.index not in indexes))


def draw(seed: int) -> Schedule:
    dice = random.Random(f"schedule {seed}")
    options = draw_options(dice)
    steps: list[Step] = []
    users, faults = list(USER_STEPS), list(options.kinds)
    at = 1.0
    while at < options.trouble_seconds:
        if not faults or dice.random() < options.user_share:
            kind = dice.choices(users, [USER_STEPS[k] for k in users])[0]
        else:
            kind = dice.choices(faults, [FAULT_STEPS[k] for k in faults])[0]
        steps.append(Step(len(steps), at, kind))
        at += dice.expovariate(1 / options.pace_seconds)
    upkeep = _draw_upkeep(seed, options, len(steps))
    more = (*upkeep, *_draw_ambushes(seed, options, len(steps) + len(upkeep)))
    return Schedule(
        seed=seed,
        options=replace(options, has_upkeep=bool(upkeep)),
        steps=tuple(sorted((*steps, *more), key=lambda step: (step.at, step.index))),
    )


def _draw_upkeep(seed: int, options: Options, index: int) -> list[Step]:
    """What operators do, from dice of its own: all other steps are as they would be without."""
    dice = random.Random(f"upkeep {seed}")
    if dice.random() >= UPKEEP_SHARE:
        return []
    kinds = list(OPERATOR_STEPS)
    steps: list[Step] = []
    at = 1.0 + dice.expovariate(1 / options.pace_seconds)
    while at < options.trouble_seconds:
        kind = dice.choices(kinds, [OPERATOR_STEPS[k] for k in kinds])[0]
        steps.append(Step(index + len(steps), at, kind))
        at += dice.expovariate(1 / (3 * options.pace_seconds))
    return steps


def _draw_ambushes(seed: int, options: Options, index: int) -> list[Step]:
    """Faults that wait for the middle of a piece of work to strike; from dice of their own too."""
    dice = random.Random(f"ambush {seed}")
    if dice.random() >= AMBUSH_SHARE:
        return []
    steps: list[Step] = []
    at = 1.0 + dice.expovariate(1 / AMBUSH_SECONDS)
    while at < options.trouble_seconds:
        steps.append(Step(index + len(steps), at, "ambush"))
        at += dice.expovariate(1 / AMBUSH_SECONDS)
    return steps


def draw_options(dice: random.Random) -> Options:
    name = dice.choices(list(SIZES), [size.weight for size in SIZES.values()])[0]
    size = SIZES[name]
    share = dice.choice([0.15, 0.3, 0.6])
    nodes = dice.choice(size.nodes)
    does_core_only = nodes >= 3 and dice.random() < 0.3
    return Options(
        size=name,
        nodes=nodes,
        jobs=dice.choice(size.jobs),
        lease_ttl_seconds=dice.choice([6, 6, 10]),
        breaker_seconds=dice.choice([15.0, 30.0, 60.0]),
        trouble_seconds=dice.choice(size.trouble_seconds),
        pace_seconds=dice.choice(size.pace_seconds),
        user_share=dice.choice([0.3, 0.5, 0.7]),
        kinds=tuple(kind for kind in FAULT_STEPS if dice.random() < share),
        drift=dice.choice([0.0, 0.0, 0.01]),
        has_odd_jobs=dice.random() < 0.5,
        does_core_only=does_core_only,
        does_drill=nodes >= 3 and not does_core_only and dice.random() < 0.3,
    )
