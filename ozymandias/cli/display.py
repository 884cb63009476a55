"""How a wait looks: a block redrawn in place on a terminal, elsewhere a line per change.

A block never is higher than the terminal nor wider: cursor movements could not undo what has
scrolled away. What a log file gets is only lines that say something new.
"""

import os
import sys
import time

from ozymandias.cli.client import Document
from ozymandias.cli.render import GREEN, clean, is_terminal, named, paint, table

LIVE_WAIT_SECONDS = 0.5  # a live display also shows the time pass
PLAIN_WAIT_SECONDS = 10.0
ROWS_SHOWN_MAX = 40
OTHER_ROWS = 5  # of the block and around it, beside those of instances

_WRAP_OFF, _WRAP_ON, _ERASE_LINE, _ERASE_BELOW = "\x1b[?7l", "\x1b[?7h", "\x1b[2K", "\x1b[J"
# What deserves a row when there are too few: trouble before what is on its way before all is well.
_URGENCY = {"failed": 0, "lost": 0, "backoff": 0, "unhealthy": 0, "healthy": 2, "completed": 2}


class Silent:
    """For programs: only documents count."""

    wait_seconds = PLAIN_WAIT_SECONDS

    def draw(self, headline: str, rows: list[Document]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class Lines(Silent):
    """A line per change of an instance."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, int], str] = {}
        self._said = ""

    def draw(self, headline: str, rows: list[Document]) -> None:
        there = {(named(row), row["version"]): _words(row) for row in rows}
        for (instance, version), _ in sorted(self._shown.items() - there.items()):
            if (instance, version) not in there:
                del self._shown[instance, version]
                print(f"{instance} of version {version}: gone", flush=True)
        for key, text in there.items():
            if self._shown.get(key) != text:
                self._shown[key] = text
                print(text, flush=True)

    def say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            print(text, flush=True)


class Live(Silent):
    """A block that is drawn over itself."""

    wait_seconds = LIVE_WAIT_SECONDS

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._drawn: list[str] = []
        self._note = ""

    def draw(self, headline: str, rows: list[Document]) -> None:
        seconds = f"{time.monotonic() - self._started:.0f}s"
        most = min(ROWS_SHOWN_MAX, max(1, _terminal_rows() - OTHER_ROWS))
        chosen = rows if len(rows) <= most else sorted(rows, key=_urgency)[:most]
        cells = [
            (named(row), row["node"], row["state"], str(row["version"]), row["reason"])
            for row in chosen
        ]
        header = ("INSTANCE", "NODE", "STATE", "VERSION", "REASON")
        lines = [f"{headline}  {seconds}"]
        if cells:
            lines += table(header, cells, indent="  ", state=2, is_cut=True)
        if len(rows) > len(chosen):
            lines.append(f"  and {len(rows) - len(chosen)} more")
        if self._note:
            lines.append(self._note)
        self._note = ""
        self._put(lines)

    def say(self, text: str) -> None:
        self._note = f"  {text}"

    def _put(self, lines: list[str]) -> None:
        """Over the block drawn before; nothing is written when nothing is different."""
        if lines == self._drawn:
            return
        up = f"\x1b[{len(self._drawn)}A" if self._drawn else ""
        body = "".join(f"{_ERASE_LINE}{line}\n" for line in lines)
        sys.stdout.write(f"{up}\r{_WRAP_OFF}{body}{_WRAP_ON}{_ERASE_BELOW}")
        sys.stdout.flush()
        self._drawn = lines


def display(quiet: bool) -> Silent:
    if quiet:
        return Silent()
    return Live() if is_terminal() else Lines()


def done(text: str) -> None:
    """The last line of a wait that went well."""
    print(paint("✔ ", GREEN) + text if is_terminal() else text)


def _urgency(row: Document) -> int:
    return _URGENCY.get(row["state"], 1)


def _terminal_rows() -> int:
    try:
        rows = os.get_terminal_size(sys.stdout.fileno()).lines
    except (OSError, ValueError):
        rows = 0
    return rows or ROWS_SHOWN_MAX + OTHER_ROWS  # a serial line does not know how many it has


def _words(row: Document) -> str:
    where = f" on {row['node']}" if row["node"] else ""
    reason = f": {clean(row['reason'])}" if row["reason"] else ""
    return f"{named(row)}{where}: {row['state']}{reason}"
