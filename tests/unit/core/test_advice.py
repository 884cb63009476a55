"""Advice for what is pending: whoever follows it has all places; what would not help is not said.

Nothing here asks `advice` whether it is right: a suggestion is followed by hand, then the planners
are asked until they want nothing more, and the instances are counted.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ozymandias.core.advice import NODES_FEW, WORK_MAX, Refused, advice, readvising
from ozymandias.core.arbiter import propose
from ozymandias.core.explain import why
from ozymandias.core.preempt import AGAIN_SECONDS, Lately
from ozymandias.core.schedule import plan_scale
from ozymandias.core.stepwise import at_once
from ozymandias.core.whynot import why_not
from ozymandias.model.instance import SlotState
from ozymandias.model.job import (
    Burst,
    Job,
    JobKey,
    JobKind,
    LabelRule,
    LabelTest,
    Neighbour,
    PlacementRules,
)
from ozymandias.model.node import Drain, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import NodePool, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Table
from ozymandias.model.units import parse_size
from ozymandias.problems import Problem, suggestions_of
from tests.unit.core.builders import (
    WEB,
    after,
    cluster,
    job,
    key,
    lost,
    node,
    refused,
    report,
    settled,
    submit,
    submitted,
)
from tests.unit.core.following import changed_job, followed_by_operator
from tests.unit.core.test_labels import rule

PLANS_MAX = 300
DRAINED = node("n1", "8G", drain=Drain(since=1.0))


def wanting(snapshot: Snapshot, **counts: int) -> Snapshot:
    """These jobs want so many, whether or not there is room."""
    jobs = dict(snapshot.jobs)
    for name, count in counts.items():
        record = jobs[key(name)]
        jobs[key(name)] = replace(record, head=replace(record.head, wanted=count))
    return replace(snapshot, jobs=jobs)


def waiting(snapshot: Snapshot, *jobs: Job) -> Snapshot:
    """Jobs that are there, and of which nothing has found a place yet."""
    for wanted in jobs:
        snapshot = submitted(snapshot, replace(wanted, instances=0))
        snapshot = wanting(snapshot, **{wanted.name: wanted.instances})
    return snapshot


def rested(snapshot: Snapshot) -> Snapshot:
    """The cluster when nobody wants anything more, if all goes well."""
    snapshot = settled(snapshot)
    # The minute is over in which those may not be displaced that were before.
    before = {d: 0.0 for there in snapshot.nodes.values() for d in there.ledger.displaced}
    lately = Lately(wall=0.0, boot=AGAIN_SECONDS, seen=before)
    for _ in range(PLANS_MAX):
        dead = frozenset(name for name, there in snapshot.nodes.items() if not there.is_alive)
        proposal = propose(snapshot, dead, 0.0, dead, lately)
        if proposal is None:
            return snapshot
        snapshot = settled(after(snapshot, proposal.plan))
    raise AssertionError("does not come to rest")


def followed(snapshot: Snapshot, name: JobKey, change: dict[str, object]) -> Snapshot | None:
    """The cluster after somebody did what a suggestion says, and nothing else; None: refused."""
    if world := followed_by_operator(snapshot, change):
        return world
    (what, value), *_ = change.items()
    if what == "numInstances":
        assert isinstance(value, int)
        decision = plan_scale(snapshot, name, value)
    else:
        record = snapshot.jobs[name]
        assert record.current
        file = replace(record.current.job, instances=record.head.wanted)
        decision = submit(snapshot, changed_job(file, change))
    return after(snapshot, decision) if isinstance(decision, Plan) else None


def live(snapshot: Snapshot, name: JobKey = WEB) -> Counter[NodeName]:
    """How many of a job each node has."""
    found = (a.node for a in snapshot.instances(name) if a.state is not SlotState.STOPPING)
    return Counter(found)


def serves(snapshot: Snapshot, name: JobKey, change: dict[str, object]) -> bool:
    """Whether the job has all that it wants once somebody has followed the suggestion."""
    world = followed(snapshot, name, change)
    world = world and rested(world)
    return bool(world) and live(world, name).total() >= world.jobs[name].head.wanted


def changes(snapshot: Snapshot, name: JobKey = WEB) -> list[dict[str, object]]:
    return [dict(suggestion.change) for suggestion in advice(snapshot, name)]


def requiring(*texts: str, instances: int = 1, memory: str = "1G", **rest: object) -> Job:
    rules = PlacementRules(require=tuple(map(rule, texts)))
    return job("web", instances, memory, placement=rules, **rest)


# Nodes to add -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("zone != a",), "zone != a, "),
        (("cores > 4",), "cores=5, "),
        (("cores < 4", "cores > 3"), "cores=3.5, "),
        (("gpu exists",), "gpu=yes, "),
        (("zone in [a, b]", "zone != a"), "zone=b, "),
        (("zone == b", "cores > 4", "disk != hdd"), "zone=b, cores=5, disk != hdd, "),
    ],
)
def test_a_node_to_add_has_labels_that_satisfy_every_rule(
    texts: tuple[str, ...], words: str
) -> None:
    """Whatever the operators, a node is suggested, by the labels that it needs, and it helps."""
    away = {"zone": "a", "cores": "1", "disk": "hdd"}
    wanted = requiring(*texts)
    snapshot = waiting(cluster(node("n1", labels=away)), wanted)
    found = [s for s in advice(snapshot, WEB) if "nodes" in s.change]
    assert [s.text for s in found] == [
        f"add 1 node with {words}at least 1G of memory to allocate",
    ]
    assert serves(snapshot, WEB, dict(found[0].change))
    problem = submit(cluster(node("n1", labels=away)), wanted)
    assert not isinstance(problem, Plan) and found[0].text in problem.hint


def test_a_node_to_add_has_room_for_whoever_comes_first() -> None:
    """More important ones that wait too get theirs before, and so do equals that may."""
    snapshot = cluster(n1="256M")
    first, mine = job("high", 2, "512M", priority=5), job("web", 1, "512M", priority=1)
    snapshot = waiting(snapshot, first, mine)
    (found,) = [s for s in advice(snapshot, WEB) if "nodes" in s.change]
    assert found.text == (
        "add 1 node with at least 1536M of memory to allocate (1G for what comes first)"
    )
    assert serves(snapshot, WEB, dict(found.change))
    (alone,) = [s for s in advice(snapshot, key("high")) if "nodes" in s.change]
    assert alone.change == {"nodes": 1, "memory_bytes": 2**30, "disk_bytes": 0}


def test_who_could_not_be_on_a_node_needs_no_room_there() -> None:
    """A more important one that waits for other labels makes no difference."""
    snapshot = cluster(n1="256M")
    elsewhere = PlacementRules(require=(rule("zone == x"),))
    first = job("high", 2, "512M", priority=5, placement=elsewhere)
    snapshot = waiting(snapshot, first, job("other", 1, "512M", priority=5), job("web", 1, "512M"))
    (found,) = [s for s in advice(snapshot, WEB) if "nodes" in s.change]
    assert found.change["memory_bytes"] == parse_size("1G")


def test_a_node_to_add_has_room_for_its_system_jobs() -> None:
    """They come to every node that matches before anything else does."""
    agent = job("agent", 0, "300M", kind=JobKind.SYSTEM)
    other = PlacementRules(require=(rule("role == control"),))
    control = job("control", 0, "2G", kind=JobKind.SYSTEM, placement=other)
    snapshot = settled(submitted(cluster(n1="512M"), agent, control))
    text = "add 1 node with at least 1324M of memory to allocate (300M for system jobs)"
    problem = submit(snapshot, job("web", 1))
    assert not isinstance(problem, Plan) and text in problem.hint
    snapshot = waiting(snapshot, job("web", 1))
    (found,) = [s for s in advice(snapshot, WEB) if "nodes" in s.change]
    assert found.text == text
    assert serves(snapshot, WEB, dict(found.change))


def test_a_pool_and_a_requirement_hold_together() -> None:
    """The labels of a node to add, or to label, satisfy the namespace's pool as well."""
    pool = NodePool(namespace="default", require=(rule("zone in [a, b]"), rule("role == apps")))
    snapshot = replace(cluster(node("n1", labels={"zone": "a"})), settings=Settings(pools=(pool,)))
    snapshot = waiting(snapshot, requiring("zone != a"))
    labels = {"zone": "b", "role": "apps"}
    found = changes(snapshot)
    assert {"label": {"node": "n1", "labels": labels}} in found
    assert [c["labels"] for c in found if "nodes" in c] == [labels]
    assert all(serves(snapshot, WEB, change) for change in found)


