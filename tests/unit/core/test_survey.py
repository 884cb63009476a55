"""What the order of nodes knows beforehand is what a look at each of them finds."""

from collections import Counter

from hypothesis import given, settings

from ozymandias.core.attempt import why_closed
from ozymandias.core.placement import Ask, ranked
from ozymandias.core.rooms import RUNNING, rooms_of
from ozymandias.core.rules import Rules
from ozymandias.core.survey import BEST_MAX, _short_of, survey
from ozymandias.model.job import PlacementRules
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import cluster, job, key, submitted
from tests.unit.core.test_runs import COUNTS, DEMANDS, NAMES, NODES


@settings(deadline=None)
@given(NODES, DEMANDS, COUNTS)
def test_every_node_is_counted_once(
    nodes: dict[NodeName, Node], demand: Demand, there: dict[NodeName, int]
) -> None:
    """Under the first of the reasons that speak against it, or as one that could be chosen."""
    rules = Rules(asked=PlacementRules(max_per_node=2), against={NAMES[1]: "a reason"})
    ask = Ask(job=key("web"), version=1, demand=demand, rules=rules, there=there)
    found = survey(Snapshot(nodes=nodes), ask, there, RUNNING)
    counted = Counter(
        why_closed(node) or rules.why_not(name, there) or _short_of(node, demand, RUNNING)
        for name, node in nodes.items()
    )
    assert found.feasible == counted.pop("", 0)
    assert Counter(found.rejected) == counted


def test_the_best_are_other_nodes_each() -> None:
    """Beyond the target one that was chosen comes again later; here it is asked for one only."""
    names = [f"n{number:02}" for number in range(BEST_MAX + 2)]
    snapshot = submitted(cluster(**dict.fromkeys(names, "10G")), job("full", 14 * 6, "1G"))
    ask = Ask(job=key("web"), version=1, demand=Demand(memory_bytes=2**30), wanted=100)
    found = survey(snapshot, ask, {}, RUNNING)
    order = ranked(rooms_of(snapshot), ask, {})
    assert found.best == tuple(name for name, _ in order[:BEST_MAX])
    assert found.feasible == len(names)
