"""What a returning node goes on with: pods that run there and that nobody else was given."""

import pytest

from ozymandias.core.nodes import plan_begin_drain, plan_cordon
from ozymandias.core.pods import pod_id
from ozymandias.core.reclaim import reclaim
from ozymandias.core.schedule import (
    plan_pending,
    plan_repair,
    plan_restart,
    plan_scale,
    plan_stop,
)
from ozymandias.model.job import (
    Job,
    JobKey,
    JobKind,
    LabelRule,
    NetworkMode,
    OnPartition,
    PlacementRules,
)
from ozymandias.model.node import Drain, Node, NodeName, Resources
from ozymandias.model.pod import PodId
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
    report,
    settled,
    submit,
    submitted,
    vacated,
)

N3 = NodeName("n3")
FULL = {"n1": "4G", "n2": "4G", "n3": "4G"}  # for instances of 3G, one on each
Pods = frozenset[PodId]


def pods_on(snapshot: Snapshot, name: str = "n3") -> Pods:
    return frozenset(pod_id(a) for a in snapshot.instances_on(NodeName(name)))


def given_up(snapshot: Snapshot, *names: str) -> Snapshot:
    """These nodes are gone, and everything that fits elsewhere is there."""
    snapshot = lost(snapshot, *names)
    return after(snapshot, plan_repair(snapshot, frozenset(map(NodeName, names))))


def away(*jobs: Job, **nodes: Node) -> tuple[Snapshot, Pods]:
    """A full cluster that gave n3 up, and what n3 runs all the while."""
    there = [nodes.get(name, node(name, memory)) for name, memory in FULL.items()]
    snapshot = report(submitted(cluster(*there), *(jobs or (job(instances=3, memory="3G"),))))
    return given_up(snapshot, "n3"), pods_on(snapshot)


def back(snapshot: Snapshot, name: str = "n3", **ledger: object) -> Node:
    """The node as it is about to join, with these parts of its ledger as they are now."""
    found = snapshot.nodes[NodeName(name)]
    return replace(found, ledger=replace(found.ledger, **ledger))  # type: ignore[arg-type]


def kept(snapshot: Snapshot, pods: Pods, joining: Node | None = None) -> Pods:
    """What goes on when all of these pods run."""
    return reclaim(snapshot, joining or back(snapshot), pods, pods)


def slots(pods: Pods) -> list[int]:
    return sorted(pod.slot for pod in pods)


def labelled(rule: str, *values: str) -> PlacementRules:
    return PlacementRules(require=(LabelRule(label=rule, values=values),))


# Kept -------------------------------------------------------------------------------------------


def test_what_nobody_could_place_goes_on() -> None:
    """Its slot is pending, the pod runs and is the same in slot, version and generation."""
    snapshot, pods = away()
    assert len(pods) == 1 and kept(snapshot, pods) == pods


def test_all_that_was_there_goes_on_together() -> None:
    """Several instances of several jobs: what fitted before fits now."""
    jobs = (job("a", 6, "1G"), job("b", 3, "2G"))
    snapshot, pods = away(*jobs)
    assert len(pods) == 3 and kept(snapshot, pods) == pods


def test_a_slot_that_came_to_stop_elsewhere_goes_on_here() -> None:
    """Moved, then stopped there as well and gone: it is pending once more."""
    before = report(submitted(cluster(n1="4G", n3="4G"), job(memory="3G")))
    (home,) = {a.node for a in before.instances()}
    pods = pods_on(before, home)
    moved = given_up(before, home)
    (other,) = {a.node for a in moved.instances()}
    assert other != home and kept(moved, pods, back(moved, home)) == frozenset()
    lost_again = given_up(moved, other)
    assert not list(lost_again.instances())
    assert kept(lost_again, pods, back(lost_again, home)) == pods


