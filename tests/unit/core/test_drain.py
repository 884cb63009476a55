"""Draining a node: what moves, in which order, what blocks it, what the deadline does."""

from collections import Counter
from collections.abc import Iterable

import pytest

from ozymandias.core.arbiter import propose
from ozymandias.core.departures import foresee_drain
from ozymandias.core.drain import next_deadline, plan_drain
from ozymandias.core.nodes import (
    plan_begin_drain,
    plan_cordon,
    plan_end_drain,
    plan_label,
    plan_uncordon,
)
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import pending_of, plan_pending, plan_repair, plan_scale
from ozymandias.model.job import Burst, Job, Neighbour, OnPartition, PlacementRules
from ozymandias.model.node import Drain, NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import NODE_DRAINING, NODE_NOT_FOUND
from tests.unit.core.builders import (
    WEB,
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
    submitted,
    vacated,
    where,
)

N1 = NodeName("n1")
NOW = 1000.0


def drained(snapshot: Snapshot, name: str = "n1", deadline: float = 0.0) -> Snapshot:
    drain = Drain(since=NOW, deadline=deadline)
    return after(snapshot, plan_begin_drain(snapshot, NodeName(name), drain))


def moved_out(
    snapshot: Snapshot, steps: int = 40, now: float = NOW, dead: Iterable[str] = ()
) -> Snapshot:
    """Everything the arbiter would do, one step after the other, all new ones healthy."""
    for _ in range(steps):
        proposal = propose(snapshot, frozenset(map(NodeName, dead)), now)
        if proposal is None:
            return snapshot
        snapshot = settled(after(snapshot, proposal.plan))
    raise AssertionError("does not come to rest")


def on(snapshot: Snapshot, name: str) -> int:
    return sum(1 for _ in snapshot.instances_on(NodeName(name)))


def kept(made: Job) -> Job:
    container = made.containers[0]
    volumes = tuple(replace(v, keep=True) for v in container.volumes)
    return replace(made, containers=(replace(container, volumes=volumes),))


def only_on_n1(made: Job, **others: str) -> Snapshot:
    """The job is on n1, then other nodes join."""
    snapshot = settled(submitted(cluster(n1="8G"), made))
    joined = {NodeName(name): node(name, size) for name, size in others.items()}
    return replace(snapshot, nodes={**snapshot.nodes, **joined})


def test_an_instance_starts_elsewhere_is_healthy_and_then_stops() -> None:
    """Never fewer healthy than wanted: the old one goes when the new one serves."""
    snapshot = drained(only_on_n1(job(), n2="4G"))
    first = planned(plan_drain(snapshot, NOW))
    assert [(e.node, e.before, e.after) for e in first.edits] == [("n2", None, "running")]
    assert first.edits[0].reason == (
        "n1 is drained: n2 has no other instance of web and 4G of 4G memory free"
    )
    snapshot = report(after(snapshot, first), web_1=False)
    assert plan_drain(snapshot, NOW) is None  # not healthy yet
    assert plan_rollout(snapshot) is None  # one more than wanted, on purpose
    second = planned(plan_drain(report(snapshot), NOW))
    assert [(e.node, e.slot, e.after) for e in second.edits] == [("n1", 0, "stopping")]
    assert second.edits[0].reason == "n1 is drained, and enough others are healthy"
    assert where(vacated(after(report(snapshot), second))) == {"1": "n2 v1 running"}


def test_many_instances_move_a_few_at_a_time() -> None:
    """Seven of a job: four are started at once, and never fewer than seven are live."""
    snapshot = drained(only_on_n1(job(instances=7), n2="8G", n3="8G"))
    assert len(planned(plan_drain(snapshot, NOW)).edits) == 4
    snapshot = moved_out(snapshot)
    assert on(snapshot, "n1") == 0
    assert len(list(snapshot.instances(WEB))) == 7