def test_nodes_to_add_are_no_larger_than_they_need_to_be() -> None:
    """Four, at most three on a node, are two on each of two nodes, not three."""
    limited = job("web", 4, "256M", placement=PlacementRules(max_per_node=3))
    problem = refused(submit(cluster(n1="128M"), limited))
    assert "add 2 nodes with at least 512M of memory to allocate" in problem.hint


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (0, "add 1 node with at least 512M of memory to allocate"),
        (1, "add 2 nodes with at least 256M of memory to allocate"),
    ],
)
def test_nodes_to_add_are_for_home_where_the_rest_has_its_burst(limit: int, words: str) -> None:
    """Two are to be at home, for which there is no room; then others may go to the burst's node."""
    burst = Burst(after=2, nodes=("far",))
    wanted = job("web", 3, "256M", placement=PlacementRules(burst=burst, max_per_node=limit))
    problem = refused(submit(cluster(home="128M", far="4G"), wanted))
    assert problem.hint.endswith(words)


# What would not help ------------------------------------------------------------------------------


def test_a_node_that_others_would_fill_is_not_suggested() -> None:
    """It would have room for this job alone, but one of higher priority waits for the same."""
    snapshot = lost(cluster(n1="1G", n2="256M"), "n1")
    high, low = job("high", 2, "512M", priority=5), job("low", 1, "512M", priority=1)
    snapshot = waiting(snapshot, high, low)
    assert not any("start" in line for line in why(snapshot, key("low")))
    line = "All of them would have a place if you start n1 (where `ozy up` made it:"
    assert any(text.startswith(line) for text in why(snapshot, key("high")))


