"""Freeze windows: times in which nothing is changed that can wait.

A window goes by what the clocks of its time zone show, and by nothing else. So when they are put
forward, a start that no clock ever shows counts from the first minute after the gap; when they are
put back, an hour that they show twice is frozen both times. A window that lies wholly inside the
gap does not happen that night.

    frozen_by(windows, now)     the window that holds now and until when; None: nothing is frozen
    next_change(windows, now)   when that answer may next be another one

What waits: steps of rollouts, moves of a rebalance, autoscaling. What never does: repair, drains,
shedding, placing what is pending, and what people ask for themselves.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ozymandias.model.job import JobHead
from ozymandias.model.settings import FreezeWindow, Settings
from ozymandias.model.week import Zone, format_moment, offset_seconds, reading, zone_of

DAY_SECONDS = 86_400
STRETCH_SECONDS_MAX = 8 * DAY_SECONDS  # a longer one leaves no minute of the week free
AHEAD_SECONDS = 15 * DAY_SECONDS  # a window may lie in a gap once, not twice
STEPS_MAX = 64  # of windows that take turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """``until`` None: for ever, as far as this host can tell."""

    by: str
    until: float | None
    timezone: str = "UTC"
    reason: str = ""

    @property
    def words(self) -> str:
        """ "frozen by nights until Tue 2026-11-17 06:00 Europe/Berlin (no changes at night)"."""
        end = "further notice" if self.until is None else format_moment(self.until, self.timezone)
        return f"frozen by {self.by} until {end}" + (f" ({self.reason})" if self.reason else "")


def cluster_frozen(settings: Settings, now: float) -> Frozen | None:
    """By the windows of the whole cluster."""
    return frozen_by(settings.freezes, now) if settings.freezes else None


def holds_back(settings: Settings, head: JobHead, now: float | None) -> bool:
    """Whether a job's rollout waits for a freeze to end: unless somebody said why it must not."""
    if now is None or head.override_freeze:
        return False
    return any(holds(window, now) for window in settings.freezes)


def frozen_by(windows: Iterable[FreezeWindow], now: float) -> Frozen | None:
    """The window that holds now; ``until`` is when no window holds any more."""
    listed = tuple(windows)
    holding = [window for window in listed if holds(window, now)]
    if not holding:
        return None
    named = max(holding, key=lambda window: _end(window, now) or float("inf"))
    return Frozen(
        by=named.name,
        until=_free_from(listed, now),
        timezone=named.timezone,
        reason=named.reason,
    )


def next_change(windows: Iterable[FreezeWindow], now: float) -> float | None:
    """The next moment at which a window begins or ends; None: not in the next fortnight."""
    moments = (m for window in windows if (m := _turn(window, now)) is not None)
    return min(moments, default=None)


def never_ends(windows: Iterable[FreezeWindow], now: float) -> bool:
    """Whether the windows together leave nothing free, at some time of the year."""
    listed = tuple(windows)
    half_years = (now, now + 182 * DAY_SECONDS)  # clocks differ in summer and in winter
    return any(
        any(holds(w, moment) for w in listed) and _free_from(listed, moment) is None
        for moment in half_years
    )


# One window ---------------------------------------------------------------------------------------


def holds(window: FreezeWindow, now: float) -> bool:
    """Whether the clocks of its zone show a time inside the window."""
    if window.until:
        return window.since <= now < window.until
    zone = zone_of(window.timezone)
    if zone is None:
        return True  # nobody here can tell when it ends: rather wait than break it
    day, minute = reading(now, zone)
    if window.start < window.end:
        return day in window.weekdays and window.start <= minute < window.end
    began_today = day in window.weekdays and minute >= window.start
    began_yesterday = (day - 1) % 7 in window.weekdays and minute < window.end
    return began_today or began_yesterday


def _end(window: FreezeWindow, now: float) -> float | None:
    """When a window that holds now does so no more."""
    return next((m for m in _moments(window, now) if not holds(window, m)), None)


def _turn(window: FreezeWindow, now: float) -> float | None:
    before = holds(window, now)
    return next((m for m in _moments(window, now) if holds(window, m) is not before), None)


def _free_from(windows: tuple[FreezeWindow, ...], now: float) -> float | None:
    """The first moment that no window holds; None when there is none within a week."""
    moment = now
    for _ in range(STEPS_MAX):
        ends = [_end(window, moment) for window in windows if holds(window, moment)]
        if not ends:
            return moment
        latest = None if None in ends else max(end for end in ends if end is not None)
        if latest is None or latest - now > STRETCH_SECONDS_MAX:
            return None
        moment = latest
    return None


def _moments(window: FreezeWindow, now: float) -> list[float]:
    """Every later moment at which the answer of `holds` can change, within a fortnight.

    The clocks pass the window's start or end, by whichever offset they have then, or they are put
    forward or back.
    """
    if window.until:
        return [m for m in (window.since, window.until) if m > now]
    zone = zone_of(window.timezone)
    if zone is None:
        return []
    changes = list(_clock_changes(zone, now))
    offsets = {offset_seconds(m, zone) for m in (now, *changes)}
    first_day = int(now // DAY_SECONDS) - 1
    found = set(changes)
    for offset in offsets:
        for day in range(first_day, first_day + AHEAD_SECONDS // DAY_SECONDS + 3):
            for minute in (window.start, window.end):
                found.add(float(day * DAY_SECONDS + minute * 60 - offset))
    return sorted(m for m in found if now < m <= now + AHEAD_SECONDS)


def _clock_changes(zone: Zone, now: float) -> Iterator[float]:
    """When the clocks of a zone are put forward or back, to the second, within a fortnight."""
    for start in range(int(now), int(now) + AHEAD_SECONDS, DAY_SECONDS):
        before, after = start, start + DAY_SECONDS
        old = offset_seconds(before, zone)
        if offset_seconds(after, zone) == old:
            continue  # nobody changes clocks twice within a day
        while after - before > 1:
            middle = (before + after) // 2
            if offset_seconds(middle, zone) == old:
                before = middle
            else:
                after = middle
        yield float(after)
