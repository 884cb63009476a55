"""What was given up: told with its reason, and gone when the instance has it."""

from ozymandias.core.wishes import GivenUp, given_up
from ozymandias.model.job import Burst, LabelRule, Neighbour, PlacementRules
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.settings import NodePool, Settings
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import cluster, job, key, node, submitted

SSD = LabelRule(label="disk", values=("ssd",), weight=3)


def missed(snapshot: Snapshot, name: str = "web") -> dict[NodeName, tuple[GivenUp, ...]]:
    return {a.node: given_up(snapshot, a) for a in snapshot.instances(key(name))}


def test_a_preferred_label() -> None:
    """Whoever is on another node misses it, with the numbers; whoever is there misses nothing."""
    snapshot = cluster(node("n1", "1G", labels={"disk": "ssd"}), node("n2"))
    rules = PlacementRules(prefer=(SSD,))
    found = missed(submitted(snapshot, job("web", 2, placement=rules)))
    assert found[NodeName("n1")] == ()
    (only,) = found[NodeName("n2")]
    assert (only.kind, only.wish, only.weight) == ("prefer", "disk == ssd", 3)
    assert only.nodes == {"n1"}
    assert only.reason == "n1 is 1G of memory short (0B free)"


def test_neighbours_and_pools() -> None:
    """Preferred neighbours and a preferred pool are told like labels."""
    rules = PlacementRules(apart=(Neighbour(job=key("db"), weight=5),))
    snapshot = submitted(cluster(n1="4G"), job("db"), job("web", placement=rules))
    pool = NodePool(namespace="default", require=(SSD,), is_hard=False)
    snapshot = replace(snapshot, settings=Settings(pools=(pool,)))
    (found,) = missed(snapshot).values()
    assert {(g.kind, g.reason) for g in found} == {
        ("apart", "no node that it may be on has that"),
        ("pool", "no node that it may be on has that"),
    }
    (theirs,) = missed(snapshot, "db").values()
    assert {g.wish for g in theirs if g.kind == "apart"} == {"apart from web, as web prefers"}


def test_what_is_required_may_hold_no_more() -> None:
    """A label that was taken away since is told, and that nobody else has it either."""
    rules = PlacementRules(require=(replace(SSD, weight=0),))
    before = submitted(cluster(node("n1", labels={"disk": "ssd"})), job("web", placement=rules))
    ledger = replace(before.nodes[NodeName("n1")].ledger, labels={})
    changed = replace(before.nodes[NodeName("n1")], ledger=ledger)
    (found,) = missed(replace(before, nodes={NodeName("n1"): changed})).values()
    assert [g.kind for g in found] == ["require"]
    assert found[0].reason.startswith("n1 is without label disk == ssd; no node")


def test_spread_that_could_be_more_even() -> None:
    """Only where one more elsewhere would be more even is something given up."""
    nodes = (node("n1", "8G", labels={"zone": "a"}), node("n2", "8G", labels={"zone": "b"}))
    rules = PlacementRules(spread="zone")
    even = submitted(cluster(*nodes), job("web", 3, placement=rules))
    assert not any(missed(even).values())
    alone = submitted(cluster(nodes[0]), job("web", 3, placement=rules))
    later = replace(alone, nodes={**alone.nodes, nodes[1].name: nodes[1]})
    (found,) = missed(later).values()
    assert found[0].reason == "2 others are on zone a, 0 on zone b; n2 has room for it now"


def test_a_burst_that_could_come_home() -> None:
    """An instance on a burst node misses home when there are fewer there than there may be."""
    rules = PlacementRules(burst=Burst(after=2, nodes=("n9",)))
    snapshot = submitted(cluster(n1="4G", n9="4G"), job("web", 3, placement=rules))
    assert not any(missed(snapshot).values())
    fewer = {
        pair: replace(a, groups=(replace(a.groups[0], slots=type(a.groups[0].slots)((0,))),))
        for pair, a in snapshot.assignments.items()
    }
    (found,) = missed(replace(snapshot, assignments=fewer))[NodeName("n9")]
    assert (found.kind, found.nodes) == ("burst", {"n1"})
    assert found.reason.startswith("1 of 2 are at home; ")
