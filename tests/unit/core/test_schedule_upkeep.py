"""What peers do of their own accord: pending, repair, tidying, vacating."""

from ozymandias.core.apply import apply
from ozymandias.core.arbiter import propose
from ozymandias.core.pods import pod_id
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.schedule import (
    pending_of,
    plan_pending,
    plan_repair,
    plan_restart,
    plan_scale,
    plan_stop,
    plan_tidy,
    plan_vacate,
)
from ozymandias.core.upkeep import VERSIONS_KEPT
from ozymandias.core.vacate import plan_admit
from ozymandias.model.instance import Assignment, Group, Slots, SlotState
from ozymandias.model.job import Volume, VolumeKind
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import parse_size
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
    running_pods,
    settled,
    spread,
    submit,
    submitted,
    vacated,
    where,
)

THREE = cluster(n1="4G", n2="4G", n3="4G")
N1, N2, N3 = (NodeName(n) for n in ("n1", "n2", "n3"))


def repaired(snapshot: Snapshot, *names: str) -> Snapshot:
    gone = lost(snapshot, *names)
    return after(gone, plan_repair(gone, frozenset(map(NodeName, names))))


# Repair -------------------------------------------------------------------------------------------


def test_lost_instances_move_and_keep_their_slots() -> None:
    """Everything of the dead node goes elsewhere in one plan, which says that it was lost."""
    snapshot = lost(settled(submitted(THREE, job(instances=3))), "n3")
    plan = planned(plan_repair(snapshot, frozenset({N3})))
    gone, come = plan.edits
    assert plan.dead == {N3} and gone.after is None and gone.slot == come.slot
    assert come.reason.startswith("n3 was lost; n")
    snapshot = after(snapshot, plan)
    assert spread(snapshot) == [2, 1]
    assert all(n != N3 for n, _ in snapshot.statuses)


