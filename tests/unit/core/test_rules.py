"""Near, apart, spread, burst, pools: what the rules around a job make of the nodes."""

from collections import Counter

from ozymandias.core.buckets import per_node, sort_job
from ozymandias.core.explain import why
from ozymandias.core.rules import rules_of
from ozymandias.core.schedule import (
    plan_pending,
    plan_repair,
    plan_scale,
    plan_stop,
    plan_tidy,
)
from ozymandias.model.instance import SlotState
from ozymandias.model.job import (
    Burst,
    Job,
    JobKey,
    LabelRule,
    LabelTest,
    Neighbour,
    PlacementRules,
)
from ozymandias.model.node import Load, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import NodePool, Settings
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import (
    after,
    cluster,
    job,
    key,
    lost,
    node,
    planned,
    refused,
    settled,
    submit,
    submitted,
)

DB = Neighbour(job=key("db"))


def with_rules(name: str, instances: int = 1, memory: str = "256M", **rules: object) -> Job:
    return job(name, instances, memory, placement=PlacementRules(**rules))  # type: ignore[arg-type]


def where(snapshot: Snapshot, name: str) -> Counter[NodeName]:
    return per_node(sort_job(snapshot, key(name)).live)


def nodes_of(snapshot: Snapshot, name: str) -> set[str]:
    return set(where(snapshot, name))


# Near and apart -----------------------------------------------------------------------------------


def test_near_is_where_the_other_is() -> None:
    """All instances are where one of the other job lives; elsewhere speaks against a node."""
    snapshot = submitted(cluster(n1="4G", n2="4G", n3="4G"), job("db"))
    (home,) = nodes_of(snapshot, "db")
    snapshot = submitted(snapshot, with_rules("web", 3, near=(DB,)))
    assert where(snapshot, "web") == {home: 3}
    (other, _) = sorted({"n1", "n2", "n3"} - {home})
    against = rules_of(snapshot, with_rules("web", near=(DB,))).against
    assert against[NodeName(other)] == "without db, which web is to be near to"


def test_apart_holds_both_ways() -> None:
    """Neither comes where the other is, whichever of them says so and whichever was first."""
    empty = cluster(n1="4G", n2="4G")
    wary = with_rules("web", 1, apart=(DB,))
    for first, second in ((job("db"), wary), (wary, job("db"))):
        snapshot = submitted(empty, first, second)
        assert nodes_of(snapshot, "db").isdisjoint(nodes_of(snapshot, "web"))
    only = submitted(cluster(n1="4G"), wary)
    problem = refused(submit(only, job("db")))
    assert problem.fields["nodes"][0]["reason"] == "where web is, which is to be apart from db"


def test_preferred_neighbours_never_block() -> None:
    """What would rather be near or apart goes elsewhere when there is no other room."""
    snapshot = submitted(cluster(n1="4G", n2="4G"), job("db"))
    (home,) = nodes_of(snapshot, "db")
    liked = replace(DB, weight=5)
    assert nodes_of(submitted(snapshot, with_rules("web", near=(liked,))), "web") == {home}
    far = submitted(snapshot, with_rules("web", apart=(liked,)))
    assert home not in nodes_of(far, "web")
    assert (
        sum(where(submitted(snapshot, with_rules("web", 7, "1G", apart=(liked,))), "web").values())
        == 7
    )


def test_what_stops_is_nobodys_neighbour() -> None:
    """An instance that is stopping is neither near to nor kept apart from."""
    snapshot = settled(submitted(cluster(n1="4G"), job("db")))
    snapshot = after(snapshot, plan_scale(snapshot, key("db"), 0))
    assert {a.state for a in snapshot.instances()} == {SlotState.STOPPING}
    assert rules_of(snapshot, with_rules("web", near=(DB,))).against
    assert not rules_of(snapshot, with_rules("web", apart=(DB,))).against


def test_jobs_of_one_plan_are_neighbours() -> None:
    """Two jobs that are placed by the same plan keep apart from each other too."""
    snapshot = submitted(cluster(n1="2G"), with_rules("a", 0, apart=(DB,)), job("db", 0))
    for name in ("a", "db"):
        record = snapshot.jobs[key(name)]
        wanted = replace(record, head=replace(record.head, wanted=1))
        snapshot = replace(snapshot, jobs={**snapshot.jobs, key(name): wanted})
    snapshot = after(snapshot, plan_pending(snapshot))
    assert len(list(snapshot.instances())) == 1


# Spread -------------------------------------------------------------------------------------------


def zones(**zone_of: str) -> Snapshot:
    return cluster(
        *(node(name, "8G", labels={"zone": z} if z else {}) for name, z in zone_of.items())
    )


