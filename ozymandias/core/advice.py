"""What would give a job its places: suggestions that were carried out and did.

The candidates are those of `core/suggest.py`, which looks at rooms; here each is carried out on a
copy of the snapshot, as the operator would, and played by the scheduler until it rests.

    advising      a job is pending: what leaves it with all that it wants
    readvising    a job was refused: what lets it be taken when it is submitted again

Both have to reckon with others. Room that appears is seen by all who wait, and by the time that
somebody comes back with the job file they have been served.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ozymandias.core.apply import apply
from ozymandias.core.attempt import Attempt, attempt_of, instead
from ozymandias.core.buckets import census, is_system
from ozymandias.core.newcomers import nodes_of, present
from ozymandias.core.nodes import plan_end_drain, plan_label, plan_uncordon
from ozymandias.core.outlook import Future
from ozymandias.core.routes import Names
from ozymandias.core.rules import near_to
from ozymandias.core.schedule import plan_scale, plan_submit
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.suggest import Trial, suggesting
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Container, Job, JobKey, JobRecord, Neighbour, PlacementRules
from ozymandias.model.node import Node, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import parse_size
from ozymandias.problems import Problem, Suggestion, suggestions_of, with_suggestions

NODES_FEW = 200  # among so few everything is played to its end
WORK_MAX = 2_000_000  # nodes times jobs that wait, of all plans that are played among more

OF_NODES = frozenset(("start", "uncordon", "undrain", "label", "nodes"))  # changes, not of the job

_MEMORY = re.compile(r"containers\.([^.]+)\.memory")
_CORES = re.compile(r"containers\.([^.]+)\.cpu")
_SPACE = re.compile(r"containers\.([^.]+)\.volumes\.(.+)\.space")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What was asked for, and what decides it when it is asked for again."""

    job: Job
    wanted: int
    decide: Callable[[Snapshot], Plan | Problem]


class Patience:
    """How much is played for one answer: in a large cluster not all that could be."""

    def __init__(self, snapshot: Snapshot) -> None:
        live, nodes = census(snapshot).live, len(snapshot.nodes)
        waiting = sum(live.get(k, 0) < record.head.wanted for k, record in snapshot.jobs.items())
        self._each = nodes * (1 + waiting) if nodes > NODES_FEW else 0
        self._left = WORK_MAX

    def playing(self, world: Snapshot) -> Stepwise[Snapshot | None]:
        """The world when it is at rest; None: that takes longer than is left."""
        future, goes_on = Future(world), True
        while goes_on:
            self._left -= self._each
            if self._left < 0:
                return None
            yield
            goes_on = (yield from future.advancing()) is not None
        return future.now


# Of what is pending -------------------------------------------------------------------------------


def advice(snapshot: Snapshot, key: JobKey) -> tuple[Suggestion, ...]:
    """What would give the job all the instances that it lacks; nothing if it lacks none."""
    return at_once(advising(snapshot, key))


def advising(snapshot: Snapshot, key: JobKey) -> Stepwise[tuple[Suggestion, ...]]:
    """The same, step by step of what is played."""
    record = snapshot.jobs.get(key)
    if record is None or record.current is None or record.head.deleting or is_system(record):
        return ()
    job, wanted = record.current.job, record.head.wanted
    attempt = replace(attempt_of(snapshot, job, wanted), can_change_job=True)
    if attempt.fits():
        return ()
    patience = Patience(snapshot)
    trial = Trial(
        holds=lambda suggestion: trying(snapshot, key, suggestion.change, patience),
        changed=instead(snapshot, job, wanted),
        ahead=(job.priority + 1, job.priority),
        is_pending=True,
        awaited=_awaited(snapshot, job),
    )
    return (yield from _collecting(attempt, trial))


def _awaited(snapshot: Snapshot, job: Job) -> tuple[Attempt, ...]:
    """The jobs that it has to be near to, and that lack places themselves."""
    records = (snapshot.jobs.get(key) for key in near_to(job))
    attempts = (
        attempt_of(snapshot, record.current.job, record.head.wanted)
        for record in records
        if record and record.current and not record.head.deleting and not is_system(record)
    )
    return tuple(attempt for attempt in attempts if not attempt.fits())


def _collecting(attempt: Attempt, trial: Trial) -> Stepwise[tuple[Suggestion, ...]]:
    found: list[Suggestion] = []
    for suggestion in suggesting(attempt, attempt.placeable(), trial):
        if suggestion is None:
            yield
        else:
            found.append(suggestion)
    return tuple(found)


def does(snapshot: Snapshot, key: JobKey, change: Mapping[str, Any]) -> bool:
    """Whether the change, carried out and played to its end, leaves the job with all it wants."""
    return at_once(trying(snapshot, key, change, Patience(snapshot)))


def trying(
    snapshot: Snapshot, key: JobKey, change: Mapping[str, Any], patience: Patience
) -> Stepwise[bool]:
    """The same, step by step of what is played."""
    yield
    world = carried_out(snapshot, key, change)
    if world is not None:
        yield
        world = yield from patience.playing(world)
    if world is None:
        return False
    live = sum(1 for a in world.instances(key) if a.state is not SlotState.STOPPING)
    return live >= world.jobs[key].head.wanted


# Of what was refused ------------------------------------------------------------------------------


def readvising(snapshot: Snapshot, refusal: Problem, refused: Refused) -> Stepwise[Problem]:
    """The same refusal; what it suggests has been held against those who would come first.

    A change of the job is decided in one go with its places. What is done to nodes is not.
    """
    patience = Patience(snapshot)

    def holds(suggestion: Suggestion) -> Stepwise[bool]:
        if not OF_NODES.intersection(suggestion.change):
            return True
        yield
        world = carried_out(snapshot, refused.job.key, suggestion.change)
        if world is not None:
            world = yield from patience.playing(world)
        return world is not None and isinstance(refused.decide(world), Plan)

    def all_hold() -> Stepwise[bool]:
        for suggestion in suggestions_of(refusal):
            if not (yield from holds(suggestion)):
                return False
        return True

    awaited = _awaited(snapshot, refused.job)
    if not awaited and (yield from all_hold()):
        return refusal
    attempt = attempt_of(snapshot, refused.job, refused.wanted)
    if attempt.fits():
        return refusal  # much has changed since, and all of it is to be asked again
    trial = Trial(holds=holds, changed=attempt, ahead=(0,), awaited=awaited)
    found = yield from _collecting(attempt, trial)
    return with_suggestions(refusal, found)


# Carried out --------------------------------------------------------------------------------------


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
