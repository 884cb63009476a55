"""The catalogue of every error a user can see (RFC 9457, formerly 7807).

A problem is a value: decisions return it, the API renders it, the CLI prints it. Each kind has a
section of the same slug in ``docs/errors.markdown``; a test holds the two together. ``fields`` are
members of their own in the document (numbers, names), for programs; ``detail`` and ``hint`` are
for people. The exit code is what ``ozy`` ends with when it shows the problem.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ozymandias.model.units import counted, format_cores, format_size

TYPE_BASE = "https://github.com/barrucadu/ozymandias/main/docs/errors.markdown"

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DOES_NOT_FIT = 3
EXIT_NOT_FOUND = 4
EXIT_CHANGED = 5
EXIT_UNREACHABLE = 6
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Kind:
    slug: str
    title: str
    status: int
    exit_code: int

    def __call__(self, detail: str, hint: str = "", **fields: Any) -> "Problem":
        return Problem(kind=self, detail=detail, hint=hint, fields=fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    kind: Kind
    detail: str
    hint: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    def document(self, type_base: str = TYPE_BASE, instance: str = "") -> dict[str, Any]:
        """The problem+json document."""
        document: dict[str, Any] = {
            "type": f"{type_base}#{self.kind.slug}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
        }
        if self.hint:
            document["hint"] = self.hint
        if instance:
            document["instance"] = instance
        return document | dict(self.fields)


class ProblemError(Exception):
    """Carries a problem through api, jobspec and cli, where a value can't be returned."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.kind.title}: {problem.detail}")
        self.problem = problem


# The catalogue ------------------------------------------------------------------------------

INVALID_JOB = Kind("invalid-job", "Job file is not valid", 422, EXIT_USAGE)
INVALID_REQUEST = Kind("invalid-request", "Request is not valid", 400, EXIT_USAGE)
INVALID_SETTING = Kind("invalid-setting", "Setting is not valid", 422, EXIT_USAGE)
INVALID_WHAT_IF = Kind("invalid-what-if", "The what-if can't be read", 422, EXIT_USAGE)
INVALID_REPLAY = Kind("invalid-replay", "The file can't be replayed", 422, EXIT_USAGE)
TOO_LARGE = Kind("too-large", "Request is too large", 413, EXIT_USAGE)
UNAUTHORIZED = Kind("unauthorized", "Token is missing or wrong", 401, EXIT_FAILED)
FORBIDDEN = Kind("forbidden", "The token may not do this", 403, EXIT_FAILED)
RATE_LIMITED = Kind("rate-limited", "Too many requests", 429, EXIT_UNREACHABLE)
HOST_NOT_ALLOWED = Kind(
    "host-not-allowed", "The API does not answer to this name", 421, EXIT_FAILED
)
METHOD_NOT_ALLOWED = Kind("method-not-allowed", "Method is not allowed here", 405, EXIT_USAGE)

INSUFFICIENT_MEMORY = Kind(
    "insufficient-memory", "Insufficient memory for job", 409, EXIT_DOES_NOT_FIT
)
INSUFFICIENT_DISK = Kind("insufficient-disk", "Insufficient disk for job", 409, EXIT_DOES_NOT_FIT)
INSUFFICIENT_PORTS = Kind(
    "insufficient-ports", "Insufficient host ports for job", 409, EXIT_DOES_NOT_FIT
)
INSUFFICIENT_CPU = Kind(
    "insufficient-cpu", "Insufficient processors for job", 409, EXIT_DOES_NOT_FIT
)
NO_NODES = Kind("no-nodes", "No node can take work", 409, EXIT_DOES_NOT_FIT)
NO_MATCHING_NODE = Kind(
    "no-matching-node", "Too few nodes match the job's rules", 409, EXIT_DOES_NOT_FIT
)
NEIGHBOUR_NOT_FOUND = Kind(
    "neighbour-not-found", "A job to be near to is not there", 409, EXIT_NOT_FOUND
)
BURST_NODE_NOT_FOUND = Kind(
    "burst-node-not-found", "A node for a burst is not there", 409, EXIT_NOT_FOUND
)
DRAIN_BLOCKED = Kind("drain-blocked", "Not everything on the node can move", 409, EXIT_DOES_NOT_FIT)
NODE_DRAINING = Kind("node-draining", "The node is being drained", 409, EXIT_FAILED)
SYSTEM_JOB = Kind("system-job", "A system job has no number of instances", 409, EXIT_USAGE)
AUTOSCALED = Kind("autoscaled", "The job scales itself", 409, EXIT_USAGE)
HOST_TAKEN = Kind("ingress-taken", "Ingress host and path belong to another job", 409, EXIT_FAILED)

