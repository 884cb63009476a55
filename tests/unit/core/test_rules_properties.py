"""What holds of rules whatever the cluster: preferences cost nobody a place, peers agree, and
whoever follows a suggestion is served."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ozymandias.core.rules import rules_of
from ozymandias.core.schedule import plan_pending
from ozymandias.core.wishes import given_up
from ozymandias.model.instance import SlotState
from ozymandias.model.job import (
    Burst,
    Job,
    JobKey,
    JobName,
    LabelRule,
    LabelTest,
    Neighbour,
    PlacementRules,
)
from ozymandias.model.node import Load, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import NodePool, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from tests.unit.core.builders import after, cluster, job, key, node, submit
from tests.unit.core.test_schedule_properties import follow

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]

values = st.sampled_from(["a", "b"])
cores = st.sampled_from(["1", "2", "4"])
label_rules = st.one_of(
    st.builds(
        LabelRule,
        label=st.sampled_from(["zone", "disk"]),
        test=st.sampled_from([LabelTest.EQUAL, LabelTest.EQUAL, LabelTest.UNEQUAL]),
        values=st.tuples(values),
    ),
    st.builds(
        LabelRule,
        label=st.just("cores"),
        test=st.sampled_from([LabelTest.LESS, LabelTest.MORE, LabelTest.UNEQUAL]),
        values=st.tuples(cores),
    ),
    st.sampled_from(
        [
            LabelRule(label="zone", test=LabelTest.IN, values=("a", "c")),
            LabelRule(label="cores", test=LabelTest.IN, values=("2", "4")),
            LabelRule(label="gpu", test=LabelTest.EXISTS),
        ]
    ),
)
weights = st.integers(1, 3)


def neighbours(weight: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[Neighbour, ...]]:
    others = st.builds(Neighbour, job=st.sampled_from([key(n) for n in "abc"]), weight=weight)
    return st.one_of(st.just(()), st.just(()), st.tuples(others))


rules = st.builds(
    PlacementRules,
    require=st.one_of(st.just(()), st.lists(label_rules, max_size=3).map(tuple)),
    prefer=st.one_of(st.just(()), st.tuples(st.builds(replace, label_rules, weight=weights))),
    near=neighbours(st.sampled_from([0, 1, 3])),
    apart=neighbours(st.sampled_from([0, 0, 2])),
    spread=st.sampled_from(["", "zone"]),
    max_per_node=st.sampled_from([0, 0, 1, 2]),
    burst=st.sampled_from([None, None, Burst(after=2, nodes=("n0",))]),
)


def apart_from_itself(made: Job) -> Job:
    asked = made.placement
    near = tuple(n for n in asked.near if n.job != made.key)
    close = {n.job for n in near}
    apart = tuple(n for n in asked.apart if n.job != made.key and n.job not in close)
    return replace(made, placement=replace(asked, near=near, apart=apart))


jobs = st.builds(
    job,
    name=st.sampled_from("abc"),
    instances=st.integers(1, 5),
    memory=st.sampled_from(["256M", "700M", "1G", "2G"]),
    cpu=st.sampled_from([None, 0.5, 1.0]),
    host_port=st.sampled_from([None, None, None, 8080]),
    placement=rules,
    priority=st.integers(0, 1),
).map(apart_from_itself)

nodes = st.builds(
    lambda memory, labels, cpu, load: (memory, labels, cpu, load),
    st.sampled_from(["1G", "2G", "4G"]),
    st.fixed_dictionaries(
        {"zone": values, "disk": values}, optional={"cores": cores, "gpu": st.just("no")}
    ),
    st.sampled_from([0, 1000, 2000]),
    st.sampled_from([None, Load(load_percent=90), Load(memory_percent=95)]),
)
pools = st.sampled_from(
    [
        (),
        (),
        (NodePool(namespace="default", require=(LabelRule(label="disk", values=("a",)),)),),
        (
            NodePool(
                namespace="default",
                require=(LabelRule(label="disk", values=("a",)),),
                is_hard=False,
            ),
        ),
    ]
)


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Nodes with labels, and jobs that found a place on them."""
    made = draw(st.lists(nodes, min_size=1, max_size=5))
    snapshot = cluster(
        *(
            replace(node(f"n{i}", memory, labels=labels, cpu=cpu), load=load)
            for i, (memory, labels, cpu, load) in enumerate(made)
        )
    )
    snapshot = replace(snapshot, settings=Settings(pools=draw(pools)))
    for wanted in draw(st.lists(jobs, max_size=3)):
        decision = submit(snapshot, wanted)
        if isinstance(decision, Plan):
            snapshot = after(snapshot, decision)
    return snapshot


def indifferent(wanted: Job) -> Job:
    """The same job without anything that it only prefers."""
    asked = wanted.placement
    return replace(
        wanted,
        placement=replace(
            asked,
            prefer=(),
            spread="",
            near=tuple(n for n in asked.near if not n.weight),
            apart=tuple(n for n in asked.apart if not n.weight),
        ),
    )


def starving(snapshot: Snapshot, more: int, *, likes: bool) -> Snapshot:
    """Every job wants so many more, with its preferences or without."""
    changed = {}
    for name, record in snapshot.jobs.items():
        versions = record.versions
        if not likes:
            versions = {
                number: replace(version, job=indifferent(version.job))
                for number, version in versions.items()
            }
        head = replace(record.head, wanted=record.head.wanted + more)
        changed[name] = replace(record, head=head, versions=versions)
    pools = tuple(pool for pool in snapshot.settings.pools if likes or pool.is_hard)
    return replace(snapshot, jobs=changed, settings=replace(snapshot.settings, pools=pools))


