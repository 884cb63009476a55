"""What the ingress counts per job, in plain numbers; and a line per request for who wants it.

Counting is on the way of every request, so it is additions to lists; the names and the text come
into being when somebody asks for them. The access log is written in batches, and what can't be
written is dropped and counted: a full disk must not stop traffic.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ozymandias.model.job import JobKey

if TYPE_CHECKING:
    from ozymandias.edge.http import Ingress

LATENCY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LOG_LINES_MAX = 65536  # waiting to be written

now = perf_counter


class JobTraffic:
    """The requests of one job; every route to it counts here, and so does the next table."""

    __slots__ = ("by_class", "latency", "routes", "seconds")

    def __init__(self) -> None:
        self.routes = 0  # of the present table that count here
        self.by_class = [0, 0, 0, 0, 0, 0]  # answers by first digit of the status
        self.latency = [0] * (len(LATENCY_SECONDS) + 1)  # answers up to each bound, and beyond
        self.seconds = 0.0

    def count(self, status: int, seconds: float) -> None:
        """An answer, and the time from the request's head to the answer's end."""
        self.by_class[status // 100 if status < 600 else 5] += 1
        self.latency[bisect_left(LATENCY_SECONDS, seconds)] += 1
        self.seconds += seconds


class AccessLog:
    """Lines of JSON, appended to a file that is opened for each batch, so that it may be moved."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: list[str] = []
        self.dropped = 0

    def add(
        self,
        *,
        client: str,
        method: bytes,
        host: bytes,
        target: bytes,
        status: int,
        seconds: float,
        job: JobKey | None,
    ) -> None:
        if len(self._lines) >= LOG_LINES_MAX:
            self.dropped += 1
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client,
            "method": method.decode("latin-1"),
            "host": host.decode("latin-1"),
            "target": target.decode("latin-1"),
            "status": status,
            "seconds": round(seconds, 6),
            "job": str(job) if job is not None else None,
        }
        self._lines.append(json.dumps(line))

    def flush(self) -> None:
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            with self._file.open("a") as file:
                file.write("\n".join(lines) + "\n")
        except OSError:
            self.dropped += len(lines)


def metrics(ingress: "Ingress", revision: int) -> str:
    """In Prometheus' text format."""
    lines = [
        "# TYPE ozymandias_ingress_connections gauge",
        f"ozymandias_ingress_connections {len(ingress.clients)}",
        "# TYPE ozymandias_ingress_revision gauge",
        f"ozymandias_ingress_revision {revision}",
        "# TYPE ozymandias_ingress_own_answers_total counter",
    ]
    lines += [
        f'ozymandias_ingress_own_answers_total{{status="{status}"}} {count}'
        for status, count in sorted(ingress.own_answers.items())
    ]
    if ingress.access_log is not None:
        lines.append("# TYPE ozymandias_ingress_access_log_dropped_total counter")
        lines.append(f"ozymandias_ingress_access_log_dropped_total {ingress.access_log.dropped}")
    if ingress.table is not None:
        jobs = sorted(ingress.table.jobs.items())
        lines += _requests(jobs)
        lines += _latency(jobs)
        lines.append("# TYPE ozymandias_ingress_in_flight gauge")
        lines += [
            f'ozymandias_ingress_in_flight{{job="{job}"}} {count}'
            for job, count in sorted(ingress.table.in_flight().items())
        ]
    return "\n".join(lines) + "\n"


def _requests(jobs: Iterable[tuple[JobKey, JobTraffic]]) -> list[str]:
    lines = ["# TYPE ozymandias_ingress_requests_total counter"]
    for job, traffic in jobs:
        lines.append(f'ozymandias_ingress_requests_total{{job="{job}"}} {sum(traffic.by_class)}')
    lines.append("# TYPE ozymandias_ingress_responses_total counter")
    for job, traffic in jobs:
        lines += [
            f'ozymandias_ingress_responses_total{{job="{job}",class="{digit}xx"}} {count}'
            for digit, count in enumerate(traffic.by_class)
            if count
        ]
    return lines


def _latency(jobs: Iterable[tuple[JobKey, JobTraffic]]) -> list[str]:
    """Jobs without a request are left out: a histogram has many lines."""
    name = "ozymandias_ingress_request_seconds"
    lines = [f"# TYPE {name} histogram"]
    for job, traffic in jobs:
        total = 0
        if not any(traffic.latency):
            continue
        for bound, count in zip((*LATENCY_SECONDS, "+Inf"), traffic.latency, strict=True):
            total += count
            lines.append(f'{name}_bucket{{job="{job}",le="{bound}"}} {total}')
        lines.append(f'{name}_sum{{job="{job}"}} {traffic.seconds:.6f}')
        lines.append(f'{name}_count{{job="{job}"}} {total}')
    return lines
