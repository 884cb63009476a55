"""The state of a cluster as one file, and the same scheduler over it: bug reports become files.

A file holds a snapshot, the moment, and the plan that the scheduler made of it where it was
written. Read anywhere, the same functions make the same plan, byte for byte: canonical JSON, in
which everything that has no order of its own is sorted. A file of the first format does not know
what can wait, and is replayed without. What a decision does not need and others should not see is
left out: the keys that daemons show to each other, always; the values of environment variables and
what autoscaling asks, unless they are wanted.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from ozymandias import __version__
from ozymandias.core.arbiter import Leisure, Proposal, proposing
from ozymandias.core.freeze import cluster_frozen
from ozymandias.core.hindsight import Again, placements, stops
from ozymandias.core.preempt import Lately
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.upcoming import Moment, upcoming
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
VERSION = 2
WITHOUT_LEISURE = 1  # the last version whose plans leave out what can wait
BYTES_MAX = 256 * 2**20
LEFT_OUT = "(left out)"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a file holds; ``plan`` is what the scheduler made of it where it was written.

    A file of a recorded decision holds that in the place of a snapshot.
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    wall: float = 0.0
    moment: Moment | None = None  # None: the file is of a format without
    decision: Decision | None = None
    plan: Any
    version: int = VERSION
    made_by: str = ""  # version of the daemon that wrote it


def export(
    snapshot: Snapshot,
    wall: float,
    *,
    with_environment: bool = False,
    leisure: Leisure | None = None,
    lately: Lately | None = None,
) -> bytes:
    """The file of a snapshot; ``leisure`` and ``lately`` are what the daemon knows besides."""
    return at_once(
        exporting(snapshot, wall, with_environment=with_environment, leisure=leisure, lately=lately)
    )


def exporting(
    snapshot: Snapshot,
    wall: float,
    *,
    with_environment: bool = False,
    leisure: Leisure | None = None,
    lately: Lately | None = None,
) -> Stepwise[bytes]:
    """The same, step by step of the plan: to find that takes longest."""
    moment = Moment.of(snapshot, leisure or Leisure(), lately or Lately(wall=wall))
    shown = _without_keys(snapshot)
    if not with_environment:
        shown = _without_environment(shown)
    plan = yield from _planning(shown, wall, moment)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "made_by": __version__,
        "wall": wall,
        "moment": codec.plain(moment),
        "snapshot": _snapshot_document(shown),
        "plan": plan,
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


def explained(decision: Decision) -> Document:
    """A decision made again: what each node was to each placement, and whether it is the same."""
    return {
        "placements": [
            {
                **_again(again),
                "score": codec.plain(again.step.score),
                "nodes": codec.plain(again.explained.verdicts),
            }
            for again in placements(decision)
            if again.explained
        ],
        "stops": [_again(again) for again in stops(decision)],
        "left_out": decision.left_out,
    }


def _again(again: Again) -> Document:
    key = again.step.job
    return {
        "instance": f"{key.name}-{again.slot}",
        "namespace": key.namespace,
        "node": again.step.node,
        "reason": again.step.reason,
        "same": again.is_same,
        "why": again.why,
    }


def canonical(document: Any) -> bytes:
    """One spelling of each document, whoever writes it."""
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def plan_of(snapshot: Snapshot, wall: float, moment: Moment | None) -> Document | None:
    """What the scheduler does next and when, as a document; None when there is nothing to do.

    Without a moment: what it does at once, and nothing that can wait.
    """
    return at_once(_planning(snapshot, wall, moment))


def _planning(snapshot: Snapshot, wall: float, moment: Moment | None) -> Stepwise[Document | None]:
    if moment is None:
        dead = frozenset(name for name, node in snapshot.nodes.items() if not node.is_alive)
        proposal = yield from proposing(snapshot, dead, wall, dead)
        return _plan_document(proposal) if proposal else None
    found = yield from upcoming(snapshot, wall, moment)
    if found is None:
        return None
    frozen = cluster_frozen(snapshot.settings, wall)
    return {
        **_plan_document(found.proposal),
        "when": found.when.value,
        "steady_seconds": moment.steady_seconds,
        "frozen": frozen.words if frozen else "",
        "rebalance": snapshot.settings.rebalance.value,
    }


def _plan_document(proposal: Proposal) -> Document:
    document = codec.plain(replace(proposal.plan, edits=tuple(proposal.plan.edits)))
    for new in ("part", "contests"):  # of no matter to what is done, and unknown to older files
        del document[new]
    return {"what": proposal.what, "plan": _sorted(document)}


def replayed(recorded: Recorded) -> Any:
    """What this version of the scheduler makes of a file."""
    if recorded.decision is not None:
        return explained(recorded.decision)
    return plan_of(recorded.snapshot, recorded.wall, recorded.moment)


def is_same(recorded: Recorded, plan: Any) -> bool:
    """Whether a plan is the recorded one; of a decision, also whether it is what was decided.

    How a file of the first format explains a decision is not compared: the decision itself is.
    """
    if recorded.decision is not None:
        steps = (*plan["placements"], *plan["stops"])
        if any(step["same"] is False for step in steps):
            return False
        if recorded.version <= WITHOUT_LEISURE:
            return True
    return canonical(plan) == canonical(recorded.plan)


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
    except (ValueError, RecursionError):
        raise _unreadable("it is not JSON, as `ozy replay --export` writes it") from None
    try:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise _unreadable("it was not written by `ozy replay --export`")
        version: Any = document.get("version")
        if version not in range(1, VERSION + 1):
            raise _unreadable(
                f"it is of format {version!r}, and this version reads those up to {VERSION}"
            )
        if "decision" in document:
            return Recorded(
                decision=codec.of_plain(Decision, document["decision"]),
                plan=document["plan"],
                version=version,
                made_by=str(document.get("made_by", "")),
            )
        has_moment = version > WITHOUT_LEISURE
        return Recorded(
            snapshot=_snapshot(document["snapshot"]),
            wall=float(document["wall"]),
            moment=codec.of_plain(Moment, document["moment"]) if has_moment else None,
            plan=document["plan"],
            version=version,
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