def test_spread_is_even_over_the_values() -> None:
    """As many in each zone however many nodes it has; nodes without the label are one more."""
    snapshot = zones(n1="a", n2="a", n3="a", n4="b", n5="", n6="")
    snapshot = submitted(snapshot, with_rules("web", 9, spread="zone"))
    found: Counter[str] = Counter()
    for name, count in where(snapshot, "web").items():
        found[snapshot.nodes[name].ledger.labels.get("zone", "")] += count
    assert found == {"a": 3, "b": 3, "": 3}


def test_spread_goes_on_from_what_is_there() -> None:
    """More instances come first to the zone that has fewer."""
    snapshot = submitted(zones(n1="a", n2="b"), with_rules("web", 3, spread="zone"))
    snapshot = after(snapshot, plan_scale(snapshot, key("web"), 6))
    assert where(snapshot, "web") == {"n1": 3, "n2": 3}


# Burst --------------------------------------------------------------------------------------------

ON_N2 = LabelRule(label="name", values=("n2",))
BURST = Burst(after=3, nodes=("n9",))


def test_burst_takes_the_rest() -> None:
    """Up to `after` stay at home and never use the burst node; the rest goes there only."""
    empty = cluster(n1="4G", n2="4G", n9="4G")
    assert set(where(submitted(empty, with_rules("web", 3, burst=BURST)), "web")) <= {"n1", "n2"}
    snapshot = submitted(empty, with_rules("web", 7, burst=BURST))
    assert where(snapshot, "web")[NodeName("n9")] == 4
    assert sum(where(snapshot, "web").values()) == 7


def test_a_full_home_is_no_burst() -> None:
    """Where home has no room for `after` instances the others are pending, not elsewhere."""
    problem = refused(submit(cluster(n1="1G", n9="4G"), with_rules("web", 3, "512M", burst=BURST)))
    reasons = {n["node"]: n["reason"] for n in problem.fields["nodes"]}
    assert reasons["n9"] == "for the burst only, used above 3 instances, and 0 are live"


def test_home_comes_first_and_the_burst_helps_out() -> None:
    """What a lost home had goes home again, and to the burst node only when home is full."""
    n2 = node("n2", labels={"name": "n2"})
    big = submitted(cluster(n2, n1="4G", n9="4G"), with_rules("web", 5, "1G", burst=BURST))
    assert where(big, "web")[NodeName("n9")] == 2
    gone = NodeName("n1")
    fixed = after(lost(big, gone), plan_repair(lost(big, gone), frozenset({gone})))
    assert where(fixed, "web") == {"n2": 3, "n9": 2}
    full = submitted(big, job("other", 1, "2G", placement=PlacementRules(require=(ON_N2,))))
    fixed = after(lost(full, gone), plan_repair(lost(full, gone), frozenset({gone})))
    assert sum(where(fixed, "web").values()) == 5


def test_what_stops_does_not_count_for_a_burst() -> None:
    """Two are at home, and one of them stops: the next one goes home, not to the burst node."""
    burst = PlacementRules(burst=replace(BURST, after=2))
    full = settled(submitted(cluster(n1="4G", n9="4G"), job("web", 2, placement=burst)))
    away = after(full, plan_scale(full, key("web"), 3))
    assert where(away, "web") == {"n1": 2, "n9": 1}
    fewer = after(full, plan_scale(full, key("web"), 1))
    assert len([a for a in fewer.instances(key("web")) if a.state is SlotState.STOPPING]) == 1
    again = after(fewer, plan_scale(fewer, key("web"), 2))
    assert where(again, "web") == {"n1": 2}


# Weights ------------------------------------------------------------------------------------------


def likes(label: str, weight: int) -> LabelRule:
    return LabelRule(label=label, values=("yes",), weight=weight)


def test_the_larger_weight_wins_between_two_preferences() -> None:
    """Whichever node has what weighs more, and whichever comes first in the file."""
    snapshot = cluster(node("n1", labels={"ssd": "yes"}), node("n2", labels={"gpu": "yes"}))
    for ssd, gpu, home in ((5, 4, "n1"), (4, 5, "n2")):
        for prefer in (
            (likes("ssd", ssd), likes("gpu", gpu)),
            (likes("gpu", gpu), likes("ssd", ssd)),
        ):
            assert nodes_of(submitted(snapshot, with_rules("web", prefer=prefer)), "web") == {home}