JOB_NOT_FOUND = Kind("job-not-found", "No such job", 404, EXIT_NOT_FOUND)
NODE_NOT_FOUND = Kind("node-not-found", "No such node", 404, EXIT_NOT_FOUND)
INSTANCE_NOT_FOUND = Kind("instance-not-found", "No such instance", 404, EXIT_NOT_FOUND)
FREEZE_NOT_FOUND = Kind("freeze-not-found", "No such freeze window", 404, EXIT_NOT_FOUND)
RESOURCE_NOT_FOUND = Kind("not-found", "No such resource", 404, EXIT_NOT_FOUND)
JOB_STOPPING = Kind("job-stopping", "Job is still stopping", 409, EXIT_CHANGED)

CHANGED_MEANWHILE = Kind("changed-meanwhile", "It was changed meanwhile", 412, EXIT_CHANGED)
KEY_REUSED = Kind("idempotency-key-reused", "The key was used for another request", 422, EXIT_USAGE)
PLAN_TOO_LARGE = Kind(
    "plan-too-large", "Too much for the store to change at once", 409, EXIT_DOES_NOT_FIT
)
CONFLICT = Kind("conflict", "Too many changes at once", 503, EXIT_CHANGED)
STORE_UNAVAILABLE = Kind(
    "store-unavailable", "The cluster's store does not answer", 503, EXIT_UNREACHABLE
)
OUTCOME_UNKNOWN = Kind(
    "outcome-unknown", "The outcome of the change is not known", 503, EXIT_UNREACHABLE
)
NODE_UNREACHABLE = Kind("node-unreachable", "The node does not answer", 502, EXIT_UNREACHABLE)
RUNTIME_FAILED = Kind("runtime-failed", "The container runtime failed", 502, EXIT_FAILED)
NOT_RUNNING = Kind("not-running", "The container is not running", 409, EXIT_FAILED)
CLUSTER_UNREACHABLE = Kind(
    "cluster-unreachable", "No node of the cluster answers", 503, EXIT_UNREACHABLE
)
NO_CONTEXT = Kind("no-context", "No cluster is chosen", 400, EXIT_UNREACHABLE)
INTERNAL = Kind("internal", "Internal error", 500, EXIT_FAILED)

DEPLOY_FAILED = Kind("deploy-failed", "The job did not become healthy", 500, EXIT_FAILED)
DEPLOY_TIMEOUT = Kind("deploy-timeout", "The job is not healthy yet", 504, EXIT_FAILED)
INSTANCES_PENDING = Kind(
    "instances-pending", "Some instances have no place yet", 409, EXIT_DOES_NOT_FIT
)
LOCAL_CLUSTER = Kind("local-cluster", "The local cluster could not be changed", 500, EXIT_FAILED)
HOST_CLUSTER = Kind(
    "host-cluster", "This host's part of the cluster could not be changed", 500, EXIT_FAILED
)
JOIN_REFUSED = Kind("join-refused", "The host may not join", 403, EXIT_FAILED)
NODE_NAME_TAKEN = Kind("node-name-taken", "The node's name is taken", 409, EXIT_FAILED)
ALREADY_RUNNING = Kind("already-running", "A daemon is running already", 409, EXIT_FAILED)
CONFIG_INVALID = Kind("invalid-configuration", "Configuration is not valid", 400, EXIT_USAGE)

# The ingress's own answers.
HOST_UNKNOWN = Kind("unknown-host", "No job answers for this host", 404, EXIT_NOT_FOUND)
NO_HEALTHY_INSTANCE = Kind("no-healthy-instance", "No healthy instance", 503, EXIT_FAILED)
UPSTREAM_FAILED = Kind("upstream-failed", "The instance failed to answer", 502, EXIT_FAILED)
UPSTREAM_TIMEOUT = Kind("upstream-timeout", "The instance took too long", 504, EXIT_FAILED)
BAD_HTTP_REQUEST = Kind("bad-http-request", "The HTTP request is malformed", 400, EXIT_FAILED)
HEADER_TOO_LARGE = Kind("header-too-large", "The request header is too large", 431, EXIT_FAILED)
REQUEST_TIMEOUT = Kind("request-timeout", "The request came too slowly", 408, EXIT_FAILED)
TOO_MANY_CONNECTIONS = Kind("too-many-connections", "Too many connections", 503, EXIT_FAILED)

CATALOGUE: tuple[Kind, ...] = tuple(k for k in list(globals().values()) if isinstance(k, Kind))


