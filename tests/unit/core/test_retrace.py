"""Decisions made again: whoever placed an instance, its record comes out as it was decided."""

from collections.abc import Sequence

from ozymandias.core.decision import record
from ozymandias.core.drain import plan_drain
from ozymandias.core.hindsight import Again, placements
from ozymandias.core.nodes import plan_begin_drain, plan_cordon, plan_label, plan_uncordon
from ozymandias.core.preempt import plan_preempt
from ozymandias.core.rebalance import plan_rebalance
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import (
    plan_pending,
    plan_repair,
    plan_restart,
    plan_scale,
    plan_vacate,
)
from ozymandias.core.shed import plan_shed
from ozymandias.core.system import plan_system
from ozymandias.core.whynot import why_not
from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.job import Burst, Job, JobKind, LabelRule, OnPartition, PlacementRules
from ozymandias.model.node import Drain, Load, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode
from ozymandias.model.snapshot import Snapshot
from ozymandias.store.decisions import decode, encode
from tests.unit.core.builders import (
    WEB,
    after,
    cluster,
    job,
    lost,
    node,
    planned,
    settled,
    submit,
    submitted,
)
from tests.unit.core.test_ways import wanted

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
OTHERS_CHANGED = "nodes, settings or other jobs were changed in the same transaction, before it"


def made_again(snapshot: Snapshot, *plans: Plan) -> list[Again]:
    """Every placement, as it comes out of the record in the store."""
    made = record(snapshot, plans, number=0, by=N1, time=5.0)
    return list(placements(decode(encode(made))))


def assert_as_decided(snapshot: Snapshot, *plans: Plan) -> Sequence[Again]:
    found = made_again(snapshot, *plans)
    assert found and all(again.is_same for again in found), [again.why for again in found]
    return found


def against(again: Again) -> dict[str, str]:
    assert again.explained
    return {v.node: v.against for v in again.explained.verdicts}


def system(name: str, memory: str = "512M", **rest: object) -> Job:
    return replace(job(name, 0, memory, **rest), kind=JobKind.SYSTEM)  # type: ignore[arg-type]


def restarted(snapshot: Snapshot) -> Snapshot:
    """Every instance of web is to be replaced by one of the same version."""
    known = snapshot.jobs[WEB]
    head = replace(known.head, restart=known.head.restart + 1)
    return replace(snapshot, jobs={**snapshot.jobs, WEB: replace(known, head=head)})


def test_a_system_job_comes_to_a_cordoned_node() -> None:
    """That was no choice between nodes: cordoned or not, there was room where it was to be."""
    snapshot = cluster(node("n1"), node("n2", cordoned=True))
    first, second = assert_as_decided(snapshot, planned(submit(snapshot, system("dns"))))
    assert against(second) == {"n1": "not looked at: it was to be on n2", "n2": ""}
    assert against(first)["n1"] == ""


def test_what_takes_anothers_place_stays_where_that_was() -> None:
    """A new version of a system job waits for the old one, on a node that is cordoned by now."""
    snapshot = settled(submitted(cluster(n1="4G"), system("dns")))
    snapshot = settled(after(snapshot, plan_cordon(snapshot, N1)))
    snapshot = settled(after(snapshot, submit(snapshot, system("dns", "1G"))))
    (again,) = assert_as_decided(snapshot, planned(plan_system(snapshot)))
    assert again.step.after is SlotState.WAITING


def test_a_restart_keeps_new_ones_apart_from_new_ones() -> None:
    """The old ones are of the same version, and still do not count."""
    snapshot = restarted(settled(submitted(cluster(n1="4G", n2="4G"), job("web", 2))))
    for _ in range(4):
        plan = planned(plan_rollout(snapshot))
        if any(edit.before is None for edit in plan.edits):
            (again,) = assert_as_decided(snapshot, plan)
            assert dict(again.step.score)["same_job"] == 0
        snapshot = settled(after(snapshot, plan))


