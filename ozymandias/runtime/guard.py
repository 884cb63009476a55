"""What the daemon and its guard share: a small directory, and a socket to ask whether one is there.

    <run_dir>/guard/<node>/deadline   on CLOCK_BOOTTIME: until when this node's lease surely lives
    <run_dir>/guard/<node>/pods/<pod> the control group of a pod that must not outlive the deadline
    <run_dir>/guard/socket            answers a node and pod's name with "covered" or why not

The daemon writes, the guard (`daemon/guard.py`) reads: so the guard knows all it needs when the
daemon is dead, hangs, or has just been replaced. `PodGuard` is the daemon's side.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ozymandias.model.pod import PodId
from ozymandias.ports import RuntimeFailed

ANSWER_SECONDS = 2.0
COVERED = "covered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What one node's directory says: until when, and what must have ended by then."""

    deadline: float  # 0.0: it can't be read, so nothing may run
    pods: dict[str, str]  # name -> control group


class GuardFiles:
    """The directory of all nodes of this machine; usually there is one."""

    def __init__(self, run_dir: Path) -> None:
        self._top = run_dir / "guard"
        self.socket = self._top / "socket"

    def prepare(self) -> None:
        self._top.mkdir(mode=0o700, parents=True, exist_ok=True)

    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted(p.name for p in self._top.iterdir() if p.is_dir()))

    def read(self, node: str) -> Watch:
        place = self._top / node
        try:
            deadline = float((place / "deadline").read_text())
        except (OSError, ValueError):
            deadline = 0.0
        pods: dict[str, str] = {}
        with contextlib.suppress(OSError):
            for file in sorted((place / "pods").iterdir()):
                with contextlib.suppress(OSError):
                    if not file.name.endswith(".new"):
                        pods[file.name] = file.read_text().strip()
        return Watch(deadline=deadline, pods=pods)

    def has_pods(self, node: str) -> bool:
        try:
            return any((self._top / node / "pods").iterdir())
        except OSError:
            return False

    def write_deadline(self, node: str, deadline: float) -> None:
        (self._top / node).mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(self._top / node / "deadline", f"{deadline:.3f}\n")

    def add(self, node: str, pod: str, group: str) -> None:
        pods = self._top / node / "pods"
        pods.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(pods / pod, group + "\n")

    def remove(self, node: str, pod: str) -> None:
        (self._top / node / "pods" / pod).unlink(missing_ok=True)


def _replace(file: Path, text: str) -> None:
    """Whole or not at all, for whoever reads it at any moment."""
    new = file.with_name(file.name + ".new")
    new.write_text(text)
    new.replace(file)


class NoGuard:
    """Where no guard was set up: what is exclusive is not started."""

    def extend(self, deadline: float) -> None:
        pass

    async def cover(self, pod: PodId) -> None:
        raise RuntimeFailed("it must not outlive its node's lease, and this node has no guard")

    async def forget(self, pod: PodId) -> None:
        pass


class PodGuard:
    """The Guard port over these files. ``group_of`` asks the runtime for a pod's control group."""

    def __init__(
        self, run_dir: Path, node: str, group_of: Callable[[PodId], Awaitable[str]]
    ) -> None:
        self._files = GuardFiles(run_dir)
        self._node = node
        self._group_of = group_of
        self._deadline = 0.0

    def extend(self, deadline: float) -> None:
        self._deadline = deadline
        # A file that can't be written lets the deadline pass: pods end too early, never too late.
        with contextlib.suppress(OSError):
            if self._files.has_pods(self._node):  # most nodes have none, and write nothing
                self._files.write_deadline(self._node, deadline)

    async def cover(self, pod: PodId) -> None:
        group = await self._group_of(pod)
        try:
            self._files.write_deadline(self._node, self._deadline)
            self._files.add(self._node, pod.name, group)
            answer = await asyncio.wait_for(self._ask(pod), ANSWER_SECONDS)
        except (OSError, TimeoutError, EOFError) as error:
            raise RuntimeFailed(
                "it must not outlive its node's lease, and there is no guard on this node"
                f" to see to that ({str(error) or type(error).__name__})"
            ) from error
        if answer != COVERED:
            raise RuntimeFailed(f"it must not outlive its node's lease: {answer}")

    async def _ask(self, pod: PodId) -> str:
        reader, writer = await asyncio.open_unix_connection(self._files.socket)
        try:
            writer.write(f"{self._node} {pod.name}\n".encode())
            return (await reader.readuntil()).decode().strip()
        finally:
            writer.close()

    async def forget(self, pod: PodId) -> None:
        with contextlib.suppress(OSError):
            self._files.remove(self._node, pod.name)
