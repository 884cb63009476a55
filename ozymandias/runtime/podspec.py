"""What we ask of podman for a pod, as documents: labels, the pod's and the containers' spec. Pure.

Everything made carries labels that say whose it is and which instance it belongs to; `pod_id_of`
reads them back. What is needed later without the job at hand (grace, order, redirects) is a label
too, because a daemon that comes back knows only what podman tells it.
"""

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ozymandias.model.job import (
    Container,
    Job,
    JobKind,
    JobName,
    Namespace,
    NetworkMode,
    Port,
    Protocol,
)
from ozymandias.model.node import NodeName
from ozymandias.model.pod import Pod, PodId
from ozymandias.ports import RuntimeFailed

PREFIX = "ozymandias."
OWNER = (
    PREFIX + "owner"
)  # cluster and node in one, since podman ORs several labels in event filters
CLUSTER = PREFIX + "cluster"
POD = PREFIX + "pod"
CONTAINER = PREFIX + "container"
CONTAINERS = PREFIX + "containers"  # of a pod: how many it has when complete
DEPTH = PREFIX + "depth"  # of a container: the longest chain of dependencies below it
GRACE = PREFIX + "grace"  # of a container: whole seconds between stop signal and SIGKILL
NETWORK = PREFIX + "network"  # of a pod on the machine's own network: "host"
REDIRECTS = PREFIX + "redirects"  # of a pod: "80:3000/tcp,..."

PIDS_MAX = 4096  # processes and threads of one container
CPU_PERIOD_MICROSECONDS = 100_000
# How readily the kernel kills a process for want of memory: pods before everything of the host, the
# less important ones first, and what belongs to every node last.
OOM_SCORE_SERVICE = (900, 500)  # of priority 0, and of the highest
OOM_SCORE_SYSTEM = 200
PRIORITY_MAX = 10_000
HOST_NAME_MAX = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose pods these are."""

    cluster: str
    node: str

    @property
    def label(self) -> str:
        return f"{self.cluster}/{self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A named podman volume, or a directory of the host, in a container."""

    path: str
    volume: str = ""
    directory: str = ""


def labels_of(owner: Owner, pod: PodId) -> dict[str, str]:
    return {
        OWNER: owner.label,
        CLUSTER: owner.cluster,
        PREFIX + "node": pod.node,
        PREFIX + "namespace": pod.namespace,
        PREFIX + "job": pod.job,
        PREFIX + "slot": str(pod.slot),
        PREFIX + "uid": pod.uid,
        PREFIX + "version": str(pod.version),
        PREFIX + "generation": str(pod.generation),
        POD: pod.name,
    }


def pod_id_of(labels: Mapping[str, str]) -> PodId | None:
    """The identity that labels tell; None when they are not (wholly) ours."""
    try:
        return PodId(
            node=NodeName(labels[PREFIX + "node"]),
            namespace=Namespace(labels[PREFIX + "namespace"]),
            job=JobName(labels[PREFIX + "job"]),
            slot=int(labels[PREFIX + "slot"]),
            uid=labels[PREFIX + "uid"],
            version=int(labels[PREFIX + "version"]),
            generation=int(labels[PREFIX + "generation"]),
        )
    except (KeyError, ValueError):
        return None


def infra_name(pod: PodId) -> str:
    return f"{pod.name}._infra"  # no container of a job can be named so


def container_name(pod: PodId, container: str) -> str:
    return f"{pod.name}.{container}"


def redirects_of(containers: Sequence[Container]) -> tuple[Port, ...]:
    """The ports whose number on the pod's address differs from the container's own."""
    return tuple(p for c in containers for p in c.ports if p.pod != p.container)


def redirects_label(ports: Sequence[Port]) -> str:
    return ",".join(f"{p.pod}:{p.container}/{p.protocol}" for p in ports)


def parse_redirects(label: str) -> tuple[Port, ...]:
    """What `redirects_label` wrote; nonsense is dropped."""
    found = []
    for part in filter(None, label.split(",")):
        numbers, _, protocol = part.partition("/")
        pod, _, container = numbers.partition(":")
        if pod.isdigit() and container.isdigit() and protocol in ("tcp", "udp"):
            port = Port(pod=int(pod), container=int(container), protocol=Protocol(protocol))
            found.append(port)
    return tuple(found)


def depths_of(containers: Sequence[Container]) -> dict[str, int]:
    """How deep each container stands on others: dependants are deeper, and stop first."""
    by_name = {c.name: c for c in containers}
    depths: dict[str, int] = {}

    def depth(name: str, seen: frozenset[str]) -> int:
        if name not in depths:
            below = [
                depth(d.container, seen | {name}) + 1
                for d in by_name[name].depends_on
                if d.container in by_name and d.container not in seen
            ]
            depths[name] = max(below, default=0)
        return depths[name]

    for container in containers:
        depth(container.name, frozenset())
    return depths


