"""Who has to leave for something more important, who never does, and what is remembered of it."""

from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ozymandias.core.arbiter import propose
from ozymandias.core.buckets import sort_job
from ozymandias.core.explain import why
from ozymandias.core.preempt import AGAIN_SECONDS, Lately, plan_preempt
from ozymandias.core.schedule import (
    plan_pending,
    plan_repair,
    plan_scale,
    plan_stop,
    plan_submit,
)
from ozymandias.core.victims import REMEMBERED_MAX, Candidate, fewest
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import (
    Burst,
    Job,
    JobKind,
    JobName,
    LabelRule,
    LabelTest,
    Neighbour,
    PlacementRules,
    Volume,
    VolumeKind,
)
from ozymandias.model.node import Demand, Displaced, Ledger, NodeName
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from ozymandias.store import codec
from tests.unit.core.builders import (
    NAMES,
    after,
    cluster,
    job,
    key,
    lost,
    node,
    planned,
    refused,
    report,
    settled,
    submit,
    submitted,
    where,
)


def leaving(plan: Plan) -> dict[str, str]:
    """Who is stopped, and why."""
    return {f"{e.job.name}-{e.slot}": e.reason for e in plan.edits if e.before is not None}


def coming(plan: Plan) -> dict[str, str]:
    return {f"{e.job.name}-{e.slot}": f"{e.node} {e.after}" for e in plan.edits if e.before is None}


# Who leaves ---------------------------------------------------------------------------------------


def test_lower_priority_makes_room_for_what_fits_nowhere_else() -> None:
    """Victim and winner are in one plan: the one stops, the other waits for its room."""
    full = settled(submitted(cluster(n1="2G"), job("low", 2, "1G", priority=100)))
    plan = planned(submit(full, job("shop", 1, "1G", priority=9000)))
    assert leaving(plan) == {
        "low-1": "displaced by shop (priority 9000 > 100), which fits nowhere else"
    }
    assert coming(plan) == {"shop-0": "n1 waiting"}
    assert not plan.is_divisible  # one transaction: nobody leaves for who does not come
    then = after(full, plan)
    assert where(then, key("low")) == {"0": "n1 v1 running", "1*": "n1 v1 stopping"}
    assert where(settled(then), key("shop")) == {"0": "n1 v1 running"}


def test_nobody_displaces_the_neighbour_that_it_has_to_be_near_to() -> None:
    """It would be there without what it came for; another one leaves, or nobody does."""
    db, near = job("db", 1, "1G"), PlacementRules(near=(Neighbour(job=key("db")),))
    shop = job("shop", 1, "1G", priority=9, placement=near)
    full = settled(submitted(cluster(n1="2G"), db, job("low", 1, "1G", priority=5)))
    assert leaving(planned(submit(full, shop))).keys() == {"low-0"}
    alone = settled(submitted(cluster(n1="1G"), db))
    assert refused(submit(alone, shop)).kind.slug == "insufficient-memory"
    wished = replace(near, near=(Neighbour(job=key("db"), weight=5),))
    assert leaving(planned(submit(alone, replace(shop, placement=wished)))).keys() == {"db-0"}


def test_who_is_displaced_is_nobodys_neighbour_any_more() -> None:
    """Of two winners of one decision the second does not come to whom the first displaces."""
    near = PlacementRules(near=(Neighbour(job=key("db")),))
    here = PlacementRules(require=(LabelRule(label="here", test=LabelTest.EXISTS),))
    full = submitted(
        cluster(node("n1", "2G", labels={"here": "1"}), node("n2", "3G")),
        job("db", 2, "1G", priority=1, placement=PlacementRules(max_per_node=1)),
        job("low", 1, "1G", priority=2, placement=here),
        job("first", 1, "1G", priority=9),
        job("shop", 1, "1G", priority=8, placement=near),
    )
    gone = lost(settled(full), "n2")
    left = after(gone, planned(plan_repair(gone, frozenset({NodeName("n2")}))))
    plan = planned(plan_preempt(left))
    assert leaving(plan).keys() == {"db-0"}
    assert coming(plan) == {"first-0": "n1 waiting"}


