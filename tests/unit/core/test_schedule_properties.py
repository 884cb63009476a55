"""What holds of every decision, whatever the cluster and whatever happened before."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ozymandias.core.buckets import is_current, is_system
from ozymandias.core.departures import foresee_drain
from ozymandias.core.drain import plan_drain
from ozymandias.core.explain import why
from ozymandias.core.nodes import (
    plan_begin_drain,
    plan_cordon,
    plan_end_drain,
    plan_label,
    plan_uncordon,
)
from ozymandias.core.placement import Ask, place
from ozymandias.core.preempt import Lately, plan_preempt
from ozymandias.core.rollout import plan_rollout
from ozymandias.core.rooms import NOW_OR_SOON, rooms_of
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
from ozymandias.core.shed import plan_shed
from ozymandias.core.system import plan_system, wanted_of, why_not
from ozymandias.model.instance import SlotState
from ozymandias.model.job import (
    Burst,
    Job,
    JobKey,
    JobKind,
    LabelRule,
    Neighbour,
    OnPartition,
    PlacementRules,
)
from ozymandias.model.node import Demand, Drain, Load, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from tests.unit.core.builders import (
    after,
    check,
    cluster,
    foretold,
    job,
    key,
    lost,
    node,
    report,
    returned,
    running_pods,
    submit,
)
from tests.unit.core.following import changed_job, followed_by_operator

STEPS_TO_CONVERGE_MAX = 400

sizes = st.sampled_from(["256M", "700M", "1G", "1500M", "2G", "3G", "5G"])
jobs = st.builds(
    job,
    name=st.sampled_from("abc"),
    instances=st.integers(0, 7),
    memory=sizes,
    disk=st.sampled_from(["0", "0", "1G", "4G"]),
    host_port=st.sampled_from([None, None, None, 8080, 9090]),
    image=st.sampled_from("xyz"),
    cpu=st.sampled_from([None, None, 0.5, 1.5]),
)
ROLE = LabelRule(label="role", values=("infra",))


def neighbours(name: str, weight: int = 0) -> tuple[Neighbour, ...]:
    return (Neighbour(job=key(name), weight=weight),)


fussy_jobs = st.builds(
    replace,
    jobs,
    kind=st.sampled_from([JobKind.SERVICE, JobKind.SERVICE, JobKind.SYSTEM]),
    min_available=st.integers(0, 3),
    min_available_percent=st.sampled_from([0, 0, 34, 50, 100]),
    priority=st.integers(0, 2),
    on_partition=st.sampled_from([OnPartition.KEEP, OnPartition.KEEP, OnPartition.STOP]),
    placement=st.builds(
        PlacementRules,
        require=st.sampled_from([(), (), (ROLE,)]),
        prefer=st.sampled_from([(), (replace(ROLE, weight=2),)]),
        near=st.sampled_from([(), (), (), neighbours("a"), neighbours("b", 3)]),
        apart=st.sampled_from([(), (), (), neighbours("c"), neighbours("c", 3)]),
        spread=st.sampled_from(["", "", "role"]),
        max_per_node=st.integers(0, 2),
        burst=st.sampled_from([None, None, None, Burst(after=2, nodes=("n0",))]),
    ),
).map(lambda made: sensible(made))


def sensible(made: Job) -> Job:
    """As a job file allows it."""
    rules = made.placement
    if made.min_available_percent:
        made = replace(made, min_available=0)
    if made.kind is JobKind.SYSTEM:
        return replace(made, instances=0, placement=PlacementRules(require=rules.require))
    near, apart = (
        tuple(n for n in found if n.job != made.key) for found in (rules.near, rules.apart)
    )
    return replace(made, placement=replace(rules, near=near, apart=apart))


clusters = st.lists(
    st.tuples(
        st.sampled_from(["1G", "2G", "4G", "7G"]),
        st.sampled_from(["2G", "10G"]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([0, 2000]),
    ),
    min_size=1,
    max_size=5,
).map(
    lambda made: cluster(
        *(node(f"n{i}", m, d, cordoned=c, cpu=p) for i, (m, d, c, p) in enumerate(made))
    )
)


@dataclass(frozen=True)
class Happening:
    """Something that a person, a machine or a peer does."""

    what: str
    number: int
    job: Job


happenings = st.builds(
    Happening,
    what=st.sampled_from(
        [
            "submit",
            "submit",
            "scale",
            "stop",
            "restart",
            "lose",
            "return",
            "repair",
            "pending",
            "rollout",
            "rollout",
            "vacate",
            "report",
            "tidy",
        ]
    ),
    number=st.integers(0, 7),
    job=jobs,
)
upkeep = st.builds(
    Happening,
    what=st.sampled_from(
        [
            *("submit", "submit", "scale", "stop", "restart", "lose", "return", "repair"),
            *("pending", "rollout", "rollout", "vacate", "vacate", "report", "report", "tidy"),
            *("cordon", "uncordon", "drain", "undrain", "label", "unlabel"),
            *("move", "move", "move late", "system", "system"),
            *("preempt", "preempt", "press", "relieve", "shed", "shed"),
        ]
    ),
    number=st.integers(0, 7),
    job=fussy_jobs,
)


def some_node(snapshot: Snapshot, number: int) -> NodeName:
    return sorted(snapshot.nodes)[number % len(snapshot.nodes)]


def dead_nodes(snapshot: Snapshot) -> frozenset[NodeName]:
    return frozenset(n for n, there in snapshot.nodes.items() if not there.is_alive)


DECISIONS: dict[str, Callable[[Snapshot, Happening], Plan | Problem | None]] = {
    "submit": lambda s, h: submit(s, h.job),
    "scale": lambda s, h: plan_scale(s, h.job.key, h.number),
    "stop": lambda s, h: plan_stop(s, h.job.key),
    "restart": lambda s, h: plan_restart(s, h.job.key),
    "repair": lambda s, h: plan_repair(s, dead_nodes(s)),
    "pending": lambda s, h: plan_pending(s),
    "rollout": lambda s, h: plan_rollout(s),
    "tidy": lambda s, h: plan_tidy(s),
    "vacate": lambda s, h: plan_vacate(s, some_node(s, h.number), running_pods(s)),
    "cordon": lambda s, h: plan_cordon(s, some_node(s, h.number)),
    "uncordon": lambda s, h: plan_uncordon(s, some_node(s, h.number)),
    "drain": lambda s, h: plan_begin_drain(s, some_node(s, h.number), Drain(since=1, deadline=5)),
    "undrain": lambda s, h: plan_end_drain(s, some_node(s, h.number)),
    "label": lambda s, h: plan_label(s, some_node(s, h.number), {"role": "infra"}, ()),
    "unlabel": lambda s, h: plan_label(s, some_node(s, h.number), {}, ("role",)),
    "move": lambda s, h: plan_drain(s, 4.0),
    "move late": lambda s, h: plan_drain(s, 6.0),
    "system": lambda s, h: plan_system(s),
    "preempt": lambda s, h: plan_preempt(s, Lately(wall=30.0 * h.number)),
    "shed": lambda s, h: plan_shed(s),
}


def happen(snapshot: Snapshot, event: Happening) -> Snapshot:
    match event.what:
        case "lose":
            return lost(snapshot, some_node(snapshot, event.number))
        case "return":
            return returned(snapshot, some_node(snapshot, event.number))
        case "press":
            load = Load(taint="disk pressure: x", shed_to=event.number - 1, is_urgent=True)
            return measured(snapshot, some_node(snapshot, event.number), load)
        case "relieve":
            return measured(snapshot, some_node(snapshot, event.number), None)
        case "report":
            return report(snapshot, **{f"{event.job.name}_{event.number}": False})
        case what:
            decision = DECISIONS[what](snapshot, event)
            assert decision == DECISIONS[what](snapshot, event), "same snapshot, same decision"
            assert foretold(snapshot, decision) if decision else True
            return after(snapshot, decision) if isinstance(decision, Plan) else snapshot


def measured(snapshot: Snapshot, name: NodeName, load: Load | None) -> Snapshot:
    there = replace(snapshot.nodes[name], load=load)
    return replace(snapshot, nodes={**snapshot.nodes, name: there})


def converge(snapshot: Snapshot) -> Snapshot:
    """All nodes are back and every new instance gets healthy: decide until nothing is to do.

    Who is under pressure stays so: whoever can leave then leaves.
    """
    snapshot = returned(snapshot, *snapshot.nodes)
    for _ in range(STEPS_TO_CONVERGE_MAX):
        snapshot = report(snapshot)
        plan = next(
            (
                plan
                for plan in (
                    *(plan_vacate(snapshot, n, running_pods(snapshot)) for n in snapshot.nodes),
                    plan_system(snapshot),
                    plan_shed(snapshot),
                    plan_drain(snapshot, 4.0),
                    plan_rollout(snapshot),
                    plan_pending(snapshot),
                    plan_preempt(snapshot, Lately(wall=1e9)),
                    plan_tidy(snapshot),
                )
                if plan
            ),
            None,
        )
        if plan is None:
            return snapshot
        assert not plan.is_empty
        snapshot = after(snapshot, plan)
    raise AssertionError("does not come to rest")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters, st.lists(happenings, max_size=25))
def test_every_history_is_sound_and_comes_to_rest(
    snapshot: Snapshot, history: list[Happening]
) -> None:
    """No step ever breaks capacity or doubles a slot, and in the end every job is as wanted."""
    for event in history:
        snapshot = happen(snapshot, event)
        check(snapshot)
        for name in snapshot.jobs:
            assert why(snapshot, name)
    snapshot = converge(snapshot)
    pending = {p.job: p.count for p in pending_of(snapshot)}
    for name, record in snapshot.jobs.items():
        found = list(snapshot.instances(name))
        assert not record.head.deleting
        assert all(a.state is SlotState.RUNNING for a in found)
        assert len(found) + pending.get(name, 0) == record.head.wanted
        for a in found:
            is_current = (a.version, a.generation) == (record.head.version, record.head.restart)
            assert is_current or not could_be_replaced(snapshot, name), "left behind"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters, st.lists(upkeep, max_size=30))
def test_every_history_with_upkeep_is_sound_and_comes_to_rest(
    snapshot: Snapshot, history: list[Happening]
) -> None:
    """Whatever operators do: promises hold, rules and limits too, and it comes to rest."""
    for event in history:
        before, snapshot = snapshot, happen(snapshot, event)
        check(snapshot)
        check_rules(before, snapshot, event)
        for name in snapshot.jobs:
            assert why(snapshot, name)
        for there in snapshot.nodes:
            foresee_drain(snapshot, there)
    snapshot = converge(snapshot)
    pending = {p.job: p.count for p in pending_of(snapshot)}
    for name, record in snapshot.jobs.items():
        found = list(snapshot.instances(name))
        assert all(a.state is SlotState.RUNNING for a in found)
        assert len(found) + pending.get(name, 0) == wanted_of(snapshot, record)
        assert record.current
        if is_system(record):
            for a in found:
                assert not why_not(snapshot, a.node, record.current.job)


BUDGETED = ("move", "move late", "rollout", "preempt", "shed")


def check_rules(before: Snapshot, after: Snapshot, event: Happening) -> None:
    """What a single step must not do, beside what must hold of every cluster."""
    for name, record in after.jobs.items():
        instances = [a for a in after.instances(name) if a.state is not SlotState.STOPPING]
        old = {(a.node, a.slot, a.version, a.generation) for a in before.instances(name)}
        fresh = [a for a in instances if (a.node, a.slot, a.version, a.generation) not in old]
        assert record.current
        job = record.current.job
        if is_system(record):
            here = [a.node for a in instances if is_current(a, record.head)]
            assert len(set(here)) == len(here), "a system job twice on a node"
            assert all(not before.nodes[a.node].ledger.drain for a in fresh)
        else:
            assert all(before.nodes[a.node].ledger.takes_work for a in fresh)
            limit = job.placement.max_per_node
            for a in fresh if limit else ():
                if a.version == record.head.version:
                    assert sum(b.node == a.node for b in instances) <= limit, "too many on a node"
        for a in fresh:
            if a.version == record.head.version and job.placement.require:
                assert before.nodes[a.node].ledger.all_labels.get("role") == "infra"
        if event.what in BUDGETED and name in before.jobs:
            wanted = record.head.wanted
            floor = max(
                min(job.min_available, wanted), ceil(wanted * job.min_available_percent / 100)
            )
            had, has = healthy(before, name), healthy(after, name)
            assert has >= min(had, floor), "fewer healthy than must be available"


def healthy(snapshot: Snapshot, name: JobKey) -> int:
    found = (a for a in snapshot.instances(name) if a.state is SlotState.RUNNING)
    return sum(1 for a in found if (s := snapshot.status(a)) and s.healthy)


def could_be_replaced(snapshot: Snapshot, name: JobKey) -> bool:
    """Whether a current instance would fit anywhere if the outdated ones were gone."""
    record = snapshot.jobs[name]
    assert record.current
    rooms, demand = rooms_of(snapshot), Demand.of(record.current.job)
    for a in snapshot.instances(name):
        is_current = (a.version, a.generation) == (record.head.version, record.head.restart)
        if a.node in rooms and not is_current:
            rooms[a.node].give(a.demand, a.state)
    return any(room.fits(demand, SlotState.RUNNING) for room in rooms.values())


@settings(max_examples=200, deadline=None)
@given(clusters, st.lists(jobs, max_size=4), jobs)
def test_rejection_tells_the_truth(snapshot: Snapshot, before: list[Job], wanted: Job) -> None:
    """The number that can be placed is what placement reaches, and each suggestion really fits."""
    for earlier in before:
        decision = submit(snapshot, earlier)
        if isinstance(decision, Plan):
            snapshot = after(snapshot, decision)
    wanted = replace(wanted, name=key("new").name)
    problem = submit(snapshot, wanted)
    if not isinstance(problem, Problem):
        return
    demand = Demand.of(wanted)
    ask = Ask(job=wanted.key, version=1, demand=demand)
    reached = len(place(rooms_of(snapshot), ask, wanted.instances, {}, NOW_OR_SOON))
    unit = {
        "insufficient-memory": demand.memory_bytes,
        "insufficient-disk": demand.disk_bytes,
        "insufficient-cpu": demand.cpu_millis,
    }
    assert problem.fields["placeable"] == reached * unit.get(problem.kind.slug, 1)
    assert problem.fields["required"] == wanted.instances * unit.get(problem.kind.slug, 1)
    assert {n["node"] for n in problem.fields["nodes"]} == set(snapshot.nodes)
    assert problem.fields["suggestions"]
    for suggestion in problem.fields["suggestions"]:
        world, changed = follow(snapshot, wanted, suggestion["change"])
        assert isinstance(submit(world, changed), Plan), suggestion


def follow(snapshot: Snapshot, wanted: Job, change: dict[str, object]) -> tuple[Snapshot, Job]:
    """The world and the job after somebody took the advice."""
    world = followed_by_operator(snapshot, change)
    return (snapshot, changed_job(wanted, change)) if world is None else (world, wanted)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5))
def test_instances_are_spread_whenever_they_can_be(nodes: int, instances: int) -> None:
    """With room everywhere, no node has two of a job while another has none."""
    snapshot = cluster(*(node(f"n{i}") for i in range(nodes)))
    snapshot = after(snapshot, submit(snapshot, job(instances=instances, memory="512M")))
    counts = [sum(a.node == n for a in snapshot.instances()) for n in snapshot.nodes]
    assert max(counts) - min(counts) <= 1
