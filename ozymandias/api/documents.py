"""A snapshot as documents: what the API answers and `ozy … -o json` prints.

Pure functions from a Snapshot to plain dicts. The rows' members are a contract with scripts, so
they are spelled here and nowhere else. What the store says of an assignment comes before what a
node once said of it: an instance that waits, stops, or whose node is gone is shown as such even
when its last status was healthy.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import count, islice
from typing import Any

from ozymandias.api.changes import etag
from ozymandias.core.autoscale import frozen_pool, pool_of, pools
from ozymandias.core.buckets import is_system, sort_job
from ozymandias.core.departures import Blocker, foresee_drain
from ozymandias.core.freeze import cluster_frozen, holds_back
from ozymandias.core.routes import Names, hosts_of
from ozymandias.core.schedule import pending_of
from ozymandias.core.system import wanted_of
from ozymandias.model.event import EventRecord
from ozymandias.model.instance import Assigned, InstanceState, InstanceStatus, SlotState
from ozymandias.model.job import Autoscale, Container, Job, JobKey, JobRecord, JobVersion
from ozymandias.model.node import Demand, Node
from ozymandias.model.plan import Pending
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted
from ozymandias.problems import DEPLOY_FAILED, INSTANCES_PENDING, Problem

Document = dict[str, Any]

# What counts as having come up: a container that is meant to end has done so with COMPLETED.
GOOD = frozenset({InstanceState.HEALTHY, InstanceState.COMPLETED})


# Instances ----------------------------------------------------------------------------------------


def instance_rows(
    snapshot: Snapshot, *, namespace: str = "", job: JobKey | None = None
) -> list[Document]:
    """The rows of `ozy ps`: every assigned instance, and every one that waits for a place."""
    found = _rows_by_job(snapshot, job)
    return [
        row
        for key in sorted(found)
        if not namespace or key.namespace == namespace
        for row, _ in found[key]
    ]


# A row, and whether that instance has come up as the job's head wants it.
_Row = tuple[Document, bool]


def _rows_by_job(snapshot: Snapshot, job: JobKey | None = None) -> dict[JobKey, list[_Row]]:
    """All rows in one pass, so that listing many jobs does not look at all instances for each."""
    assigned: dict[JobKey, list[Assigned]] = defaultdict(list)
    for instance in snapshot.instances(job):
        assigned[instance.job].append(instance)
    rows: dict[JobKey, list[_Row]] = defaultdict(list)
    for key, instances in assigned.items():
        for instance in sorted(instances, key=lambda a: (a.slot, a.version, a.node)):
            row = instance_row(snapshot, instance)
            rows[key].append((row, _is_up_to_date(snapshot, instance, row["state"])))
    for item in pending_of(snapshot):
        if job is None or item.job == job:
            record = snapshot.jobs.get(item.job)
            rows[item.job].extend(
                (row, False) for row in _pending_rows(record, item, rows[item.job])
            )
    return rows


def instance_place(row: Document) -> tuple[str | int, ...]:
    """The place of a row in the list of all."""
    slot = int(row["instance"].rpartition("-")[2])
    return row["namespace"], row["job"], slot, row["version"], row["node"] or ""


def instance_row(snapshot: Snapshot, assigned: Assigned) -> Document:
    status = snapshot.status(assigned)
    state, reason = observed(snapshot, assigned, status)
    return {
        "instance": f"{assigned.job.name}-{assigned.slot}",
        "job": assigned.job.name,
        "namespace": assigned.job.namespace,
        "node": assigned.node,
        "state": state.value,
        "healthy": state is InstanceState.HEALTHY,
        "address": status.address if status and status.address else None,
        "version": assigned.version,
        "restarts": status.restarts if status else 0,
        "reason": reason,
    }


def observed(
    snapshot: Snapshot, assigned: Assigned, status: InstanceStatus | None
) -> tuple[InstanceState, str]:
    """What a person is told about an assigned instance, and why."""
    said = status.reason if status else ""
    node = snapshot.nodes.get(assigned.node)
    if node is None or not node.is_alive:
        return InstanceState.LOST, f"{assigned.node} does not answer"
    if assigned.state is SlotState.WAITING:
        return InstanceState.WAITING, f"waiting for room on {assigned.node} to be vacated"
    if assigned.state is SlotState.STOPPING:
        return InstanceState.STOPPING, said if _is(status, InstanceState.STOPPING) else "stopping"
    if status is None:
        return InstanceState.STARTING, f"assigned to {assigned.node}, which has not reported yet"
    if status.state is InstanceState.HEALTHY and not status.healthy:
        return InstanceState.UNHEALTHY, said
    return status.state, said


def _is(status: InstanceStatus | None, state: InstanceState) -> bool:
    return status is not None and status.state is state


def _pending_rows(
    record: JobRecord | None, pending: Pending, others: Sequence[_Row]
) -> list[Document]:
    """Rows of what is placed nowhere, with the slots it would take: the lowest free ones."""
    if record is None:
        return []
    taken = {row["instance"] for row, _ in others}
    names = (f"{record.key.name}-{slot}" for slot in count())
    free = (name for name in names if name not in taken)
    return [
        {
            "instance": name,
            "job": record.key.name,
            "namespace": record.key.namespace,
            "node": None,
            "state": InstanceState.PENDING.value,
            "healthy": False,
            "address": None,
            "version": record.head.version,
            "restarts": 0,
            "reason": pending.reason,
        }
        for name in islice(free, pending.count)
    ]


# Jobs -------------------------------------------------------------------------------------------


def status_document(
    snapshot: Snapshot, record: JobRecord, names: Names, now: float | None = None
) -> Document:
    """`ozy status JOB`; ``now`` is the wall clock, by which freeze windows go."""
    document = _status(snapshot, record, names, _rows_by_job(snapshot, record.key)[record.key])
    return document | {"frozen": frozen_words(snapshot, record, now)}


def frozen_words(snapshot: Snapshot, record: JobRecord, now: float | None) -> str | None:
    """By which freeze window a job's change is held, and until when; None: by none."""
    if now is None or not holds_back(snapshot.settings, record.head, now):
        return None
    if not sort_job(snapshot, record.key).outdated:
        return None
    frozen = cluster_frozen(snapshot.settings, now)
    return frozen.words if frozen else None


