"""Where schedules are decided. Start reading here.

Every decision is a pure function of a snapshot: it returns a Plan, or the Problem that stands in
its way, or None when there is nothing to do. `store/commit.py` carries plans out, or asks again
with a fresher snapshot. What people ask for is decided here, all or nothing:

    plan_submit   a new job, or a changed one      plan_stop      the job and its instances go
    plan_scale    more or fewer instances          plan_restart   replace every instance

What the peers do of their own accord, as far as it goes:

    plan_repair   nodes were lost       core/upkeep.py     plan_system   one on every node
    plan_pending  room appeared         core/upkeep.py                   core/system.py
    plan_preempt  no room, but lower    core/preempt.py    plan_drain    a node is to be empty
                  priorities have some                                   core/drain.py
    plan_rollout  the next step of a    core/rollout.py    plan_vacate   a node's pods are gone
                  change                                                 core/vacate.py
    plan_stopped  jobs were stopped     core/upkeep.py     plan_shed     a host is under
    plan_tidy     nothing is left       core/upkeep.py                   pressure  core/shed.py
Which of those goes first is said by core/arbiter.py alone. What an operator sets on a node (cordon,
drain, labels) is in core/nodes.py.
"""

from functools import partial

from ozymandias import problems
from ozymandias.core.attempt import beside, instead, is_alike, rooms_without
from ozymandias.core.autoscale import fitting_after, not_by_hand, pool_of, wanted_after
from ozymandias.core.buckets import Buckets, FreeSlots, is_system, per_node, sort_job
from ozymandias.core.choice import surplus_first
from ozymandias.core.drain import drained_nodes
from ozymandias.core.edits import new_instance, stop
from ozymandias.core.fitting import reject
from ozymandias.core.in_vain import jobs_alike
from ozymandias.core.parts import part_of
from ozymandias.core.placement import Ask, place
from ozymandias.core.preempt import UNKNOWN, Lately, could_displace, place_displacing
from ozymandias.core.rooms import NOW_OR_SOON
from ozymandias.core.routes import Names, claims_of
from ozymandias.core.rules import (
    contradiction_in,
    rules_of,
    unknown_burst_nodes,
    unknown_neighbour,
)
from ozymandias.core.runs import place_runs, why_of
from ozymandias.core.system import pending_on, rooms_for_system, tend, tending_of
from ozymandias.core.upkeep import pending_of, plan_pending, plan_repair, plan_tidy, stops_of
from ozymandias.core.vacate import plan_vacate
from ozymandias.model.job import Job, JobHead, JobKey, JobKind, JobRecord, JobVersion
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.plan import JobChange, Plan, Runs
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted
from ozymandias.problems import Problem

__all__ = [
    "pending_of",
    "plan_pending",
    "plan_repair",
    "plan_restart",
    "plan_scale",
    "plan_stop",
    "plan_submit",
    "plan_tidy",
    "plan_vacate",
]


def plan_submit(
    snapshot: Snapshot,
    job: Job,
    *,
    uid: str,
    names: Names,
    submitted_by: str = "",
    submitted_at: float = 0.0,
    message: str = "",
    lately: Lately = UNKNOWN,
    override_freeze: str = "",
    peer: NodeName | None = None,
) -> Plan | Problem:
    """Create the job, or change it to this; an unchanged job gives an empty plan.

    A new job is placed at once and as a whole, if need be at the cost of lower priorities
    (`core/preempt.py`; ``lately`` is what is known of such before). A changed one gets a new
    version, if all of it would fit in place of the old; `plan_rollout` then replaces instance by
    instance. A job that differs in the number of instances only is scaled. ``override_freeze`` is
    why the replacing does not wait for the end of a freeze window. ``peer`` is who decides this for
    its caller, and nobody else will: it looks in its own part of the nodes first (`core/parts.py`).
    """
    record = snapshot.jobs.get(job.key)
    if record is not None and record.head.deleting:
        return _still_stopping(job.key)
    claims = claims_of(job, names.ingress_domain)
    if problem := _host_taken(snapshot, job.key, claims) or _against_itself(snapshot, job):
        return problem
    version = JobVersion(
        uid=record.head.uid if record else uid,
        version=_next_version(snapshot, job.key, record),
        job=job,
        submitted_by=submitted_by,
        submitted_at=submitted_at,
        message=message,
        override_freeze=override_freeze,
    )
    is_new = record is None or record.current is None or not is_alike(record.current.job, job)
    if is_new and (problem := _neighbourless(snapshot, job) or _burstless(snapshot, job)):
        return problem
    if record is None:
        plan = _new_job(snapshot, version, lately, peer)
    elif is_new:
        plan = _changed_job(snapshot, record, version, lately)
    else:
        plan = _scale(snapshot, record, wanted_after(record, job), lately, peer)
        if override_freeze and isinstance(plan, Plan):
            plan = _hurried(plan, record, override_freeze)
    return plan if isinstance(plan, Problem) else _with_claims(snapshot, plan, job.key, claims)