def test_of_several_nodes_the_one_that_helps_is_suggested() -> None:
    """The first that has room for the job alone is not enough: others come before it."""
    snapshot = lost(cluster(n1="1G", n2="2G", n3="256M"), "n1", "n2")
    snapshot = waiting(snapshot, job("high", 2, "512M", priority=5), job("web", 1, "512M"))
    assert {"start": ["n2"]} in changes(snapshot) and {"start": ["n1"]} not in changes(snapshot)
    shut = cluster(node("n1", "1G", cordoned=True), node("n2", "2G", cordoned=True))
    shut = waiting(shut, job("high", 2, "512M", priority=5), job("web", 1, "512M"))
    assert {"uncordon": "n2"} in changes(shut) and {"uncordon": "n1"} not in changes(shut)
    drain = Drain(since=1.0)
    drained = cluster(node("n1", "1G", drain=drain), node("n2", "2G", drain=drain))
    drained = waiting(drained, job("high", 2, "512M", priority=5), job("web", 1, "512M"))
    assert {"undrain": "n2"} in changes(drained) and {"undrain": "n1"} not in changes(drained)
    assert serves(drained, WEB, {"undrain": "n2"})
    assert "It would have a place if you undrain n2." in why(drained, WEB)


def test_to_end_a_drain_is_suggested_to_a_refused_job_too() -> None:
    """Where that alone opens the node: not if it is cordoned beside, not alive or degraded."""
    drain, wanted = Drain(since=1.0), job("web", 1, "2G")
    for beside in ({}, {"cordoned": True}, {"alive": False}, {"degraded": "podman hangs"}):
        snapshot = cluster(node("n1", "1G"), node("n2", "4G", drain=drain, **beside))
        if not beside:
            told = refused(submit(snapshot, wanted))
            assert told.hint.startswith("undrain n2; or ")
            assert isinstance(submit(followed(snapshot, WEB, {"undrain": "n2"}), wanted), Plan)
        for found in (refused(submit(snapshot, wanted)), readvised(snapshot, wanted)):
            assert ({"undrain": "n2"} in suggested_changes(found)) is (not beside)
            assert not any("uncordon" in change for change in suggested_changes(found))


def test_however_many_nodes_are_too_small_the_one_that_helps_is_suggested() -> None:
    """By its label, undrained, uncordoned or started: one after many, the first of two alike."""
    shut = {"uncordon": {"cordoned": True}, "undrain": {"drain": Drain(since=1.0)}}
    for change in ("label", "start", *shut):
        closed = shut.get(change, {})
        small = [node(f"n{number:03}", "256M", **closed) for number in range(300)]
        large = [node(name, "2G", **closed) for name in ("n300", "n301")]
        snapshot = cluster(*small, *large)
        if change == "start":
            snapshot = lost(snapshot, *snapshot.nodes)
        wanted = requiring("zone == a") if change == "label" else job("web", 1)
        found = refused(submit(snapshot, wanted)).fields["suggestions"]
        (value,) = [s["change"][change] for s in found if change in s["change"]]
        assert value in ({"node": "n300", "labels": {"zone": "a"}}, "n300", ["n300"])


