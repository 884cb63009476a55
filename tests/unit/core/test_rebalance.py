"""Moves to be better placed: which are worth it, how each goes, what never moves."""

import pytest

from ozymandias.core.arbiter import Leisure, propose
from ozymandias.core.layout import Cost, Layout, is_clear
from ozymandias.core.looks import plan_ask
from ozymandias.core.moves import PATIENCE_SECONDS, PEACE_SECONDS, is_moving, plan_moves
from ozymandias.core.nodes import plan_begin_drain, plan_cordon, plan_label, plan_uncordon
from ozymandias.core.rebalance import AT_ONCE_MAX, foresee_rebalance, plan_rebalance
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import plan_repair, plan_restart, plan_scale
from ozymandias.model.job import (
    Burst,
    Job,
    LabelRule,
    LabelTest,
    Neighbour,
    OnPartition,
    PlacementRules,
)
from ozymandias.model.node import Drain, NodeName
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode, Rebalancing
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import (
    WEB,
    after,
    cluster,
    job,
    key,
    lost,
    node,
    planned,
    report,
    returned,
    settled,
    spread,
    submitted,
    vacated,
    where,
)

NOW = 1000.0
N1 = NodeName("n1")
LIKES_INFRA = PlacementRules(prefer=(LabelRule(label="role", values=("infra",), weight=10),))


def mode(snapshot: Snapshot, chosen: RebalanceMode = RebalanceMode.ON) -> Snapshot:
    return replace(snapshot, settings=replace(snapshot.settings, rebalance=chosen))


def asked(snapshot: Snapshot, moves: int) -> Snapshot:
    rebalancing = Rebalancing(moves=moves, since=NOW)
    return replace(snapshot, settings=replace(snapshot.settings, rebalancing=rebalancing))


def joined(snapshot: Snapshot, **memory: str) -> Snapshot:
    more = {NodeName(name): node(name, size) for name, size in memory.items()}
    return replace(snapshot, nodes={**snapshot.nodes, **more})


def labelled(snapshot: Snapshot, name: str, **labels: str) -> Snapshot:
    return after(snapshot, plan_label(snapshot, NodeName(name), labels, []))


def rested(snapshot: Snapshot, steps: int = 60) -> Snapshot:
    """Everything the arbiter would do, step by step, all new ones healthy at once."""
    for _ in range(steps):
        proposal = propose(snapshot, frozenset(), NOW, leisure=Leisure())
        if proposal is None:
            return snapshot
        snapshot = settled(after(snapshot, proposal.plan))
    raise AssertionError("does not come to rest")


def kept(made: Job) -> Job:
    container = made.containers[0]
    volumes = tuple(replace(v, keep=True) for v in container.volumes)
    return replace(made, containers=(replace(container, volumes=volumes),))


# One move -----------------------------------------------------------------------------------------


def test_a_joined_node_receives_work_start_first() -> None:
    """One of two that share a node starts on the new one, and stops here once it serves there."""
    snapshot = joined(mode(settled(submitted(cluster(n1="8G"), job(instances=2)))), n2="8G")
    first = planned(plan_rebalance(snapshot, NOW))
    assert first.reason == "web-1 moves from n1 to n2: n1 has 2 of web, and n2 0"
    assert [(e.node, e.slot, e.before, e.after) for e in first.edits] == [
        ("n2", 2, None, "running")
    ]
    snapshot = report(after(snapshot, first), web_2=False)
    assert is_moving(snapshot.jobs[WEB].head)
    assert plan_moves(snapshot, NOW) is None  # not healthy there yet
    assert plan_rollout(snapshot) is None  # one more than wanted, on purpose
    assert plan_rebalance(snapshot, NOW) is None  # never two of one job at a time
    second = planned(plan_moves(report(snapshot), NOW))
    assert [(e.node, e.slot, e.after) for e in second.edits] == [("n1", 1, "stopping")]
    assert second.edits[0].reason == "moved from n1 to n2: n1 has 2 of web, and n2 0"
    snapshot = settled(after(report(snapshot), second))
    assert where(snapshot) == {"0": "n1 v1 running", "2": "n2 v1 running"}
    assert not is_moving(snapshot.jobs[WEB].head)
    assert plan_rebalance(snapshot, NOW) is None


