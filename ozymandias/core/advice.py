"""What would give a pending job its places: suggestions that were carried out and did.

The candidates are those of `core/suggest.py`, which looks at rooms; here each is carried out on a
copy of the snapshot, as the operator would, and played by the scheduler until it rests. Only what
leaves the job with all that it wants is told.
"""

import re
from collections.abc import Mapping
from typing import Any

from ozymandias.core.apply import apply
from ozymandias.core.attempt import Attempt
from ozymandias.core.buckets import is_system, per_node, sort_job
from ozymandias.core.newcomers import nodes_of, present
from ozymandias.core.nodes import plan_end_drain, plan_label, plan_uncordon
from ozymandias.core.outlook import Future
from ozymandias.core.rooms import rooms_of
from ozymandias.core.routes import Names
from ozymandias.core.rules import rules_of
from ozymandias.core.schedule import plan_scale, plan_submit, rooms_without
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.suggest import Trial, suggesting
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Container, Job, JobKey, JobRecord, Neighbour, PlacementRules
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import parse_size
from ozymandias.problems import Problem, Suggestion

NODES_MAX = 200  # in larger clusters playing each suggestion would take too long

_MEMORY = re.compile(r"containers\.([^.]+)\.memory")
_CORES = re.compile(r"containers\.([^.]+)\.cpu")
_SPACE = re.compile(r"containers\.([^.]+)\.volumes\.(.+)\.space")


def advice(snapshot: Snapshot, key: JobKey) -> tuple[Suggestion, ...]:
    """What would give the job all the instances that it lacks; nothing if it lacks none."""
    return at_once(advising(snapshot, key))


def advising(snapshot: Snapshot, key: JobKey) -> Stepwise[tuple[Suggestion, ...]]:
    """The same, step by step of what is played."""
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
    trial = Trial(
        holds=lambda suggestion: trying(snapshot, key, suggestion.change),
        changed=replace(attempt, rooms=rooms_without(snapshot, key), kept=0, there={}),
    )
    found: list[Suggestion] = []
    for suggestion in suggesting(attempt, attempt.placeable(), trial):
        if suggestion is None:
            yield
        else:
            found.append(suggestion)
    return tuple(found)


def does(snapshot: Snapshot, key: JobKey, change: Mapping[str, Any]) -> bool:
    """Whether the change, carried out and played to its end, leaves the job with all it wants."""
    return at_once(trying(snapshot, key, change))


def trying(snapshot: Snapshot, key: JobKey, change: Mapping[str, Any]) -> Stepwise[bool]:
    """The same, step by step of what is played."""
    yield
    world = carried_out(snapshot, key, change)
    if world is None:
        return False
    yield
    future = yield from Future(world).playing()
    live = sum(1 for a in future.now.instances(key) if a.state is not SlotState.STOPPING)
    return live >= future.now.jobs[key].head.wanted


def carried_out(snapshot: Snapshot, key: JobKey, change: Mapping[str, Any]) -> Snapshot | None:
    """The snapshot after a suggestion was followed, by the planners that an operator would ask.

    None for one that nobody here knows, and for what would be refused.
    """
    decision: Plan | Problem | None = None
    for name, value in change.items():
        if name == "start":
            return _with_nodes(snapshot, {n: present(snapshot.nodes[n]) for n in value})
        if name == "nodes":
            return _with_nodes(snapshot, nodes_of(change))
        if name == "uncordon":
            decision = plan_uncordon(snapshot, value)
        elif name == "undrain":
            decision = plan_end_drain(snapshot, value)
        elif name == "label":
            decision = plan_label(snapshot, value["node"], value["labels"], ())
        elif name == "numInstances":
            decision = plan_scale(snapshot, key, value)
        else:
            decision = _resubmitted(snapshot, snapshot.jobs[key], name, value)
        break
    return apply(snapshot, decision, "") if isinstance(decision, Plan) else None


def _with_nodes(snapshot: Snapshot, nodes: Mapping[NodeName, Node]) -> Snapshot:
    return replace(snapshot, nodes={**snapshot.nodes, **nodes})


def _resubmitted(
    snapshot: Snapshot, record: JobRecord, name: str, value: Any
) -> Plan | Problem | None:
    """The job file with one line of it changed, and as many instances as are wanted now."""
    job = _changed(record.current.job, name, value) if record.current else None
    if job is None:
        return None
    job = replace(job, instances=record.head.wanted)
    return plan_submit(snapshot, job, uid=record.head.uid, names=Names())


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