def test_a_drained_node_takes_no_work_until_it_is_undrained() -> None:
    """Room on it does not count; afterwards it does."""
    snapshot = drained(cluster(n1="4G", n2="1G"))
    snapshot = submitted(snapshot, job(instances=1))
    assert refused(plan_scale(snapshot, WEB, 2)).fields["nodes"][0]["reason"] == "being drained"
    snapshot = after(snapshot, plan_end_drain(snapshot, N1))
    assert planned(plan_scale(snapshot, WEB, 2)).edits[0].node == "n1"


def test_a_drain_cancelled_half_way_leaves_the_job_as_wanted() -> None:
    """The one too many goes, and what has not left stays."""
    snapshot = drained(only_on_n1(job(instances=3), n2="8G"))
    snapshot = settled(after(snapshot, plan_drain(snapshot, NOW)))
    snapshot = after(snapshot, plan_end_drain(snapshot, N1))
    assert plan_drain(snapshot, NOW) is None
    snapshot = moved_out(snapshot)
    assert len(list(snapshot.instances(WEB))) == 3
    again = moved_out(drained(snapshot))
    assert on(again, "n1") == 0


def test_what_has_no_room_elsewhere_stays_and_is_told_before() -> None:
    """The outlook has the numbers, and the plan stops nothing."""
    snapshot = drained(only_on_n1(job(instances=2, memory="2G"), n2="3G"))
    outlook = foresee_drain(snapshot, N1)
    assert [(m.instance, m.to) for m in outlook.movers] == [("web-0", "n2")]
    (blocker,) = outlook.blockers
    assert blocker.instance == "web-1"
    assert blocker.reason == "needs 2G of memory; n2 is 1G of memory short (1G free)"
    snapshot = moved_out(snapshot)
    assert sorted(where(snapshot).values()) == ["n1 v1 running", "n2 v1 running"]


def placed(made: Job, **rules: object) -> Job:
    return replace(made, placement=PlacementRules(**rules))  # type: ignore[arg-type]


FORESEEN = {
    "home has room for what leaves home": [
        placed(job(instances=5), burst=Burst(after=2, nodes=("n3",)))
    ],
    "what leaves no longer counts for its zone": [placed(job(instances=4), spread="zone")],
    "one may only be beside another that leaves as well": [
        job("cache"),
        placed(job("api"), near=(Neighbour(job=key("cache")),)),
    ],
    "a few of each job at a time": [job(instances=17, memory="600M"), job("x", instances=17)],
}


@pytest.mark.parametrize("name", FORESEEN)
def test_what_is_told_of_a_drain_is_what_it_does(name: str) -> None:
    """Whoever is said to go to a node goes there; nothing blocks that is not said to."""
    zones = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
    snapshot = cluster(*(node(n, "8G", labels={"zone": zone}) for n, zone in zones.items()))
    snapshot = settled(submitted(snapshot, *FORESEEN[name]))
    busy = [n for n in snapshot.nodes if on(snapshot, n)]
    assert busy
    for leaving in busy:
        told = foresee_drain(snapshot, leaving)
        done = moved_out(drained(snapshot, leaving))
        come = Counter(p for p in _places(done) if p[1] != leaving)
        come.subtract(p for p in _places(snapshot) if p[1] != leaving)
        assert Counter((m.job, m.to) for m in told.movers) == +come
        assert len(told.blockers) == on(done, leaving)


def with_full_home(**others: object) -> Snapshot:
    """Two of three at home, and the third waits for the node of the burst, which was lost."""
    made = placed(job(instances=3, **others), burst=Burst(after=2, nodes=("n3",)))  # type: ignore[arg-type]
    snapshot = settled(submitted(cluster(n1="2G", n2="2G", n3="2G"), made))
    snapshot = moved_out(lost(snapshot, "n3"), dead=("n3",))
    assert sorted(where(snapshot).values()) == ["n1 v1 running", "n2 v1 running"]
    return snapshot


