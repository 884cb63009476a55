"""One figure: a value against its goal, printed as one JSON line.

Ratios are taken within one run, turn by turn, so that a busy machine slows both sides alike. Of
starting a program the quickest turn counts: others only ever add to it.
"""

import json
import time
from collections.abc import Callable, Sequence


def report(
    figure: str, value: float, unit: str, goal: float, how: str, *, ok: bool | None = None
) -> None:
    """`ok` is by default that the value does not exceed the goal."""
    line = {
        "figure": figure,
        "value": round(value, 3),
        "unit": unit,
        "goal": goal,
        "ok": value <= goal if ok is None else ok,
        "how": how,
    }
    print(json.dumps(line), flush=True)


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def ratio_by_turns(
    ours: Callable[[], object], theirs: Callable[[], object], turns: int
) -> tuple[float, Sequence[float], Sequence[float]]:
    """(best of ours / best of theirs, all of ours, all of theirs); who begins alternates."""
    mine: list[float] = []
    other: list[float] = []
    for turn in range(turns):
        pairs = [(ours, mine), (theirs, other)]
        for action, times in pairs if turn % 2 == 0 else reversed(pairs):
            times.append(seconds(action))
    return min(mine) / min(other), mine, other


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
