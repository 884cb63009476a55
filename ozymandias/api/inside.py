"""Looking into an instance: its logs, commands run in it, and why it is as it is.

Only the node that runs an instance can do this, so a request for another node's instance is passed
on to that node's API, once: a request that was passed on is answered or refused, never passed on
again, so that two nodes with different views can't send it back and forth.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import dataclass

from ozymandias.api.access import Access, Document, Sink, translated
from ozymandias.api.documents import instance_row, instance_rows
from ozymandias.api.ended import Ended, Gathered
from ozymandias.api.explaining import Explaining
from ozymandias.api.following import JobFollower
from ozymandias.api.rights import refusal
from ozymandias.core.pods import pod_id
from ozymandias.model.instance import Assigned, InstanceId, SlotState
from ozymandias.model.job import Container, JobKey
from ozymandias.model.node import Presence
from ozymandias.model.record import replace
from ozymandias.ports import LogLine
from ozymandias.problems import (
    INSTANCE_NOT_FOUND,
    INVALID_REQUEST,
    NODE_UNREACHABLE,
    NOT_RUNNING,
    ProblemError,
)
from ozymandias.store.keys import job_key
from ozymandias.store.tokens import Right

LINES_MAX = 10_000  # of one container, when logs are read and not followed
OUTPUT_BYTES_MAX = 4 * 2**20  # of each of a command's two outputs
PEER_MARGIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsRequest:
    container: str = ""  # "" means all of them
    tail: int | None = None
    follow: bool = False
    previous: bool = False  # what is left of runs that have ended, instead
    run: str = ""  # of several at once (an update), the one that a peer means: version.generation
    is_passed_on: bool = False  # by a peer: not to be passed on again


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    container: str = ""  # "" is fine where there is only one
    command: tuple[str, ...]
    timeout_seconds: float = 60.0
    is_passed_on: bool = False
    right: Right = Right.ADMIN


class Inside:
    def __init__(self, access: Access, explaining: Explaining) -> None:
        self._access = access
        self._explaining = explaining
        self._ended = Ended(access)

    # Commands -----------------------------------------------------------------------------------

    async def exec(self, namespace: str, instance: str, request: ExecRequest) -> Document:
        """Run a command to its end; its output as text, undecodable bytes replaced."""
        assigned = self._find(namespace, instance)
        record = self._access.mirror.snapshot().jobs.get(assigned.job)
        if refused := refusal(request.right, assigned.job, record):
            raise ProblemError(refused)
        if assigned.node != self._access.node:
            return await self._pass_on_exec(assigned, request)
        container = self._one_container(assigned, request.container)
        with translated():
            result = await self._access.runtime.exec(
                pod_id(assigned),
                container.name,
                request.command,
                timeout=request.timeout_seconds,
            )
        return {
            "exit_code": result.exit_code,
            "stdout": result.stdout[:OUTPUT_BYTES_MAX].decode(errors="replace"),
            "stderr": result.stderr[:OUTPUT_BYTES_MAX].decode(errors="replace"),
            "truncated": max(len(result.stdout), len(result.stderr)) > OUTPUT_BYTES_MAX,
        }

    async def _pass_on_exec(self, assigned: Assigned, request: ExecRequest) -> Document:
        presence = self._presence(assigned, request.is_passed_on)
        body = {
            "container": request.container,
            "command": list(request.command),
            "timeout_seconds": request.timeout_seconds,
        }
        timeout = request.timeout_seconds + PEER_MARGIN_SECONDS
        return await self._access.peers.call(
            presence.api, _path(assigned, "exec"), body, timeout=timeout
        )

    # Logs ---------------------------------------------------------------------------------------

    async def instance_logs(
        self, namespace: str, instance: str, request: LogsRequest, sink: Sink
    ) -> None:
        if request.previous:
            job, slot = _job_and_slot(instance)
            known = any(self._all(namespace, instance))
            if not await self._previous(namespace, job, slot, request, sink) and not known:
                raise self._not_found(namespace, instance)
            return
        assigned = self._find(namespace, instance, request.run)
        self._containers(assigned, request.container)
        await self._logs([assigned], request, sink)

    async def job_logs(self, key: JobKey, request: LogsRequest, sink: Sink) -> None:
        """The logs of all instances of a job that are placed somewhere; followed: also later."""
        snapshot = self._access.mirror.snapshot()
        if request.follow:
            await sink.begin()
            await JobFollower(
                self._access.mirror,
                key,
                lambda a, tail: self._read_or_say(a, replace(request, tail=tail), sink),
            ).run(request.tail)
            return
        found = [a for a in snapshot.instances(key) if a.state is not SlotState.WAITING]
        if not found:
            raise ProblemError(
                NOT_RUNNING(
                    f"Job {key} has no instance that runs or has run.",
                    hint=f"`ozy status {key}` shows what it waits for.",
                )
            )
        for assigned in found:
            self._containers(assigned, request.container)
        await self._logs(found, request, sink)

    async def previous_of_job(self, key: JobKey, request: LogsRequest, sink: Sink) -> bool:
        """What is left of all its instances that have ended; False when there is nothing."""
        return await self._previous(key.namespace, key.name, None, request, sink)

    async def _previous(
        self, namespace: str, job: str, slot: int | None, request: LogsRequest, sink: Sink
    ) -> bool:
        runs = await self._ended.runs(namespace, job, slot, is_passed_on=request.is_passed_on)
        chosen = [r for r in runs if request.container in ("", r.get("container", ""))]
        for run in chosen:
            lines = run.get("lines", [])
            first = 0 if request.tail is None else max(0, len(lines) - request.tail)
            await sink.send(run | {"lines": lines[first:]} if first else run)
        return any("problem" not in run for run in chosen)

    async def _logs(self, found: Sequence[Assigned], request: LogsRequest, sink: Sink) -> None:
        """One source: straight through. Several: sorted by time, or as they come when followed."""
        if request.follow:
            await sink.begin()
            await _together(self._read_or_say(a, request, sink) for a in found)
            return
        request = replace(request, tail=min(request.tail or LINES_MAX, LINES_MAX))
        gathered = [Gathered() for _ in found]
        if len(found) == 1:
            await self._read(found[0], request, gathered[0])
        else:
            parts = zip(found, gathered, strict=True)
            await _together(self._read_or_say(a, request, part) for a, part in parts)
        await sink.begin()
        lines = [line for part in gathered for line in part.lines]
        for line in sorted(lines, key=lambda line: float(line.get("time", 0.0))):
            await sink.send(line)

    async def _read_or_say(self, assigned: Assigned, request: LogsRequest, sink: Sink) -> None:
        """One instance that can't be read does not hide the others: its problem is a line."""
        try:
            await self._read(assigned, request, sink)
        except ProblemError as error:
            problem = error.problem.document()
            await sink.send({"instance": _name(assigned), "problem": problem})

    async def _read(self, assigned: Assigned, request: LogsRequest, sink: Sink) -> None:
        if assigned.node != self._access.node:
            presence = self._presence(assigned, request.is_passed_on)
            query = {"container": request.container, "follow": "1" if request.follow else ""}
            query["run"] = f"{assigned.version}.{assigned.generation}"
            if request.tail is not None:
                query["tail"] = str(request.tail)
            path = _path(assigned, "logs")
            await self._access.peers.stream(presence.api, path, query, sink)
            return
        containers = self._containers(assigned, request.container)
        with translated():
            await _together(self._read_container(assigned, c, request, sink) for c in containers)

    async def _read_container(
        self, assigned: Assigned, container: Container, request: LogsRequest, sink: Sink
    ) -> None:
        lines = self._access.runtime.logs(
            pod_id(assigned), container.name, tail=request.tail, follow=request.follow
        )
        try:
            async for line in lines:
                await sink.send(_line(assigned, line))
        finally:
            # A client that went away is noticed in send: the generator is left in the middle, and
            # would hold its connection until the garbage collector finds it.
            if isinstance(lines, AsyncGenerator):
                await lines.aclose()

    # Why ----------------------------------------------------------------------------------------

    async def why(self, namespace: str, instance: str) -> Document:
        """What is known about one instance, in plain words; also of one that has no place."""
        snapshot = self._access.mirror.snapshot()
        rows = instance_rows(snapshot, namespace=namespace)
        lines: list[str] = []
        name, slot = _job_and_slot(instance)
        key = job_key(namespace, name)
        for row in (row for row in rows if row["instance"] == instance):
            where = f"on {row['node']}" if row["node"] else "has no place"
            lines.append(
                f"{InstanceId(key, slot)} {where}: {row['state']}, version {row['version']}."
            )
            if row["reason"]:
                lines.append(f"  {row['reason']}")
        if not lines:
            raise self._not_found(namespace, instance)
        decision: Document | None = None
        found = self._all(namespace, instance)
        for assigned in found:
            status = snapshot.status(assigned)
            for container in status.containers if status else ():
                reason = f": {container.reason}" if container.reason else ""
                lines.append(f"  container {container.name}: {container.state}{reason}")
            if decision is None and assigned.state is not SlotState.STOPPING:
                decision, words = self._explaining.decision_of(assigned)
                lines += words
        if last := await self._ended.last(namespace, name, slot):
            lines.append(f"  {last}")
        lines += self._explaining.events_of(key, instance)
        displaced: Document | None = None
        if all(a.state is SlotState.STOPPING for a in found):
            displaced = self._explaining.displacement_of(InstanceId(key, slot))
        return {"lines": lines, "decision": decision, "displaced": displaced}

    # Finding ------------------------------------------------------------------------------------

    def _find(self, namespace: str, instance: str, run: str = "") -> Assigned:
        """The instance that runs; else the one that is on its way in or out."""
        order = (SlotState.RUNNING, SlotState.STOPPING, SlotState.WAITING)
        wanted = (
            a for a in self._all(namespace, instance) if run in ("", f"{a.version}.{a.generation}")
        )
        found = sorted(wanted, key=lambda a: order.index(a.state))
        if not found:
            raise self._not_found(namespace, instance)
        return found[0]

    def _all(self, namespace: str, instance: str) -> list[Assigned]:
        name, slot = _job_and_slot(instance)
        found = self._access.mirror.snapshot().instances(job_key(namespace, name))
        return [a for a in found if a.slot == slot]

    def _not_found(self, namespace: str, instance: str) -> ProblemError:
        rows = instance_rows(self._access.mirror.snapshot(), namespace=namespace)
        if any(row["instance"] == instance for row in rows):
            name, slot = _job_and_slot(instance)
            typed = InstanceId(job_key(namespace, name), slot)
            return ProblemError(
                NOT_RUNNING(
                    f"{typed} is pending: it runs nowhere yet.",
                    hint=f"`ozy why {typed}` tells what it waits for.",
                )
            )
        return ProblemError(
            INSTANCE_NOT_FOUND(
                f"There is no instance {instance!r} in namespace {namespace!r}.",
                hint="`ozy ps` lists them; an instance is <job>-<slot>, for example web-0.",
                namespace=namespace,
            )
        )

    def _presence(self, assigned: Assigned, is_passed_on: bool) -> Presence:
        name = str(assigned.instance)
        node = self._access.mirror.snapshot().nodes.get(assigned.node)
        if is_passed_on:
            raise ProblemError(
                NODE_UNREACHABLE(f"{name} has moved to {assigned.node}.", hint="Ask again.")
            )
        if node is None or node.presence is None:
            raise ProblemError(
                NODE_UNREACHABLE(
                    f"{name} is on {assigned.node}, which does not answer.",
                    hint="It is moved elsewhere once the node's lease has run out.",
                    node=assigned.node,
                )
            )
        return node.presence

    def _containers(self, assigned: Assigned, wanted: str) -> tuple[Container, ...]:
        record = self._access.mirror.snapshot().jobs.get(assigned.job)
        version = record.versions.get(assigned.version) if record else None
        containers = version.job.containers if version else ()
        chosen = tuple(c for c in containers if not wanted or c.name == wanted)
        if not chosen:
            raise ProblemError(
                INVALID_REQUEST(
                    f"{assigned.instance} has no container {wanted!r}.",
                    hint=f"It has {_listed(containers)}.",
                )
            )
        return chosen

    def _one_container(self, assigned: Assigned, wanted: str) -> Container:
        containers = self._containers(assigned, wanted)
        if len(containers) > 1:
            raise ProblemError(
                INVALID_REQUEST(
                    f"{assigned.instance} has several containers.",
                    hint=f"Choose with -c: {_listed(containers)}.",
                )
            )
        row = instance_row(self._access.mirror.snapshot(), assigned)
        if row["state"] in ("waiting", "pulling", "failed", "completed"):
            raise ProblemError(
                NOT_RUNNING(f"{assigned.instance} is {row['state']}: {row['reason']}")
            )
        return containers[0]


async def _together(parts: Iterable[Coroutine[None, None, None]]) -> None:
    """All at once; the first failure ends the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


def _line(assigned: Assigned, line: LogLine) -> Document:
    return {
        "instance": _name(assigned),
        "container": line.container,
        "time": line.time,
        "stream": line.stream,
        "text": line.text,
    }


def _job_and_slot(instance: str) -> tuple[str, int]:
    """The parts of a name; slot -1, which nobody has, when it is not an instance's name."""
    name, _, slot = instance.rpartition("-")
    is_slot = bool(name) and slot.isascii() and slot.isdecimal() and len(slot) <= 9
    return (name, int(slot)) if is_slot else (instance, -1)


def _name(assigned: Assigned) -> str:
    return f"{assigned.job.name}-{assigned.slot}"


def _path(assigned: Assigned, what: str) -> str:
    return f"/v1/instances/{assigned.job.namespace}/{_name(assigned)}/{what}"


def _listed(containers: Sequence[Container]) -> str:
    return ", ".join(c.name for c in containers) or "none that is known"
