"""Everything the API does, without HTTP: the simulator calls the same methods.

Each returns a plain document or raises ProblemError. Changes go through the committer with one of
the `plan_*` decisions; reads come from the mirror and cost no question to the store. What only the
node of an instance can do (logs, exec) is in `api/inside.py`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from ozymandias import __version__
from ozymandias.api import documents
from ozymandias.api.access import Access, Document, Sink, translated
from ozymandias.api.inside import Inside, LogsRequest
from ozymandias.core.explain import plan_document, why
from ozymandias.core.schedule import plan_restart, plan_scale, plan_stop, plan_submit
from ozymandias.jobspec.parse import parse
from ozymandias.model.event import EventRecord
from ozymandias.model.job import Job, JobHead, JobKey, JobRecord
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import (
    INVALID_REQUEST,
    JOB_NOT_FOUND,
    Problem,
    ProblemError,
    store_unavailable,
)
from ozymandias.store.commit import Committed, Decide
from ozymandias.store.keys import job_key

INSTANCES_MAX = 100_000
MESSAGE_CHARACTERS_MAX = 500
WAIT_SECONDS_MAX = 30.0
EVENTS_MAX = 1000
FOLLOW_PAUSE_SECONDS = 0.1  # a busy cluster is reported in batches


class Operations:
    def __init__(self, access: Access) -> None:
        self._access = access
        self.inside = Inside(access)

    def check_session(self) -> None:
        """ProblemError STORE_UNAVAILABLE unless this daemon is a member and sees the cluster."""
        self._access.session()
        if not self._access.mirror.is_ready:
            raise ProblemError(store_unavailable("this node has not read the cluster's state yet"))

    def info(self) -> Document:
        access = self._access
        cluster = access.cluster or access.mirror.cluster
        return {"cluster": cluster, "node": access.node, "version": __version__}

    # Changing -----------------------------------------------------------------------------------

    async def submit(
        self, data: bytes, *, file: str = "<stdin>", message: str = "", by: str = ""
    ) -> Document:
        """Create or change a job; an unchanged file changes nothing."""
        job = parse(data, file)
        uid = f"{self._access.clock.random.getrandbits(32):08x}"
        committed = await self._commit(self._submit_decision(job, uid, message=message, by=by))
        head = self._head_after(committed.plan, job.key)
        what = f"version {head.version} submitted"
        self._report("job.submitted", committed, job.key, what, by, message)
        return self._changed(committed, job.key, created=head.uid == uid)

    async def plan(self, data: bytes, *, file: str = "<stdin>") -> Document:
        """What submit would do now, decided by the same function and thrown away."""
        job = parse(data, file)
        snapshot = self._access.mirror.snapshot()
        decision = self._submit_decision(job, "00000000")(snapshot)
        plan = decision if isinstance(decision, Plan) else None
        record = snapshot.jobs.get(job.key)
        version = record.head.version if record else 0
        if plan and plan.job and plan.job.head:
            version = plan.job.head.version
        elif isinstance(decision, Problem):
            version = snapshot.last_versions.get(job.key, 0) + 1
        return {
            **plan_document(decision, snapshot),
            "job": job.name,
            "namespace": job.namespace,
            "version": version,
            "wanted": job.instances,
            "changed": plan is not None and not plan.is_empty,
            **documents.demand_document(job),
        }

    async def scale(self, key: JobKey, instances: object, *, by: str = "") -> Document:
        if not isinstance(instances, int) or isinstance(instances, bool):
            raise ProblemError(INVALID_REQUEST(f"instances must be a number, not {instances!r}"))
        if not 0 <= instances <= INSTANCES_MAX:
            raise ProblemError(
                INVALID_REQUEST(f"instances must be from 0 to {INSTANCES_MAX}, not {instances}")
            )
        wanted = instances
        self._record(key)
        committed = await self._commit(lambda snapshot: plan_scale(snapshot, key, wanted))
        what = f"scaled to {wanted} instance{'s' * (wanted != 1)}"
        self._report("job.scaled", committed, key, what, by)
        return self._changed(committed, key)

    async def stop(self, key: JobKey, *, by: str = "") -> Document:
        self._record(key)
        committed = await self._commit(lambda snapshot: plan_stop(snapshot, key))
        self._report("job.stopped", committed, key, "stopped", by)
        return self._changed(committed, key)

    async def restart(self, key: JobKey, *, by: str = "") -> Document:
        self._record(key)
        committed = await self._commit(lambda snapshot: plan_restart(snapshot, key))
        self._report("job.restarted", committed, key, "restart of all instances", by)
        return self._changed(committed, key)

    def _submit_decision(
        self, job: Job, uid: str, *, message: str = "", by: str = ""
    ) -> Callable[[Snapshot], Plan | Problem]:
        access = self._access
        now = access.clock.wall()
        message = message[:MESSAGE_CHARACTERS_MAX]
        return lambda snapshot: plan_submit(
            snapshot,
            job,
            uid=uid,
            names=access.names,
            submitted_by=by,
            submitted_at=now,
            message=message,
        )

    async def _commit(self, decide: Decide) -> Committed:
        with translated():
            committed = await self._access.committer.commit(decide)
        if isinstance(committed, Problem):
            raise ProblemError(committed)
        return committed

    def _head_after(self, plan: Plan, key: JobKey) -> JobHead:
        if plan.job and plan.job.head:
            return plan.job.head
        record = self._access.mirror.snapshot().jobs.get(key)
        return record.head if record else JobHead(uid="", version=0, wanted=0, deleting=True)

    def _changed(self, committed: Committed, key: JobKey, *, created: bool = False) -> Document:
        head = self._head_after(committed.plan, key)
        return {
            "job": key.name,
            "namespace": key.namespace,
            "uid": head.uid,
            "version": head.version,
            "wanted": head.wanted,
            "changed": not committed.plan.is_empty,
            "created": created,
            "plan": plan_document(committed.plan),
            "revision": committed.revision,
        }

    def _report(
        self,
        kind: str,
        committed: Committed,
        key: JobKey,
        what: str,
        by: str,
        message: str = "",
    ) -> None:
        """One event for a change that was made, with who made it and what they said about it."""
        if committed.plan.is_empty:
            return
        reason = what + (f" by {by}" if by else "") + (f": {message}" if message else "")
        self._access.emit(kind, reason, job=key)
        self._access.narrate(committed.plan)

    # Reading ------------------------------------------------------------------------------------

    def jobs(self, *, namespace: str = "") -> Document:
        snapshot = self._access.mirror.snapshot()
        return {"items": documents.job_rows(snapshot, self._access.names, namespace=namespace)}

    async def job_status(
        self, key: JobKey, *, after: int = 0, wait_seconds: float = 0.0
    ) -> Document:
        """The job now, or as soon as the cluster is beyond revision ``after``."""
        mirror = self._access.mirror
        if wait_seconds > 0 and mirror.revision <= after:
            try:
                async with asyncio.timeout(min(wait_seconds, WAIT_SECONDS_MAX)):
                    await mirror.changed(after)
            except TimeoutError:
                pass
            self.check_session()
        record = self._record(key)
        return documents.status_document(mirror.snapshot(), record, self._access.names)

    def versions(self, key: JobKey) -> Document:
        """The kept versions, oldest first; they outlive the job."""
        found = self._access.mirror.versions(key)
        if not found:
            self._record(key)
        record = self._access.mirror.snapshot().jobs.get(key)
        current = record.head.version if record else None
        return {"items": [documents.version_row(version, current) for version in found]}

    def why(self, key: JobKey) -> Document:
        self._record(key)
        return {"lines": list(why(self._access.mirror.snapshot(), key))}

    def instances(self, *, namespace: str = "", job: str = "") -> Document:
        snapshot = self._access.mirror.snapshot()
        rows = documents.instance_rows(snapshot, namespace=namespace)
        if not job:
            return {"items": rows}
        if namespace:
            self._record(job_key(namespace, job))
        return {"items": [row for row in rows if row["job"] == job]}

    async def job_logs(self, key: JobKey, request: LogsRequest, sink: Sink) -> None:
        if request.previous:  # it outlives the job
            if not await self.inside.previous_of_job(key, request, sink):
                self._record(key)
            return
        self._record(key)
        await self.inside.job_logs(key, request, sink)

    def nodes(self) -> Document:
        snapshot = self._access.mirror.snapshot()
        return {
            "items": [documents.node_row(snapshot, n) for _, n in sorted(snapshot.nodes.items())]
        }

    def events(self, wanted: "EventFilter") -> Document:
        found = [e for e in self._access.mirror.events() if wanted.matches(e)]
        return {"items": [documents.event_row(event) for event in found[-wanted.limit :]]}

    async def follow_events(self, wanted: "EventFilter", sink: Sink) -> None:
        """What happened, and then what happens, until cancelled."""
        await sink.begin()
        mirror = self._access.mirror
        seen: set[tuple[str, int, float]] = set()
        limit = wanted.limit
        while True:
            revision = mirror.revision
            events = mirror.events()
            fresh = [e for e in events if _identity(e) not in seen and wanted.matches(e)]
            for event in fresh[-limit:]:
                await sink.send(documents.event_row(event))
            seen = {_identity(event) for event in events}
            limit = EVENTS_MAX
            await asyncio.sleep(FOLLOW_PAUSE_SECONDS)
            await mirror.changed(revision)

    def _record(self, key: JobKey) -> JobRecord:
        snapshot = self._access.mirror.snapshot()
        record = snapshot.jobs.get(key)
        if record is None:
            raise ProblemError(job_not_found(key, snapshot))
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    namespace: str = ""
    job: str = ""
    node: str = ""
    since: float = 0.0  # wall clock
    limit: int = EVENTS_MAX

    def matches(self, event: EventRecord) -> bool:
        return (
            event.time >= self.since
            and (not self.namespace or event.namespace == self.namespace)
            and (not self.job or event.job == self.job)
            and (not self.node or event.node == self.node)
        )


def job_not_found(key: JobKey, snapshot: Snapshot) -> Problem:
    """The problem, with the names that may have been meant."""
    known = {str(other): other for other in snapshot.jobs}
    close = get_close_matches(str(key), known, n=3)
    close += [name for name, other in known.items() if other.name == key.name and name not in close]
    hint = f"Did you mean {' or '.join(close)}?" if close else "`ozy jobs` lists them."
    return JOB_NOT_FOUND(
        f"There is no job {key.name!r} in namespace {key.namespace!r}.",
        hint=hint,
        job=key.name,
        namespace=key.namespace,
    )


def _identity(event: EventRecord) -> tuple[str, int, float]:
    return event.node, event.number, event.time
