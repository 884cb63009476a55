"""Decisions on record: what was recorded explains, by the same functions, what was decided."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.core.arbiter import propose
from ozymandias.core.decision import is_recorded, record
from ozymandias.core.placement import Ask, place, ranked
from ozymandias.core.retrace import explain, find
from ozymandias.core.rooms import rooms_of
from ozymandias.core.rules import rules_of
from ozymandias.core.schedule import plan_pending
from ozymandias.core.survey import BEST_MAX, COUNTED_NODES_MAX, OTHER_REASONS, REASONS_MAX
from ozymandias.model.decision import Decision
from ozymandias.model.instance import SlotState
from ozymandias.model.job import (
    Autoscale,
    LabelRule,
    LabelTest,
    PendingSource,
    PlacementRules,
)
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from ozymandias.store import keys
from ozymandias.store.decisions import BYTES_MAX, decode, encode
from tests.unit.core.builders import WEB, after, cluster, job, lost, node, planned, settled, submit

N1 = NodeName("n1")


def recorded(snapshot: Snapshot, *plans: Plan) -> Decision:
    made = record(snapshot, plans, number=7, by=N1, time=5.0)
    data = encode(made)
    assert len(data) <= BYTES_MAX
    assert decode(data) == made
    return made


def test_a_new_job_is_explained_by_its_record() -> None:
    """Each instance by what was there before it, the ones decided before it included."""
    snapshot = cluster(
        node("n1", "4G"), node("n2", "2G"), node("n3", "1G"), node("n4", cordoned=True)
    )
    plan = planned(submit(snapshot, job("web", 3, "2G")))
    found = recorded(snapshot, plan)
    now = after(snapshot, plan)
    for assigned in now.instances():
        hit = find([found], assigned)
        assert hit
        explained = explain(hit[0], hit[1])
        assert explained.is_exact, explained
        verdicts = {v.node: v for v in explained.verdicts}
        assert verdicts[assigned.node].is_chosen and verdicts[assigned.node].rank == 1
        assert verdicts[NodeName("n3")].against == "1G of memory short (1G free)"
        assert verdicts[NodeName("n4")].against == "cordoned"
        assert dict(verdicts[assigned.node].terms)["same_job"] == (1.0 if assigned.slot == 2 else 0)


def test_rules_are_explained() -> None:
    """Required and preferred labels are terms and filters of the record too."""
    rules = PlacementRules(
        require=(LabelRule(label="disk", values=("ssd",)),),
        prefer=(LabelRule(label="zone", test=LabelTest.EQUAL, values=("a",), weight=5),),
    )
    snapshot = cluster(
        node("n1", labels={"disk": "ssd", "zone": "b"}),
        node("n2", labels={"disk": "ssd", "zone": "a"}),
        node("n3", labels={"zone": "a"}),
    )
    plan = planned(submit(snapshot, job("web", 1, placement=rules)))
    explained = explain(recorded(snapshot, plan), 0)
    assert explained.is_exact
    best, second, out = explained.verdicts
    assert (best.node, second.node, out.node) == ("n2", "n1", "n3")
    assert dict(best.terms)["zone == a"] == 5.0 and out.against == "without label disk == ssd"


def test_what_places_nothing_is_not_recorded() -> None:
    """Stops, releases and settings are no choice between nodes."""
    snapshot = after(cluster(n1="4G"), submit(cluster(n1="4G"), job("web", 1)))
    assert is_recorded([planned(submit(cluster(n1="4G"), job("web", 1)))])
    assert not is_recorded([Plan(reason="nothing"), planned(submit(snapshot, job("web", 0)))])


def test_an_instance_that_was_placed_again_is_found_by_its_last_decision() -> None:
    """The newest record wins, and one of another version does not count."""
    first = cluster(n1="4G", n2="4G")
    plan = planned(submit(first, job("web", 1)))
    snapshot = settled(after(first, plan))
    (assigned,) = snapshot.instances()
    old = record(first, [plan], number=0, by=N1, time=1.0)
    new = replace(old, revision=9, number=1)
    found = find([new, old], assigned)
    assert found and found[0].number == 1
    assert find([old], replace(assigned, version=2)) is None
    assert find([old], replace(assigned, node=NodeName("n9"))) is None


def test_a_large_cluster_is_cut_and_says_so() -> None:
    """The chosen nodes are on record, the best of the others, and how many there were."""
    snapshot = cluster(*(node(f"n{i:03}", "4G") for i in range(300)))
    found = recorded(snapshot, planned(submit(snapshot, job("web", 3))))
    assert len(found.nodes) == BEST_MAX and found.nodes_total == 300
    assert {step.node for step in found.steps} <= found.nodes.keys()
    wide = recorded(snapshot, planned(submit(snapshot, job("wide", 290))))
    assert len(wide.nodes) == 16 and wide.left_out >= 0 and wide.jobs[0].feasible is None
    assert sum(len(s.slots) for s in wide.steps) + wide.left_out == 290


@pytest.mark.parametrize("spread", ["", "zone"])
def test_a_large_clusters_record_has_the_best_and_counts_the_others(spread: str) -> None:
    """The same best nodes, in the same order, as a look at all of them finds."""
    nodes = [
        node(
            f"n{i:03}",
            "1G" if i % 3 == 0 else "8G",
            cordoned=i % 5 == 0,
            labels={"disk": "hdd" if i % 7 == 0 else "ssd", "zone": "ab"[i % 2]},
        )
        for i in range(210)
    ]
    asked = PlacementRules(require=(LabelRule(label="disk", values=("ssd",)),), spread=spread)
    snapshot = cluster(*nodes)
    made = job("web", 2, "2G", placement=asked)
    found = recorded(snapshot, planned(submit(snapshot, made)))
    explained = explain(found, 0)
    assert explained.is_exact
    assert explained.rejected == {
        "short of memory": 48,
        "cordoned": 42,
        "without label disk == ssd": 24,
    }
    assert explained.feasible == 210 - 48 - 42 - 24
    ask = Ask(job=made.key, version=1, demand=Demand.of(made), rules=rules_of(snapshot, made))
    rooms = {
        n: r for n, r in ask.rules.eligible(rooms_of(snapshot)).items() if r.memory_limit > 2**31
    }
    best = [name for name, _ in ranked(rooms, ask, {})]
    told = [verdict.node for verdict in explained.verdicts]
    assert told[:BEST_MAX] == best[:BEST_MAX] and told[0] == found.steps[0].node


def test_a_very_large_cluster_is_not_counted() -> None:
    """That would cost every decision a look at every node; the best ones are known without."""
    snapshot = cluster(*(node(f"n{i:04}", "4G") for i in range(COUNTED_NODES_MAX + 1)))
    found = recorded(snapshot, planned(submit(snapshot, job("web", 1))))
    explained = explain(found, 0)
    assert explained.is_exact and len(found.nodes) == BEST_MAX
    assert (explained.feasible, explained.rejected) == (None, {})


def test_few_of_very_many_nodes_will_do_and_the_look_for_them_ends() -> None:
    """The best ones are those that were come upon: it costs no look at every node."""
    snapshot = cluster(
        *(
            node(f"n{i:04}", "64G", labels={"gpu": "yes"} if i % 500 == 0 else {})
            for i in range(1500)
        )
    )
    asked = PlacementRules(require=(LabelRule(label="gpu", values=("yes",)),))
    found = recorded(snapshot, planned(submit(snapshot, job("web", 1, placement=asked))))
    assert 1 <= len(found.nodes) <= 3 and found.steps[0].node in found.nodes


def test_reasons_are_bounded() -> None:
    """Each host may be degraded in words of its own; the rare ones are counted together."""
    nodes = [node(f"n{i:03}", degraded=f"disk {i} is gone" if i else "") for i in range(100)]
    found = recorded(cluster(*nodes), planned(submit(cluster(*nodes), job("web", 1))))
    (seen,) = found.jobs
    assert len(seen.rejected) <= REASONS_MAX and sum(seen.rejected.values()) == 99
    assert seen.rejected[OTHER_REASONS] == 99 - (REASONS_MAX - 1)


def test_a_node_keeps_a_hundred_records_and_each_is_small() -> None:
    """The next one takes the place of the oldest; of a usual decision it is about a kilobyte."""
    assert keys.decision(N1, 100) == keys.decision(N1, 0) != keys.decision(N1, 99)
    snapshot = cluster(*(node(f"n{i:02}", "8G") for i in range(50)))
    found = recorded(snapshot, planned(submit(snapshot, job("web", 20))))
    assert len(encode(found)) < 2048


def test_a_pool_is_explained_by_what_it_wants_and_not_by_its_file() -> None:
    """Tenths of the 40 that it wants now: a node may have four before that counts as more."""
    snapshot = cluster(*(node(f"n{i}", "64G") for i in range(4)))
    pool = Autoscale(min=0, max=40, source=PendingSource.KEY, target="/q", step=40)
    snapshot = after(snapshot, submit(snapshot, job("web", 0, "64M", autoscale=pool)))
    known = snapshot.jobs[WEB]
    grown = replace(known, head=replace(known.head, wanted=40))
    snapshot = replace(snapshot, jobs={WEB: grown})
    plan = planned(plan_pending(snapshot))
    found = recorded(snapshot, plan)
    assert found.jobs[0].wanted == 40
    for assigned in after(snapshot, plan).instances():
        hit = find([found], assigned)
        assert hit and explain(hit[0], hit[1]).is_exact


@given(st.binary(max_size=200))
def test_what_is_not_a_record_is_left_out(data: bytes) -> None:
    """A value of anybody else's in the ring is passed over."""
    from ozymandias.store.decisions import readable

    assert readable([data]) == []


