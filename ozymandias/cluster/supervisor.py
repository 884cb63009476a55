"""The process that keeps a local cluster's programs running: `ozy up` starts it, detached.

It starts every program at once (they wait for each other) and answers requests on
`supervisor.sock`: `{"do": "status"}`, `{"do": "kill", "node": "n2"}`,
`{"do": "start", "node": "n2"}`, `{"do": "down"}`. When it dies, the next `ozy up` takes over.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from ozymandias.cluster import programs, state
from ozymandias.cluster.programs import Program
from ozymandias.cluster.remains import kill_pods
from ozymandias.cluster.state import LocalCluster
from ozymandias.cluster.supervision import KILL_SECONDS_MAX, Child, Supervision, say, take_over
from ozymandias.model.units import counted


class Supervisor(Supervision):
    def __init__(self, cluster: LocalCluster, wanted: tuple[Program, ...]) -> None:
        self.cluster = cluster
        killed = {node.name for node in cluster.nodes if node.killed}
        super().__init__(
            [Child(program=p, wanted=p.name not in killed) for p in wanted],
            socket=cluster.supervisor_socket,
            logs=cluster.logs,
            records=cluster.state_dir,
        )

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "status":
                return {"cluster": self.cluster.id, **await super().answer(request)}
            case "kill":
                return await self._kill(self._node(request["node"]))
            case "start":
                return self._start(self._node(request["node"]))
            case _:
                return await super().answer(request)

    def _node(self, name: str) -> Child:
        child = self.children[name]
        if not child.program.is_node:
            raise KeyError(name)
        return child

    async def _kill(self, child: Child) -> dict[str, Any]:
        """As a power cut would: the daemon first, so that it can't tell anybody, then its pods."""
        name = child.program.name
        was_running = child.wanted
        child.wanted = False
        child.wake.set()
        await child.signal(signal.SIGKILL, KILL_SECONDS_MAX)
        self._remember(name, killed=True)
        pods = await asyncio.to_thread(kill_pods, self.cluster, name)
        say(f"{name} killed on request, with {counted(pods, 'pod')}")
        return {"killed": name, "was_running": was_running, "pods": pods}

    def _start(self, child: Child) -> dict[str, Any]:
        was_running = child.wanted
        child.wanted = True
        child.failures = 0
        child.wake.set()
        self._remember(child.program.name, killed=False)
        return {"started": child.program.name, "was_running": was_running}

    def _remember(self, name: str, *, killed: bool) -> None:
        """Across an end of the supervisor. `up` may have written meanwhile: change only this."""
        fresh = state.load(self.cluster.state_dir) or self.cluster
        self.cluster = fresh.with_killed(name, killed)
        self.cluster.save()


def main(state_dir: Path) -> None:
    cluster = state.load(state_dir)
    if cluster is None:
        sys.exit(f"no cluster in {state_dir}")
    take_over(state_dir, grace_seconds=3.0)
    cluster.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    asyncio.run(Supervisor(cluster, programs.programs(cluster)).run())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