def placed(snapshot: Snapshot, plan: Plan | None) -> list[tuple[int, int]]:
    """How many of each priority, the highest first."""
    found: dict[int, int] = {}
    for edit in plan.edits if plan else ():
        current = snapshot.jobs[edit.job].current
        assert current
        found[current.job.priority] = found.get(current.job.priority, 0) + 1
    return sorted(found.items(), reverse=True)


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(clusters(), st.integers(1, 4))
def test_preferences_never_cost_an_instance_its_place(snapshot: Snapshot, more: int) -> None:
    """With all that is preferred as many are placed as without, the higher priorities first."""
    liked, plain = (starving(snapshot, more, likes=likes) for likes in (True, False))
    assert placed(liked, plan_pending(liked)) >= placed(plain, plan_pending(plain))


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(clusters(), jobs)
def test_preferences_never_refuse_a_job(snapshot: Snapshot, wanted: Job) -> None:
    """A job is taken if it would be taken without its preferences."""
    wanted = replace(wanted, name=JobName("new"))
    with_them, without = submit(snapshot, wanted), submit(snapshot, indifferent(wanted))
    assert isinstance(with_them, Plan) == isinstance(without, Plan)


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(clusters(), jobs, st.integers(1, 3), st.integers(0, 2**16))
def test_every_peer_makes_the_same_plan(
    snapshot: Snapshot, wanted: Job, more: int, seed: int
) -> None:
    """In which order a peer learned of nodes, jobs and instances changes nothing."""
    snapshot = starving(snapshot, more, likes=True)
    dice = random.Random(seed)
    other = replace(
        snapshot,
        **{
            part: dict(dice.sample(list(found.items()), len(found)))
            for part in ("nodes", "jobs", "assignments")
            for found in (getattr(snapshot, part),)
        },
    )
    assert plan_pending(snapshot) == plan_pending(other)
    wanted = replace(wanted, name=JobName("new"))
    assert submit(snapshot, wanted) == submit(other, wanted)


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(clusters(), jobs)
def test_what_is_required_holds_where_it_is_placed(snapshot: Snapshot, wanted: Job) -> None:
    """Labels, pool, near, apart both ways, limits: of every new instance, by plain looking."""
    wanted = replace(wanted, name=JobName("new"))
    decision = submit(snapshot, wanted)
    if isinstance(decision, Problem):
        return
    result, asked = after(snapshot, decision), wanted.placement
    where = [a.node for a in result.instances(wanted.key)]
    for name in set(where):
        labels = snapshot.nodes[name].ledger.all_labels
        for rule in asked.require:
            assert holds(rule, labels.get(rule.label))
        for pool in snapshot.settings.pools:
            assert not pool.is_hard or labels["disk"] == "a"
        here = {k for k in snapshot.on(name) if is_live(snapshot, name, k)}
        assert all(n.weight or n.job in here for n in asked.near)
        assert all(n.weight or n.job not in here for n in asked.apart)
        for other in here:
            current = snapshot.jobs[other].current
            assert current
            assert all(n.weight or n.job != wanted.key for n in current.job.placement.apart)
        assert not 0 < asked.max_per_node < where.count(name)
    if asked.burst:
        away = sum(name in asked.burst.nodes for name in where)
        assert len(where) - away == min(len(where), asked.burst.after)


def holds(rule: LabelRule, value: str | None) -> bool:
    """A rule by plain looking at what a node has for the label."""
    if rule.test in (LabelTest.LESS, LabelTest.MORE):
        less, more = (value or "0") < rule.values[0], (value or "0") > rule.values[0]
        return value is not None and (less if rule.test is LabelTest.LESS else more)
    if rule.test is LabelTest.EXISTS:
        return value is not None
    return (value in rule.values) == (rule.test is not LabelTest.UNEQUAL)


def is_live(snapshot: Snapshot, name: NodeName, other: JobKey) -> bool:
    groups = snapshot.on(name)[other].groups
    return any(group.state is not SlotState.STOPPING for group in groups)


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(clusters(), jobs)
def test_whoever_follows_a_suggestion_is_served(snapshot: Snapshot, wanted: Job) -> None:
    """Each suggestion of a rejection, when carried out alone, makes the job fit."""
    wanted = replace(wanted, name=JobName("new"))
    problem = submit(snapshot, wanted)
    if not isinstance(problem, Problem):
        return
    for suggestion in problem.fields.get("suggestions", ()):
        world, changed = follow(snapshot, wanted, suggestion["change"])
        assert isinstance(submit(world, changed), Plan), suggestion


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(clusters())
def test_what_was_given_up_is_what_the_node_lacks(snapshot: Snapshot) -> None:
    """Nothing is given up by whoever has it, and nothing on a node where it could not be."""
    for assigned in snapshot.instances():
        version = snapshot.jobs[assigned.job].versions[assigned.version]
        found = given_up(snapshot, assigned)
        against = rules_of(snapshot, version.job).against
        for one in found:
            assert one.reason
            assert assigned.node not in one.nodes
            assert not one.nodes & against.keys()
        assert given_up(snapshot, assigned) == found
