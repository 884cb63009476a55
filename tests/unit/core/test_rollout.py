"""Rolling changes, step by step."""

import pytest

from ozymandias.core.explain import why
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import plan_pending, plan_restart, plan_scale
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Burst, Job, LabelRule, PlacementRules, Volume, VolumeKind
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import (
    WEB,
    after,
    cluster,
    foretold,
    job,
    lost,
    node,
    planned,
    report,
    settled,
    spread,
    submit,
    submitted,
    vacated,
    where,
)

ROOMY = cluster(n1="4G", n2="4G", n3="4G")


def changed(snapshot: Snapshot, **what: object) -> Snapshot:
    """A healthy job of three, and a new version of it just submitted."""
    return after(snapshot, submit(snapshot, job(instances=3, image="b", **what)))  # type: ignore[arg-type]


def rolled_out(snapshot: Snapshot) -> Snapshot:
    """Every step taken, each new instance healthy, each old one gone."""
    for _ in range(50):
        plan = plan_rollout(snapshot) or plan_pending(snapshot)
        if plan is None:
            return snapshot
        snapshot = settled(after(snapshot, plan))
    raise AssertionError(where(snapshot))


def test_start_first_where_there_is_room() -> None:
    """One new instance, then one old stops, then the next; never more than one above wanted."""
    snapshot = changed(settled(submitted(ROOMY, job(instances=3))))
    plan = planned(plan_rollout(snapshot))
    assert [(e.slot, e.before, e.after) for e in plan.edits] == [(3, None, SlotState.RUNNING)]
    snapshot = after(snapshot, plan)
    assert plan_rollout(snapshot) is None, "healthy before the next"
    snapshot = report(snapshot)
    plan = planned(plan_rollout(snapshot))
    assert [e.after for e in plan.edits] == [SlotState.STOPPING]
    assert plan.edits[0].reason == "replaced by version 2, which is healthy"
    snapshot = rolled_out(after(snapshot, plan))
    assert {a.version for a in snapshot.instances(WEB)} == {2}
    assert spread(snapshot) == [1, 1, 1]


def test_stop_first_where_there_is_none() -> None:
    """Without room for both, the new one waits in the old one's slot until the old one is gone."""
    snapshot = changed(
        settled(submitted(cluster(n1="2G", n2="2G", n3="2G"), job(instances=3, memory="2G"))),
        memory="2G",
    )
    plan = planned(plan_rollout(snapshot))
    old, new = plan.edits
    assert (old.after, new.after) == (SlotState.STOPPING, SlotState.WAITING)
    assert (old.node, old.slot) == (new.node, new.slot)
    assert "there is no room for both" in new.reason
    snapshot = after(snapshot, plan)
    assert plan_rollout(snapshot) is None
    snapshot = vacated(snapshot)
    assert plan_rollout(snapshot) is None, "it runs, but is not healthy yet"
    assert spread(rolled_out(report(snapshot))) == [1, 1, 1]


def test_host_port_forces_stop_first() -> None:
    """A host port can't be had twice on a node, however much memory there is."""
    snapshot = changed(settled(submitted(ROOMY, job(instances=3, host_port=80))), host_port=80)
    assert len(planned(plan_rollout(snapshot)).edits) == 2
    assert {a.version for a in rolled_out(snapshot).instances(WEB)} == {2}


