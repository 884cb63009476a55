"""Budgets: how many healthy instances of a job may be taken away."""

import pytest

from ozymandias.core.buckets import sort_job
from ozymandias.core.budget import budget_of, floor_of, has_floor
from ozymandias.model.job import JobKind
from ozymandias.model.record import replace
from tests.unit.core.builders import WEB, cluster, job, report, settled, submitted


@pytest.mark.parametrize(("least", "wanted", "floor"), [(0, 3, 0), (2, 3, 2), (3, 1, 1)])
def test_the_floor_is_never_above_what_is_wanted(least: int, wanted: int, floor: int) -> None:
    """A job that was scaled below its own `min_available` needs what it has."""
    assert floor_of(job(min_available=least), wanted) == floor


def test_a_system_job_needs_what_it_says() -> None:
    """The nodes say how many it wants, so its head has no number to compare with."""
    assert floor_of(replace(job(min_available=2), kind=JobKind.SYSTEM), 0) == 2


@pytest.mark.parametrize(
    ("percent", "wanted", "floor"),
    [(50, 3, 2), (50, 4, 2), (1, 10_000, 100), (1, 1, 1), (100, 3, 3), (34, 3, 2), (50, 0, 0)],
)
def test_a_percentage_is_rounded_up(percent: int, wanted: int, floor: int) -> None:
    """It is of those that are wanted now, and never of none."""
    assert floor_of(job(min_available_percent=percent), wanted) == floor
    assert has_floor(job(min_available_percent=percent))


def test_a_percentage_follows_what_is_wanted() -> None:
    """Scaled by hand or by its pool: the head's number counts, not the one of the file."""
    made = job(instances=2, min_available_percent=50)
    snapshot = settled(submitted(cluster(n1="8G"), made))
    buckets = sort_job(snapshot, WEB)
    assert [budget_of(made, wanted, buckets).spare for wanted in (2, 4)] == [1, 0]


def test_what_serves_nobody_costs_nothing() -> None:
    """Two of three are healthy and two must be: none of them may go, the third is no budget's."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job(instances=3, min_available=2)))
    snapshot = report(snapshot, web_2=False)
    budget = budget_of(job(min_available=2), 3, sort_job(snapshot, WEB))
    assert (budget.healthy, budget.floor, budget.spare) == (2, 2, 0)