def test_weights_are_summed_and_not_counted() -> None:
    """One preference of 10 is more than two of 4, and less than two of 6; also for neighbours."""
    both = {"gpu": "yes", "fast": "yes"}
    snapshot = cluster(node("n1", labels={"ssd": "yes"}), node("n2", labels=both))
    for each, home in ((4, "n1"), (6, "n2")):
        prefer = (likes("ssd", 10), likes("gpu", each), likes("fast", each))
        assert nodes_of(submitted(snapshot, with_rules("web", prefer=prefer)), "web") == {home}
    beside = with_rules("db", require=(likes("ssd", 0),))
    snapshot = submitted(snapshot, beside)
    for weight, home in ((9, "n1"), (7, "n2")):
        near, prefer = (replace(DB, weight=weight),), (likes("gpu", 4), likes("fast", 4))
        made = with_rules("web", near=near, prefer=prefer)
        assert nodes_of(submitted(snapshot, made), "web") == {home}


# Pools, target, load ------------------------------------------------------------------------------

DEV = LabelRule(label="env", values=("dev",))


def in_namespace(name: str, namespace: str) -> Job:
    return replace(job(name, 2, "256M"), namespace=JobKey(*key(name, namespace)).namespace)


def pooled(is_hard: bool) -> Snapshot:
    pool = NodePool(namespace="dev", require=(DEV,), is_hard=is_hard)
    nodes = cluster(node("n1", labels={"env": "dev"}), node("n2", labels={"env": "prod"}))
    return replace(nodes, settings=Settings(pools=(pool,)))


def test_a_namespace_has_its_nodes() -> None:
    """A hard pool keeps its jobs to its nodes, and says so of others; other namespaces are free."""
    plan = planned(submit(pooled(True), in_namespace("web", "dev")))
    assert {e.node for e in plan.edits} == {"n1"}
    against = rules_of(pooled(True), in_namespace("web", "dev")).against
    assert against == {"n2": "not in the pool of namespace dev (env == dev)"}
    assert not rules_of(pooled(True), in_namespace("web", "default")).against


def test_a_preferred_pool_is_filled_first() -> None:
    """A preferred pool is left when it is full, and not before."""
    plan = planned(submit(pooled(False), in_namespace("web", "dev")))
    assert {e.node for e in plan.edits} == {"n1"}
    large = replace(in_namespace("web", "dev"), containers=job("web", memory="3G").containers)
    assert {e.node for e in planned(submit(pooled(False), large)).edits} == {"n1", "n2"}


def test_the_target_is_a_setting() -> None:
    """Up to the target the fuller node is packed; with a low target work spreads at once."""
    snapshot = submitted(cluster(n1="10G"), job("a", memory="3G"))
    snapshot = replace(snapshot, nodes={**snapshot.nodes, **cluster(n2="10G").nodes})
    assert planned(submit(snapshot, job("b"))).edits[0].node == "n1"
    low = replace(snapshot, settings=Settings(target_percent=20))
    assert planned(submit(low, job("b"))).edits[0].node == "n2"


def test_load_breaks_ties_only() -> None:
    """Of two nodes as full as each other the less busy one is taken, in wide classes."""
    snapshot = cluster(n1="8G", n2="8G")
    first = planned(submit(snapshot, job("web"))).edits[0].node
    other = "n2" if first == "n1" else "n1"

    def loaded(name: str, percent: int) -> Snapshot:
        busy = replace(snapshot.nodes[NodeName(name)], load=Load(load_percent=percent))
        return replace(snapshot, nodes={**snapshot.nodes, NodeName(name): busy})

    assert planned(submit(loaded(first, 60), job("web"))).edits[0].node == first
    assert planned(submit(loaded(first, 90), job("web"))).edits[0].node == other
    emptier = submitted(loaded(first, 90), job("a", 1, "1G"))
    assert nodes_of(emptier, "a") == {other}


def test_memory_that_is_really_in_use_counts_as_load() -> None:
    """Also where nothing is promised; beside busy processors it counts once more."""
    snapshot = cluster(n1="8G", n2="8G")
    first = planned(submit(snapshot, job("web"))).edits[0].node
    other = NodeName("n2" if first == "n1" else "n1")

    def chosen(here: Load, there: Load | None = None) -> NodeName:
        loads = {first: here, other: there}
        nodes = {n: replace(snapshot.nodes[n], load=load) for n, load in loads.items()}
        return planned(submit(replace(snapshot, nodes=nodes), job("web"))).edits[0].node

    busy, used = Load(load_percent=100), Load(memory_percent=85)
    assert chosen(Load(memory_percent=70)) == first
    assert chosen(used) == other
    assert chosen(used, busy) == first  # one is as much as the other
    assert chosen(Load(load_percent=100, memory_percent=85), busy) == other
    assert chosen(Load(load_percent=100, memory_percent=85), Load(load_percent=200)) == first


# What can't be ------------------------------------------------------------------------------------


def test_an_unknown_neighbour_is_a_problem() -> None:
    """To be near a job that is not there is refused by name; apart from one is harmless."""
    problem = refused(submit(cluster(n1="4G"), with_rules("web", near=(DB,))))
    assert problem.kind.slug == "neighbour-not-found"
    assert problem.detail == "web is to be near db, and there is no such job."
    planned(submit(cluster(n1="4G"), with_rules("web", apart=(DB,))))
    planned(submit(cluster(n1="4G"), with_rules("web", near=(replace(DB, weight=3),))))