def _new_job(
    snapshot: Snapshot, version: JobVersion, lately: Lately, peer: NodeName | None
) -> Plan | Problem:
    job = version.job
    if job.kind is JobKind.SYSTEM:
        return _new_system_job(snapshot, version)
    head = JobHead(uid=version.uid, version=version.version, wanted=job.instances)
    # Pods of an earlier job of this name may still be stopping: their slots are not free.
    placed = _place_all(snapshot, job, head, sort_job(snapshot, job.key), lately, peer)
    if isinstance(placed, Problem):
        return placed
    return replace(
        placed,
        reason=f"{job.key} is new, with {counted(job.instances, 'instance')}",
        job=JobChange(key=job.key, head=head, version=version),
    )


def _new_system_job(snapshot: Snapshot, version: JobVersion) -> Plan:
    """Wherever there is room now; a node without is no reason to keep it from the others."""
    key = version.job.key
    head = JobHead(uid=version.uid, version=version.version, wanted=0)
    record = JobRecord(key=key, head=head, head_revision=0, versions={version.version: version})
    tending = tending_of(snapshot, record, sort_job(snapshot, key), rooms_for_system(snapshot))
    edits = tuple(tend(tending))
    placed = frozenset(edit.node for edit in edits)
    return Plan(
        reason=f"{key} is new, one on every matching node",
        edits=edits,
        job=JobChange(key=key, head=head, version=version),
        pending=tuple(pending_on(tending, placed)),
        is_divisible=True,
    )


def _changed_job(
    snapshot: Snapshot, record: JobRecord, version: JobVersion, lately: Lately
) -> Plan | Problem:
    job = version.job
    if job.kind is JobKind.SYSTEM:
        return Plan(
            reason=f"{job.key} changes to version {version.version}: its instances are replaced"
            " node by node, healthy before the next",
            job=JobChange(
                key=job.key,
                head=replace(
                    record.head,
                    version=version.version,
                    wanted=0,
                    override_freeze=version.override_freeze,
                ),
                version=version,
            ),
        )
    attempt = instead(snapshot, job, fitting_after(snapshot, record, job))
    head = replace(
        record.head,
        version=version.version,
        wanted=wanted_after(record, job),
        override_freeze=version.override_freeze,
    )
    if not attempt.fits():
        # What it would be at others' cost is tried in rooms of its own: a refusal tells of these.
        rooms, least = rooms_without(snapshot, job.key), replace(head, wanted=attempt.wanted)
        if not (_is_no_larger(record, job) and could_displace(snapshot, job, least, rooms, lately)):
            return reject(attempt)
    return Plan(
        reason=f"{job.key} changes to version {version.version}: its instances are replaced"
        " one at a time, healthy before the next",
        job=JobChange(key=job.key, head=head, version=version),
    )


def _hurried(plan: Plan, record: JobRecord, why: str) -> Plan:
    """The same file again, and this time it shall not wait for the end of a freeze window."""
    if record.head.override_freeze == why:
        return plan
    change = plan.job or JobChange(key=record.key, head=record.head)
    assert change.head is not None
    head = replace(change.head, override_freeze=why)
    reason = plan.reason if plan.job else f"{record.key} waits for no freeze window: {why}"
    return replace(plan, reason=reason, job=replace(change, head=head))


def _is_no_larger(record: JobRecord, job: Job) -> bool:
    """Each old instance can be replaced in its place; only what is missing needs others' room."""
    old, new = Demand.of(record.current.job) if record.current else Demand(), Demand.of(job)
    return new.resources.fits_in(old.resources) and {*new.host_ports} <= {*old.host_ports}


def plan_scale(
    snapshot: Snapshot,
    key: JobKey,
    instances: int,
    lately: Lately = UNKNOWN,
    peer: NodeName | None = None,
) -> Plan | Problem:
    """More instances are placed all or not at all; fewer: those missed least are stopped.

    ``peer`` is as in `plan_submit`.
    """
    record = _standing(snapshot, key)
    if isinstance(record, Problem):
        return record
    if rules := pool_of(record):
        return not_by_hand(key, rules)
    return _scale(snapshot, record, instances, lately, peer)


