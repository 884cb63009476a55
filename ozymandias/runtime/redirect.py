"""`"80:3000"`: port 80 of the pod's address reaches port 3000, by nft in the pod's own network.

The rules live in the pod's network namespace and die with it, so they are made anew whenever the
infra container was started. All are replaced in one nft transaction: doing it again is harmless.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ozymandias.model.job import Port
from ozymandias.ports import RuntimeFailed
from ozymandias.runtime.commands import run

TABLE = "inet ozymandias"


def ruleset(ports: Sequence[Port]) -> str:
    """What comes from outside, and what the pod's own containers send to the pod itself."""
    rules = [
        f"fib daddr type local {p.protocol} dport {p.pod} redirect to :{p.container}" for p in ports
    ]
    lines = [f"add table {TABLE}", f"delete table {TABLE}", f"table {TABLE} {{"]
    for hook in ("prerouting", "output"):
        lines += [f"chain {hook} {{", f"type nat hook {hook} priority -100;", *rules, "}"]
    return "\n".join([*lines, "}", ""])


async def redirect(pid: int, ports: Sequence[Port], *, deadline_seconds: float) -> None:
    """Set the redirects in the network namespace of a process; never in the host's own."""
    try:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeFailed(f"the pod's network is gone: {error}") from error
    try:
        if os.fstat(namespace).st_ino == Path("/proc/self/ns/net").stat().st_ino:
            raise RuntimeFailed("the pod has no network of its own; its ports can't be redirected")
        await run(
            ["nsenter", f"--net=/proc/self/fd/{namespace}", "nft", "-f", "-"],
            stdin=ruleset(ports).encode(),
            pass_fds=[namespace],
            deadline_seconds=deadline_seconds,
        )
    finally:
        os.close(namespace)