def job_rows(snapshot: Snapshot, names: Names, *, namespace: str = "") -> list[Document]:
    """The rows of `ozy jobs`."""
    rows = _rows_by_job(snapshot)
    shown = (
        *("job", "namespace", "type", "priority", "version"),
        *("wanted", "healthy", "pending", "state", "hosts"),
    )
    documents = (
        _status(snapshot, record, names, rows[key])
        for key, record in sorted(snapshot.jobs.items())
        if not namespace or key.namespace == namespace
    )
    return [{member: document[member] for member in shown} for document in documents]


def _status(snapshot: Snapshot, record: JobRecord, names: Names, found: Sequence[_Row]) -> Document:
    """``up_to_date`` counts the instances that have come up as the head wants them."""
    head = record.head
    wanted = wanted_of(snapshot, record)
    rows = [row for row, _ in found]
    counts = Counter(row["state"] for row in rows)
    up_to_date = sum(1 for _, is_current in found if is_current)
    problem = _job_problem(record, rows, wanted)
    return {
        "job": record.key.name,
        "namespace": record.key.namespace,
        "type": "system" if is_system(record) else "service",
        "priority": record.current.job.priority if record.current else 0,
        "uid": head.uid,
        "version": head.version,
        "wanted": wanted,
        "healthy": sum(1 for row in rows if row["healthy"]),
        "pending": counts[InstanceState.PENDING],
        "up_to_date": up_to_date,
        "state": _job_state(record, rows, counts, up_to_date, wanted),
        "hosts": _hosts(record.current, names),
        "instances": rows,
        "problem": problem.document() if problem else None,
        "revision": snapshot.revision,
        "etag": etag(head),
    }