def _scale(
    snapshot: Snapshot,
    record: JobRecord,
    instances: int,
    lately: Lately,
    peer: NodeName | None,
) -> Plan | Problem:
    key = record.key
    if is_system(record):
        return _not_scalable(record, instances)
    if instances == record.head.wanted:
        return Plan(reason=f"{key} has {counted(instances, 'instance')} already: nothing to change")
    head = replace(record.head, wanted=instances)
    buckets = sort_job(snapshot, key)
    surplus = len(buckets.live) - instances
    if surplus >= 0:
        burst = record.current.job.placement.burst if record.current else None
        leaving = surplus_first(buckets, surplus, drained_nodes(snapshot), burst)
        plan: Plan | Problem = Plan(
            reason="",
            edits=tuple(
                stop(assigned, f"{key} is scaled to {instances}: {why}")
                for assigned, why in leaving
            ),
            is_divisible=True,  # what is left is more than wanted, which `plan_rollout` sees to
        )
    elif record.current is None:
        return problems.INTERNAL(f"The record of version {head.version} of {key} can't be read.")
    elif instances < record.head.wanted:
        plan = Plan(reason="")  # fewer are missing than before; `plan_pending` looks for room
    else:
        plan = _place_all(snapshot, record.current.job, head, buckets, lately, peer)
    if isinstance(plan, Problem):
        return plan
    return replace(
        plan,
        reason=f"{key} is scaled from {record.head.wanted} to {counted(instances, 'instance')}",
        job=JobChange(key=key, head=head),
    )


def _place_all(
    snapshot: Snapshot,
    job: Job,
    head: JobHead,
    buckets: Buckets,
    lately: Lately,
    peer: NodeName | None,
) -> Plan | Problem:
    """Every instance that is missing, or the problem that keeps one of them from being placed."""
    key, live = job.key, buckets.live
    there = per_node(live) if live else {}
    ask = Ask.of(job, head, rules_of(snapshot, job), there)
    demand = ask.demand
    missing, current = head.wanted - len(live), per_node(buckets.current) if live else {}
    slots = FreeSlots(buckets.used_slots())
    own = part_of(snapshot.nodes, peer)
    for part in (own, None) if own else (None,):
        if portions := place_runs(snapshot.nodes, ask, missing, current, part):
            numbers = slots.take([count for _, count, _ in portions])
            runs = Runs(key, head, demand, portions, numbers, partial(why_of, ask))
            return Plan(reason="", edits=runs, part=part)
    attempt = beside(snapshot, job, head.wanted, buckets, ask.rules)
    if not attempt.fits():
        return place_displacing(snapshot, job, head, buckets, lately) or reject(attempt)
    placed = place(attempt.rooms, ask, missing, current, NOW_OR_SOON)
    assert len(placed) == missing, "placed fewer than fit"
    edits = tuple(new_instance(key, head, next(slots), demand, p) for p in placed)
    return Plan(reason="", edits=edits)


def plan_stop(snapshot: Snapshot, key: JobKey) -> Plan | Problem:
    """The job is marked as going, its instances stop, its ingress hosts are free for others.

    Of more instances than one transaction takes the others are left to `plan_stopped`.
    """
    record = snapshot.jobs.get(key)
    if record is None:
        return _not_found(key)
    if record.head.deleting:
        return Plan(reason=f"{key} is stopping already")
    is_over = not snapshot.of(key)
    return Plan(
        reason=f"{key} is stopped",
        edits=tuple(stops_of(snapshot, key)),
        is_divisible=True,
        job=JobChange(
            key=key,
            head=None if is_over else replace(record.head, deleting=True, wanted=0),
            disclaim=frozenset(c for c, owner in snapshot.claims.items() if owner == key),
        ),
    )


def plan_restart(snapshot: Snapshot, key: JobKey, *, override_freeze: str = "") -> Plan | Problem:
    """A new generation of the same version: every instance becomes outdated and is replaced."""
    record = _standing(snapshot, key)
    if isinstance(record, Problem):
        return record
    return Plan(
        reason=f"{key} is restarted: its instances are replaced one at a time",
        job=JobChange(
            key=key,
            head=replace(
                record.head, restart=record.head.restart + 1, override_freeze=override_freeze
            ),
        ),
    )


# Answers that several of them give ----------------------------------------------------------------


