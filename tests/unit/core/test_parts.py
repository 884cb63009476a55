"""A peer fills its own part of a large cluster first, and gives nothing up for that."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.core.decision import record
from ozymandias.core.parts import PART_NODES, Roster, part_of
from ozymandias.core.placement import Ask, place
from ozymandias.core.retrace import explain
from ozymandias.core.ring import RING, arc_of, is_in
from ozymandias.core.rooms import NOW_OR_SOON, rooms_of
from ozymandias.core.rules import Rules
from ozymandias.core.runs import place_runs, why_of
from ozymandias.core.schedule import plan_scale, plan_submit
from ozymandias.core.survey import ELSEWHERE
from ozymandias.model.job import Job, LabelRule, PlacementRules
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.part import Part
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Table
from tests.unit.core.builders import NAMES as SITE
from tests.unit.core.builders import after, cluster, job, key, lost, node, planned
from tests.unit.core.test_runs import COUNTS, DEMANDS, NAMES, NODES

PEERS = [NodeName(f"peer{number}") for number in range(4)]
PARTS = st.integers(1, 4).flatmap(
    lambda of: st.integers(0, of - 1).map(lambda number: Part(number=number, of=of))
)


def idle(name: str, memory: str = "10G", **rest: object) -> Node:
    """A node that does not schedule."""
    made = node(name, memory, **rest)  # type: ignore[arg-type]
    assert made.presence
    return replace(made, presence=replace(made.presence, schedules=False))


def large(count: int = 40 * len(PEERS), **rest: object) -> Snapshot:
    """Four peers that schedule and offer nothing, and many nodes that do not."""
    names = (f"n{number:03}" for number in range(count))
    return cluster(*(node(name, "0") for name in PEERS), *(idle(name, **rest) for name in names))


def submit(snapshot: Snapshot, peer: str | None, wanted: Job) -> Plan:
    name = NodeName(peer) if peer else None
    return planned(plan_submit(snapshot, wanted, uid="u", names=SITE, peer=name))


def nodes_of(plan: Plan) -> list[NodeName]:
    return [edit.node for edit in plan.edits]


@settings(max_examples=500, deadline=None)
@given(NODES, DEMANDS, st.integers(1, 40), st.integers(0, 400), st.integers(0, 6), COUNTS, PARTS)
def test_a_part_is_a_cluster_of_its_own_nodes(
    nodes: dict[NodeName, Node],
    demand: Demand,
    count: int,
    wanted: int,
    limit: int,
    there: dict[NodeName, int],
    part: Part,
) -> None:
    """What is placed in it is placed as if there were no other nodes; what isn't, went beyond."""
    against = {NAMES[1]: "a reason"} if limit == 3 else {}
    rules = Rules(asked=PlacementRules(max_per_node=limit), against=against)
    ask = Ask(job=key("web"), version=1, demand=demand, wanted=wanted, rules=rules)
    own = {name: one for name, one in nodes.items() if is_in(part, name)}
    runs = place_runs(nodes, ask, count, there, part)
    alone = place_runs(own, ask, count, there)
    placed = place(rooms_of(Snapshot(nodes=own)), ask, count, there, NOW_OR_SOON)
    is_cool = all(dict(p.score)["below_target"] for p in placed)
    if runs is None:
        assert alone is None or not is_cool
        return
    assert alone is not None
    told, told_alone = ([(n, c, why_of(ask, w)) for n, c, w in found] for found in (runs, alone))
    assert told == told_alone
    assert [n for n, count, _ in runs for _ in range(count)] == [p.node for p in placed]
    assert is_cool


@given(st.integers(1, 50))
def test_parts_are_the_whole_ring(of: int) -> None:
    """Each place is in exactly one of them."""
    arcs = [arc_of(Part(number=number, of=of)) for number in range(of)]
    assert arcs[0][0] == 0 and arcs[-1][1] == RING
    assert all(one[1] == next_one[0] for one, next_one in pairwise(arcs))


NODE_CHANGES = st.lists(
    st.tuples(st.sampled_from([*PEERS, *NAMES]), st.sampled_from(["peer", "idle", "gone", None])),
    max_size=12,
)


