"""How much one caller may ask: token buckets, by token and, before that, by address.

Strangers are counted by address before their token is looked at, and only strangers: whoever shows
a valid token is never slowed by what others do from the same address. Buckets that are full again
are forgotten, so that the number of addresses in the world is no matter.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

BUCKETS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """``per_second`` for as long as one likes, ``burst`` at once. 0 per second means no limit."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    caller: Rate = Rate(per_second=500.0, burst=2000.0)
    stranger: Rate = Rate(per_second=5.0, burst=50.0)
    connections_max: int = 2048


class Buckets:
    def __init__(self, rate: Rate, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}  # what is left, and as of when

    def wait_seconds(self, name: str) -> int:
        """How long to wait before the next request is welcome; 0 means now. Takes nothing."""
        if self._rate.per_second <= 0:
            return 0
        left = self._left(name, self._now())
        return 0 if left >= 1 else max(1, math.ceil((1 - left) / self._rate.per_second))

    def take(self, name: str) -> None:
        if self._rate.per_second <= 0:
            return
        now = self._now()
        left = self._left(name, now) - 1
        self._buckets.pop(name, None)
        self._buckets[name] = (max(0.0, left), now)
        if len(self._buckets) > BUCKETS_MAX:
            self._forget(now)

    def _left(self, name: str, now: float) -> float:
        left, since = self._buckets.get(name, (self._rate.burst, now))
        return min(self._rate.burst, left + (now - since) * self._rate.per_second)

    def _forget(self, now: float) -> None:
        """Those that are full again; then the longest unused, until half of the room is free."""
        full = [n for n in self._buckets if self._left(n, now) >= self._rate.burst]
        for name in full:
            del self._buckets[name]
        while len(self._buckets) > BUCKETS_MAX // 2:
            del self._buckets[next(iter(self._buckets))]
