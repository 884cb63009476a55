"""A scheduler that looks for moves in a large cluster: others have their turns meanwhile.

Nothing here measures time: turns are counted, and functions that are called.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from ozymandias.core.arbiter import Leisure, propose
from ozymandias.core.preempt import Lately
from ozymandias.daemon.scheduling import OUTDATED_MAX, Scheduler
from ozymandias.model.job import PlacementRules
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.store.commit import Committed, Decide
from tests.unit.api.test_stepwise import NOW, asked, counted, joined
from tests.unit.core.builders import job, node, settled, submitted
from tests.unit.core.test_labels import rule

ON = Settings(rebalance=RebalanceMode.ON)


class Decided:
    """Commits on another snapshot than the one that was looked at."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.plan: Plan | None = None
        self.calls = 0

    async def commit(self, decide: Decide, *, is_part: bool = False) -> Committed:
        self.plan, self.calls = counted(lambda: decide(self.snapshot))
        return Committed(plan=self.plan or Plan(reason="nothing"), revision=1)


def scheduler(seen: Snapshot, committer: Decided) -> Scheduler:
    """Of a daemon that has been there for long, in a cluster that stands still."""
    there = SimpleNamespace(
        snapshot=lambda: seen,
        revision=seen.revision,
        session=None,
        narrate=lambda plan: None,
        boot=lambda: NOW,
        wall=lambda: NOW,
        look=lambda snapshot: None,
        lately=lambda: Lately(wall=NOW),
        due=lambda: None,
    )
    session = SimpleNamespace(lease=SimpleNamespace(ttl=15.0), revision=0)
    there.session = session
    made = Scheduler(
        node=NodeName("n000"),
        mirror=cast(Any, there),
        committer=cast(Any, committer),
        membership=cast(Any, there),
        events=cast(Any, there),
        clock=cast(Any, there),
        breaker_seconds=60.0,
        displacements=cast(Any, there),
        steady_seconds=0.0,
    )
    made._session = cast(Any, session)
    return made


@cache
def busy() -> Snapshot:
    """Many jobs that would rather be in the zone of the node that has joined."""
    wish = PlacementRules(prefer=(replace(rule("zone == c"), weight=5),))
    jobs = (job(f"more{number:02}", 10, "100M", placement=wish) for number in range(20))
    nodes = {name: there for name, there in joined().nodes.items() if name != "new"}
    snapshot = settled(submitted(replace(joined(), nodes=nodes), *jobs))
    new = node("new", "64G", labels={"zone": "c"})
    return replace(snapshot, nodes={**snapshot.nodes, new.name: new}, settings=ON)


def without_it() -> Snapshot:
    """The node that has joined is gone again."""
    nodes = {name: there for name, there in busy().nodes.items() if name != "new"}
    return replace(busy(), nodes=nodes)


def step(made: Scheduler) -> int:
    """As often as it takes until it is this peer's turn; the turns that others had."""
    made._first_wanted = ("rebalance", 0.0)
    _, turns = asked(made._step())
    return turns


def test_the_next_move_is_looked_for_in_steps_and_not_where_it_is_decided() -> None:
    """What is decided is the move that was found, made anew on what is compared."""
    seen = busy()
    now = replace(seen, revision=seen.revision + 1)
    committer = Decided(now)
    turns = step(scheduler(seen, committer))
    found, calls = counted(lambda: propose(now, frozenset(), NOW, leisure=Leisure()))
    assert found and committer.plan == found.plan
    assert turns > 10 and 10 * committer.calls < calls


def test_what_does_not_hold_any_more_is_looked_for_again() -> None:
    """Nothing is decided then; if that goes on, all is looked at where it is decided."""
    committer = Decided(without_it())
    made = scheduler(busy(), committer)
    for _ in range(OUTDATED_MAX):
        step(made)
        assert committer.plan is None
    step(made)
    assert committer.plan and committer.plan.job
    step(made)
    assert committer.plan is None
