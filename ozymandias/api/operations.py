"""Everything the API does, without HTTP: the simulator calls the same methods.

Each returns a plain document or raises ProblemError. Changes go through the committer with one of
the `plan_*` decisions; reads come from the mirror and cost no question to the store. What only the
node of an instance can do (logs, exec) is in `api/inside.py`.
"""

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from ozymandias import __version__
from ozymandias.api import documents
from ozymandias.api.access import Access, Document, Sink, translated
from ozymandias.api.changes import Asked, etag, mark
from ozymandias.api.explaining import Explaining
from ozymandias.api.foresight import Foresight, foreseen_document
from ozymandias.api.inside import Inside, LogsRequest
from ozymandias.api.moving import Moving
from ozymandias.api.pages import page, page_back
from ozymandias.api.rights import refusal, told
from ozymandias.api.settling import ClusterSettings
from ozymandias.api.stepwise import step_by_step
from ozymandias.api.upkeep import NodeUpkeep
from ozymandias.core.advice import Refused, readvising
from ozymandias.core.apply import apply
from ozymandias.core.autoscale import fitting_after, wanted_after
from ozymandias.core.explain import plan_document
from ozymandias.core.freeze import cluster_frozen
from ozymandias.core.in_vain import in_vain
from ozymandias.core.schedule import (
    plan_restart,
    plan_scale,
    plan_stop,
    plan_submit,
)
from ozymandias.core.system import matching, wanted_of
from ozymandias.jobspec.parse import parse
from ozymandias.model.event import EventRecord
from ozymandias.model.job import Job, JobHead, JobKey, JobKind, JobRecord, JobVersion
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted
from ozymandias.problems import (
    JOB_NOT_FOUND,
    Problem,
    ProblemError,
    store_unavailable,
)
from ozymandias.store.commit import Committed, Decide
from ozymandias.store.keys import job_key
from ozymandias.store.tokens import Right

MESSAGE_CHARACTERS_MAX = 500
WAIT_SECONDS_MAX = 30.0
EVENTS_MAX = 1000
FOLLOW_PAUSE_SECONDS = 0.1  # a busy cluster is reported in batches