def test_a_new_one_that_never_gets_healthy_goes_and_the_job_has_peace() -> None:
    """The old one stays all the while; it is tried again, but not for a while."""
    snapshot = joined(mode(settled(submitted(cluster(n1="8G"), job(instances=2)))), n2="8G")
    snapshot = after(snapshot, plan_rebalance(snapshot, NOW))
    snapshot = report(snapshot, web_2=False)
    assert plan_moves(snapshot, NOW + PATIENCE_SECONDS - 1) is None
    late = NOW + PATIENCE_SECONDS
    plan = planned(plan_moves(snapshot, late))
    assert [(e.node, e.slot, e.after) for e in plan.edits] == [("n2", 2, "stopping")]
    assert "was not healthy within 120 s" in plan.reason
    snapshot = settled(after(snapshot, plan))
    assert spread(snapshot) == [2]
    assert plan_rebalance(snapshot, late + PEACE_SECONDS - 1) is None
    assert plan_rebalance(snapshot, late + PEACE_SECONDS) is not None


def test_where_one_move_failed_no_other_is_tried_for_a_while() -> None:
    """Whatever keeps instances from running on that node, the next job would meet it too."""
    snapshot = settled(submitted(cluster(n1="16G"), job(instances=2)))
    snapshot = joined(mode(settled(submitted(snapshot, job("other", 2)))), n2="16G")
    snapshot = after(snapshot, plan_rebalance(snapshot, NOW))
    late = NOW + PATIENCE_SECONDS
    (moved,) = (key for key, record in snapshot.jobs.items() if is_moving(record.head))
    snapshot = report(snapshot, **{f"{moved.name}_2": False})
    snapshot = settled(after(snapshot, plan_moves(snapshot, late)))
    assert plan_rebalance(snapshot, late + PEACE_SECONDS - 1) is None
    assert plan_rebalance(snapshot, late + PEACE_SECONDS) is not None


def test_who_stops_is_decided_on_what_is_so_when_the_new_one_is_healthy() -> None:
    """The label that it moved for is gone again: the new one stops, not the old one."""
    made = job(placement=LIKES_INFRA)
    snapshot = labelled(mode(settled(submitted(cluster(n1="4G", n2="4G"), made))), "n1")
    (home,) = {a.node for a in snapshot.instances(WEB)}
    other = "n2" if home == "n1" else "n1"
    snapshot = labelled(snapshot, other, role="infra")
    snapshot = report(after(snapshot, plan_rebalance(snapshot, NOW)))
    snapshot = labelled(snapshot, other, role="")
    snapshot = labelled(snapshot, home, role="infra")
    plan = planned(plan_moves(snapshot, NOW))
    assert [(e.node, e.after) for e in plan.edits] == [(other, "stopping")]


@pytest.mark.parametrize("gone", ["n1", "n2"])
def test_a_node_lost_in_the_middle_ends_the_move(gone: str) -> None:
    """Whichever of the two is lost, the other one is the instance, and nobody stops it."""
    made = job(placement=LIKES_INFRA)
    base = joined(mode(settled(submitted(cluster(n1="8G"), made))), n2="8G")
    base = labelled(base, "n2", role="infra")
    base = report(after(base, plan_rebalance(base, NOW)))
    broken = lost(base, gone)
    broken = after(broken, plan_repair(broken, frozenset({NodeName(gone)})))
    left = rested(settled(broken))
    assert spread(left) == [1]
    assert not is_moving(left.jobs[WEB].head)


