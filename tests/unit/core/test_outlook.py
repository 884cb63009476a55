"""What would be: the small language, suppositions played to their end, losses of any nodes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.core.outlook import Future, fates
from ozymandias.core.survival import judge, survival_words, ways_to_lose
from ozymandias.core.whatif import Step, Verb, parse_steps
from ozymandias.model.node import NodeName
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from tests.unit.core.builders import (
    WEB,
    after,
    check,
    cluster,
    job,
    key,
    lost,
    node,
    settled,
    spread,
    submit,
    submitted,
)


def steps(text: str) -> tuple[Step, ...]:
    found = parse_steps(text)
    assert not isinstance(found, Problem), found
    return found


def played(snapshot: Snapshot, text: str) -> Future:
    future = Future(snapshot).play()
    for step in steps(text):
        assert future.suppose(step) is None
        future.play()
    return future


def test_the_language_reads_what_people_write() -> None:
    """Steps in a row, with sizes, labels and namespaces."""
    lose, add, scale, stop = steps(
        "lose n2 n3;  add n4 16G 100G zone=a\nscale shop/web 12; stop db;"
    )
    assert lose.nodes == ("n2", "n3") and lose.column == 1
    assert add.column == 14 and add.labels == {"zone": "a"}
    assert (add.capacity.memory_bytes, add.capacity.disk_bytes) == (16 * 2**30, 100 * 2**30)
    assert (scale.job, scale.count) == (key("web", "shop"), 12)
    assert stop.job == key("db")


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "there is no step."),
        (" ; ;", 1, "there is no step."),
        ("lose n1; loose n2", 10, "there is no step 'loose'. Did you mean lose?"),
        ("lose", 1, "lose needs more words."),
        ("add n4", 5, "how much memory n4 has is not said."),
        ("add n4 lots", 8, "'lots' is not a size"),
        ("add n4 0", 8, "a node without memory can't take anything."),
        ("add n4 zone=a", 8, "a node without memory can't take anything."),
        ("add n4 1G 1G 1G", 14, "'1G' is one word too many."),
        ("add n4 1G =a", 11, "'=a' is not LABEL=VALUE."),
        ("scale web", 7, "to how many web shall be scaled is not said."),
        ("scale web -1", 11, "'-1' is not a number of instances"),
        ("scale web 1 2", 13, "'2' is one word too many."),
        ("scale web 1000000", 11, "'1000000' is not a number of instances"),
        ("stop a/b/c", 6, "'a/b/c' is not JOB or NAMESPACE/JOB."),
        ("cordon n1 n2", 11, "'n2' is one word too many."),
        ("lose N!", 6, "'N!' can't be the name of a node."),
        ("stop a;" * 51, 351, "there are more than 50 steps."),
    ],
)
def test_what_cant_be_read_is_told_by_its_column(text: str, column: int, words: str) -> None:
    """Every complaint says where it is and what is wrong there."""
    found = parse_steps(text)
    assert isinstance(found, Problem)
    assert found.fields["column"] == column
    assert found.detail.startswith(f"Column {column}: ") and words in found.detail


@given(st.text(max_size=60))
def test_any_text_is_steps_or_a_problem(text: str) -> None:
    """Whatever is typed, the answer is one of the two."""
    found = parse_steps(text)
    assert isinstance(found, Problem) or all(isinstance(step, Step) for step in found)


def test_lost_work_moves_to_where_there_is_room() -> None:
    """Losing a node moves what fits, in the order of priorities, and tells what waits."""
    snapshot = submitted(cluster(n1="4G", n2="4G"), job("web", 4), job("db", 2, priority=10))
    future = played(settled(snapshot), "lose n2")
    assert future.is_at_rest
    check(future.now)
    found = {
        str(fate.job): (fate.outcome, fate.before, fate.after)
        for fate in fates(snapshot, future.now)
    }
    assert found == {"db": ("survives", 2, 2), "web": ("degrades", 4, 2)}
    moved = [str(c.instance.job) for c in future.changes if c.to]
    assert moved == sorted(moved, key=lambda name: name != "db") and "db" in moved


def test_an_added_node_takes_what_waited() -> None:
    """Lose one, add one: what had no place in between has one in the end."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job("web", 8)))
    future = played(snapshot, "lose n2; add n3 4G")
    assert spread(future.now) == [4, 4]
    assert all(fate.outcome == "survives" for fate in fates(snapshot, future.now))