def test_a_drain_moves_what_is_on_the_node_though_others_are_pending() -> None:
    """What comes does not count as the one that is missing: that one has no place, and waits."""
    snapshot = with_full_home()
    assert [(m.instance, m.to) for m in foresee_drain(snapshot, N1).movers] == [("web-1", "n2")]
    snapshot = drained(snapshot)
    first = planned(plan_drain(snapshot, NOW))
    assert [(e.node, e.before) for e in first.edits] == [("n2", None)]
    snapshot = report(after(snapshot, first), web_2=False)
    assert plan_drain(snapshot, NOW) is None  # not healthy yet
    second = planned(plan_drain(report(snapshot), NOW))
    assert [(e.node, e.after, e.reason) for e in second.edits] == [
        ("n1", "stopping", "n1 is drained, and 2 others serve at home, where no more are to be")
    ]
    snapshot = moved_out(settled(after(report(snapshot), second)), dead=("n3",))
    assert sorted(where(snapshot).values()) == ["n2 v1 running", "n2 v1 running"]
    assert [p.count for p in pending_of(snapshot)] == [1]


def test_who_is_pending_at_a_burst_is_needed_less_than_min_available() -> None:
    """Three are to be healthy and two are: another one comes, and none of them leaves."""
    snapshot = with_full_home(min_available=3)
    outlook = foresee_drain(snapshot, N1)
    assert [b.reason for b in outlook.blockers] == ["web needs 3 instances"]
    done = moved_out(drained(snapshot), dead=("n3",))
    assert sorted(where(done).values()) == ["n1 v1 running", "n2 v1 running", "n2 v1 running"]


def test_of_a_job_that_is_drained_the_missing_come_first() -> None:
    """One place for two: it is the pending one's, the other stays and is told to; then it moves."""
    snapshot = settled(submitted(cluster(n1="1G", n2="1G"), job(instances=2)))
    snapshot = moved_out(lost(snapshot, "n2"), dead=("n2",))
    joined = {NodeName("n3"): node("n3", "1G")}
    snapshot = replace(snapshot, nodes={**snapshot.nodes, **joined})
    outlook = foresee_drain(snapshot, N1)
    assert not outlook.movers
    assert [b.reason for b in outlook.blockers] == [
        "1 of web is missing and comes first; needs 1G of memory; n2 is not alive, n3 is 1G of"
        " memory short (0B free)"
    ]
    snapshot = drained(snapshot)
    plan = planned(plan_drain(snapshot, NOW))
    assert [(e.node, e.reason) for e in plan.edits] == [
        ("n3", "room appeared: n3 has no other instance of web and 1G of 1G memory free")
    ]
    snapshot = moved_out(settled(after(snapshot, plan)), dead=("n2",))
    assert sorted(where(snapshot).values()) == ["n1 v1 running", "n3 v1 running"]
    joined = {NodeName("n4"): node("n4", "1G")}
    snapshot = moved_out(replace(snapshot, nodes={**snapshot.nodes, **joined}), dead=("n2",))
    assert sorted(where(snapshot).values()) == ["n3 v1 running", "n4 v1 running"]


def _places(snapshot: Snapshot) -> list[tuple[object, str]]:
    return [(a.job, a.node) for made in snapshot.jobs for a in snapshot.instances(made)]


def test_past_the_deadline_the_rest_is_stopped_and_pending() -> None:
    """Before it nothing is stopped without a replacement; when it comes, somebody looks."""
    snapshot = drained(only_on_n1(job(memory="2G"), n2="1G"), deadline=NOW + 60)
    assert plan_drain(snapshot, NOW) is None
    assert next_deadline(snapshot, NOW) == NOW + 60
    plan = planned(plan_drain(snapshot, NOW + 60))
    assert [(e.node, e.after, e.reason) for e in plan.edits] == [
        ("n1", "stopping", "n1 is drained, and the deadline is past")
    ]
    snapshot = vacated(after(snapshot, plan))
    assert on(snapshot, "n1") == 0
    assert [(p.job, p.count) for p in pending_of(snapshot)] == [(WEB, 1)]
    assert next_deadline(snapshot, NOW + 60) is None


@pytest.mark.parametrize(("least", "left"), [(0, 0), (1, 1), (2, 2)])
def test_the_deadline_does_not_go_below_min_available(least: int, left: int) -> None:
    """As many healthy ones stay as the job says it needs."""
    made = job(instances=2, memory="2G", min_available=least)
    snapshot = drained(only_on_n1(made, n2="1G"), deadline=NOW)
    snapshot = moved_out(snapshot, now=NOW + 1)
    assert on(snapshot, "n1") == left


