"""What holds of moves whatever the cluster: they end, they gain, and they cost nobody anything."""

from collections import Counter
from typing import TypedDict

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ozymandias.core.arbiter import Leisure, propose
from ozymandias.core.buckets import sort_job
from ozymandias.core.budget import floor_of
from ozymandias.core.layout import Layout
from ozymandias.core.looks import looking, plan_again, plan_ask
from ozymandias.core.moves import is_moving, moving_jobs, plan_moves
from ozymandias.core.nodes import plan_cordon, plan_label, plan_uncordon
from ozymandias.core.rebalance import foresee_rebalance, plan_rebalance
from ozymandias.core.rules import rules_of
from ozymandias.core.schedule import plan_repair, plan_scale
from ozymandias.core.stepwise import at_once
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Burst, Job, LabelRule, Neighbour, OnPartition, PlacementRules
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import parse_size
from tests.unit.core.builders import (
    after,
    check,
    cluster,
    job,
    key,
    lost,
    node,
    report,
    returned,
    settled,
)
from tests.unit.core.builders import submit as submit_plan

NOW = 10_000.0
STEPS_MAX = 400
ROLE = LabelRule(label="role", values=("infra",))

rules = st.builds(
    PlacementRules,
    require=st.sampled_from([(), (), (), (ROLE,)]),
    prefer=st.sampled_from([(), (), (replace(ROLE, weight=2),)]),
    near=st.sampled_from([(), (), (Neighbour(job=key("a"), weight=3),)]),
    apart=st.sampled_from([(), (Neighbour(job=key("b"), weight=4),), (Neighbour(job=key("b")),)]),
    spread=st.sampled_from(["", "", "zone"]),
    max_per_node=st.sampled_from([0, 0, 2]),
    burst=st.sampled_from([None, None, None, Burst(after=2, nodes=("n0",))]),
)
jobs = st.builds(
    replace,
    st.builds(
        job,
        name=st.sampled_from("abcd"),
        instances=st.integers(0, 5),
        memory=st.sampled_from(["256M", "512M", "1G", "1500M"]),
        host_port=st.sampled_from([None, None, None, 8080]),
    ),
    min_available=st.integers(0, 3),
    on_partition=st.sampled_from([OnPartition.KEEP, OnPartition.KEEP, OnPartition.STOP]),
    placement=rules,
)


def allowed(made: Job) -> Job:
    """Nobody is near to itself, or apart from itself."""
    asked = made.placement
    near = tuple(n for n in asked.near if n.job != made.key)
    apart = tuple(n for n in asked.apart if n.job != made.key)
    return replace(made, placement=replace(asked, near=near, apart=apart))


@st.composite
def layouts(draw: st.DrawFn) -> Snapshot:
    """A cluster whose jobs were placed while some nodes were closed and labels were others."""
    sizes = draw(st.lists(st.sampled_from(["1G", "2G", "4G", "7G"]), min_size=1, max_size=5))
    labels = st.fixed_dictionaries(
        {}, optional={"role": st.just("infra"), "zone": st.sampled_from("ab")}
    )
    snapshot = cluster(*(node(f"n{i}", size, labels=draw(labels)) for i, size in enumerate(sizes)))
    names = sorted(snapshot.nodes)
    for made in draw(st.lists(jobs.map(allowed), min_size=1, max_size=5)):
        closed = draw(st.sets(st.sampled_from(names)))
        for name in closed:
            snapshot = after(snapshot, plan_cordon(snapshot, name))
        plan = submit_plan(snapshot, made)
        if isinstance(plan, Plan) and not plan.is_empty and made.key not in snapshot.jobs:
            snapshot = after(snapshot, plan)
        for name in closed:
            snapshot = after(snapshot, plan_uncordon(snapshot, name))
    for name in draw(st.sets(st.sampled_from(names))):
        plan = plan_label(snapshot, name, draw(labels), [])
        if isinstance(plan, Plan) and not plan.is_empty:
            snapshot = after(snapshot, plan)
    mode = draw(st.sampled_from([RebalanceMode.ON, RebalanceMode.ON, RebalanceMode.SUGGEST]))
    return settled(replace(snapshot, settings=replace(snapshot.settings, rebalance=mode)))


slow = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