def test_what_users_do_in_the_middle_wins() -> None:
    """Scaled up both stay, scaled down none is left over, restarted all are replaced."""
    base = joined(mode(settled(submitted(cluster(n1="8G"), job(instances=2)))), n2="8G")
    base = report(after(base, plan_rebalance(base, NOW)))
    for change, wanted in (
        (plan_scale(base, WEB, 3), 3),
        (plan_scale(base, WEB, 1), 1),
        (plan_restart(base, WEB), 2),
    ):
        left = rested(settled(after(base, change)))
        assert sum(spread(left)) == wanted
        assert not is_moving(left.jobs[WEB].head)


def test_a_drain_in_the_middle_takes_over() -> None:
    """The node that the instance was to move to is emptied: nothing is left there."""
    base = joined(mode(settled(submitted(cluster(n1="8G"), job(instances=2)))), n2="8G")
    base = report(after(base, plan_rebalance(base, NOW)))
    drain = plan_begin_drain(base, NodeName("n2"), Drain(since=NOW))
    left = rested(settled(after(base, drain)))
    assert {a.node for a in left.instances(WEB)} == {"n1"}


def test_min_available_holds_when_another_fails_meanwhile() -> None:
    """Two of two must be healthy: the old one stays until another is."""
    made = job(instances=2, min_available=2)
    base = joined(mode(settled(submitted(cluster(n1="8G"), made))), n2="8G")
    base = after(base, plan_rebalance(base, NOW))
    assert plan_moves(report(base, web_0=False), NOW) is None
    assert plan_moves(report(base), NOW) is not None


def test_min_available_holds_for_the_new_one_as_well() -> None:
    """Where it was is better again, but there it is not healthy: nobody stops the one that is."""
    made = job(placement=LIKES_INFRA, min_available=1)
    snapshot = mode(settled(submitted(cluster(n1="4G"), made)))
    snapshot = labelled(joined(snapshot, n2="4G"), "n2", role="infra")
    snapshot = after(snapshot, plan_rebalance(snapshot, NOW))
    snapshot = report(labelled(snapshot, "n2", role=""), web_0=False)
    snapshot = report(labelled(snapshot, "n1", role="infra"), web_0=False)
    assert plan_moves(snapshot, NOW) is None
    snapshot = after(snapshot, plan_moves(snapshot, NOW + PATIENCE_SECONDS))
    snapshot = settled(after(snapshot, plan_rollout(snapshot)))
    assert where(snapshot) == {"1": "n2 v1 running"}


def test_a_drain_takes_a_move_over() -> None:
    """One more than wanted is there: it replaces one that leaves, not two of them."""
    base = joined(mode(settled(submitted(cluster(n1="8G"), job(instances=2)))), n2="8G")
    base = report(after(base, plan_rebalance(base, NOW)))
    drained = after(base, plan_begin_drain(base, NodeName("n1"), Drain(since=NOW)))
    first = propose(drained, frozenset(), NOW)
    assert first is not None and first.what == "drain"
    rest = after(drained, first.plan)  # the next replacement is not healthy yet
    second = propose(rest, frozenset(), NOW)
    assert second is not None and second.what == "move" and not second.plan.edits
    assert not is_moving(after(rest, second.plan).jobs[WEB].head)
    assert propose(after(rest, second.plan), frozenset(), NOW) is None


# What is worth a move -----------------------------------------------------------------------------


def test_a_gain_must_be_clear_in_the_first_sum_that_changes() -> None:
    """Less heat is no reason to crowd a job, and a little heat is no reason at all."""
    assert is_clear(Cost(crowd=1, heat=-400))
    assert not is_clear(Cost(crowd=-1, heat=400))
    assert is_clear(Cost(heat=25)) and not is_clear(Cost(heat=24))
    assert not is_clear(Cost())


def test_nodes_below_the_target_are_left_alone() -> None:
    """Packing up to the target is what is wanted; an empty node is no fault."""
    jobs = [job(f"j{n}", memory="1G") for n in range(5)]
    snapshot = joined(mode(settled(submitted(cluster(n1="8G"), *jobs))), n2="8G")
    assert plan_rebalance(snapshot, NOW) is None


