"""What is given up: found, remembered, explained, healed."""

from ozymandias.core.arbiter import Leisure, propose
from ozymandias.core.drift import NOTES_MAX, drift_rows, drifting, lacks, plan_drift
from ozymandias.core.nodes import plan_label
from ozymandias.core.schedule import plan_repair, plan_scale, plan_submit
from ozymandias.model.job import Burst, Job, LabelRule, Neighbour, OnPartition, PlacementRules
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.settings import NodePool, RebalanceMode
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import (
    NAMES,
    WEB,
    after,
    cluster,
    job,
    key,
    lost,
    node,
    planned,
    returned,
    settled,
    submitted,
)

NOW = 1000.0
INFRA = LabelRule(label="role", values=("infra",), weight=10)


def preferring(name: str = "web", **rest: object) -> Job:
    return job(name, placement=PlacementRules(prefer=(INFRA,)), **rest)  # type: ignore[arg-type]


def crowded() -> Snapshot:
    """The preferred node is taken by another, so web is on n2."""
    snapshot = cluster(node("n1", "1G", labels={"role": "infra"}), n2="4G")
    return settled(submitted(snapshot, preferring("big"), preferring()))


def test_what_is_given_up_is_found_with_the_numbers() -> None:
    """Which instance, where, which wish, and why it can't have it now."""
    (row,) = drift_rows(crowded(), NOW)
    assert (row.lack.job, row.lack.node, str(row.lack.slots)) == (WEB, "n2", "0")
    assert (row.lack.given_up.kind, row.lack.given_up.wish) == ("prefer", "role == infra")
    assert row.why == "n1 is 1G of memory short (0B free)"
    assert (row.heal_to, row.since) == ("", 0.0)


def test_an_instance_that_does_without_two_things_is_counted_once() -> None:
    """And each of several alike counts."""
    wishes = PlacementRules(prefer=(INFRA, LabelRule(label="disk", values=("ssd",), weight=1)))
    snapshot = settled(submitted(cluster(n1="4G"), job(instances=2, placement=wishes)))
    assert len(list(lacks(snapshot))) == 2 and drifting(snapshot) == 2
    assert drifting(settled(submitted(cluster(n1="4G"), job(instances=2)))) == 0


def test_since_when_is_noted_once_and_forgotten_when_it_is_over() -> None:
    """One write when it begins, none while it lasts, one when it is healed."""
    snapshot = crowded()
    snapshot = after(snapshot, plan_drift(snapshot, NOW))
    assert plan_drift(snapshot, NOW + 100) is None
    assert drift_rows(snapshot, NOW + 100)[0].since == NOW
    snapshot = settled(after(snapshot, plan_scale(snapshot, key("big"), 0)))
    (row,) = drift_rows(snapshot, NOW)
    assert (row.heal_to, row.why) == ("n1", "n1 has role == infra, as preferred")
    for _ in range(5):
        if (proposal := propose(snapshot, frozenset(), NOW, leisure=Leisure())) is None:
            break
        snapshot = settled(after(snapshot, proposal.plan))
    assert drift_rows(snapshot, NOW) == ()
    assert snapshot.jobs[WEB].head.drift == ()


def test_a_note_is_kept_through_changes_of_others() -> None:
    """A second wish that is given up later has a time of its own."""
    snapshot = crowded()
    snapshot = after(snapshot, plan_drift(snapshot, NOW))
    both = PlacementRules(prefer=(INFRA, LabelRule(label="disk", values=("ssd",), weight=1)))
    snapshot = after(snapshot, plan_submit(snapshot, job(placement=both), uid="u", names=NAMES))
    for _ in range(6):
        if proposal := propose(snapshot, frozenset(), NOW + 50):
            snapshot = settled(after(snapshot, proposal.plan))
    snapshot = after(snapshot, plan_drift(snapshot, NOW + 50))
    noted = {(note.what, note.since) for note in snapshot.jobs[WEB].head.drift}
    assert noted == {("role == infra", NOW), ("disk == ssd", NOW + 50)}


def test_notes_are_bounded() -> None:
    """A head stays small however many nodes a job is on."""
    nodes = [node(f"n{i:02}", "1G") for i in range(NOTES_MAX + 8)]
    wide = preferring(instances=len(nodes))
    snapshot = settled(submitted(cluster(*nodes), wide))
    plan = planned(plan_drift(snapshot, NOW))
    assert plan.job and plan.job.head
    assert len(plan.job.head.drift) == NOTES_MAX
    assert plan_drift(after(snapshot, plan), NOW + 1) is None


