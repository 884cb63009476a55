"""How long a machine waits before it takes a name over from another one."""

import pytest

from ozymandias.core.loss import fence_seconds
from ozymandias.daemon.takeover import Holder, Vacancy
from ozymandias.model.job import OnPartition
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import cluster, job, key, lost, submitted

N1 = NodeName("n1")
SECONDS = fence_seconds(15)
OTHER = Holder(machine="other", lease=1)
EXCLUSIVE = job("db", on_partition=OnPartition.STOP)


def held_by(holder: Holder, *jobs: object) -> Snapshot:
    """One node that is away, with these jobs, and who had its name last."""
    snapshot = lost(submitted(cluster(n1="4G"), *(jobs or (EXCLUSIVE,))), "n1")  # type: ignore[arg-type]
    there = snapshot.nodes[N1]
    ledger = replace(there.ledger, machine=holder.machine, lease=holder.lease)
    return replace(snapshot, nodes={N1: replace(there, ledger=ledger)})


def vacancy() -> Vacancy:
    return Vacancy(node=N1, machine="mine", seconds=SECONDS)


def waits(name: Vacancy, snapshot: Snapshot, now: float) -> float:
    wait = name.wait(snapshot, now)
    return wait.seconds if wait else 0.0


def test_a_name_of_another_machine_is_waited_for_as_long_as_a_replacement_would() -> None:
    """From when its record was first seen gone, however often one looks."""
    name, snapshot = vacancy(), held_by(OTHER)
    for now in (100.0, 101.0, 110.0):
        name.seen_gone(name.holder(snapshot), now)
        assert waits(name, snapshot, now) == 100.0 + SECONDS - now
    assert name.wait(snapshot, 100.0 + SECONDS) is None


def test_the_reason_says_what_for_and_for_how_long() -> None:
    """It is the same all the time, so that it is told once."""
    name, snapshot = vacancy(), held_by(OTHER)
    name.seen_gone(OTHER, 0.0)
    early, late = name.wait(snapshot, 1.0), name.wait(snapshot, 9.0)
    assert early and late and early.reason == late.reason
    assert early.reason == (
        "another machine that was n1 before to have ended db, which must never run twice"
        " (18.75 s from when this daemon saw it gone)"
    )


@pytest.mark.parametrize(
    ("holder", "jobs"),
    [
        (Holder(machine="mine", lease=1), (EXCLUSIVE,)),
        (OTHER, (job("web"),)),
    ],
    ids=["its own name", "nothing exclusive"],
)
def test_nobody_waits_without_need(holder: Holder, jobs: tuple[object, ...]) -> None:
    """A machine that returns tells of its own pods; most jobs may run twice for a while."""
    name, snapshot = vacancy(), held_by(holder, *jobs)
    name.seen_gone(holder, 0.0)
    assert name.wait(snapshot, 0.0) is None


def test_an_unknown_machine_is_taken_for_another() -> None:
    """A ledger from before it was written there: a wait costs seconds, two writers cost data."""
    name, snapshot = vacancy(), held_by(Holder())
    name.seen_gone(Holder(), 0.0)
    wait = name.wait(snapshot, 0.0)
    assert wait and wait.reason.startswith("perhaps another machine")


def test_who_came_and_went_meanwhile_is_waited_for_anew() -> None:
    """The other machine joined again under another lease: its guard's time counts from its end."""
    name, again = vacancy(), held_by(Holder(machine="other", lease=2))
    name.seen_gone(OTHER, 0.0)
    assert waits(name, again, SECONDS + 1) == SECONDS, "not known to be gone yet"
    name.seen_gone(Holder(machine="other", lease=2), SECONDS + 2)
    assert waits(name, again, SECONDS + 3) == SECONDS - 1


def test_when_it_was_moved_there_is_nothing_left_to_wait_for() -> None:
    """Peers have waited as long: what they have placed elsewhere is no longer assigned here."""
    name, snapshot = vacancy(), held_by(OTHER)
    name.seen_gone(OTHER, 0.0)
    moved = replace(snapshot, assignments={})
    assert name.wait(snapshot, 5.0) and name.wait(moved, 5.0) is None


def test_what_can_not_be_read_may_be_exclusive() -> None:
    """Nobody knows that it may run twice."""
    name, snapshot = vacancy(), held_by(OTHER, job("web"))
    unread = replace(snapshot.jobs[key("web")], versions={})
    assert name.wait(replace(snapshot, jobs={key("web"): unread}), 0.0)