def test_a_node_above_the_target_gives_away_what_is_too_much() -> None:
    """Seven of eight gigabytes, target 70 %: until it is within five points of it."""
    jobs = [job(f"j{n}", memory="1G") for n in range(7)]
    snapshot = rested(joined(mode(settled(submitted(cluster(n1="8G"), *jobs))), n2="8G"))
    assert Layout(snapshot).percent(N1) == 62
    assert plan_rebalance(snapshot, NOW) is None


def test_who_has_wishes_does_not_go_first_for_something_less() -> None:
    """A crowd comes before heat, also where the hot one's job has wishes that nobody can fulfil."""
    spread = PlacementRules(spread="zone")
    start = cluster(n1="4G")
    full = submitted(start, job("big", memory="2G", placement=spread), job("web", 2, "512M"))
    snapshot = joined(mode(settled(full)), n2="4G")  # n1 is 75 % full, by 5 too much
    forecast = foresee_rebalance(snapshot, NOW)
    assert [(str(s.instance.job), s.gain) for s in forecast.steps] == [
        ("web", Cost(crowd=1, heat=25))
    ]


def test_a_forecast_is_what_then_happens() -> None:
    """The dry run's moves and gain, and the same by carrying them out."""
    jobs = [job(f"j{n}", instances=2, memory="512M") for n in range(4)]
    snapshot = joined(mode(settled(submitted(cluster(n1="8G", n2="2G"), *jobs))), n3="8G")
    forecast = foresee_rebalance(snapshot, NOW)
    assert forecast.steps and forecast.after < forecast.before
    done = rested(snapshot)
    assert Layout(done).total() == forecast.after
    assert foresee_rebalance(done, NOW).steps == ()


def test_a_forecast_is_bounded() -> None:
    """At most so many moves, the ones that gain most."""
    snapshot = joined(settled(submitted(cluster(n1="8G"), job(instances=6))), n2="8G")
    assert len(foresee_rebalance(snapshot, NOW).steps) == 3
    assert len(foresee_rebalance(snapshot, NOW, moves_max=2).steps) == 2


def test_an_unmet_wish_is_healed_when_it_becomes_possible() -> None:
    """The preferred node was full; now it has room."""
    rules = PlacementRules(prefer=LIKES_INFRA.prefer)
    snapshot = cluster(node("n1", "1G", labels={"role": "infra"}), n2="4G")
    snapshot = settled(submitted(snapshot, job("big", memory="1G", placement=rules)))
    snapshot = settled(submitted(snapshot, job(placement=rules)))
    assert where(snapshot)["0"] == "n2 v1 running"
    assert plan_rebalance(snapshot, NOW) is None
    snapshot = settled(after(snapshot, plan_scale(snapshot, key("big"), 0)))
    plan = planned(plan_rebalance(snapshot, NOW))
    assert plan.reason == "web-0 moves from n2 to n1: n1 has role == infra, as preferred"
    assert where(rested(snapshot)) == {"1": "n1 v1 running"}


SHY_OF_DB = PlacementRules(apart=(Neighbour(job=key("db"), weight=9),))
ANYWHERE = PlacementRules(
    prefer=(LabelRule(label="role", test=LabelTest.UNEQUAL, values=("none",), weight=1),)
)
SHY_OF_WEB = PlacementRules(apart=(Neighbour(job=WEB, weight=9),))