def test_every_kind_of_wish_is_found() -> None:
    """near, apart, spread, a preferred pool, burst away from home, a label that was taken away."""
    rules = {
        "near": PlacementRules(near=(Neighbour(job=key("db"), weight=1),)),
        "apart": PlacementRules(apart=(Neighbour(job=key("db"), weight=1),)),
        "spread": PlacementRules(spread="zone"),
        "require": PlacementRules(require=(INFRA,)),
    }
    found = {}
    for kind, asked in rules.items():
        labels = {"role": "infra", "zone": "a"}
        snapshot = cluster(node("n1", "8G", labels=labels))
        db = () if kind == "near" else (job("db"),)
        snapshot = settled(submitted(snapshot, *db, job(instances=2, placement=asked)))
        other = node("n2", "8G", labels={"zone": "b"})
        snapshot = replace(snapshot, nodes={**snapshot.nodes, other.name: other})
        if kind == "require":
            snapshot = after(snapshot, plan_label(snapshot, NodeName("n1"), {"role": "x"}, []))
        found[kind] = {(lack.given_up.kind, lack.given_up.wish) for lack in lacks(snapshot)}
    assert found == {
        "near": {("near", "near db")},
        "apart": {("apart", "apart from db")},
        "spread": {("spread", "even over zone")},
        "require": {("require", "role == infra")},
    }


def test_a_preferred_pool_counts_as_a_wish() -> None:
    """The namespace would rather be elsewhere, and can't."""
    snapshot = settled(submitted(cluster(n1="4G"), job()))
    pool = NodePool(namespace="default", require=(INFRA,), is_hard=False)
    snapshot = replace(snapshot, settings=replace(snapshot.settings, pools=(pool,)))
    (row,) = drift_rows(snapshot, NOW)
    assert row.lack.given_up.kind == "pool"
    assert row.why == "no node that it may be on has that"


def test_who_is_away_from_home_is_told() -> None:
    """Home was lost and is back: two of the four on the burst node should be there."""
    rules = PlacementRules(burst=Burst(after=2, nodes=("cloud",)))
    snapshot = settled(submitted(cluster(n1="4G", cloud="8G"), job(instances=4, placement=rules)))
    assert list(lacks(snapshot)) == []
    gone = lost(snapshot, "n1")
    gone = after(gone, plan_repair(gone, frozenset({NodeName("n1")})))
    (row,) = drift_rows(settled(returned(gone, "n1")), NOW)
    assert (row.lack.given_up.kind, row.lack.given_up.wish) == ("burst", "at home, not on cloud")
    assert str(row.lack.slots) == "0-3"
    assert (row.heal_to, row.why) == ("n1", "there is room at home for 2 of web")


def test_what_does_not_move_says_so() -> None:
    """It must never run twice: it is told, and left where it is."""
    snapshot = cluster(n1="4G")
    made = replace(preferring(), on_partition=OnPartition.STOP)
    snapshot = settled(submitted(snapshot, made))
    other = node("n2", labels={"role": "infra"})
    snapshot = replace(snapshot, nodes={**snapshot.nodes, other.name: other})
    (row,) = drift_rows(snapshot, NOW)
    assert row.heal_to == "" and "must never run twice" in row.why


def test_with_the_setting_off_it_is_told_and_not_healed() -> None:
    """The row says where it could go; nothing moves by itself."""
    snapshot = settled(after(crowded(), plan_scale(crowded(), key("big"), 0)))
    off = replace(snapshot.settings, rebalance=RebalanceMode.OFF)
    snapshot = replace(snapshot, settings=off)
    assert drift_rows(snapshot, NOW)[0].heal_to == "n1"
    proposal = propose(snapshot, frozenset(), NOW, leisure=Leisure())
    assert proposal is not None and proposal.what == "drift"


def test_where_it_would_go_is_where_it_goes() -> None:
    """Apart from the cache it would be on n2, and do without what weighs more: it stays."""
    pinned = PlacementRules(require=(replace(INFRA, weight=0),))
    wishes = PlacementRules(
        prefer=(replace(INFRA, weight=5),), apart=(Neighbour(job=key("cache"), weight=3),)
    )
    snapshot = cluster(node("n1", labels={"role": "infra"}), n2="4G")
    snapshot = submitted(snapshot, job("cache", placement=pinned), job("web", placement=wishes))
    snapshot = settled(snapshot)
    (row,) = [row for row in drift_rows(snapshot, NOW) if row.lack.job == WEB]
    words = "n2 has room for it now; for that it is not moved: as much would be given up"
    assert (row.lack.node, row.heal_to, row.why) == ("n1", "", words)
    found = propose(snapshot, frozenset(), NOW, leisure=Leisure())
    assert found is None or found.what == "drift"