def test_larger_version_pushes_out_as_many_as_it_takes() -> None:
    """Two small ones stop for one large one if that is what it takes, and what lacks is filled."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job(instances=4, memory="2G")))
    snapshot = after(snapshot, submit(snapshot, job(instances=2, memory="4G")))
    snapshot = rolled_out(snapshot)
    assert [a.version for a in snapshot.instances(WEB)] == [2, 2]


def test_one_that_is_large_enough_goes_before_a_small_one_that_is_not() -> None:
    """In the middle of a change another one comes: the small old one makes no room for it yet."""
    web = job(instances=2, memory="256M", min_available=1)
    snapshot = settled(submitted(cluster(n1="1536M"), web))
    snapshot = after(snapshot, submit(snapshot, job(instances=2, memory="768M", min_available=1)))
    for _ in range(2):  # one new, one old less
        snapshot = settled(after(snapshot, plan_rollout(snapshot)))
    filled = settled(submitted(snapshot, job("other", memory="512M")))
    third = job(instances=2, memory="512M", min_available=1)
    snapshot = rolled_out(after(filled, submit(filled, third)))
    assert {a.version for a in snapshot.instances(WEB)} == {3}


def test_broken_version_stops_at_the_first() -> None:
    """A version that never gets healthy costs nothing: all old ones keep running."""
    snapshot = changed(settled(submitted(ROOMY, job(instances=3))))
    snapshot = report(after(snapshot, plan_rollout(snapshot)), web_3=False)
    assert plan_rollout(snapshot) is None
    assert sum(a.version == 1 for a in snapshot.instances(WEB)) == 3


def test_old_ones_without_traffic_go_at_once() -> None:
    """Instances that are not healthy are replaced without waiting, one per step."""
    snapshot = changed(submitted(ROOMY, job(instances=3)))
    for left in (2, 1, 0):
        plan = planned(plan_rollout(snapshot))
        assert len(plan.edits) == 2
        snapshot = after(snapshot, plan)
        live = [a for a in snapshot.instances(WEB) if a.state is not SlotState.STOPPING]
        assert sum(a.version == 1 for a in live) == left and len(live) == 3
    assert plan_rollout(snapshot) is None


def test_idle_old_one_goes_first_but_no_healthy_one_with_it() -> None:
    """With a new one not healthy yet, only what carries no traffic may be replaced."""
    snapshot = changed(settled(submitted(ROOMY, job(instances=3))))
    snapshot = report(snapshot, web_1=False)
    plan = planned(plan_rollout(snapshot))
    assert plan.edits[0].slot == 1
    assert plan_rollout(report(after(snapshot, plan), web_3=False)) is None


def test_second_change_replaces_what_waits() -> None:
    """A version that was waiting and never ran gives its place to the next one."""
    tight = settled(submitted(cluster(n1="2G"), job(memory="2G")))
    snapshot = after(tight, submit(tight, job(memory="2G", image="b")))
    snapshot = after(snapshot, plan_rollout(snapshot))
    snapshot = after(snapshot, submit(snapshot, job(memory="2G", image="c")))
    snapshot = after(snapshot, plan_rollout(snapshot))
    assert where(snapshot) == {"0": "n1 v3 waiting", "0*": "n1 v1 stopping"}
    assert where(rolled_out(settled(snapshot))) == {"0": "n1 v3 running"}


def test_second_change_does_not_wait_where_it_may_not_be() -> None:
    """What waited with the version before is rid of, and placed by the new one's rules."""
    tight = settled(submitted(cluster(n1="2G"), job(memory="2G")))
    snapshot = after(tight, submit(tight, job(memory="2G", image="b")))
    snapshot = after(snapshot, plan_rollout(snapshot))
    snapshot = replace(snapshot, nodes={**snapshot.nodes, **cluster(n2="2G").nodes})
    at_home = PlacementRules(burst=Burst(after=1, nodes=(NodeName("n1"),)))
    snapshot = after(snapshot, submit(snapshot, job(memory="2G", placement=at_home)))
    snapshot = after(snapshot, plan_rollout(snapshot))
    assert where(snapshot) == {"0*": "n1 v1 stopping"}
    assert set(where(rolled_out(settled(snapshot))).values()) == {"n2 v3 running"}


def test_fewer_instances_with_a_new_version() -> None:
    """The surplus of old ones goes before anything new is started."""
    snapshot = settled(submitted(ROOMY, job(instances=5)))
    snapshot = after(snapshot, submit(snapshot, job(instances=2, image="b")))
    plan = planned(plan_rollout(snapshot))
    assert len(plan.edits) == 3 and all(e.after is SlotState.STOPPING for e in plan.edits)
    assert len(spread(rolled_out(snapshot))) == 2


