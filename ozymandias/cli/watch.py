"""Waiting for a change to take effect, and showing how it goes; or just watching a job.

The node is asked once per change of the cluster, not by the clock. How it looks is
`cli/display.py`'s work.

A deploy has failed when an instance of the wanted version has `failed`, or is in `backoff` after
three restarts or three different reasons seen (an image that can't be had is never restarted).
The cluster goes on trying in the latter case; waiting for it would be of no use.
"""

import json
import time
from collections import defaultdict
from typing import Any, NoReturn

from ozymandias.cli.client import Client, Document
from ozymandias.cli.display import display
from ozymandias.cli.main import Interrupted
from ozymandias.cli.render import named

RESTARTS_MAX = 3
PAUSE_SECONDS = 0.05  # between two questions, however busy the cluster is
RETRY_SECONDS = 0.5


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
        self._is_quiet = quiet
        self._display = display(quiet)
        self._reasons: dict[str, set[str]] = defaultdict(set)

    def until_up(self, change: Document) -> Document:
        """Wait until all instances are as the change wants them, or a freeze holds them back.

        The job's status then.
        """
        revision = int(change["revision"]) - 1
        try:
            while True:
                status: Document | None = self._ask(revision)
                if status is None or status["uid"] != change["uid"]:
                    self._changed("stopped")
                if status["version"] > change["version"]:
                    self._changed(f"changed to version {status['version']}")
                self._display.draw(self._headline(status), status["instances"])
                if _is_up(status) or status["frozen"]:
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

    def until_interrupted(self) -> None:
        """Show the job as it changes; for programs a document per change, on a line of its own."""
        try:
            self._watch()
        except KeyboardInterrupt:
            raise Interrupted("") from None

    def _watch(self) -> None:
        revision, shown, status = 0, "", None
        while (found := self._ask(revision)) is not None:
            status, revision = found, found["revision"]
            document = json.dumps(status | {"revision": 0})
            if self._is_quiet and document != shown:
                print(json.dumps(status, ensure_ascii=False), flush=True)
            shown = document
            pending = f", {status['pending']} pending" if status["pending"] else ""
            state = f"{status['state']}, {status['healthy']} of {status['wanted']} healthy{pending}"
            self._display.draw(
                f"{self._name} version {status['version']}: {state}", status["instances"]
            )
        self._display.close()
        if status is None:
            self._client.get(*self._path)  # says that there is no such job, and which there are
        elif not self._is_quiet:
            print(f"{self._name} is gone.")

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
        look = f"ozy {'logs' if first['restarts'] else 'why'} {named(first)}"
        said = "; ".join(f"{named(row)} on {row['node']}: {row['reason']}" for row in bad[:3])
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
            f"{named(row)} is {row['state']}" + (f": {row['reason']}" if row["reason"] else "")
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
