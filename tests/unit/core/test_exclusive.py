"""Jobs that must never run twice (`on_partition: stop`): repair waits, changes stop first."""

from ozymandias.core.loss import judge_loss
from ozymandias.core.memory import NOTHING
from ozymandias.core.reconcile import reconcile
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import plan_pending, plan_repair
from ozymandias.model.job import OnPartition, PlacementRules
from ozymandias.model.node import NodeName
from ozymandias.model.pod import ContainerState
from ozymandias.model.record import replace
from tests.unit.core import node_side
from tests.unit.core.builders import (
    after,
    cluster,
    job,
    key,
    lost,
    planned,
    report,
    settled,
    submitted,
    vacated,
    where,
)

THREE = cluster(n1="4G", n2="4G", n3="4G")
ALONE = job("db", on_partition=OnPartition.STOP)
NOBODY: frozenset[NodeName] = frozenset()


def home_of(snapshot: object, name: str = "db") -> NodeName:
    return NodeName(where(snapshot, key(name))["0"].split()[0])  # type: ignore[arg-type]


def test_a_replacement_waits_until_the_lost_node_is_fenced() -> None:
    """Other jobs move at once, the exclusive one when its guard has surely ended it."""
    snapshot = settled(submitted(THREE, ALONE))
    home = home_of(snapshot)
    snapshot = settled(submitted(snapshot, job("web", instances=3)))
    snapshot = lost(snapshot, home)
    plan = planned(plan_repair(snapshot, frozenset({home}), NOBODY))
    assert {edit.job for edit in plan.edits} == {key("web")}
    snapshot = after(snapshot, plan)
    assert plan_repair(snapshot, frozenset({home}), NOBODY) is None, "all is said"
    assert plan_pending(snapshot) is None, "it is not missing: it may still run where it was"
    snapshot = after(snapshot, plan_repair(snapshot, frozenset({home}), frozenset({home})))
    assert home_of(snapshot) != home


def test_a_version_that_can_not_be_read_may_be_exclusive() -> None:
    """Nobody knows that it may run twice, so it does not."""
    snapshot = settled(submitted(THREE, job("web")))
    home = home_of(snapshot, "web")
    record = replace(snapshot.jobs[key("web")], versions={})
    snapshot = lost(replace(snapshot, jobs={key("web"): record}), home)
    plan = planned(plan_repair(snapshot, frozenset({home}), NOBODY))
    assert plan.edits == () and plan.dead == {home}, "all that is known is that it is away"


def test_a_node_is_fenced_some_time_after_it_went() -> None:
    """It is dead at once, and looked at again when the time for exclusive jobs has come."""
    snapshot = settled(submitted(THREE, ALONE))
    home = home_of(snapshot)
    for now, fenced, again in ((100.0, NOBODY, 118.0), (118.0, frozenset({home}), None)):
        loss = judge_loss(
            lost(snapshot, home),
            missing_since={home: 100.0},
            seen_alive=frozenset(snapshot.nodes),
            started=0.0,
            now=now,
            fence_seconds=18.0,
        )
        assert (loss.fenced, loss.look_again) == (fenced, again) and loss.dead == {home}


def test_a_change_stops_first() -> None:
    """The new version waits in the slot of the old one, and runs when that is gone."""
    snapshot = settled(submitted(THREE, ALONE))
    snapshot = submitted(snapshot, replace(ALONE, containers=job("db", image="b").containers))
    snapshot = after(snapshot, plan_rollout(snapshot))
    states = sorted(text.split(maxsplit=1)[1] for text in where(snapshot, key("db")).values())
    assert states == ["v1 stopping", "v2 waiting"]
    snapshot = vacated(snapshot)
    assert [t.split(maxsplit=1)[1] for t in where(snapshot, key("db")).values()] == ["v2 running"]
    assert plan_rollout(report(snapshot)) is None


def test_a_change_finds_room_on_another_node() -> None:
    """Grown too large for where it is, it waits elsewhere for its own end."""
    snapshot = settled(submitted(cluster(n1="2G"), ALONE))
    snapshot = replace(snapshot, nodes={**snapshot.nodes, **cluster(n2="4G").nodes})
    grown = replace(ALONE, containers=job("db", memory="3G").containers)
    snapshot = submitted(snapshot, grown)
    snapshot = after(snapshot, plan_rollout(snapshot))
    assert where(snapshot, key("db")) == {"0*": "n1 v1 stopping", "0": "n2 v2 waiting"}
    assert where(vacated(snapshot), key("db")) == {"0": "n2 v2 running"}


def test_a_change_takes_the_place_that_a_limit_per_node_leaves() -> None:
    """Where one is allowed the old one's place is free for the new one, for it stops first."""
    limited = replace(ALONE, placement=PlacementRules(max_per_node=1))
    snapshot = settled(submitted(cluster(n1="4G"), limited))
    snapshot = submitted(snapshot, replace(limited, containers=job("db", image="b").containers))
    snapshot = after(snapshot, plan_rollout(snapshot))
    assert where(snapshot, key("db")) == {"0*": "n1 v1 stopping", "0": "n1 v2 waiting"}


def test_without_a_session_nothing_exclusive_is_started_again() -> None:
    """What the guard has ended stays ended until the node belongs to the cluster again."""
    for policy, expected in ((OnPartition.KEEP, ["start app"]), (OnPartition.STOP, [])):
        spec = replace(node_side.job(), on_partition=policy)
        want = node_side.wanted(spec)
        seen = node_side.observed(node_side.pod(spec), app=ContainerState.EXITED)
        agenda = reconcile([want], {seen.id: seen}, {seen.id: NOTHING}, 100.0, has_session=False)
        assert [f"{a.kind} {a.container}" for a in agenda.actions] == expected