@pytest.mark.parametrize(
    ("web", "db", "words"),
    [
        (SHY_OF_DB, PlacementRules(), "n2 is apart from db, as preferred"),
        (
            replace(SHY_OF_DB, prefer=LIKES_INFRA.prefer),
            PlacementRules(),
            "n2 has role == infra and is apart from db, as preferred",
        ),
        (ANYWHERE, SHY_OF_WEB, "n2 is apart from db, as db prefers"),
        (
            LIKES_INFRA,
            SHY_OF_WEB,
            "n2 has role == infra, as preferred, and is apart from db, as db prefers",
        ),
    ],
)
def test_the_reason_of_a_move_says_what_a_node_has_and_whom_it_has_not(
    web: PlacementRules, db: PlacementRules, words: str
) -> None:
    """A label is had, a neighbour is near or not, and whose wish that is is said once."""
    bound = job("db", on_partition=OnPartition.STOP, placement=db)
    snapshot = settled(submitted(cluster(n1="4G"), bound, job(placement=web)))
    there = labelled(joined(snapshot, n2="4G"), "n2", role="infra")
    assert planned(plan_rebalance(there, NOW)).reason == f"web-0 moves from n1 to n2: {words}"


@pytest.mark.parametrize(("each", "moves"), [(4, True), (6, False)])
def test_what_is_healed_goes_by_weights_and_not_by_their_number(each: int, moves: bool) -> None:
    """It has two wishes where it is; the node with the one of 10 returns."""
    prefer = tuple(
        LabelRule(label=label, values=("yes",), weight=weight)
        for label, weight in (("ssd", 10), ("gpu", each), ("fast", each))
    )
    both = {"gpu": "yes", "fast": "yes"}
    snapshot = cluster(node("n1", labels={"ssd": "yes"}), node("n2", labels=both))
    snapshot = lost(snapshot, "n1")
    made = job(placement=PlacementRules(prefer=prefer))
    snapshot = settled(returned(settled(submitted(snapshot, made)), "n1"))
    plan = plan_rebalance(snapshot, NOW)
    assert (plan is not None) is moves
    assert {a.node for a in rested(snapshot).instances(WEB)} == {"n1" if moves else "n2"}


def test_two_that_would_be_near_each_other_do_not_chase_each_other() -> None:
    """Both moves began at once, each to where the other was: one of them is taken back."""
    one = job("one", placement=PlacementRules(near=(Neighbour(job=key("two"), weight=5),)))
    two = job("two", placement=PlacementRules(near=(Neighbour(job=key("one"), weight=5),)))
    snapshot = joined(submitted(cluster(n1="4G"), one), n2="4G")
    snapshot = after(snapshot, plan_cordon(snapshot, N1))
    snapshot = settled(submitted(snapshot, two))
    snapshot = after(snapshot, plan_uncordon(snapshot, N1))
    for plan in [planned(plan_rebalance(_only(snapshot, name), NOW)) for name in ("one", "two")]:
        snapshot = after(snapshot, plan)
    left = rested(settled(snapshot))
    places = [{a.node for a in left.instances(key(name))} for name in ("one", "two")]
    assert places[0] == places[1]


def test_nobody_moves_to_where_one_that_shuns_it_is_still_leaving() -> None:
    """Gains are counted as if it were gone, and it is there until its move is over (3604543)."""
    shy = job("shy", placement=replace(LIKES_INFRA, apart=(Neighbour(job=WEB),)))
    snapshot = cluster(n2="8G", n3="8G")
    for closed, made in (("n3", shy), ("n2", job(instances=2))):
        snapshot = after(snapshot, plan_cordon(snapshot, NodeName(closed)))
        snapshot = submitted(snapshot, made)
        snapshot = after(snapshot, plan_uncordon(snapshot, NodeName(closed)))
    snapshot = mode(settled(labelled(joined(snapshot, n1="8G"), "n1", role="infra")))
    first = planned(plan_rebalance(snapshot, NOW))
    assert first.reason == "shy-0 moves from n2 to n1: n1 has role == infra, as preferred"
    snapshot = report(after(snapshot, first), shy_1=False)
    assert plan_rebalance(snapshot, NOW) is None
    snapshot = report(snapshot)
    snapshot = settled(after(snapshot, plan_moves(snapshot, NOW)))
    plan = planned(plan_rebalance(snapshot, NOW))
    assert plan.reason == "web-1 moves from n3 to n2: n3 has 2 of web, and n2 0"


