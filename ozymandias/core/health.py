"""Health of one container: a table of (state, event) -> state.

Theory. A container is `stopped` until it runs, `starting` until it has proved itself, and then
`healthy` or `unhealthy`. One probe proves little, so probes are first weighed against the check's
thresholds, and only what the weighing says is an event:

    started        a run began (from any state: a restart may be seen before the end was)
    ended          the run is over
    adopted        a run that was healthy under the daemon before this one goes on
    passed         a probe passed, not enough of them in a row yet
    passed enough  `healthy_threshold` passes in a row (no check: GRACE_SECONDS of running)
    failed         a probe failed, not enough of them in a row yet
    failed enough  `unhealthy_threshold` counted failures in a row

Failures in the start period are not counted. While a container is starting it is probed quickly
(FIRST_PROBE_SECONDS, then growing up to the interval) so that it becomes healthy promptly; these
extra probes must not make it unhealthy sooner than its interval and threshold say, so at most one
failure per interval is counted. An event that is not in the table is a bug, and an error.
"""

from enum import StrEnum

from msgspec import Struct

from ozymandias.model.job import HealthCheck
from ozymandias.model.record import replace

GRACE_SECONDS = 1.0  # without a healthcheck: healthy after this long of running
FIRST_PROBE_SECONDS = 0.1  # between the first probes of a run
PROBE_GROWTH = 1.5


class HealthState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class HealthEvent(StrEnum):
    STARTED = "started"
    ENDED = "ended"
    ADOPTED = "adopted"
    PASSED = "passed"
    PASSED_ENOUGH = "passed enough"
    FAILED = "failed"
    FAILED_ENOUGH = "failed enough"


_S, _E = HealthState, HealthEvent

TABLE: dict[tuple[HealthState, HealthEvent], HealthState] = {
    (_S.STOPPED, _E.STARTED): _S.STARTING,
    (_S.STOPPED, _E.ENDED): _S.STOPPED,
    (_S.STOPPED, _E.ADOPTED): _S.HEALTHY,
    (_S.STARTING, _E.STARTED): _S.STARTING,
    (_S.STARTING, _E.ENDED): _S.STOPPED,
    (_S.STARTING, _E.PASSED): _S.STARTING,
    (_S.STARTING, _E.PASSED_ENOUGH): _S.HEALTHY,
    (_S.STARTING, _E.FAILED): _S.STARTING,
    (_S.STARTING, _E.FAILED_ENOUGH): _S.UNHEALTHY,
    (_S.HEALTHY, _E.STARTED): _S.STARTING,
    (_S.HEALTHY, _E.ENDED): _S.STOPPED,
    (_S.HEALTHY, _E.PASSED): _S.HEALTHY,
    (_S.HEALTHY, _E.PASSED_ENOUGH): _S.HEALTHY,
    (_S.HEALTHY, _E.FAILED): _S.HEALTHY,
    (_S.HEALTHY, _E.FAILED_ENOUGH): _S.UNHEALTHY,
    (_S.UNHEALTHY, _E.STARTED): _S.STARTING,
    (_S.UNHEALTHY, _E.ENDED): _S.STOPPED,
    (_S.UNHEALTHY, _E.PASSED): _S.UNHEALTHY,
    (_S.UNHEALTHY, _E.PASSED_ENOUGH): _S.HEALTHY,
    (_S.UNHEALTHY, _E.FAILED): _S.UNHEALTHY,
    (_S.UNHEALTHY, _E.FAILED_ENOUGH): _S.UNHEALTHY,
}


class ImpossibleEvent(Exception):
    """An event that can't happen in that state: a bug of ours, never the container's doing."""


class Health(Struct, frozen=True, kw_only=True, gc=False):
    state: HealthState = HealthState.STOPPED
    passes: int = 0  # in a row
    failures: int = 0  # counted ones in a row
    started_at: float = 0.0  # Clock.boot()
    counted_at: float = 0.0  # when a failure was last counted, or the run began
    quick_seconds: float = FIRST_PROBE_SECONDS  # until the next probe, while starting
    reason: str = ""  # what the last probe said

    @property
    def is_healthy(self) -> bool:
        return self.state is HealthState.HEALTHY


STOPPED = Health()


def next_state(state: HealthState, event: HealthEvent) -> HealthState:
    try:
        return TABLE[state, event]
    except KeyError:
        raise ImpossibleEvent(f"{event} while {state}") from None


def started(health: Health, now: float) -> Health:
    state = next_state(health.state, HealthEvent.STARTED)
    return Health(state=state, started_at=now, counted_at=now)


def ended(health: Health) -> Health:
    return Health(state=next_state(health.state, HealthEvent.ENDED), reason=health.reason)


def adopted(health: Health, now: float) -> Health:
    state = next_state(health.state, HealthEvent.ADOPTED)
    return Health(state=state, started_at=now, counted_at=now)


def waited(health: Health, check: HealthCheck | None, now: float) -> Health:
    """A container without a healthcheck proves itself by running for a while."""
    if check or health.state is not HealthState.STARTING or now < grace_ends(health):
        return health
    state = next_state(health.state, HealthEvent.PASSED_ENOUGH)
    return replace(health, state=state, reason=f"running for {GRACE_SECONDS:g}s")


def grace_ends(health: Health) -> float:
    return health.started_at + GRACE_SECONDS


def probed(health: Health, check: HealthCheck, *, passed: bool, reason: str, now: float) -> Health:
    """Weigh one probe's result against the check's thresholds."""
    if passed:
        passes = min(health.passes + 1, check.healthy_threshold)
        enough = passes >= check.healthy_threshold
        event = HealthEvent.PASSED_ENOUGH if enough else HealthEvent.PASSED
        return replace(
            health,
            state=next_state(health.state, event),
            passes=passes,
            failures=0,
            counted_at=now,
            quick_seconds=FIRST_PROBE_SECONDS,
            reason=reason,
        )
    counts = _counts(health, check, now)
    failures = min(health.failures + counts, check.unhealthy_threshold)
    enough = failures >= check.unhealthy_threshold
    event = HealthEvent.FAILED_ENOUGH if enough else HealthEvent.FAILED
    return replace(
        health,
        state=next_state(health.state, event),
        passes=0,
        failures=failures,
        counted_at=now if counts else health.counted_at,
        quick_seconds=health.quick_seconds * PROBE_GROWTH,
        reason=reason,
    )


def cut_off(health: Health, reason: str) -> Health:
    """It runs, and can't be reached: its pod has lost its network. No probe is needed to know."""
    state = next_state(health.state, HealthEvent.FAILED_ENOUGH)
    return replace(health, state=state, passes=0, reason=reason)


def probe_after(health: Health, check: HealthCheck) -> float:
    """Seconds from the end of one probe to the next."""
    if health.state is HealthState.STARTING:
        return min(health.quick_seconds, check.interval_seconds)
    return check.interval_seconds


def _counts(health: Health, check: HealthCheck, now: float) -> bool:
    if health.state is not HealthState.STARTING:
        return True
    if now < health.started_at + check.start_period_seconds:
        return False
    return now >= health.counted_at + check.interval_seconds
