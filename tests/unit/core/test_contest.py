"""Who else could have left, and at what cost: the choice of victims, made again from its record."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ozymandias.core.arbiter import propose
from ozymandias.core.contest import CONTESTS_MAX, NODES_MAX, Weighed, of_victim, of_winner
from ozymandias.core.decision import record
from ozymandias.core.hindsight import stops
from ozymandias.core.preempt import AGAIN_SECONDS, Lately
from ozymandias.core.schedule import plan_submit
from ozymandias.model.contest import Contest
from ozymandias.model.decision import Decision
from ozymandias.model.instance import InstanceId
from ozymandias.model.job import (
    Container,
    Job,
    JobKind,
    LabelRule,
    PlacementRules,
    Volume,
    VolumeKind,
)
from ozymandias.model.node import Displaced, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from ozymandias.store.decisions import BYTES_MAX, decode, encode
from tests.unit.core.builders import (
    NAMES,
    after,
    cluster,
    job,
    key,
    lost,
    node,
    planned,
    report,
    settled,
    submit,
    submitted,
)

N1 = NodeName("n1")


def recorded(snapshot: Snapshot, *plans: Plan) -> Decision:
    """As it is read from the store."""
    data = encode(record(snapshot, plans, number=0, by=N1, time=5.0))
    assert len(data) <= BYTES_MAX
    return decode(data)


def won(decision: Decision) -> Weighed:
    """The contest for the instance that was placed last."""
    found = of_winner(decision, len(decision.steps) - 1)
    assert found
    return found


def costs(weighed: Weighed) -> dict[str, str]:
    """By node, in the order of what they cost: who would leave, or why nobody."""
    return {
        cost.node: cost.against or ", ".join(f"{v.assigned.instance}" for v in cost.victims)
        for cost in weighed.costs
    }


def stays(contest: Contest) -> dict[str, str]:
    return {f"{row.job.name}-{row.slots}": row.why for row in contest.staying}


def test_every_node_is_told_with_what_it_would_have_cost() -> None:
    """One of 100 before one of 200 before two; where all together free too little, that is said."""
    nodes = cluster(*(node(f"n{i}", "2G", labels={"at": str(i)}) for i in range(1, 5)))
    for number, made in enumerate(
        (
            (job("low", 1, "1G", priority=100), job("rest", 1, "1G", priority=900)),
            (job("mid", 1, "1G", priority=200), job("more", 1, "1G", priority=900)),
            (job("tiny", 2, "512M", priority=100), job("fill", 1, "1G", priority=900)),
            (job("crumb", 1, "256M", priority=100), job("mass", 1, "1792M", priority=900)),
        ),
        1,
    ):
        here = PlacementRules(require=(LabelRule(label="at", values=(str(number),)),))
        for one in made:
            nodes = settled(submitted(nodes, replace(one, placement=here)))
    decision = recorded(nodes, planned(submit(nodes, job("shop", 1, "1G", priority=800))))
    weighed = won(decision)
    assert weighed.is_same and weighed.contest.victims == (InstanceId(key("low"), 0),)
    assert costs(weighed) == {
        "n1": "low-0",
        "n2": "mid-0",
        "n3": "tiny-1, tiny-0",
        "n4": "all that may leave would free 768M of memory too little",
    }
    assert stays(weighed.contest) == {"rest-0": "its priority is 900"}


def test_who_could_not_be_asked_is_told_with_the_reason() -> None:
    """Why mine and not that other one: each of those that stay has its own reason."""
    keeps = Volume(kind=VolumeKind.LOCAL, name="d", path="/d", space_bytes=2**20, keep=True)
    small = "256M"
    snapshot = submitted(
        cluster(n1="2G"),
        job("guarded", 1, small, is_protected=True),
        replace(job("agent", 0, small), kind=JobKind.SYSTEM),
        _with_volume(job("data", 1, small), keeps),
        job("needed", 1, small, min_available=1),
        job("again", 1, small),
        job("high", 1, small, priority=7),
        job("low", 2, small),
    )
    at = 100.0
    lately = Displaced(namespace="default", job="again", slot=0, at=at, reason="")
    ledger = replace(snapshot.nodes[N1].ledger, displaced=(lately,))
    nodes = {N1: replace(snapshot.nodes[N1], ledger=ledger)}
    full = report(replace(snapshot, nodes=nodes))
    shop = job("shop", 1, small, priority=7)
    plan = plan_submit(full, shop, uid="u", names=NAMES, lately=Lately(wall=at + 1))
    contest = won(recorded(full, planned(plan))).contest
    assert contest.victims == (InstanceId(key("low"), 1),)
    assert stays(contest) == {
        "guarded-0": "it is protected",
        "agent-0": "it belongs to every node, as a system job",
        "data-0": "its kept volumes are there",
        "needed-0": "needed needs 1 healthy",
        "again-0": "it was displaced within the last minute",
        "high-0": "its priority is 7",
    }


def _with_volume(made: Job, volume: Volume) -> Job:
    (only,) = made.containers
    kept: Container = replace(only, volumes=(volume,))
    return replace(made, containers=(kept,))


def test_the_one_that_left_finds_its_contest() -> None:
    """The newest one, of this very job and not of a former one of its name."""
    full = settled(submitted(cluster(n1="2G"), job("low", 2, "1G")))
    decision = recorded(full, planned(submit(full, job("shop", 1, "1G", priority=9))))
    victim, newer = InstanceId(key("low"), 1), replace(decision, number=1, revision=9)
    found = of_victim([decision, newer], victim, "u")
    assert found and found[0].number == 1 and found[1].contest.job == key("shop")
    assert of_victim([decision], InstanceId(key("low"), 0), "u") is None
    assert of_victim([decision], victim, "another") is None


def test_each_of_several_winners_has_its_own() -> None:
    """Two come to one node, each for another that leaves."""
    full = settled(submitted(cluster(n1="2G"), job("low", 2, "1G")))
    decision = recorded(full, planned(submit(full, job("shop", 2, "1G", priority=9))))
    first, second = (of_winner(decision, n) for n in (2, 3))
    assert first and second and of_winner(decision, 0) is None
    assert [f"{v}" for v in (*first.contest.victims, *second.contest.victims)] == ["low-1", "low-0"]


def test_a_choice_that_is_not_the_least_is_told() -> None:
    """Another victim than comes out, and one where nobody should have left."""
    full = settled(
        submitted(cluster(n1="2G"), job("low", 1, "1G"), job("mid", 1, "1G", priority=3))
    )
    decision = recorded(full, planned(submit(full, job("shop", 1, "1G", priority=9))))
    (contest,) = decision.contests
    step = replace(decision.steps[0], job=key("mid"))
    wrong = replace(contest, victims=(InstanceId(key("mid"), 0),))
    (stopped,) = stops(replace(decision, contests=(wrong,), steps=(step, *decision.steps[1:])))
    assert (stopped.is_same, stopped.why) == (False, "it would cost less if low-0 (0) left n1")
    nobody = replace(contest, priority=0, nodes=(replace(contest.nodes[0], contenders=()),))
    (stopped,) = stops(replace(decision, contests=(nobody,)))
    words = "on n1 all that may leave would free 1G of memory too little"
    assert (stopped.is_same, stopped.why) == (False, f"nobody could have left for shop: {words}")


def test_what_a_cut_contest_cant_tell_is_not_judged() -> None:
    """Without all who could have left, nobody knows who would have."""
    full = settled(submitted(cluster(n1="2G"), job("low", 2, "1G")))
    decision = recorded(full, planned(submit(full, job("shop", 1, "1G", priority=9))))
    (contest,) = decision.contests
    seen = replace(contest.nodes[0], contenders=(), left_out=2)
    cut = replace(decision, contests=(replace(contest, nodes=(seen,)),))
    assert won(cut).is_same is None
    (stopped,) = stops(cut)
    assert (stopped.is_same, stopped.why) == (True, "without that not everything would fit on n1")


def test_a_large_contest_is_cut_and_the_record_stays_small() -> None:
    """Sixty nodes with forty jobs on each: a few nodes, and of each the first who would go."""
    snapshot = cluster(*(node(f"n{i:02}", "4G") for i in range(60)))
    for number in range(40):
        low = job(f"a-job-with-a-name-{number}", 60, "100M", priority=number)
        snapshot = submitted(snapshot, replace(low, placement=PlacementRules(max_per_node=1)))
    full = settled(snapshot)
    decision = recorded(full, planned(submit(full, job("shop", 9, "512M", priority=5000))))
    assert len(decision.contests) == CONTESTS_MAX and len(decision.nodes) == 60
    assert all(len(contest.nodes) == NODES_MAX for contest in decision.contests)
    first = decision.contests[0]
    assert first.left_out == 60 - NODES_MAX
    assert all(node.left_out == 40 - len(node.contenders) for node in first.nodes)
    again = [stopped.is_same for stopped in stops(decision)]
    assert again and False not in again


JOBS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(["256M", "512M", "1G", "1536M"]),
        st.integers(0, 6),
        st.sampled_from([None, None, 80, 81]),
        st.sampled_from([0, 0, 1]),
        st.sampled_from([0, 0, 1]),
    ),
    min_size=3,
    max_size=9,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["2G", "3G"]), min_size=2, max_size=4), JOBS, st.integers(0, 3))
def test_every_choice_comes_out_again(
    sizes: list[str],
    jobs: list[tuple[int, str, int, int | None, int, int]],
    victim: int,
) -> None:
    """Of those who submit and of those who wait: from the record, the same have to leave."""
    snapshot = cluster(*(node(f"n{i}", size) for i, size in enumerate(sizes)))
    for number, (count, memory, priority, port, floor, most) in enumerate(jobs):
        rules = PlacementRules(max_per_node=most)
        wanted = job(
            f"j{number}",
            count,
            memory,
            priority=priority,
            host_port=port,
            min_available=floor,
            placement=rules,
        )
        decision = submit(snapshot, wanted)
        if not isinstance(decision, Problem):
            assert_again(snapshot, decision)
            snapshot = settled(after(snapshot, decision))
    name = NodeName(f"n{victim % len(sizes)}")
    snapshot = lost(snapshot, name)
    for moment in range(20):
        seen = {
            r: AGAIN_SECONDS * moment for n in snapshot.nodes.values() for r in n.ledger.displaced
        }
        lately = Lately(wall=float(moment), boot=AGAIN_SECONDS * (moment + 1), seen=seen)
        proposal = propose(snapshot, frozenset({name}), 0.0, frozenset({name}), lately)
        if proposal is None:
            break
        assert_again(snapshot, proposal.plan)
        snapshot = settled(after(snapshot, proposal.plan))


def assert_again(snapshot: Snapshot, plan: Plan) -> None:
    decision = recorded(snapshot, plan)
    named = {victim for contest in decision.contests for victim in contest.victims}
    for stopped in stops(decision):
        if InstanceId(stopped.step.job, stopped.slot) in named:
            assert stopped.is_same, (stopped.why, decision.contests)
    if len(decision.contests) < CONTESTS_MAX:
        left = {e.instance for e in plan.edits if "displaced by" in e.reason}
        assert left == named
