"""Several jobs, not all of which fit: the order in which they are placed costs nobody a place."""

from ozymandias.core.schedule import plan_pending, plan_repair
from ozymandias.model.job import (
    Job,
    JobHead,
    JobRecord,
    JobVersion,
    LabelRule,
    Neighbour,
    PlacementRules,
)
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot

from .builders import after, cluster, job, key, lost, node, planned, settled, submitted


def wanted(snapshot: Snapshot, *jobs: Job) -> Snapshot:
    """The jobs are known, and nothing of them is placed."""
    records = {
        j.key: JobRecord(
            key=j.key,
            head=JobHead(uid="u", version=1, wanted=j.instances),
            head_revision=1,
            versions={1: JobVersion(uid="u", version=1, job=j)},
        )
        for j in jobs
    }
    return replace(snapshot, jobs=records)


def placed(snapshot: Snapshot) -> dict[str, int]:
    """How many of each job are placed, when the planner has nothing more to do."""
    while plan := plan_pending(snapshot):
        snapshot = after(snapshot, plan)
    found: dict[str, int] = {}
    for instance in snapshot.instances():
        found[instance.job.name] = found.get(instance.job.name, 0) + 1
    return found


def test_what_fits_is_placed_as_it_is_liked() -> None:
    """Where all have room nothing is packed together, and no reason speaks of it."""
    snapshot = wanted(cluster(n1="4G", n2="4G"), job("a", 2, "1G"), job("b", 2, "2G"))
    plan = planned(plan_pending(snapshot))
    assert len(plan.edits) == 4
    assert not any("more fits" in edit.reason for edit in plan.edits)


def test_one_large_instance_does_not_keep_out_many_small_ones() -> None:
    """By name the large one would come first, and take the room of four."""
    snapshot = wanted(cluster(n1="4G"), job("a-large", 1, "4G"), job("b-small", 4, "1G"))
    assert placed(snapshot) == {"b-small": 4}
    plan = planned(plan_pending(snapshot))
    assert all("more fits when all are packed together" in edit.reason for edit in plan.edits)


def test_what_is_left_over_is_told_as_the_chosen_way_leaves_it() -> None:
    """Not as it would have been in a way that was tried and not taken."""
    snapshot = wanted(cluster(n1="4G"), job("a-large", 1, "4G"), job("b-small", 4, "1G"))
    left = planned(plan_pending(snapshot)).pending
    assert [(p.job.name, p.count) for p in left] == [("a-large", 1)]
    assert left[0].reason == "needs 4G of memory; n1 is 4G of memory short (0B free)"
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job(instances=2, memory="3G")))
    plan = planned(plan_repair(lost(snapshot, "n2"), frozenset({NodeName("n2")})))
    assert [p.reason for p in plan.pending] == [
        "needs 3G of memory; n1 is 2G of memory short (1G free), n2 is not alive"
    ]


def test_small_ones_fill_what_large_ones_leave() -> None:
    """All fit in one way only: the large ones first."""
    jobs = (job("a", 2, "1G"), job("b", 2, "3G"))
    assert placed(wanted(cluster(n1="4G", n2="4G"), *jobs)) == {"a": 2, "b": 2}
    jobs = (job("a", 3, "1G"), job("b", 1, "3G"))
    assert placed(wanted(cluster(n1="3G", n2="3G"), *jobs)) == {"a": 3, "b": 1}


def test_who_has_few_places_to_go_goes_first() -> None:
    """The one that may go anywhere leaves the labelled node to the one that may not."""
    nodes = cluster(node("n1", "2G", labels={"role": "infra"}), node("n2", "2G"))
    infra = PlacementRules(require=(LabelRule(label="role", values=("infra",)),))
    jobs = (job("a", 1, "2G"), job("b", 1, "2G", placement=infra))
    assert placed(wanted(nodes, *jobs)) == {"a": 1, "b": 1}


def test_who_is_to_be_near_another_comes_right_after_it() -> None:
    """Before others take the room beside it; by size both would be last."""
    near = PlacementRules(near=(Neighbour(job=key("z-host")),))
    jobs = (
        job("a-guest", 1, "1G", placement=near),
        job("b", 3, "1G"),
        job("z-host", 1, "1G"),
    )
    assert placed(wanted(cluster(n1="2G", n2="3G"), *jobs)) == {"a-guest": 1, "b": 3, "z-host": 1}


def test_priority_comes_before_number() -> None:
    """One instance of a higher priority is worth more than many of a lower one."""
    large = job("z-large", 1, "4G", priority=5)
    assert placed(wanted(cluster(n1="4G"), job("a", 4, "1G"), large)) == {"z-large": 1}


def test_a_repair_places_as_many_as_it_can() -> None:
    """Likewise when a node is lost: the many small ones rather than the one large."""
    snapshot = settled(submitted(cluster(n1="4G"), job("a-large", 1, "2G"), job("b", 2, "1G")))
    both = replace(snapshot, nodes={**snapshot.nodes, **cluster(n2="2G").nodes})
    plan = planned(plan_repair(lost(both, "n1"), frozenset({NodeName("n1")})))
    again = after(lost(both, "n1"), plan)
    assert sorted(a.job.name for a in again.instances()) == ["b", "b"]