@pytest.mark.parametrize("priority", [0, 2])
def test_nobody_displaces_the_neighbour_that_another_has_come_to_be_near_to(priority: int) -> None:
    """Later winners of the same decision leave to the first one what it came for."""
    near = PlacementRules(near=(Neighbour(job=key("db")),))
    here = PlacementRules(require=(LabelRule(label="here", test=LabelTest.EXISTS),))
    full = submitted(
        cluster(node("n1", "3G", labels={"here": "1"}), node("n2", "4G")),
        job("db", 2, "1G", priority=1, placement=PlacementRules(max_per_node=1)),
        job("low", 2, "1G", priority=priority, placement=here),
        job("shop", 1, "1G", priority=9, placement=near),
        job("other", 1, "1G", priority=8),
        job("more", 1, "1G", priority=7),
    )
    gone = lost(settled(full), "n2")
    left = settled(after(gone, planned(plan_repair(gone, frozenset({NodeName("n2")})))))
    plan = planned(plan_preempt(left))
    assert leaving(plan).keys() == {"low-0", "low-1"}
    assert coming(plan) == {"shop-0": "n1 waiting", "other-0": "n1 waiting"}
    assert [(s.job, s.why) for s in plan.contests[1].staying] == [
        (key("db"), "shop, which comes in the same decision, is to be near it")
    ]


def test_equal_priority_displaces_nobody() -> None:
    """Strictly lower only: otherwise two jobs could displace each other for ever."""
    full = settled(submitted(cluster(n1="1G"), job("one", 1, "1G", priority=5)))
    assert refused(submit(full, job("other", 1, "1G", priority=5)))


def test_nobody_leaves_where_there_is_room_or_will_be_soon() -> None:
    """What is stopping already is waited for."""
    snapshot = settled(
        submitted(cluster(n1="1G", n2="1G"), job("low", 1, "1G"), job("going", 1, "1G"))
    )
    stopping = after(snapshot, plan_scale(snapshot, key("going"), 0))
    plan = planned(submit(stopping, job("shop", 1, "1G", priority=10)))
    assert not leaving(plan)


def test_fewest_leave_and_of_those_the_lowest() -> None:
    """One of priority 5 rather than two of priority 1; and the lower one of two alike in size."""
    snapshot = submitted(
        cluster(n1="4G"),
        job("small", 2, "512M", priority=1),
        job("high", 1, "1G", priority=5),
        job("middle", 1, "1G", priority=3),
        job("rest", 1, "1G", priority=50),
    )
    plan = planned(submit(settled(snapshot), job("shop", 1, "1G", priority=10)))
    assert list(leaving(plan)) == ["middle-0"]


def test_what_serves_nobody_leaves_before_what_is_healthy() -> None:
    """Of two that are alike but for their health, the healthy one stays."""
    snapshot = submitted(cluster(n1="2G"), job("low", 2, "1G"))
    plan = planned(submit(report(snapshot, low_0=False), job("shop", 1, "1G", priority=10)))
    assert list(leaving(plan)) == ["low-0"]


def test_summed_priority_never_falls() -> None:
    """Two of 8000 do not leave for one of 10000."""
    full = settled(submitted(cluster(n1="2G"), job("low", 2, "1G", priority=8000)))
    assert refused(submit(full, job("shop", 1, "2G", priority=10_000)))
    assert submit(full, job("shop", 1, "1G", priority=10_000))


def test_all_or_nothing() -> None:
    """A job of which only a part could be placed displaces nobody."""
    full = settled(submitted(cluster(n1="2G"), job("low", 2, "1G")))
    problem = refused(submit(full, job("shop", 3, "1G", priority=9)))
    assert problem.kind.slug == "insufficient-memory"


def test_one_that_leaves_makes_room_for_several() -> None:
    """A job is not refused for its second instance when the first one's victim left room enough."""
    full = settled(submitted(cluster(n1="2G"), job("low", 1, "2G")))
    plan = planned(submit(full, job("shop", 2, "1G", priority=9)))
    assert list(leaving(plan)) == ["low-0"]
    assert coming(plan) == {"shop-0": "n1 waiting", "shop-1": "n1 waiting"}


def on(role: str) -> PlacementRules:
    return PlacementRules(require=(LabelRule(label="role", values=(role,)),))


