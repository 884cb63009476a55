"""Waiting for a change to take effect, and showing how it goes.

On a terminal a block of lines is redrawn in place; elsewhere a line is printed per change, so that
a log stays readable. The node is asked once per change of the cluster, not by the clock.

A deploy has failed when an instance of the wanted version has `failed`, or is in `backoff` after
three restarts or three different reasons seen (an image that can't be had is never restarted).
The cluster goes on trying in the latter case; waiting for it would be of no use.
"""

import sys
import time
from collections import defaultdict
from typing import Any, NoReturn

from ozymandias.cli.client import Client, Document
from ozymandias.cli.main import Interrupted
from ozymandias.cli.render import GREEN, clean, is_plain, paint, table

RESTARTS_MAX = 3
PAUSE_SECONDS = 0.05  # between two questions, however busy the cluster is
LIVE_WAIT_SECONDS = 0.5  # a live display also shows the time pass
PLAIN_WAIT_SECONDS = 10.0
RETRY_SECONDS = 0.5
ROWS_SHOWN_MAX = 20


class Watch:
    """One wait for one job."""

    def __init__(
        self, client: Client, namespace: str, name: str, *, timeout: float, quiet: bool
    ) -> None:
        self._client = client
        self._path = ("jobs", namespace, name)
        self._name = name if namespace == "default" else f"{namespace}/{name}"
        self._started = time.monotonic()
        self._timeout = timeout
        self._display = _display(quiet)
        self._reasons: dict[str, set[str]] = defaultdict(set)

    def until_up(self, change: Document) -> Document:
        """Wait until all instances are as the change wants them. The job's status then."""
        revision = int(change["revision"]) - 1
        try:
            while True:
                status: Document | None = self._ask(revision)
                if status is None or status["uid"] != change["uid"]:
                    self._changed("stopped")
                if status["version"] > change["version"]:
                    self._changed(f"changed to version {status['version']}")
                self._display.draw(self._headline(status), status["instances"])
                if _is_up(status):
                    self._display.close()
                    return status
                self._check_failed(status)
                self._check_time(status)
                revision = status["revision"]
        except KeyboardInterrupt:
            self._display.close()
            raise Interrupted(
                f"Not waiting any more; {self._name} goes on. `ozy status {self._name}` shows it."
            ) from None

    def until_gone(self, change: Document) -> None:
        """Wait until the last instance and the job itself are gone."""
        revision = int(change["revision"]) - 1
        try:
            while (status := self._ask(revision)) is not None and status["uid"] == change["uid"]:
                count = len(status["instances"])
                self._display.draw(f"{self._name}: {count} stopping", status["instances"])
                self._check_time(status)
                revision = status["revision"]
            self._display.close()
        except KeyboardInterrupt:
            self._display.close()
            raise Interrupted(
                f"Not waiting any more; {self._name} is being stopped regardless."
            ) from None

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._started

    def _ask(self, after: int) -> Any:
        """The job's status after a revision; None when there is no such job.

        A cluster that does not answer for a while is waited for: it may be just that one node.
        """
        from ozymandias.problems import ProblemError

        time.sleep(PAUSE_SECONDS)
        while True:
            wait = min(self._display.wait_seconds, max(0.1, self._timeout - self.elapsed_seconds))
            try:
                return self._client.get(*self._path, after=after, wait=f"{wait:.2f}")
            except ProblemError as error:
                if error.problem.kind.slug == "job-not-found":
                    return None
                if error.problem.kind.status < 502 or self.elapsed_seconds > self._timeout:
                    raise
                self._display.say(f"still waiting: {error.problem.kind.title.lower()}")
                time.sleep(RETRY_SECONDS)

    def _headline(self, status: Document) -> str:
        ready = f"{status['up_to_date']} of {status['wanted']} healthy"
        return f"{self._name} version {status['version']}: {ready}"

    def _changed(self, how: str) -> NoReturn:
        from ozymandias.problems import CHANGED_MEANWHILE, ProblemError

        self._display.close()
        raise ProblemError(CHANGED_MEANWHILE(f"{self._name} was {how} by somebody else meanwhile."))

    def _check_failed(self, status: Document) -> None:
        bad = [row for row in status["instances"] if self._has_failed(row, status["version"])]
        if not bad:
            return
        from ozymandias.problems import DEPLOY_FAILED, ProblemError

        self._display.close()
        first = bad[0]
        look = f"ozy {'logs' if first['restarts'] else 'why'} {first['instance']}"
        said = "; ".join(f"{row['instance']} on {row['node']}: {row['reason']}" for row in bad[:3])
        raise ProblemError(
            DEPLOY_FAILED(
                f"{self._name} version {status['version']}: {said}",
                hint=f"`{look}` tells more; `ozy stop {self._name}` removes the job.",
                job=status["job"],
                namespace=status["namespace"],
                version=status["version"],
                instances=bad,
            )
        )

    def _has_failed(self, row: Document, version: int) -> bool:
        if row["version"] != version:
            return False
        if row["state"] == "backoff":
            seen = self._reasons[row["instance"]]
            seen.add(row["reason"])
            return bool(row["restarts"] >= RESTARTS_MAX or len(seen) >= RESTARTS_MAX)
        return bool(row["state"] == "failed")

    def _check_time(self, status: Document) -> None:
        if self.elapsed_seconds < self._timeout:
            return
        from ozymandias.problems import DEPLOY_TIMEOUT, ProblemError

        self._display.close()
        waiting = [row for row in status["instances"] if not row["healthy"]]
        said = "; ".join(
            f"{row['instance']} is {row['state']}" + (f": {row['reason']}" if row["reason"] else "")
            for row in waiting[:3]
        )
        raise ProblemError(
            DEPLOY_TIMEOUT(
                f"Not done after {self._timeout:g} s. {said}".rstrip(),
                hint=f"It goes on; `ozy status {self._name}` shows how far it is.",
                job=status["job"],
                namespace=status["namespace"],
            )
        )


def _is_up(status: Document) -> bool:
    live = [row for row in status["instances"] if row["state"] != "stopping"]
    return bool(status["up_to_date"] == status["wanted"] == len(live))


# Displays -----------------------------------------------------------------------------------------


class Silent:
    """For programs: only the final document counts."""

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
        for row in rows:
            key = (row["instance"], row["version"])
            text = _words(row)
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
        cells = [
            (row["instance"], row["node"], row["state"], f"v{row['version']}", row["reason"])
            for row in rows[:ROWS_SHOWN_MAX]
        ]
        header = ("INSTANCE", "NODE", "STATE", "VERSION", "REASON")
        lines = [f"{headline}  {seconds}"]
        if cells:
            lines += table(header, cells, indent="  ", state=2)
        if len(rows) > ROWS_SHOWN_MAX:
            lines.append(f"  and {len(rows) - ROWS_SHOWN_MAX} more")
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
        body = "".join(f"\x1b[2K{line}\n" for line in lines)
        sys.stdout.write(f"{up}\r{body}\x1b[J")
        sys.stdout.flush()
        self._drawn = lines


def _display(quiet: bool) -> Silent:
    if quiet:
        return Silent()
    return Lines() if is_plain() else Live()


def _words(row: Document) -> str:
    where = f" on {row['node']}" if row["node"] else ""
    reason = f": {clean(row['reason'])}" if row["reason"] else ""
    return f"{row['instance']}{where}: {row['state']}{reason}"


def done(text: str) -> None:
    """The last line of a wait that went well."""
    print(paint("✔ ", GREEN) + text if not is_plain() else text)
