"""What is observed and remembered of an instance -> the status that people see.

A status is written to the store whenever it changes, so nothing in it may change by itself: waits
are told by their length and the number of attempts, never as a countdown. `since` is left to the
writer, who knows when the state was entered.
"""

from ozymandias.core.health import HealthState
from ozymandias.core.memory import PodMemory, Run, is_healthy
from ozymandias.core.reconcile import waits_for
from ozymandias.model.instance import (
    Assigned,
    ContainerStatus,
    InstanceState,
    InstanceStatus,
    SlotState,
)
from ozymandias.model.job import Container
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, Pod
from ozymandias.model.units import counted, format_duration, format_size

REASON_MAX = 500  # characters; what podman says can be long


def status_of(
    assigned: Assigned, pod: Pod | None, observed: ObservedPod | None, memory: PodMemory
) -> InstanceStatus:
    """``pod`` is None when the version can't be read."""
    containers = _containers(pod, observed, memory) if pod and observed else ()
    state, reason = _state(assigned, pod, observed, memory, containers)
    return InstanceStatus(
        slot=assigned.slot,
        uid=assigned.uid,
        version=assigned.version,
        generation=assigned.generation,
        state=state,
        healthy=state is InstanceState.HEALTHY,
        address=observed.address if observed else "",
        restarts=sum(c.restarts for c in containers),
        reason=reason[:REASON_MAX],
        containers=containers,
    )


def _state(
    assigned: Assigned,
    pod: Pod | None,
    observed: ObservedPod | None,
    memory: PodMemory,
    containers: tuple[ContainerStatus, ...],
) -> tuple[InstanceState, str]:
    if assigned.state is SlotState.WAITING:
        return InstanceState.WAITING, "its room or its predecessor is still being vacated"
    if assigned.state is SlotState.STOPPING:
        return InstanceState.STOPPING, _trouble(memory)
    if pod is None:
        return InstanceState.FAILED, f"version {assigned.version} of its job can't be read"
    if memory.trouble:
        return InstanceState.BACKOFF, _trouble(memory)
    if observed is None or not observed.is_complete:
        if memory.is_pulling:
            images = ", ".join(sorted({c.image for c in pod.containers}))
            return InstanceState.PULLING, f"pulling {images}"
        return InstanceState.STARTING, "being made"
    return _running(pod, memory, containers)


def _running(
    pod: Pod, memory: PodMemory, containers: tuple[ContainerStatus, ...]
) -> tuple[InstanceState, str]:
    """The worst of its containers speaks for the instance."""
    runs = {c.name: memory.run(c.name) for c in pod.containers}
    if runs and all(run.is_completed for run in runs.values()):
        return InstanceState.COMPLETED, "all containers ended with exit code 0"
    if is_healthy(memory, pod):
        return InstanceState.HEALTHY, ""
    tests = (
        (InstanceState.FAILED, lambda run: run.is_failed),
        (InstanceState.BACKOFF, lambda run: run.due_at is not None and not run.is_running),
        (InstanceState.UNHEALTHY, lambda run: run.health.state is HealthState.UNHEALTHY),
    )
    for state, test in tests:
        for container in containers:
            if test(runs[container.name]):
                return state, f"{container.name}: {container.reason}"
    reasons = (f"{c.name}: {c.reason}" for c in containers if c.reason and not c.healthy)
    return InstanceState.STARTING, next(reasons, "")


def _containers(pod: Pod, observed: ObservedPod, memory: PodMemory) -> tuple[ContainerStatus, ...]:
    started = {c.name for c in observed.containers if c.state is not ContainerState.CREATED}
    found = []
    for container in pod.containers:
        seen = observed.container(container.name)
        run = memory.run(container.name)
        if seen is None:
            continue
        waits = "" if run.is_running else waits_for(container, memory, started)
        reason = _reason(container, seen, run)
        if seen.state is ContainerState.CREATED and waits:
            reason = f"waits for {waits}"
        found.append(
            ContainerStatus(
                name=container.name,
                state=seen.state,
                healthy=run.health.is_healthy,
                restarts=run.restarts,
                exit_code=seen.exit_code if seen.state is ContainerState.EXITED else None,
                oom_killed=seen.oom_killed,
                reason=reason,
            )
        )
    return tuple(found)


def _reason(container: Container, seen: ObservedContainer, run: Run) -> str:
    if seen.state is ContainerState.EXITED:
        return "; ".join(part for part in (_ending(container, seen), _prospect(run)) if part)
    if run.health.state is HealthState.UNHEALTHY:
        again = f"restarted in {format_duration(run.wait_seconds)}" if run.due_at else ""
        what = f"unhealthy: {run.health.reason}"
        return "; ".join(part for part in (what, again) if part)
    if seen.state is ContainerState.RUNNING and run.health.state is HealthState.STARTING:
        return f"not healthy yet: {run.health.reason}" if run.health.reason else "starting"
    return ""


def _ending(container: Container, seen: ObservedContainer) -> str:
    if seen.oom_killed:
        limit = format_size(container.memory_bytes)
        return f"killed for exceeding its {limit} of memory (exit code {seen.exit_code})"
    return f"exit code {seen.exit_code}"


def _prospect(run: Run) -> str:
    times = f"restarted {counted(run.restarts, 'time')}" if run.restarts else ""
    if run.is_completed:
        return ""
    if run.is_failed:
        return f"{times}; not tried again" if times else "not tried again"
    if run.due_at is None:
        return times
    wait = f"next try after {format_duration(run.wait_seconds)}"
    return f"{times}, {wait}" if times else wait


def _trouble(memory: PodMemory) -> str:
    if not memory.trouble:
        return ""
    again = f"attempt {memory.attempts}, next try after {format_duration(memory.wait_seconds)}"
    return f"{memory.trouble[: REASON_MAX - 60]}; {again}"
