"""A simulated machine: its pods and processes, which outlive the daemon.

`SimHost` is the ground truth that invariants look at. As with a real machine, a daemon's end stops
nothing, and a power cut ends every process and leaves the pods on disk, all down. Processes end by
timers of the event loop, so in virtual time they cost nothing.

Nothing here draws from the global random state: everything odd comes from the host's own seed.
"""

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field

from ozymandias.model.job import Container, HealthCheck, Volume, VolumeKind
from ozymandias.model.pod import ContainerState, Pod, PodId
from ozymandias.ports import ImageMissing, LogLine, PortTaken, ProbeResult, RuntimeFailed

KILLED = 137  # 128 + SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a container's process does, from its start on."""

    exit_after_seconds: float | None = None  # None: runs until it is stopped
    exit_code: int = 0
    is_oom: bool = False  # exits with 137, killed by its memory limit
    ignores_stop: bool = False  # takes the whole grace period, then SIGKILL
    stop_seconds: float = 0.1  # from the stop signal to the exit, with code 0


@dataclass(slots=True, kw_only=True)
class Faults:
    """How this host's podman misbehaves; change it at any time."""

    latency_seconds: tuple[float, float] = (0.01, 0.3)
    fail_rate: float = 0.0  # a call fails, and half of these have done their work all the same
    hang_rate: float = 0.0  # a call never answers; half of these do their work later
    is_hung: bool = False  # no call answers at all until this is unset
    is_full: bool = False  # the disk: nothing can be made
    fail_next: dict[str, int] = field(default_factory=dict)  # operation -> how many calls fail


@dataclass(slots=True, kw_only=True)
class SimContainer:
    spec: Container
    state: ContainerState = ContainerState.CREATED
    behaviour: Behaviour = Behaviour()
    starts: int = 0
    started_at: float = 0.0
    finished_at: float = 0.0
    exit_code: int | None = None
    oom_killed: bool = False
    lines: list[LogLine] = field(default_factory=list)
    exit_timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, kw_only=True)
class SimPod:
    pod: Pod
    address: str = ""
    infra_running: bool = False
    is_complete: bool = False
    containers: dict[str, SimContainer] = field(default_factory=dict)


OnEvent = Callable[[PodId, str, str], None]
Behave = Callable[[PodId, Container, int], Behaviour]
Probe = Callable[[PodId, Container, HealthCheck], ProbeResult | None]


def _behave_well(pod: PodId, container: Container, start: int) -> Behaviour:
    return Behaviour()


def _hear_nothing(pod: PodId, what: str, address: str) -> None:
    pass


def _probe_well(pod: PodId, container: Container, check: HealthCheck) -> ProbeResult | None:
    return None