def test_repair_places_what_fits_and_names_the_rest() -> None:
    """What does not fit is pending with numbers, and placed when room appears."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job(instances=2, memory="3G")))
    snapshot = lost(snapshot, "n2")
    plan = planned(plan_repair(snapshot, frozenset({N2})))
    assert [(p.job, p.count) for p in plan.pending] == [(WEB, 1)]
    snapshot = after(snapshot, plan)
    (pending,) = pending_of(snapshot)
    assert pending.reason == (
        "needs 3G of memory; n1 is 2G of memory short (1G free), n2 is not alive"
    )
    assert plan_pending(snapshot) is None
    snapshot = returned(snapshot, "n2")
    assert spread(after(snapshot, plan_pending(snapshot))) == [1, 1]


def test_starved_jobs_are_repaired_first() -> None:
    """A job with nothing left comes before one that lost one of two."""
    nodes = cluster(n1="3G", n2="3G")
    snapshot = settled(submitted(nodes, job("a", 2, "1G"), job("z", 1, "2G")))
    (z,) = snapshot.instances(key("z"))
    plan = planned(plan_repair(lost(snapshot, z.node), frozenset({z.node})))
    assert [e.job.name for e in plan.edits if e.before is None] == ["z"]
    assert [p.job.name for p in plan.pending] == ["a"]


def test_nothing_to_repair() -> None:
    """A dead node with nothing on it, one that is back, one that is unknown: nothing to do."""
    snapshot = settled(submitted(THREE, job()))
    (there,) = snapshot.instances(WEB)
    (empty, *_) = sorted(set(THREE.nodes) - {there.node})
    assert plan_repair(lost(snapshot, empty), frozenset({empty})) is None
    assert plan_repair(snapshot, frozenset({there.node})) is None
    assert plan_repair(snapshot, frozenset({NodeName("n9")})) is None
    again = repaired(snapshot, there.node)
    assert plan_repair(again, frozenset({there.node})) is None


def test_stopping_ones_are_just_lost() -> None:
    """What was stopping on a dead node is gone; a job being deleted is not placed again."""
    snapshot = settled(submitted(THREE, job()))
    (there,) = snapshot.instances(WEB)
    snapshot = repaired(after(snapshot, plan_stop(snapshot, WEB)), there.node)
    assert where(snapshot) == {}
    assert WEB not in after(snapshot, plan_tidy(snapshot)).jobs


def test_lost_instance_keeps_its_version_during_a_rollout() -> None:
    """A node lost in the middle of a rollout does not push a version nobody saw healthy."""
    snapshot = settled(submitted(THREE, job(instances=3)))
    snapshot = after(snapshot, submit(snapshot, job(instances=3, image="b")))
    snapshot = repaired(snapshot, "n2")
    assert {a.version for a in snapshot.instances(WEB)} == {1}


def test_slot_still_stopping_elsewhere_is_not_used_again() -> None:
    """A node that came back with a pod of the slot keeps the number until the pod is gone."""
    snapshot = settled(submitted(THREE, job()))
    (there,) = snapshot.instances(WEB)
    snapshot = repaired(snapshot, there.node)
    (second,) = snapshot.instances(WEB)
    stopping = Group(
        uid=there.uid,
        version=1,
        state=SlotState.STOPPING,
        slots=Slots.of([there.slot]),
        demand=there.demand,
    )
    found = Assignment(node=there.node, job=WEB, groups=(stopping,))
    snapshot = replace(
        returned(snapshot, there.node),
        assignments={**snapshot.assignments, (there.node, WEB): found},
    )
    gone = lost(snapshot, second.node)
    plan = planned(plan_repair(gone, frozenset({second.node})))
    assert [e.slot for e in plan.edits if e.before is None] == [1]


# Pending ------------------------------------------------------------------------------------------


def test_nothing_pending() -> None:
    """With all that is wanted live, there is no plan and nothing is listed."""
    snapshot = submitted(THREE, job(instances=3), job("b"))
    assert plan_pending(snapshot) is None and pending_of(snapshot) == ()


def test_pending_is_idempotent() -> None:
    """Once placed, nothing is left to place."""
    snapshot = repaired(settled(submitted(cluster(n1="2G", n2="2G"), job(instances=4))), "n2")
    assert sum(p.count for p in pending_of(snapshot)) == 2
    snapshot = returned(snapshot, "n2")
    assert pending_of(snapshot)[0].reason == "there is room; it is placed in a moment"
    snapshot = after(snapshot, plan_pending(snapshot))
    assert plan_pending(snapshot) is None and spread(snapshot) == [2, 2]


def test_pending_takes_only_room_that_is_really_free() -> None:
    """What still stops holds its room; nothing pending is put on top of it."""
    snapshot = settled(submitted(cluster(n1="2G", n2="2G"), job("old", 1, "2G"), job(memory="2G")))
    (web,) = snapshot.instances(WEB)
    snapshot = repaired(snapshot, web.node)
    snapshot = after(snapshot, plan_stop(snapshot, key("old")))
    assert plan_pending(snapshot) is None
    assert len(spread(after(vacated(snapshot), plan_pending(vacated(snapshot))))) == 1


# Vacate -------------------------------------------------------------------------------------------


def test_stopping_slots_are_released_when_their_pod_is_gone() -> None:
    """A pod that is still there keeps its entry, and so its room."""
    snapshot = settled(submitted(cluster(n1="4G"), job(instances=2)))
    snapshot = after(snapshot, plan_scale(snapshot, WEB, 0))
    pods = {a.slot: pod_id(a) for a in snapshot.instances(WEB)}
    assert plan_vacate(snapshot, N1, frozenset(pods.values())) is None
    snapshot = after(snapshot, plan_vacate(snapshot, N1, frozenset({pods[1]})))
    assert where(snapshot) == {"1*": "n1 v1 stopping"}
    assert plan_vacate(snapshot, N2, frozenset()) is None


def narrow(snapshot: Snapshot) -> Snapshot:
    """The first node does not schedule."""
    there = snapshot.nodes[N1]
    presence = replace(there.presence, schedules=False) if there.presence else None
    return replace(snapshot, nodes={**snapshot.nodes, N1: replace(there, presence=presence)})


def test_a_node_that_does_not_schedule_lets_go_and_a_peer_admits() -> None:
    """It can't see where else a slot is stopping: whoever does lets run what has waited."""
    snapshot = narrow(settled(submitted(cluster(n1="4G"), job(memory="3G"))))
    snapshot = after(snapshot, plan_restart(snapshot, WEB))
    snapshot = after(snapshot, plan_rollout(snapshot))
    assert plan_admit(snapshot) is None
    snapshot = after(snapshot, plan_vacate(snapshot, N1, frozenset()))
    assert where(snapshot) == {"0": "n1 v1 waiting"}
    assert plan_vacate(snapshot, N1, frozenset()) is None
    snapshot = after(snapshot, plan_admit(snapshot))
    assert where(snapshot) == {"0": "n1 v1 running"}
    assert plan_admit(snapshot) is None


def shrunk(snapshot: Snapshot, name: NodeName, memory: str) -> Snapshot:
    """The node came back with less memory than it had."""
    there = snapshot.nodes[name]
    capacity = replace(there.ledger.capacity, memory_bytes=parse_size(memory))
    ledger = replace(there.ledger, capacity=capacity)
    return replace(snapshot, nodes={**snapshot.nodes, name: replace(there, ledger=ledger)})


