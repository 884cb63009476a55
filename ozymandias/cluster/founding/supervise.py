"""The small supervisor of a host without systemd: `python -m …cluster.founding.supervise` boots it.

What systemd would do for the host's services: it starts those that were started before (a boot),
keeps them running, and takes requests on its socket: `{"do": "start", "name": "etcd"}`, `restart`,
`stop`, `status`, `down`. Programs are read from the host's record each time one is started, so a
restart takes new settings in. SIGTERM ends all.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from ozymandias.cluster import state
from ozymandias.cluster.founding import record as records
from ozymandias.cluster.founding.record import Places
from ozymandias.cluster.founding.services import services
from ozymandias.cluster.programs import OOM_SCORES, Program
from ozymandias.cluster.supervision import Child, Supervision, take_over


class Supervisor(Supervision):
    def __init__(self, places: Places) -> None:
        self._places = places
        super().__init__(
            [_unread(name) for name in self._remembered()],
            socket=places.supervisor_socket,
            logs=places.logs,
            records=places.run,
        )

    def program(self, child: Child) -> Program:
        """By the record as it is now."""
        return self._program(child.program.name)

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "start":
                child = self._child(request["name"])
                child.wanted = True
                child.wake.set()
            case "restart":
                child = self._child(request["name"])
                child.wanted, child.is_restarting = True, not child.ended.is_set()
                await child.end()
            case "stop":
                child = self._child(request["name"])
                child.wanted = False
                await child.end()
            case _:
                return await super().answer(request)
        self._remember()
        return child.document()

    def _program(self, name: str) -> Program:
        """KeyError: the host has no such service."""
        record = records.load(self._places)
        found = {s.name: s for s in services(record, self._places)} if record else {}
        service = found[name]
        return Program(
            name=name,
            command=service.command,
            environment=service.environment,
            grace_seconds=service.grace_seconds,
            start_seconds_max=service.start_seconds_max,
            oom_score_adj=OOM_SCORES.get(name, 0),
        )

    def _child(self, name: str) -> Child:
        if name not in self.children:
            self.keep(Child(program=self._program(name), wanted=False))
        return self.children[name]

    # What is wanted, across a boot --------------------------------------------------------------

    @property
    def _wanted_file(self) -> Path:
        return self._places.state / "supervised.json"

    def _remembered(self) -> list[str]:
        try:
            return [str(name) for name in json.loads(self._wanted_file.read_text())["wanted"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _remember(self) -> None:
        wanted = [name for name, child in self.children.items() if child.wanted]
        state.write_json(self._wanted_file, {"wanted": wanted})


def _unread(name: str) -> Child:
    """The record may be damaged at a boot: its program is looked up when it is started."""
    return Child(program=Program(name=name, command=(), environment={}))


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs this host's programs, without systemd.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the host's root directory")
    places = Places(root=parser.parse_args().root.absolute())
    places.run.mkdir(parents=True, exist_ok=True, mode=0o755)
    places.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    take_over(places.run, grace_seconds=5.0)
    asyncio.run(Supervisor(places).run())


if __name__ == "__main__":
    main()