class SimHost:
    """One machine. Set `behave`, `probe`, `images`, `foreign_ports`, `faults` as the test needs."""

    def __init__(
        self, *, seed: int = 0, subnet: str = "10.200.0", wall: Callable[[], float] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.subnet = subnet  # the first three numbers of its pods' addresses
        self.pods: dict[PodId, SimPod] = {}
        self.images: set[str] | None = None  # None: every image is here
        self.registry: set[str] = set()  # what can be pulled
        self.foreign_ports: set[int] = set()
        self.volumes: dict[tuple[str, ...], int] = {}  # how many starts have written to it
        self.behave: Behave = _behave_well
        self.probe: Probe = _probe_well
        self.faults = Faults()
        self.lacks = ""  # what its gauge finds short: memory, disk, ... (`sim/gauge.py`)
        self.on_event: OnEvent = _hear_nothing  # what is done to a pod, at the moment it is done
        self.is_up = True
        self.boots = 0
        self.started_total = 0  # containers ever started: tells restarts apart
        self._wall = wall or (lambda: asyncio.get_running_loop().time())
        self._next_address = 0
        self._listeners: dict[asyncio.Event, None] = {}  # in order: a set would not replay

    # Ground truth -------------------------------------------------------------------------------

    def running(self) -> frozenset[PodId]:
        """Pods with at least one live process."""
        return frozenset(
            pod_id
            for pod_id, pod in self.pods.items()
            if any(c.state is ContainerState.RUNNING for c in pod.containers.values())
        )

    def memory_bytes(self) -> int:
        """The sum of the limits of all pods with a live process."""
        return sum(c.memory_bytes for p in self.running() for c in self.pods[p].pod.containers)

    def power_cut(self) -> None:
        """Every process is gone at once; what was on disk is found again after `boot`."""
        self.is_up = False
        for pod in self.pods.values():
            pod.infra_running, pod.address = False, ""
            for container in pod.containers.values():
                self._cancel_timer(container)
                container.state, container.exit_code = ContainerState.CREATED, None
                container.oom_killed = False
        self.notify()

    def boot(self) -> None:
        self.is_up = True
        self.boots += 1
        self.notify()

    def wipe(self) -> None:
        """Another machine came in its place: what was on its disk is no more."""
        for pod in self.pods.values():
            for container in pod.containers.values():
                self._cancel_timer(container)
        self.pods.clear()
        self.notify()

    def exit_container(
        self, pod: PodId, name: str, *, exit_code: int = 1, is_oom: bool = False
    ) -> None:
        """The process ends by itself, now."""
        self._exit(pod, name, KILLED if is_oom else exit_code, is_oom)

    def calm(self) -> None:
        """Containers that were to end by themselves run on."""
        soon = asyncio.get_running_loop().time() + 5.0  # those are being stopped
        for pod in self.pods.values():
            for container in pod.containers.values():
                if container.exit_timer is not None and container.exit_timer.when() > soon:
                    self._cancel_timer(container)

    def stop_infra(self, pod: PodId) -> None:
        """The pod's network goes down, as when its infra container was killed."""
        self.pods[pod].infra_running, self.pods[pod].address = False, ""
        self.on_event(pod, "failed", "")
        self.notify()

    # What the service does ----------------------------------------------------------------------

    def create_begin(self, pod: Pod) -> None:
        self.on_event(pod.id, "create", "")
        if pod.id in self.pods:
            raise RuntimeFailed(f"the name {pod.id.name} is in use")
        if self.faults.is_full:
            raise RuntimeFailed("no space left on device")
        self._check_ports(pod)
        for container in pod.containers:
            if self.images is not None and container.image not in self.images:
                raise ImageMissing(f"{container.image}: image not known")
        self._next_address += 1
        address = f"{self.subnet}.{self._next_address % 250 + 2}"
        self.pods[pod.id] = SimPod(pod=pod, address=address, infra_running=True)
        self.notify()

    def create_end(self, pod: Pod) -> None:
        found = self.pods.get(pod.id)
        if found is not None:  # a power cut or a removal may have come in between
            found.containers = {c.name: SimContainer(spec=c) for c in pod.containers}
            found.is_complete = True
            self.notify()

    def start(self, pod: PodId, name: str) -> None:
        found = self.pods.get(pod)
        if found is not None and not found.infra_running:
            self._start_network(found)
        found, container = self.find(pod, name)
        if container.state is ContainerState.RUNNING:
            return
        is_first = all(c.starts == 0 for c in found.containers.values())
        self.on_event(pod, "first start" if is_first else "start", found.address)
        container.starts += 1
        self.started_total += 1
        container.behaviour = self.behave(pod, container.spec, container.starts)
        container.state, container.exit_code = ContainerState.RUNNING, None
        container.oom_killed = False
        container.started_at, container.finished_at = self._wall(), 0.0
        self.say(container, "started")
        self._write_volumes(pod, container)
        behaviour = container.behaviour
        if behaviour.is_oom or behaviour.exit_after_seconds is not None:
            code = KILLED if behaviour.is_oom else behaviour.exit_code
            self._exit_later(
                pod, container, behaviour.exit_after_seconds or 0.0, code, behaviour.is_oom
            )
        self.notify()

    def _start_network(self, found: SimPod) -> None:
        for other in found.containers.values():  # they would never see the new network
            code = KILLED if other.behaviour.ignores_stop else 0
            self._exit(found.pod.id, other.spec.name, code, False)
        self._check_ports(found.pod)
        self._next_address += 1
        found.infra_running = True
        found.address = f"{self.subnet}.{self._next_address % 250 + 2}"

    def _write_volumes(self, pod: PodId, container: SimContainer) -> None:
        for volume in container.spec.volumes:
            key = _volume_key(pod, container.spec.name, volume)
            self.volumes[key] = self.volumes.get(key, 0) + 1
            self.say(container, f"data: {self.volumes[key]}")

    def signal_stop(self, pod: PodId, name: str, why: str = "stop") -> float:
        """Send the stop signal; returns after how many seconds the process will be gone."""
        found, container = self.find(pod, name)
        if container.state is not ContainerState.RUNNING:
            return 0.0
        self.on_event(pod, why, found.address)
        behaviour, grace = container.behaviour, container.spec.stop_grace_seconds
        is_stubborn = behaviour.ignores_stop or behaviour.stop_seconds > grace
        delay, code = (grace, KILLED) if is_stubborn else (behaviour.stop_seconds, 0)
        self._exit_later(pod, container, delay, code, False)
        return delay

    def stop_end(self, pod: PodId) -> None:
        found = self.pods.get(pod)
        if found is not None:
            found.infra_running, found.address = False, ""
            self.notify()

    def remove(self, pod: PodId, meant: SimPod | None) -> None:
        """It is meant by its own id: whatever has its name by now is left alone."""
        found = self.pods.get(pod)
        if found is not None and found is meant:
            del self.pods[pod]
            if any(c.state is ContainerState.RUNNING for c in found.containers.values()):
                self.on_event(pod, "kill", found.address)
            for container in found.containers.values():
                self._cancel_timer(container)
                for volume in container.spec.volumes:
                    if volume.kind is VolumeKind.LOCAL and not volume.keep:
                        self.volumes.pop(_volume_key(pod, container.spec.name, volume), None)
            self.notify()

    def find(self, pod: PodId, name: str) -> tuple[SimPod, SimContainer]:
        found = self.pods.get(pod)
        if found is None or name not in found.containers:
            raise RuntimeFailed(f"no such container: {name} of pod {pod.name}")
        return found, found.containers[name]

    def say(self, container: SimContainer, text: str) -> None:
        line = LogLine(container=container.spec.name, time=self._wall(), stream="stdout", text=text)
        container.lines.append(line)

    def notify(self) -> None:
        for listener in tuple(self._listeners):
            listener.set()

    def listen(self) -> asyncio.Event:
        event = asyncio.Event()
        self._listeners[event] = None
        return event

    def forget(self, event: asyncio.Event) -> None:
        self._listeners.pop(event, None)

    def _check_ports(self, pod: Pod) -> None:
        taken = _host_ports(pod) & (self.foreign_ports | self._ports_in_use())
        if taken - self.foreign_ports:
            self.on_event(pod.id, "port taken", "")
        if taken:
            raise PortTaken(f"host port {min(taken)} is in use")

    def _ports_in_use(self) -> set[int]:
        up = (_host_ports(pod.pod) for pod in self.pods.values() if pod.infra_running)
        return set().union(*up)

    def _exit_later(
        self, pod: PodId, container: SimContainer, delay: float, code: int, is_oom: bool
    ) -> None:
        """The earlier of the exits that are due counts."""
        loop = asyncio.get_running_loop()
        due = container.exit_timer.when() if container.exit_timer else float("inf")
        if loop.time() + delay < due:
            self._cancel_timer(container)
            name = container.spec.name
            container.exit_timer = loop.call_later(
                delay, self._exit, pod, name, code, is_oom, context=Context()
            )

    def _exit(self, pod: PodId, name: str, code: int, is_oom: bool) -> None:
        _, container = self.find(pod, name)
        self._cancel_timer(container)
        if container.state is ContainerState.RUNNING:
            container.state, container.exit_code = ContainerState.EXITED, code
            container.oom_killed, container.finished_at = is_oom, self._wall()
            self.on_event(pod, "ended", "")
            self.notify()

    @staticmethod
    def _cancel_timer(container: SimContainer) -> None:
        if container.exit_timer is not None:
            container.exit_timer.cancel()
            container.exit_timer = None


def _host_ports(pod: Pod) -> set[int]:
    return {p.host for c in pod.containers for p in c.ports if p.host is not None}


def _volume_key(pod: PodId, container: str, volume: Volume) -> tuple[str, ...]:
    """Whose it is: the job's, the slot's whatever its version, or this very pod's."""
    if volume.kind is VolumeKind.SHARED:
        return (*pod.key, volume.name)
    owner = (*pod.key, str(pod.slot)) if volume.keep else (pod.name,)
    return (*owner, container, volume.name)


def behaving(**behaviours: Behaviour) -> Behave:
    """A `behave` that looks the container's name up: `behaving(app=Behaviour(exit_code=1))`."""

    def behave(pod: PodId, container: Container, start: int) -> Behaviour:
        return behaviours.get(container.name, Behaviour())

    return behave
