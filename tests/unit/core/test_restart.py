"""Restart policies and their back-off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ozymandias.core.restart import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_MAX_SECONDS,
    RESET_SECONDS,
    Again,
    Never,
    backoff,
    decide,
)
from ozymandias.model.job import RestartMode, RestartPolicy

M = RestartMode


@pytest.mark.parametrize(
    ("mode", "attempts", "failures", "code", "expected"),
    [
        (M.ALWAYS, None, 0, 0, "again"),
        (M.ALWAYS, None, 99, 1, "again"),
        (M.UNLESS_STOPPED, None, 3, 137, "again"),
        (M.ON_FAILURE, None, 50, 1, "again"),
        (M.ON_FAILURE, None, 0, 0, "completed"),
        (M.ON_FAILURE, 3, 2, 1, "again"),
        (M.ON_FAILURE, 3, 3, 1, "failed"),
        (M.ON_FAILURE, 0, 0, 1, "failed"),
        (M.ON_FAILURE, 3, 0, None, "again"),
        (M.NO, None, 0, 0, "completed"),
        (M.NO, None, 0, 1, "failed"),
        (M.NO, None, 0, None, "failed"),
    ],
)
def test_policies(
    mode: RestartMode, attempts: int | None, failures: int, code: int | None, expected: str
) -> None:
    """Each policy starts again, or lets rest what completed or failed."""
    policy = RestartPolicy(mode=mode, attempts_max=attempts)
    decision = decide(policy, failures=failures, exit_code=code, uptime=1.0, key="k")
    if isinstance(decision, Never):
        assert expected == ("completed" if decision.is_completed else "failed")
    else:
        assert expected == "again"
        assert decision.failures == failures + 1


def test_a_long_run_forgives() -> None:
    """After a run of a minute the wait is the first one again, and attempts count anew."""
    policy = RestartPolicy(mode=M.ON_FAILURE, attempts_max=2)
    decision = decide(policy, failures=9, exit_code=1, uptime=RESET_SECONDS, key="k")
    assert decision == Again(after_seconds=BACKOFF_FIRST_SECONDS, failures=1)


@given(failures=st.integers(1, 10**6), key=st.text(max_size=20))
def test_backoff_is_bounded_and_repeatable(failures: int, key: str) -> None:
    """Between half a second and a minute, the same for the same question."""
    wait = backoff(failures, key)
    assert BACKOFF_FIRST_SECONDS <= wait <= BACKOFF_MAX_SECONDS
    assert wait == backoff(failures, key)


@given(key=st.text(max_size=20))
def test_backoff_grows(key: str) -> None:
    """Each of the first failures waits longer than the one before, whatever the jitter."""
    waits = [backoff(n, key) for n in range(1, 8)]
    assert waits == sorted(waits)
    assert waits[-1] > 20


def test_jitter_spreads_those_who_crash_together() -> None:
    """A hundred containers that failed equally often do not wait equally long."""
    assert len({backoff(6, f"web-{n}") for n in range(100)}) > 20