# Smaller ------------------------------------------------------------------------------------------


def test_a_smaller_size_counts_what_is_replaced_as_well() -> None:
    """The running instances shrink with the job, so it may be larger than what is free now."""
    snapshot = settled(submitted(cluster(n1="1G"), job("web", 3, "300M")))
    snapshot = wanting(snapshot, web=4)
    (found,) = [c for c in changes(snapshot) if "containers.app.memory" in c]
    assert found == {"containers.app.memory": "256M"}
    assert serves(snapshot, WEB, found)
    assert not serves(snapshot, WEB, {"containers.app.memory": "272M"})
    there = why_not(snapshot, WEB, NodeName("n1")).suggestions
    assert [s.change for s in there] == [{"containers.app.memory": "256M"}]


def test_a_smaller_size_leaves_room_for_whoever_comes_first() -> None:
    """What is freed by shrinking goes to the more important one that waits, and then to this."""
    snapshot = settled(submitted(cluster(n1="1G"), job("web", 2, "500M")))
    snapshot = wanting(
        waiting(snapshot, job("high", 1, "200M", priority=5, may_preempt=False)), web=3
    )
    (found,) = [c for c in changes(snapshot) if "containers.app.memory" in c]
    assert found == {"containers.app.memory": "272M"}
    assert serves(snapshot, WEB, found)
    assert not serves(snapshot, WEB, {"containers.app.memory": "288M"})


def test_what_is_missing_comes_back_before_less_is_asked_for() -> None:
    """Who waits was accepted as it is: nodes first, less last. Who is refused may ask for less."""
    drain = Drain(since=1.0)
    shut = (node("n3", "4G", drain=drain), node("n4", "4G", cordoned=True))
    snapshot = lost(cluster(node("n1", "2G"), node("n2", "4G"), *shut), "n2")
    wanted = job("web", 2, "1500M")
    back = [{"start": ["n2"]}, {"undrain": "n3"}, {"uncordon": "n4"}]
    less = [{"numInstances": 1}, {"containers.app.memory": "1G"}]
    more = [{"nodes": 1, "memory_bytes": parse_size("1500M"), "disk_bytes": 0}]
    assert changes(waiting(snapshot, wanted)) == back + more + less
    for told in (refused(submit(snapshot, wanted)), readvised(snapshot, wanted)):
        assert suggested_changes(told) == back + less + more


def test_what_is_hardly_of_use_is_suggested_only_if_nothing_else_helps() -> None:
    """A program that asks for 1G does not run in 64M; fewer instances of it do."""
    full = settled(submitted(cluster(node("n1", "1G", "1G", cpu=1000)), job("db", 1, "600M")))
    memory, half = "containers.app.memory", {"containers.app.memory": "416M"}
    assert half in changes(waiting(full, job("web", 1, "832M")))
    assert not any(memory in change for change in changes(waiting(full, job("web", 1, "848M"))))
    for large in (job("web", 1, "100M", disk="3G"), job("web", 1, "100M", cpu=3.0)):
        (found,) = changes(waiting(full, large))
        assert "nodes" in found
    # A new node has no db to be near to.
    near = PlacementRules(near=(Neighbour(job=key("db")),))
    alone = waiting(full, job("web", 1, "848M", placement=near))
    assert changes(alone) == [half] and serves(alone, WEB, half)
    told = readvised(full, job("web", 1, "848M", placement=near))
    assert suggested_changes(told) == [half]
    many = refused(submit(cluster(n1="1G"), job("web", 6, "1G")))
    assert {"numInstances": 1} in suggested_changes(many)
    assert not any(memory in change for change in suggested_changes(many))


def beside(label: str = "") -> tuple[Job, Job]:
    """A job, and another one that has to be near it."""
    asked = PlacementRules(require=(rule(label),) if label else ())
    near = PlacementRules(near=(Neighbour(job=key("cache")),))
    return job("cache", 1, "4G", placement=asked), job("web", 2, "512M", placement=near)


