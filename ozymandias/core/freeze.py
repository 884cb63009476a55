"""Freeze windows: times in which nothing is changed that can wait.

A window goes by what the clocks of its time zone show, and by nothing else. So when they are put
forward, a start that no clock ever shows counts from the first minute after the gap; when they are
put back, an hour that they show twice is frozen both times. A window that lies wholly inside the
gap does not happen that night.

    frozen_by(windows, now)     the window that holds now and until when; None: nothing is frozen
    never_ends(windows, now)    whether they leave no minute of the week free

What waits: steps of rollouts, moves of a rebalance, autoscaling. What never does: repair, drains,
shedding, placing what is pending, and what people ask for themselves.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ozymandias.model.job import JobHead
from ozymandias.model.settings import FreezeWindow, Settings
from ozymandias.model.week import Zone, format_moment, offset_seconds, reading, zone_of

DAY_SECONDS = 86_400
WEEK_SECONDS = 7 * DAY_SECONDS
FULL_SECONDS = 8 * DAY_SECONDS  # without a free minute: there is none while clocks are not changed
AHEAD_SECONDS = 15 * DAY_SECONDS  # one window that ends at all does so within
SIGHT_SECONDS = 45 * DAY_SECONDS  # of windows that take turns; zones are at odds for a month a year


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """``until`` None: for ever, as far as this host can tell."""

    by: str
    until: float | None
    timezone: str = "UTC"
    reason: str = ""
    goes_on: bool = False  # when that window ends another one holds, and so on until then

    @property
    def words(self) -> str:
        """ "frozen by nights until Tue 2026-11-17 06:00 Europe/Berlin (no changes at night)"."""
        end = "further notice" if self.until is None else format_moment(self.until, self.timezone)
        by = f"{self.by}, and by others after it," if self.goes_on else self.by
        return f"frozen by {by} until {end}" + (f" ({self.reason})" if self.reason else "")


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
    ends = [_end(window, now) or float("inf") for window in holding]
    named = holding[ends.index(max(ends))]
    until = _free_from(listed, now, SIGHT_SECONDS)
    return Frozen(
        by=named.name,
        until=until,
        timezone=named.timezone,
        reason=named.reason,
        goes_on=(until or float("inf")) > max(ends),
    )


def never_ends(windows: Iterable[FreezeWindow], now: float) -> bool:
    """Whether the windows of every week leave none of it free, at some time of the year.

    What they leave hangs on how far the clocks of their zones are apart, so every such distance
    of the year is looked at. A window that is for once does end, whatever the others do.
    """
    weekly = tuple(window for window in windows if not window.until)
    zones = {zone for window in weekly if (zone := zone_of(window.timezone))}

    def clocks(moment: float) -> tuple[int, ...]:
        return tuple(offset_seconds(moment, zone) for zone in zones)

    weeks = [now + number * WEEK_SECONDS for number in range(53)]
    steady = {clocks(m): m for m in weeks if clocks(m) == clocks(m + FULL_SECONDS)}
    return any(_free_from(weekly, moment, FULL_SECONDS) is None for moment in steady.values())


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
    if window.until:
        return window.until
    zone = zone_of(window.timezone)
    if zone is None:
        return None
    return next((m for m in _moments(window, zone, now) if not holds(window, m)), None)


def _free_from(windows: tuple[FreezeWindow, ...], now: float, within: float) -> float | None:
    """The first moment that no window holds; None when there is none in sight."""
    moment = now
    while moment - now <= within:
        ends = [_end(window, moment) for window in windows if holds(window, moment)]
        if not ends:
            return moment
        if None in ends:
            return None
        moment = max(end for end in ends if end is not None)
    return None


def _moments(window: FreezeWindow, zone: Zone, now: float) -> Iterator[float]:
    """Every later moment at which the answer of `holds` can change, one after the other.

    The clocks pass the window's start or end, by the offset that they have then, or they are put
    forward or back. Looked for day by day, for mostly the first one is the one.
    """
    for day in range(int(now), int(now) + AHEAD_SECONDS, DAY_SECONDS):
        change = _clock_change(zone, day, day + DAY_SECONDS)
        offsets = {offset_seconds(m, zone) for m in (day, day + DAY_SECONDS)}
        found = {
            day + ((minute * 60 - offset - day) % DAY_SECONDS or DAY_SECONDS)
            for minute in (window.start, window.end)
            for offset in offsets
        }
        if change:
            found.add(change)
        yield from (float(m) for m in sorted(found) if m > now)


def _clock_change(zone: Zone, before: int, after: int) -> int | None:
    """When the clocks of a zone are put forward or back, to the second, within this day."""
    old = offset_seconds(before, zone)
    if offset_seconds(after, zone) == old:
        return None  # nobody changes clocks twice within a day
    while after - before > 1:
        middle = (before + after) // 2
        if offset_seconds(middle, zone) == old:
            before = middle
        else:
            after = middle
    return after
