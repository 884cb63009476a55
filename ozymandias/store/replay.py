"""The state of a cluster as one file, and the same scheduler over it: bug reports become files.

A file holds a snapshot, the moment, and the plan that the scheduler made of it where it was
written. Read anywhere, the same functions make the same plan, byte for byte: canonical JSON, in
which everything that has no order of its own is sorted. What a decision does not need and others
should not see is left out: the keys that daemons show to each other, always; the values of
environment variables and what autoscaling asks, unless they are wanted.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from ozymandias import __version__
from ozymandias.core.arbiter import propose
from ozymandias.core.decision import explain
from ozymandias.model.decision import Decision
from ozymandias.model.instance import Assignment, Group, InstanceStatus, JobStatus
from ozymandias.model.job import Container, Job, JobHead, JobKey, JobRecord, JobVersion
from ozymandias.model.node import Node, NodeName
from ozymandias.model.record import replace
from ozymandias.model.settings import Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import INVALID_REPLAY, ProblemError
from ozymandias.store import codec
from ozymandias.store.keys import job_key

FORMAT = "ozymandias-replay"
VERSION = 1
BYTES_MAX = 256 * 2**20
LEFT_OUT = "(left out)"
SLOTS_MAX = 16  # of a run of a decision that are computed again

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a file holds; ``plan`` is what the scheduler made of it where it was written.

    A file of a recorded decision holds that in the place of a snapshot.
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    wall: float = 0.0
    decision: Decision | None = None
    plan: Any
    made_by: str = ""  # version of the daemon that wrote it


def export(snapshot: Snapshot, wall: float, *, with_environment: bool = False) -> bytes:
    """The file of a snapshot."""
    shown = _without_keys(snapshot)
    if not with_environment:
        shown = _without_environment(shown)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "made_by": __version__,
        "wall": wall,
        "snapshot": _snapshot_document(shown),
        "plan": plan_of(shown, wall),
    }
    return canonical(document)


def export_decision(decision: Decision) -> bytes:
    """The file of a recorded decision: what it was made on, and what came of it."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "made_by": __version__,
        "decision": codec.plain(decision),
        "plan": explained(decision),
    }
    return canonical(document)


def explained(decision: Decision) -> list[Document]:
    """Every placement of a decision, computed again: what each node was to it."""
    return [
        {
            "instance": f"{step.job}-{slot}",
            "node": step.node,
            "reason": step.reason,
            "exact": found.is_exact,
            "nodes": codec.plain(found.verdicts),
        }
        for number, step in enumerate(decision.steps)
        if step.before is None
        for slot in step.slots.numbers[:SLOTS_MAX]
        for found in (explain(decision, number, slot),)
    ]


def canonical(document: Any) -> bytes:
    """One spelling of each document, whoever writes it."""
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def plan_of(snapshot: Snapshot, wall: float) -> Document | None:
    """What the scheduler would do now, as a document; None when there is nothing to do.

    Whoever is not there counts as dead: how long it has been away is not part of a snapshot.
    """
    dead = frozenset(name for name, node in snapshot.nodes.items() if not node.is_alive)
    proposal = propose(snapshot, dead, wall, dead)
    if proposal is None:
        return None
    document = codec.plain(replace(proposal.plan, edits=tuple(proposal.plan.edits)))
    del document["part"]  # what any peer may decide has none, and older files do not know it
    return {"what": proposal.what, "plan": _sorted(document)}


def replayed(recorded: Recorded) -> Any:
    """What this version of the scheduler makes of a file."""
    if recorded.decision is not None:
        return explained(recorded.decision)
    return plan_of(recorded.snapshot, recorded.wall)


def _sorted(document: Document) -> Document:
    """Sets have no order; in a file they have."""
    document["dead"] = sorted(document["dead"])
    if document["job"]:
        for part in ("claim", "disclaim"):
            document["job"][part] = sorted(document["job"][part])
    return document


# Writing ------------------------------------------------------------------------------------------


def _name(key: JobKey) -> str:
    return f"{key.namespace}/{key.name}"