@slow
@given(layouts())
def test_moves_end_and_each_of_them_gains(snapshot: Snapshot) -> None:
    """The sums fall with every move, first to last, until no move is worth it."""
    steps = 0
    while plan := plan_rebalance(snapshot, NOW):
        before = Layout(snapshot).total()
        snapshot = settled(check_step(snapshot, plan))
        stops = plan_moves(snapshot, NOW)
        assert stops is not None
        snapshot = settled(check_step(snapshot, stops))
        assert Layout(snapshot).total() < before, (plan.reason, stops.reason)
        steps += 1
        assert steps < STEPS_MAX, "does not come to rest"
    assert plan_moves(snapshot, NOW) is None


@slow
@given(layouts())
def test_what_is_found_before_holds_where_it_was_found(snapshot: Snapshot) -> None:
    """With what a look has found the same is decided as without; after that move it is another."""
    look = at_once(looking(snapshot, NOW))
    assert plan_ask(snapshot, 1, NOW, look=look) == plan_ask(snapshot, 1, NOW)
    if plan := plan_rebalance(mode_on(snapshot), NOW):
        moved = settled(check_step(snapshot, plan))
        again = plan_ask(moved, 1, NOW, look=look)
        assert again is None or again == plan_ask(moved, 1, NOW)


@slow
@given(layouts())
def test_a_move_is_made_anew_where_it_was_found_and_only_where_it_gains(snapshot: Snapshot) -> None:
    """On the same snapshot it is the same plan; after it, it is none, or one that is sound."""
    rules: Rules = {"is_frozen": False, "steady_seconds": 60.0, "settled": None}
    plan = plan_rebalance(snapshot, NOW)
    if plan is None:
        return
    assert plan_again(snapshot, plan, NOW, **rules) == plan
    moved = settled(check_step(snapshot, plan))
    if stops := plan_moves(moved, NOW):
        moved = settled(check_step(moved, stops))
    if again := plan_again(moved, plan, NOW, **rules):
        check_step(moved, again)
        assert again.job and plan.job and again.job.key == plan.job.key


class Rules(TypedDict):
    is_frozen: bool
    steady_seconds: float
    settled: frozenset[NodeName] | None


def mode_on(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, settings=replace(snapshot.settings, rebalance=RebalanceMode.ON))


@st.composite
def bursts(draw: st.DrawFn) -> Snapshot:
    """A job with a burst, others around it, and home nodes that were lost and are there again."""
    sizes = draw(st.lists(st.sampled_from(["1G", "2G", "4G"]), min_size=1, max_size=3))
    home = [f"n{i}" for i in range(1, 1 + len(sizes))]
    snapshot = cluster(node("n0", "8G"), *map(node, home, sizes))
    asked = PlacementRules(burst=Burst(after=draw(st.integers(1, 4)), nodes=("n0",)))
    made = job("a", draw(st.integers(1, 6)), memory="512M", placement=asked)
    others = st.builds(
        job,
        st.sampled_from("bcd"),
        st.integers(1, 3),
        memory=st.sampled_from(["256M", "1G"]),
        priority=st.sampled_from([0, 10]),  # they may take home's room when a node is lost
    )
    for wanted in (made, *draw(st.lists(others, max_size=3))):
        plan = submit_plan(snapshot, wanted)
        if isinstance(plan, Plan) and wanted.key not in snapshot.jobs:
            snapshot = settled(after(snapshot, plan))
    gone = draw(st.sets(st.sampled_from(home), min_size=1))
    snapshot = lost(snapshot, *gone)
    if plan := plan_repair(snapshot, frozenset(map(NodeName, gone))):
        snapshot = settled(after(snapshot, plan))
    return settled(returned(snapshot, *gone))


@slow
@given(bursts())
def test_burst_returns(snapshot: Snapshot) -> None:
    """At rest nobody is on a burst node while home is short of instances and has room for one.

    With the setting as it comes: what crowds a node does not move for that.
    """
    assert snapshot.settings.rebalance is RebalanceMode.SUGGEST
    for _ in range(STEPS_MAX):
        proposal = propose(snapshot, frozenset(), NOW, leisure=Leisure())
        if proposal is None:
            break
        snapshot = settled(after(snapshot, proposal.plan))
    else:
        raise AssertionError("does not come to rest")
    if (record := snapshot.jobs.get(key("a"))) is None or record.current is None:
        return  # it was refused
    asked = record.current.job.placement.burst
    assert asked is not None
    there = Counter(a.node for a in snapshot.instances(key("a")))
    at_home = there.total() - there[NodeName("n0")]
    need = parse_size("512M")
    rooms = [
        n.ledger.allocatable.memory_bytes - n.ledger.promised.resources.memory_bytes
        for name, n in snapshot.nodes.items()
        if name != "n0"
    ]
    if there[NodeName("n0")] and at_home < asked.after:
        assert max(rooms) < need, f"{there} though home has room: {rooms}"


