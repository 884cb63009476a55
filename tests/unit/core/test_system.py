"""System jobs: one on every matching node, present and future, before anything else."""

import pytest

from ozymandias.core.arbiter import propose
from ozymandias.core.departures import foresee_drain
from ozymandias.core.explain import why
from ozymandias.core.nodes import plan_begin_drain, plan_cordon, plan_label, plan_uncordon
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import (
    pending_of,
    plan_pending,
    plan_repair,
    plan_restart,
    plan_scale,
    plan_stop,
)
from ozymandias.core.system import plan_system, wanted_of
from ozymandias.model.job import Job, JobKey, JobKind, LabelRule, NetworkMode, PlacementRules
from ozymandias.model.node import Drain, NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import SYSTEM_JOB
from tests.unit.core.builders import (
    WEB,
    after,
    cluster,
    foretold,
    job,
    key,
    lost,
    node,
    planned,
    refused,
    report,
    returned,
    settled,
    submit,
    submitted,
    vacated,
    where,
)

DNS = key("dns")
N2 = NodeName("n2")


def system(name: str = "dns", memory: str = "512M", **rest: object) -> Job:
    made = job(name, 0, memory, **rest)  # type: ignore[arg-type]
    return replace(made, kind=JobKind.SYSTEM)


def nodes_of(snapshot: Snapshot, wanted: JobKey = DNS) -> list[str]:
    return sorted(a.node for a in snapshot.instances(wanted))


def with_node(snapshot: Snapshot, made: object) -> Snapshot:
    name = made.name  # type: ignore[attr-defined]
    return replace(snapshot, nodes={**snapshot.nodes, name: made})  # type: ignore[dict-item]


def test_it_is_on_every_node_and_comes_to_a_joining_one() -> None:
    """Two nodes, then a third; each has one, with the reason."""
    snapshot = submitted(cluster(n1="4G", n2="4G"), system())
    assert nodes_of(snapshot) == ["n1", "n2"]
    snapshot = with_node(settled(snapshot), node("n3"))
    plan = planned(plan_system(snapshot))
    assert plan.edits[0].reason == "one of dns on every matching node: n3 has 4G of memory free"
    snapshot = settled(after(snapshot, plan))
    assert nodes_of(snapshot) == ["n1", "n2", "n3"]
    assert propose(snapshot, frozenset()) is None
    assert wanted_of(snapshot, snapshot.jobs[DNS]) == 3
    assert why(snapshot, DNS)[0] == (
        "dns is at version 1, one on every matching node: 3 of 3 nodes healthy."
    )


def test_what_is_left_out_of_a_plan_comes_with_the_next() -> None:
    """A submit, system jobs and what is pending, divided at will, end where the whole would."""
    nodes = cluster(n1="4G", n2="4G", n3="4G", n4="4G")
    first = planned(submit(nodes, system())).first(1)
    assert first.job is not None and [e.node for e in first.edits] == ["n1"]
    snapshot = after(nodes, first)
    while plan := plan_system(snapshot):
        snapshot = after(snapshot, plan.first(2))
    assert len(list(snapshot.instances(DNS))) == 4
    starved = lost(submitted(snapshot, job("web", 8, "1G")), "n1", "n2", "n3")
    starved = after(starved, plan_repair(starved, frozenset(starved.nodes) - {"n4"}))
    back, parts = returned(starved, "n1", "n2", "n3"), 0
    while plan := plan_pending(back):
        back, parts = after(back, plan.first(1)), parts + 1
    assert parts == 5
    assert len(list(back.instances(WEB))) == 8


def test_it_is_placed_before_anything_else() -> None:
    """A joining node with room for one gives it to the system job, not to what is pending."""
    snapshot = submitted(cluster(n1="4G"), system(memory="1G"), job("big", 1, "3G"))
    snapshot = with_node(lost(settled(snapshot), "n1"), node("n2", "3G"))
    snapshot = after(snapshot, plan_repair(snapshot, frozenset({NodeName("n1")})))
    proposal = propose(snapshot, frozenset())
    # `big` was moved by the repair and fills n2: the system job says what it lacks.
    assert proposal is None
    assert [p.reason for p in pending_of(snapshot)] == [
        "needs 1G of memory; n2 is 1G of memory short (0B free)"
    ]
    snapshot = with_node(snapshot, node("n3", "3G"))
    snapshot = after(snapshot, plan_scale(snapshot, key("big"), 1))
    first = propose(snapshot, frozenset())
    assert first is not None and first.what == "system"


