"""The health state machine: its table, its thresholds, its start period."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ozymandias.core.health import (
    GRACE_SECONDS,
    STOPPED,
    TABLE,
    Health,
    HealthEvent,
    HealthState,
    ImpossibleEvent,
    adopted,
    ended,
    next_state,
    probe_after,
    probed,
    started,
    waited,
)
from ozymandias.model.job import HealthCheck, HealthKind
from ozymandias.model.record import replace

CHECK = HealthCheck(
    kind=HealthKind.TCP,
    port=80,
    interval_seconds=10.0,
    healthy_threshold=2,
    unhealthy_threshold=3,
    start_period_seconds=20.0,
)


def run(check: HealthCheck, results: str, *, every: float, start: float = 0.0) -> Health:
    """Probe at even times: "+" passes, "-" fails."""
    health = started(STOPPED, start)
    for number, result in enumerate(results, 1):
        now = start + number * every
        health = probed(health, check, passed=result == "+", reason=result, now=now)
    return health


def test_an_event_that_is_not_in_the_table_is_an_error() -> None:
    """A probe of a stopped container is a bug, and no state is made up for it."""
    with pytest.raises(ImpossibleEvent, match="passed while stopped"):
        next_state(HealthState.STOPPED, HealthEvent.PASSED)
    with pytest.raises(ImpossibleEvent):
        adopted(started(STOPPED, 0.0), 1.0)


def test_every_running_state_knows_every_probe_result() -> None:
    """Only `stopped` lacks the events of probes, and only it can be adopted."""
    probes = {event for event in HealthEvent if "passed" in event or "failed" in event}
    for state in HealthState:
        known = {event for (s, event) in TABLE if s is state}
        if state is HealthState.STOPPED:
            assert known == {HealthEvent.STARTED, HealthEvent.ENDED, HealthEvent.ADOPTED}
        else:
            assert known == probes | {HealthEvent.STARTED, HealthEvent.ENDED}


@pytest.mark.parametrize(
    ("results", "every", "expected"),
    [
        ("", 10, HealthState.STARTING),
        ("+", 10, HealthState.STARTING),
        ("++", 10, HealthState.HEALTHY),
        ("+-+", 10, HealthState.STARTING),
        ("--", 10, HealthState.STARTING),  # still in the start period, but for the last
        ("----", 10, HealthState.UNHEALTHY),  # counted at 20, 30, 40
        ("---", 10, HealthState.STARTING),
        ("-" * 39, 1, HealthState.STARTING),  # quick probes do not hasten it
        ("-" * 40, 1, HealthState.UNHEALTHY),
        ("++--", 10, HealthState.HEALTHY),
        ("++---", 10, HealthState.UNHEALTHY),
        ("++--+--", 10, HealthState.HEALTHY),
        ("++---+", 10, HealthState.UNHEALTHY),
        ("++---++", 10, HealthState.HEALTHY),
    ],
)
def test_thresholds_and_start_period(results: str, every: float, expected: HealthState) -> None:
    """Two passes make healthy, three counted failures unhealthy, none counts for 20 s."""
    assert run(CHECK, results, every=every).state is expected


def test_without_a_check_a_second_of_running_is_enough() -> None:
    """A container without healthcheck is healthy after its grace, and not before."""
    health = started(STOPPED, 100.0)
    assert waited(health, None, 100.0 + GRACE_SECONDS - 0.01).state is HealthState.STARTING
    assert waited(health, None, 100.0 + GRACE_SECONDS).is_healthy
    assert not waited(health, CHECK, 200.0).is_healthy


def test_probes_are_quick_at_first_and_slow_down_to_the_interval() -> None:
    """While starting the waits grow from 0.1 s up to the interval, and stay there."""
    health, waits = started(STOPPED, 0.0), []
    for _ in range(20):
        health = probed(health, CHECK, passed=False, reason="refused", now=0.0)
        waits.append(probe_after(health, CHECK))
    assert waits[0] == pytest.approx(0.15)
    assert waits == sorted(waits)
    assert waits[-1] == CHECK.interval_seconds
    health = probed(health, CHECK, passed=True, reason="", now=0.0)
    assert probe_after(health, CHECK) == pytest.approx(0.1)
    healthy = probed(health, CHECK, passed=True, reason="", now=0.0)
    assert probe_after(healthy, CHECK) == CHECK.interval_seconds


@given(results=st.text("+-", max_size=60), every=st.floats(0.05, 30))
def test_a_verdict_needs_its_threshold(results: str, every: float) -> None:
    """Healthy follows only enough passes in a row, unhealthy only enough failures in a row."""
    check = replace(CHECK, start_period_seconds=0.0)
    health = started(STOPPED, 0.0)
    for number, result in enumerate(results, 1):
        before = health.state
        health = probed(health, check, passed=result == "+", reason="", now=number * every)
        if health.state is not before:
            needed = 2 if health.is_healthy else 3
            assert results[:number].endswith(("+" if health.is_healthy else "-") * needed)
        if before is HealthState.STARTING and health.state is HealthState.UNHEALTHY:
            assert number * every >= 3 * check.interval_seconds - 1e-6


@given(results=st.text("+-", max_size=30))
def test_a_new_run_begins_anew(results: str) -> None:
    """Whatever went before, a started container is starting, and an ended one is stopped."""
    health = run(CHECK, results, every=5.0)
    assert started(health, 999.0) == started(STOPPED, 999.0)
    assert ended(health).state is HealthState.STOPPED
