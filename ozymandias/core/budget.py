"""Budgets: how many healthy instances of a job we may take away ourselves.

A job's `min_available` holds against everything that the cluster does of its own accord: drain,
rollout, rebalance, preemption, shedding. What it means is said here and nowhere else:

    healthy   current or outdated, and carrying traffic on a node that is there
    floor     as many of them must stay: `min_available`, but no more than are wanted; said in
              percent, that part of those that are wanted now, and the next whole number
    spare     healthy - floor: so many may be stopped before others are healthy in their place

An instance that serves nobody (it waits, starts, or is not healthy) costs no budget.
"""

from dataclasses import dataclass

from ozymandias.core.buckets import Buckets
from ozymandias.model.job import Job, JobKind


def has_floor(job: Job) -> bool:
    """Whether it has a budget at all."""
    return job.min_available > 0 or job.min_available_percent > 0


def floor_of(job: Job, wanted: int) -> int:
    """How many healthy instances must stay.

    A percentage follows what is wanted now: the head's number, which a pool changes by itself, or
    as many nodes as a system job is for. A number of a system job stands as it is.
    """
    if job.min_available_percent:
        return -(-wanted * job.min_available_percent // 100)  # rounded up
    if job.kind is JobKind.SYSTEM:
        return job.min_available
    return min(job.min_available, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one job has, and what it can't do without."""

    healthy: int
    floor: int

    @property
    def spare(self) -> int:
        """How many healthy ones may go; below 0 when there are too few already."""
        return self.healthy - self.floor


def budget_of(job: Job, wanted: int, buckets: Buckets) -> Budget:
    healthy = len(buckets.ready) + len(buckets.serving)
    return Budget(healthy=healthy, floor=floor_of(job, wanted))