def test_who_returns_first_has_it() -> None:
    """Two nodes ran the same slot, one after the other, and both were given up."""
    before = report(submitted(cluster(n1="4G", n3="4G"), job(memory="3G")))
    (home,) = {a.node for a in before.instances()}
    moved = given_up(before, home)
    (other,) = {a.node for a in moved.instances()}
    empty = given_up(moved, other)
    for first, second in ((home, other), (other, home)):
        runs = {home: pods_on(before, home), other: pods_on(moved, other)}
        assert kept(empty, runs[first], back(empty, first)) == runs[first]
        joined = before if first == home else moved  # the slot is assigned to the first again
        assert kept(joined, runs[second], back(joined, second)) == frozenset()


def test_all_nodes_were_given_up() -> None:
    """Whoever returns goes on with its own, though no peer is there."""
    before = report(submitted(cluster(**FULL), job(instances=3, memory="3G")))
    empty = given_up(before, "n1", "n2", "n3")
    for name in FULL:
        pods = pods_on(before, name)
        assert pods and kept(empty, pods, back(empty, name)) == pods


def test_a_cordoned_node_keeps_what_belongs_to_nodes() -> None:
    """It gets no new work, and what was given up is that; its system jobs go on."""
    dns = job("dns", 1, "1G", kind=JobKind.SYSTEM)
    snapshot, pods = away(job(instances=3, memory="3G"), dns)
    assert kept(snapshot, pods) == pods
    assert {pod.key for pod in kept(after(snapshot, plan_cordon(snapshot, N3)), pods)} == {dns.key}


def test_scaled_down_but_not_to_what_is_left() -> None:
    """Three became two, one is left elsewhere: of two on the node one goes on, the lowest slot."""
    jobs = (job(instances=4, memory="1500M"), job("rest", 1, "1G"))
    before = report(submitted(cluster(n1="2G", n3="8G"), *jobs))
    pods = frozenset(pod for pod in pods_on(before) if pod.key == WEB)
    snapshot = given_up(before, "n3")
    left = len(list(snapshot.instances(WEB)))
    snapshot = after(snapshot, plan_scale(snapshot, WEB, left + 1))
    assert slots(kept(snapshot, pods)) == slots(pods)[:1]


def test_a_system_job_is_where_it_was() -> None:
    """Nobody places a node's own instance elsewhere: it goes on, whatever its head says."""
    snapshot, pods = away(job("dns", 1, "1G", kind=JobKind.SYSTEM))
    assert len(pods) == 1 and kept(snapshot, pods) == pods


# Not kept ---------------------------------------------------------------------------------------


def test_what_was_moved_does_not_go_on() -> None:
    """Its slot runs elsewhere: one of them is enough."""
    snapshot, pods = away(job(instances=3, memory="1G"))
    assert len(list(snapshot.instances(WEB))) == 3
    assert len(pods) == 1 and not kept(snapshot, pods)


def test_what_still_stops_elsewhere_does_not_go_on() -> None:
    """The slot is not free before the pod there is gone."""
    before = report(submitted(cluster(n1="4G", n3="4G"), job(memory="3G")))
    (home,) = {a.node for a in before.instances()}
    snapshot = given_up(before, home)
    snapshot = after(snapshot, plan_scale(snapshot, WEB, 0))
    record = snapshot.jobs[WEB]
    wanted = replace(record, head=replace(record.head, wanted=1))
    snapshot = replace(snapshot, jobs={WEB: wanted})
    assert [a.state for a in snapshot.instances()] == ["stopping"]
    assert not kept(snapshot, pods_on(before, home), back(snapshot, home))
    gone = vacated(snapshot)
    assert kept(gone, pods_on(before, home), back(gone, home)) == pods_on(before, home)


def test_another_took_the_place() -> None:
    """A node joined meanwhile and was given the pending slot before the old one came back."""
    snapshot, pods = away()
    snapshot = replace(snapshot, nodes={**snapshot.nodes, NodeName("n4"): node("n4")})
    assert kept(snapshot, pods) == pods
    assert not kept(after(snapshot, plan_pending(snapshot)), pods)


