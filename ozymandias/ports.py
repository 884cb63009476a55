"""The IO surface: everything the daemon asks of the world goes through these protocols.

Store (etcd), Runtime (podman and this host), Network (the pods' network), Clock (time and dice).
`store/`, `runtime/` hold the real ones, `sim/` the simulated ones; both pass the same contract
tests. Adapters translate their library's exceptions into these, and nothing else leaves them:

    PortError
      StoreError
        Unavailable      nobody answered within the deadline; nothing was written
        Ambiguous        a write was sent and no answer came: applied, or not, or later
        Compacted        the history asked for is gone: list again
        LeaseLost        gone by etcd's word or by our own clock
        Denied           credentials or permission, after one new login
        Invalid          refused as such: duplicate key, no key at all
          NoSpace        etcd's quota is used up
          TooLarge       too many bytes, or too many operations
        ClusterChanged   another cluster answers, or its revision went back
      RuntimeFailed      podman refused, failed or did not answer in time
        RuntimeHung      no answer within the deadline
        ImageMissing     not here and could not be pulled
        PortTaken        a host port is in use by somebody else
      NetworkFailed
      SourceFailed       a pool's source of pending work gave no answer that can be used

Units: all times are seconds; all calls state or document their deadline.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Never, Protocol

from msgspec import Struct

from ozymandias.model.host import HostFacts
from ozymandias.model.job import Autoscale, HealthCheck, PullPolicy
from ozymandias.model.pod import ObservedPod, Pod, PodId


class PortError(Exception): ...


class StoreError(PortError): ...


class Unavailable(StoreError): ...


class Ambiguous(StoreError): ...


class Compacted(StoreError): ...


class LeaseLost(StoreError): ...


class Denied(StoreError): ...


class Invalid(StoreError): ...


class NoSpace(Invalid): ...


class TooLarge(Invalid): ...


class ClusterChanged(StoreError): ...


class RuntimeFailed(PortError): ...


class RuntimeHung(RuntimeFailed): ...


class ImageMissing(RuntimeFailed): ...


class PortTaken(RuntimeFailed): ...


class NetworkFailed(PortError): ...


class SourceFailed(PortError): ...


# The store --------------------------------------------------------------------------------------


class KV(Struct, frozen=True, gc=False):
    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class Event(Struct, frozen=True, gc=False):
    kv: KV  # of a deletion: the key and the revision of the deletion
    deleted: bool
    prev: KV | None = None


class Unread(Sequence[Event]):
    """Events that are made of their messages when somebody looks at them.

    ``messages`` are for who needs no more than key and value of most of many: they have a ``kv``
    with these members. They are not to be kept: each holds the memory of all.
    """

    messages: Sequence[Any]


class Listing(Struct, frozen=True):
    revision: int
    kvs: tuple[KV, ...]


class Compare(Struct, frozen=True, gc=False):
    """An absent key compares as version, create, mod and lease 0."""

    key: bytes
    target: Literal["version", "create", "mod", "value", "lease"]
    op: Literal["=", "!=", "<", ">"]
    operand: int | bytes
    range_end: bytes = b""


class Put(Struct, frozen=True, gc=False):
    key: bytes
    value: bytes
    lease: int = 0
    keep_lease: bool = False


class Delete(Struct, frozen=True, gc=False):
    key: bytes
    range_end: bytes = b""


class Get(Struct, frozen=True, gc=False):
    key: bytes
    range_end: bytes = b""


class Txn(Struct, frozen=True):
    compare: tuple[Compare, ...]
    then: tuple["Op", ...]
    otherwise: tuple["Op", ...] = ()


Op = Put | Delete | Get | Txn


class TxnResult(Struct, frozen=True):
    """``results`` has one entry per Get of the branch taken (nested ones flattened), in order."""

    succeeded: bool
    revision: int
    results: tuple[tuple[KV, ...], ...] = ()


@dataclass(slots=True, eq=False)
class Lease:
    """``deadline`` is on Clock.boot(): when the last answered keep-alive was *sent*, plus TTL."""

    id: int
    ttl: int
    deadline: float
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    heard: Callable[[float], None] | None = None  # told of every new deadline

    def extend(self, ttl: int, deadline: float) -> None:
        self.ttl, self.deadline = ttl, deadline
        if self.heard is not None:
            self.heard(deadline)


class Feed(Protocol):
    """What a mirror is fed by: a store, or the part of one that concerns a single node."""

    def mirror(self, prefix: bytes) -> AsyncIterator[Listing | Sequence[Event]]: ...


class Store(Protocol):
    """etcd's semantics. Every call may raise Unavailable, Denied, ClusterChanged."""

    async def get(self, key: bytes, *, stale_ok: bool = False) -> KV | None:
        """Linearizable unless stale_ok. Retried on other members until the deadline."""
        ...

    async def range(self, prefix: bytes, *, revision: int = 0) -> Listing:
        """All keys under a prefix at one revision. Retried; may raise Compacted."""
        ...

    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """Atomic, and sent at most once: may raise Ambiguous, Invalid, LeaseLost.

        More operations than the server takes in one level are nested by the adapter.
        """
        ...

    def ready(self, ops: Sequence[Op]) -> Sequence[Op]:
        """The same operations for a later `txn`, with as much done as can be done before."""
        ...

    def watch(
        self, prefix: bytes, revision: int, *, prev: bool = False
    ) -> AsyncIterator[Sequence[Event]]:
        """Whole revisions from ``revision`` (>= 1) on, in order, once each; resumes by itself.

        Raises Compacted, Denied, ClusterChanged.
        """
        ...

    def mirror(
        self, prefix: bytes, *, alone: bool = False
    ) -> AsyncIterator[Listing | Sequence[Event]]:
        """A Listing, then events; a fresh Listing whenever history was lost. Goes on for ever.

        ``alone``: of that very key, and none that it is the beginning of.
        """
        ...

    async def grant(self, ttl: int) -> Lease: ...

    async def adopt(self, lease_id: int) -> Lease | None:
        """Refresh the lease of a former process; None when it is gone."""
        ...

    async def keep(self, lease: Lease) -> Never:
        """Refresh every TTL/3 until cancelled; LeaseLost by etcd's word or at our own deadline."""
        ...

    async def revoke(self, lease: Lease) -> None: ...

    async def aclose(self) -> None: ...