def test_a_burst_goes_on_elsewhere_once_others_have_left_home() -> None:
    """Where there is room, or where others leave as well: all of it fits, so it is not refused."""
    nodes = (node("n1", "1G", labels={"role": "home"}), node("n2", "1G", labels={"role": "away"}))
    burst = PlacementRules(burst=Burst(after=1, nodes=(NodeName("n2"),)))
    shop = job("shop", 2, "1G", priority=9, placement=burst)
    for others, state in (
        ((), "running"),
        ((job("tiny", 1, "1G", placement=on("away")),), "waiting"),
    ):
        low = job("low", 1, "1G", placement=on("home"))
        plan = planned(submit(settled(submitted(cluster(*nodes), low, *others)), shop))
        assert sorted(leaving(plan)) == ["low-0", *(f"{other.name}-0" for other in others)]
        assert coming(plan) == {"shop-0": "n1 waiting", "shop-1": f"n2 {state}"}


def test_a_burst_goes_further_only_with_what_comes_home_soon() -> None:
    """Home has room once something has stopped: that is given to it in the same decision."""
    nodes = (node("n1", "1G", labels={"role": "home"}), node("n2", "1G", labels={"role": "away"}))
    burst = PlacementRules(burst=Burst(after=1, nodes=(NodeName("n2"),)))
    shop = job("shop", 0, "1G", priority=9, placement=burst)
    there = (job("old", 1, "1G", placement=on("home")), job("low", 1, "1G", placement=on("away")))
    snapshot = settled(submitted(cluster(*nodes), *there, shop))
    snapshot = after(snapshot, plan_stop(snapshot, key("old")))
    record = snapshot.jobs[key("shop")]
    wanting = replace(record, head=replace(record.head, wanted=2))
    snapshot = replace(snapshot, jobs={**snapshot.jobs, key("shop"): wanting})
    plan = planned(plan_preempt(snapshot))
    assert list(leaving(plan)) == ["low-0"]
    assert coming(plan) == {"shop-0": "n1 waiting", "shop-1": "n2 waiting"}


def test_a_change_that_is_refused_says_what_fits_without_anybody_leaving() -> None:
    """Looking for who could leave does not change the figures (seed 601903)."""
    full = settled(
        submitted(cluster(n1="4G"), job("shop", 1, "1G", priority=9), job("low", 1, "3G"))
    )
    problem = refused(submit(full, job("shop", 5, "1G", image="next", priority=9)))
    assert (problem.fields["required"], problem.fields["placeable"]) == (5 * 2**30, 2**30)


def test_a_change_that_matters_more_does_not_displace_itself() -> None:
    """The old instances' room is counted once."""
    full = settled(submitted(cluster(n1="2G"), job("shop", 2, "1G")))
    assert refused(submit(full, job("shop", 3, "1G", image="next", priority=9)))
    assert planned(submit(full, job("shop", 2, "1G", image="next", priority=9)))


def test_scaling_up_displaces_too() -> None:
    """More of an important job is placed at the cost of others, all or nothing."""
    snapshot = submitted(cluster(n1="3G"), job("shop", 1, "1G", priority=9), job("low", 2, "1G"))
    plan = planned(plan_scale(settled(snapshot), key("shop"), 3))
    assert sorted(leaving(plan)) == ["low-0", "low-1"]


def test_host_port_is_a_reason_to_leave() -> None:
    """Who holds the port has to go, however much memory is free."""
    snapshot = submitted(cluster(n1="8G"), job("low", 1, "1G", host_port=80), job("x", 1, "1G"))
    plan = planned(submit(settled(snapshot), job("shop", 1, "1G", host_port=80, priority=2)))
    assert list(leaving(plan)) == ["low-0"]


# Who does not -------------------------------------------------------------------------------------


def test_processors_are_a_reason_to_leave() -> None:
    """Where memory is plenty and cores are short, cores are what somebody leaves for."""
    one = cluster(node("n1", "8G", cpu=2000))
    full = settled(submitted(one, job("low", 2, "1G", priority=1, cpu=1.0)))
    plan = planned(submit(full, job("shop", 1, "1G", priority=9, cpu=0.5)))
    assert list(leaving(plan)) == ["low-1"]


def test_protected_and_system_jobs_and_kept_volumes_stay() -> None:
    """Whatever the priority of who asks."""
    data = Volume(kind=VolumeKind.LOCAL, name="d", path="/d", space_bytes=2**20, keep=True)
    keeping = job("keeping", 1, "1G")
    keeping = replace(keeping, containers=(replace(keeping.containers[0], volumes=(data,)),))
    for stays in (
        job("safe", 1, "1G", is_protected=True),
        job("every", 0, "1G", kind=JobKind.SYSTEM),
        keeping,
    ):
        full = settled(submitted(cluster(n1="1G"), stays))
        assert refused(submit(full, job("shop", 1, "1G", priority=10_000)))