def test_who_stays_beyond_the_deadline_is_told_so() -> None:
    """One of two may be missed: the other stays whenever it is, and nothing else would say why."""
    full = only_on_n1(job(instances=2, memory="2G", min_available=1), n2="1G")
    for deadline, told in ((0.0, 0), (NOW, 1)):
        reasons = [b.reason for b in foresee_drain(drained(full, deadline=deadline), N1).blockers]
        words = "; past the deadline it stays as well: web needs 1 healthy, of which it has 2"
        assert [reason.endswith(words) for reason in reasons].count(True) == told
        assert len(reasons) == 2
    (_, beforehand) = foresee_drain(full, N1, has_deadline=True).blockers
    assert beforehand.reason.endswith(words)
    left = moved_out(drained(full, deadline=NOW), now=NOW + 1)
    (blocker,) = foresee_drain(left, N1).blockers
    assert blocker.reason.endswith("it stays as well: web needs 1 healthy, of which it has 1")


def test_kept_volumes_hold_an_instance_until_the_deadline() -> None:
    """Its data is not moved behind anybody's back."""
    made = kept(job(disk="1G"))
    snapshot = drained(only_on_n1(made, n2="8G"), deadline=NOW + 60)
    (blocker,) = foresee_drain(snapshot, N1).blockers
    assert blocker.reason == "its kept volumes are on n1, and are not moved"
    assert plan_drain(snapshot, NOW) is None
    assert planned(plan_drain(snapshot, NOW + 60)).edits[0].node == "n1"


def test_an_exclusive_instance_stops_before_it_runs_elsewhere() -> None:
    """It waits in its own slot on the new node, and runs when the old one is gone."""
    made = job(on_partition=OnPartition.STOP)
    snapshot = drained(only_on_n1(made, n2="8G"))
    snapshot = after(snapshot, plan_drain(snapshot, NOW))
    assert where(snapshot) == {"0": "n2 v1 waiting", "0*": "n1 v1 stopping"}
    assert where(vacated(snapshot)) == {"0": "n2 v1 running"}


def test_an_exclusive_instance_that_must_be_available_blocks() -> None:
    """One of one must stay healthy, so it can't stop first; the outlook says so."""
    made = job(on_partition=OnPartition.STOP, min_available=1)
    snapshot = drained(only_on_n1(made, n2="8G"))
    (blocker,) = foresee_drain(snapshot, N1).blockers
    assert blocker.reason == ("it has to stop first, and web needs 1 healthy, of which it has 1")
    assert plan_drain(snapshot, NOW) is None


def test_a_rollout_under_way_takes_its_instances_off_a_drained_node() -> None:
    """Old ones there go first, and the new version is nowhere but elsewhere."""
    snapshot = settled(submitted(cluster(n1="8G", n2="8G"), job(instances=2)))
    snapshot = submitted(drained(snapshot), job(instances=2, image="new"))
    assert plan_drain(snapshot, NOW) is None
    snapshot = moved_out(snapshot)
    assert sorted(where(snapshot).values()) == ["n2 v2 running", "n2 v2 running"]


def test_a_node_lost_during_its_drain_is_repaired_as_any_other() -> None:
    """Repair comes first; when the node is back it is still drained."""
    snapshot = drained(only_on_n1(job(instances=2), n2="8G"))
    snapshot = after(snapshot, plan_drain(snapshot, NOW))
    snapshot = lost(snapshot, "n1")
    assert plan_drain(snapshot, NOW) is None
    proposal = propose(snapshot, frozenset({N1}), NOW)
    assert proposal is not None
    assert proposal.what == "repair n1"
    snapshot = after(snapshot, plan_repair(snapshot, frozenset({N1})))
    assert on(moved_out(settled(snapshot)), "n1") == 0
    assert snapshot.nodes[N1].ledger.drain


