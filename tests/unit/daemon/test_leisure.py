"""What can wait is looked for in parts, and said once."""

from ozymandias.core.arbiter import Leisure
from ozymandias.daemon.leisure import LATER_SECONDS, LOOK_SECONDS, LOOKED_AT_MAX, Pace
from ozymandias.model.job import Move
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import cluster, job, key, node, settled, submitted

NOW = 1000.0


def crowded(*names: str) -> Snapshot:
    """Two instances of each job on one node, and another node that has joined since."""
    snapshot = settled(submitted(cluster(n1="100G"), *(job(name, 2) for name in names)))
    return replace(
        snapshot,
        nodes={**snapshot.nodes, NodeName("n2"): node("n2", "100G")},
        settings=replace(snapshot.settings, rebalance=RebalanceMode.SUGGEST),
    )


def larger(snapshot: Snapshot, name: str) -> Snapshot:
    """A job wants so many instances that it takes a whole look; they are not there yet."""
    record = snapshot.jobs[key(name)]
    head = replace(record.head, wanted=LOOKED_AT_MAX)
    return replace(snapshot, jobs={**snapshot.jobs, key(name): replace(record, head=head)})


def said(pace: Pace, snapshot: Snapshot, looks: int) -> list[bool]:
    return [bool(pace.suggestion(snapshot, Leisure(), NOW)) for _ in range(looks)]


def test_a_suggestion_is_news_once() -> None:
    """As long as something would be moved, it is not said again; once it is over, it may be."""
    pace, snapshot = Pace(), crowded("web")
    assert said(pace, snapshot, 3) == [True, False, False]
    alone = replace(snapshot, nodes={NodeName("n1"): snapshot.nodes[NodeName("n1")]})
    assert said(pace, alone, 1) == [False]
    assert said(pace, snapshot, 2) == [True, False]


def test_a_large_cluster_is_looked_at_part_by_part() -> None:
    """What is in the second part is found by the second look, and is no news in the next round."""
    pace, snapshot = Pace(), larger(crowded("a", "b"), "a")
    assert said(pace, snapshot, 6) == [False, True, False, False, False, False]
    alone = replace(snapshot, nodes={NodeName("n1"): snapshot.nodes[NodeName("n1")]})
    assert said(pace, alone, 2) == [False, False]  # a whole round without
    assert said(pace, snapshot, 2) == [False, True]


def test_a_move_under_way_is_looked_after_where_no_other_may_begin() -> None:
    """An operator asked for one and the setting is off: its patience must end it all the same."""
    for mode in RebalanceMode:
        snapshot = crowded("web")
        record = snapshot.jobs[key("web")]
        move = Move(slot=0, node="n1", to_slot=2, to="n2", since=NOW)
        moving = replace(record, head=replace(record.head, move=move))
        snapshot = replace(
            snapshot,
            jobs={**snapshot.jobs, key("web"): moving},
            settings=replace(snapshot.settings, rebalance=mode),
        )
        pace = Pace(steady_seconds=1.0)
        pace.leisure(snapshot, 0.0)
        assert pace.look_again(snapshot, 100.0, NOW) == 100.0 + LATER_SECONDS
        idle = replace(snapshot, jobs={**snapshot.jobs, key("web"): record})
        assert pace.look_again(idle, 100.0, NOW) is None


def test_a_busy_cluster_is_looked_at_now_and_then() -> None:
    """While instances come and go nobody waits for a suggestion; what nodes tell is no change."""
    pace, snapshot = Pace(), crowded("web")
    looks = []
    for second in range(1, 130):
        moved = replace(snapshot, revision=second, assignments=dict(snapshot.assignments))
        pace.leisure(moved, 1000.0 + second)
        if pace.may_suggest(1000.0 + second):
            looks.append(second)
    assert looks == [1, 61, 121]
    told = replace(moved, revision=200)
    pace.leisure(told, 1000.0 + 129 + LOOK_SECONDS)
    assert pace.may_suggest(1000.0 + 129 + LOOK_SECONDS)
