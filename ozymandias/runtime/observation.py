"""podman's lists turned into ObservedPods: two calls, however many pods there are.

The lists lack the address, the exact times and why a container ended; those come from inspecting
the container, once per state that it is in (the answer is kept until the list shows a change).
"""

from datetime import datetime
from pathlib import Path
from typing import Any

from ozymandias.model.job import NetworkMode
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, PodId
from ozymandias.runtime import podspec
from ozymandias.runtime.kernel_log import KernelLog
from ozymandias.runtime.podman_api import PodmanApi, filters
from ozymandias.runtime.podspec import Owner

LIST_SECONDS_MAX = 10.0
KILLED = 137  # 128 + SIGKILL: what both the kernel's and our own kill leave behind
_STATES = {
    "running": ContainerState.RUNNING,
    "paused": ContainerState.RUNNING,
    "stopping": ContainerState.RUNNING,
    "stopped": ContainerState.EXITED,
    "exited": ContainerState.EXITED,
}

Document = dict[str, Any]


class Observer:
    def __init__(self, api: PodmanApi, owner: Owner, host_address: str = "") -> None:
        self._api = api
        self._owner = owner
        self._host_address = host_address  # of pods on the machine's own network
        self._kernel_log = KernelLog()
        self._inspected: dict[str, tuple[tuple[Any, ...], Document]] = {}  # by container name

    async def list_pods(self) -> tuple[ObservedPod, ...]:
        query = {"filters": filters(label=[f"{podspec.OWNER}={self._owner.label}"])}
        # The cheapest question there is: a podman that does not answer it in time is hanging.
        limit = min(LIST_SECONDS_MAX, self._api.deadline_seconds)
        _, pods = await self._api.call("GET", "/pods/json", query=query, deadline_seconds=limit)
        _, containers = await self._api.call("GET", "/containers/json", query=query | {"all": True})
        ours = [c for c in containers or () if self._is_ours(c)]
        by_pod: dict[str, list[Document]] = {}
        for container in ours:
            by_pod.setdefault(container["Pod"], []).append(container)
        self._prune({_name(c) for c in ours})
        found = []
        for pod in pods or ():
            pod_id = podspec.pod_id_of(pod.get("Labels") or {})
            if pod_id is not None and self._is_ours(pod):
                found.append(await self._observe(pod_id, pod, by_pod.get(pod["Id"], [])))
        return tuple(sorted(found, key=lambda p: p.id))

    async def list_containers(self, pod: PodId) -> list[Document]:
        """podman's own entries of one pod's containers; none if it is not there."""
        query = {"all": True, "filters": filters(label=[f"{podspec.POD}={pod.name}"])}
        _, containers = await self._api.call("GET", "/containers/json", query=query)
        return [c for c in containers or () if self._is_ours(c)]

    async def ids_of(self, pod: PodId) -> list[str]:
        """podman's own ids of what bears a pod's name: one, or none if it is not there."""
        query = {"filters": filters(label=[f"{podspec.POD}={pod.name}"])}
        _, pods = await self._api.call("GET", "/pods/json", query=query)
        return [p["Id"] for p in pods or () if self._is_ours(p)]

    def forget(self, name: str) -> None:
        """The container is about to change in ways that the list might not show."""
        self._inspected.pop(name, None)

    def close(self) -> None:
        self._kernel_log.close()

    def _is_ours(self, document: Document) -> bool:
        return bool((document.get("Labels") or {}).get(podspec.OWNER) == self._owner.label)

    def _prune(self, names: set[str]) -> None:
        for name in self._inspected.keys() - names:
            del self._inspected[name]

    async def _observe(self, pod_id: PodId, pod: Document, listed: list[Document]) -> ObservedPod:
        infra = next((c for c in listed if c.get("IsInfra")), None)
        members = [c for c in listed if not c.get("IsInfra")]
        address = ""
        is_up = infra is not None and is_connected(infra)
        if infra is not None and is_up:
            inspected = await self._inspect(infra)
            is_up = inspected is not None
            is_host = pod["Labels"].get(podspec.NETWORK) == NetworkMode.HOST
            address = self._host_address if is_host else _address(inspected or {})
        observed = [await self._observe_container(c) for c in members]
        wanted = pod["Labels"].get(podspec.CONTAINERS)
        return ObservedPod(
            id=pod_id,
            address=address,
            containers=tuple(sorted(filter(None, observed), key=lambda c: c.name)),
            is_complete=infra is not None and wanted == str(len(members)),
            infra_running=is_up,
        )

    async def _observe_container(self, listed: Document) -> ObservedContainer | None:
        name = listed["Labels"].get(podspec.CONTAINER)
        if name is None:
            return None
        state = _STATES.get(listed["State"], ContainerState.CREATED)
        if state is ContainerState.CREATED:
            return ObservedContainer(name=name, state=state)
        inspected = await self._inspect(listed)
        if inspected is None:
            return None  # removed between the list and now
        details = inspected["State"]
        started = parse_time(details.get("StartedAt"))
        if state is ContainerState.RUNNING:
            return ObservedContainer(name=name, state=state, started_at=started)
        code = int(details.get("ExitCode", listed.get("ExitCode", 0)))
        return ObservedContainer(
            name=name,
            state=state,
            started_at=started,
            # podman notes a start after it, so a container may seem to end before it began.
            finished_at=max(started, parse_time(details.get("FinishedAt"))),
            exit_code=code,
            oom_killed=bool(details.get("OOMKilled"))
            or (code == KILLED and self._kernel_log.out_of_memory(listed["Id"], started)),
        )

    async def _inspect(self, listed: Document) -> Document | None:
        key = tuple(
            listed.get(k) for k in ("Id", "State", "Pid", "StartedAt", "ExitedAt", "ExitCode")
        )
        name = _name(listed)
        known = self._inspected.get(name)
        if known is not None and known[0] == key:
            return known[1]
        status, document = await self._api.inspect(listed["Id"])
        if status == 404 or not isinstance(document, dict):
            return None
        kept = {"State": document["State"], "NetworkSettings": document.get("NetworkSettings")}
        self._inspected[name] = (key, kept)
        return kept


def is_running(listed: Document) -> bool:
    """Has it a process, by podman's entry for it?"""
    return _STATES.get(listed["State"]) is ContainerState.RUNNING


def is_connected(infra: Document) -> bool:
    """Runs it, and has it still the interface it was given? Of its own network alone."""
    if not is_running(infra):
        return False
    if (infra.get("Labels") or {}).get(podspec.NETWORK) == NetworkMode.HOST:
        return True
    try:
        lines = Path(f"/proc/{int(infra['Pid'])}/net/dev").read_text().splitlines()
    except (OSError, KeyError, ValueError):
        return True  # it has just gone, and the next list shows it
    names = {line.partition(":")[0].strip() for line in lines if ":" in line}
    return bool(names - {"lo"})


def _name(listed: Document) -> str:
    names = listed.get("Names") or [listed["Id"]]
    return str(names[0])


def _address(inspected: Document) -> str:
    networks = (inspected.get("NetworkSettings") or {}).get("Networks") or {}
    for network in networks.values():
        if network.get("IPAddress"):
            return str(network["IPAddress"])
    return ""


def parse_time(text: str | None) -> float:
    """Seconds since 1970 of podman's timestamps, which have nine decimals; 0 for none."""
    if not text or text.startswith("0001-"):
        return 0.0
    head, dot, rest = text.partition(".")
    if dot:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        text = f"{head}.{rest[:digits][:6]}{rest[digits:]}"
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