def test_a_changed_job_does_not_go_on_with_the_old_version() -> None:
    """What is pending is the new version."""
    snapshot, pods = away()
    changed = after(snapshot, submit(snapshot, job(instances=3, memory="1G")))
    assert not kept(changed, pods)


def test_a_restarted_job_does_not_go_on_with_the_old_generation() -> None:
    """`ozy restart` asked for new instances, of this one too."""
    snapshot, pods = away()
    assert not kept(after(snapshot, plan_restart(snapshot, WEB)), pods)


def test_a_stopped_job_does_not_go_on() -> None:
    """Nor does one that is gone, or another of the same name."""
    snapshot, pods = away()
    stopped = after(snapshot, plan_stop(snapshot, WEB))
    assert not kept(stopped, pods)
    gone = replace(stopped, jobs={})
    assert not kept(gone, pods)
    assert not kept(snapshot, frozenset(pod._replace(uid="another") for pod in pods))
    dns = job("dns", 1, "1G", kind=JobKind.SYSTEM)
    snapshot, pods = away(dns)
    assert not kept(after(snapshot, plan_stop(snapshot, dns.key)), pods)


def test_scaled_down_to_what_is_left() -> None:
    """Nothing is missing any more."""
    snapshot, pods = away()
    assert not kept(after(snapshot, plan_scale(snapshot, WEB, 2)), pods)


def test_a_version_that_cannot_be_read() -> None:
    """Nobody knows what it needs or where it may run."""
    snapshot, pods = away()
    record = snapshot.jobs[WEB]
    assert not kept(replace(snapshot, jobs={WEB: replace(record, versions={})}), pods)


def test_what_does_not_run_is_not_kept() -> None:
    """After a power cut, or when a guard has ended it: it can as well start where it is best."""
    for rules in (OnPartition.KEEP, OnPartition.STOP):
        snapshot, pods = away(job(instances=3, memory="3G", on_partition=rules))
        assert pods and reclaim(snapshot, back(snapshot), pods, frozenset()) == frozenset()


def test_two_pods_of_one_slot() -> None:
    """A run from before is still there: it has to go first, and nothing runs beside it."""
    snapshot, pods = away()
    (pod,) = pods
    both = pods | {pod._replace(version=pod.version + 1)}
    assert not reclaim(snapshot, back(snapshot), both, pods)


def test_a_drained_node_gives_everything_away() -> None:
    """It is to be empty; what runs there starts elsewhere once there is room."""
    snapshot, pods = away()
    plan = plan_begin_drain(snapshot, N3, Drain(since=1.0))
    assert not kept(after(snapshot, plan), pods)


def test_labels_that_changed() -> None:
    """A required label is gone, by the node's settings or the operator's: not here any more."""
    disk = {"disk": "ssd"}
    web = job(instances=3, memory="3G", placement=labelled("disk", "ssd"))
    snapshot, pods = away(web, **{n: node(n, "4G", labels=disk) for n in FULL})
    assert kept(snapshot, pods) == pods
    assert not kept(snapshot, pods, back(snapshot, labels={"disk": "hdd"}))
    assert not kept(snapshot, pods, back(snapshot, set_labels={"disk": ""}))


def test_no_more_than_a_node_may_have() -> None:
    """A limit per node counts what is assigned there and what is taken over."""
    web = job(instances=3, memory="1G", placement=PlacementRules(max_per_node=1))
    snapshot, pods = away(web)
    (pod,) = pods
    assert kept(snapshot, pods) == pods  # the others have one each
    record = snapshot.jobs[WEB]
    more = replace(record, head=replace(record.head, wanted=5))
    snapshot = replace(snapshot, jobs={WEB: more})
    two = pods | {pod._replace(slot=7)}
    assert slots(kept(snapshot, two)) == [pod.slot]
    never_given_up = submitted(cluster(**FULL), web)
    never_given_up = replace(never_given_up, jobs={WEB: more})
    assert not kept(never_given_up, frozenset({pod._replace(slot=7)}))