def _is_up_to_date(snapshot: Snapshot, assigned: Assigned, state: str) -> bool:
    record = snapshot.jobs.get(assigned.job)
    if record is None or state not in GOOD:
        return False
    head = record.head
    own = (assigned.uid, assigned.version, assigned.generation)
    return own == (head.uid, head.version, head.restart)


def _job_state(
    record: JobRecord,
    rows: Sequence[Document],
    counts: Counter[str],
    up_to_date: int,
    wanted: int,
) -> str:
    """One word for a job: stopping, failed, pending, deploying, idle or healthy."""
    live = len(rows) - counts[InstanceState.STOPPING]
    if record.head.deleting:
        return "stopping"
    if counts[InstanceState.FAILED]:
        return "failed"
    if counts[InstanceState.PENDING]:
        return "pending"
    if up_to_date < wanted or live > wanted:
        return "deploying"
    return "healthy" if wanted else "idle"


def _job_problem(record: JobRecord, rows: Sequence[Document], wanted: int) -> Problem | None:
    failed = [row for row in rows if row["state"] == InstanceState.FAILED]
    pending = [row for row in rows if row["state"] == InstanceState.PENDING]
    name = str(record.key)
    if failed:
        first = failed[0]
        # As it is typed: with its namespace, unless that is the default one.
        instance = f"{name}-{instance_place(first)[2]}"
        return DEPLOY_FAILED(
            f"{len(failed)} of {counted(wanted, 'instance')} failed for good:"
            f" {instance} on {first['node']}: {first['reason']}",
            hint=f"`ozy logs {instance}` shows what it said last.",
            job=name,
        )
    if pending:
        have = "has" if len(pending) == 1 else "have"
        missing = f"{len(pending)} of {counted(wanted, 'instance')} {have}"
        return INSTANCES_PENDING(
            f"{missing} no place: {pending[0]['reason']}",
            hint=f"They are placed as soon as there is room; `ozy why {name}` shows what is free.",
            job=name,
        )
    return None


def _hosts(version: JobVersion | None, names: Names) -> list[str]:
    """``host`` or ``host/path``, as they are typed into a browser."""
    if version is None:
        return []
    return [
        host + (path if path != "/" else "")
        for host, path, _ in hosts_of(version.job, names.ingress_domain)
    ]


def pool_rows(snapshot: Snapshot, now: float, *, namespace: str = "") -> list[Document]:
    """The rows of `ozy pools`."""
    return [
        _pool_row(snapshot, record, rules, now)
        for record, rules in pools(snapshot)
        if not namespace or record.key.namespace == namespace
    ]


def _pool_row(snapshot: Snapshot, record: JobRecord, rules: Autoscale, now: float) -> Document:
    head, look = record.head, record.head.look
    frozen = frozen_pool(snapshot, rules, now)
    return {
        "pool": record.key.name,
        "namespace": record.key.namespace,
        "live": len(sort_job(snapshot, record.key).live),
        "wanted": head.wanted,
        "min": rules.min,
        "max": rules.max,
        "pending": look.pending if look else None,
        "every_seconds": rules.every_seconds,
        "step": rules.step,
        "source": rules.source.value,
        "seen_at": look.at if look else None,
        "seen_by": look.by if look else None,
        "frozen": frozen.words if frozen else None,
        "reason": look.reason if look else "its source was not asked yet",
    }


def pool_lines(snapshot: Snapshot, record: JobRecord, now: float) -> list[str]:
    """How a pool stands, for `ozy why`; nothing for other jobs."""
    rules = pool_of(record)
    if rules is None:
        return []
    row = _pool_row(snapshot, record, rules, now)
    line = f"It is a pool of {rules.min} to {rules.max}, {row['wanted']} now: {row['reason']}."
    # Who was asked in the freeze and would have made a step says so already.
    is_news = row["frozen"] and row["frozen"] not in row["reason"]
    return [line] + ([f"The pool is {row['frozen']}."] if is_news else [])


