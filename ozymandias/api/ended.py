"""What is left of instances that have ended: asked of every node, newest first.

Each node keeps the last lines of what ended on it, and nobody knows beforehand which nodes an
instance has been on. So all are asked at once, and one that does not answer does not hide the
others: it is named, with its problem.
"""

import asyncio

from ozymandias.api.access import Access, Document
from ozymandias.model.instance import InstanceId
from ozymandias.model.node import NodeName, Presence
from ozymandias.model.units import format_duration
from ozymandias.ports import EndedRun
from ozymandias.problems import NODE_UNREACHABLE, ProblemError
from ozymandias.store.keys import job_key

PEER_SECONDS = 5.0


class Ended:
    def __init__(self, access: Access) -> None:
        self._access = access

    async def runs(
        self, namespace: str, job: str, slot: int | None, *, is_passed_on: bool = False
    ) -> list[Document]:
        """Runs as documents, newest first, and then a document per node that did not answer."""
        found: list[list[Document]] = [await self._own(namespace, job, slot)]
        if not is_passed_on:
            name = job if slot is None else f"{job}-{slot}"
            path = f"/v1/{'jobs' if slot is None else 'instances'}/{namespace}/{name}/logs"
            nodes = self._access.mirror.snapshot().nodes
            others = [(n, node.presence) for n, node in sorted(nodes.items())]
            asked = (self._of_peer(n, p, path) for n, p in others if n != self._access.node)
            found += await asyncio.gather(*asked)
        every = [run for part in found for run in part]
        return sorted(every, key=lambda run: -float(run.get("ended_at", 0.0)))

    async def last(self, namespace: str, job: str, slot: int) -> str:
        """How the instance last ended, in one line; "" when nobody remembers."""
        newest = next(iter(await self.runs(namespace, job, slot)), None)
        if newest is None or "problem" in newest:
            return ""
        ago = format_duration(max(1.0, round(self._access.clock.wall() - newest["ended_at"])))
        typed = InstanceId(job_key(namespace, job), slot)
        return (
            f"last end: container {newest['container']} on {newest['node']}, {ago} ago:"
            f" {newest['reason']}; `ozy logs --previous {typed}` shows its last lines"
        )

    async def _own(self, namespace: str, job: str, slot: int | None) -> list[Document]:
        return [_document(run) for run in await self._access.ended.find(namespace, job, slot)]

    async def _of_peer(
        self, node: NodeName, presence: Presence | None, path: str
    ) -> list[Document]:
        gathered = Gathered()
        try:
            if presence is None:
                raise ProblemError(NODE_UNREACHABLE(f"{node} is not there.", node=node))
            async with asyncio.timeout(PEER_SECONDS):
                await self._access.peers.stream(presence.api, path, {"previous": "1"}, gathered)
        except TimeoutError:
            problem = NODE_UNREACHABLE(f"{node} did not answer in time.", node=node)
            return [{"node": node, "problem": problem.document()}]
        except ProblemError as error:
            if error.problem.kind.status == 404:
                return []  # it has never heard of it
            return [{"node": node, "problem": error.problem.document()}]
        return gathered.lines


class Gathered:
    """A sink that keeps everything, so that several sources can be sorted."""

    def __init__(self) -> None:
        self.lines: list[Document] = []

    async def begin(self) -> None: ...

    async def send(self, document: Document) -> None:
        self.lines.append(document)


def _document(run: EndedRun) -> Document:
    pod = run.pod
    return {
        "instance": f"{pod.job}-{pod.slot}",
        "namespace": pod.namespace,
        "container": run.container,
        "node": pod.node,
        "version": pod.version,
        "started_at": run.started_at or None,
        "ended_at": run.ended_at,
        "exit_code": run.exit_code,
        "oom_killed": run.oom_killed,
        "reason": run.reason,
        "lines": [{"time": li.time, "stream": li.stream, "text": li.text} for li in run.lines],
    }