def test_a_cordoned_node_has_its_own_and_a_drained_one_gives_it_up_last() -> None:
    """What still runs on a node needs it until the end."""
    snapshot = submitted(cluster(n1="4G", n2="4G"), job(instances=2), system())
    snapshot = settled(snapshot)
    snapshot = after(snapshot, plan_cordon(snapshot, NodeName("n1")))
    snapshot = submitted(snapshot, system("exporter"))
    assert nodes_of(snapshot, key("exporter")) == ["n1", "n2"]
    snapshot = settled(snapshot)
    snapshot = after(snapshot, plan_begin_drain(snapshot, N2, Drain(since=1.0)))
    assert plan_system(snapshot) is None  # web is still there, with nowhere to go
    snapshot = settled(after(snapshot, plan_stop(snapshot, WEB)))
    plan = planned(plan_system(snapshot))
    assert {(e.node, e.after, e.reason) for e in plan.edits} == {
        ("n2", "stopping", "n2 is being drained")
    }
    snapshot = settled(after(snapshot, plan))
    assert nodes_of(snapshot) == ["n1"]
    assert not list(snapshot.instances_on(N2))


@pytest.mark.parametrize("deadline", [0.0, 2.0])
def test_a_drain_leaves_as_many_as_the_job_needs(deadline: float) -> None:
    """Two must be healthy and two are: it is told and it stays, deadline or not; a third helps."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), system(min_available=2)))
    (blocker,) = foresee_drain(snapshot, N2).blockers
    assert (blocker.instance, blocker.reason) == (
        "dns-1",
        "dns needs 2 healthy, of which it has 2",
    )
    snapshot = after(snapshot, plan_begin_drain(snapshot, N2, Drain(since=1.0, deadline=deadline)))
    assert foresee_drain(snapshot, N2).blockers == (blocker,)
    assert propose(snapshot, frozenset(), wall=9.0) is None
    stays = "dns-1 stays on n2, which is being drained: 2 must stay healthy."
    assert stays in why(snapshot, DNS, ())
    unhealthy = report(snapshot, dns_1=False)
    assert not foresee_drain(unhealthy, N2).blockers
    assert planned(plan_system(unhealthy)).edits[0].node == "n2"
    snapshot = with_node(snapshot, node("n3"))
    snapshot = report(after(snapshot, plan_system(snapshot)), dns_2=False)
    assert plan_system(snapshot) is None
    snapshot = report(snapshot)
    assert [m.instance for m in foresee_drain(snapshot, N2).movers] == ["dns-1"]
    assert stays not in why(snapshot, DNS, ())
    assert nodes_of(settled(after(snapshot, plan_system(snapshot)))) == ["n1", "n3"]


def test_a_percentage_does_not_count_the_node_that_is_drained() -> None:
    """All must be healthy, of those that it is for: the drained one is none of them."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), system(min_available_percent=100)))
    assert not foresee_drain(snapshot, N2).blockers
    snapshot = after(snapshot, plan_begin_drain(snapshot, N2, Drain(since=1.0)))
    assert not foresee_drain(snapshot, N2).blockers
    assert nodes_of(settled(after(snapshot, plan_system(snapshot)))) == ["n1"]


def test_a_rule_that_is_met_no_more_leaves_as_many_as_the_job_needs() -> None:
    """By a label or by a new version: with two needed the old one stays, else it goes."""
    snapshot = cluster(node("n1", labels={"role": "x"}), node("n2", labels={"role": "x"}))
    rule = PlacementRules(require=(LabelRule(label="role", values=("x",)),))
    for least, left in ((2, 2), (1, 1)):
        made = system(min_available=least, placement=rule)
        there = settled(submitted(snapshot, made))
        there = after(there, plan_label(there, N2, {"role": "y"}, ()))
        if plan := plan_system(there):
            there = settled(after(there, plan))
        assert len(nodes_of(there)) == left