def test_a_rollout_of_a_burst_begins_at_home() -> None:
    """Home is full of old ones, which leave: they do not count for the burst."""
    rules = PlacementRules(burst=Burst(after=1, nodes=("n2",)))
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job("web", 2, placement=rules)))
    plan = planned(plan_rollout(restarted(snapshot)))
    assert [edit.node for edit in plan.edits] == ["n1"]
    assert_as_decided(restarted(snapshot), plan)


def test_what_leaves_a_drained_node_is_not_counted_there() -> None:
    """Evenly over zones, without the one that is to end."""
    nodes = [node(f"n{i}", labels={"zone": zone}) for i, zone in enumerate("aab", 1)]
    spread = PlacementRules(spread="zone")
    snapshot = settled(submitted(cluster(*nodes), job("web", 2, placement=spread)))
    drained = next(a.node for a in snapshot.instances() if a.node != N3)
    snapshot = after(snapshot, plan_begin_drain(snapshot, drained, Drain(since=1.0)))
    plan = planned(plan_drain(snapshot, 2.0))
    (again,) = assert_as_decided(snapshot, plan)
    assert dict(again.step.score)["same_zone"] == 0 and again.step.node in (N1, N2)


def test_what_leaves_a_host_under_pressure_is_not_counted_there() -> None:
    """Likewise, where a host is short of memory."""
    nodes = [node(f"n{i}", labels={"zone": zone}) for i, zone in enumerate("aab", 1)]
    spread = PlacementRules(spread="zone")
    snapshot = settled(submitted(cluster(*nodes), job("web", 2, placement=spread)))
    pressed = next(a.node for a in snapshot.instances() if a.node != N3)
    load = Load(taint="memory pressure: 3 %", tainted_at=1.0, shed_to=0)
    short = replace(snapshot.nodes[pressed], load=load)
    snapshot = replace(snapshot, nodes={**snapshot.nodes, pressed: short})
    (again,) = assert_as_decided(snapshot, planned(plan_shed(snapshot)))
    assert dict(again.step.score)["same_zone"] == 0


def test_what_must_never_run_twice_counts_those_that_leave_with_it_as_little() -> None:
    """One on a node from now on: two of them are on n1, and the first new one comes there."""
    snapshot = cluster(node("n1"), node("n2", cordoned=True))
    single = job("web", 2, on_partition=OnPartition.STOP)
    snapshot = settled(submitted(snapshot, single))
    snapshot = after(snapshot, plan_uncordon(snapshot, N2))
    fewer = replace(single, placement=PlacementRules(max_per_node=1))
    snapshot = settled(submitted(snapshot, fewer))
    (again,) = assert_as_decided(snapshot, planned(plan_rollout(snapshot)))
    assert again.step.node == N1


def test_alike_ones_that_were_placed_at_once_are_made_again_at_once() -> None:
    """Of a job of forty, four at a time come to a node: each for the reason of the first."""
    snapshot = cluster(*(node(f"n{i}", "64G") for i in range(12)))
    plan = planned(submit(snapshot, job("web", 40, "64M")))
    found = assert_as_decided(snapshot, plan)
    assert len(found) == 40 and max(len(step.slots) for step in plan.steps) > 1
    assert [dict(again.step.score)["same_job"] for again in found[:4]] == [0, 0, 0, 0]


def test_home_comes_before_what_a_burst_goes_to() -> None:
    """One of two at home is lost, and n3 would be the better place: it goes home all the same."""
    wish = LabelRule(label="disk", values=("ssd",), weight=5)
    rules = PlacementRules(burst=Burst(after=2, nodes=("n3",)), prefer=(wish,))
    snapshot = cluster(node("n1"), node("n2"), node("n3", "8G", labels={"disk": "ssd"}))
    snapshot = settled(submitted(snapshot, job("web", 3, placement=rules)))
    gone = next(a.node for a in snapshot.instances() if a.node != N3)
    snapshot = lost(snapshot, gone)
    repair = planned(plan_repair(snapshot, frozenset({gone})))
    (again,) = assert_as_decided(snapshot, repair)
    assert again.step.node not in (gone, N3)
    without = after(snapshot, replace(repair, edits=repair.edits[:1]))
    words = "n3 is for the burst, and fewer than 2 are at home. n3 is number 2 of 2."
    before = f"Another instance of web could go to n3, but {again.step.node} comes before it"
    assert f"{before}: {words}" in why_not(without, WEB, N3).lines