def _standing(snapshot: Snapshot, key: JobKey) -> JobRecord | Problem:
    record = snapshot.jobs.get(key)
    if record is None:
        return _not_found(key)
    return _still_stopping(key) if record.head.deleting else record


def _not_scalable(record: JobRecord, instances: int) -> Plan | Problem:
    """The same file again asks for nothing; a number is a mistake."""
    key = record.key
    if record.current and instances == record.current.job.instances == 0:
        return Plan(reason=f"{key} is as it is to be: nothing to change")
    return problems.SYSTEM_JOB(
        f"{key} runs once on every node that matches, so it can't be scaled.",
        hint="`placement.require` in its job file chooses the nodes.",
        job=key.name,
        namespace=key.namespace,
    )


def _neighbourless(snapshot: Snapshot, job: Job) -> Problem | None:
    other = unknown_neighbour(snapshot, job)
    if other is None:
        return None
    alike = jobs_alike(snapshot, other, job.key)
    meant = f"Did you mean {' or '.join(alike)}? Else submit" if alike else "Submit"
    return problems.NEIGHBOUR_NOT_FOUND(
        f"{job.key} is to be near {other}, and there is no such job.",
        hint=f"{meant} {other} first, or give it a weight: then it is preferred only.",
        job=job.name,
        namespace=job.namespace,
        neighbour=str(other),
    )


def _burstless(snapshot: Snapshot, job: Job) -> Problem | None:
    """A node of this name may be meant to come; but until it does, nothing could go there."""
    unknown = unknown_burst_nodes(snapshot, job)
    if not unknown or job.kind is JobKind.SYSTEM:
        return None
    assert job.placement.burst is not None
    return problems.BURST_NODE_NOT_FOUND(
        f"Above {counted(job.placement.burst.after, 'instance')} {job.key} is to go to"
        f" {' or '.join(job.placement.burst.nodes)}, and there is no node"
        f" {' and no node '.join(unknown)}.",
        hint="`ozy nodes` lists those that are known. One that is to come has to join first.",
        job=job.name,
        namespace=job.namespace,
        unknown_nodes=list(unknown),
    )


def _against_itself(snapshot: Snapshot, job: Job) -> Problem | None:
    against = contradiction_in(snapshot, job)
    if not against:
        return None
    return problems.does_not_fit(
        problems.NO_MATCHING_NODE,
        job=job.name,
        detail=f"No node can match {job.key}: {against}.",
        required=job.instances,
        placeable=0,
        nodes=(),
        suggestions=(),
    )


def _not_found(key: JobKey) -> Problem:
    return problems.JOB_NOT_FOUND(
        f"There is no job {key}.",
        hint="`ozy jobs` lists them all.",
        job=key.name,
        namespace=key.namespace,
    )


def _still_stopping(key: JobKey) -> Problem:
    return problems.JOB_STOPPING(
        f"{key} was stopped, and its last instances are not gone yet.",
        hint="Wait a moment and try again; `ozy ps` shows what is left.",
        job=key.name,
        namespace=key.namespace,
    )


def _host_taken(snapshot: Snapshot, key: JobKey, claims: frozenset[str]) -> Problem | None:
    for claim in sorted(claims):
        owner = snapshot.claims.get(claim, key)
        if owner != key:
            record = snapshot.jobs.get(owner)
            is_protected = record and record.current and record.current.job.is_protected
            whose = " (which is protected: administrators may)" if is_protected else ""
            return problems.HOST_TAKEN(
                f"{claim} belongs to job {owner}.",
                hint=f"Give {key} another host or path under `ingress:`, or stop {owner}{whose}.",
                job=key.name,
                namespace=key.namespace,
                claim=claim,
                owner=str(owner),
            )
    return None


def _with_claims(snapshot: Snapshot, plan: Plan, key: JobKey, claims: frozenset[str]) -> Plan:
    """The plan, which also takes the job's hosts and gives up those it no longer names."""
    if key in snapshot.jobs:
        owned = frozenset(c for c, owner in snapshot.claims.items() if owner == key)
    else:
        owned = frozenset()  # who stops a job gives up all that it had
    if owned == claims:
        return plan
    change = plan.job or JobChange(key=key, head=snapshot.jobs[key].head)
    return replace(plan, job=replace(change, claim=claims - owned, disclaim=owned - claims))


def _next_version(snapshot: Snapshot, key: JobKey, record: JobRecord | None) -> int:
    """Numbers go on after a job was deleted: a version never means two things."""
    last = snapshot.last_versions.get(key, 0)
    return 1 + (max(last, record.head.version, *record.versions) if record else last)