def test_a_drained_node_becomes_empty() -> None:
    """Draining is played by its own planner, instance by instance, until nothing is left."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job("web", 4)))
    future = played(snapshot, "drain n1")
    assert {a.node for a in future.now.instances(WEB)} == {"n2"}
    assert future.is_at_rest


def test_scaling_is_refused_as_it_would_be() -> None:
    """A step that the cluster would refuse leaves it as it is, with the problem and its numbers."""
    future = Future(settled(submitted(cluster(n1="4G"), job("web", 2)))).play()
    problem = future.suppose(steps("scale web 9")[0])
    assert problem and problem.kind.slug == "insufficient-memory"
    assert spread(future.now) == [2]


def test_names_that_are_not_there_are_told() -> None:
    """Unknown nodes and jobs, nodes that are lost or there already."""
    future = Future(lost(cluster(n1="4G", n2="4G"), "n2"))
    for text in (
        "lose n9",
        "lose n2",
        "start n1",
        "add n1 4G",
        "scale web 2",
        "stop web",
        "drain n9",
    ):
        problem = future.suppose(steps(text)[0])
        assert problem and problem.kind.slug == "invalid-what-if", text


def test_nothing_is_changed_by_a_supposition() -> None:
    """The snapshot that was asked about is as it was."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job("web", 4)))
    before = repr(snapshot)
    played(snapshot, "lose n2; add n3 4G; scale web 6; stop web")
    assert repr(snapshot) == before


def test_survival_names_the_worst_loss() -> None:
    """The line that `ozy status` shows, for a cluster with room to spare and one without."""
    roomy = settled(submitted(cluster(n1="4G", n2="4G", n3="4G"), job("web", 4)))
    assert survival_words(judge(roomy)) == "survives the loss of any one node: yes"
    full = settled(submitted(cluster(n1="4G", n2="2G"), job("web", 4)))
    survival = judge(full)
    assert survival.worst and survival.worst.nodes == ("n1",)
    words = survival_words(survival)
    assert words.startswith("survives the loss of any one node: no: web-")
    assert words.endswith("would wait (n1 lost)")


def test_many_ways_to_lose_are_sampled_and_said_to_be() -> None:
    """Up to the limit all are played; beyond, those among the fullest, and the words tell."""
    small = cluster(*(node(f"n{i:02}") for i in range(6)))
    found, ways = ways_to_lose(small, 2)
    assert len(found) == ways == 15
    large = cluster(*(node(f"n{i:02}") for i in range(40)))
    found, ways = ways_to_lose(large, 3)
    assert ways == 9880 and len(found) <= 256
    assert "of 9880 ways" in survival_words(judge(large, 3))


def test_more_nodes_than_there_are_cant_be_lost() -> None:
    """The answer says so instead of guessing."""
    assert survival_words(judge(cluster(n1="4G"), 2)).endswith("there are not that many nodes")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2)), max_size=4),
    st.integers(0, 3),
)
def test_what_is_foreseen_is_what_happens(
    sizes: list[int], jobs: list[tuple[int, int, int]], victim: int
) -> None:
    """A loss foreseen ends at rest, with every node within its limits and every lack told."""
    snapshot = cluster(*(node(f"n{i}", f"{size}G") for i, size in enumerate(sizes)))
    for number, (count, memory, priority) in enumerate(jobs):
        wanted = job(f"j{number}", count, f"{memory}G", priority=priority)
        decision = submit(snapshot, wanted)
        if not isinstance(decision, Problem):
            snapshot = after(snapshot, decision)
    snapshot = settled(snapshot)
    gone = NodeName(f"n{victim % len(sizes)}")
    future = Future(snapshot).play()
    assert future.suppose(Step(verb=Verb.LOSE, text="lose", nodes=(gone,))) is None
    future.play()
    assert future.is_at_rest
    check(future.now)
    assert all(a.node != gone for a in future.now.instances())
    for fate in fates(snapshot, future.now):
        assert fate.after <= fate.wanted
        # Who was displaced before had no place to lose.
        assert fate.missing_before or len(fate.waiting) == fate.missing
