"""Pools: more instances while something is pending, fewer when nothing is.

A source is asked every so often by one of the peers (`daemon/autoscaling.py`). What it said comes
in here as bytes, and out comes what to do about it:

    read_pending    the number in the answer, or in plain words why there is none
    plan_look       one step: up by `step` while something is pending, down to `min` when nothing
                    is, nothing in a freeze, nothing on an answer that makes no sense

A step up asks for more instances and places none: `plan_pending` places as many as there is room
for, by priority, and while some of a pool wait for room no more of it are asked for. Every step is
counted in the job's head. Who asked goes by that count: if it is another than when the question was
sent, somebody else has made a step in this period, and theirs is the one that counts.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ozymandias import problems
from ozymandias.core.buckets import census, sort_job
from ozymandias.core.choice import surplus_first
from ozymandias.core.drain import drained_nodes
from ozymandias.core.edits import stop
from ozymandias.core.freeze import Frozen, frozen_by
from ozymandias.model.job import Autoscale, Job, JobHead, JobKey, JobRecord, Look
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted
from ozymandias.problems import Problem

PENDING_MAX = 10**9  # more is no number of things to do, but a mistake
OWN_WINDOW = "the job's own window"


# What a source says -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``pending`` None: there is no number, and ``problem`` says why. Never what was answered:
    whoever may submit a job could read with it what only the daemon can reach."""

    pending: int | None
    problem: str = ""


def read_pending(data: bytes, path: str) -> Answer:
    """A whole number from 0 on, as JSON; ``path`` leads to it through objects and lists."""
    try:
        found: Any = json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return _senseless("the answer is not JSON")
    for part in path.split(".") if path else ():
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part[:9]) < len(found):
            found = found[int(part[:9])]
        else:
            return _senseless(f"the answer has nothing at {path}")
    if isinstance(found, bool) or not isinstance(found, int | float):
        return _senseless("the answer is not a number" + (f" at {path}" if path else ""))
    if isinstance(found, float) and not (math.isfinite(found) and found.is_integer()):
        return _senseless("the answer is not a whole number")
    if found < 0:
        return _senseless("the answer is below 0")
    if found > PENDING_MAX:
        return _senseless(f"the answer is above {PENDING_MAX}")
    return Answer(pending=int(found))


def _senseless(problem: str) -> Answer:
    return Answer(pending=None, problem=problem)


# What to do about it ------------------------------------------------------------------------------


def pool_of(record: JobRecord) -> Autoscale | None:
    """The rules of a job that is a pool, can be read and is not going."""
    if record.current is None or record.head.deleting:
        return None
    return record.current.job.autoscale


def steps_of(head: JobHead) -> int:
    return head.look.steps if head.look else 0


def frozen_pool(snapshot: Snapshot, rules: Autoscale, now: float) -> Frozen | None:
    """By a window of the cluster, or by one of the job's own."""
    own = (
        FreezeWindow(
            name=OWN_WINDOW,
            start=freeze.start,
            end=freeze.end,
            weekdays=freeze.weekdays,
            timezone=freeze.timezone,
        )
        for freeze in rules.freeze
    )
    return frozen_by((*snapshot.settings.freezes, *own), now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    wanted: int
    reason: str


def scale(
    rules: Autoscale, answer: Answer, *, wanted: int, missing: int, frozen: Frozen | None
) -> Scaling:
    """How many there shall be; ``missing`` are wanted already and have no place yet."""
    if answer.pending is None:
        return Scaling(wanted=wanted, reason=f"it stays as it is: {answer.problem}")
    said = f"{answer.pending} pending" if answer.pending else "nothing is pending"
    within = min(max(wanted, rules.min), rules.max)
    if not answer.pending:
        target, done = rules.min, f"{said}: {rules.min}, the least"
    elif missing > 0:
        target, done = within, f"{said}, and {missing} more have no place yet"
    elif within >= rules.max:
        target, done = rules.max, f"{said}: {rules.max}, the most"
    else:
        target = min(within + rules.step, rules.max)
        done = f"{said}: {target - within} more"
    if frozen and target != wanted:
        return Scaling(wanted=wanted, reason=f"{said}, but {frozen.words}")
    return Scaling(wanted=target, reason=done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who asked a pool's source, and what the pool was then."""

    uid: str
    version: int
    steps: int
    by: str
    now: float  # wall clock


def plan_look(snapshot: Snapshot, key: JobKey, answer: Answer, asked: Asked) -> Plan | None:
    """What follows from an answer; None when that is nothing new."""
    record = snapshot.jobs.get(key)
    if record is None or (rules := pool_of(record)) is None:
        return None
    head = record.head
    if (head.uid, head.version, steps_of(head)) != (asked.uid, asked.version, asked.steps):
        return None  # another job, other rules, or somebody else has made the step
    buckets = sort_job(snapshot, key)
    scaling = scale(
        rules,
        answer,
        wanted=head.wanted,
        missing=head.wanted - len(buckets.live),
        frozen=frozen_pool(snapshot, rules, asked.now),
    )
    is_step = scaling.wanted != head.wanted
    look = Look(
        pending=answer.pending,
        reason=scaling.reason,
        at=asked.now,
        by=asked.by,
        steps=asked.steps + is_step,
    )
    if head.look and replace(head.look, at=look.at, by=look.by) == look:
        return None
    surplus = len(buckets.live) - scaling.wanted if is_step else 0
    edits = tuple(
        stop(assigned, f"{scaling.reason}; {why}")
        for assigned, why in surplus_first(
            buckets,
            max(0, surplus),
            drained_nodes(snapshot),
            record.current.job.placement.burst if record.current else None,
        )
    )
    change = f" from {head.wanted} to {scaling.wanted}" if is_step else ""
    return Plan(
        reason=f"pool {key}{change}: {scaling.reason}",
        edits=edits,
        job=JobChange(key=key, head=replace(head, wanted=scaling.wanted, look=look)),
        heeds_settings=is_step,
        is_divisible=True,  # what is left is more than wanted, which `plan_rollout` sees to
    )


def wanted_after(record: JobRecord | None, job: Job) -> int:
    """How many a job wants once it is submitted.

    A pool's number is its own, within its bounds: the file's is where it begins.
    """
    rules = job.autoscale
    if rules is None or record is None:
        return job.instances
    number = record.head.wanted if pool_of(record) else job.instances
    return min(max(number, rules.min), rules.max)


def fitting_after(snapshot: Snapshot, record: JobRecord, job: Job) -> int:
    """How many must find room when the file is changed: all that a person asked for.

    A pool may have asked for more than there is room for; what waits may wait on.
    """
    wanted, rules = wanted_after(record, job), job.autoscale
    if rules is None or pool_of(record) is None:
        return wanted
    return max(rules.min, min(wanted, census(snapshot).live.get(record.key, 0)))


def not_by_hand(key: JobKey, rules: Autoscale) -> Problem:
    most = counted(rules.max, "instance")
    return problems.AUTOSCALED(
        f"{key} is a pool: it has {rules.min} to {most}, by what is pending.",
        hint="Change `autoscale` in its job file and submit it; `ozy pools` shows what it does.",
        job=key.name,
        namespace=key.namespace,
        min=rules.min,
        max=rules.max,
    )


def pools(snapshot: Snapshot) -> Iterable[tuple[JobRecord, Autoscale]]:
    """Every pool, in the order of names."""
    found = [(record, rules) for record in snapshot.jobs.values() if (rules := pool_of(record))]
    return sorted(found, key=lambda pool: pool[0].key)