def test_a_host_port_that_is_taken() -> None:
    """What is assigned to the node has the port; a pod that was given up can't claim it back."""
    one, other = job("one", 1, "1G", host_port=80), job("other", 1, "1G", host_port=80)
    before = report(submitted(cluster(n3="4G"), one))
    pods = pods_on(before)
    snapshot = given_up(before, "n3")
    assert kept(snapshot, pods) == pods
    taken = replace(submitted(cluster(n3="4G"), other), jobs=dict(snapshot.jobs))
    assert not kept(taken, pods, taken.nodes[N3])


def test_less_room_than_before() -> None:
    """The node came back smaller: the higher priority goes on, then what fits beside it."""
    jobs = (
        job("a-low", 1, "1G"),
        job("b-high", 1, "2G", priority=50),
        job("dns", 1, "1G", kind=JobKind.SYSTEM),
    )
    before = report(submitted(cluster(n3="4G"), *jobs))
    pods, snapshot = pods_on(before), given_up(before, "n3")

    def names(memory: str) -> set[str]:
        size = Resources(memory_bytes=parse_size(memory), disk_bytes=parse_size("10G"))
        return {pod.job for pod in kept(snapshot, pods, back(snapshot, capacity=size))}

    assert names("4G") == {"dns", "b-high", "a-low"}
    assert names("3G") == {"dns", "b-high"}
    assert names("2G") == {"dns", "a-low"}
    assert names("1G") == {"dns"}
    assert names("512M") == set()


@pytest.mark.parametrize("priority", [50, 10, 5])
def test_what_is_more_important_and_lacks_the_room(priority: int) -> None:
    """Lost with another node and pending, it has the room before what runs; an equal has not."""
    low, other = job("a-low", 1, "3G", priority=10), job("other", 1, "3G", priority=priority)
    before = report(submitted(cluster(n3="4G"), low))
    lacking = submitted(replace(cluster(n2="4G"), jobs=dict(before.jobs)), other)
    both = replace(
        before,
        nodes={**before.nodes, **lacking.nodes},
        jobs=lacking.jobs,
        assignments={**before.assignments, **lacking.assignments},
    )
    snapshot = given_up(both, "n2", "n3")
    expected = frozenset() if priority > 10 else pods_on(before)
    assert kept(snapshot, pods_on(before)) == expected


def test_what_is_assigned_there_comes_first() -> None:
    """Something on the node was never given up: what it takes is not there for others."""
    before = report(submitted(cluster(n3="4G"), job("web", 1, "3G"), job("db", 1, "1G")))
    pods = frozenset(pod for pod in pods_on(before) if pod.key == WEB)
    snapshot = given_up(before, "n3")
    assert kept(snapshot, pods) == pods
    assert not kept(snapshot, pods, back(snapshot, promised=before.nodes[N3].ledger.promised))


def test_a_system_job_that_is_there_already() -> None:
    """One on every node: a second one, left from before, does not go on beside it."""
    dns = job("dns", 1, "1G", kind=JobKind.SYSTEM)
    snapshot = settled(submitted(cluster(n3="4G"), dns))
    (pod,) = pods_on(snapshot)
    assert not kept(snapshot, frozenset({pod._replace(slot=5)}), snapshot.nodes[N3])


@pytest.mark.parametrize("allowed", [True, False])
def test_the_hosts_own_network(allowed: bool) -> None:
    """A node that no longer allows it on its own network does not go on with it."""
    dns = job("dns", 1, "1G", kind=JobKind.SYSTEM, network=NetworkMode.HOST)
    snapshot, pods = away(dns, **{n: node(n, "4G", host_network=True) for n in FULL})
    found = kept(snapshot, pods, back(snapshot, allows_host_network=allowed))
    assert found == (pods if allowed else frozenset())


def test_nothing_of_a_job_that_lacks_nothing_here() -> None:
    """What one job lacks is nothing that another's pod could make up for."""
    snapshot, pods = away()
    other: JobKey = key("other")
    (pod,) = pods
    assert not kept(snapshot, frozenset({pod._replace(job=other.name)}))