def _only(snapshot: Snapshot, name: str) -> Snapshot:
    """As a peer sees it that finds the other job not healthy."""
    other = "two" if name == "one" else "one"
    return report(snapshot, **{f"{other}_0": False})


# Burst --------------------------------------------------------------------------------------------


def test_burst_comes_home_when_there_is_room_and_stays_there() -> None:
    """Home was lost and all ran on the burst node; two of four may be at home, and two return."""
    rules = PlacementRules(burst=Burst(after=2, nodes=("cloud",)))
    snapshot = cluster(n1="2G", cloud="8G")
    snapshot = settled(submitted(snapshot, job(instances=4, placement=rules)))
    at_rest = ["cloud v1 running"] * 2 + ["n1 v1 running"] * 2
    assert sorted(where(snapshot).values()) == at_rest
    assert plan_rebalance(snapshot, NOW) is None
    snapshot = lost(snapshot, "n1")
    snapshot = rested(settled(after(snapshot, plan_repair(snapshot, frozenset({N1})))))
    assert sorted(where(snapshot).values()) == ["cloud v1 running"] * 4
    snapshot = settled(returned(snapshot, "n1"))
    plan = planned(plan_rebalance(snapshot, NOW))
    assert plan.reason == "web-3 moves from cloud to n1: there is room at home for 2 of web"
    assert sorted(where(rested(snapshot)).values()) == at_rest
    # As the setting comes, so it is not the crowd on the burst node that moves them.
    assert snapshot.settings.rebalance is RebalanceMode.SUGGEST


def test_home_is_spread_though_more_crowd_the_burst() -> None:
    """Two share a node at home, and three that of the burst, where they have to be."""
    rules = PlacementRules(burst=Burst(after=2, nodes=("cloud",)))
    snapshot = settled(submitted(cluster(n1="8G", cloud="8G"), job(instances=5, placement=rules)))
    snapshot = joined(mode(snapshot), n2="8G")
    plan = planned(plan_rebalance(snapshot, NOW))
    assert plan.reason == "web-1 moves from n1 to n2: n1 has 2 of web, and n2 0"
    assert spread(rested(snapshot)) == [3, 1, 1]


# What never moves ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        job(instances=2, on_partition=OnPartition.STOP),
        kept(job(instances=2, disk="1G")),
    ],
    ids=["exclusive", "kept volumes"],
)
def test_some_are_bound_to_their_place(made: Job) -> None:
    """What must never run twice, and what has kept volumes, is not moved to be better placed."""
    snapshot = joined(mode(settled(submitted(cluster(n1="8G"), made))), n2="8G")
    assert plan_rebalance(snapshot, NOW) is None


def test_a_job_that_is_not_calm_is_left_alone() -> None:
    """One is unhealthy, or one has only just got healthy, or one is missing."""
    calm = joined(mode(settled(submitted(cluster(n1="8G"), job(instances=2)))), n2="8G")
    assert plan_rebalance(calm, NOW) is not None
    assert plan_rebalance(report(calm, web_0=False), NOW) is None
    assert plan_rebalance(calm, 59.0) is None  # healthy since 0
    assert plan_rebalance(calm, NOW, settled=frozenset({N1})) is None  # n2 has just come


def test_nothing_begins_in_a_freeze_window() -> None:
    """What has begun is finished: half a move is worse than none."""
    snapshot = joined(mode(settled(submitted(cluster(n1="8G"), job(instances=2)))), n2="8G")
    assert plan_rebalance(snapshot, NOW, is_frozen=True) is None
    assert plan_rebalance(asked(snapshot, 5), NOW, is_frozen=True) is None
    begun = report(after(snapshot, plan_rebalance(snapshot, NOW)))
    assert plan_moves(begun, NOW) is not None


