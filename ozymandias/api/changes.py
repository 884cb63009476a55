"""What goes around a change of a job: on which condition, once or again, and what it was before.

`If-Match` names the version that the caller has seen, or the ETag of an answer, which tells every
change of the job and not only a new version. `Idempotency-Key` makes a change that is sent twice
happen once: hashes of key and request are written with the new version or the job's head, in the
same transaction, so any daemon recognises the second one. A key is known for as long as the job
keeps the version that it made (the last 20); for a change that made no version (scale, restart),
until the job's next change with a key. What changed nothing is not remembered: it can be repeated
anyway.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from ozymandias.api.rights import refusal
from ozymandias.model.job import Job, JobHead, JobKey, JobRecord, JobVersion
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import (
    CHANGED_MEANWHILE,
    INVALID_REQUEST,
    KEY_REUSED,
    Problem,
    ProblemError,
)
from ozymandias.store.tokens import Right

Decide = Callable[[Snapshot], Plan | Problem]

_TAG = re.compile(r'"([0-9]{1,18}|[0-9a-f]{1,32}\.[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18})"')


def etag(head: JobHead) -> str:
    """Tells every state of a job from every other that a user could mean to change."""
    return f'"{head.uid}.{head.version}.{head.wanted}.{head.restart}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """``tags`` are those of If-Match, without quotes; none: no condition. "*": it exists."""

    tags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, header: str) -> Self:
        parts = [part.strip() for part in header.split(",")] if header.strip() else []
        if parts == ["*"]:
            return cls(tags=("*",))
        matches = [_TAG.fullmatch(part) for part in parts]
        if len(parts) > 20 or not all(matches):
            raise ProblemError(
                INVALID_REQUEST(
                    "If-Match is not a list of versions or ETags in double quotes, nor *.",
                    hint='For example: If-Match: "3"',
                )
            )
        return cls(tags=tuple(match[1] for match in matches if match))

    def check(self, key: JobKey, record: JobRecord | None) -> Problem | None:
        if not self.tags:
            return None
        if record is not None:
            current = {"*", str(record.head.version), etag(record.head).strip('"')}
            if current & set(self.tags):
                return None
        now = f"has version {record.head.version}" if record else "does not exist"
        return CHANGED_MEANWHILE(
            f"{key} {now}; the change was meant for another state of it.",
            hint="Look again, and decide anew.",
            job=key.name,
            namespace=key.namespace,
            version=record.head.version if record else None,
        )


@dataclass(slots=True, kw_only=True)
class Asked:
    """A change as somebody asks for it; the operation notes what it was and became."""

    by: str = ""
    right: Right = Right.ADMIN
    condition: Condition = field(default_factory=Condition)
    idempotency: str = ""  # mark of key and body, "" without a key
    subject: dict[str, Any] = field(default_factory=dict)  # job, namespace, instance
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    changed: bool = False
    replayed: JobVersion | JobHead | None = None  # what an earlier copy of this has made

    def guard(self, key: JobKey, decide: Decide, wanted: Job | None = None) -> Decide:
        """The decision, made only if who asks may have it and the condition holds.

        It notes what it was made on. ``wanted`` is what the job is to become, where it is told.
        """
        self.subject = {"namespace": key.namespace, "job": key.name}

        def guarded(snapshot: Snapshot) -> Plan | Problem:
            record = snapshot.jobs.get(key)
            self.before = _state(record.head) if record else None
            self.replayed = None
            if refused := refusal(self.right, key, record, wanted):
                return refused
            if self.idempotency:
                found = _used(snapshot, key, self.idempotency)
                if isinstance(found, Problem):
                    return found
                if found is not None:
                    self.replayed = found
                    return Plan(reason="this very request was carried out before")
            return self.condition.check(key, record) or self._marked(decide(snapshot))

        return guarded

    def _marked(self, plan: Plan | Problem) -> Plan | Problem:
        if not self.idempotency or isinstance(plan, Problem) or not plan.job or not plan.job.head:
            return plan
        change, head = plan.job, replace(plan.job.head, idempotency=self.idempotency)
        version = change.version and replace(change.version, idempotency=self.idempotency)
        return replace(plan, job=replace(change, head=head, version=version))

    def done(self, head: JobHead, changed: bool) -> None:
        self.after = _state(head)
        self.changed = changed


def mark(key: str, body: bytes) -> str:
    """What is kept of a key and the request it came with: short, and without either."""
    if not key:
        return ""
    return (
        f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.{hashlib.sha256(body).hexdigest()[:32]}"
    )


def _used(snapshot: Snapshot, job: JobKey, mark: str) -> JobVersion | JobHead | Problem | None:
    """What the key has made before; KEY_REUSED if that was with another body."""
    key = mark.partition(".")[0] + "."
    for record in snapshot.jobs.values():
        made: JobVersion | JobHead
        for made in (*record.versions.values(), record.head):  # type: ignore[assignment]
            if made.idempotency.startswith(key):
                if made.idempotency == mark and record.key == job:
                    return made
                return KEY_REUSED(
                    f"The Idempotency-Key was used for another request, about {record.key}.",
                    hint="A new request needs a new key.",
                )
    return None


def _state(head: JobHead) -> dict[str, Any]:
    state = {"version": head.version, "wanted": head.wanted, "restart": head.restart}
    override = {"override_freeze": head.override_freeze} if head.override_freeze else {}
    return state | override
