"""Log events: a name plus keys, to stderr; and the counters that `/metrics` shows.

`log("instance.started", job="web", reason="...")`. Nothing here knows what the events mean.
"""

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

COMMITS = Counter(
    "ozymandias_commits", "Schedule transactions by outcome.", ["outcome"], registry=REGISTRY
)
ACTIONS = Counter(
    "ozymandias_actions", "What this node did to its pods.", ["kind", "outcome"], registry=REGISTRY
)
PROBES = Counter("ozymandias_probes", "Health checks by result.", ["result"], registry=REGISTRY)
LOOP_LAG = Gauge(
    "ozymandias_loop_lag_seconds", "How late the event loop last woke up.", registry=REGISTRY
)
INSTANCES = Gauge(
    "ozymandias_instances",
    "Instances assigned to this node, by state.",
    ["state"],
    registry=REGISTRY,
)
SURVIVES = Gauge(
    "ozymandias_survives_node_loss",
    "1 if all jobs survive the loss of any one node, 0 if not, NaN where it is not worked out.",
    registry=REGISTRY,
)
API_SECONDS = Histogram(
    "ozymandias_api_seconds", "Time to answer API requests.", ["method", "route"], registry=REGISTRY
)


# Found once for each label: `labels` takes its time, and these are told of at every change.
@functools.cache
def instances(state: str) -> Gauge:
    return INSTANCES.labels(state)


@functools.cache
def probes(result: str) -> Counter:
    return PROBES.labels(result)


_readable = structlog.dev.ConsoleRenderer(colors=False)
_BEYOND_PLAIN = frozenset({"stack", "exception", "exc_info", "logger", "logger_name"})
_to_quote = re.compile("[ \t=\r\n\"']").search


def plain(logger: Any, name: str, keys: dict[str, Any]) -> str:
    """What structlog would write without colours, in a fifth of its time: every change is told."""
    if not keys.keys().isdisjoint(_BEYOND_PLAIN):
        return _readable(logger, name, keys)
    time, level, event = keys.pop("timestamp"), keys.pop("level"), keys.pop("event")
    words = [f"{time} [{level:<9}] {event:<30}"]
    for key in sorted(keys):
        value = keys[key]
        is_bare = isinstance(value, str) and not _to_quote(value)
        words.append(f"{key}={value if is_bare else repr(value)}")
    return " ".join(words).rstrip(" ")


def configure(*, json: bool = False) -> None:
    """Log lines on stderr: readable, or one JSON object each."""
    renderer: Any = plain
    if json:
        renderer = structlog.processors.JSONRenderer()
    elif sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


_logger = structlog.get_logger()


def log(event: str, **keys: Any) -> None:
    _write(_logger.info, event, keys)


def warn(event: str, **keys: Any) -> None:
    _write(_logger.warning, event, keys)


def _write(line: Callable[..., Any], event: str, keys: Mapping[str, Any]) -> None:
    """A line that can't be written is lost: a full disk must not end whoever has to tell of it."""
    with contextlib.suppress(OSError):
        line(event, **keys)
