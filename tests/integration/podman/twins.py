"""The same pods twice: with podman and in the simulation, and what each says of them.

`Twins.do` sends one operation to both and raises `Differ` when their answers, or what they list
afterwards, are not the same. Names, times and addresses are made comparable: a start is known by
its number, an address by whether there is one. Failures are compared by their class.

What a container does is written twice, as a script and as a Behaviour (`ROLES`). The simulated
runtime runs no programs, so exec is compared with `echo` alone, which is what it answers with.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ozymandias import ports
from ozymandias.model.job import (
    Container,
    Dependency,
    HealthCheck,
    HealthKind,
    Job,
    JobName,
    Namespace,
    Port,
    PullPolicy,
    Volume,
    VolumeKind,
)
from ozymandias.model.node import NodeName
from ozymandias.model.pod import ContainerState, ObservedPod, Pod, PodId
from ozymandias.model.record import replace
from ozymandias.ports import Runtime, RuntimeFailed
from ozymandias.runtime.podspec import container_name, infra_name
from ozymandias.sim.runtime import Behaviour, Faults, SimHost, SimRuntime
from tests.integration.podman.conftest import BUSYBOX, Site, shell

ABSENT = "localhost/absent:1"
SETTLE_SECONDS_MAX = 20.0
TOLD_CODE = 7  # of a container that was told to end
VOLUME_BYTES = 2**20
_LOOP = "while :; do sleep 1000 & wait; done"
_COUNT = "; echo x >> /data/f; echo data: $(wc -l < /data/f)"

Operation = tuple[str, ...]


class Differ(AssertionError):
    """The simulated runtime is not like the real one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One behaviour, for a shell and for the simulation."""

    script: str
    behaviour: Behaviour
    grace_seconds: float = 10.0

    @property
    def ends(self) -> bool:
        return self.behaviour.is_oom or self.behaviour.exit_after_seconds is not None


def _ends(code: int) -> Role:
    return Role(
        script=f"echo started; exit {code}",
        behaviour=Behaviour(exit_after_seconds=0.01, exit_code=code),
    )


_TRAPS = f"trap 'exit 0' TERM; trap 'exit {TOLD_CODE}' USR1; "
ROLES = {
    "serves": Role(script=f"{_TRAPS}echo started; {_LOOP}", behaviour=Behaviour(stop_seconds=0.01)),
    "writes": Role(
        script=f"{_TRAPS}echo started{_COUNT}; {_LOOP}", behaviour=Behaviour(stop_seconds=0.01)
    ),
    "stubborn": Role(
        script=f"trap '' TERM; trap 'exit {TOLD_CODE}' USR1; echo started; {_LOOP}",
        behaviour=Behaviour(ignores_stop=True),
        grace_seconds=1.0,
    ),
    "ends-0": _ends(0),
    "ends-3": _ends(3),
    "eats": Role(script="echo started; exec tail /dev/zero", behaviour=Behaviour(is_oom=True)),
}

# What the pods are made of: the container's name, its role, and what is special about it.
LAYOUTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "one": (("app", "serves", ""),),
    "two": (("web", "serves", ""), ("app", "serves", "")),
    "chain": (("app", "serves", "needs web"), ("web", "stubborn", "")),
    "stubborn": (("app", "stubborn", ""),),
    "ends well": (("app", "ends-0", ""),),
    "ends badly": (("app", "ends-3", ""), ("web", "serves", "")),
    "eats": (("app", "eats", ""),),
    "no image": (("app", "serves", "no image"),),
    "half an image": (("app", "serves", ""), ("web", "serves", "no image")),
    "local": (("app", "writes", "local"),),
    "kept": (("app", "writes", "kept"),),
    "shared": (("app", "writes", "shared"),),
    "port": (("app", "serves", "port"),),
}
SLOTS = ("0", "1")
CONTAINERS = ("app", "web")


@dataclass(slots=True)
class Side:
    """One of the two runtimes, and how often its containers were seen to start."""

    name: str
    runtime: Runtime
    stamps: dict[tuple[PodId, str], list[float]] = field(default_factory=dict)

    def start_number(self, pod: PodId, container: str, started_at: float) -> int:
        """0: never started."""
        known = self.stamps.setdefault((pod, container), [])
        if started_at and started_at not in known:
            known.append(started_at)
        return known.index(started_at) + 1 if started_at else 0

    def forget(self, pod: PodId) -> None:
        """It is made anew: its containers have never started."""
        for key in [key for key in self.stamps if key[0] == pod]:
            del self.stamps[key]

    async def listed(self) -> list[object]:
        pods = await self.runtime.list_pods()
        addresses = [pod.address for pod in pods if pod.address]
        if len(set(addresses)) != len(addresses):
            raise Differ(f"{self.name}: one address for two pods: {addresses}")
        return [self._show(pod) for pod in pods]

    def _show(self, pod: ObservedPod) -> object:
        containers = [
            (
                c.name,
                c.state.value,
                self.start_number(pod.id, c.name, c.started_at),
                bool(c.finished_at),
                c.exit_code,
                c.oom_killed,
            )
            for c in pod.containers
        ]
        up = (pod.is_complete, pod.infra_running, bool(pod.address))
        return (pod.id.name, up, containers)

    async def find(self, pod: PodId) -> ObservedPod | None:
        return next((p for p in await self.runtime.list_pods() if p.id == pod), None)

    async def lines(self, pod: PodId, container: str, tail: int | None = None) -> list[str]:
        return [line.text async for line in self.runtime.logs(pod, container, tail=tail)]


class Twins:
    """Two slots on a node with podman and on a simulated one."""

    def __init__(self, site: Site, host_port: int) -> None:
        self.site = site
        self.host = SimHost()
        self.host.images = {BUSYBOX}
        self.host.faults = Faults(latency_seconds=(0.0, 0.0))
        self.host.behave = self._behave
        self.real = Side("podman", site.runtime("n1"))
        self.fake = Side("simulated", SimRuntime(self.host))
        self.history: list[Operation] = []
        self._port = host_port
        self._uid = uuid.uuid4().hex[:8]
        self._versions = dict.fromkeys(SLOTS, 1)
        self._layouts: dict[PodId, str] = {}

    # What is asked ------------------------------------------------------------------------------

    async def do(self, *operation: str) -> None:
        """One operation to both; raises Differ."""
        self.history.append(operation)
        answers = await asyncio.gather(
            self._answer(self.real, operation), self._answer(self.fake, operation)
        )
        self._same("answer", *answers)
        await asyncio.gather(self._settle(self.real), self._settle(self.fake))
        self._same("list", await self.real.listed(), await self.fake.listed())

    def _same(self, what: str, real: object, fake: object) -> None:
        if real != fake:
            steps = "\n".join(f"    {step}," for step in self.history)
            raise Differ(f"{what} differs after\n{steps}\npodman:    {real}\nsimulated: {fake}")

    async def _answer(self, side: Side, operation: Operation) -> object:
        try:
            return await self._perform(side, operation)
        except RuntimeFailed as error:
            return next(c.__name__ for c in type(error).__mro__ if hasattr(ports, c.__name__))

    async def _perform(self, side: Side, operation: Operation) -> object:
        runtime = side.runtime
        match operation:
            case ("create", slot, layout):
                pod = self._pod(slot, layout)
                self._layouts[pod.id] = layout
                side.forget(pod.id)
                await runtime.create_pod(pod)
            case ("start", slot, container):
                await runtime.start_container(self._id(slot), container)
            case ("stop container", slot, container):
                await runtime.stop_container(self._id(slot), container)
            case ("stop", slot):
                return await self._stop(side, slot)
            case ("remove", slot):
                await runtime.remove_pod(self._id(slot))
            case ("exec", slot, container, word):
                done = await runtime.exec(self._id(slot), container, ["echo", word])
                return (done.exit_code, done.stdout, done.stderr)
            case ("probe", slot, container):
                check = HealthCheck(kind=HealthKind.EXEC, command=("true",), timeout_seconds=5.0)
                answer = await runtime.probe(self._id(slot), "", container, check)
                return answer.healthy
            case ("logs", slot, container, tail):
                return await side.lines(self._id(slot), container, int(tail) if tail else None)
            case ("image", image, policy):
                await runtime.ensure_image(image, PullPolicy(policy))
            case ("tell to end", slot, container):
                await self._tell_to_end(side, self._id(slot), container)
            case ("kill network", slot):
                await self._kill_network(side, self._id(slot))
            case ("new version", slot):
                if side is self.fake:  # once for both
                    self._versions[slot] += 1
            case ("new daemon",):
                await self._new_daemon(side)
            case _:
                raise ValueError(operation)
        return None

    async def _stop(self, side: Side, slot: str) -> object:
        """Whether what depended ended before what it depended on, where both were running."""
        pod = self._id(slot)
        before = await side.find(pod)
        await side.runtime.stop_pod(pod)
        after = await side.find(pod)
        if before is None or after is None or self._layouts.get(pod) != "chain":
            return None
        if any(c.state is not ContainerState.RUNNING for c in before.containers):
            return None
        app, web = after.container("app"), after.container("web")
        assert app and web
        return app.finished_at <= web.finished_at

    async def _tell_to_end(self, side: Side, pod: PodId, container: str) -> None:
        """The process ends by itself, with a code of its own; where there is one."""
        found = await side.find(pod)
        seen = found.container(container) if found else None
        if seen is None or seen.state is not ContainerState.RUNNING:
            return
        if side is self.fake:
            self.host.exit_container(pod, container, exit_code=TOLD_CODE)
        else:
            await self._podman("kill", "--signal=USR1", container_name(pod, container))
        await self._until(side, pod, container, lambda state: state is ContainerState.EXITED)

    async def _kill_network(self, side: Side, pod: PodId) -> None:
        found = await side.find(pod)
        if found is None or not found.infra_running:
            return
        if side is self.fake:
            self.host.stop_infra(pod)
            return
        await self._podman("kill", "--signal=KILL", infra_name(pod))
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while (seen := await side.find(pod)) and seen.infra_running:
                await asyncio.sleep(0.05)

    async def _new_daemon(self, side: Side) -> None:
        await side.runtime.aclose()
        side.runtime = SimRuntime(self.host) if side is self.fake else self.site.runtime("n1")

    async def _podman(self, *arguments: str) -> None:
        await asyncio.to_thread(self.site.service.podman, *arguments)

    # Until both are still -----------------------------------------------------------------------

    async def _settle(self, side: Side) -> None:
        """Until whoever is to end has ended, and whoever runs has said so (its traps are set)."""
        for pod in await side.runtime.list_pods():
            for container in pod.containers:
                if container.state is not ContainerState.RUNNING:
                    continue
                role = self._role(pod.id, container.name)
                number = side.start_number(pod.id, container.name, container.started_at)
                if role.ends:
                    await self._until(
                        side, pod.id, container.name, lambda s: s is ContainerState.EXITED
                    )
                elif side is self.real:
                    await self._until_said(side, pod.id, container.name, number)

    async def _until(
        self, side: Side, pod: PodId, name: str, holds: Callable[[ContainerState], bool]
    ) -> None:
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while True:
                found = await side.find(pod)
                seen = found.container(name) if found else None
                if seen is None or holds(seen.state):
                    return
                await asyncio.sleep(0.05)

    async def _until_said(self, side: Side, pod: PodId, name: str, starts: int) -> None:
        last = "data:" if ROLES["writes"] is self._role(pod, name) else "started"
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while True:
                lines = await side.lines(pod, name)
                if sum(line.startswith(last) for line in lines) >= starts:
                    return
                await asyncio.sleep(0.05)

    # What the pods are --------------------------------------------------------------------------

    def _id(self, slot: str) -> PodId:
        return PodId(
            node=NodeName("n1"),
            namespace=Namespace("default"),
            job=JobName("twin"),
            slot=int(slot),
            uid=self._uid,
            version=self._versions[slot],
            generation=0,
        )

    def _pod(self, slot: str, layout: str) -> Pod:
        containers = tuple(self._container(*parts) for parts in LAYOUTS[layout])
        job = Job(name=JobName("twin"), containers=containers)
        return Pod(id=self._id(slot), job=job)

    def _container(self, name: str, role: str, special: str) -> Container:
        made = replace(
            shell(ROLES[role].script, name=name), stop_grace_seconds=ROLES[role].grace_seconds
        )
        match special:
            case "no image":
                return replace(made, image=ABSENT, pull_policy=PullPolicy.NEVER)
            case "needs web":
                return replace(made, depends_on=(Dependency(container="web"),))
            case "port":
                return replace(made, ports=(Port(pod=80, container=80, host=self._port),))
            case "local" | "kept" | "shared":
                kind = VolumeKind.SHARED if special == "shared" else VolumeKind.LOCAL
                volume = Volume(
                    kind=kind,
                    name=special,
                    path="/data",
                    space_bytes=VOLUME_BYTES,
                    keep=special == "kept",
                )
                return replace(made, volumes=(volume,))
        return made

    def _role(self, pod: PodId, container: str) -> Role:
        roles = {name: role for name, role, _ in LAYOUTS[self._layouts[pod]]}
        return ROLES[roles[container]]

    def _behave(self, pod: PodId, container: Container, start: int) -> Behaviour:
        return self._role(pod, container.name).behaviour

    async def aclose(self) -> None:
        runtime = self.site.runtime("n1")
        try:
            for pod in await runtime.list_pods():
                await runtime.remove_pod(pod.id)
            await runtime.volumes.remove_all()
        finally:
            await runtime.aclose()
            await self.real.runtime.aclose()


async def told(site: Site, host_port: int, *operations: Operation) -> None:
    """A whole story, and what is left of it removed."""
    twins = Twins(site, host_port)
    try:
        for operation in operations:
            await twins.do(*operation)
    finally:
        await twins.aclose()


Story = Callable[[Site, int], Awaitable[None]]
