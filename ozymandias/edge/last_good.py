"""Keep what was last known when most of it vanishes at once.

That is rarely the truth about the instances (a store restored, leases lapsed together) and always
an outage if it is believed. So for a while it is not: traffic goes on to the last known ones, and
those that are really gone show by refusing connections. Pure: the time is an argument.
"""

from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

HOLD_SECONDS = 30.0
GROUPS_MIN = 2  # with a single job, vanishing is most likely meant

K = TypeVar("K")
V = TypeVar("V")


class LastKnownGood(Generic[K, V]):
    """Groups are jobs; a group's value is whatever is there of it (never empty)."""

    def __init__(self, hold_seconds: float = HOLD_SECONDS) -> None:
        self._hold_seconds = hold_seconds
        self._last: dict[K, V] = {}
        self._held: dict[K, tuple[V, float]] = {}

    def admit(
        self,
        found: Mapping[K, V],
        now: float,
        wanted: Collection[K] | None = None,
        *,
        is_blind: bool = False,
    ) -> dict[K, V]:
        """What to serve. ``wanted``: groups that still exist, so that a stopped job is let go.

        ``is_blind``: nobody who could tell of instances is there, so that none vanishes on purpose.
        """
        lost = {
            key: value
            for key, value in self._last.items()
            if key not in found and (wanted is None or key in wanted)
        }
        is_most = len(self._last) >= GROUPS_MIN and len(lost) * 2 > len(self._last)
        if is_most or is_blind:
            for key, value in lost.items():
                self._held[key] = (value, now + self._hold_seconds)
        self._last = dict(found)
        self._held = {
            key: (value, until)
            for key, (value, until) in self._held.items()
            if until > now and key not in found and (wanted is None or key in wanted)
        }
        return dict(found) | {key: value for key, (value, _) in self._held.items()}

    @property
    def held(self) -> frozenset[K]:
        return frozenset(self._held)

    @property
    def next_release(self) -> float | None:
        """When to look again; None when nothing is held."""
        return min((until for _, until in self._held.values()), default=None)