def test_who_has_to_be_near_one_that_was_lost_is_told_what_brings_both_back() -> None:
    """Not only to give up being near: to start the node, or another one large enough for both."""
    full = settled(submitted(cluster(n1="8G", n2="2G"), *beside()))
    snapshot = rested(lost(full, "n1"))
    start, add, near = changes(snapshot)
    assert start == {"start": ["n1"]}
    assert add == {"nodes": 1, "memory_bytes": parse_size("5G"), "disk_bytes": 0}
    assert near == {"placement.near": {"job": "cache", "weight": 10}}
    for change in (start, add):
        world = followed(snapshot, WEB, change)
        assert world and live(rested(world)).total() == 2
        assert live(rested(world), key("cache")).total() == 1
    lines = why(snapshot, WEB)
    assert "cache, which it is to be near to, has no place either (`ozy why cache`)." in lines
    both = [line for line in lines if line.endswith(": cache would get a place as well.")]
    assert len(both) == 2 and "start n1" in both[0] and "5G of memory" in both[1]


def test_who_has_to_be_near_one_that_waits_is_told_what_gives_both_a_place() -> None:
    """A label, or the end of a drain or a cordon; nothing that would help only the other one."""
    labelled = cluster(node("n1", "8G", labels={"disk": "hdd"}), node("n2", "2G"))
    snapshot = waiting(labelled, *beside("disk == ssd"))
    assert {"label": {"node": "n1", "labels": {"disk": "ssd"}}} in changes(snapshot)
    for shut, verb in ((node("n1", "8G", cordoned=True), "uncordon"), (DRAINED, "undrain")):
        snapshot = waiting(cluster(shut, node("n2", "2G")), *beside())
        assert changes(snapshot)[0] == {verb: "n1"}
    # For both of them there is no room on it.
    tight = waiting(cluster(node("n1", "4G", cordoned=True), node("n2", "2G")), *beside())
    assert {"uncordon": "n1"} in changes(tight, key("cache"))
    assert {"uncordon": "n1"} not in changes(tight)


def test_who_is_refused_for_whom_it_has_to_be_near_is_told_the_same() -> None:
    """It is taken when somebody has started the node and it comes again."""
    cache, web = beside()
    snapshot = rested(lost(settled(submitted(cluster(n1="8G", n2="2G"), cache)), "n1"))
    first, *_ = suggested_changes(readvised(snapshot, web))
    assert first == {"start": ["n1"]}
    world = followed_by_operator(snapshot, first)
    assert world and isinstance(submit(rested(world), web), Plan)


# Refused ------------------------------------------------------------------------------------------


def readvised(snapshot: Snapshot, wanted: Job) -> Problem:
    """What is told of a job that is refused."""
    again = Refused(job=wanted, wanted=wanted.instances, decide=lambda s: submit(s, wanted))
    return at_once(readvising(snapshot, refused(submit(snapshot, wanted)), again))


def suggested_changes(problem: Problem) -> list[dict[str, object]]:
    return [dict(suggestion.change) for suggestion in suggestions_of(problem)]


def test_a_node_for_a_refused_job_has_room_for_those_who_wait() -> None:
    """They are served before the job file comes again, whatever their priority."""
    snapshot = waiting(cluster(n1="256M"), job("low", 2, "300M"))
    wanted = job("web", 1, "600M", priority=5, may_preempt=False)
    plain, told = refused(submit(snapshot, wanted)), readvised(snapshot, wanted)
    assert "add 1 node with at least 600M of memory to allocate" in plain.hint
    words = "add 1 node with at least 1200M of memory to allocate (600M for what comes first)"
    assert told.hint == words
    assert told.fields["suggestions"][-1]["text"] == words
    served = {False: suggested_changes(plain)[-1], True: suggested_changes(told)[-1]}
    for is_served, change in served.items():
        world = rested(followed(snapshot, WEB, change) or snapshot)
        assert isinstance(submit(world, wanted), Plan) is is_served