def pod_spec(
    pod: Pod, owner: Owner, *, network: str, dns_server: str, dns_search: str
) -> dict[str, Any]:
    """The pod: one network for all its containers, and the host ports it asks for."""
    if pod.job.network is NetworkMode.HOST:
        return _host_pod_spec(pod, owner)
    ports = [p for c in pod.containers for p in c.ports if p.host is not None]
    extra = {
        CONTAINERS: str(len(pod.containers)),
        REDIRECTS: redirects_label(redirects_of(pod.containers)),
    }
    spec: dict[str, Any] = {
        "name": pod.id.name,
        "infra_name": infra_name(pod.id),
        "labels": labels_of(owner, pod.id) | extra,
        "hostname": host_name(pod.id),
        "netns": {"nsmode": "bridge"},
        "Networks": {network: {}},
        "portmappings": [
            {"host_port": p.host, "container_port": p.container, "protocol": str(p.protocol)}
            for p in ports
        ],
    }
    if dns_server:
        spec |= {"dns_server": [dns_server], "dns_search": [dns_search]}
    return spec


def _host_pod_spec(pod: Pod, owner: Owner) -> dict[str, Any]:
    """A pod on the machine's own network: its ports are the machine's, and so is its resolver."""
    extra = {CONTAINERS: str(len(pod.containers)), NETWORK: str(NetworkMode.HOST)}
    return {
        "name": pod.id.name,
        "infra_name": infra_name(pod.id),
        "labels": labels_of(owner, pod.id) | extra,
        "netns": {"nsmode": "host"},
    }


def host_name(pod: PodId) -> str:
    """What a user calls the instance: `<job>-<slot>`."""
    slot = f"-{pod.slot}"
    return pod.job[: HOST_NAME_MAX - len(slot)].rstrip("-") + slot


def container_spec(
    pod: Pod, container: Container, owner: Owner, mounts: Sequence[Mount]
) -> dict[str, Any]:
    """One container: limits are hard, rights are few, restarts are the daemon's."""
    ours = labels_of(owner, pod.id) | {
        CONTAINER: container.name,
        DEPTH: str(depths_of(pod.containers)[container.name]),
        GRACE: str(grace_seconds(container)),
    }
    theirs = {k: v for k, v in container.labels if not k.startswith(PREFIX)}
    added = {_capability(c) for c in container.cap_add}
    dropped = {_capability(c) for c in container.cap_drop} | {"NET_RAW"}
    spec: dict[str, Any] = {
        "name": container_name(pod.id, container.name),
        "pod": pod.id.name,
        "image": container.image,
        "labels": theirs | ours,
        "env": environment_of(pod, container),
        "resource_limits": _limits(container),
        "oom_score_adj": oom_score(pod.job),
        "restart_policy": "no",
        "stop_timeout": grace_seconds(container),
        "init": container.init,
        "read_only_filesystem": container.read_only,
        "no_new_privileges": True,
        "cap_add": sorted(added),
        "cap_drop": sorted(dropped - added),
        "image_volume_mode": "ignore",  # volumes that nobody asked for would have no limit
        "healthconfig": {"Test": ["NONE"]},  # the daemon probes
        "systemd": "false",
        "sdnotifyMode": "ignore",
        "volumes": [{"Name": m.volume, "Dest": m.path} for m in mounts if m.volume],
        "mounts": [
            {
                "type": "bind",
                "source": m.directory,
                "destination": m.path,
                "options": ["rbind", "nosuid", "nodev"],
            }
            for m in mounts
            if m.directory
        ]
        + [
            {
                "type": "tmpfs",
                "source": "tmpfs",
                "destination": t.path,
                "options": [f"size={t.space_bytes}", "mode=1777", "nosuid", "nodev"],
            }
            for t in container.tmpfs
        ],
    }
    optional = {
        "entrypoint": list(container.entrypoint) if container.entrypoint is not None else None,
        "command": list(container.command) if container.command is not None else None,
        "user": container.user,
        "work_dir": container.working_dir,
        "stop_signal": _signal_number(container.stop_signal),
    }
    return spec | {key: value for key, value in optional.items() if value is not None}


def oom_score(job: Job) -> int:
    if job.kind is JobKind.SYSTEM:
        return OOM_SCORE_SYSTEM
    lowest, highest = OOM_SCORE_SERVICE
    return lowest - (lowest - highest) * min(max(job.priority, 0), PRIORITY_MAX) // PRIORITY_MAX


def environment_of(pod: Pod, container: Container) -> dict[str, str]:
    """The container's own wins over the pod's, but nobody else speaks as OZY_*."""
    ours = {k: v for k, v in pod.environment if k.startswith("OZY_")}
    return dict(pod.environment) | dict(container.environment) | ours


def grace_seconds(container: Container) -> int:
    return math.ceil(container.stop_grace_seconds)  # podman counts whole seconds


def _limits(container: Container) -> dict[str, Any]:
    """Memory and swap alike means no swap at all."""
    limits: dict[str, Any] = {
        "memory": {"limit": container.memory_bytes, "swap": container.memory_bytes},
        "pids": {"limit": PIDS_MAX},
    }
    if container.cpu is not None:
        limits["cpu"] = {
            "period": CPU_PERIOD_MICROSECONDS,
            "quota": max(1000, int(container.cpu * CPU_PERIOD_MICROSECONDS)),
        }
    return limits


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def _signal_number(name: str | None) -> int | None:
    """`SIGQUIT`, `QUIT` or `3`; None for the image's own."""
    if name is None:
        return None
    if name.isdigit():
        return int(name)
    found = signal.Signals.__members__.get("SIG" + name.upper().removeprefix("SIG"))
    if found is None:
        raise RuntimeFailed(f"{name} is not a signal that this host knows")
    return int(found)