def test_a_bomb_is_not_opened() -> None:
    """A few bytes that open to a gigabyte are not read to the end."""
    import zlib

    from ozymandias.store import codec

    bomb = zlib.compress(b" " * 50_000_000, 9)
    with pytest.raises(codec.Undecodable):
        decode(bomb)


JOBS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.integers(1, 3),
        st.integers(0, 2),
        st.sampled_from(["", "zone == a", "spread", "max"]),
    ),
    min_size=1,
    max_size=4,
)


def rules(kind: str) -> PlacementRules:
    wish = LabelRule(label="zone", test=LabelTest.EQUAL, values=("a",), weight=3)
    return {
        "": PlacementRules(),
        "zone == a": PlacementRules(prefer=(wish,)),
        "spread": PlacementRules(spread="zone"),
        "max": PlacementRules(max_per_node=2),
    }[kind]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=2, max_size=5), JOBS, st.integers(0, 4))
def test_every_placement_is_explained_as_it_was_made(
    sizes: list[int], jobs: list[tuple[int, int, int, str]], victim: int
) -> None:
    """Submits, repairs and what is placed later: the chosen node is the best, with its score."""
    snapshot = cluster(
        *(node(f"n{i}", f"{s}G", labels={"zone": "ab"[i % 2]}) for i, s in enumerate(sizes))
    )
    for number, (count, memory, priority, kind) in enumerate(jobs):
        wanted = job(f"j{number}", count, f"{memory}G", priority=priority, placement=rules(kind))
        decision = submit(snapshot, wanted)
        if not isinstance(decision, Problem):
            assert_explained(snapshot, decision)
            snapshot = after(snapshot, decision)
    snapshot = settled(snapshot)
    name = NodeName(f"n{victim % len(sizes)}")
    snapshot = lost(snapshot, name)
    for _ in range(20):
        proposal = propose(snapshot, frozenset({name}))
        if proposal is None:
            break
        assert_explained(snapshot, proposal.plan)
        snapshot = settled(after(snapshot, proposal.plan))


def assert_explained(snapshot: Snapshot, plan: Plan) -> None:
    found = recorded(snapshot, plan)
    for number, step in enumerate(found.steps):
        if step.before is None and step.after in (SlotState.RUNNING, SlotState.WAITING):
            explained = explain(found, number)
            chosen = [v for v in explained.verdicts if v.is_chosen]
            assert chosen and not chosen[0].against
            assert explained.is_exact, (plan, explained)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(0, 50),
)
def test_the_first_in_rank_is_the_one_that_is_placed(
    nodes: list[tuple[int, int]], version: int
) -> None:
    """`ranked` tells in which order `place` chooses."""
    snapshot = cluster(*(node(f"n{i}", f"{size}G") for i, (size, _) in enumerate(nodes)))
    apart = {NodeName(f"n{i}"): same for i, (_, same) in enumerate(nodes)}
    demand = Demand(memory_bytes=2**30)
    ask = Ask(job=job("web").key, version=version, demand=demand)
    order = ranked(rooms_of(snapshot), ask, apart)
    (placed,) = place(rooms_of(snapshot), ask, 1, apart)
    assert (placed.node, placed.score) == order[0]
