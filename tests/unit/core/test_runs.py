"""Placing in runs is placing one by one, only quicker; and the order is one of the nodes alone."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from ozymandias.core.apply import apply
from ozymandias.core.inventory import Inventory
from ozymandias.core.placement import Ask, place, share_of
from ozymandias.core.rooms import NOW_OR_SOON, rooms_of
from ozymandias.core.rules import NO_RULES, Rules
from ozymandias.core.runs import place_runs, why_of
from ozymandias.core.upkeep import LOST_AT_ONCE, LOST_IN_RUNS, plan_repair
from ozymandias.model.instance import Slots, SlotState
from ozymandias.model.job import PlacementRules
from ozymandias.model.node import Demand, Ledger, Load, Node, NodeName, Resources, Totals
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Table
from tests.unit.core.builders import cluster, job, key, lost, node, spread, submitted

AMOUNTS = st.integers(0, 100)
TOTALS = st.builds(
    lambda memory, disk, cpu: Totals(
        resources=Resources(memory_bytes=memory, disk_bytes=disk, cpu_millis=cpu)
    ),
    AMOUNTS,
    AMOUNTS,
    AMOUNTS,
)
LEDGERS = st.builds(
    Ledger,
    capacity=st.builds(
        Resources,
        memory_bytes=st.sampled_from([100, 100, 200, 150]),
        disk_bytes=st.sampled_from([100, 200]),
        cpu_millis=st.sampled_from([0, 100]),
    ),
    reserve=st.sampled_from([Resources(), Resources(memory_bytes=20)]),
    held=TOTALS,
    promised=TOTALS,
    is_cordoned=st.sampled_from([False, False, False, True]),
)
LOADS = st.none() | st.builds(
    Load, load_percent=st.sampled_from([0, 80, 200]), memory_percent=st.sampled_from([0, 50, 85])
)
NAMES = [NodeName(f"n{number}") for number in range(8)]


def made(name: NodeName, ledger: Ledger, load: Load | None) -> Node:
    return replace(node(name), ledger=ledger, load=load)


NODES = st.lists(st.tuples(LEDGERS, LOADS), min_size=1, max_size=8).map(
    lambda found: {name: made(name, *one) for name, one in zip(NAMES, found, strict=False)}
)
DEMANDS = st.builds(
    Demand,
    memory_bytes=st.integers(0, 40),
    disk_bytes=st.sampled_from([0, 0, 5]),
    cpu_millis=st.sampled_from([0, 0, 10]),
)
COUNTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), max_size=4)


@settings(max_examples=500, deadline=None)
@given(NODES, DEMANDS, st.integers(1, 40), st.integers(0, 400), st.integers(0, 6), COUNTS)
def test_runs_are_what_one_by_one_gives(
    nodes: dict[NodeName, Node],
    demand: Demand,
    count: int,
    wanted: int,
    limit: int,
    there: dict[NodeName, int],
) -> None:
    """The same nodes in the same order, with the same words for the first of each run."""
    against = {NAMES[1]: "a reason"} if limit == 3 else {}
    rules = Rules(asked=PlacementRules(max_per_node=limit), against=against)
    ask = Ask(job=key("web"), version=1, demand=demand, wanted=wanted, rules=rules)
    runs = place_runs(nodes, ask, count, there)
    if runs is None:
        return
    placed = place(rooms_of(Snapshot(nodes=nodes)), ask, count, there, NOW_OR_SOON)
    assert [name for name, count, _ in runs for _ in range(count)] == [p.node for p in placed]
    first = 0
    for name, count, why in runs:
        words, score = why_of(ask, why)
        assert (f"{name} {words}", score) == (placed[first].reason, placed[first].score)
        first += count


@settings(deadline=None)
@given(NODES, DEMANDS, st.lists(st.tuples(st.sampled_from(NAMES), st.none() | LEDGERS), max_size=9))
def test_the_order_does_not_know_its_past(
    nodes: dict[NodeName, Node], demand: Demand, changes: list[tuple[NodeName, Ledger | None]]
) -> None:
    """One that has followed every change is the one that is made from the last nodes alone."""
    followed = Inventory(demand, 70)
    table = Table.of(nodes)
    followed.follow(table)
    for name, ledger in changes:
        new = None if ledger is None else made(name, ledger, None)
        table = table.changed({name: new})
        followed.follow(table)
    anew = Inventory(demand, 70)
    anew.follow(dict(table))
    start = 2**63
    one, other = followed.in_order(start), anew.in_order(start)
    assert [(n, astuple(s)) for n, s in one] == [(n, astuple(s)) for n, s in other]


def test_a_node_gets_a_tenth_of_a_large_job() -> None:
    """Losing one machine of many costs no more than that; small jobs are spread one by one."""
    nodes = cluster(**{f"n{number}": "100G" for number in range(20)})
    large = spread(submitted(nodes, job("large", 100)), key("large"))
    assert Counter(large) == Counter({10: 10})
    assert spread(submitted(nodes, job("small", 10)), key("small")) == [1] * 10
    assert [share_of(number) for number in (0, 1, 10, 11, 1000)] == [1, 1, 1, 2, 100]
    assert NO_RULES.target_percent == 70


def repaired(snapshot: Snapshot, dead: Sequence[NodeName], *, at_once: int) -> tuple[Snapshot, int]:
    """Everything moved away from the dead, no plan too large; and how many plans that took."""
    snapshot, plans = lost(snapshot, *dead), 0
    while plan := plan_repair(snapshot, frozenset(dead)):
        assert sum(edit.before is None for edit in plan.edits) <= at_once
        snapshot = apply(snapshot, plan)
        plans += 1
    return snapshot, plans


def test_a_mass_loss_is_repaired_in_parts() -> None:
    """Each plan moves what one transaction takes; in the end nothing is left on the dead."""
    names = [f"n{number}" for number in range(40)]
    snapshot = submitted(cluster(**dict.fromkeys(names, "1000G")), job("web", 3000, "1M"))
    holding = sorted(snapshot.assigned.by_node)[:5]
    assert len(holding) == 5
    snapshot, plans = repaired(snapshot, holding, at_once=LOST_IN_RUNS)
    assert plans == 1
    assert not any(snapshot.on(name) for name in holding)
    assert snapshot.of(key("web")).live == 3000


def test_a_mass_loss_that_touches_much_is_repaired_in_smaller_parts() -> None:
    """Where every instance goes to a node of its own, fewer are moved by one plan."""
    names = [f"n{number:04}" for number in range(1500)]
    wide = [job(f"wide{n}", 1000, "1M", placement=PlacementRules(max_per_node=1)) for n in range(3)]
    snapshot = submitted(cluster(**dict.fromkeys(names, "100M")), *wide)
    holding = sorted(n for n, row in snapshot.assigned.by_node.items() if len(row) > 1)[:450]
    snapshot, plans = repaired(snapshot, holding, at_once=LOST_AT_ONCE)
    assert plans >= 2
    assert [snapshot.of(spec.key).live for spec in wide] == [1000] * 3


def test_what_a_lost_node_had_is_all_somewhere_else() -> None:
    """After the repair every job has as many as before, and none on the dead node."""
    nodes = cluster(**{f"n{number}": "100G" for number in range(12)})
    snapshot = submitted(nodes, job("a", 30), job("b", 5), job("c", 12))
    dead = frozenset({sorted(snapshot.assigned.by_node)[0]})
    snapshot = lost(snapshot, *dead)
    plan = plan_repair(snapshot, dead)
    assert plan is not None and not plan.pending
    after = apply(snapshot, plan)
    assert [after.of(key(name)).live for name in "abc"] == [30, 5, 12]
    assert not any(after.on(name) for name in dead)


def test_a_lost_slot_that_stops_elsewhere_comes_back_under_another_number() -> None:
    """Two pods of one name never are: a number is taken while its last pod still stops."""
    nodes = cluster(**{f"n{number}": "100G" for number in range(12)})
    snapshot = submitted(nodes, job("a", 30))
    home, other = sorted(snapshot.assigned.by_node)[:2]
    there = snapshot.assignments[home, key("a")]
    twice = there.groups[0].slots.numbers[0]
    stops = replace(there.groups[0], state=SlotState.STOPPING, slots=Slots.of([twice]))
    beside = snapshot.assignments[other, key("a")]
    beside = replace(beside, groups=(*beside.groups, stops))
    snapshot = lost(
        replace(snapshot, assignments={**snapshot.assignments, (other, key("a")): beside}), home
    )
    plan = plan_repair(snapshot, frozenset({home}))
    assert plan is not None
    placed = {edit.slot for edit in plan.edits if edit.before is None}
    assert twice not in placed and 30 in placed
    assert apply(snapshot, plan).of(key("a")).live == 30