def test_restart_replaces_every_instance_of_the_same_version() -> None:
    """A new generation rolls like a new version."""
    snapshot = settled(submitted(ROOMY, job(instances=3)))
    snapshot = rolled_out(after(snapshot, plan_restart(snapshot, WEB)))
    assert {(a.version, a.generation) for a in snapshot.instances(WEB)} == {(1, 1)}


def test_no_job_holds_up_another() -> None:
    """Two jobs roll side by side; the one that can't go on does not matter to the other."""
    snapshot = settled(submitted(ROOMY, job("a", 2), job("b", 2)))
    for name in ("a", "b"):
        snapshot = after(snapshot, submit(snapshot, job(name, 2, image="new")))
    plan = planned(plan_rollout(snapshot))
    assert sorted(e.job.name for e in plan.edits) == ["a", "b"]
    snapshot = report(after(snapshot, plan), a_2=False)
    plan = planned(plan_rollout(snapshot))
    assert [e.job.name for e in plan.edits] == ["b"]


def test_room_of_who_leaves_is_for_others_though_its_new_version_may_not_be_there() -> None:
    """One has gone to a node that its new rules name: for the next it is there no more."""
    here, there = (
        PlacementRules(require=(LabelRule(label="role", values=(role,)),)) for role in ("a", "b")
    )
    snapshot = cluster(node("n1", "1G", labels={"role": "a"}), node("n2", labels={"role": "b"}))
    ant, bee = (job(name, 1, "512M", placement=here) for name in ("ant", "bee"))
    snapshot = submitted(settled(submitted(snapshot, ant, bee)), replace(ant, placement=there))
    snapshot = report(after(snapshot, plan_rollout(snapshot)), bee_0=False)
    snapshot = after(snapshot, plan_restart(snapshot, bee.key))
    *left, new = planned(plan_rollout(snapshot)).edits
    assert [(e.node, str(e.instance)) for e in left] == [("n1", "ant-0"), ("n1", "bee-0")]
    assert (new.node, dict(new.score)["memory_after"]) == ("n1", 0.5)


def test_scale_down_in_the_middle_keeps_the_new_ones() -> None:
    """Of old and new alike healthy, the old ones go."""
    snapshot = changed(settled(submitted(ROOMY, job(instances=3))))
    snapshot = report(after(snapshot, plan_rollout(snapshot)))
    snapshot = after(snapshot, plan_scale(snapshot, WEB, 1))
    live = [a.version for a in snapshot.instances(WEB) if a.state is not SlotState.STOPPING]
    assert live == [2]
    assert plan_rollout(snapshot) is None


def test_new_one_on_a_node_out_of_touch_is_waited_for() -> None:
    """A last word of "healthy" from a node whose lease is gone is not enough to go on."""
    snapshot = changed(settled(submitted(ROOMY, job(instances=3))))
    snapshot = report(after(snapshot, plan_rollout(snapshot)))
    (new,) = (a for a in snapshot.instances(WEB) if a.version == 2)
    assert plan_rollout(lost(snapshot, new.node)) is None


def test_nothing_to_roll() -> None:
    """A job as it is wanted needs no step."""
    assert plan_rollout(settled(submitted(ROOMY, job(instances=3)))) is None
    assert plan_rollout(ROOMY) is None


def test_unreadable_version_changes_nothing() -> None:
    """A head that names a version which can't be read leaves everything as it is."""
    snapshot = changed(settled(submitted(ROOMY, job(instances=3))))
    record = snapshot.jobs[WEB]
    broken = replace(record, versions={1: record.versions[1]})
    assert plan_rollout(replace(snapshot, jobs={WEB: broken})) is None


# Where an instance has to be ----------------------------------------------------------------------


