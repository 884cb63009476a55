"""Which nodes are declared dead, and when."""

from collections.abc import Mapping

import pytest

from ozymandias.core.loss import judge_loss
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from tests.unit.core.builders import cluster, job, lost, node, submitted

STARTED, MINUTE = 1000.0, 60.0
NOBODY: Mapping[str, float] = {}

# name, nodes, missing since, never seen alive, now, dead, look again
CASES = [
    ("all is well", 3, NOBODY, "", 2000.0, "", None),
    ("one of three", 3, {"n1": 1500.0}, "", 1500.0, "n1", None),
    ("one of two", 2, {"n1": 1500.0}, "", 1500.0, "n1", None),
    ("the only one", 1, {"n1": 1500.0}, "", 1500.0, "n1", None),
    ("two of four are not over half", 4, {"n1": 1500.0, "n2": 1500.0}, "", 1500.0, "n1 n2", None),
    ("two of three wait", 3, {"n1": 1500.0, "n2": 1510.0}, "", 1510.0, "", 1560.0),
    ("each for its own minute", 3, {"n1": 1500.0, "n2": 1510.0}, "", 1560.0, "n1", 1570.0),
    ("then both", 3, {"n1": 1500.0, "n2": 1510.0}, "", 1570.0, "n1 n2", None),
    ("never seen alive", 3, {"n1": STARTED}, "n1", 1030.0, "", STARTED + MINUTE),
    ("never seen for a minute", 3, {"n1": STARTED}, "n1", 1060.0, "n1", None),
    ("seen one goes, unseen waits", 5, {"n1": 1010.0, "n2": STARTED}, "n2", 1010.0, "n1", 1060.0),
    ("unseen and many", 3, {"n1": 1020.0, "n2": 1020.0}, "n1 n2", 1070.0, "", 1080.0),
]


@pytest.mark.parametrize(
    ("size", "missing", "unseen", "now", "dead", "again"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_judge_loss(
    size: int, missing: dict[str, float], unseen: str, now: float, dead: str, again: float | None
) -> None:
    """A single loss is acted on at once, a loss of most or of strangers after a minute."""
    names = [f"n{i + 1}" for i in range(size)]
    snapshot = submitted(cluster(*map(node, names)), job(instances=size))
    loss = judge_loss(
        lost(snapshot, *missing),
        missing_since={NodeName(n): t for n, t in missing.items()},
        seen_alive={NodeName(n) for n in names} - {NodeName(n) for n in unseen.split()},
        started=STARTED,
        now=now,
        breaker_seconds=MINUTE,
    )
    assert (sorted(loss.dead), loss.look_again) == (dead.split(), again)
    assert bool(loss.reason) == bool(missing)


def test_the_reason_counts_whoever_is_missing() -> None:
    """Also the one that went before, whose work has been moved: only the other is held back."""
    names = {name: NodeName(name) for name in ("n1", "n2", "n3")}
    snapshot = lost(submitted(cluster(n1="4G", n3="4G"), job(instances=2)), "n3")
    gone = node("n2", alive=False)
    loss = judge_loss(
        replace(snapshot, nodes={**snapshot.nodes, gone.name: gone}),
        missing_since={names["n2"]: 10.0, names["n3"]: 30.0},
        seen_alive=frozenset(names.values()),
        started=0.0,
        now=31.0,
        breaker_seconds=MINUTE,
    )
    words = "n3 held back for up to 59 s more: 2 of 3 nodes are missing at once"
    assert (loss.held, loss.reason) == ({"n3"}, words)


def test_nodes_without_work_are_not_expected() -> None:
    """Machines switched off for good hold nothing and do not count as missing."""
    snapshot = submitted(cluster(n1="4G"), job())
    off = cluster(*(node(f"off{i}", alive=False) for i in range(5)))
    snapshot = type(snapshot)(
        nodes={**snapshot.nodes, **off.nodes}, assignments=snapshot.assignments
    )
    loss = judge_loss(
        lost(snapshot, "n1"),
        missing_since={NodeName("n1"): 0.0},
        seen_alive={NodeName("n1")},
        started=0.0,
        now=1.0,
    )
    assert loss.dead == {"n1"}


def test_who_went_with_an_old_record_counts_among_many() -> None:
    """Two records lapse soon after we came; their work is moved already when the third goes."""
    snapshot = lost(submitted(cluster(n1="4G"), job()), "n1")
    others = cluster(node("n2", alive=False), node("n3", alive=False), node("n4"))
    snapshot = replace(snapshot, nodes={**snapshot.nodes, **others.nodes})
    names = {name: NodeName(name) for name in ("n1", "n2", "n3", "n4")}
    for there, dead in ((names.values(), set()), ((), {"n1"})):
        loss = judge_loss(
            snapshot,
            missing_since={names["n2"]: 2.0, names["n3"]: 3.0, names["n1"]: 4.0},
            seen_alive={names["n1"], names["n4"]},
            seen_there=frozenset(there),
            started=0.0,
            now=4.0,
            breaker_seconds=MINUTE,
        )
        assert loss.dead == dead
