"""What the operations of the API need of the daemon around them, as a value of a few parts.

The daemon builds it over the real adapters, the simulator over its own; nothing in `api/` asks
which. `Sink` is where streams (logs, followed events) are pushed to, so that several sources can
write to one answer and no generator is left half read when a client goes away.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ozymandias.core.arbiter import Leisure
from ozymandias.core.preempt import Lately
from ozymandias.core.routes import Names
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import (
    Ambiguous,
    Clock,
    EndedRuns,
    LeaseLost,
    Runtime,
    RuntimeFailed,
    StoreError,
)
from ozymandias.problems import (
    OUTCOME_UNKNOWN,
    RUNTIME_FAILED,
    ProblemError,
    store_unavailable,
)
from ozymandias.store.commit import Committer
from ozymandias.store.mirror import Mirror

Document = dict[str, Any]


class Sink(Protocol):
    """The receiving end of a stream."""

    async def begin(self) -> None:
        """All is well so far: problems from now on are part of the stream. May be repeated."""
        ...

    async def send(self, document: Document) -> None: ...


class Peers(Protocol):
    """Other daemons' APIs, for what only the node that runs an instance can answer."""

    async def call(self, api: str, path: str, body: Document, *, timeout: float) -> Document:
        """POST to a peer. ProblemError: the peer's own, or NODE_UNREACHABLE."""
        ...

    async def stream(self, api: str, path: str, query: Mapping[str, str], sink: Sink) -> None:
        """GET lines of a peer into a sink until they end."""
        ...


class Emit(Protocol):
    def __call__(
        self, kind: str, reason: str, *, job: JobKey | None = None, instance: str = ""
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    mirror: Mirror
    committer: Committer
    runtime: Runtime
    node: NodeName
    cluster: str
    names: Names
    clock: Clock
    emit: Emit
    # Returns when this daemon is a member of the cluster; raises STORE_UNAVAILABLE when not.
    session: Callable[[], None]
    peers: Peers
    ended: EndedRuns  # what is left of instances that ran on this node
    # Tells each step of a committed plan with its reason.
    narrate: Callable[[Plan], None] = lambda plan: None
    # What this daemon knows of instances that were displaced.
    lately: Callable[[], Lately] = Lately
    # What it would look at if it looked for moves now.
    leisure: Callable[[Snapshot], Leisure] = lambda snapshot: Leisure()


@contextmanager
def translated() -> Iterator[None]:
    """Failures of the ports become problems a user can read."""
    try:
        yield
    except LeaseLost as error:
        raise ProblemError(
            store_unavailable(f"this node has lost its lease and is joining again ({error})")
        ) from error
    except Ambiguous as error:
        raise ProblemError(
            OUTCOME_UNKNOWN(
                f"The change was sent to etcd and no answer came: {error}. All of it was applied,"
                " or nothing.",
                hint="`ozy status JOB` shows which; doing it again is safe.",
                retry_after_seconds=2,
            )
        ) from error
    except StoreError as error:
        raise ProblemError(store_unavailable(str(error) or type(error).__name__)) from error
    except RuntimeFailed as error:
        raise ProblemError(
            RUNTIME_FAILED(str(error) or type(error).__name__, hint="`ozy doctor` looks at podman.")
        ) from error
