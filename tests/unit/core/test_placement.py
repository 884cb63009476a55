"""Feasible, score, fit."""

from ozymandias.core.placement import Ask, most_that_fit, place
from ozymandias.core.rooms import NOW, NOW_OR_SOON, rooms_of
from ozymandias.core.schedule import plan_stop
from ozymandias.model.instance import SlotState
from ozymandias.model.node import Demand, HostPort, NodeName
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import after, cluster, job, key, node, settled, submitted

GIB = 2**30


def ask(name: str = "web", memory: int = GIB, **rest: int | tuple[HostPort, ...]) -> Ask:
    demand = Demand(memory_bytes=memory, **rest)  # type: ignore[arg-type]
    return Ask(job=key(name), version=1, demand=demand)


def places(snapshot: Snapshot, what: Ask, count: int, **apart_from: int) -> list[str]:
    there = {NodeName(n): c for n, c in apart_from.items()}
    return [p.node for p in place(rooms_of(snapshot), what, count, there)]


def test_apart_before_packed() -> None:
    """A node with an instance of the job comes after every node without one."""
    snapshot = cluster(n1="8G", n2="8G", n3="8G")
    assert set(places(snapshot, ask(), 2, n1=1)) == {"n2", "n3"}
    assert sorted(places(snapshot, ask(), 5, n1=1)) == ["n1", "n2", "n2", "n3", "n3"]


def test_pack_up_to_the_target_then_spread() -> None:
    """The fullest node below 70 % is taken first; beyond, the emptiest."""
    half = submitted(cluster(n1="10G"), job("other", memory="5G"))
    both = Snapshot(nodes={**half.nodes, **cluster(n2="10G").nodes}, assignments=half.assignments)
    assert places(both, ask(), 1) == ["n1"]
    assert places(both, ask(memory=3 * GIB), 1) == ["n2"]


def test_different_jobs_start_at_different_nodes() -> None:
    """On nodes as empty as each other a hash of job, version and node decides."""
    snapshot = cluster(*(node(f"n{i}") for i in range(8)))
    first = {places(snapshot, ask(f"job-{i}"), 1)[0] for i in range(20)}
    assert len(first) > 4
    assert places(snapshot, ask("a"), 3) == places(snapshot, ask("a"), 3)


def test_ports_are_had_once_per_node() -> None:
    """Host ports limit to one instance per node, and one that is taken to none."""
    port = HostPort(port=80)
    snapshot = submitted(cluster(n1="8G", n2="8G", n3="8G"), job("other", host_port=80))
    assert len(places(snapshot, ask(host_ports=(port,)), 9)) == 2
    assert most_that_fit(rooms_of(snapshot), ask(host_ports=(port,)).demand, 9) == 2


def test_room_that_is_being_vacated() -> None:
    """What stops still holds its room: nothing runs there yet, but it can wait there."""
    snapshot = settled(submitted(cluster(n1="4G"), job("old", memory="3G")))
    snapshot = after(snapshot, plan_stop(snapshot, key("old")))
    assert place(rooms_of(snapshot), ask(memory=2 * GIB), 3, {}, NOW) == []
    (first, second) = place(rooms_of(snapshot), ask(memory=2 * GIB), 3, {}, NOW_OR_SOON)
    assert {first.state, second.state} == {SlotState.WAITING}
    assert "once what stops there is gone" in first.reason


def test_closed_nodes_are_no_rooms() -> None:
    """Cordoned, degraded and absent nodes are not even considered."""
    closed = (node("a", cordoned=True), node("b", degraded="x"), node("c", alive=False))
    assert list(rooms_of(cluster(*closed, node("d")))) == ["d"]


def test_score_is_recorded() -> None:
    """Each placement carries the terms that made its node the best."""
    (only,) = place(rooms_of(cluster(n1="4G")), ask(), 1, {NodeName("n1"): 2})
    assert only.score == (("same_job", 2.0), ("memory_after", 0.25), ("below_target", 1.0))
    assert only.reason == (
        "n1 has no more other instances of web than any node with room (2) and 4G of 4G memory free"
    )