# Problems with numbers in them -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One complaint about a job file."""

    pointer: str  # e.g. containers.app.memory
    line: int  # from 1
    column: int  # from 1
    detail: str
    hint: str = ""  # e.g. did you mean "memory"?

    def document(self) -> dict[str, Any]:
        return {
            "pointer": self.pointer,
            "line": self.line,
            "column": self.column,
            "detail": self.detail,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShortfall:
    """What one node has free and by how much one instance falls short there."""

    node: str
    free_memory_bytes: int
    free_disk_bytes: int
    short_memory_bytes: int  # 0: memory is not what is missing there
    short_disk_bytes: int
    taken_ports: tuple[str, ...] = ()
    reason: str = ""  # e.g. "cordoned", "not alive"
    free_cpu_millis: int | None = None  # None: processors are not counted there
    short_cpu_millis: int = 0

    def document(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "free": {
                "memory_bytes": self.free_memory_bytes,
                "disk_bytes": self.free_disk_bytes,
                "cpu_millis": self.free_cpu_millis,
            },
            "short": {
                "memory_bytes": self.short_memory_bytes,
                "disk_bytes": self.short_disk_bytes,
                "cpu_millis": self.short_cpu_millis,
            },
            "taken_ports": list(self.taken_ports),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A change that the scheduler itself has checked to make the job fit."""

    text: str  # e.g. "run 5 instances instead of 6"
    change: Mapping[str, Any]  # e.g. {"numInstances": 5}

    def document(self) -> dict[str, Any]:
        return {"text": self.text, "change": dict(self.change)}


def does_not_fit(
    kind: Kind,
    *,
    job: str,
    detail: str,
    required: int,
    placeable: int,
    nodes: Sequence[NodeShortfall],
    suggestions: Sequence[Suggestion],
) -> Problem:
    return kind(
        detail,
        hint=_in_a_row(s.text for s in suggestions),
        job=job,
        required=required,
        placeable=placeable,
        nodes=[n.document() for n in nodes],
        suggestions=[s.document() for s in suggestions],
    )


def suggestions_of(problem: Problem) -> tuple[Suggestion, ...]:
    return tuple(
        Suggestion(text=one["text"], change=one["change"])
        for one in problem.fields.get("suggestions", ())
    )


def resuggested(problem: Problem, said: Callable[[Suggestion], Suggestion]) -> Problem:
    """The same problem with each of its suggestions ``said`` in other words."""
    return with_suggestions(problem, tuple(map(said, suggestions_of(problem))))


def with_suggestions(problem: Problem, suggestions: Sequence[Suggestion]) -> Problem:
    """The same problem with these in place of the suggestions that it has."""
    was, now = (_in_a_row(s.text for s in row) for row in (suggestions_of(problem), suggestions))
    if not was:
        return problem
    fields = {**problem.fields, "suggestions": [s.document() for s in suggestions]}
    return replace(problem, hint=problem.hint.replace(was, now).strip(), fields=fields)


def _in_a_row(texts: Iterable[str]) -> str:
    return "; or ".join(texts)


def insufficient_memory_detail(required_bytes: int, placeable_bytes: int) -> str:
    return (
        f"Job requires {format_size(required_bytes)} of memory"
        f" but only {format_size(placeable_bytes)} can be allocated."
    )


def insufficient_disk_detail(required_bytes: int, placeable_bytes: int) -> str:
    return (
        f"Job requires {format_size(required_bytes)} of disk"
        f" but only {format_size(placeable_bytes)} can be allocated."
    )


def insufficient_cpu_detail(required_millis: int, placeable_millis: int) -> str:
    return (
        f"Job requires {format_cores(required_millis)}"
        f" but only {format_cores(placeable_millis)} can be allocated."
    )


def insufficient_ports_detail(ports: str, required: int, placeable: int) -> str:
    return (
        f"Job requires host port {ports} on {counted(required, 'node')}"
        f" but it can be allocated on only {placeable}."
    )


def invalid_job(file: str, errors: Sequence[FieldError]) -> Problem:
    """All complaints about a job file at once."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = f"{file}:{first.line}:{first.column}"
    detail = f"{where}: {first.pointer + ': ' if first.pointer else ''}{first.detail}{more}"
    return INVALID_JOB(
        detail, hint=first.hint, file=file, errors=[error.document() for error in errors]
    )


def store_unavailable(reason: str, retry_after_seconds: int = 2) -> Problem:
    return STORE_UNAVAILABLE(
        f"etcd does not answer: {reason}. Running pods are not affected.",
        hint="Try again in a moment; `ozy doctor` shows what is wrong with the store.",
        retry_after_seconds=retry_after_seconds,
    )