def test_what_waits_on_a_node_that_has_become_too_small_goes_elsewhere() -> None:
    """Else it would wait for ever, and its job's rollout with it."""
    snapshot = settled(submitted(cluster(n1="4G"), job(memory="3G")))
    snapshot = after(snapshot, plan_restart(snapshot, WEB))
    snapshot = after(snapshot, plan_rollout(snapshot))
    small = shrunk(snapshot, N1, "2G")
    snapshot = replace(small, nodes={**small.nodes, N2: node("n2", "4G")})
    snapshot = apply(snapshot, planned(plan_vacate(snapshot, N1, frozenset())))
    assert where(snapshot) == {"0": "n1 v1 waiting"}
    snapshot = after(snapshot, plan_admit(snapshot))
    snapshot = settled(after(snapshot, plan_pending(snapshot)))
    assert where(snapshot) == {"0": "n2 v1 running"}
    assert propose(snapshot, frozenset()) is None


def test_of_those_that_wait_where_not_all_will_fit_the_lowest_leave() -> None:
    """As few as will do; whose kept volumes are there goes on waiting."""
    kept = Volume(kind=VolumeKind.LOCAL, name="d", path="/d", space_bytes=0, keep=True)
    jobs = [job(name, memory="1G", priority=p) for name, p in (("a", 1), ("b", 9), ("c", 5))]
    data = job("data", memory="1G")
    data = replace(data, containers=(replace(data.containers[0], volumes=(kept,)),))
    snapshot = narrow(settled(submitted(cluster(n1="4G"), *jobs, data)))
    for name in ("a", "b", "c", "data"):
        snapshot = after(snapshot, plan_restart(snapshot, key(name)))
    snapshot = after(snapshot, plan_rollout(snapshot))
    small = apply(shrunk(snapshot, N1, "2G"), planned(plan_vacate(snapshot, N1, frozenset())))
    plan = planned(plan_admit(small))
    assert [str(edit.instance) for edit in plan.edits] == ["a-0", "c-0"]
    fitting = after(small, plan)
    states = {str(a.instance): a.state for a in after(fitting, plan_admit(fitting)).instances()}
    assert states == {"b-0": SlotState.RUNNING, "data-0": SlotState.RUNNING}


def test_waiting_slot_runs_when_its_slot_is_stopping_nowhere() -> None:
    """Stop-first hands the slot and the room over in one transaction."""
    snapshot = settled(submitted(cluster(n1="4G"), job(memory="3G")))
    old = running_pods(snapshot)
    snapshot = after(snapshot, plan_restart(snapshot, WEB))
    snapshot = after(snapshot, plan_rollout(snapshot))
    assert where(snapshot) == {"0": "n1 v1 waiting", "0*": "n1 v1 stopping"}
    assert plan_vacate(snapshot, N1, old) is None
    plan = planned(plan_vacate(snapshot, N1, frozenset()))
    assert [(e.before, e.after) for e in plan.edits] == [
        (SlotState.STOPPING, None),
        (SlotState.WAITING, SlotState.RUNNING),
    ]
    assert where(after(snapshot, plan)) == {"0": "n1 v1 running"}


def test_as_many_run_as_fit() -> None:
    """Of two that wait, one runs when there is room for one."""
    snapshot = settled(submitted(cluster(n1="4G"), job("a", 2, "2G")))
    pods = running_pods(snapshot)
    snapshot = after(snapshot, plan_stop(snapshot, key("a")))
    snapshot = submitted(snapshot, job(instances=2, memory="2G"))
    snapshot = after(snapshot, plan_vacate(snapshot, N1, frozenset(sorted(pods)[:1])))
    assert sorted(where(snapshot).values()) == ["n1 v1 running", "n1 v1 waiting"]


# Tidy ---------------------------------------------------------------------------------------------


def test_tidy_ends_a_stopped_job() -> None:
    """The head goes when the last instance is gone, and not before."""
    snapshot = settled(submitted(THREE, job()))
    snapshot = after(snapshot, plan_stop(snapshot, WEB))
    assert plan_tidy(snapshot) is None
    snapshot = vacated(snapshot)
    assert WEB not in after(snapshot, plan_tidy(snapshot)).jobs


def test_old_versions_are_forgotten() -> None:
    """The last twenty stay, and those that an instance still has."""
    snapshot = submitted(THREE, job())
    for number in range(VERSIONS_KEPT + 3):
        snapshot = submitted(snapshot, job(image=str(number)))
    snapshot = after(snapshot, plan_tidy(snapshot))
    kept = sorted(snapshot.jobs[WEB].versions)
    assert kept[0] == 1 and len(kept) == VERSIONS_KEPT + 1
    assert plan_tidy(snapshot) is None


def test_cordoned_and_degraded_nodes_get_nothing() -> None:
    """Pending instances wait rather than go where no work is taken."""
    snapshot = settled(submitted(cluster(n1="4G"), job()))
    snapshot = repaired(snapshot, "n1")
    others = {n.name: n for n in (node("n2", cordoned=True), node("n3", degraded="no podman"))}
    snapshot = replace(snapshot, nodes={**snapshot.nodes, **others})
    assert plan_pending(snapshot) is None
    assert "n2 is cordoned, n3 is degraded: no podman" in pending_of(snapshot)[0].reason
    assert plan_pending(report(returned(snapshot, "n1"))) is not None