def keeping(image: str, **rules: object) -> Job:
    """Three instances with a volume that stays where it is."""
    kept = Volume(kind=VolumeKind.LOCAL, name="data", path="/data", space_bytes=2**20, keep=True)
    spec = job(instances=3, image=image, placement=PlacementRules(**rules))  # type: ignore[arg-type]
    containers = tuple(replace(c, volumes=(kept,)) for c in spec.containers)
    return replace(spec, containers=containers)


def test_kept_volumes_keep_their_slot_and_node() -> None:
    """With room everywhere, each instance is still replaced where its data is, one at a time."""
    snapshot = settled(submitted(ROOMY, keeping("a")))
    before = where(snapshot)
    snapshot = after(snapshot, submit(snapshot, keeping("b")))
    plan = planned(plan_rollout(snapshot))
    assert [(e.before, e.after) for e in plan.edits] == [
        (SlotState.RUNNING, SlotState.STOPPING),
        (None, SlotState.WAITING),
    ]
    assert plan.edits[0].instance == plan.edits[1].instance
    assert plan_rollout(after(snapshot, plan)) is None, "healthy before the next"
    snapshot = rolled_out(snapshot)
    assert {slot: text.split()[0] for slot, text in where(snapshot).items()} == {
        slot: text.split()[0] for slot, text in before.items()
    }
    assert {a.version for a in snapshot.instances(WEB)} == {2}


@pytest.mark.parametrize(
    ("rules", "left", "why_not"),
    [
        ({"max_per_node": 1}, 2, "at the job's limit of 1 per node"),
        ({"max_per_node": 2}, 1, "at the job's limit of 2 per node"),
        ({"max_per_node": 3}, 0, ""),
        (
            {"burst": Burst(after=2, nodes=("n2",))},
            1,
            "beyond the 2 instances that stay at home, the rest go to n2",
        ),
        (
            {"require": (LabelRule(label="role", values=("data",)),)},
            3,
            "without label role == data",
        ),
    ],
)
def test_kept_volumes_stay_old_where_the_new_version_may_not_be(
    rules: dict[str, object], left: int, why_not: str
) -> None:
    """Data is not left behind, and no rule is broken: they stay as they are, and it is told."""
    snapshot = settled(submitted(cluster(n1="4G"), keeping("a")))
    others = {n: node(n, labels={"role": "data"}) for n in ("n2", "n3", "n4")}
    joined = {NodeName(n): there for n, there in others.items()}
    snapshot = replace(snapshot, nodes={**snapshot.nodes, **joined})
    plan = planned(submit(snapshot, keeping("b", **rules)))
    document = foretold(snapshot, plan)
    assert len(document["place"]) == len(document["stop"]) == 3 - left
    words = f"version 1 stays: its kept volumes are on n1, which is {why_not}"
    assert [(s["node"], s["reason"]) for s in document["stay"]] == [("n1", words)] * left
    snapshot = rolled_out(after(snapshot, plan))
    assert sorted(where(snapshot).values()) == ["n1 v1 running"] * left + ["n1 v2 running"] * (
        3 - left
    )
    names = [s["instance"] for s in document["stay"]]
    assert {f"web-{a.slot}" for a in snapshot.instances(WEB) if a.version == 1} == {*names}
    lines = why(snapshot, WEB, ())
    for name in names:
        line = f"{name} of version 1 stays: its kept volumes are on n1, which is {why_not}."
        assert line in lines
    assert not any("fits nowhere" in line for line in lines)


def test_kept_volumes_of_a_burst_are_replaced_where_they_are() -> None:
    """The one that is away, whatever is replaced before it."""
    burst = Burst(after=2, nodes=("n3",))
    snapshot = settled(submitted(ROOMY, keeping("a", burst=burst)))
    snapshot = rolled_out(submitted(snapshot, keeping("b", burst=burst)))
    assert {a.version for a in snapshot.instances(WEB)} == {2}
    assert sum(a.node == "n3" for a in snapshot.instances(WEB)) == 1
