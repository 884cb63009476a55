"""The Runtime port over podman: pods of one node, made, started, stopped, removed, observed.

Everything made carries this cluster's and node's labels, and nothing without them is touched.
The daemon owns restarts: podman is told never to restart anything. Nothing is remembered here that
can't be learnt again from podman, so a daemon that comes back sees what is really there.

    create_pod        pod, volumes, its network (infra container) up, redirects, containers
    start_container   the network again if it is down, redirects anew, the container
    stop_pod          dependants first, each with its own signal and grace; then the network
    remove_pod        kill, remove, then the volumes
    list_pods         and volumes whose pod is gone are removed: somebody was killed in between

`observation.py` turns podman's lists into ObservedPods, `streams.py` follows logs and exec.
"""

import asyncio
import errno
import math
import socket as sockets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from ozymandias.model.job import (
    HealthCheck,
    HealthKind,
    NetworkMode,
    Port,
    Protocol,
    PullPolicy,
)
from ozymandias.model.pod import ObservedPod, Pod, PodId
from ozymandias.model.units import format_duration
from ozymandias.ports import (
    ExecResult,
    ImageMissing,
    LogLine,
    PortTaken,
    ProbeResult,
    RuntimeFailed,
    RuntimeInfo,
)
from ozymandias.runtime import monitors, podspec, probes, streams
from ozymandias.runtime.containers_conf import EXEC_LINGER_SECONDS
from ozymandias.runtime.observation import Observer, is_connected, is_running
from ozymandias.runtime.podman_api import (
    DEADLINE_SECONDS,
    PodmanApi,
    Refused,
    filters,
    segment,
)
from ozymandias.runtime.podspec import Owner, container_name, infra_name
from ozymandias.runtime.redirect import redirect
from ozymandias.runtime.volumes import Volumes
from ozymandias.telemetry import log, warn

PULL_SECONDS_MAX = 600.0
EXEC_MARGIN_SECONDS = 5.0  # what podman itself may take around a probe's command
RECONNECT_SECONDS = 1.0
ATTEMPTS_MAX = 4
ATTEMPT_SECONDS = 0.25
# Of the events of a container, those after which something should be looked at. Not the exec ones:
# every probe would wake the daemon.
EVENTS = ["create", "start", "died", "remove"]


