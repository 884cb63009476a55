"""Why a job is not on a node, and advice for what is pending: told with numbers, and verified."""

from ozymandias.core.advice import advice, carried_out, does
from ozymandias.core.explain import why
from ozymandias.core.upkeep import plan_pending
from ozymandias.core.whynot import verdicts_now, why_not
from ozymandias.model.job import JobKind, LabelRule, PlacementRules
from ozymandias.model.node import Drain, NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import WEB, cluster, job, key, lost, node, settled, submitted

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")


def wanting(snapshot: Snapshot, count: int) -> Snapshot:
    """The job wants so many, wherever they may go."""
    record = snapshot.jobs[WEB]
    more = replace(record, head=replace(record.head, wanted=count))
    return replace(snapshot, jobs={**snapshot.jobs, WEB: more})


def test_what_is_short_is_told_with_numbers() -> None:
    """A node without room says how much is missing, and how small the job would have to be."""
    snapshot = settled(submitted(cluster(n1="4G", n2="1G"), job("web", 1, "2G")))
    found = why_not(snapshot, WEB, N2)
    assert found.lines == (
        "Another instance of web can't go to n2: it is 1G of memory short (1G free).",
    )
    assert [s.change for s in found.suggestions] == [{"containers.app.memory": "1G"}]


def test_who_beats_it_is_told_by_the_term_that_decides() -> None:
    """A node that could take it, and the first thing that counts against it."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job("web", 1)))
    (there,) = snapshot.instances()
    found = why_not(snapshot, WEB, there.node)
    assert found.lines[0] == f"web-0 is on {there.node}."
    assert "comes before it: same_job is 0 there and 1 here" in found.lines[1]
    other = N1 if there.node == N2 else N2
    assert why_not(snapshot, WEB, other).lines == (
        f"The next instance of web would go to {other}.",
    )


def test_of_a_large_job_too_the_first_is_where_the_next_one_goes() -> None:
    """Placing counts tenths of a job, and so does who asks why not."""
    three = cluster(n1="40G", n2="60G", n3="80G")
    for count in (12, 25, 33):
        snapshot = wanting(settled(submitted(three, job("web", count, "1G"))), count + 1)
        plan = plan_pending(snapshot)
        assert plan is not None
        (step,) = plan.edits
        first = verdicts_now(snapshot, snapshot.jobs[WEB])[0]
        assert (first.rank, first.node) == (1, step.node)


def test_closed_nodes_are_opened_by_suggestions() -> None:
    """Cordoned, drained and absent nodes each say what would let the job in."""
    snapshot = cluster(
        node("n1"), node("n2", cordoned=True), node("n3", drain=Drain(since=0.0)), node("n4")
    )
    snapshot = lost(submitted(snapshot, job("web", 1)), "n4")
    assert [s.change for s in why_not(snapshot, WEB, N2).suggestions] == [{"uncordon": "n2"}]
    assert [s.change for s in why_not(snapshot, WEB, N3).suggestions] == [{"undrain": "n3"}]
    found = why_not(snapshot, WEB, NodeName("n4"))
    assert [s.change for s in found.suggestions] == [{"start": ["n4"]}]


def test_rules_are_told_and_loosened() -> None:
    """A label that is missing, a limit that is reached."""
    rules = PlacementRules(require=(LabelRule(label="zone", values=("a",)),), max_per_node=1)
    snapshot = cluster(node("n1", labels={"zone": "a"}), node("n2"))
    snapshot = submitted(snapshot, job("web", 1, placement=rules))
    found = why_not(snapshot, WEB, N2)
    assert "without label zone == a" in found.lines[-1]
    assert [s.change for s in found.suggestions] == [
        {"label": {"node": "n2", "labels": {"zone": "a"}}}
    ]
    found = why_not(snapshot, WEB, N1)
    assert "at the job's limit of 1 per node" in found.lines[-1]
    assert [s.change for s in found.suggestions] == [{"placement.max_per_node": 2}]


def test_system_jobs_are_for_nodes_not_between_them() -> None:
    """Why a node is none of theirs, or that it will be."""
    rules = PlacementRules(require=(LabelRule(label="zone", values=("a",)),))
    snapshot = cluster(node("n1", labels={"zone": "a"}), node("n2"))
    snapshot = submitted(snapshot, job("web", 1, kind=JobKind.SYSTEM, placement=rules))
    assert why_not(snapshot, WEB, N2).lines == (
        "web is not for n2: it is without label zone == a.",
    )
    assert why_not(snapshot, WEB, N1).lines == ("web-0 is on n1.",)


def test_pending_instances_come_with_advice() -> None:
    """What would give all of them a place, each tried out."""
    snapshot = settled(
        submitted(cluster(node("n1", "2G"), node("n2", "2G", cordoned=True)), job("web", 2))
    )
    snapshot = wanting(snapshot, 4)
    changes = [s.change for s in advice(snapshot, WEB)]
    assert {"uncordon": "n2"} in changes
    assert {"nodes": 1, "memory_bytes": 2 * 2**30, "disk_bytes": 0} in changes
    lines = why(snapshot, WEB)
    assert "All of them would have a place if you uncordon n2." in lines


def test_a_job_with_all_its_instances_needs_no_advice() -> None:
    """Nor does one that is not there."""
    snapshot = settled(submitted(cluster(n1="4G"), job("web", 2)))
    assert advice(snapshot, WEB) == () == advice(snapshot, key("none"))


def test_an_unknown_change_is_not_carried_out() -> None:
    """What nobody knows how to do is never told as verified."""
    snapshot = submitted(cluster(n1="4G"), job("web", 1))
    assert carried_out(snapshot, WEB, {"wish": "upon a star"}) is None
    assert not does(snapshot, WEB, {"wish": "upon a star"})
