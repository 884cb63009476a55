"""What people are told about an instance."""

import pytest

from ozymandias.core import memory as memories
from ozymandias.core.memory import NOTHING, PodMemory
from ozymandias.core.pods import pod_id
from ozymandias.core.status import status_of
from ozymandias.model.instance import InstanceState, SlotState
from ozymandias.model.job import Condition, Job, RestartMode
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod
from ozymandias.model.record import replace
from tests.unit.core.node_side import HTTP, assigned, container, job, observed, pod

S = InstanceState
RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED


def ended(code: int, *, oom: bool = False) -> ObservedPod:
    seen = ObservedContainer(
        name="app",
        state=EXITED,
        started_at=100.0,
        finished_at=101.0,
        exit_code=code,
        oom_killed=oom,
    )
    return ObservedPod(id=pod().id, address="10.0.0.2", containers=(seen,))


def remembered(spec: Job, seen: ObservedPod, *, runs: int = 1) -> PodMemory:
    """After that many runs, the last of which is as seen."""
    memory = NOTHING
    for _ in range(runs):
        memory = memories.began(memory, "app", 0.0)
        memory = memories.take_in(memory, pod(spec), seen, now=101.0, wall=101.0)
    return memory


@pytest.mark.parametrize(
    ("state", "expected"),
    [(SlotState.WAITING, S.WAITING), (SlotState.STOPPING, S.STOPPING)],
)
def test_a_slot_that_does_not_run(state: SlotState, expected: InstanceState) -> None:
    """Waiting and stopping slots say so, and are never healthy."""
    made = pod()
    memory = memories.began(NOTHING, "app", 0.0)
    memory = memories.take_in(memory, made, observed(made, app=RUNNING), now=9.0, wall=0.0)
    status = status_of(assigned(state=state), made, observed(made, app=RUNNING), memory)
    assert (status.state, status.healthy) == (expected, False)


def test_failed_attempts_are_told_with_their_reason() -> None:
    """The reason names the cause, the number of attempts and the length of the wait."""
    memory = memories.failed(NOTHING, pod().id, "image missing: foo: manifest unknown", 10.0)
    status = status_of(assigned(), pod(), None, memory)
    assert status.state is S.BACKOFF
    expected = "image missing: foo: manifest unknown; attempt 1, next try after 0.5s"
    assert status.reason == expected


@pytest.mark.parametrize(
    ("restart", "seen", "runs", "state", "reason"),
    [
        (RestartMode.ALWAYS, ended(1), 1, S.BACKOFF, "app: exit code 1; next try after 0.5s"),
        (
            RestartMode.ALWAYS,
            ended(137, oom=True),
            1,
            S.BACKOFF,
            "app: killed for exceeding its 64M of memory (exit code 137); next try after 0.5s",
        ),
        (RestartMode.NO, ended(3), 1, S.FAILED, "app: exit code 3; not tried again"),
        (RestartMode.NO, ended(0), 1, S.COMPLETED, "all containers ended with exit code 0"),
    ],
)
def test_endings(
    restart: RestartMode, seen: ObservedPod, runs: int, state: InstanceState, reason: str
) -> None:
    """An ended container is told by its exit code, its cause and what follows."""
    spec = job(container(restart=restart))
    status = status_of(assigned(spec), pod(spec), seen, remembered(spec, seen, runs=runs))
    assert (status.state, status.reason) == (state, reason)


def test_restarts_are_counted() -> None:
    """The fourth end in a row tells of three restarts, and the sum is the instance's."""
    spec, seen = job(container()), ended(1)
    status = status_of(assigned(spec), pod(spec), seen, remembered(spec, seen, runs=4))
    assert status.restarts == 3
    assert status.reason.startswith("app: exit code 1; restarted 3 times, next try after ")


def test_healthy_when_all_are_and_one_that_completed_does_not_count() -> None:
    """A job of a completed set-up container and a healthy server is healthy."""
    spec = job(container("setup", restart=RestartMode.ON_FAILURE), container("app"))
    made = pod(spec)
    seen = observed(made, app=RUNNING, setup=EXITED)
    zero = replace(seen.containers[0], exit_code=0)
    seen = replace(seen, containers=(zero, seen.containers[1]))
    memory = memories.take_in(NOTHING, made, seen, now=5.0, wall=0.0)
    assert status_of(assigned(spec), made, seen, memory).state is S.STARTING
    memory = memories.take_in(memory, made, seen, now=6.0, wall=0.0)
    status = status_of(assigned(spec), made, seen, memory)
    assert (status.state, status.healthy, status.address) == (S.HEALTHY, True, "10.0.0.2")


def test_who_waits_for_whom_is_told() -> None:
    """A container that waits for another to be healthy says so."""
    spec = job(
        container("app", after=("db",), condition=Condition.HEALTHY), container("db", check=HTTP)
    )
    made = pod(spec)
    seen = observed(made, db=RUNNING)
    memory = memories.take_in(NOTHING, made, seen, now=5.0, wall=0.0)
    status = status_of(assigned(spec), made, seen, memory)
    assert (status.state, status.reason) == (S.STARTING, "app: waits for db to be healthy")


def test_the_status_names_the_very_run() -> None:
    """Slot, uid, version and generation are those of the assignment."""
    entry = assigned(slot=4, version=7, generation=2)
    status = status_of(entry, pod(slot=4, version=7), None, NOTHING)
    assert (status.slot, status.version, status.generation) == (4, 7, 2)
    assert pod_id(entry).slot == 4
    assert status_of(entry, None, None, NOTHING).state is S.FAILED