def test_instances_from_before_it_was_a_system_job_leave_a_drained_node_too() -> None:
    """Nobody waits for the other: old instances of a service go with it (seed 1144)."""
    snapshot = settled(submitted(cluster(n2="4G"), system(), job(instances=2)))
    snapshot = after(snapshot, plan_begin_drain(snapshot, N2, Drain(since=1.0)))
    snapshot = after(snapshot, submit(snapshot, replace(job(instances=0), kind=JobKind.SYSTEM)))
    snapshot = settled(after(snapshot, plan_system(snapshot)))
    assert not list(snapshot.instances_on(N2))


def test_labels_decide_where_it_is() -> None:
    """It comes when a label is set, and goes when it is taken away."""
    rules = PlacementRules(require=(LabelRule(label="role", values=("edge",)),))
    snapshot = submitted(cluster(n1="4G", n2="4G"), system(placement=rules))
    assert nodes_of(snapshot) == []
    snapshot = after(snapshot, plan_label(snapshot, N2, {"role": "edge"}, ()))
    snapshot = settled(after(snapshot, plan_system(snapshot)))
    assert nodes_of(snapshot) == ["n2"]
    snapshot = after(snapshot, plan_label(snapshot, N2, {}, ("role",)))
    plan = planned(plan_system(snapshot))
    assert plan.edits[0].reason == "n2 is without label role == edge"
    assert nodes_of(vacated(after(snapshot, plan))) == []


def test_the_host_network_must_be_allowed_by_the_node() -> None:
    """Where it is not, the job is pending there with that reason; its ports are the host's."""
    allowed = node("n1", host_network=True)
    made = system(host_port=9100, network=NetworkMode.HOST)
    snapshot = submitted(cluster(allowed, node("n2")), made)
    assert nodes_of(snapshot) == ["n1"]
    assert [str(p) for p in snapshot.nodes[NodeName("n1")].ledger.held.host_ports] == ["80/tcp"]
    (pending,) = pending_of(snapshot)
    assert pending.reason == (
        "n2 does not allow pods on its own network ([node] allow_host_network)"
    )


def test_a_change_goes_node_by_node_in_place() -> None:
    """One is down at a time; the new one waits in the slot of the old."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G", n3="4G"), system()))
    changed = submit(snapshot, system(image="new"))
    shown = foretold(snapshot, planned(changed))
    assert len(shown["stop"]) == len(shown["place"]) == 3
    snapshot = after(snapshot, changed)
    for replaced in range(1, 4):
        snapshot = after(snapshot, plan_system(snapshot))
        assert sum("stopping" in place for place in where(snapshot, DNS).values()) == 1
        assert plan_system(snapshot) is None and plan_rollout(snapshot) is None
        snapshot = vacated(snapshot)
        assert plan_system(snapshot) is None  # healthy before the next
        snapshot = report(snapshot)
        assert sum("v2" in place for place in where(snapshot, DNS).values()) == replaced
    assert plan_system(snapshot) is None


def test_a_change_heeds_min_available() -> None:
    """With as many needed as there are nodes, nothing is stopped."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), system(min_available=2)))
    snapshot = submitted(snapshot, system(min_available=2, image="new"))
    assert plan_system(snapshot) is None


@pytest.mark.parametrize(("percent", "is_held"), [(50, False), (51, True), (100, True)])
def test_a_percentage_of_a_system_job_is_of_the_nodes_that_it_is_for(
    percent: int, is_held: bool
) -> None:
    """Two nodes match and one of them may be without: a third, which is not meant, counts not."""
    infra = PlacementRules(require=(LabelRule(label="role", values=("infra",)),))
    nodes = [node(n, labels={"role": "infra"}) for n in ("n1", "n2")]
    old, new = (
        system(min_available_percent=percent, placement=infra, image=image)
        for image in ("old", "new")
    )
    snapshot = submitted(settled(submitted(cluster(*nodes, node("n3")), old)), new)
    assert (plan_system(snapshot) is None) == is_held


def test_what_is_unhealthy_is_replaced_without_waiting() -> None:
    """A broken version must not hold up the one that mends it."""
    snapshot = report(submitted(cluster(n1="4G", n2="4G"), system()), dns_0=False, dns_1=False)
    snapshot = submitted(snapshot, system(image="new"))
    assert len(planned(plan_system(snapshot)).edits) == 4


