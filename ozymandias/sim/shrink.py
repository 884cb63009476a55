"""Reduce a failing life to what it takes: leave steps out while the same invariant is violated.

Steps draw from dice of their own, so those that stay do what they did. First large parts, then
smaller ones, then single steps (delta debugging); what remains is worth reading.
"""

from collections.abc import Callable

from ozymandias.sim.scenario import Outcome, run
from ozymandias.sim.schedule import Schedule

RUNS_MAX = 400


def shrink(
    schedule: Schedule,
    failing: Outcome,
    tell: Callable[[str], None] = lambda text: None,
    live: Callable[[Schedule], Outcome] = run,
) -> tuple[Schedule, Outcome]:
    """The smallest schedule found, and its outcome."""
    best, outcome = schedule, failing
    runs, parts = 0, 2
    while len(best.steps) >= 2 and runs < RUNS_MAX:
        size = max(1, len(best.steps) // parts)
        indexes = [step.index for step in best.steps]
        is_smaller = False
        for start in range(0, len(indexes), size):
            candidate = best.without(set(indexes[start : start + size]))
            runs += 1
            result = live(candidate)
            if result.violations and result.invariant == failing.invariant:
                best, outcome, is_smaller = candidate, result, True
                tell(f"{len(best.steps)} steps left after {runs} runs")
                break
            if runs >= RUNS_MAX:
                break
        if is_smaller:
            parts = max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts = min(parts * 2, len(best.steps))
    return best, outcome
