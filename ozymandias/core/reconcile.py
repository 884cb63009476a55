"""Assigned pods x observed pods -> ordered actions, each with its reason.

Level-triggered: given the whole state it says what to do now and when to look again; when all is
as it should be it says nothing. The actions of one pod are in order and each relies on those
before it; different pods do not wait for each other. It must not know how actions are performed.

What is wanted and runs is never stopped. Stopping slots are stopped once they are drained, what is
observed and not assigned here is stopped or removed, waiting slots run nothing. Without a session
(`has_session`) others may have taken over: then only containers that ended are started again.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ozymandias.core.health import HealthState, grace_ends
from ozymandias.core.memory import NOTHING, PodMemory
from ozymandias.core.pods import start_order
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Condition, Container, OnPartition
from ozymandias.model.plan import Action, ActionKind
from ozymandias.model.pod import ContainerState, ObservedPod, Pod, PodId
from ozymandias.model.record import replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One assigned instance. ``pod`` is None when its version can't be read."""

    id: PodId
    state: SlotState
    pod: Pod | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agenda:
    """What to do now, and when to look again though nothing has changed (None: no need)."""

    actions: tuple[Action, ...] = ()
    look_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Later:
    at: float


_Steps = Iterator[Action | _Later]


def reconcile(
    wanted: Iterable[Wanted],
    observed: Mapping[PodId, ObservedPod],
    memory: Mapping[PodId, PodMemory],
    now: float,
    *,
    has_session: bool = True,
    busy: AbstractSet[PodId] = frozenset(),
) -> Agenda:
    """``busy`` pods are being worked on: nothing is known of them until that is done."""
    by_id = by_pod(wanted)
    steps: list[Action | _Later] = []
    if has_session:
        for pod in sorted(observed.keys() - busy):
            steps.extend(_leaving(observed[pod], by_id, memory.get(pod, NOTHING), now))
    seen_instances = {pod.instance for pod in observed}
    for pod in sorted(by_id.keys() - busy):
        want = by_id[pod]
        if want.pod is None or want.state is not SlotState.RUNNING:
            continue
        found = observed.get(pod)
        if found is None and pod.instance in seen_instances:
            continue  # another run of this very instance is still being removed
        steps.extend(_coming(want.pod, found, memory.get(pod, NOTHING), now, has_session))
    return Agenda(
        actions=tuple(step for step in steps if isinstance(step, Action)),
        look_at=min((step.at for step in steps if isinstance(step, _Later)), default=None),
    )


def by_pod(wanted: Iterable[Wanted]) -> dict[PodId, Wanted]:
    """One entry per pod: a slot that is to stop and then to run again is first to stop."""
    rank = {SlotState.STOPPING: 0, SlotState.RUNNING: 1, SlotState.WAITING: 2}
    found: dict[PodId, Wanted] = {}
    for want in wanted:
        other = found.get(want.id)
        if other is None or rank[want.state] < rank[other.state]:
            found[want.id] = want
    return found


def _leaving(
    observed: ObservedPod, wanted: Mapping[PodId, Wanted], memory: PodMemory, now: float
) -> _Steps:
    """Stop or remove a pod that is not to be here (any more)."""
    want = wanted.get(observed.id)
    if want is not None and want.state is SlotState.RUNNING:
        return
    if memory.retry_at > now:
        yield _Later(at=memory.retry_at)
        return
    is_running = any(c.state is ContainerState.RUNNING for c in observed.containers)
    if want is not None and want.state is SlotState.STOPPING:
        reason = "its slot is to stop"
        if is_running and memory.drain_until is None:
            return  # its names are still served; whoever withdraws them looks again
        if is_running and memory.drain_until is not None and memory.drain_until > now:
            yield _Later(at=memory.drain_until)
            return
    elif want is not None:
        reason = "its slot may not run yet"
    else:
        reason = _not_assigned(observed, wanted)
    if is_running:
        yield Action(kind=ActionKind.STOP, pod=observed.id, reason=reason)
    else:
        left = "" if observed.is_complete else "half made; "
        yield Action(kind=ActionKind.REMOVE, pod=observed.id, reason=left + reason)