def test_a_lost_nodes_instance_is_not_moved_and_comes_back_with_it() -> None:
    """Elsewhere there is one already."""
    snapshot = lost(settled(submitted(cluster(n1="4G", n2="4G"), system())), "n2")
    snapshot = after(snapshot, plan_repair(snapshot, frozenset({N2})))
    assert nodes_of(snapshot) == ["n1"]
    assert propose(snapshot, frozenset()) is None
    assert wanted_of(snapshot, snapshot.jobs[DNS]) == 1
    snapshot = returned(snapshot, "n2")
    assert nodes_of(after(snapshot, plan_system(snapshot))) == ["n1", "n2"]


def test_it_is_never_started_beside_one_that_still_stops() -> None:
    """A label taken away and given back: the new one waits until the old pod is gone."""
    rules = PlacementRules(require=(LabelRule(label="role", values=("edge",)),))
    snapshot = cluster(node("n1", labels={"role": "edge"}))
    snapshot = settled(submitted(snapshot, system(placement=rules)))
    n1 = NodeName("n1")
    snapshot = after(snapshot, plan_label(snapshot, n1, {}, ("role",)))
    snapshot = after(snapshot, plan_system(snapshot))
    snapshot = after(snapshot, plan_label(snapshot, n1, {"role": "edge"}, ()))
    assert plan_system(snapshot) is None
    (pending,) = pending_of(snapshot)
    assert pending.reason == "n1 is still stopping the one before"
    snapshot = vacated(snapshot)
    assert nodes_of(after(snapshot, plan_system(snapshot))) == ["n1"]


def test_its_room_is_kept_while_its_last_one_still_stops() -> None:
    """The next one is larger: what is pending would fit beside the old one, and has to wait."""
    n1, rules = NodeName("n1"), PlacementRules(require=(LabelRule(label="role", values=("edge",)),))
    snapshot = cluster(node("n1", "2G", labels={"role": "edge"}, cordoned=True), n2="1G")
    snapshot = settled(submitted(snapshot, system(placement=rules), job("web", 1, "1G")))
    snapshot = after(snapshot, plan_label(snapshot, n1, {}, ("role",)))
    snapshot = after(snapshot, plan_system(snapshot))
    snapshot = submitted(snapshot, system(memory="1536M", placement=rules))
    snapshot = after(snapshot, plan_label(snapshot, n1, {"role": "edge"}, ()))
    snapshot = after(lost(snapshot, "n2"), plan_repair(lost(snapshot, "n2"), frozenset({N2})))
    snapshot = after(snapshot, plan_uncordon(snapshot, n1))
    assert plan_system(snapshot) is None and plan_pending(snapshot) is None
    snapshot = vacated(snapshot)
    assert nodes_of(after(snapshot, plan_system(snapshot))) == ["n1"]


def played(snapshot: Snapshot, made: Job) -> tuple[dict[str, list[str]], Snapshot]:
    """What `ozy plan` shows of a change, by node; and the cluster once it has been carried out."""
    plan = planned(submit(snapshot, made))
    document = foretold(snapshot, plan)
    shown: dict[str, list[str]] = {}
    for sign, kind in (("+", "place"), ("-", "stop")):
        for row in document[kind]:
            shown.setdefault(row["node"], []).append(f"{sign}{row['instance']}")
    snapshot = settled(after(snapshot, plan))
    while found := propose(snapshot, frozenset()):
        snapshot = settled(after(snapshot, found.plan))
    return shown, snapshot


def test_a_change_is_planned_as_it_will_go() -> None:
    """Smaller, it comes to a node where it had no room; larger, a node keeps what it has."""
    snapshot = settled(submitted(cluster(n1="2G", n2="1G"), job("web", 2, "600M"), system()))
    assert nodes_of(snapshot) == ["n1"]
    shown, smaller = played(snapshot, system(memory="256M"))
    assert shown == {"n1": ["+dns-0", "-dns-0"], "n2": ["+dns-1"]}
    assert where(smaller, DNS) == {"0": "n1 v2 running", "1": "n2 v2 running"}
    shown, larger = played(smaller, system(memory="700M"))
    assert shown == {"n1": ["+dns-0", "-dns-0"]}
    assert where(larger, DNS) == {"0": "n1 v3 running", "1": "n2 v2 running"}
    assert (
        "n2 can't have version 3: without the old one, n2 is 276M of memory short (424M free)."
        in why(larger, DNS, ())
    )


