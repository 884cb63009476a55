"""When a pod really ran, by its own account: lines of the machine's uptime in a file.

All hosts of a test share one machine and so one clock (CLOCK_BOOTTIME): what they wrote can be
compared to the hundredth of a second. Every process writes a file of its own, named at its start,
so that a restart is a run of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

VOLUME = {"type": "shared", "name": "times", "path": "/times", "space": "16M"}
RECORDER = """\
file=/times/$(cat /proc/sys/kernel/random/uuid).times
while :; do cat /proc/uptime; usleep 20000; done >$file
"""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Run:
    """One process, from its first line to its last."""

    began: float
    ended: float
    lines: int
    name: str


def runs(files: Iterable[tuple[str, str]]) -> list[Run]:
    """Of the name and text of each file, in order of time; a line that was cut short is left."""
    found = []
    for name, text in files:
        whole = text[: text.rfind("\n") + 1].splitlines()
        times = [float(line.split()[0]) for line in whole]
        if times:
            found.append(Run(began=times[0], ended=times[-1], lines=len(times), name=name))
    return sorted(found)


def overlaps(found: list[Run]) -> list[tuple[Run, Run]]:
    """Runs that were going on at the same time."""
    return [
        (one, other)
        for number, one in enumerate(found)
        for other in found[number + 1 :]
        if other.began <= one.ended
    ]