def test_scaling_down_takes_from_the_drained_node_first() -> None:
    """Those that were to leave anyway are the ones that go."""
    snapshot = settled(submitted(cluster(n1="8G", n2="8G", n3="8G"), job(instances=3)))
    plan = planned(plan_scale(drained(snapshot, "n2"), WEB, 2))
    assert [(e.node, e.reason) for e in plan.edits] == [
        ("n2", "web is scaled to 2: n2 is being drained")
    ]


def test_a_rollout_does_not_go_below_min_available() -> None:
    """No room for both and all of them needed: it waits, and goes on when it may."""
    tight = cluster(n1="1G", n2="1G")
    snapshot = settled(submitted(tight, job(instances=2, min_available=2)))
    snapshot = submitted(snapshot, job(instances=2, min_available=2, image="new"))
    assert plan_rollout(snapshot) is None
    looser = submitted(snapshot, job(instances=2, min_available=1, image="new"))
    assert len(planned(plan_rollout(looser)).edits) == 2


def test_a_percentage_holds_a_rollout_by_what_is_wanted_now() -> None:
    """Half of two may go one by one; half of three that are wanted, of which two are there, no."""
    snapshot = settled(submitted(cluster(n1="1G", n2="1G"), job(instances=2)))
    snapshot = submitted(snapshot, job(instances=2, min_available_percent=50, image="new"))
    assert len(planned(plan_rollout(snapshot)).edits) == 2
    record = snapshot.jobs[WEB]
    grown = replace(record, head=replace(record.head, wanted=3))
    assert plan_rollout(replace(snapshot, jobs={WEB: grown})) is None


# What an operator sets ----------------------------------------------------------------------------


def test_cordon_keeps_what_is_there_and_is_undone() -> None:
    """Twice is once; work comes again afterwards."""
    snapshot = settled(submitted(cluster(n1="4G"), job()))
    snapshot = after(snapshot, plan_cordon(snapshot, N1))
    assert planned(plan_cordon(snapshot, N1)).is_empty
    assert plan_pending(snapshot) is None and on(snapshot, "n1") == 1
    assert refused(plan_scale(snapshot, WEB, 2)).fields["nodes"][0]["reason"] == "cordoned"
    snapshot = after(snapshot, plan_uncordon(snapshot, N1))
    assert planned(plan_scale(snapshot, WEB, 2)).edits


def test_a_drain_is_not_ended_by_uncordon() -> None:
    """They are two things; the problem says which command ends it."""
    problem = refused(plan_uncordon(drained(cluster(n1="4G")), N1))
    assert problem.kind is NODE_DRAINING
    assert "ozy node undrain n1" in problem.hint


def test_a_node_that_is_not_there_is_named_with_what_was_meant() -> None:
    """A misspelt name gets the nearest one."""
    problem = refused(plan_cordon(cluster(node1="4G"), NodeName("nodel")))
    assert problem.kind is NODE_NOT_FOUND
    assert problem.hint == "Did you mean node1?"


def test_an_operators_labels_win_over_the_nodes_own() -> None:
    """Set, changed, and taken away, also one that the node's settings give it."""
    snapshot = cluster(node("n1", labels={"zone": "a", "disk": "hdd"}))
    snapshot = after(snapshot, plan_label(snapshot, N1, {"disk": "ssd", "role": "x"}, ()))
    assert snapshot.nodes[N1].ledger.all_labels == {"zone": "a", "disk": "ssd", "role": "x"}
    snapshot = after(snapshot, plan_label(snapshot, N1, {}, ("zone", "role")))
    assert snapshot.nodes[N1].ledger.all_labels == {"disk": "ssd"}
    assert planned(plan_label(snapshot, N1, {"disk": "ssd"}, ())).is_empty


def test_draining_again_gives_it_the_new_deadline() -> None:
    """It has been drained since it was first asked for."""
    snapshot = drained(cluster(n1="4G"))
    assert planned(plan_begin_drain(snapshot, N1, Drain(since=NOW + 5))).is_empty
    later = plan_begin_drain(snapshot, N1, Drain(since=NOW + 5, deadline=NOW + 60))
    drain = after(snapshot, later).nodes[N1].ledger.drain
    assert drain == Drain(since=NOW, deadline=NOW + 60)