def test_who_opts_out_displaces_nobody() -> None:
    """`preempt: never` waits, also when it is pending."""
    full = settled(submitted(cluster(n1="1G"), job("low", 1, "1G")))
    polite = job("shop", 1, "1G", priority=9, may_preempt=False)
    assert refused(submit(full, polite))
    assert plan_preempt(wanting(full, polite)) is None


def wanting(snapshot: Snapshot, *wanted: Job) -> Snapshot:
    """These jobs were placed on a node that has been lost since, and found no room elsewhere."""
    away = node("away", "64G")
    there = replace(snapshot, nodes={**snapshot.nodes, away.name: away})
    gone = lost(submitted(there, *wanted), "away")
    return after(gone, plan_repair(gone, frozenset({away.name})))


@pytest.mark.parametrize("budget", [{"min_available": 2}, {"min_available_percent": 50}])
def test_min_available_of_the_victims_job_holds(budget: dict[str, int]) -> None:
    """As many as must be healthy stay; one more may go."""
    low = job("low", 3, "1G", **budget)
    full = settled(submitted(cluster(n1="3G"), low))
    plan = planned(submit(full, job("shop", 1, "1G", priority=9)))
    assert len(leaving(plan)) == 1
    assert refused(submit(full, job("shop", 2, "1G", priority=9)))
    assert refused(submit(full, job("shop", 1, "2G", priority=9)))


def test_rules_of_the_winner_hold() -> None:
    """Nobody leaves a node on which the winner may not be."""
    infra = PlacementRules(require=(LabelRule(label="role", values=("infra",)),))
    full = settled(
        submitted(
            cluster(node("n1", "1G"), node("n2", "1G", labels={"role": "infra"})),
            job("low", 2, "1G"),
        )
    )
    plan = planned(submit(full, job("shop", 1, "1G", priority=9, placement=infra)))
    assert {e.node for e in plan.edits} == {"n2"}
    one = PlacementRules(max_per_node=1)
    assert refused(submit(full, job("shop", 3, "256M", priority=9, placement=one)))


# Pending ------------------------------------------------------------------------------------------


def test_after_a_loss_the_important_goes_first() -> None:
    """What was lost and is important displaces what is not; the arbiter says so last of all."""
    snapshot = settled(
        submitted(
            cluster(n1="1G", n2="1G"),
            job("shop", 1, "1G", priority=9),
            job("low", 1, "1G", priority=1),
        )
    )
    home = next(a.node for a in snapshot.instances(key("shop")))
    gone = lost(snapshot, home)
    repaired = after(gone, plan_repair(gone, frozenset({home})))
    assert plan_pending(repaired) is None
    proposal = propose(repaired, frozenset())
    assert proposal is not None and proposal.what == "preempt"
    assert leaving(proposal.plan) == {
        "low-0": "displaced by shop (priority 9 > 1), which fits nowhere else"
    }
    then = settled(after(repaired, proposal.plan))
    assert propose(then, frozenset()) is None


def test_no_cascade_within_one_decision() -> None:
    """Who loses an instance displaces nobody in the same decision, though it lacks others."""
    snapshot = settled(
        submitted(
            cluster(n1="1G", n2="1G", n3="1G", n4="1G"),
            job("low", 1, "1G", priority=1),
            job("middle", 2, "1G", priority=5),
            job("high", 1, "1G", priority=9),
        )
    )
    nodes = {a.node: a.job.name for a in snapshot.instances()}
    dead = frozenset(next(n for n, j in nodes.items() if j == of) for of in ("high", "middle"))
    gone = lost(snapshot, *dead)
    repaired = after(gone, plan_repair(gone, dead))
    first = planned(plan_preempt(repaired))
    assert list(leaving(first)) == ["low-0"]  # by the most important
    then = settled(after(repaired, first))
    assert plan_preempt(then) is None  # nothing below is left


