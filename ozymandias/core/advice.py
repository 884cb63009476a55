"""What would give a pending job its places: suggestions that were carried out and did.

The candidates are those of `core/suggest.py`, which looks at rooms; here each is carried out on a
copy of the snapshot, as the operator would, and played by the scheduler until it rests. Only what
leaves the job with all that it wants is told.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ozymandias.core.attempt import Attempt
from ozymandias.core.buckets import is_system, per_node, sort_job
from ozymandias.core.outlook import Future
from ozymandias.core.rooms import rooms_of
from ozymandias.core.rules import pools_of, rules_of
from ozymandias.core.suggest import suggestions_for
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Container, Job, JobKey, JobRecord, Neighbour, PlacementRules
from ozymandias.model.node import Demand, Ledger, Node, NodeName, Presence, Resources
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import parse_size
from ozymandias.problems import Suggestion

NODES_MAX = 200  # in larger clusters playing each suggestion would take too long

_MEMORY = re.compile(r"containers\.([^.]+)\.memory")
_CORES = re.compile(r"containers\.([^.]+)\.cpu")
_SPACE = re.compile(r"containers\.([^.]+)\.volumes\.(.+)\.space")


def advice(snapshot: Snapshot, key: JobKey) -> tuple[Suggestion, ...]:
    """What would give the job all the instances that it lacks; nothing if it lacks none."""
    record = snapshot.jobs.get(key)
    if record is None or record.current is None or record.head.deleting or is_system(record):
        return ()
    buckets, job = sort_job(snapshot, key), record.current.job
    attempt = Attempt(
        snapshot=snapshot,
        job=job,
        demand=Demand.of(job),
        rules=rules_of(snapshot, job),
        rooms=rooms_of(snapshot),
        wanted=record.head.wanted,
        kept=len(buckets.live),
        there=per_node(buckets.live),
    )
    if attempt.fits() or len(snapshot.nodes) > NODES_MAX:
        return ()
    found = suggestions_for(attempt, attempt.placeable())
    return tuple(s for s in found if does(snapshot, key, s.change))


def does(snapshot: Snapshot, key: JobKey, change: Mapping[str, Any]) -> bool:
    """Whether the change, carried out and played to its end, leaves the job with all it wants."""
    world = carried_out(snapshot, key, change)
    if world is None:
        return False
    future = Future(world).play()
    live = sum(1 for a in future.now.instances(key) if a.state is not SlotState.STOPPING)
    return live >= future.now.jobs[key].head.wanted


def carried_out(snapshot: Snapshot, key: JobKey, change: Mapping[str, Any]) -> Snapshot | None:
    """The snapshot after a suggestion was followed; None for one that nobody here knows."""
    record = snapshot.jobs[key]
    for name, value in change.items():
        if name in ("start", "uncordon", "undrain"):
            names = value if isinstance(value, list) else [value]
            return _with_nodes(snapshot, {n: _opened(snapshot.nodes[n]) for n in names})
        if name == "label":
            node = snapshot.nodes[value["node"]]
            labels = {**node.ledger.set_labels, **value["labels"]}
            return _with_nodes(
                snapshot,
                {node.name: replace(node, ledger=replace(node.ledger, set_labels=labels))},
            )
        if name == "nodes":
            return _with_nodes(snapshot, dict(_new_nodes(snapshot, record, change)))
        if name == "numInstances":
            head = replace(record.head, wanted=value)
            return _with_job(snapshot, replace(record, head=head))
        if record.current and (job := _changed(record.current.job, name, value)):
            return _with_job(snapshot, _next_version(record, job))
    return None


def _with_nodes(snapshot: Snapshot, nodes: Mapping[NodeName, Node]) -> Snapshot:
    return replace(snapshot, nodes={**snapshot.nodes, **nodes})


def _with_job(snapshot: Snapshot, record: JobRecord) -> Snapshot:
    return replace(snapshot, jobs={**snapshot.jobs, record.key: record})


def _opened(node: Node) -> Node:
    ledger = replace(node.ledger, is_cordoned=False, drain=None)
    presence = Presence(address="", machine_id="", session="", daemon_version="", api="")
    return replace(node, ledger=ledger, presence=node.presence or presence, presence_revision=1)


def _new_nodes(
    snapshot: Snapshot, record: JobRecord, change: Mapping[str, Any]
) -> Iterator[tuple[NodeName, Node]]:
    """Nodes as the suggestion words them: with what the job and its pool require of labels."""
    rules = record.current.job.placement if record.current else PlacementRules()
    pools = pools_of(snapshot.settings, record.key.namespace, is_hard=True)
    required = (*rules.require, *(pools[0].require if pools else ()))
    labels = {rule.label: rule.values[0] for rule in required if rule.values}
    capacity = Resources(
        memory_bytes=change["memory_bytes"],
        disk_bytes=change.get("disk_bytes", 0),
        cpu_millis=change.get("cpu_millis", 0),
    )
    for number in range(change["nodes"]):
        name = NodeName(f"new-{number}")
        ledger = Ledger(capacity=capacity, labels=labels)
        yield name, _opened(Node(name=name, ledger=ledger, ledger_revision=1))


def _next_version(record: JobRecord, job: Job) -> JobRecord:
    assert record.current is not None
    number = max(record.versions) + 1
    version = replace(record.current, version=number, job=job)
    return replace(
        record,
        head=replace(record.head, version=number),
        versions={**record.versions, number: version},
    )


def _changed(job: Job, name: str, value: Any) -> Job | None:
    if match := _MEMORY.fullmatch(name):
        size = parse_size(value)
        return _containers(job, match[1], lambda c: replace(c, memory_bytes=size))
    if match := _SPACE.fullmatch(name):
        space, path = parse_size(value), match[2]
        return _containers(job, match[1], lambda c: _with_space(c, path, space))
    if name == "ports":
        return _containers(
            job, "", lambda c: replace(c, ports=tuple(replace(p, host=None) for p in c.ports))
        )
    if match := _CORES.fullmatch(name):
        return _containers(job, match[1], lambda c: replace(c, cpu=value))
    rules = _other_rules(job.placement, name, value)
    return replace(job, placement=rules) if rules else None


def _other_rules(rules: PlacementRules, name: str, value: Any) -> PlacementRules | None:
    if name == "placement.max_per_node":
        return replace(rules, max_per_node=value)
    if name == "placement.burst" and value is None:
        return replace(rules, burst=None)
    if name == "placement.near":
        return replace(rules, near=_softened(rules.near, value))
    if name == "placement.apart":
        return replace(rules, apart=_softened(rules.apart, value))
    return None


def _softened(named: tuple[Neighbour, ...], value: Mapping[str, Any]) -> tuple[Neighbour, ...]:
    return tuple(
        replace(n, weight=value["weight"]) if str(n.job) == value["job"] else n for n in named
    )


def _with_space(container: Container, path: str, space: int) -> Container:
    return replace(
        container,
        volumes=tuple(
            replace(v, space_bytes=space) if v.path == path else v for v in container.volumes
        ),
    )


def _containers(job: Job, name: str, change: Any) -> Job:
    """The job with one container changed, or all of them."""
    return replace(
        job,
        containers=tuple(change(c) if not name or c.name == name else c for c in job.containers),
    )
