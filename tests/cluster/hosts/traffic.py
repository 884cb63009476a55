"""Clients of the ingresses, beside the hosts: they ask all the while and keep what went wrong.

Each ingress is asked by two clients. One keeps its connection, the other makes a new one for every
request. An answer counts for the time at which its request began.
"""

import http.client
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Self

from tests.cluster.hosts.cluster import HostCluster
from tests.cluster.hosts.programs import INGRESS_PORT
from tests.cluster.kit import until

PAUSE_SECONDS = 0.02
ANSWER_SECONDS_MAX = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    began: float  # time.monotonic()
    seconds: float
    ingress: str
    text: str


class Traffic:
    """`with Traffic(cluster, "web.default.test") as traffic:` asks the ingress of every host."""

    def __init__(
        self,
        cluster: HostCluster,
        host: str,
        *,
        at: tuple[str, ...] = (),
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._pause_seconds = pause_seconds
        self._cluster = cluster
        self._host = host
        self._names = at or tuple(h.name for h in cluster.hosts)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(name, keep))
            for name in self._names
            for keep in (True, False)
        ]
        self.failures: list[Failure] = []
        self.answers: Counter[str] = Counter()  # by ingress
        self.instances: Counter[str] = Counter()
        self.slowest = 0.0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        until(lambda: all(self.answers[name] > 2 for name in self._names), say="answers")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=2 * ANSWER_SECONDS_MAX)

    def more(self, count: int = 20, seconds: float = 40.0) -> None:
        """Wait for so many more answers of every ingress that is asked."""
        wanted = {name: self.answers[name] + count for name in self._names}
        until(
            lambda: all(self.answers[name] >= n for name, n in wanted.items()),
            seconds,
            say=f"{count} more answers",
        )

    def failed(self, *, since: float = 0.0) -> list[Failure]:
        return [failure for failure in self.failures if failure.began >= since]

    def summary(self) -> str:
        count = sum(self.answers.values())
        return f"{count} requests, {len(self.failures)} failed, slowest {self.slowest:.2f} s"

    def _ask(self, name: str, keep: bool) -> None:
        address = self._cluster.hosts[name].address
        client = self._cluster.hosts.client
        connection: http.client.HTTPConnection | None = None
        while not self._stop.wait(self._pause_seconds):
            began, text = time.monotonic(), ""
            try:
                connection = connection or client.open_http(
                    address, INGRESS_PORT, timeout=ANSWER_SECONDS_MAX
                )
                connection.request("GET", "/", headers={"Host": self._host})
                response = connection.getresponse()
                text = response.read().decode()
                failure = "" if response.status == 200 else f"{response.status}: {text}"
            except (OSError, http.client.HTTPException) as error:
                failure = repr(error)
            if connection and (failure or not keep):
                connection.close()
                connection = None
            self._note(name, began, failure, text)
        if connection:
            connection.close()

    def _note(self, name: str, began: float, failure: str, text: str) -> None:
        seconds = time.monotonic() - began
        with self._lock:
            self.answers[name] += 1
            self.slowest = max(self.slowest, seconds)
            if failure:
                found = Failure(began=began, seconds=seconds, ingress=name, text=failure)
                self.failures.append(found)
            for line in text.splitlines():
                if line.startswith("instance: "):
                    self.instances[line.removeprefix("instance: ")] += 1