def test_a_service_that_becomes_a_system_job_is_planned_as_one_on_each_node() -> None:
    """Three on a node, and one of the new version there in the end."""
    snapshot = settled(submitted(cluster(n1="4G"), job("dns", 3, "512M")))
    shown, done = played(snapshot, system())
    assert shown == {"n1": ["+dns-0", "-dns-0", "-dns-1", "-dns-2"]}
    assert where(done, DNS) == {"0": "n1 v2 running"}


def test_a_change_that_a_floor_holds_up_is_not_planned_and_says_so() -> None:
    """The only one must stay healthy, so it is never replaced."""
    snapshot = settled(submitted(cluster(n1="4G"), system(min_available=1)))
    shown, done = played(snapshot, system(memory="1G", min_available=1))
    assert shown == {} and where(done, DNS) == {"0": "n1 v1 running"}
    assert "Nothing is stopped before its turn: 1 must stay healthy." in why(done, DNS, ())


def test_it_can_not_be_scaled_and_submitting_it_again_changes_nothing() -> None:
    """The nodes say how many there are."""
    snapshot = settled(submitted(cluster(n1="4G"), system()))
    problem = refused(plan_scale(snapshot, DNS, 3))
    assert problem.kind is SYSTEM_JOB
    assert planned(submit(snapshot, system())).is_empty
    assert plan_pending(snapshot) is None