def test_what_others_would_take_is_not_suggested_to_a_refused_job() -> None:
    """The node that is cordoned, or away, goes to one who waits for it; system jobs come there."""
    shut = cluster(node("n1", "1G", cordoned=True), node("n2", "256M"))
    away = lost(cluster(n1="1G", n2="256M"), "n1")
    wanted = job("web", 1, "1G")
    for world in (shut, away):
        changes = suggested_changes(readvised(world, wanted))
        assert changes == suggested_changes(refused(submit(world, wanted)))
        assert {"uncordon": "n1"} in changes or {"start": ["n1"]} in changes
        waits = waiting(world, job("low", 1, "512M"))
        left = suggested_changes(readvised(waits, wanted))
        assert not any("uncordon" in change or "start" in change for change in left)
        assert [change["memory_bytes"] for change in left if "nodes" in change] == [
            parse_size("1536M")
        ]
    agent = job("agent", 0, "100M", kind=JobKind.SYSTEM)
    left = suggested_changes(readvised(submitted(away, agent), wanted))
    assert not any("start" in change for change in left)


def test_who_displaces_those_who_wait_needs_no_room_for_them() -> None:
    """Whoever took the new node makes way when the more important comes again."""
    snapshot = waiting(cluster(n1="256M"), job("low", 1, "600M"))
    told = readvised(snapshot, job("web", 1, "600M", priority=5))
    assert suggested_changes(told)[-1]["memory_bytes"] == parse_size("600M")


# Large clusters -----------------------------------------------------------------------------------


def test_among_thousands_of_nodes_there_is_advice() -> None:
    """Of what is pending and of what is refused, and it helps."""
    snapshot = cluster(*(node(f"n{number:04}", "1G") for number in range(2_000)))
    wanted = job("web", 1, "2G")
    words = ["give app 1G of memory instead of 2G", "add 1 node with at least 2G of memory"]
    pending = waiting(snapshot, wanted)
    told = suggestions_of(readvised(snapshot, wanted))
    for found in (reversed(advice(pending, WEB)), told):
        assert [one.text.removesuffix(" to allocate") for one in found] == words
    assert all(serves(pending, WEB, change) for change in changes(pending))


