"""What a node remembers of its pods between two looks at the runtime.

The runtime shows what is; this holds what came before: how often a container was restarted, when
it is due again, how its health was judged, why making a pod failed. Pure values: the executor
keeps them and replaces them. After a restart of the daemon they are recalled from the runtime and
from the statuses the node wrote before, so that a restart of the daemon changes nothing.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from ozymandias.core import health as healths
from ozymandias.core.health import STOPPED, Health, HealthState
from ozymandias.core.restart import Again, backoff, decide
from ozymandias.model.instance import InstanceStatus, SlotState
from ozymandias.model.job import Container
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, Pod, PodId
from ozymandias.model.record import replace

STAMP_SLACK_SECONDS = 1.0  # the runtime's times may be whole seconds


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """One container: its present or last run, and the ones before in so far as they count."""

    health: Health = STOPPED
    is_running: bool = False
    has_run: bool = False
    stamp: float = 0.0  # the runtime's time of its start, to tell runs apart; 0: not seen yet
    failures: int = 0  # short runs in a row
    restarts: int = 0
    wait_seconds: float = 0.0  # the back-off it is in
    due_at: float | None = None  # when its policy starts it again; Clock.boot()
    is_completed: bool = False  # ended with 0, and its policy lets it rest
    is_failed: bool = False  # ended otherwise, and its policy lets it rest


NEVER_RUN = Run()
NO_RUNS: Mapping[str, Run] = MappingProxyType({})


class PodMemory(Struct, frozen=True, kw_only=True):
    runs: Mapping[str, Run] = field(default_factory=lambda: NO_RUNS)
    goal: str = ""  # what the node is at: running, stopping, gone
    attempts: int = 0  # at its goal that failed, in a row
    retry_at: float = 0.0
    wait_seconds: float = 0.0
    trouble: str = ""  # why the last attempt failed
    is_pulling: bool = False
    drain_until: float | None = None  # None: its names are still served

    def run(self, container: str) -> Run:
        return self.runs.get(container, NEVER_RUN)

    def with_run(self, container: str, run: Run) -> "PodMemory":
        return replace(self, runs=MappingProxyType({**self.runs, container: run}))


NOTHING = PodMemory()


def aim(memory: PodMemory, goal: str) -> PodMemory:
    """A new goal starts with no failed attempts, and whoever is to stop again drains again."""
    if memory.goal == goal:
        return memory
    return replace(succeeded(memory), goal=goal, drain_until=None)


def failed(memory: PodMemory, pod: PodId, trouble: str, now: float) -> PodMemory:
    """An attempt to make, start or stop the pod failed."""
    attempts = memory.attempts + 1
    wait = backoff(attempts, f"{pod.name}:{memory.goal}")
    return replace(
        memory, attempts=attempts, retry_at=now + wait, wait_seconds=wait, trouble=trouble
    )


def succeeded(memory: PodMemory) -> PodMemory:
    return replace(memory, attempts=0, retry_at=0.0, wait_seconds=0.0, trouble="")


def began(memory: PodMemory, container: str, now: float) -> PodMemory:
    """The node has just started this container."""
    run = memory.run(container)
    return memory.with_run(
        container,
        replace(
            run,
            health=healths.started(run.health, now),
            is_running=True,
            has_run=True,
            stamp=0.0,
            restarts=run.restarts + run.has_run,
            due_at=None,
            is_completed=False,
            is_failed=False,
        ),
    )


def take_in(
    memory: PodMemory, pod: Pod, observed: ObservedPod, *, now: float, wall: float
) -> PodMemory:
    """Account for what the runtime shows: runs that began, ended, or have proved themselves."""
    for container in pod.containers:
        seen = observed.container(container.name)
        if seen is not None:
            before = memory.run(container.name)
            after = _seen(before, pod.id, container, seen, now=now, wall=wall)
            if after.is_running and not observed.infra_running:
                after = _cut_off(after, pod.id, container, now)
            if after is not before:
                memory = memory.with_run(container.name, after)
    if memory.trouble and memory.goal == SlotState.RUNNING and observed.is_complete:
        runs = [memory.run(container.name) for container in pod.containers]
        if all(run.is_running or run.is_completed for run in runs):
            return succeeded(memory)  # the call that failed, or never answered, did its work
    return memory


def probed(
    memory: PodMemory, pod: PodId, container: Container, *, passed: bool, reason: str, now: float
) -> PodMemory:
    """Account for a probe. An unhealthy container is due for a restart, if its policy says so."""
    run = memory.run(container.name)
    if container.healthcheck is None or run.health.state is HealthState.STOPPED:
        return memory  # it ended while the probe was under way
    health = healths.probed(
        run.health, container.healthcheck, passed=passed, reason=reason, now=now
    )
    if health.state is run.health.state:
        return memory.with_run(container.name, replace(run, health=health))
    run = replace(run, health=health, due_at=None)
    if health.state is HealthState.UNHEALTHY:
        uptime = now - health.started_at
        run = _ended(run, pod, container, exit_code=None, uptime=uptime, now=now)
        run = replace(run, is_failed=False)  # its policy leaves it running
    return memory.with_run(container.name, run)


def recall(
    pod: Pod, observed: ObservedPod, status: InstanceStatus | None, *, now: float, wall: float
) -> PodMemory:
    """What a daemon that has just started knows of a pod it finds."""
    memory = NOTHING
    told = {c.name: c for c in status.containers} if status else {}
    for container in pod.containers:
        seen, before = observed.container(container.name), told.get(container.name)
        if seen is None or status is None or before is None:
            continue
        run = Run(
            has_run=seen.state is not ContainerState.CREATED,
            restarts=before.restarts,
            failures=before.restarts,
        )
        is_same_run = seen.started_at <= status.since + STAMP_SLACK_SECONDS
        if seen.state is ContainerState.RUNNING and before.healthy and is_same_run:
            since = _on_boot_clock(seen.started_at, now=now, wall=wall)
            health = healths.adopted(run.health, since)
            run = replace(run, is_running=True, stamp=seen.started_at, health=health)
        memory = memory.with_run(container.name, run)
    return take_in(memory, pod, observed, now=now, wall=wall)


def is_healthy(memory: PodMemory, pod: Pod) -> bool:
    """All its containers are healthy or have completed, and at least one is healthy."""
    runs = [memory.run(container.name) for container in pod.containers]
    return all(r.health.is_healthy or r.is_completed for r in runs) and any(
        r.health.is_healthy for r in runs
    )


def _seen(
    run: Run, pod: PodId, container: Container, seen: ObservedContainer, *, now: float, wall: float
) -> Run:
    match seen.state:
        case ContainerState.RUNNING:
            is_another = bool(run.stamp and seen.started_at and run.stamp != seen.started_at)
            if not run.is_running or is_another:
                since = _on_boot_clock(seen.started_at, now=now, wall=wall)
                run = replace(
                    run,
                    health=healths.started(run.health, since),
                    is_running=True,
                    has_run=True,
                    stamp=seen.started_at,
                    due_at=None,
                    is_completed=False,
                    is_failed=False,
                )
            elif not run.stamp and seen.started_at:
                run = replace(run, stamp=seen.started_at)
            health = healths.waited(run.health, container.healthcheck, now)
            return run if health is run.health else replace(run, health=health)
        case ContainerState.CREATED:
            # Made and not started yet, or down since the machine was.
            if not run.is_running:
                return run
            return replace(run, health=healths.ended(run.health), is_running=False, stamp=0.0)
        case ContainerState.EXITED:
            is_accounted = run.due_at is not None or run.is_completed or run.is_failed
            if is_accounted and not run.is_running:
                return run
            uptime = max(0.0, seen.finished_at - seen.started_at) if seen.started_at else 0.0
            run = replace(run, health=healths.ended(run.health), is_running=False, has_run=True)
            ended_at = _on_boot_clock(seen.finished_at, now=now, wall=wall)
            run = _ended(run, pod, container, exit_code=seen.exit_code, uptime=uptime, now=ended_at)
            return replace(run, stamp=0.0)


def _cut_off(run: Run, pod: PodId, container: Container, now: float) -> Run:
    """A container whose pod has lost its network is due for a restart, by its policy."""
    if run.health.state is HealthState.UNHEALTHY:
        return run
    uptime = now - run.health.started_at
    run = replace(run, health=healths.cut_off(run.health, "the pod's network is down"))
    run = _ended(run, pod, container, exit_code=None, uptime=uptime, now=now)
    return replace(run, is_failed=False)


def _ended(
    run: Run, pod: PodId, container: Container, *, exit_code: int | None, uptime: float, now: float
) -> Run:
    decision = decide(
        container.restart,
        failures=run.failures,
        exit_code=exit_code,
        uptime=uptime,
        key=f"{pod.name}/{container.name}",
    )
    if isinstance(decision, Again):
        return replace(
            run,
            failures=decision.failures,
            wait_seconds=decision.after_seconds,
            due_at=now + decision.after_seconds,
        )
    return replace(
        run,
        failures=decision.failures,
        is_completed=decision.is_completed,
        is_failed=not decision.is_completed,
        due_at=None,
    )


def _on_boot_clock(stamp: float, *, now: float, wall: float) -> float:
    """A wall-clock time of the recent past on the steady clock; now, if it makes no sense."""
    return now - max(0.0, wall - stamp) if stamp else now
