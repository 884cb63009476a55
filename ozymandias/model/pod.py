"""Pods: the containers of one instance as a node runs them, wanted and observed."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ozymandias.model.instance import InstanceId
from ozymandias.model.job import Container, Job, JobKey, JobName, Namespace
from ozymandias.model.node import NodeName


class PodId(NamedTuple):
    """Identity of one run of one instance on one node; carried by labels on everything we make."""

    node: NodeName
    namespace: Namespace
    job: JobName
    slot: int
    uid: str
    version: int
    generation: int

    @property
    def key(self) -> JobKey:
        return JobKey(self.namespace, self.job)

    @property
    def instance(self) -> InstanceId:
        return InstanceId(self.key, self.slot)

    @property
    def name(self) -> str:
        """Readable and unique on a host, and a valid podman name and host name."""
        text = (
            f"{self.namespace}-{self.job}-{self.slot}-v{self.version}.{self.generation}-{self.uid}"
        )
        return f"{self.node}-{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod to be made: its job, and the environment that all its containers get."""

    id: PodId
    job: Job
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def containers(self) -> tuple[Container, ...]:
        return self.job.containers


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedContainer:
    name: str
    state: ContainerState
    started_at: float = 0.0  # wall clock
    finished_at: float = 0.0
    exit_code: int | None = None
    oom_killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """What the runtime really has."""

    id: PodId
    address: str = ""  # "" while its network is not up
    containers: tuple[ObservedContainer, ...] = ()
    is_complete: bool = True  # False: a create that was cut short; only good for removal
    infra_running: bool = True

    def container(self, name: str) -> ObservedContainer | None:
        return next((c for c in self.containers if c.name == name), None)