def test_what_is_packed_together_is_made_again_so() -> None:
    """More fits when the fullest node is filled first; that is how the others are ranked too."""
    snapshot = wanted(cluster(n1="4G", n2="4G", n3="8G"), job("a", 4, "1G"), job("b", 4, "3G"))
    plan = planned(plan_pending(snapshot))
    assert any("more fits when all are packed together" in edit.reason for edit in plan.edits)
    assert_as_decided(snapshot, plan)


def test_who_begins_to_run_in_the_same_transaction_is_still_there() -> None:
    """What it waited for is gone, it runs, and another of its job comes beside it, all at once."""
    large = job("web", 1, "1536M", on_partition=OnPartition.STOP)
    smaller = job("web", 1, "1G", on_partition=OnPartition.STOP)
    snapshot = settled(submitted(settled(submitted(cluster(n1="2G"), large)), smaller))
    snapshot = after(snapshot, plan_rollout(snapshot))
    begins = planned(plan_vacate(snapshot, N1, frozenset()))
    plan = planned(plan_scale(after(snapshot, begins), WEB, 2))
    (again,) = assert_as_decided(snapshot, begins, plan)
    assert dict(again.step.score)["same_job"] == 1


def test_what_moves_is_not_counted_where_it_comes_from() -> None:
    """Two crowd a node of zone a, and one of them moves to another node of that zone."""
    nodes = [node("n1", labels={"zone": "a"}), node("n2", labels={"zone": "a"}, cordoned=True)]
    spread = PlacementRules(spread="zone")
    snapshot = settled(submitted(cluster(*nodes), job("web", 2, placement=spread)))
    snapshot = after(snapshot, plan_uncordon(snapshot, N2))
    on = replace(snapshot.settings, rebalance=RebalanceMode.ON)
    plan = planned(plan_rebalance(replace(snapshot, settings=on), 500.0))
    (again,) = assert_as_decided(snapshot, plan)
    assert against(again) == {"n1": "where it moves from", "n2": ""}
    assert dict(again.step.score)["same_zone"] == 1


def test_what_is_kept_free_for_a_system_job_counts() -> None:
    """Its last instance stops there still, and the next one will need the room."""
    rules = PlacementRules(require=(LabelRule(label="role", values=("edge",)),))
    snapshot = cluster(node("n1", "4G", labels={"role": "edge"}))
    snapshot = settled(submitted(snapshot, system("dns", placement=rules)))
    snapshot = after(snapshot, plan_label(snapshot, N1, {}, ("role",)))
    snapshot = after(snapshot, plan_system(snapshot))
    snapshot = after(snapshot, plan_label(snapshot, N1, {"role": "edge"}, ()))
    snapshot = submitted(snapshot, system("dns", "1536M", placement=rules), job("web", 0))
    known = snapshot.jobs[WEB]
    grown = replace(known, head=replace(known.head, wanted=1))
    snapshot = replace(snapshot, jobs={**snapshot.jobs, WEB: grown})
    (again,) = assert_as_decided(snapshot, planned(plan_pending(snapshot)))
    assert dict(again.step.score)["memory_after"] == 2.5 / 4


def test_what_others_changed_in_the_same_transaction_is_said_to_be_missing() -> None:
    """Labelled and placed at once: the record has the node as it was before, and says so."""
    rules = PlacementRules(require=(LabelRule(label="disk", values=("ssd",)),))
    snapshot = cluster(n1="4G", n2="4G")
    labelled = after(snapshot, _labels(snapshot, {"disk": "ssd"}))
    plan = planned(submit(labelled, job("web", 1, placement=rules)))
    (again,) = made_again(snapshot, _labels(snapshot, {"disk": "ssd"}), plan)
    assert (again.is_same, again.why) == (None, OTHERS_CHANGED)


