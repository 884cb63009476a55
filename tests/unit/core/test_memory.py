"""What a node remembers of its pods, and what it recalls after a restart of its daemon."""

import pytest

from ozymandias.core import memory as memories
from ozymandias.core.health import HealthState
from ozymandias.core.memory import NOTHING
from ozymandias.core.status import status_of
from ozymandias.model.job import RestartMode
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod
from ozymandias.model.record import replace
from tests.unit.core.node_side import HTTP, assigned, container, job, pod

WEB = job(container(check=HTTP))


def seen(
    state: ContainerState, *, started: float = 0.0, finished: float = 0.0, code: int | None = None
) -> ObservedPod:
    entry = ObservedContainer(
        name="app", state=state, started_at=started, finished_at=finished, exit_code=code
    )
    return ObservedPod(id=pod().id, address="10.0.0.2", containers=(entry,))


RUNNING = seen(ContainerState.RUNNING, started=1000.0)


def test_an_end_is_counted_once() -> None:
    """However often an ended container is seen, it is one failure with one due time."""
    end = seen(ContainerState.EXITED, started=1000.0, finished=1001.0, code=1)
    first = memories.take_in(NOTHING, pod(WEB), end, now=50.0, wall=1001.0)
    again = memories.take_in(first, pod(WEB), end, now=60.0, wall=1011.0)
    assert again is first
    assert first.run("app").failures == 1
    assert first.run("app").due_at == 50.5


def test_the_wait_is_counted_from_the_end() -> None:
    """What ended while nobody looked is not made to wait all over again."""
    end = seen(ContainerState.EXITED, started=1000.0, finished=1001.0, code=1)
    late = memories.take_in(NOTHING, pod(WEB), end, now=50.0, wall=1061.0)
    due = late.run("app").due_at
    assert due is not None and due < 50.0


def test_a_run_that_somebody_else_began_is_noticed() -> None:
    """A start that was not ours shows by another start time: health is judged anew."""
    memory = memories.take_in(NOTHING, pod(WEB), RUNNING, now=5.0, wall=1000.0)
    memory = memories.probed(
        memory, pod().id, WEB.containers[0], passed=True, reason="HTTP 200", now=6.0
    )
    assert memory.run("app").health.is_healthy
    other = seen(ContainerState.RUNNING, started=1010.0)
    memory = memories.take_in(memory, pod(WEB), other, now=15.0, wall=1010.0)
    assert memory.run("app").health.state is HealthState.STARTING


@pytest.mark.parametrize(
    ("mode", "is_due"),
    [(RestartMode.ALWAYS, True), (RestartMode.ON_FAILURE, True), (RestartMode.NO, False)],
)
def test_an_unhealthy_container_is_due_by_its_policy(mode: RestartMode, is_due: bool) -> None:
    """Unhealthy is a failure to the policy; `no` leaves it as it is."""
    spec = job(container(check=replace(HTTP, unhealthy_threshold=1), restart=mode))
    memory = memories.take_in(NOTHING, pod(spec), RUNNING, now=0.0, wall=1000.0)
    memory = memories.probed(
        memory, pod().id, spec.containers[0], passed=False, reason="HTTP 500", now=11.0
    )
    run = memory.run("app")
    assert run.health.state is HealthState.UNHEALTHY
    assert (run.due_at is not None) is is_due
    assert run.is_running and not run.is_failed


def test_a_probe_that_comes_too_late_changes_nothing() -> None:
    """The result of a probe for a container that ended meanwhile is dropped."""
    end = seen(ContainerState.EXITED, code=0)
    memory = memories.take_in(NOTHING, pod(WEB), end, now=0.0, wall=0.0)
    late = memories.probed(memory, pod().id, WEB.containers[0], passed=True, reason="", now=1.0)
    assert late is memory


def told(*, healthy: bool, since: float, restarts: int = 0):  # type: ignore[no-untyped-def]
    """The status that a daemon wrote before it went."""
    memory = memories.take_in(NOTHING, pod(WEB), RUNNING, now=0.0, wall=1000.0)
    if healthy:
        memory = memories.probed(
            memory, pod().id, WEB.containers[0], passed=True, reason="", now=1.0
        )
    memory = memory.with_run("app", replace(memory.run("app"), restarts=restarts))
    return replace(status_of(assigned(WEB), pod(WEB), RUNNING, memory), since=since)


def test_a_healthy_run_is_adopted_as_healthy() -> None:
    """After a restart of the daemon a healthy container is healthy, before any probe."""
    status = told(healthy=True, since=1001.0, restarts=4)
    memory = memories.recall(pod(WEB), RUNNING, status, now=7.0, wall=2000.0)
    assert memories.is_healthy(memory, pod(WEB))
    assert memory.run("app").restarts == 4
    after = memories.take_in(memory, pod(WEB), RUNNING, now=8.0, wall=2001.0)
    assert after is memory


def test_a_younger_run_is_not_adopted() -> None:
    """A run that began after the status was written has to prove itself."""
    status = told(healthy=True, since=1001.0)
    young = seen(ContainerState.RUNNING, started=1500.0)
    memory = memories.recall(pod(WEB), young, status, now=7.0, wall=2000.0)
    assert memory.run("app").health.state is HealthState.STARTING


def test_an_unhealthy_one_or_an_unknown_one_proves_itself() -> None:
    """Without a status that says healthy the machine begins at `starting`."""
    for status in (None, told(healthy=False, since=1001.0)):
        memory = memories.recall(pod(WEB), RUNNING, status, now=7.0, wall=2000.0)
        assert memory.run("app").health.state is HealthState.STARTING


def test_a_new_goal_forgets_failed_attempts() -> None:
    """A pod that could not be made is not kept from being removed by its back-off."""
    memory = memories.failed(memories.aim(NOTHING, "running"), pod().id, "no", 10.0)
    assert memory.retry_at > 10.0
    assert memories.aim(memory, "running") is memory
    assert memories.aim(memory, "stopping").retry_at == 0.0


def test_who_is_to_stop_again_drains_again() -> None:
    """A pod that was drained, and was to run again before it had stopped, is served again."""
    drained = replace(memories.aim(NOTHING, "stopping"), drain_until=5.0)
    assert memories.aim(drained, "stopping").drain_until == 5.0
    again = memories.aim(memories.aim(drained, "running"), "stopping")
    assert again.drain_until is None