def test_a_reason_lets_the_moves_that_were_asked_for_begin_in_a_freeze_window() -> None:
    """Those and no others: what the cluster does by itself waits, and so does what comes later."""
    snapshot = joined(mode(settled(submitted(cluster(n1="8G"), job(instances=6)))), n2="8G")
    plan = plan_ask(snapshot, 1, NOW, "ann", override_freeze="n1 is hot")
    assert "not waiting for the end of a freeze (n1 is hot)" in plan.reason
    snapshot = after(snapshot, plan)
    begun = after(snapshot, plan_rebalance(snapshot, NOW, is_frozen=True))
    assert is_moving(begun.jobs[WEB].head)
    begun = settled(report(begun))
    done = settled(after(begun, plan_moves(begun, NOW)))
    assert spread(done) == [5, 1]
    assert plan_rebalance(done, NOW, is_frozen=True) is None
    assert plan_rebalance(done, NOW) is not None


def test_the_setting_says_how_far_it_goes() -> None:
    """Off: nothing. Suggest: wishes of job files. On: crowds and heat as well."""
    crowd = joined(settled(submitted(cluster(n1="8G"), job(instances=2))), n2="8G")
    wish = joined(settled(submitted(cluster(n1="8G"), job(placement=LIKES_INFRA))), n2="8G")
    wish = labelled(wish, "n2", role="infra")
    for chosen, moves_crowd, moves_wish in (
        (RebalanceMode.OFF, False, False),
        (RebalanceMode.SUGGEST, False, True),
        (RebalanceMode.ON, True, True),
    ):
        assert (plan_rebalance(mode(crowd, chosen), NOW) is not None) is moves_crowd
        assert (plan_rebalance(mode(wish, chosen), NOW) is not None) is moves_wish


def test_an_operators_word_is_worked_off_and_forgotten() -> None:
    """Two moves of three that would be worth it, whatever the setting says."""
    snapshot = joined(settled(submitted(cluster(n1="8G"), job(instances=6))), n2="8G")
    snapshot = mode(asked(snapshot, 2), RebalanceMode.OFF)
    left = rested(snapshot)
    assert spread(left) == [4, 2]
    assert left.settings.rebalancing is None
    done = rested(asked(left, 10))
    assert spread(done) == [3, 3] and done.settings.rebalancing is None


def test_an_operators_word_outlives_what_still_stops() -> None:
    """The second move has no room until the first one's old instance is gone: it is waited for."""
    likes_apps = PlacementRules(prefer=(LabelRule(label="role", values=("apps",)),))
    infra, apps = node("n1", "8G", labels={"role": "infra"}), node("n2", labels={"role": "apps"})
    snapshot = submitted(cluster(infra), job("large", memory="3G", placement=likes_apps))
    snapshot = replace(snapshot, nodes={**snapshot.nodes, apps.name: apps})
    snapshot = after(snapshot, plan_cordon(snapshot, N1))
    snapshot = submitted(snapshot, job("small", memory="2G", placement=LIKES_INFRA))
    snapshot = asked(settled(after(snapshot, plan_uncordon(snapshot, N1))), 5)
    snapshot = report(after(snapshot, plan_rebalance(snapshot, NOW)))
    stopping = report(after(snapshot, plan_moves(snapshot, NOW)))
    assert plan_rebalance(stopping, NOW) is None
    done = rested(settled(stopping))
    assert [a.node for a in done.instances(key("large"))] == ["n2"]
    assert done.settings.rebalancing is None


def test_only_so_many_moves_are_under_way_at_once() -> None:
    """Each of many jobs could move; four begin, the others wait."""
    jobs = [job(f"j{n}", instances=2, memory="256M") for n in range(8)]
    snapshot = joined(mode(settled(submitted(cluster(n1="8G"), *jobs))), n2="8G")
    begun = 0
    while plan := plan_rebalance(snapshot, NOW):
        snapshot, begun = after(snapshot, plan), begun + 1
    assert begun == AT_ONCE_MAX
    assert spread(vacated(rested(settled(snapshot))), key("j0")) == [1, 1]