def test_soon_room_is_left_to_who_comes_first() -> None:
    """What will be free soon is counted for the most important; the next one displaces."""
    full = settled(
        submitted(
            cluster(n1="1G", n2="1G"),
            job("going", 1, "1G", priority=3),
            job("low", 1, "1G", priority=1),
        )
    )
    high, middle = job("high", 1, "1G", priority=9), job("middle", 1, "1G", priority=5)
    pending = wanting(full, high, middle)
    stopping = after(pending, plan_scale(pending, key("going"), 0))
    plan = planned(plan_preempt(stopping))
    assert list(coming(plan)) == ["middle-0"]
    assert list(leaving(plan)) == ["low-0"]


def test_why_of_a_victim_says_for_whom_it_left() -> None:
    """As long as it is pending and the ledger remembers."""
    full = settled(submitted(cluster(n1="1G"), job("low", 1, "1G")))
    then = after(full, submit(full, job("shop", 1, "1G", priority=9)))
    assert why(then, key("low"))[2] == (
        "low-0 left n1: displaced by shop (priority 9 > 0), which fits nowhere else."
    )


# Not again ----------------------------------------------------------------------------------------


def test_nobody_is_displaced_twice_within_a_minute() -> None:
    """Another node's ledger tells; by the clock of who looks, a minute later it may be again."""
    full = settled(submitted(cluster(n1="1G", n2="256M"), job("low", 1, "1G")))
    record = Displaced(namespace="default", job="low", slot=0, at=7.0, reason="displaced by x")
    left = full.nodes[NodeName("n2")]
    left = replace(left, ledger=replace(left.ledger, displaced=(record,)))
    snapshot = replace(full, nodes={**full.nodes, left.name: left})
    shop = job("shop", 1, "1G", priority=2)

    def decide(lately: Lately) -> Plan | Problem:
        return plan_submit(snapshot, shop, uid="u", names=NAMES, lately=lately)

    assert refused(decide(Lately(boot=1000.0, seen={})))  # never seen before: as if it were new
    assert refused(decide(Lately(wall=66.0)))  # of who only asks what if, by wall clocks
    assert planned(decide(Lately(wall=67.0)))
    early = Lately(boot=100.0 + AGAIN_SECONDS - 1, seen={record: 100.0})
    assert refused(decide(early))
    late = Lately(boot=100.0 + AGAIN_SECONDS, wall=9.0, seen={record: 100.0})
    plan = planned(decide(late))
    assert [r.at for r in plan.displaced[NodeName("n1")]] == [9.0]


def test_a_node_remembers_so_much_and_no_more() -> None:
    """A ledger stays small: past its limit nobody has to leave that node for a while."""
    full = settled(submitted(cluster(n1="40G"), job("low", 40, "1G")))
    plan = planned(submit(full, job("shop", REMEMBERED_MAX, "1G", priority=9)))
    assert len(plan.displaced[NodeName("n1")]) == REMEMBERED_MAX
    assert refused(submit(full, job("shop", REMEMBERED_MAX + 1, "1G", priority=9)))
    then = after(full, plan)
    assert refused(submit(then, job("more", 1, "1G", priority=9)))
    seen = dict.fromkeys(then.nodes[NodeName("n1")].ledger.displaced, 0.0)
    later = plan_scale(then, key("shop"), REMEMBERED_MAX + 1, Lately(boot=61.0, seen=seen))
    assert len(planned(later).displaced[NodeName("n1")]) == 1


# Properties ---------------------------------------------------------------------------------------

demands = st.builds(
    Demand,
    memory_bytes=st.integers(0, 6),
    disk_bytes=st.sampled_from([0, 0, 1, 3]),
    cpu_millis=st.sampled_from([0, 0, 1, 2]),
)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    count = draw(st.integers(1, 8))
    found = [
        Candidate(
            assigned=Assigned(
                node=NodeName("n"),
                job=key(f"j{number}"),
                slot=0,
                uid="u",
                version=1,
                generation=0,
                state=SlotState.RUNNING,
                demand=draw(demands),
            ),
            priority=draw(st.integers(0, 4)),
            is_ready=draw(st.booleans()),
        )
        for number in range(count)
    ]
    return sorted(found, key=lambda c: c.order)


@given(
    candidates(),
    st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(0, 3)),
    st.integers(0, 8),
)
def test_no_more_leave_than_needed(
    found: list[Candidate], lack: tuple[int, int, int], allowance: int
) -> None:
    """As few as any set that will do, and of those the lowest, as all sets tried one by one say."""
    enough = [
        chosen
        for count in range(len(found) + 1)
        for chosen in combinations(found, count)
        if all(sum(c.frees[i] for c in chosen) >= lack[i] for i in range(3))
        and sum(c.priority for c in chosen) <= allowance
    ]
    best = fewest(found, lack, allowance)
    if best is None:
        assert not enough
        return
    least = min((len(s), sorted((c.priority for c in s), reverse=True)) for s in enough)
    assert (len(best), sorted((c.priority for c in best), reverse=True)) == least


