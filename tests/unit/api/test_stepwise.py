"""Long answers let others in between: whoever else has something to do gets its turns meanwhile.

Nothing here measures time. A neighbour counts how often it gets its turn while an answer is worked
out; an answer that is worked out in one go leaves it none.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ozymandias.api.access import Access, Document
from ozymandias.api.explaining import Explaining
from ozymandias.api.foresight import Foresight
from ozymandias.api.moving import LOOKS_MAX, Moving
from ozymandias.api.settling import ClusterSettings
from ozymandias.api.stepwise import step_by_step
from ozymandias.core.advice import NODES_FEW, advice
from ozymandias.core.arbiter import Leisure
from ozymandias.core.drift import drift_rows
from ozymandias.core.foresee import foresee
from ozymandias.core.looks import plan_ask
from ozymandias.core.outlook import SUGGESTED_MAX, Future, fates, suggested, waiting_after
from ozymandias.core.preempt import Lately
from ozymandias.core.rebalance import foresee_rebalance
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.whynot import why_not
from ozymandias.model.job import Job, PlacementRules
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from ozymandias.store.commit import Committed
from ozymandias.store.replay import export
from tests.unit.core.builders import (
    WEB,
    cluster,
    job,
    lost,
    node,
    planned,
    settled,
    submit,
    submitted,
)
from tests.unit.core.test_advice import waiting
from tests.unit.core.test_labels import rule

NOW = 1_800_000_000.0
OFF = Settings(rebalance=RebalanceMode.OFF)
FULL = NodeName("n007")


@cache
def large() -> Snapshot:
    """As many nodes as advice is given for, and jobs that would rather be in another zone."""
    nodes = [node(f"n{number:03}", "4G") for number in range(NODES_FEW)]
    snapshot = replace(cluster(*nodes), settings=OFF)
    wish = PlacementRules(prefer=(replace(rule("zone == c"), weight=5),))
    low = (job(f"low{number}", 190, "900M") for number in range(3))
    wishing = (job(f"wish{number}", 10, "300M", placement=wish) for number in range(5))
    return settled(submitted(snapshot, *low, *wishing))


@cache
def joined() -> Snapshot:
    """With a node that is in that zone."""
    new = node("new", "64G", labels={"zone": "c"})
    return replace(large(), nodes={**large().nodes, new.name: new})


def short(snapshot: Snapshot) -> Snapshot:
    """Several jobs wait, and not all of them would have a place."""
    return waiting(snapshot, job("web", 60, "3G", priority=9), *map(_waiting, range(4)))


def _waiting(number: int) -> Job:
    return job(f"other{number}", 30, "2G", priority=number)


def access(snapshot: Snapshot) -> Access:
    """To a cluster that stands still."""
    found = SimpleNamespace(
        mirror=SimpleNamespace(snapshot=lambda: snapshot),
        clock=SimpleNamespace(wall=lambda: NOW),
        lately=lambda: Lately(wall=NOW),
        leisure=lambda _: Leisure(),
    )
    return cast(Access, found)


def asked(answering: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """An answer, and how many turns a neighbour had while it was worked out."""
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def both() -> Any:
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(neighbour())
            await asyncio.sleep(0)
            answer = await answering
            beside.cancel()
        return answer

    return asyncio.run(both()), turns


def test_why_a_job_waits_is_tried_out_step_by_step() -> None:
    """Between the plans that a suggestion leads to, others have their turn; the words are alike."""
    snapshot = short(large())
    told, turns = asked(Explaining(access(snapshot)).job(WEB))
    advised = advice(snapshot, WEB)
    assert told["suggestions"] == [one.document() for one in advised] != []
    assert [line for line in told["lines"] if "would have a place" in line] == [
        f"All of them would have a place if you {one.text}." for one in advised
    ]
    assert turns > 100


@pytest.mark.parametrize("cordoned", [False, True])
def test_why_not_there_is_tried_out_step_by_step(cordoned: bool) -> None:
    """What would let a job in is played, and others have their turn meanwhile."""
    snapshot = short(large())
    if cordoned:
        there = snapshot.nodes[FULL]
        closed = replace(there, ledger=replace(there.ledger, is_cordoned=True))
        snapshot = replace(snapshot, nodes={**snapshot.nodes, FULL: closed})
    told, turns = asked(Explaining(access(snapshot)).why_not(WEB, FULL))
    found = why_not(snapshot, WEB, FULL)
    assert told["lines"] == list(found.lines)
    assert told["suggestions"] == [one.document() for one in found.suggestions]
    assert turns > 30


def test_a_what_if_looks_for_suggestions_in_steps() -> None:
    """Not all of its moves at a stretch, and not even one of them."""
    told, turns = asked(Foresight(access(large())).what_if("add new 64G zone=c"))
    assert told["steps"][0]["changes"] == []
    assert [row["reason"] for row in told["suggested"]] == [
        change.reason for change in suggested(Future(joined(), NOW, at_leisure=True).play())
    ]
    assert len(told["suggested"]) == SUGGESTED_MAX
    assert turns > 5 * SUGGESTED_MAX


def test_a_what_if_of_a_loss_is_repaired_job_by_job() -> None:
    """Also where much is lost at once, and where it is told what waits for a place then."""
    snapshot = short(large())
    names = [f"n{number:03}" for number in range(0, NODES_FEW, 5)]
    told, turns = asked(Foresight(access(snapshot)).what_if(f"lose {' '.join(names)}"))
    base = Future(snapshot, NOW, at_leisure=True).play()
    future = base.copy()
    future.now = lost(base.now, *names)
    future.play()
    assert [row["after"] for row in told["jobs"]] == [f.after for f in fates(base.now, future.now)]
    assert [(row["job"], row["reason"]) for row in told["waiting"]] == [
        (pending.job.name, pending.reason) for pending in waiting_after(future)
    ]
    assert len(told["suggested"]) == len(suggested(future))
    assert turns > 100


def test_losses_of_a_plan_are_played_step_by_step() -> None:
    """Several turns for each loss: playing one may take as long as many plans do."""
    plan: Plan = planned(submit(large(), job("new", 1, "16M")))
    told, turns = asked(Foresight(access(large())).after(plan, lose_any=1))
    assert told["played"] == told["ways"] == NODES_FEW
    assert turns > 5 * NODES_FEW


def test_what_follows_from_a_change_is_played_step_by_step() -> None:
    """Several turns for each step of a rollout, of which there are two for each instance."""
    plan = planned(submit(large(), job("low0", 190, "900M", image="new")))
    told, turns = asked(Foresight(access(large())).following(large(), plan))
    found = foresee(large(), plan, NOW)
    assert told == found and len(found.edits) == 2 * 190
    assert turns > 2 * len(found.edits)


def test_drift_is_told_lack_by_lack() -> None:
    """What each lack could be healed by is a look at all nodes."""
    told, turns = asked(moving(joined()).drift())
    rows = drift_rows(joined(), NOW)
    assert [(row["node"], row["why"], row["to"]) for row in told["items"]] == [
        (row.lack.node, row.why, row.heal_to) for row in rows
    ]
    assert turns > len(rows) > 10


def test_a_rebalance_is_foreseen_in_steps() -> None:
    """One move is a search of many looks."""
    told, turns = asked(moving(joined()).foresee(2))
    found = foresee_rebalance(joined(), NOW, moves_max=2)
    assert [row["reason"] for row in told["moves"]] == [step.reason for step in found.steps]
    assert len(found.steps) == 2 and turns > 2 * 5


def moving(snapshot: Snapshot) -> Moving:
    return Moving(access(snapshot), cast(ClusterSettings, None))


class Racing:
    """Commits to a cluster that somebody else changes first, so many times."""

    def __init__(self, *seen: Snapshot) -> None:
        self.seen = list(seen)  # what is decided on, one after the other; the last one stays
        self.calls: list[int] = []  # that each decision took: its length, without a clock

    def moving(self) -> Moving:
        """Others have long decided when anybody looks at the cluster."""
        there = cast(Any, access(self.seen[0]))
        there.mirror.snapshot = lambda: self.seen[0]
        there.committer, there.emit = self, lambda *_: None
        return Moving(there, ClusterSettings(there))

    async def commit(self, decide: Callable[[Snapshot], Plan | Problem | None]) -> Committed:
        if len(self.seen) > 1:
            del self.seen[0]
        await asyncio.sleep(0)
        plan, calls = counted(lambda: decide(self.seen[0]))
        self.calls.append(calls)
        assert isinstance(plan, Plan)
        return Committed(plan=plan, revision=1)


def counted(decide: Callable[[], Any]) -> tuple[Any, int]:
    """What comes of it, and how many functions were called for it."""
    calls = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        return decide(), calls
    finally:
        sys.setprofile(None)


def test_a_rebalance_is_not_looked_for_where_it_is_decided() -> None:
    """Only whether the move that was found holds; what a search takes is many times of that."""
    racing = Racing(joined())
    told, _ = asked(racing.moving().rebalance(1))
    assert told["changed"] and told["moves_left"] == 1
    plan, calls = counted(lambda: plan_ask(joined(), 1, NOW))
    assert told["reason"] == plan.reason
    assert [10 * one < calls for one in racing.calls] == [True]


def joined_by_another() -> Snapshot:
    """Another node than the one that the first move would go to."""
    (step,) = foresee_rebalance(joined(), NOW, moves_max=1).steps
    assert step.placed.node == "new"
    other = node("other", "64G", labels={"zone": "c"})
    return replace(large(), nodes={**large().nodes, other.name: other})


@cache
def resting() -> Snapshot:
    """No move is worth it."""
    return settled(submitted(cluster(n1="4G", n2="4G"), job(instances=2)))


def test_a_rebalance_is_looked_for_again_if_what_was_found_is_gone() -> None:
    """In steps as before, on what is there now; there may be none by then, or one at last."""
    for first, second in (
        (joined(), joined_by_another()),
        (joined(), resting()),
        (resting(), joined()),
    ):
        racing = Racing(first, second)
        told, _ = asked(racing.moving().rebalance(1))
        plan, calls = counted(lambda now=second: plan_ask(now, 1, NOW))  # type: ignore[misc]
        assert told["reason"] == plan.reason and len(racing.calls) == 2
        assert second is resting() or all(10 * one < calls for one in racing.calls)


def test_a_rebalance_is_decided_though_the_cluster_never_stands_still() -> None:
    """After so many looks it is looked for where it is decided."""
    racing = Racing(*(joined(), joined_by_another()) * LOOKS_MAX)
    told, _ = asked(racing.moving().rebalance(1))
    assert told["changed"] and len(racing.calls) == LOOKS_MAX + 1
    *checked, searched = racing.calls
    assert all(10 * one < searched for one in checked)


def test_a_replay_is_written_step_by_step() -> None:
    """The plan that goes with the state is looked for as a daemon would."""
    snapshot = replace(joined(), settings=Settings(rebalance=RebalanceMode.SUGGEST))
    written, turns = asked(Explaining(access(snapshot)).replay())
    assert written == export(snapshot, NOW, leisure=Leisure(), lately=Lately(wall=NOW))
    assert turns > 15


# The two ways to run a calculation ----------------------------------------------------------------


def counting(steps: int) -> Stepwise[str]:
    for _ in range(steps):
        yield
    return f"{steps} steps"


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_both_ways_to_run_a_calculation_come_to_the_same(steps: int) -> None:
    """And one of them lets others in exactly as often as there are steps."""
    told, turns = asked(step_by_step(counting(steps)))
    assert told == at_once(counting(steps)) == f"{steps} steps"
    assert turns == steps


def test_a_calculation_that_fails_says_so() -> None:
    """Between steps as well as at once."""

    def failing() -> Stepwise[Document]:
        yield
        raise KeyError("no such thing")

    for run in (lambda: asyncio.run(step_by_step(failing())), lambda: at_once(failing())):
        with pytest.raises(KeyError, match="no such thing"):
            run()
