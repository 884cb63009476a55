"""One figure: a value against its goal, printed as one JSON line.

Ratios are taken within one run, turn by turn, so that a busy machine slows both sides alike. The
value is the ratio of the medians; that of the quickest turns stands beside it.
"""

import json
import statistics
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


def by_turns(
    ours: Callable[[], object], theirs: Callable[[], object], turns: int
) -> tuple[Sequence[float], Sequence[float]]:
    """The seconds of each; who begins alternates."""
    mine: list[float] = []
    other: list[float] = []
    for turn in range(turns):
        pairs = [(ours, mine), (theirs, other)]
        for action, times in pairs if turn % 2 == 0 else reversed(pairs):
            times.append(seconds(action))
    return mine, other


def compared(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, str]:
    """The ratio of the medians, and how it came about, with the best beside it."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    how = (
        f"median of {len(ours)} turns {milliseconds(mine)} against {milliseconds(other)};"
        f" best {milliseconds(min(ours))} against {milliseconds(min(theirs))}"
        f" ({min(ours) / min(theirs):.2f})"
    )
    return mine / other, how


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