def version_row(version: JobVersion, current: int | None) -> Document:
    return {
        "version": version.version,
        "uid": version.uid,
        "current": version.version == current,
        "instances": version.job.instances,
        "images": {c.name: c.image for c in version.job.containers},
        "submitted_by": version.submitted_by,
        "submitted_at": version.submitted_at,
        "message": version.message,
        "override_freeze": version.override_freeze,
    }


def demand_document(job: Job) -> Document:
    """What one instance takes, with the defaults filled in."""
    demand = Demand.of(job)
    return {
        "memory_bytes": demand.memory_bytes,
        "disk_bytes": demand.disk_bytes,
        "cpu_millis": demand.cpu_millis,
        "host_ports": [str(port) for port in demand.host_ports],
        "containers": [_container(c) for c in job.containers],
    }


def _container(container: Container) -> Document:
    check = container.healthcheck
    return {
        "name": container.name,
        "image": container.image,
        "memory_bytes": container.memory_bytes,
        "disk_bytes": sum(v.space_bytes for v in container.volumes if v.kind == "local"),
        "restart": container.restart.mode.value,
        "healthcheck": check.kind.value if check else None,
    }


# Nodes and events -------------------------------------------------------------------------------


def node_row(snapshot: Snapshot, node: Node) -> Document:
    """A row of `ozy nodes`; ``allocated`` is what nobody else can have at this moment."""
    held, promised = node.ledger.held.resources, node.ledger.promised.resources
    capacity, reserve = node.ledger.capacity, node.ledger.reserve
    here = sum(1 for _ in snapshot.instances_on(node.name))
    state, reason = _node_state(node, here)
    return {
        "name": node.name,
        "state": state,
        "schedules": node.schedules,
        "cordoned": node.ledger.is_cordoned,
        "drain": _drain(snapshot, node, here),
        "allows_host_network": node.ledger.allows_host_network,
        "memory_bytes": {
            "total": capacity.memory_bytes,
            "reserved": reserve.memory_bytes,
            "allocated": max(held.memory_bytes, promised.memory_bytes),
        },
        "disk_bytes": {
            "total": capacity.disk_bytes,
            "reserved": reserve.disk_bytes,
            "allocated": max(held.disk_bytes, promised.disk_bytes),
        },
        "cpu_millis": {
            "total": capacity.cpu_millis,
            "reserved": reserve.cpu_millis,
            "allocated": max(held.cpu_millis, promised.cpu_millis),
        },
        "labels": node.ledger.all_labels,
        "instances": here,
        "reason": reason,
    }


def _drain(snapshot: Snapshot, node: Node, here: int) -> Document | None:
    """A drain under way, and what is in its way at this moment."""
    drain = node.ledger.drain
    if drain is None:
        return None
    blockers = foresee_drain(snapshot, node.name).blockers if here and node.is_alive else ()
    return {
        "since": drain.since,
        "deadline": drain.deadline or None,
        "by": drain.by,
        "reason": drain.reason,
        "blockers": [blocker_row(blocker) for blocker in blockers],
    }


def blocker_row(blocker: Blocker) -> Document:
    return {
        "instance": blocker.instance,
        "job": blocker.job.name,
        "namespace": blocker.job.namespace,
        "reason": blocker.reason,
    }


def _node_state(node: Node, here: int) -> tuple[str, str]:
    if node.presence is None:
        return "lost", "its lease has run out: the node does not answer"
    if node.presence.degraded:
        return "degraded", node.presence.degraded
    if node.ledger.drain:
        left = f"{counted(here, 'instance')} to leave"
        return ("draining", left) if here else ("drained", "nothing is left on it")
    if node.ledger.is_cordoned:
        return "cordoned", "takes no new work"
    if node.load and node.load.taint:
        return "tainted", f"takes no new work: {node.load.taint}"
    return "ready", ""


def event_row(event: EventRecord) -> Document:
    return {
        "time": event.time,
        "node": event.node,
        "number": event.number,
        "kind": event.kind,
        "reason": event.reason,
        "namespace": event.namespace,
        "job": event.job,
        "instance": event.instance,
    }


def event_place(row: Document) -> tuple[float | str | int, ...]:
    return row["time"], row["node"], row["number"]
