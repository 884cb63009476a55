"""Freeze windows against a slow, obvious reading of the clocks, in zones that change theirs."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.core.freeze import Frozen, cluster_frozen, frozen_by, holds, never_ends
from ozymandias.model.settings import FreezeWindow, Settings
from ozymandias.model.week import (
    ALL_DAYS,
    covers_week,
    parse_clock,
    parse_start,
    parse_weekdays,
    zone_of,
)

BERLIN = "Europe/Berlin"
ZONES = (
    "UTC",
    BERLIN,  # an hour, at 02:00 and 03:00
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "America/Santiago",  # the clocks change at midnight
    "Asia/Kolkata",  # never, and half an hour off
)
CHANGING = ZONES[1:5]
MINUTE = 60
QUARTER = 15 * MINUTE  # the windows and clock changes below are at quarters of an hour


def window(
    start: str, end: str, days: str = "daily", timezone: str = BERLIN, name: str = "w"
) -> FreezeWindow:
    return FreezeWindow(
        name=name,
        start=parse_clock(start),
        end=parse_clock(end),
        weekdays=parse_weekdays(days),
        timezone=timezone,
    )


def at(text: str, timezone: str = BERLIN, fold: int = 0) -> float:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(timezone), fold=fold)
    return moment.timestamp()


def minutes_of_week(found: FreezeWindow) -> set[tuple[int, int]]:
    """Every reading inside the window, walked minute by minute from each of its starts."""
    readings = set()
    for day in found.weekdays:
        moment, steps = day * 1440 + found.start, 0
        while steps == 0 or moment % 1440 != found.end:
            readings.add((moment // 1440 % 7, moment % 1440))
            moment, steps = moment + 1, steps + 1
    return readings


def walk(zone: str, first: datetime, days: int) -> Iterator[tuple[float, tuple[int, int]]]:
    """Every minute, and what a clock there shows."""
    there = ZoneInfo(zone)
    moment = first.timestamp()
    for _ in range(days * 1440):
        shown = datetime.fromtimestamp(moment, there)
        yield moment, (shown.weekday(), shown.hour * 60 + shown.minute)
        moment += MINUTE


@pytest.mark.parametrize("zone", CHANGING)
def test_a_freeze_is_honoured_at_every_minute_of_a_year(zone: str) -> None:
    """What holds is what the clocks of the zone show, also in the nights when they are changed."""
    found = window("22:45", "02:30", "fri-mon", zone)
    inside = minutes_of_week(found)
    wrong = [
        moment
        for moment, shown in walk(zone, datetime(2026, 1, 1, tzinfo=UTC), 366)
        if holds(found, moment) is not (shown in inside)
    ]
    assert not wrong


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("spec", ["22:00 06:00 mon-fri", "02:15 02:45 daily", "00:00 00:00 sun"])
def test_ends_are_foretold(zone: str, spec: str) -> None:
    """In the weeks around clock changes the foretold moment is the one that comes."""
    start, end, days = spec.split()
    found = window(start, end, days, zone)
    for month in (3, 4, 9, 10, 11):
        first = datetime(2026, month, 1, tzinfo=UTC).timestamp()
        moments = [first + n * QUARTER for n in range(40 * 96)]
        readings = [(moment, holds(found, moment)) for moment in moments]
        turns = [m for (_, a), (m, b) in pairwise(readings) if a is not b]
        for moment, is_frozen in readings[: 25 * 96 : 31]:
            frozen = frozen_by((found,), moment)
            assert (frozen is not None) is is_frozen
            if frozen:
                assert frozen.until == next(m for m in turns if m > moment)


@settings(max_examples=40, deadline=None)
@given(
    data=st.lists(
        st.tuples(
            st.integers(0, 1439),
            st.integers(0, 1439),
            st.sets(st.integers(0, 6), min_size=1),
            st.sampled_from(ZONES),
        ),
        min_size=1,
        max_size=3,
    ),
    moment=st.integers(1_767_225_600, 1_798_761_600),
)
def test_any_windows_end_when_they_say(
    data: list[tuple[int, int, set[int], str]], moment: int
) -> None:
    """Until then every moment is frozen by one of them, and then none of them holds."""
    windows = tuple(
        FreezeWindow(name=f"w{n}", start=s, end=e, weekdays=tuple(sorted(days)), timezone=zone)
        for n, (s, e, days, zone) in enumerate(data)
    )
    frozen = frozen_by(windows, float(moment))
    assert (frozen is not None) is any(holds(w, moment) for w in windows)
    if frozen is None or frozen.until is None:
        return
    assert not any(holds(w, frozen.until) for w in windows)
    step = max(MINUTE, int((frozen.until - moment) / 50))
    assert all(any(holds(w, m) for w in windows) for m in range(moment, int(frozen.until), step))


def test_the_hour_that_is_shown_twice_is_frozen_twice() -> None:
    """In Berlin on 25 October 2026 the clocks go back from 03:00 to 02:00."""
    found = window("02:15", "02:45")
    for fold in (0, 1):
        assert not holds(found, at("2026-10-25T02:14", fold=fold))
        assert holds(found, at("2026-10-25T02:15", fold=fold))
        assert holds(found, at("2026-10-25T02:44", fold=fold))
        assert not holds(found, at("2026-10-25T02:45", fold=fold))


def test_a_start_that_no_clock_shows_counts_from_the_minute_after() -> None:
    """In Berlin on 29 March 2026 the clocks go forward from 02:00 to 03:00."""
    found = window("02:30", "04:00")
    assert not holds(found, at("2026-03-29T01:59"))
    assert holds(found, at("2026-03-29T03:00"))
    inside, night = window("02:15", "02:45"), int(at("2026-03-29T00:00"))
    assert not any(holds(inside, moment) for moment in range(night, night + 23 * 3600, MINUTE))
    assert holds(inside, at("2026-03-30T02:15"))


def test_windows_that_take_turns_are_one_freeze() -> None:
    """It ends when the last of them does, and is named after the one that lasts longest."""
    night, morning = window("22:00", "06:00"), window("05:00", "09:00", name="morning")
    frozen = frozen_by((night, morning), at("2026-11-17T23:00"))
    assert frozen == Frozen(by="w", until=at("2026-11-18T09:00"), timezone=BERLIN, goes_on=True)
    assert frozen.words == (
        "frozen by w, and by others after it, until Wed 2026-11-18 09:00 Europe/Berlin"
    )
    last = frozen_by((night, morning), at("2026-11-18T05:30"))
    assert last and last.words == "frozen by morning until Wed 2026-11-18 09:00 Europe/Berlin"


def test_a_freeze_from_now_on_is_over_for_good() -> None:
    """It holds from one moment to another, whatever the weekday."""
    found = FreezeWindow(name="now", start=0, end=0, since=1000.0, until=5000.0, reason="a demo")
    assert [holds(found, t) for t in (999.0, 1000.0, 4999.0, 5000.0)] == [False, True, True, False]
    frozen = cluster_frozen(Settings(freezes=(found,)), 2000.0)
    assert frozen and (frozen.by, frozen.until, frozen.reason) == ("now", 5000.0, "a demo")


@pytest.mark.parametrize("days", [9, 14, 31])
def test_a_long_freeze_from_now_on_ends(days: int) -> None:
    """It outlasts a week, and is no window that leaves nothing of it free; nor with others."""
    now = at("2026-11-17T12:00")
    once = FreezeWindow(name="now", start=0, end=0, since=now, until=now + days * 86_400)
    frozen = frozen_by((once,), now)
    assert frozen and frozen.until == once.until
    weekdays = window("00:00", "00:00", "mon-fri")
    assert not never_ends((once, weekdays), now)
    both = frozen_by((once, weekdays), now)
    assert both and both.until and both.until >= once.until
    assert not any(holds(w, both.until) for w in (once, weekdays))


def test_many_windows_that_take_turns_end() -> None:
    """Fifty a day and none on Sundays: three hundred turns from Monday on."""
    windows = tuple(
        FreezeWindow(
            name=f"w{n}",
            start=n * 1440 // 50,
            end=(n + 1) * 1440 // 50 % 1440,
            weekdays=(*range(6),),
        )
        for n in range(50)
    )
    frozen = frozen_by(windows, at("2026-11-16T00:00", "UTC"))
    assert frozen and frozen.until == at("2026-11-22T00:00", "UTC")
    assert not never_ends(windows, at("2026-11-16T00:00", "UTC"))


def test_a_zone_that_this_host_does_not_know_is_frozen() -> None:
    """Rather wait than break it; it is checked when it is asked for."""
    found = window("22:00", "06:00", timezone="Mars/Olympus")
    frozen = frozen_by((found,), 0.0)
    assert frozen and frozen.until is None and "until further notice" in frozen.words


@pytest.mark.parametrize(
    ("windows", "is_full"),
    [
        ((window("00:00", "00:00"),), True),
        ((window("13:37", "13:37"),), True),
        ((window("00:00", "24:00", "mon-sat"),), False),
        ((window("00:00", "12:00"), window("12:00", "00:00")), True),
        ((window("00:00", "12:00"), window("12:01", "00:00")), False),
        ((window("22:00", "06:00"),), False),
        # Each of its own zone, and together they leave nothing.
        ((window("00:00", "13:00", timezone="UTC"), window("13:00", "04:00")), True),
    ],
)
def test_windows_that_never_end_are_told(windows: tuple[FreezeWindow, ...], is_full: bool) -> None:
    """A week without one free minute is no freeze window any more."""
    assert never_ends(windows, at("2026-11-17T12:00")) is is_full
    if len({w.timezone for w in windows}) == 1:
        assert covers_week((w.start, w.end, w.weekdays) for w in windows) is is_full


@pytest.mark.parametrize("month", range(1, 13))
def test_windows_that_leave_nothing_free_for_a_part_of_the_year_are_told(month: int) -> None:
    """Whatever today's clocks show: with Berlin's summer time an hour is free, in winter none."""
    windows = (window("00:00", "12:00", timezone="UTC"), window("13:00", "01:00"))
    now = at(f"2026-{month:02}-20T10:00", "UTC")
    assert never_ends(windows, now)
    assert not never_ends((windows[0], window("14:00", "01:00")), now)


def test_zones_that_are_at_odds_for_some_weeks_are_foretold() -> None:
    """New York changes its clocks three weeks before Berlin; till then there is no free minute."""
    windows = (window("23:00", "17:30"), window("12:00", "18:00", timezone="America/New_York"))
    before = frozen_by(windows, at("2026-03-05T12:00"))
    assert before and before.until == at("2026-03-05T17:30")
    between = frozen_by(windows, at("2026-03-09T12:00"))
    assert between and between.until == at("2026-03-29T17:30")
    assert never_ends(windows, at("2026-11-17T12:00"))


def test_the_end_of_a_day_is_no_beginning() -> None:
    """ "24:00 on Fridays" is meant for Saturdays, and is not taken for the night before."""
    assert parse_clock("24:00") == parse_start("00:00") == 0
    with pytest.raises(ValueError, match="24:00 is that of the next day"):
        parse_start("24:00")


def test_every_zone_of_the_tests_is_known_here() -> None:
    """The host's table of zones is there (Debian: tzdata), and knows no nonsense."""
    assert all(zone_of(zone) for zone in ZONES)
    assert not any(zone_of(z) for z in ("", "Berlin", "../etc/passwd", "Europe", "/etc/localtime"))
    assert tuple(range(7)) == ALL_DAYS
