"""Small jobs, pods and observations for the tests of what a node does."""

from ozymandias.core.pods import pod_id, pod_of
from ozymandias.core.reconcile import Wanted
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import (
    Condition,
    Container,
    Dependency,
    HealthCheck,
    HealthKind,
    Job,
    JobKey,
    JobName,
    JobVersion,
    Namespace,
    Port,
    RestartMode,
    RestartPolicy,
)
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, Pod
from ozymandias.model.record import replace

NODE = NodeName("n1")
HTTP = HealthCheck(kind=HealthKind.HTTP, port=80, interval_seconds=10.0)


def container(
    name: str = "app",
    *,
    restart: RestartMode = RestartMode.ALWAYS,
    attempts: int | None = None,
    check: HealthCheck | None = None,
    after: tuple[str, ...] = (),
    condition: Condition = Condition.STARTED,
    ports: tuple[Port, ...] = (),
) -> Container:
    return Container(
        name=name,
        image="localhost/demo:1",
        restart=RestartPolicy(mode=restart, attempts_max=attempts),
        healthcheck=check,
        depends_on=tuple(Dependency(container=other, condition=condition) for other in after),
        ports=ports,
        memory_bytes=64 * 2**20,
    )


def job(*containers: Container, name: str = "web", namespace: str = "default") -> Job:
    return Job(
        name=JobName(name), namespace=Namespace(namespace), containers=containers or (container(),)
    )


def assigned(
    spec: Job | None = None,
    *,
    slot: int = 0,
    state: SlotState = SlotState.RUNNING,
    version: int = 1,
    node: NodeName = NODE,
    generation: int = 0,
) -> Assigned:
    spec = spec or job()
    return Assigned(
        node=node,
        job=JobKey(spec.namespace, spec.name),
        slot=slot,
        uid="u1",
        version=version,
        generation=generation,
        state=state,
        demand=Demand.of(spec),
    )


def pod(spec: Job | None = None, *, slot: int = 0, version: int = 1) -> Pod:
    spec = spec or job()
    entry = assigned(spec, slot=slot, version=version)
    known = JobVersion(uid="u1", version=version, job=spec)
    return pod_of(entry, known, host_ip="192.0.2.1", api="http://192.0.2.1:7400")


def wanted(
    spec: Job | None = None,
    *,
    slot: int = 0,
    state: SlotState = SlotState.RUNNING,
    version: int = 1,
) -> Wanted:
    made = pod(spec, slot=slot, version=version)
    assert made.id == pod_id(assigned(spec, slot=slot, version=version))
    return Wanted(id=made.id, state=state, pod=made)


def observed(made: Pod, **states: ContainerState) -> ObservedPod:
    """All containers created, but those given."""
    return ObservedPod(
        id=made.id,
        address="10.0.0.2",
        containers=tuple(
            ObservedContainer(name=c.name, state=states.get(c.name, ContainerState.CREATED))
            for c in made.containers
        ),
    )


def with_container(seen: ObservedPod, entry: ObservedContainer) -> ObservedPod:
    """The same pod with one container seen otherwise."""
    changed = tuple(entry if c.name == entry.name else c for c in seen.containers)
    return replace(seen, containers=changed)