class Operations:
    def __init__(self, access: Access) -> None:
        self._access = access
        self.explaining = Explaining(access)
        self.inside = Inside(access, self.explaining)
        self.upkeep = NodeUpkeep(access)
        self.foresight = Foresight(access)
        self.settings = ClusterSettings(access)
        self.moving = Moving(access, self.settings)

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
        self,
        data: bytes,
        *,
        file: str = "<stdin>",
        message: str = "",
        override_freeze: str = "",
        asked: Asked | None = None,
        key: str = "",
    ) -> Document:
        """Create or change a job; an unchanged file changes nothing, nor does a ``key`` again."""
        asked = asked or Asked()
        job = self._parsed(data, file)
        asked.idempotency = mark(key, data)
        uid = f"{self._access.clock.random.getrandbits(32):08x}"
        decide = self._submit_decision(
            job, uid, message=message, by=asked.by, override_freeze=override_freeze
        )
        committed = await self._commit(asked.guard(job.key, decide, job), self._asked(job, decide))
        if asked.replayed is not None:
            return self._noting(self._replay(committed, job.key, asked, wanted=job.instances), job)
        head = self._head_after(committed.plan, job.key)
        what = f"version {head.version} submitted"
        what += _overriding(override_freeze)
        self._report("job.submitted", committed, job.key, what, asked.by, message)
        changed = self._changed(committed, job.key, asked, created=head.uid == uid)
        return self._noting(changed, job)

    async def plan(
        self,
        data: bytes,
        *,
        file: str = "<stdin>",
        lose_node: str = "",
        lose_any: int = 0,
        right: Right = Right.ADMIN,
    ) -> Document:
        """What submit would do now, decided by the same function and thrown away.

        With ``lose_node`` or ``lose_any`` also what such a loss would mean once it is done.
        """
        job = self._parsed(data, file)
        snapshot = self._access.mirror.snapshot()
        record = snapshot.jobs.get(job.key)
        if refused := refusal(right, job.key, record, job):
            raise ProblemError(refused)
        decide = self._submit_decision(job, "00000000")
        decision = decide(snapshot)
        if isinstance(decision, Plan):
            decision = await self._access.committer.rehearse(snapshot, decision) or decision
        if isinstance(decision, Problem):
            again = self._asked(job, decide)
            decision = told(right, await step_by_step(readvising(snapshot, decision, again)))
        plan = decision if isinstance(decision, Plan) else None
        foreseen = await self.foresight.following(snapshot, plan)
        version = record.head.version if record else 0
        if plan and plan.job and plan.job.head:
            version = plan.job.head.version
        elif isinstance(decision, Problem):
            version = snapshot.last_versions.get(job.key, 0) + 1
        return {
            **plan_document(decision, foreseen, in_vain(snapshot, job)),
            "job": job.name,
            "namespace": job.namespace,
            "version": version,
            "wanted": _wanted_after(snapshot, record, job),
            "changed": plan is not None and not plan.is_empty,
            **documents.demand_document(job),
            "frozen": self._frozen_after(snapshot, plan, job.key),
            **foreseen_document(foreseen),
            **(await self._losses(plan, lose_node, lose_any) if plan else {}),
        }

    def _frozen_after(self, snapshot: Snapshot, plan: Plan | None, key: JobKey) -> str | None:
        """By what the replacing that a plan leads to would be held, and until when."""
        now = self._access.clock.wall()
        if plan is None or cluster_frozen(snapshot.settings, now) is None:
            return None
        after = apply(snapshot, plan)
        record = after.jobs.get(key)
        return documents.frozen_words(after, record, now) if record else None

    async def _losses(self, plan: Plan, lose_node: str, lose_any: int) -> Document:
        found: Document = {}
        if lose_node:
            found["lose_node"] = await self.foresight.after(plan, lose_node=lose_node)
        if lose_any:
            found["lose_any"] = await self.foresight.after(plan, lose_any=lose_any)
        return found

    async def scale(
        self, key: JobKey, instances: int, asked: Asked | None = None, once: str = ""
    ) -> Document:
        """``once`` is an Idempotency-Key, as in `restart`."""
        asked = asked or Asked()
        asked.subject = {"namespace": key.namespace, "job": key.name}
        asked.idempotency = mark(once, f"scale {key} {instances}".encode())
        version = self._record(key).current
        lately, node = self._access.lately, self._access.node

        def decide(snapshot: Snapshot) -> Plan | Problem:
            return plan_scale(snapshot, key, instances, lately(), node)

        again = Refused(job=version.job, wanted=instances, decide=decide) if version else None
        committed = await self._commit(asked.guard(key, decide), again)
        if asked.replayed is not None:
            return self._replay(committed, key, asked)
        what = f"scaled to {counted(instances, 'instance')}"
        self._report("job.scaled", committed, key, what, asked.by)
        return self._changed(committed, key, asked)

    async def stop(self, key: JobKey, asked: Asked | None = None) -> Document:
        asked = asked or Asked()
        asked.subject = {"namespace": key.namespace, "job": key.name}
        self._record(key)
        committed = await self._commit(asked.guard(key, lambda s: plan_stop(s, key)))
        self._report("job.stopped", committed, key, "stopped", asked.by)
        return self._changed(committed, key, asked)

    async def restart(
        self,
        key: JobKey,
        asked: Asked | None = None,
        once: str = "",
        *,
        override_freeze: str = "",
    ) -> Document:
        asked = asked or Asked()
        asked.subject = {"namespace": key.namespace, "job": key.name}
        asked.idempotency = mark(once, f"restart {key}".encode())
        before = self._record(key).head

        def decide(snapshot: Snapshot) -> Plan | Problem:
            # Asked again because the answer never came: restarted once is restarted.
            record = snapshot.jobs.get(key)
            if record and record.head.uid == before.uid and record.head.restart > before.restart:
                return Plan(reason=f"{key} has been restarted: nothing to change")
            return plan_restart(snapshot, key, override_freeze=override_freeze)

        committed = await self._commit(asked.guard(key, decide))
        if asked.replayed is not None:
            return self._replay(committed, key, asked)
        what = "restart of all instances" + _overriding(override_freeze)
        self._report("job.restarted", committed, key, what, asked.by)
        return self._changed(committed, key, asked)

    def _parsed(self, data: bytes, file: str) -> Job:
        settings = self._access.mirror.snapshot().settings
        return parse(data, file, priority_classes=settings.priority_classes)

    def _submit_decision(
        self,
        job: Job,
        uid: str,
        *,
        message: str = "",
        by: str = "",
        override_freeze: str = "",
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
            override_freeze=override_freeze,
            lately=access.lately(),
            peer=access.node,
        )

    def _asked(self, job: Job, decide: Callable[[Snapshot], Plan | Problem]) -> Refused:
        """What is asked for again, if it is refused."""
        snapshot = self._access.mirror.snapshot()
        record = snapshot.jobs.get(job.key)
        wanted = fitting_after(snapshot, record, job) if record else job.instances
        return Refused(job=job, wanted=wanted, decide=decide)

    async def _commit(self, decide: Decide, again: Refused | None = None) -> Committed:
        """``again`` is what was asked for, where it may be refused for lack of room."""
        with translated():
            committed = await self._access.committer.commit(decide)
        if isinstance(committed, Problem):
            snapshot = self._access.mirror.snapshot()
            steps = readvising(snapshot, committed, again) if again else None
            raise ProblemError(await step_by_step(steps) if steps else committed)
        return committed

    def _head_after(self, plan: Plan, key: JobKey) -> JobHead:
        if plan.job and plan.job.head:
            return plan.job.head
        record = self._access.mirror.snapshot().jobs.get(key)
        return record.head if record else JobHead(uid="", version=0, wanted=0, deleting=True)

    def _changed(
        self, committed: Committed, key: JobKey, asked: Asked, *, created: bool = False
    ) -> Document:
        head = self._head_after(committed.plan, key)
        asked.done(head, not committed.plan.is_empty)
        snapshot = self._access.mirror.snapshot()
        record = snapshot.jobs.get(key)
        return {
            "job": key.name,
            "namespace": key.namespace,
            "uid": head.uid,
            "version": head.version,
            "wanted": wanted_of(snapshot, record) if record and not head.wanted else head.wanted,
            "changed": not committed.plan.is_empty,
            "created": created,
            "plan": plan_document(committed.plan),
            "revision": committed.revision,
            "etag": etag(head),
        }

    def _noting(self, changed: Document, job: Job) -> Document:
        notes = in_vain(self._access.mirror.snapshot(), job)
        return changed | {"plan": changed["plan"] | {"notes": list(notes)}}

    def _replay(
        self, committed: Committed, key: JobKey, asked: Asked, *, wanted: int | None = None
    ) -> Document:
        """The answer to a change that was carried out before, now that nothing is left to plan."""
        made = asked.replayed
        assert made is not None
        document = self._changed(committed, key, asked)
        versions = self._access.mirror.versions(key)
        earlier = any(v.uid == made.uid and v.version < made.version for v in versions)
        created = isinstance(made, JobVersion) and not earlier
        own = {"uid": made.uid, "version": made.version, "changed": True, "created": created}
        return document | own | ({} if wanted is None else {"wanted": wanted})

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

    def jobs(self, *, namespace: str = "", limit: int | None = None, cursor: str = "") -> Document:
        snapshot = self._access.mirror.snapshot()
        rows = documents.job_rows(snapshot, self._access.names, namespace=namespace)
        return page(rows, lambda r: (r["namespace"], r["job"]), limit=limit, cursor=cursor)

    def pools(self, *, namespace: str = "", limit: int | None = None, cursor: str = "") -> Document:
        snapshot, now = self._access.mirror.snapshot(), self._access.clock.wall()
        rows = documents.pool_rows(snapshot, now, namespace=namespace)
        return page(rows, lambda r: (r["namespace"], r["pool"]), limit=limit, cursor=cursor)

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
        now = self._access.clock.wall()
        return documents.status_document(mirror.snapshot(), record, self._access.names, now)

    def versions(self, key: JobKey) -> Document:
        """The kept versions, oldest first; they outlive the job."""
        found = self._access.mirror.versions(key)
        if not found:
            self._record(key)
        record = self._access.mirror.snapshot().jobs.get(key)
        current = record.head.version if record else None
        return {"items": [documents.version_row(version, current) for version in found]}

    async def why(self, key: JobKey, right: Right = Right.ADMIN) -> Document:
        self._record(key)
        snapshot, now = self._access.mirror.snapshot(), self._access.clock.wall()
        held = documents.frozen_words(snapshot, snapshot.jobs[key], now)
        lines = [f"The change waits: it is {held}."] if held else []
        lines += documents.pool_lines(snapshot, snapshot.jobs[key], now)
        found = await self.explaining.job(key, right)
        return {**found, "lines": [*found["lines"], *lines]}

    async def why_not(self, key: JobKey, node: NodeName, right: Right = Right.ADMIN) -> Document:
        self._record(key)
        return await self.explaining.why_not(key, node, right)

    def instances(
        self, *, namespace: str = "", job: str = "", limit: int | None = None, cursor: str = ""
    ) -> Document:
        rows = documents.instance_rows(self._access.mirror.snapshot(), namespace=namespace)
        if job:
            if namespace:
                self._record(job_key(namespace, job))
            rows = [row for row in rows if row["job"] == job]
        return page(rows, documents.instance_place, limit=limit, cursor=cursor)

    async def job_logs(self, key: JobKey, request: LogsRequest, sink: Sink) -> None:
        if request.previous:  # it outlives the job
            if not await self.inside.previous_of_job(key, request, sink):
                self._record(key)
            return
        self._record(key)
        await self.inside.job_logs(key, request, sink)

    def nodes(self, *, limit: int | None = None, cursor: str = "") -> Document:
        snapshot = self._access.mirror.snapshot()
        rows = [documents.node_row(snapshot, node) for node in snapshot.nodes.values()]
        return page(rows, lambda row: (row["name"],), limit=limit, cursor=cursor)

    def events(self, wanted: "EventFilter", *, cursor: str = "") -> Document:
        """The newest ones; the next page has those before."""
        rows = [documents.event_row(e) for e in self._access.mirror.events() if wanted.matches(e)]
        place = documents.event_place
        return page_back(rows, place, limit=wanted.limit, cursor=cursor)

    def is_peer(self, node: str, key: str) -> bool:
        """Whether that node's presence record, which only daemons can read, holds this key."""
        found = self._access.mirror.snapshot().nodes.get(NodeName(node))
        known = found.presence.peer_key if found and found.presence else ""
        shown = key.encode("utf-8", "surrogateescape")
        return bool(known) and hmac.compare_digest(known.encode(), shown)

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
            await mirror.told(revision)

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


def _wanted_after(snapshot: Snapshot, record: JobRecord | None, job: Job) -> int:
    """How many there are to be once it is submitted."""
    if job.kind is JobKind.SYSTEM:
        return matching(snapshot, job)
    return wanted_after(record, job)


def _overriding(why: str) -> str:
    return f", not waiting for the end of a freeze ({why})" if why else ""


def _identity(event: EventRecord) -> tuple[str, int, float]:
    return event.node, event.number, event.time