@settings(deadline=None)
@given(NODE_CHANGES, st.booleans())
def test_the_roster_does_not_know_its_past(
    changes: list[tuple[NodeName, str | None]], is_table: bool
) -> None:
    followed = Roster()
    nodes = Table.of(large().nodes)
    for name, what in changes:
        made = {"peer": node(name), "idle": idle(name), "gone": node(name, alive=False)}
        change = {name: made[what] if what else None}
        nodes = nodes.changed(change)
        assert followed.follow(nodes if is_table else dict(nodes)) == Roster().follow(dict(nodes))


def test_peers_place_on_nodes_of_their_own() -> None:
    """Whatever each decides at once, no two of them touch the same ledger."""
    snapshot = large()
    chosen = [
        {name for number in range(5) for name in nodes_of(submit(snapshot, peer, job(f"{number}")))}
        for peer in PEERS
    ]
    for number, names in enumerate(chosen):
        part = part_of(snapshot.nodes, PEERS[number])
        assert part == Part(number=number, of=len(PEERS))
        assert names and all(is_in(part, name) for name in names)


def test_more_of_a_job_go_to_the_part_as_well() -> None:
    snapshot = after(large(), submit(large(), PEERS[0], job("web", 3)))
    plan = planned(plan_scale(snapshot, key("web"), 6, peer=PEERS[1]))
    assert plan.part == Part(number=1, of=4)
    assert all(is_in(plan.part, name) for name in nodes_of(plan))
    assert planned(plan_scale(snapshot, key("web"), 6)).part is None


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(large(PART_NODES * len(PEERS) - len(PEERS) - 1), id="too few nodes"),
        pytest.param(cluster(*(node(f"n{n}") for n in range(200))), id="every node schedules"),
        pytest.param(lost(large(), *PEERS[1:]), id="one peer"),
        pytest.param(lost(large(), PEERS[0]), id="it is not there"),
    ],
)
def test_there_are_no_parts(snapshot: Snapshot) -> None:
    assert part_of(snapshot.nodes, PEERS[0]) is None
    plan = submit(snapshot, PEERS[0], job("web", 3))
    assert nodes_of(plan) == nodes_of(submit(snapshot, None, job("web", 3)))


def test_the_parts_of_the_lost_are_shared_among_the_others() -> None:
    snapshot = lost(large(), PEERS[1])
    assert part_of(snapshot.nodes, PEERS[2]) == Part(number=1, of=3)


def test_what_does_not_fit_into_the_part_is_placed_as_ever() -> None:
    """Here it wants another node for each, and there are more than the part has."""
    wide = job("wide", 100, "1M", placement=PlacementRules(max_per_node=1))
    plan = submit(large(), PEERS[0], wide)
    assert plan.part is None
    assert nodes_of(plan) == nodes_of(submit(large(), None, wide))


def test_a_part_is_not_filled_beyond_the_target() -> None:
    """Who is asked by everybody does not heat its own nodes up while others are empty."""
    snapshot, number = large(memory="1G"), 0
    while (plan := submit(snapshot, PEERS[0], job(f"j{number}", 10, "100M"))).part:
        snapshot, number = after(snapshot, plan), number + 1
    assert number > 10
    limit = 0.7 * 2**30
    promised = (n.ledger.promised.resources.memory_bytes for n in snapshot.nodes.values())
    assert max(promised) <= limit
    assert any(not is_in(Part(number=0, of=4), name) for name in nodes_of(plan))


def test_labels_are_no_part_of_it() -> None:
    """A job that may run on few nodes finds them wherever they are."""
    ssd = [idle(f"s{number}", labels={"disk": "ssd"}) for number in range(3)]
    snapshot = cluster(*large().nodes.values(), *ssd)
    rule = LabelRule(label="disk", values=("ssd",))
    wanted = job("web", 3, placement=PlacementRules(require=(rule,)))
    assert {*nodes_of(submit(snapshot, PEERS[0], wanted))} == {one.name for one in ssd}


def test_the_record_knows_the_part() -> None:
    """`ozy why` shows the best of those that were looked at, and says what the others were."""
    snapshot = large()
    plan = submit(snapshot, PEERS[2], job("web", 3))
    made = record(snapshot, [plan], number=0, by=PEERS[2], time=0.0)
    part = plan.part
    assert part and made.jobs[0].part == part
    found = explain(made, 0)
    assert found.is_exact
    assert all(is_in(part, v.node) for v in found.verdicts if v.rank)
    inside = sum(is_in(part, name) for name in snapshot.nodes if name not in PEERS)
    assert found.feasible == inside
    assert found.rejected[ELSEWHERE] == len(snapshot.nodes) - inside - len(PEERS)