def test_what_would_take_too_long_to_play_is_not_suggested() -> None:
    """Among many nodes and many who wait nothing is told that was not held against them."""
    nodes = 10 * NODES_FEW
    snapshot = cluster(*(node(f"n{number:04}", "1G") for number in range(nodes)))
    some = waiting(snapshot, job("other", 1, "2G"))
    record, names = some.jobs[key("other")], [f"other{n}" for n in range(WORK_MAX // nodes)]
    more = {key(name): replace(record, key=key(name)) for name in names}
    many = replace(some, jobs=Table.of({**some.jobs, **more}))
    wanted = job("web", 1, "2G")
    assert [change for change in suggested_changes(readvised(some, wanted)) if "nodes" in change]
    assert suggested_changes(readvised(many, wanted)) == [{"containers.app.memory": "1G"}]


# Whatever the cluster -----------------------------------------------------------------------------

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
zones, cores = st.sampled_from("abc"), st.sampled_from(["1", "2", "4", "8"])


def compared(label: str, tests: list[LabelTest], values: st.SearchStrategy[str]):  # type: ignore[no-untyped-def]
    return st.builds(
        lambda test, value: LabelRule(label=label, test=test, values=(value,)),
        st.sampled_from(tests),
        values,
    )


label_rules = st.one_of(
    compared("zone", [LabelTest.EQUAL, LabelTest.UNEQUAL, LabelTest.UNEQUAL], zones),
    compared("cores", [LabelTest.LESS, LabelTest.MORE, LabelTest.UNEQUAL], cores),
    st.builds(
        lambda values: LabelRule(label="zone", test=LabelTest.IN, values=tuple(values)),
        st.lists(zones, min_size=1, max_size=2, unique=True),
    ),
    st.just(LabelRule(label="gpu", test=LabelTest.EXISTS)),
)
requires = st.one_of(st.just(()), st.lists(label_rules, min_size=1, max_size=4).map(tuple))
others = st.builds(
    Neighbour, job=st.sampled_from([key("a"), key("b")]), weight=st.sampled_from([0, 0, 2])
)
placements = st.builds(
    PlacementRules,
    require=requires,
    near=st.one_of(st.just(()), st.just(()), st.tuples(others)),
    apart=st.one_of(st.just(()), st.tuples(others)),
    max_per_node=st.sampled_from([0, 0, 1, 2]),
    burst=st.sampled_from([None, None, None, Burst(after=1, nodes=("n0",))]),
)
made_nodes = st.tuples(
    st.sampled_from(["512M", "1G", "2G"]),
    st.fixed_dictionaries({"zone": zones}, optional={"cores": cores, "gpu": st.just("no")}),
    st.sampled_from(["ready", "ready", "ready", "lost", "cordoned", "drained"]),
)
bystanders = st.tuples(
    st.integers(0, 2),  # that have a place
    st.integers(0, 2),  # more that wait
    st.sampled_from(["128M", "256M", "512M"]),
    st.integers(0, 2),  # priority; the job's own is 1
    requires,
)
pools = st.one_of(
    st.just(()),
    st.just(()),
    st.builds(lambda require: (NodePool(namespace="default", require=(require,)),), label_rules),
)


@st.composite
def with_pending(draw: st.DrawFn) -> Snapshot:
    """A cluster in which `web` lacks instances, and others may as well."""
    made = draw(st.lists(made_nodes, min_size=1, max_size=4))
    snapshot = cluster(
        *(
            node(
                f"n{i}",
                memory,
                labels=labels,
                cordoned=state == "cordoned",
                drain=Drain(since=1.0) if state == "drained" else None,
            )
            for i, (memory, labels, state) in enumerate(made)
        )
    )
    wants: dict[str, int] = {}
    for name in "ab":
        placed, more, memory, priority, require = draw(bystanders)
        rules = PlacementRules(require=require)
        for count in (placed, 0):
            wanted = job(name, count, memory, priority=priority, placement=rules)
            decision = submit(snapshot, wanted)
            if isinstance(decision, Plan):
                snapshot = after(snapshot, decision)
                wants[name] = count + more
                break
    if draw(st.booleans()):
        agent = job("agent", 0, "64M", kind=JobKind.SYSTEM)
        snapshot = submitted(snapshot, agent)
    snapshot = replace(snapshot, settings=Settings(pools=draw(pools)))
    memory, rules = draw(st.sampled_from(["256M", "700M", "1G"])), draw(placements)
    for count in (draw(st.integers(0, 2)), 0):
        decision = submit(snapshot, job("web", count, memory, priority=1, placement=rules))
        if isinstance(decision, Plan):
            snapshot = after(snapshot, decision)
            wants["web"] = count + draw(st.integers(1, 3))
            break
    snapshot = lost(settled(snapshot), *(f"n{i}" for i, n in enumerate(made) if n[2] == "lost"))
    return report(rested(wanting(snapshot, **wants)))


@settings(max_examples=250, deadline=None, suppress_health_check=SLOW)
@given(with_pending())
def test_each_suggestion_when_carried_out_fits(snapshot: Snapshot) -> None:
    """Followed by hand and left to the planners, it leaves the job with all that it wants."""
    for name in snapshot.jobs:
        for change in changes(snapshot, name):
            assert serves(snapshot, name, change), (name, change)


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(with_pending(), placements, st.integers(1, 4), st.sampled_from(["256M", "700M", "1G"]))
def test_whoever_comes_again_as_suggested_is_served(
    snapshot: Snapshot, rules: PlacementRules, count: int, memory: str
) -> None:
    """What is suggested to a refused job is followed, all others go on, and then it is taken."""
    wanted = job("new", count, memory, priority=1, placement=rules)
    if isinstance(submit(snapshot, wanted), Plan):
        return
    for change in suggested_changes(readvised(snapshot, wanted)):
        if world := followed_by_operator(snapshot, change):
            assert isinstance(submit(rested(world), wanted), Plan), change
        else:
            assert isinstance(submit(snapshot, changed_job(wanted, change)), Plan), change


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(with_pending())
def test_what_lets_a_job_onto_a_node_lets_it(snapshot: Snapshot) -> None:
    """Followed by hand, there is one more of the job on the node, or one more may come there."""
    for name in snapshot.nodes if WEB in snapshot.jobs else ():
        for suggestion in why_not(snapshot, WEB, name).suggestions:
            world = followed(snapshot, WEB, dict(suggestion.change))
            assert world, suggestion
            world = rested(world)
            assert live(world)[name] > live(snapshot)[name] or takes_one(world, name), suggestion


def takes_one(snapshot: Snapshot, name: NodeName) -> bool:
    """Whether one more of the job is placed when there is this node only."""
    nodes = {
        other: there
        if other == name
        else replace(there, ledger=replace(there.ledger, is_cordoned=True))
        for other, there in snapshot.nodes.items()
    }
    count = live(snapshot).total()
    alone = wanting(replace(snapshot, nodes=nodes), web=count)
    return isinstance(plan_scale(alone, WEB, count + 1), Plan)
