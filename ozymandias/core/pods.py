"""An assigned instance -> the pod that its node is to run.

The pod's identity is that of the assignment: a new version, a new generation (`ozy restart`) or a
new job of the same name is another pod. Everything else comes from the version's specification.
"""

from ozymandias.model.instance import Assigned
from ozymandias.model.job import Container, JobVersion
from ozymandias.model.pod import Pod, PodId


def pod_id(assigned: Assigned) -> PodId:
    return PodId(
        node=assigned.node,
        namespace=assigned.job.namespace,
        job=assigned.job.name,
        slot=assigned.slot,
        uid=assigned.uid,
        version=assigned.version,
        generation=assigned.generation,
    )


def pod_of(assigned: Assigned, version: JobVersion, *, host_ip: str, api: str) -> Pod:
    """The pod to make, with the environment that every container of it gets."""
    return Pod(
        id=pod_id(assigned),
        job=version.job,
        environment=(
            ("OZY_JOB", assigned.job.name),
            ("OZY_NAMESPACE", assigned.job.namespace),
            ("OZY_INSTANCE", f"{assigned.job.name}-{assigned.slot}"),
            ("OZY_NODE", assigned.node),
            ("OZY_VERSION", str(assigned.version)),
            ("OZY_API", api),
            ("HOST_IP", host_ip),
            *_pool_environment(assigned, version, api),
        ),
    )


def _pool_environment(
    assigned: Assigned, version: JobVersion, api: str
) -> tuple[tuple[str, str], ...]:
    """By what an agent finds its pool and its own name; a job file may give others."""
    rules = version.job.autoscale
    if rules is None:
        return ()
    names = {
        "{pool}": str(assigned.job.name),
        "{namespace}": str(assigned.job.namespace),
        "{slot}": str(assigned.slot),
        "{node}": str(assigned.node),
    }
    agent = rules.agent_name
    for place, name in names.items():
        agent = agent.replace(place, name)
    return (
        ("POOL_ID", assigned.uid),
        ("POOL_NAME", assigned.job.name),
        ("POOL_TYPE", rules.kind),
        ("API_ENDPOINT", api),
        ("AGENT_NAME", agent),
    )


def start_order(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    """Dependencies before what depends on them; otherwise as in the job file.

    The job file forbids cycles and unknown names; either would only spoil the order here.
    """
    by_name = {container.name: container for container in containers}
    order: dict[str, Container] = {}

    def visit(container: Container, path: frozenset[str]) -> None:
        if container.name in order or container.name in path:
            return
        for dependency in container.depends_on:
            if dependency.container in by_name:
                visit(by_name[dependency.container], path | {container.name})
        order[container.name] = container

    for container in containers:
        visit(container, frozenset())
    return tuple(order.values())