def test_a_service_can_become_a_system_job_and_back() -> None:
    """Old instances are replaced either way, and the number is what the kind says."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job("dns", 3, "512M")))
    snapshot = submitted(snapshot, system())
    for _ in range(20):
        if (proposal := propose(snapshot, frozenset())) is None:
            break
        snapshot = settled(after(snapshot, proposal.plan))
    assert nodes_of(snapshot) == ["n1", "n2"]
    snapshot = submitted(snapshot, job("dns", 3, "512M"))
    for _ in range(20):
        if (proposal := propose(snapshot, frozenset())) is None:
            break
        snapshot = settled(after(snapshot, proposal.plan))
    assert len(nodes_of(snapshot)) == 3


def test_several_make_way_where_one_does_not_leave_room() -> None:
    """A service of small instances becomes a system job with large ones."""
    snapshot = settled(submitted(cluster(n1="4G"), job("dns", 3, "1G")))
    snapshot = submitted(snapshot, system(memory="3G"))
    snapshot = after(snapshot, plan_system(snapshot))
    states = sorted(text.split(maxsplit=1)[1] for text in where(snapshot, DNS).values())
    assert states == ["v1 running", "v1 stopping", "v1 stopping", "v2 waiting"]
    snapshot = settled(snapshot)
    while plan := plan_system(snapshot):
        snapshot = settled(after(snapshot, plan))
    assert list(where(snapshot, DNS).values()) == ["n1 v2 running"]
    needed = replace(system(memory="3G"), min_available=2)
    snapshot = submitted(settled(submitted(cluster(n1="4G"), job("dns", 3, "1G"))), needed)
    assert plan_system(snapshot) is None, "two have to go, and only one can be missed"


def test_where_the_new_one_never_fits_one_old_one_stays() -> None:
    """A service becomes a system job, and its port belongs to another job on the only node."""
    snapshot = cluster(n1="4G")
    snapshot = submitted(snapshot, job("web", 1, host_port=8080), job("dns", 3, "256M"))
    snapshot = submitted(settled(snapshot), system(host_port=8080))
    plan = planned(plan_system(snapshot))
    assert {e.reason for e in plan.edits} == {
        "n1 can't have version 2, and one of dns is enough there"
    }
    snapshot = settled(after(snapshot, plan))
    assert list(where(snapshot, DNS).values()) == ["n1 v1 running"]
    assert propose(snapshot, frozenset()) is None
    snapshot = settled(after(snapshot, plan_stop(snapshot, WEB)))
    snapshot = settled(after(snapshot, plan_system(snapshot)))
    assert list(where(snapshot, DNS).values()) == ["n1 v2 running"]


def test_surplus_stays_as_far_as_it_can_not_be_missed() -> None:
    """Two are needed: of three old ones one goes; one that serves nobody goes before it."""
    snapshot = cluster(n1="4G")
    snapshot = submitted(snapshot, job("web", 1, host_port=8080), job("dns", 4, "256M"))
    snapshot = report(settled(snapshot), dns_2=False)
    snapshot = submitted(snapshot, system(host_port=8080, min_available=2))
    plan = planned(plan_system(snapshot))
    assert [e.slot for e in plan.edits] == [2, 1]
    snapshot = settled(after(snapshot, plan))
    assert len(where(snapshot, DNS)) == 2
    assert plan_system(snapshot) is None


def test_what_several_new_ones_replace_goes_as_far_as_it_can_be_missed() -> None:
    """Two are needed and a node for the second is missing: one of the old ones stays beside."""
    snapshot = settled(submitted(cluster(n1="4G"), job("dns", 3, "256M")))
    snapshot = submitted(snapshot, system(min_available=2))
    for _ in range(4):
        if plan := plan_system(snapshot):
            snapshot = settled(after(snapshot, plan))
    assert sorted(where(snapshot, DNS).values()) == ["n1 v1 running", "n1 v2 running"]
    snapshot = with_node(snapshot, node("n2"))
    while plan := plan_system(snapshot):
        snapshot = settled(after(snapshot, plan))
    assert sorted(where(snapshot, DNS).values()) == ["n1 v2 running", "n2 v2 running"]


@pytest.mark.parametrize("is_healthy", [True, False])
def test_what_is_restarted_gives_its_place_though_older_ones_are_beside(is_healthy: bool) -> None:
    """Those that a service left go when the new one is healthy; never are there two of a version.

    `ozy plan` tells it, and who serves nobody needs no budget for it.
    """
    snapshot = submitted(cluster(n1="4G"), job("dns", 3, "256M"))
    snapshot = submitted(report(snapshot, dns_0=False), system(min_available=1))
    snapshot = report(vacated(after(snapshot, plan_system(snapshot))), dns_1=is_healthy)
    left = {"0": "n1 v1 running", "2": "n1 v1 running"}
    assert where(snapshot, DNS) == {**left, "1": "n1 v2 running"}
    restart = planned(plan_restart(snapshot, DNS))
    shown = foretold(snapshot, restart)
    assert [row["instance"] for row in shown["place"]] == ["dns-1"]
    assert sorted(row["instance"] for row in shown["stop"]) == ["dns-0", "dns-1", "dns-2"]
    snapshot = after(snapshot, restart)
    snapshot = after(snapshot, plan_system(snapshot))
    assert where(snapshot, DNS) == {**left, "1*": "n1 v2 stopping", "1": "n1 v2 waiting"}
    snapshot = settled(snapshot)
    while plan := plan_system(snapshot):
        snapshot = settled(after(snapshot, plan))
    (last,) = snapshot.instances(DNS)
    assert (last.slot, last.version, last.generation) == (1, 2, 1)


def test_a_drained_node_keeps_one_for_the_others() -> None:
    """A service with several instances there becomes a system job while others can't leave."""
    snapshot = settled(submitted(cluster(n1="4G"), job("dns", 4, "128M"), job("web", 1)))
    snapshot = submitted(snapshot, system())
    snapshot = after(snapshot, plan_begin_drain(snapshot, NodeName("n1"), Drain(since=0.0)))
    plan = planned(plan_system(snapshot))
    assert plan.edits[0].reason == "n1 is being drained, and one of dns is enough there"
    snapshot = settled(after(snapshot, plan))
    assert list(where(snapshot, DNS).values()) == ["n1 v1 running"]
    assert propose(snapshot, frozenset()) is None
    snapshot = settled(after(snapshot, plan_stop(snapshot, WEB)))
    snapshot = settled(after(snapshot, plan_system(snapshot)))
    assert where(snapshot, DNS) == {}