@slow
@given(layouts())
def test_a_forecast_is_the_sum_of_its_moves(snapshot: Snapshot) -> None:
    """What the dry run promises is what its moves gain together."""
    forecast = foresee_rebalance(snapshot, NOW)
    total = forecast.before
    for step in forecast.steps:
        total = total.less(step.gain)
    assert total == forecast.after
    assert forecast.after <= forecast.before


@slow
@given(layouts(), st.lists(st.integers(0, 11), max_size=25))
def test_moves_cost_nobody_anything_whatever_happens(snapshot: Snapshot, dice: list[int]) -> None:
    """With losses, failures and users in between: budgets hold, rules hold, one at a time."""
    for number in dice:
        snapshot = happen(snapshot, number)
        now = NOW + number * 30
        proposal = propose(snapshot, frozenset(), now, leisure=Leisure())
        if proposal is None:
            continue
        if proposal.what in ("move", "rebalance"):
            snapshot = check_step(snapshot, proposal.plan)
        else:
            snapshot = after(snapshot, proposal.plan)
    for _ in range(STEPS_MAX):
        snapshot = settled(snapshot)
        proposal = propose(snapshot, frozenset(), NOW * 2, leisure=Leisure())
        if proposal is None:
            break
        snapshot = after(snapshot, proposal.plan)
    else:
        raise AssertionError("does not come to rest")
    assert not moving_jobs(snapshot)


def happen(snapshot: Snapshot, number: int) -> Snapshot:
    """Something else than a move."""
    names = sorted(snapshot.nodes)
    name = names[number % len(names)]
    if number < 4:
        return settled(snapshot)
    if number < 6:
        return report(snapshot, **{f"{a.job.name}_{a.slot}": False for a in pick(snapshot, number)})
    if number < 8 and len(names) > 1 and snapshot.nodes[name].is_alive:
        gone = lost(snapshot, name)
        plan = plan_repair(gone, frozenset({name}))
        return settled(after(gone, plan)) if plan else gone
    if number < 10:
        for found in sorted(snapshot.jobs):
            plan = plan_scale(snapshot, found, number - 7)
            if isinstance(plan, Plan) and not plan.is_empty:
                return after(snapshot, plan)
    return settled(snapshot)


def pick(snapshot: Snapshot, number: int) -> list[object]:
    running = [a for a in snapshot.instances() if a.state is SlotState.RUNNING]
    return running[number % 3 :: 3]  # type: ignore[return-value]


def check_step(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The plan applied: it takes nothing that is needed, and gives nothing that is not allowed."""
    result = after(snapshot, plan)
    check(result)
    for edit in plan.edits:
        record = snapshot.jobs[edit.job]
        assert record.current is not None
        spec = record.current.job
        buckets = sort_job(result, edit.job)
        if edit.before is None:
            assert spec.on_partition is not OnPartition.STOP
            asked = rules_of(snapshot, spec)
            assert edit.node not in asked.against, asked.against[edit.node]
            there = Counter(a.node for a in buckets.live)
            limit = spec.placement.max_per_node
            assert not limit or there[edit.node] <= limit
            assert len(buckets.live) == record.head.wanted + 1
            assert not is_moving(record.head)
        else:
            before = sort_job(snapshot, edit.job)
            took = any((a.node, a.slot) == (edit.node, edit.slot) for a in before.ready)
            healthy = len(buckets.ready) + len(buckets.serving)
            assert not took or healthy >= floor_of(spec, record.head.wanted)
    return result


def test_the_nodes_of_a_layout_are_named_as_bursts_name_them() -> None:
    """Or the strategy would draw no bursts at all."""
    assert NodeName("n0") in cluster(node("n0")).nodes