def test_a_job_whose_neighbour_is_gone_for_good_says_so() -> None:
    """It was there when the job was taken; lost with its node, nothing can be placed near it."""
    snapshot = submitted(cluster(n1="4G", n2="4G"), job("db"), with_rules("web", near=(DB,)))
    snapshot = settled(snapshot)
    (home,) = nodes_of(snapshot, "db")
    snapshot = settled(after(snapshot, plan_stop(snapshot, key("db"))))
    snapshot = lost(after(snapshot, plan_tidy(snapshot)), home)
    snapshot = after(snapshot, plan_repair(snapshot, frozenset({NodeName(home)})))
    assert "There is no job db, which it is to be near to." in why(snapshot, key("web"))


def test_an_unknown_node_for_a_burst_is_a_problem() -> None:
    """Refused by name, at any number of instances; a node that is only away is none."""
    for count in (1, 5):
        problem = refused(submit(cluster(n1="9G"), with_rules("web", count, burst=BURST)))
        assert problem.kind.slug == "burst-node-not-found"
        assert problem.detail == ("Above 3 instances web is to go to n9, and there is no node n9.")
        assert problem.fields["unknown_nodes"] == ["n9"]
    planned(submit(lost(cluster(n1="4G", n9="4G"), "n9"), with_rules("web", 3, burst=BURST)))


def test_a_burst_whose_node_is_gone_for_good_says_so() -> None:
    """The job was taken when there was one: more of it, and why it waits, name what is missing."""
    snapshot = submitted(cluster(n1="9G", n9="4G"), with_rules("web", 3, burst=BURST))
    snapshot = replace(
        snapshot, nodes={n: there for n, there in snapshot.nodes.items() if n != "n9"}
    )
    problem = refused(plan_scale(snapshot, key("web"), 5))
    assert problem.detail.endswith("1 node can take 3. There is no node n9.")
    record = snapshot.jobs[key("web")]
    more = replace(record, head=replace(record.head, wanted=5))
    lines = why(replace(snapshot, jobs={record.key: more}), record.key)
    assert "There is no node n9, which its burst is to go to." in lines


def test_a_circle_of_neighbours_is_a_contradiction() -> None:
    """Each could only be placed after another of them: once they are lost none would come back."""
    snapshot = submitted(
        cluster(n1="4G", n2="4G"),
        job("web", 1),
        with_rules("cache", 1, near=(Neighbour(job=key("web")),)),
        with_rules("db", 1, near=(Neighbour(job=key("cache")),)),
    )
    problem = refused(submit(snapshot, with_rules("web", 1, near=(DB,))))
    assert problem.detail == (
        "No node can match web: it is to be near db, which is to be near cache, which is to be near"
        " it: none of them could be placed first."
    )
    preferred = with_rules("web", 1, near=(replace(DB, weight=5),))
    assert isinstance(submit(snapshot, preferred), Plan)
    other = with_rules("api", 1, near=(DB,))
    assert isinstance(submit(snapshot, other), Plan)


def test_contradictions_are_named() -> None:
    """A pool against a requirement, a neighbour that keeps away, or one with other labels."""
    prod = with_rules("web", require=(LabelRule(label="env", values=("prod",)),))
    problem = refused(submit(pooled(True), replace(prod, namespace=key("x", "dev").namespace)))
    assert problem.detail == (
        "No node can match dev/web: env == prod and env == dev can't both hold,"
        " which the pool of namespace dev asks for."
    )
    away = submitted(cluster(n1="4G"), with_rules("db", 1, apart=(Neighbour(job=key("web")),)))
    problem = refused(submit(away, with_rules("web", near=(DB,))))
    assert problem.detail == (
        "No node can match web: it is to be near db, which is to be apart from it."
    )
    labelled = cluster(node("n1", labels={"env": "dev"}))
    there = submitted(labelled, with_rules("db", 1, require=(DEV,)))
    mixed = replace(prod, placement=replace(prod.placement, near=(DB,)))
    assert "near db, and env == prod and env == dev can't both hold" in (
        refused(submit(there, mixed)).detail
    )
    three = [LabelRule(label="env", test=LabelTest.UNEQUAL, values=(v,)) for v in ("a", "b")]
    either = LabelRule(label="env", test=LabelTest.IN, values=("a", "b"))
    problem = refused(submit(labelled, with_rules("web", require=(either, *three))))
    assert problem.detail == (
        "No node can match web: env in [a, b], env != a and env != b can't all hold."
    )
    assert not problem.fields["suggestions"]
