"""Times of the week as people write them: "22:00", "mon-fri", "Europe/Berlin".

A clock is minutes after midnight; a weekday is 0 to 6, 0 is Monday. What the clocks of a time zone
show at a moment is asked here and nowhere else: the zones are the host's own table (Debian's
tzdata), read once each, and the same moment always gives the same reading. Nothing here asks what
time it is now.
"""

import functools
import re
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

DAY_MINUTES = 24 * 60
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ALL_DAYS = tuple(range(7))
ZONE = r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,2}"

Zone = tzinfo

_CLOCK = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])")
_NAMED = {"daily": ALL_DAYS, "weekdays": (0, 1, 2, 3, 4), "weekend": (5, 6)}


def parse_clock(text: str) -> int:
    """ "22:00" -> 1320. 24:00 is the end of the day, which is the start of the next."""
    found = _CLOCK.fullmatch(text.strip())
    minutes = int(found[1]) * 60 + int(found[2]) if found else DAY_MINUTES + 1
    if minutes > DAY_MINUTES:
        raise ValueError(f"{text!r} is not a time of day such as 22:00")
    return minutes % DAY_MINUTES


def parse_start(text: str) -> int:
    """The same for a beginning: 24:00 of a weekday would be on the next one."""
    if text.strip() == "24:00":
        raise ValueError("a day begins at 00:00: 24:00 is that of the next day")
    return parse_clock(text)


def format_clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def parse_weekdays(text: str) -> tuple[int, ...]:
    """ "mon-fri", "sat,sun", "fri-mon" (over the weekend), "daily"."""
    found: set[int] = set()
    for part in text.strip().lower().split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not dash and first in _NAMED:
            found |= set(_NAMED[first])
            continue
        start, end = _weekday(first), _weekday(last if dash else first)
        found |= {(start + days) % 7 for days in range((end - start) % 7 + 1)}
    return tuple(sorted(found))


def _weekday(word: str) -> int:
    for number, name in enumerate(WEEKDAYS):
        if len(word) >= 3 and _LONG[number].startswith(word) and word.startswith(name):
            return number
    raise ValueError(f"{word!r} is not a weekday such as mon; several: mon-fri or sat,sun")


_LONG = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def format_weekdays(days: Iterable[int]) -> str:
    """As short as it reads well: "mon-fri", "mon, wed", "daily"."""
    chosen = sorted(set(days))
    if len(chosen) == 7:
        return "daily"
    if len(chosen) > 2 and chosen == list(range(chosen[0], chosen[-1] + 1)):
        return f"{WEEKDAYS[chosen[0]]}-{WEEKDAYS[chosen[-1]]}"
    return ", ".join(WEEKDAYS[day] for day in chosen)


def covers_week(windows: Iterable[tuple[int, int, tuple[int, ...]]]) -> bool:
    """Whether (start, end, weekdays) of one time zone leave no minute of the week free."""
    left = bytearray(b"\1") * (7 * DAY_MINUTES)
    for start, end, weekdays in windows:
        length = (end - start) % DAY_MINUTES or DAY_MINUTES
        for day in weekdays:
            for minute in range(length):
                left[(day * DAY_MINUTES + start + minute) % len(left)] = 0
    return not any(left)


# Time zones ---------------------------------------------------------------------------------------


@functools.cache
def zone_of(name: str) -> Zone | None:
    """None: this host does not know it. UTC is known without a table."""
    if name == "UTC":
        return UTC
    if not re.fullmatch(ZONE, name):
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return None


def reading(wall: float, zone: Zone) -> tuple[int, int]:
    """What a clock and a calendar on the wall there show: weekday, minutes after midnight."""
    local = datetime.fromtimestamp(wall, zone)
    return local.weekday(), local.hour * 60 + local.minute


def offset_seconds(wall: float, zone: Zone) -> int:
    """By how much the clocks there are ahead of UTC at that moment."""
    ahead = datetime.fromtimestamp(wall, zone).utcoffset()
    return int(ahead.total_seconds()) if ahead else 0


def format_moment(wall: float, name: str = "UTC") -> str:
    """ "Tue 2026-11-17 06:00 Europe/Berlin"."""
    zone = zone_of(name) or UTC
    local = datetime.fromtimestamp(wall, zone)
    return f"{local:%a %Y-%m-%d %H:%M} {name if zone_of(name) else 'UTC'}"