fussy = st.builds(
    job,
    name=st.sampled_from("abcde"),
    instances=st.integers(1, 5),
    memory=st.sampled_from(["256M", "512M", "1G", "2G"]),
    disk=st.sampled_from(["0", "0", "1G"]),
    host_port=st.sampled_from([None, None, None, 8080]),
    priority=st.integers(0, 3),
    min_available=st.integers(0, 1),
    is_protected=st.sampled_from([False, False, False, True]),
    may_preempt=st.sampled_from([True, True, True, False]),
)
small_clusters = st.lists(st.sampled_from(["1G", "2G", "3G"]), min_size=1, max_size=4).map(
    lambda sizes: cluster(*(node(f"n{i}", size, "3G") for i, size in enumerate(sizes)))
)


def placed_priority(snapshot: Snapshot) -> int:
    """The sum of the priorities of all that is promised."""
    total = 0
    for a in snapshot.instances():
        record = snapshot.jobs.get(a.job)
        if a.state is not SlotState.STOPPING and record and record.current:
            total += record.current.job.priority
    return total


def check_preemption(before: Snapshot, plan: Plan, asked: str = "") -> Snapshot:
    """What holds of every plan by which somebody has to leave."""
    then = after(before, plan)
    victims = [
        e for e in plan.edits if e.reason.startswith("displaced by") and e.before is not None
    ]
    if not victims:
        return then
    assert placed_priority(then) >= placed_priority(before)
    winners = [e for e in plan.edits if e.before is None and e.after is SlotState.WAITING]
    for victim in victims:
        record = before.jobs[victim.job].current
        assert record is not None and not record.job.is_protected
        rivals = [w for w in winners if w.node == victim.node]
        assert rivals, "nobody came for whom it left"
        best = max(priority_of(then, w) for w in rivals)
        assert best > record.job.priority
    for name in {v.job for v in victims}:
        spec = before.jobs[name].current
        assert spec is not None
        floor = min(spec.job.min_available, before.jobs[name].head.wanted)
        healthy = sum(
            len(b) for b in (sort_job(before, name).ready, sort_job(before, name).serving)
        )
        left = sort_job(then, name)
        assert len(left.ready) + len(left.serving) >= min(floor, healthy)
        if name.name != asked:
            assert not [w for w in winners if w.job == name], "a victim displaced somebody"
    return then


def priority_of(snapshot: Snapshot, edit: Edit) -> int:
    current = snapshot.jobs[edit.job].current
    assert current is not None
    return current.job.priority


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(small_clusters, st.lists(fussy, min_size=2, max_size=6), st.integers(0, 3))
def test_preemption_keeps_its_promises(snapshot: Snapshot, wanted: list[Job], which: int) -> None:
    """Summed priority never falls, victims are strictly lower, floors hold, and it ends."""
    for number, each in enumerate(wanted):
        plan = submit(snapshot, replace(each, name=JobName(f"j{number}")))
        if isinstance(plan, Plan):
            snapshot = settled(check_preemption(snapshot, plan, f"j{number}"))
    dead = frozenset([sorted(snapshot.nodes)[which % len(snapshot.nodes)]])
    snapshot = lost(snapshot, *dead)
    if repair := plan_repair(snapshot, dead):
        snapshot = settled(after(snapshot, repair))
    for _ in range(50):
        proposal = propose(snapshot, frozenset())
        if proposal is None:
            return
        snapshot = settled(check_preemption(snapshot, proposal.plan))
    raise AssertionError("it does not end")


def test_older_ledgers_have_displaced_nobody() -> None:
    """A ledger written before there was preemption still decodes; one with records comes back."""
    ledger = cluster(n1="1G").nodes[NodeName("n1")].ledger
    text = codec.encode(ledger).replace(b',"displaced":[]', b"")
    assert codec.decode(Ledger, text) == ledger
    record = Displaced(namespace="default", job="web", slot=1, at=5.0, reason="displaced by x")
    more = replace(ledger, displaced=(record,))
    assert codec.decode(Ledger, codec.encode(more)) == more
