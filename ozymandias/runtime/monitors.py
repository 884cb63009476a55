"""The monitors that podman leaves beside a pod, some seconds for every command run in it.

They wait in case somebody asks how their command ended, and sit in the pod's control group, which
podman can't remove meanwhile: it tries for seconds. When the pod goes nobody will ask any more.
"""

import os
import signal
from pathlib import Path

PROC = Path("/proc")
PROGRAM = "conmon"
OF_A_COMMAND = b"--exec-attach"  # the monitors of containers have it not


def end(pod: str) -> None:
    """End those of this pod's commands; its containers are named `pod.container`."""
    for entry in os.scandir(PROC):
        if entry.name.isdigit() and _watches_a_command(Path(entry.path), f"{pod}.".encode()):
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                pass


def _watches_a_command(process: Path, prefix: bytes) -> bool:
    try:
        if (process / "comm").read_text().strip() != PROGRAM:
            return False
        arguments = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended meanwhile
        return False
    if OF_A_COMMAND not in arguments or b"-n" not in arguments:
        return False
    return arguments[arguments.index(b"-n") + 1].startswith(prefix)