def _not_assigned(observed: ObservedPod, wanted: Mapping[PodId, Wanted]) -> str:
    for other in wanted:
        if other.instance == observed.id.instance:
            return f"left from version {observed.id.version}.{observed.id.generation}"
    return "not assigned to this node"


def _coming(
    pod: Pod, observed: ObservedPod | None, memory: PodMemory, now: float, has_session: bool
) -> _Steps:
    """Make a pod, start its containers in order, and those again that have ended."""
    if memory.retry_at > now:
        yield _Later(at=memory.retry_at)
        return
    if observed is None or not observed.is_complete:
        if not has_session:
            return
        reason = "assigned here, not there" if observed is None else "assigned here, half made"
        yield Action(kind=ActionKind.CREATE, pod=pod.id, spec=pod, reason=reason)
        observed, memory = None, NOTHING  # what is known of its containers is of others
    if observed is not None and not observed.infra_running:
        memory = _due_together(pod, memory)
    started: set[str] = set()
    is_bound = not has_session and pod.job.on_partition is OnPartition.STOP
    for container in start_order(pod.containers):
        state = _state(observed, container)
        if state is not ContainerState.CREATED:
            started.add(container.name)  # it has run, so it does not hold others back
        for step in _advance(pod, container, observed, memory, now, started):
            if is_bound and isinstance(step, Action):
                continue  # it may not start, nor be ended by a restart
            if isinstance(step, Action) and step.kind is ActionKind.START:
                if state is ContainerState.CREATED and not has_session:
                    continue
                started.add(container.name)
            yield step


def _due_together(pod: Pod, memory: PodMemory) -> PodMemory:
    """Without a network all its running containers restart at once: they share the new one."""
    running = {
        container.name: run
        for container in pod.containers
        if (run := memory.run(container.name)).is_running and run.due_at is not None
    }
    first = min((run.due_at for run in running.values() if run.due_at is not None), default=0.0)
    for name, run in running.items():
        memory = memory.with_run(name, replace(run, due_at=first))
    return memory


def _advance(
    pod: Pod,
    container: Container,
    observed: ObservedPod | None,
    memory: PodMemory,
    now: float,
    started: set[str],
) -> _Steps:
    """The next step of one container, if there is one."""
    run = memory.run(container.name)
    state = _state(observed, container)
    if state is ContainerState.RUNNING:
        if run.health.state is HealthState.STARTING and container.healthcheck is None:
            yield _Later(at=grace_ends(run.health))
        if run.health.state is HealthState.UNHEALTHY and run.due_at is not None:
            reason = f"unhealthy: {run.health.reason}; restart {container.restart.mode}"
            yield _due(ActionKind.RESTART, pod, container, reason, run.due_at, now)
        return
    if run.is_completed or run.is_failed:
        return
    if waits_for(container, memory, started):
        return  # the change it waits for is a change of state, and that wakes us
    if state is ContainerState.CREATED:
        reason = "assigned here, not running"
        yield Action(kind=ActionKind.START, pod=pod.id, container=container.name, reason=reason)
        return
    seen = observed.container(container.name) if observed else None
    code = seen.exit_code if seen else None
    reason = f"ended with exit code {code}; restart {container.restart.mode}"
    due_at = now if run.due_at is None else run.due_at
    yield _due(ActionKind.START, pod, container, reason, due_at, now)


def waits_for(container: Container, memory: PodMemory, started: Iterable[str]) -> str:
    """Which container it has to wait for, and for what; "" when it may start."""
    for dependency in container.depends_on:
        other = memory.run(dependency.container)
        if dependency.condition is Condition.HEALTHY:
            if not (other.health.is_healthy or other.is_completed):
                return f"{dependency.container} to be healthy"
        elif dependency.container not in started:
            return f"{dependency.container} to be started"
    return ""


def _due(
    kind: ActionKind, pod: Pod, container: Container, reason: str, due_at: float, now: float
) -> Action | _Later:
    if due_at > now:
        return _Later(at=due_at)
    return Action(kind=kind, pod=pod.id, container=container.name, reason=reason)


def _state(observed: ObservedPod | None, container: Container) -> ContainerState:
    seen = observed.container(container.name) if observed else None
    return seen.state if seen else ContainerState.CREATED
