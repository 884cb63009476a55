"""What will be done to a cluster in one life, drawn from its seed before the life begins.

Swarm testing: each seed draws its own options (how many nodes, how fast, which kinds of trouble at
all), because a life with everything at once rarely gets deep into anything. Most lives are small,
short and dense, for two or three nodes and a handful of instances show most bugs and cost little;
a few are large, for what only a crowd shows. Each step knows its time and its kind only; whatever
else it needs it draws from its own dice when it happens. So a step can be left out and all others
still do what they did, which is how a failure is shrunk.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

SEED_MAX = 2**63
UPKEEP_SHARE = 0.5  # of lives
NARROW_SHARE = 0.3  # of lives with three nodes or more: some of them do not schedule
SETTLING_SHARE = 0.3  # of those
SETTLING_SECONDS = 8.0  # between two, on average
POOL_SHARE = 0.35  # of lives
AMBUSH_SHARE = 0.3  # of lives
MOVES_SHARE = 0.6  # of lives: something may be moved only to be better placed
AMBUSH_SECONDS = 8.0  # between two, on average
PRESSURE_SHARE = 0.25  # of lives
PRESSURE_SECONDS = 15.0  # between two, on average
FULL_SHARE = 0.3  # of lives
EAGER_SHARE = 0.5
FULL_JOBS = 4  # at least, in those

# Users' doings, with their weights.
USER_STEPS = {"submit": 6, "scale": 3, "stop": 1, "restart": 2}

# Operators' doings, in lives that have some.
OPERATOR_STEPS = {"drain": 3, "undrain": 2, "cordon": 1, "uncordon": 1, "label": 2, "unlabel": 1}

# What they settle for all jobs, in some of those lives.
SETTLING_STEPS = {"pool": 2, "prefer-pool": 2, "unpool": 1}

# What happens around pools and freeze windows, in lives that have some.
POOL_STEPS = {"agents": 3, "queue": 6, "hold": 2, "thaw": 2}

# What moves instances though all is well, in lives that have it.
MOVE_STEPS = {"rebalance": 1}

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
    is_full: bool = False  # small nodes, and jobs of different importance
    rebalance: str = "off"  # how far the cluster moves instances of its own accord
    steady_seconds: float = 60.0  # how long all must be well before it does
    does_core_only: bool = False  # some nodes stay broken for ever
    does_drill: bool = False  # at rest, one more node is lost
    schedulers: int = 0  # nodes that schedule, the others follow their own part; 0: all do
    is_eager: bool = False  # transactions leave before the answer to the one before them

    def __str__(self) -> str:
        parts = [f"{self.size}: {self.nodes} nodes", f"TTL {self.lease_ttl_seconds} s"]
        parts += [f"breaker {self.breaker_seconds:g} s", f"a step in {self.pace_seconds:.1f} s"]
        parts += [f"clocks {self.drift:.0%} off"] if self.drift else []
        parts += [f"{self.schedulers} of them schedule"] if self.schedulers else []
        parts += ["eager"] if self.is_eager else []
        parts += ["only a core heals"] if self.does_core_only else []
        parts += ["operators at work"] if self.has_upkeep else []
        parts += ["full"] if self.is_full else []
        parts += [f"rebalance {self.rebalance}"] if self.rebalance != "off" else []
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
    if random.Random(f"full {seed}").random() < FULL_SHARE:
        options = replace(options, is_full=True, jobs=max(options.jobs, FULL_JOBS))
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
    schedulers = _draw_schedulers(seed, options)
    upkeep = _draw_upkeep(seed, options, len(steps), is_narrow=bool(schedulers))
    more = [*upkeep, *_draw_ambushes(seed, options, len(steps) + len(upkeep))]
    more += _draw_pressure(seed, options, len(steps) + len(more))
    if upkeep:
        more += _draw_settling(seed, options, len(steps) + len(more))
    more += _draw_pools(seed, options, len(steps) + len(more))
    mode, steady, moves = _draw_moves(seed, options, len(steps) + len(more))
    more += moves
    return Schedule(
        seed=seed,
        options=replace(
            options,
            has_upkeep=bool(upkeep),
            schedulers=schedulers,
            rebalance=mode,
            steady_seconds=steady,
            is_eager=random.Random(f"eager {seed}").random() < EAGER_SHARE,
        ),
        steps=tuple(sorted((*steps, *more), key=lambda step: (step.at, step.index))),
    )


def _draw_schedulers(seed: int, options: Options) -> int:
    """How many nodes schedule, from dice of its own; one more than may be lost for good."""
    dice = random.Random(f"schedulers {seed}")
    if options.nodes < 3 or dice.random() >= NARROW_SHARE:
        return 0
    return dice.randint(2, options.nodes - 1)


def _draw_upkeep(seed: int, options: Options, index: int, *, is_narrow: bool) -> list[Step]:
    """What operators do, from dice of its own: all other steps are as they would be without.

    Always and more often where some nodes do not schedule: what is drained to one of them waits
    there for something that it can't see.
    """
    dice = random.Random(f"upkeep {seed}")
    if dice.random() >= UPKEEP_SHARE and not is_narrow:
        return []
    pace = options.pace_seconds
    at = 1.0 + dice.expovariate(1 / pace)
    return _now_and_then(dice, options, OPERATOR_STEPS, index, at, (1 if is_narrow else 3) * pace)


def _draw_pools(seed: int, options: Options, index: int) -> list[Step]:
    """Jobs that scale themselves, what their sources say, freeze windows; from dice of its own."""
    dice = random.Random(f"pools {seed}")
    if dice.random() >= POOL_SHARE:
        return []
    first = Step(index, 1.0 + dice.random(), "agents")
    at = first.at + dice.expovariate(1 / options.pace_seconds)
    return [
        first,
        *_now_and_then(dice, options, POOL_STEPS, index + 1, at, 2 * options.pace_seconds),
    ]


def _draw_ambushes(seed: int, options: Options, index: int) -> list[Step]:
    """Faults that wait for the middle of a piece of work to strike; from dice of their own too."""
    dice = random.Random(f"ambush {seed}")
    if dice.random() >= AMBUSH_SHARE:
        return []
    at = 1.0 + dice.expovariate(1 / AMBUSH_SECONDS)
    return _now_and_then(dice, options, {"ambush": 1}, index, at, AMBUSH_SECONDS)


def _draw_pressure(seed: int, options: Options, index: int) -> list[Step]:
    """Hosts that run short of something for a while; from dice of their own as well."""
    dice = random.Random(f"pressure {seed}")
    if dice.random() >= PRESSURE_SHARE:
        return []
    at = 1.0 + dice.expovariate(1 / PRESSURE_SECONDS)
    return _now_and_then(dice, options, {"pressure": 1}, index, at, PRESSURE_SECONDS)


def _draw_settling(seed: int, options: Options, index: int) -> list[Step]:
    """The namespace gets nodes of its own, or is rid of them; from dice of their own as well."""
    dice = random.Random(f"settling {seed}")
    if dice.random() >= SETTLING_SHARE:
        return []
    at = 1.0 + dice.expovariate(1 / SETTLING_SECONDS)
    return _now_and_then(dice, options, SETTLING_STEPS, index, at, SETTLING_SECONDS)


def _draw_moves(seed: int, options: Options, index: int) -> tuple[str, float, list[Step]]:
    """How far the cluster goes by itself, how soon, and when an operator asks for it anew."""
    dice = random.Random(f"moves {seed}")
    if dice.random() >= MOVES_SHARE:
        return "off", 60.0, []
    mode, steady = dice.choice(["off", "suggest", "on", "on"]), dice.choice([1.0, 3.0])
    apart = 6 * options.pace_seconds
    at = 1.0 + dice.expovariate(1 / apart)
    return mode, steady, _now_and_then(dice, options, MOVE_STEPS, index, at, apart)


def _now_and_then(
    dice: random.Random,
    options: Options,
    kinds: Mapping[str, int],
    index: int,
    at: float,
    seconds: float,
) -> list[Step]:
    """Steps of these kinds, by their weights, from ``at`` on, so many seconds apart on average."""
    names, weights = list(kinds), list(kinds.values())
    steps: list[Step] = []
    while at < options.trouble_seconds:
        kind = dice.choices(names, weights)[0] if len(names) > 1 else names[0]
        steps.append(Step(index + len(steps), at, kind))
        at += dice.expovariate(1 / seconds)
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