def test_what_becomes_a_system_job_in_the_same_transaction_is_said_to_be_missing() -> None:
    """Its only one on the node still stops, and room is kept for the next: no record tells it."""
    web, dns = job("web", 2), job("dns", 1, "256M")
    snapshot = settled(submitted(cluster(n1="4G"), web, dns))
    snapshot = after(snapshot, planned(plan_scale(snapshot, dns.key, 0)))
    known = snapshot.jobs[WEB]
    grown = replace(known, head=replace(known.head, wanted=3))
    snapshot = replace(snapshot, jobs={**snapshot.jobs, WEB: grown})
    become = planned(submit(snapshot, replace(dns, kind=JobKind.SYSTEM)))
    come = planned(plan_pending(after(snapshot, become)))
    (again,) = made_again(snapshot, become, come)
    assert (again.is_same, again.why) == (None, OTHERS_CHANGED)


def _labels(snapshot: Snapshot, labels: dict[str, str]) -> Plan:
    return planned(plan_label(snapshot, N1, labels, ()))


def test_what_fits_is_placed_before_anybody_is_displaced_though_others_stop_in_the_same() -> None:
    """Where one waits for room that another plan makes, the room of the displaced is none yet."""
    for name in ("ant", "bee", "cat", "dog"):  # each begins elsewhere on the ring
        snapshot = settled(submitted(cluster(n1="1G", n2="1G"), job("old"), job("low")))
        snapshot = after(snapshot, planned(plan_scale(snapshot, job("old").key, 0)))
        snapshot = submitted(snapshot, job("next"))  # it waits until that is gone
        stop = planned(plan_scale(snapshot, job("next").key, 0))
        assert [e.before for e in stop.edits] == [SlotState.WAITING]
        come = planned(submit(after(snapshot, stop), replace(job(name, 2), priority=2)))
        assert [e.before for e in come.edits].count(None) == 2 and len(come.edits) == 3
        assert_as_decided(snapshot, stop, come)


def test_several_come_for_one_that_only_waited_beside_another_that_fits_without() -> None:
    """That one is counted among them, and placed by a decision of its own: no record tells it."""
    low, high = job("low", 1, "1G"), replace(job("web", 1, "512M"), priority=2)
    snapshot = settled(submitted(cluster(n1="2G"), low, high))
    snapshot = after(snapshot, plan_restart(snapshot, low.key))
    snapshot = after(snapshot, plan_rollout(snapshot))
    web = snapshot.jobs[WEB]
    more = replace(web, head=replace(web.head, wanted=4))
    snapshot = replace(snapshot, jobs={**snapshot.jobs, WEB: more})
    plan = planned(plan_preempt(snapshot))
    left, *come = [(e.instance, e.before, e.after) for e in plan.edits]
    assert left == (InstanceId(low.key, 0), SlotState.WAITING, None) and len(come) == 2
    again = assert_as_decided(snapshot, plan)
    assert [dict(one.step.score)["same_job"] for one in again] == [2, 3]


def test_who_stops_counts_for_a_limit_per_node_though_its_room_is_given_back() -> None:
    """Another job's rollout gives back room in the same plan, where the next one comes then."""
    rules = PlacementRules(max_per_node=1)
    for name in ("bee", "cat", "dog", "eel"):  # each begins elsewhere on the ring
        bee, nodes = job(name, 1, "512M", placement=rules), cluster(n1="4G", n2="4G")
        snapshot = settled(submitted(nodes, bee))
        (there,) = snapshot.instances(bee.key)
        other = NodeName("n2" if there.node == "n1" else "n1")
        snapshot = after(snapshot, plan_cordon(snapshot, there.node))
        snapshot = settled(submitted(snapshot, job("ant", 1, "256M")))
        snapshot = after(snapshot, plan_uncordon(snapshot, there.node))
        for key in (job("ant").key, bee.key):
            snapshot = after(snapshot, plan_restart(snapshot, key))
        plan = planned(plan_rollout(replace(snapshot, statuses={})))
        assert plan.edits[-1].node == other and len(plan.edits) == 4
        assert_as_decided(snapshot, plan)