# The runtime ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    healthy: bool
    reason: str  # "HTTP 200", "HTTP 503", "connection refused", "exit code 1", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    container: str
    time: float  # wall clock
    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    name: str
    version: str


class Runtime(Protocol):
    """Pods on this node, and nothing that does not carry this cluster's and node's labels.

    Every call has a deadline inside and raises RuntimeHung past it; calls are idempotent: doing
    again what was done (or half done before a crash) is fine.
    """

    async def info(self) -> RuntimeInfo: ...

    async def list_pods(self) -> tuple[ObservedPod, ...]:
        """Every pod of this node, also half made and dead ones."""
        ...

    async def ensure_image(self, image: str, policy: PullPolicy) -> None:
        """ImageMissing with the reason when it is not here and can't be had."""
        ...

    async def create_pod(self, pod: Pod) -> None:
        """Volumes, pod with its network up, containers created but not started.

        Removes what is left of an earlier attempt first. PortTaken, ImageMissing, RuntimeFailed.
        """
        ...

    async def start_container(self, pod: PodId, container: str) -> None:
        """Start a created or exited container; starts the pod's network if it is down."""
        ...

    async def stop_container(self, pod: PodId, container: str) -> None:
        """Stop one container with its signal and grace, then SIGKILL. Fine if it does not run."""
        ...

    async def stop_pod(self, pod: PodId) -> None:
        """Stop all containers, dependants first, each with its signal and grace, then SIGKILL."""
        ...

    async def remove_pod(self, pod: PodId) -> None:
        """Kill what still runs, remove pod and volumes (less the kept ones). Fine if absent."""
        ...

    async def probe(
        self, pod: PodId, address: str, container: str, check: HealthCheck
    ) -> ProbeResult:
        """One health check, within its own timeout. Never raises but for cancellation."""
        ...

    def changes(self) -> AsyncIterator[None]:
        """Yields soon after a pod or container of this node may have changed. Goes on for ever."""
        ...

    def logs(
        self, pod: PodId, container: str, *, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]: ...

    async def exec(
        self, pod: PodId, container: str, command: Sequence[str], *, timeout: float = 60.0
    ) -> ExecResult: ...

    async def aclose(self) -> None: ...


# What has ended ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """One run of one container that is over: how it ended, and its last lines."""

    pod: PodId
    container: str
    started_at: float = 0.0  # wall clock; 0: not known
    ended_at: float
    exit_code: int | None = None  # None: not known, it was stopped and removed at once
    oom_killed: bool = False
    reason: str
    lines: tuple[LogLine, ...] = ()


class EndedRuns(Protocol):
    """This node's memory of ended runs: bounded, the oldest go first. Not for deciding."""

    async def keep(self, run: EndedRun) -> None:
        """The same run again changes nothing. May raise OSError."""
        ...

    async def find(self, namespace: str, job: str, slot: int | None = None) -> tuple[EndedRun, ...]:
        """The runs of one instance, or of all of a job's, newest first."""
        ...


class Gauge(Protocol):
    """How busy and how full this host is."""

    async def read(self) -> HostFacts:
        """The facts now, within a deadline of its own; RuntimeFailed when they can't be had."""
        ...


class Guard(Protocol):
    """Ends exclusive pods at the lease's deadline, whatever became of the daemon."""

    def extend(self, deadline: float) -> None:
        """The lease surely lives until then, on Clock.boot(). Never raises."""
        ...

    async def cover(self, pod: PodId) -> None:
        """From now on this pod is ended past the deadline; RuntimeFailed if nobody would do it."""
        ...

    async def forget(self, pod: PodId) -> None:
        """It is gone. Never raises."""
        ...


# Network and clock ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    name: str
    subnet: str
    gateway: str


class Network(Protocol):
    async def ensure(self) -> PodNetwork:
        """Make the pods' network exist; idempotent. NetworkFailed."""
        ...


class Clock(Protocol):
    """Waiting is asyncio's; this tells the time and rolls the dice."""

    def wall(self) -> float:
        """Seconds since 1970, for people and records only; never for deciding."""
        ...

    def boot(self) -> float:
        """CLOCK_BOOTTIME: steady, and counts the time that the machine was suspended."""
        ...

    @property
    def random(self) -> random.Random: ...


# Pending work -----------------------------------------------------------------------------------


class PendingWork(Protocol):
    """Where pools learn how much work is waiting for them, outside of the cluster's own store."""

    async def ask(self, source: Autoscale) -> bytes:
        """What a URL or a command answers, whole and small. SourceFailed: why there is nothing.

        Bounded in time and size by the adapter; never retried.
        """
        ...