class PodmanRuntime:
    def __init__(
        self,
        *,
        socket: Path,
        cluster: str,
        node: str,
        network: str,
        dns_server: str = "",
        domain: str = "ozy.internal",
        host_address: str = "",
        volume_dir: Path,
        shared_dir: Path,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._api = PodmanApi(socket, deadline_seconds=deadline_seconds)
        self._owner = Owner(cluster=cluster, node=node)
        self._network = network
        self._dns_server = dns_server
        self._domain = domain
        self._deadline_seconds = deadline_seconds
        self._observer = Observer(self._api, self._owner, host_address)
        self._http: aiohttp.ClientSession | None = None
        self._creations = 0  # begun so far
        self._monitored: dict[str, float] = {}  # by pod: until when its commands leave monitors
        self._sweeping = asyncio.Lock()
        self.volumes = Volumes(self._api, self._owner, volume_dir=volume_dir, shared_dir=shared_dir)

    async def info(self) -> RuntimeInfo:
        _, answer = await self._api.call("GET", "/version")
        return RuntimeInfo(name="podman", version=str((answer or {}).get("Version", "unknown")))

    async def list_pods(self) -> tuple[ObservedPod, ...]:
        left, creations = self.volumes.pods(), self._creations
        found = await self._observer.list_pods()
        left -= {pod.id.name for pod in found}
        if left:
            await self._sweep(left, creations)
        return found

    async def _sweep(self, names: set[str], creations: int) -> None:
        """Volumes go after their pod, and nobody lists a pod that is gone: so they are looked for.

        A pod is made before its volumes, so these are nobody's; but one of that name may just now
        be made anew. A creation that begins meanwhile waits, and after one that has begun the next
        listing is soon enough.
        """
        async with self._sweeping:
            for name in sorted(names):
                if self._creations != creations:
                    return
                try:
                    path = f"/pods/{segment(name)}/exists"
                    status, _ = await self._api.call("GET", path, accept=(404,))
                    if status == 404 and self._creations == creations:
                        await self.volumes.remove(name)
                        log("volumes.removed", pod=name, reason="its pod is gone")
                except RuntimeFailed as error:
                    warn("volumes.leftover", pod=name, reason=str(error))

    async def group_of(self, pod: PodId) -> str:
        """The control group of everything that runs in this pod."""
        _, found = await self._api.call("GET", f"/pods/{segment(pod.name)}/json")
        told = found or {}
        path = str(told.get("CgroupPath") or "")
        parent = str(told.get("CgroupParent") or "")
        if not path and told.get("Id") and parent and not parent.endswith(".slice"):
            # Of a pod made before the host's last boot podman tells no path any more (4.3.1), but
            # still makes the same one. Of systemd's slices that was not seen: they are not guessed.
            path = f"{parent}/{told['Id']}"
        if not path:
            raise RuntimeFailed(f"podman does not tell the control group of {pod.name}")
        return path

    # Making and ending --------------------------------------------------------------------------

    async def ensure_image(self, image: str, policy: PullPolicy) -> None:
        if policy is not PullPolicy.ALWAYS:
            path = f"/images/{segment(image)}/exists"
            status, _ = await self._api.call("GET", path, accept=(404,))
            if status != 404:
                return
            if policy is PullPolicy.NEVER:
                raise ImageMissing(f"{image} is not on this node and must not be pulled")
        try:
            _, answer = await self._api.call(
                "POST",
                "/images/pull",
                query={"reference": image, "policy": "always", "quiet": True},
                deadline_seconds=PULL_SECONDS_MAX,
            )
        except Refused as error:
            raise ImageMissing(f"{image} could not be pulled: {error.message}") from error
        failure = streams.pull_failure(answer)
        if failure:
            raise ImageMissing(f"{image} could not be pulled: {failure}")

    async def create_pod(self, pod: Pod) -> None:
        self._creations += 1
        async with self._sweeping:
            pass  # what is being removed now may bear this pod's name
        await self._remove_leftover(pod.id)
        for container in pod.containers:
            for port in container.ports:
                is_host = pod.job.network is NetworkMode.HOST
                _check_host_port(replace(port, host=port.container) if is_host else port)
        try:
            await self._create(pod)
        except BaseException as error:
            # Half a pod holds names, ports and an address: it goes, also when we are cancelled.
            await self._clean_up(pod.id)
            if isinstance(error, Refused):
                raise _translated(error) from error
            raise

    async def _remove_leftover(self, pod: PodId) -> None:
        """Look first: a removal that hangs in podman would come later, and end the new pod."""
        path = f"/pods/{segment(pod.name)}/exists"
        status, _ = await self._api.call("GET", path, accept=(404,))
        if status == 404:
            await self.volumes.remove(pod.name)
        else:
            await self.remove_pod(pod)

    async def _create(self, pod: Pod) -> None:
        spec = podspec.pod_spec(
            pod,
            self._owner,
            network=self._network,
            dns_server=self._dns_server,
            dns_search=f"{pod.id.namespace}.{self._domain}",
        )
        await self._api.call("POST", "/pods/create", body=spec)
        mounts = {c.name: await self.volumes.prepare(pod, c) for c in pod.containers}
        await self._start_network(pod.id, podspec.redirects_of(pod.containers))
        for container in pod.containers:
            body = podspec.container_spec(pod, container, self._owner, mounts[container.name])
            await self._api.call("POST", "/containers/create", body=body)

    async def start_container(self, pod: PodId, container: str) -> None:
        await self._ensure_network(pod)
        await self._start(container_name(pod, container))

    async def _ensure_network(self, pod: PodId) -> None:
        """The pod's infra container runs, and its redirects are those of the job.

        They are set even if it was running already: a daemon may have died in between. Containers
        that still run after their network went down would never see the new one: they end first.
        """
        listed = await self._observer.list_containers(pod)
        infra = next((c for c in listed if c.get("IsInfra")), None)
        if infra is None:
            raise RuntimeFailed(f"no such pod: {pod.name}")
        ports = podspec.parse_redirects(infra["Labels"].get(podspec.REDIRECTS, ""))
        if not is_connected(infra):
            await _all(self._stop_container(c) for c in listed if c is not infra)
            if is_running(infra):  # with an interface that somebody has deleted
                await self._stop(infra["Id"], 0)
            await self._start_network(pod, ports)
        elif ports:
            await redirect(int(infra["Pid"]), ports, deadline_seconds=self._deadline_seconds)

    async def _start_network(self, pod: PodId, ports: Sequence[Port]) -> None:
        name = infra_name(pod)
        await self._start(name)
        if ports:
            _, infra = await self._api.call("GET", f"/containers/{segment(name)}/json")
            await redirect(infra["State"]["Pid"], ports, deadline_seconds=self._deadline_seconds)

    async def _start(self, name: str) -> None:
        self._observer.forget(name)
        try:
            await self._api.call("POST", f"/containers/{segment(name)}/start")
        except Refused as error:
            raise _translated(error) from error

    async def stop_container(self, pod: PodId, container: str) -> None:
        for found in await self._observer.list_containers(pod):
            if found["Labels"].get(podspec.CONTAINER) == container:
                await self._stop_container(found)

    async def stop_pod(self, pod: PodId) -> None:
        listed = await self._observer.list_containers(pod)
        depths: dict[int, list[dict[str, Any]]] = {}
        for container in listed:
            if not container.get("IsInfra"):
                depth = _number(container["Labels"].get(podspec.DEPTH))
                depths.setdefault(depth, []).append(container)
        for depth in sorted(depths, reverse=True):
            await _all(self._stop_container(c) for c in depths[depth])
        for container in listed:
            if container.get("IsInfra"):
                await self._stop(container["Id"], 0)

    async def _stop_container(self, container: dict[str, Any]) -> None:
        if is_running(container):
            await self._stop(container["Id"], _number(container["Labels"].get(podspec.GRACE)))

    async def _stop(self, container: str, grace: int) -> None:
        await self._insist(
            "POST",
            f"/containers/{container}/stop",
            query={"timeout": grace},
            deadline_seconds=grace + self._deadline_seconds,
        )

    async def remove_pod(self, pod: PodId) -> None:
        if time.monotonic() < self._monitored.pop(pod.name, 0.0):
            await asyncio.to_thread(monitors.end, pod.name)
        # By its id: a removal that hangs in podman may come later, when the next pod has the name.
        for found in await self._observer.ids_of(pod):
            await self._insist("DELETE", f"/pods/{found}", query={"force": True, "timeout": 0})
        await self.volumes.remove(pod.name)

    async def _insist(self, method: str, path: str, **arguments: Any) -> None:
        """Ending what ends by itself at that very moment fails in podman: then try again."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await self._api.call(method, path, accept=(404,), **arguments)
                return
            except Refused:
                if attempt == ATTEMPTS_MAX:
                    raise
            await asyncio.sleep(ATTEMPT_SECONDS)

    async def _clean_up(self, pod: PodId) -> None:
        try:
            await asyncio.shield(self.remove_pod(pod))
        except RuntimeFailed as error:
            warn("pod.leftover", pod=pod.name, reason=str(error))  # list_pods shows it: incomplete

    # Looking ------------------------------------------------------------------------------------

    async def probe(
        self, pod: PodId, address: str, container: str, check: HealthCheck
    ) -> ProbeResult:
        if check.kind is HealthKind.EXEC:
            return await self._probe_exec(pod, container, check)
        if not address:
            return probes.unhealthy("the pod has no address")
        if check.kind is HealthKind.TCP:
            return await probes.probe_tcp(address, check)
        if self._http is None:
            self._http = probes.make_session()
        return await probes.probe_http(self._http, address, check)

    async def _probe_exec(self, pod: PodId, container: str, check: HealthCheck) -> ProbeResult:
        limit = check.timeout_seconds
        try:
            async with asyncio.timeout(limit + EXEC_MARGIN_SECONDS):
                done = await self.exec(pod, container, check.command, timeout=limit)
        except TimeoutError:
            return probes.timed_out(check)
        except RuntimeFailed as error:
            return probes.unhealthy(str(error))
        return ProbeResult(healthy=done.exit_code == 0, reason=f"exit code {done.exit_code}")

    async def changes(self) -> AsyncIterator[None]:
        label = f"{podspec.OWNER}={self._owner.label}"
        query = {
            "stream": True,
            "filters": filters(type=["container"], label=[label], event=EVENTS),
        }
        while True:
            try:
                async with self._api.stream("GET", "/events", query=query) as reader:
                    yield  # whatever happened before we listened
                    async for _ in reader:
                        yield
            except RuntimeFailed as error:
                warn("podman.events.lost", reason=str(error))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def logs(
        self, pod: PodId, container: str, *, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        name = container_name(pod, container)
        lines = streams.log_lines(self._api, name, container, tail=tail, follow=follow)
        async with aclosing(lines):
            async for line in lines:
                yield line

    async def exec(
        self, pod: PodId, container: str, command: Sequence[str], *, timeout: float = 60.0
    ) -> ExecResult:
        name = container_name(pod, container)
        session = await streams.exec_create(self._api, name, command)
        done: ExecResult | None = None
        self._monitored[pod.name] = math.inf
        try:
            async with asyncio.timeout(timeout):
                done = await streams.exec_run(self._api, name, session)
                return done
        except TimeoutError:
            raise RuntimeFailed(
                f"the command did not end within {format_duration(timeout)} and was killed"
            ) from None
        finally:
            if pod.name in self._monitored:
                self._monitored[pod.name] = time.monotonic() + EXEC_LINGER_SECONDS
            if done is None:  # too slow, or nobody waits for it any more
                await asyncio.shield(streams.exec_kill(self._api, session))

    async def aclose(self) -> None:
        self._observer.close()
        await self._api.aclose()
        if self._http is not None:
            await self._http.close()
            self._http = None


async def _all(calls: Any) -> None:
    """All at once; the first failure is raised as itself, after all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _check_host_port(port: Port) -> None:
    """podman would find out too, but only after much work, and not for every protocol."""
    if port.host is None:
        return
    kind = sockets.SOCK_DGRAM if port.protocol is Protocol.UDP else sockets.SOCK_STREAM
    with sockets.socket(sockets.AF_INET, kind) as probe:
        if port.protocol is Protocol.TCP:  # connections that linger are nobody's
            probe.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port.host))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(f"host port {port.host}/{port.protocol} is in use") from error
            raise RuntimeFailed(f"host port {port.host}: {error.strerror}") from error


def _translated(error: Refused) -> RuntimeFailed:
    """podman tells its failures apart by words only."""
    words = error.message.lower()
    if "address already in use" in words or "port is already allocated" in words:
        return PortTaken(error.message)
    if "image not known" in words or "no such image" in words:
        return ImageMissing(error.message)
    return error