def _snapshot_document(snapshot: Snapshot) -> Document:
    return {
        "revision": snapshot.revision,
        "nodes": {name: codec.plain(node) for name, node in snapshot.nodes.items()},
        "jobs": {
            _name(key): {
                "head": codec.plain(record.head),
                "head_revision": record.head_revision,
                "versions": {str(n): codec.plain(v) for n, v in record.versions.items()},
            }
            for key, record in snapshot.jobs.items()
        },
        "assignments": {
            node: {_name(key): codec.plain(found.groups) for key, found in row.items()}
            for node, row in snapshot.assigned.by_node.items()
        },
        "statuses": {
            node: {
                _name(key): [codec.plain(one) for _, one in sorted(found.instances.items())]
                for key, found in row.items()
            }
            for node, row in snapshot.told.by_node.items()
        },
        "claims": {claim: _name(key) for claim, key in snapshot.claims.items()},
        "last_versions": {_name(key): number for key, number in snapshot.last_versions.items()},
        "settings": codec.plain(snapshot.settings),
        "settings_revision": snapshot.settings_revision,
    }


def _without_keys(snapshot: Snapshot) -> Snapshot:
    nodes = {
        name: replace(node, presence=replace(node.presence, peer_key="")) if node.presence else node
        for name, node in snapshot.nodes.items()
    }
    return replace(snapshot, nodes=nodes)


def _without_environment(snapshot: Snapshot) -> Snapshot:
    jobs = {
        key: replace(
            record,
            versions={n: replace(v, job=_job_without(v.job)) for n, v in record.versions.items()},
        )
        for key, record in snapshot.jobs.items()
    }
    return replace(snapshot, jobs=jobs)


def _job_without(job: Job) -> Job:
    scale = replace(job.autoscale, target=LEFT_OUT) if job.autoscale else None
    return replace(job, containers=tuple(map(_container_without, job.containers)), autoscale=scale)


def _container_without(container: Container) -> Container:
    kept = tuple((name, LEFT_OUT) for name, _ in container.environment)
    return replace(container, environment=kept)


# Reading ------------------------------------------------------------------------------------------


def load(data: bytes) -> Recorded:
    """What a file holds; ProblemError when it is none of ours."""
    try:
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise _unreadable("it was not written by `ozy replay --export`")
        if document.get("version") != VERSION:
            newer = f"it is of format {document.get('version')!r}, and this version reads {VERSION}"
            raise _unreadable(newer)
        if "decision" in document:
            return Recorded(
                decision=codec.of_plain(Decision, document["decision"]),
                plan=document["plan"],
                made_by=str(document.get("made_by", "")),
            )
        return Recorded(
            snapshot=_snapshot(document["snapshot"]),
            wall=float(document["wall"]),
            plan=document["plan"],
            made_by=str(document.get("made_by", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        detail = f"{type(error).__name__}: {str(error)[:200]}"
        raise _unreadable(f"its content is damaged ({detail})") from None


def _unreadable(why: str) -> ProblemError:
    return ProblemError(INVALID_REPLAY(f"The file can't be replayed: {why}."))


def _snapshot(document: Document) -> Snapshot:
    assignments = {
        (NodeName(node), key): Assignment(
            node=NodeName(node), job=key, groups=codec.of_plain(tuple[Group, ...], groups)
        )
        for node, row in document["assignments"].items()
        for key, groups in ((_key(name), groups) for name, groups in row.items())
    }
    statuses = {
        (NodeName(node), key): JobStatus(
            node=NodeName(node),
            job=key,
            instances={
                one.slot: one for one in (codec.of_plain(InstanceStatus, found) for found in rows)
            },
        )
        for node, row in document["statuses"].items()
        for key, rows in ((_key(name), rows) for name, rows in row.items())
    }
    return Snapshot(
        revision=document["revision"],
        nodes={NodeName(n): codec.of_plain(Node, node) for n, node in document["nodes"].items()},
        jobs={_key(name): _record(_key(name), job) for name, job in document["jobs"].items()},
        assignments=assignments,
        statuses=statuses,
        claims={claim: _key(owner) for claim, owner in document["claims"].items()},
        last_versions={_key(name): n for name, n in document["last_versions"].items()},
        settings=codec.of_plain(Settings, document["settings"]),
        settings_revision=document["settings_revision"],
    )


def _record(key: JobKey, document: Document) -> JobRecord:
    return JobRecord(
        key=key,
        head=codec.of_plain(JobHead, document["head"]),
        head_revision=document["head_revision"],
        versions={
            int(number): codec.of_plain(JobVersion, version)
            for number, version in document["versions"].items()
        },
    )


def _key(name: str) -> JobKey:
    namespace, _, short = name.partition("/")
    return job_key(namespace, short)
