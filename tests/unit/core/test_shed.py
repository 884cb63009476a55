"""Who leaves a host under pressure, in which order, and who never does."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ozymandias.core.arbiter import propose
from ozymandias.core.buckets import sort_job
from ozymandias.core.shed import foresee_shed, leavable, plan_shed
from ozymandias.model.instance import SlotState
from ozymandias.model.job import (
    Job,
    JobKey,
    JobKind,
    JobName,
    Neighbour,
    OnPartition,
    PlacementRules,
)
from ozymandias.model.node import Load, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import (
    after,
    cluster,
    job,
    key,
    node,
    planned,
    report,
    settled,
    submit,
    submitted,
    vacated,
    where,
)

N1 = NodeName("n1")
TAINT = "memory pressure: 3 % of 4G is available, less than 4 %"


def pressed(snapshot: Snapshot, keep: int, *, urgent: bool = False, name: str = "n1") -> Snapshot:
    """The node is under pressure and would keep so many instances."""
    there = snapshot.nodes[NodeName(name)]
    load = Load(taint=TAINT, shed_to=keep, is_urgent=urgent)
    return replace(snapshot, nodes={**snapshot.nodes, there.name: replace(there, load=load)})


def told(plan: Plan) -> list[str]:
    return [f"{e.job.name}-{e.slot} {e.node} {e.after}" for e in plan.edits]


def test_lowest_priority_starts_elsewhere_first() -> None:
    """One at a time: a replacement, and when that is healthy, the one here stops."""
    snapshot = settled(
        submitted(cluster(n1="4G"), job("low", 1, "1G"), job("high", 1, "1G", priority=9))
    )
    more = replace(snapshot, nodes={**snapshot.nodes, NodeName("n2"): node("n2", "4G")})
    asking = pressed(more, 1)
    first = planned(plan_shed(asking))
    assert told(first) == ["low-1 n2 running"]
    assert first.edits[0].reason.startswith(f"n1 is under {TAINT}, and low-0 is the next to leave")
    started = pressed(after(asking, first), 1)
    assert plan_shed(started) is None  # not healthy yet
    healthy = report(started)
    second = planned(plan_shed(healthy))
    assert told(second) == ["low-0 n1 stopping"]
    done = settled(after(healthy, second))
    assert where(done, key("low")) == {"1": "n2 v1 running"}
    assert propose(done, frozenset()) is None


def test_without_room_it_stops_and_is_pending() -> None:
    """Never on another's cost: the arbiter's next look finds nothing to place."""
    snapshot = settled(submitted(cluster(n1="4G"), job("low", 2, "1G"), job("a", 1, "1G")))
    plan = planned(plan_shed(pressed(snapshot, 2)))
    assert told(plan) == ["a-0 n1 stopping"]
    assert plan.edits[0].reason == (
        f"n1 is under {TAINT}: of priority 0, it is the next to leave, and no other node has room"
    )
    left = settled(after(pressed(snapshot, 2), plan))
    assert propose(left, frozenset()) is None  # two are left, as it asked; and it takes no work


def test_who_serves_nobody_and_then_the_largest_leaves_first() -> None:
    """Within one priority."""
    snapshot = submitted(
        cluster(n1="4G"), job("big", 1, "2G"), job("small", 1, "256M"), job("sick", 1, "512M")
    )
    sick = report(snapshot, sick_0=False)
    assert told(planned(plan_shed(pressed(sick, 2)))) == ["sick-0 n1 stopping"]
    assert told(planned(plan_shed(pressed(report(snapshot), 2)))) == ["big-0 n1 stopping"]


def test_protected_system_and_needed_ones_stay() -> None:
    """The next in order leaves instead; if there is none, nobody does."""
    snapshot = settled(
        submitted(
            cluster(n1="4G"),
            job("every", 0, "256M", kind=JobKind.SYSTEM),
            job("safe", 1, "256M", is_protected=True),
            job("needed", 1, "256M", min_available=1),
        )
    )
    assert plan_shed(pressed(snapshot, 0)) is None
    more = settled(submitted(snapshot, job("other", 1, "256M", priority=5)))
    assert told(planned(plan_shed(pressed(more, 1)))) == ["other-0 n1 stopping"]
    _, staying = foresee_shed(pressed(more, 1), N1)
    assert {s.assigned.job.name: s.reason for s in staying} == {
        "safe": "it is protected",
        "needed": "no other node has room, and needed needs 1 healthy, of which it has 1",
        "every": "it belongs to every node, as a system job",
    }


def test_needed_ones_leave_where_there_is_room() -> None:
    """Start-first costs no budget."""
    snapshot = settled(submitted(cluster(n1="1G"), job("needed", 1, "1G", min_available=1)))
    more = replace(snapshot, nodes={**snapshot.nodes, NodeName("n2"): node("n2", "4G")})
    assert told(planned(plan_shed(pressed(more, 0)))) == ["needed-1 n2 running"]


def test_exclusive_ones_never_run_twice() -> None:
    """It stops here and waits there, in one slot."""
    alone = job("db", 1, "1G", on_partition=OnPartition.STOP)
    snapshot = settled(submitted(cluster(n1="1G"), alone))
    more = replace(snapshot, nodes={**snapshot.nodes, NodeName("n2"): node("n2", "4G")})
    assert told(planned(plan_shed(pressed(more, 0)))) == ["db-0 n1 stopping", "db-0 n2 waiting"]


def test_urgent_does_not_wait_for_health() -> None:
    """A replacement that never gets healthy does not keep the host under pressure."""
    snapshot = settled(submitted(cluster(n1="1G"), job("low", 1, "1G")))
    more = replace(snapshot, nodes={**snapshot.nodes, NodeName("n2"): node("n2", "4G")})
    started = pressed(after(pressed(more, 0), plan_shed(pressed(more, 0))), 0)
    assert plan_shed(report(started, low_1=False)) is None
    urgent = pressed(report(started, low_1=False), 0, urgent=True)
    assert told(planned(plan_shed(urgent))) == ["low-0 n1 stopping"]
    at_once = planned(plan_shed(pressed(more, 0, urgent=True)))
    assert told(at_once) == ["low-0 n1 stopping"]
    assert at_once.edits[0].reason.endswith("and that can't wait for a replacement")


def test_urgent_or_not_the_needed_ones_start_elsewhere_when_there_is_room() -> None:
    """Whoever may stop at once goes before them; then they leave as if there were time."""
    needed, other = job("a", 1, "1G", min_available=1), job("b", 1, "1G", priority=9)
    full = settled(submitted(cluster(n1="2G"), needed, other))
    more = replace(full, nodes={**full.nodes, NodeName("n2"): node("n2", "1G")})
    assert told(planned(plan_shed(pressed(more, 0, urgent=True)))) == ["b-0 n1 stopping"]
    alone = settled(submitted(cluster(n1="2G"), needed))
    more = replace(alone, nodes={**alone.nodes, NodeName("n2"): node("n2", "1G")})
    started = after(more, plan_shed(pressed(more, 0, urgent=True)))
    assert where(started, key("a")) == {"0": "n1 v1 running", "1": "n2 v1 running"}
    assert plan_shed(pressed(started, 0, urgent=True)) is None  # not healthy yet
    healthy = pressed(report(started), 0, urgent=True)
    assert told(planned(plan_shed(healthy))) == ["a-0 n1 stopping"]


def test_two_hosts_under_pressure_share_what_a_job_can_spare() -> None:
    """Each takes from a budget, a slot or a replacement that the other may not take as well."""
    web = job("web", 3, "1G", min_available=2)
    full = settled(submitted(cluster(n1="1G", n2="1G", n3="1G"), web))
    both = pressed(pressed(full, 0), 0, name="n2")
    plan = planned(plan_shed(both))
    assert told(plan) == ["web-2 n1 stopping"]
    assert plan_shed(settled(after(both, plan))) is None  # two are healthy, and needed
    roomy = replace(both, nodes={**both.nodes, NodeName("n4"): node("n4", "8G")})
    started = after(roomy, planned(plan_shed(roomy)))
    assert where(started)["3"] == "n4 v1 running"
    assert told(planned(plan_shed(report(started)))) == ["web-2 n1 stopping"]


def test_two_hosts_under_pressure_send_nobody_to_whom_it_is_apart_from() -> None:
    """What one host's leaver finds elsewhere counts for the other's."""
    apart = PlacementRules(apart=(Neighbour(job=key("a")),))
    start = cluster(n1="1G", n2="1G")
    full = settled(submitted(start, job("a"), job("b", placement=apart)))
    both = pressed(pressed(full, 0), 0, name="n2")
    roomy = replace(both, nodes={**both.nodes, NodeName("n3"): node("n3", "8G")})
    snapshot = after(roomy, planned(plan_shed(roomy)))
    assert len(list(snapshot.instances_on(NodeName("n3")))) == 1


def test_order_is_told_beforehand() -> None:
    """Lowest first, each with where it would go."""
    snapshot = settled(
        submitted(
            cluster(n1="4G"),
            job("low", 2, "1G"),
            job("middle", 1, "1G", priority=5),
            job("high", 1, "512M", priority=9),
        )
    )
    more = replace(snapshot, nodes={**snapshot.nodes, NodeName("n2"): node("n2", "2G")})
    leaving, staying = foresee_shed(more, N1)
    assert [(str(x.assigned.instance), x.to) for x in leaving] == [
        ("low-1", "n2"),
        ("low-0", "n2"),
        ("middle-0", ""),
        ("high-0", ""),
    ]
    assert not staying


def could_go_before(snapshot: Snapshot, priority: int) -> list[JobKey]:
    """Those on n1 of a lower priority that nothing holds: neither a word nor a budget."""
    found = []
    for a in leavable(snapshot, N1):
        record = snapshot.jobs[a.job]
        assert record.current is not None
        job_, buckets = record.current.job, sort_job(snapshot, a.job)
        serving = (*buckets.ready, *buckets.serving)
        floor = min(job_.min_available, record.head.wanted)
        is_needed = a in serving and len(serving) <= floor
        if job_.priority < priority and not job_.is_protected and not is_needed:
            found.append(a.job)
    return found


services = st.builds(
    job,
    instances=st.integers(1, 4),
    memory=st.sampled_from(["256M", "512M", "1G"]),
    priority=st.integers(0, 3),
    min_available=st.integers(0, 2),
    is_protected=st.sampled_from([False, False, True]),
    on_partition=st.sampled_from([OnPartition.KEEP, OnPartition.KEEP, OnPartition.STOP]),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(services, min_size=1, max_size=5), st.integers(0, 3), st.booleans())
def test_shedding_keeps_floors_and_ends(wanted: list[Job], keep: int, urgent: bool) -> None:
    """Step by step, as nodes carry it out: never below a floor, never protected, lowest first."""
    snapshot = cluster(n1="4G", n2="2G")
    for number, each in enumerate(wanted):
        plan = submit(snapshot, replace(each, name=JobName(f"j{number}")))
        if isinstance(plan, Plan):
            snapshot = settled(after(snapshot, plan))
    for _ in range(40):
        snapshot = pressed(snapshot, keep, urgent=urgent)
        proposal = propose(snapshot, frozenset())
        if proposal is None:
            break
        for edit in proposal.plan.edits:
            current = snapshot.jobs[edit.job].current
            assert current is not None
            if proposal.what == "shed" and edit.after is SlotState.STOPPING:
                assert not current.job.is_protected and edit.node == "n1"
                assert not could_go_before(snapshot, current.job.priority)
        before = snapshot
        snapshot = report(after(snapshot, proposal.plan))
        for name, record in snapshot.jobs.items():
            assert record.current is not None
            floor = min(record.current.job.min_available, record.head.wanted)
            had, has = sort_job(before, name), sort_job(snapshot, name)
            healthy = len(has.ready) + len(has.serving)
            assert healthy >= min(floor, len(had.ready) + len(had.serving))
        snapshot = report(vacated(snapshot))
    else:
        raise AssertionError("it does not end")
    if len(leavable(snapshot, N1)) > keep:  # whoever is left has a reason
        left = [a.job for a in leavable(snapshot, N1)]
        for name in left:
            record = snapshot.jobs[name]
            assert record.current is not None
            buckets = sort_job(snapshot, name)
            is_needed = len(buckets.ready) <= min(
                record.current.job.min_available, record.head.wanted
            )
            assert record.current.job.is_protected or is_needed
