"""A plan applied: exact, marked, and never beyond what a node has."""

import pytest

from ozymandias.core.apply import apply, merged
from ozymandias.core.schedule import plan_scale, plan_stop
from ozymandias.model.instance import Group, Slots, SlotState
from ozymandias.model.node import Demand, NodeName, Resources
from ozymandias.model.plan import Edit, JobChange, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import (
    WEB,
    after,
    check,
    cluster,
    job,
    lost,
    planned,
    settled,
    submit,
    submitted,
)

N1 = NodeName("n1")
ONE = cluster(n1="4G")


def edit(snapshot: Snapshot, **changes: object) -> Edit:
    """A step of the first instance of web, changed."""
    first = next(iter(snapshot.instances(WEB)))
    made = Edit(
        node=first.node,
        job=first.job,
        slot=first.slot,
        uid=first.uid,
        version=first.version,
        before=SlotState.RUNNING,
        after=SlotState.STOPPING,
        demand=first.demand,
        reason="test",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_a_plan_touches() -> None:
    """The nodes whose ledgers change, and the assignments."""
    plan = planned(submit(ONE, job(instances=2)))
    assert (plan.touched, plan.pairs) == ({N1}, {(N1, WEB)})
    assert Plan(reason="", dead=frozenset({N1})).touched == {N1}


def test_what_was_rewritten_carries_the_commit() -> None:
    """Ledger and head name the transaction that wrote them; others are as they were."""
    two = cluster(n1="4G", n2="4G")
    snapshot = apply(two, planned(submit(two, job())), "first")
    (there,) = snapshot.instances(WEB)
    assert snapshot.jobs[WEB].head.commit == "first"
    assert {n: x.ledger.commit for n, x in snapshot.nodes.items() if x.ledger.commit} == {
        there.node: "first"
    }
    assert snapshot.revision == two.revision


def test_slots_of_a_kind_are_one_group() -> None:
    """Groups are merged and in a canonical order; an assignment without groups is gone."""
    snapshot = settled(submitted(ONE, job(instances=4)))
    (assignment,) = snapshot.assignments.values()
    assert [str(g.slots) for g in assignment.groups] == ["0-3"]
    snapshot = after(snapshot, plan_scale(snapshot, WEB, 1))
    (assignment,) = snapshot.assignments.values()
    assert [(g.state, str(g.slots)) for g in assignment.groups] == [
        (SlotState.RUNNING, "0"),
        (SlotState.STOPPING, "1-3"),
    ]
    group = Group(uid="u", version=1, state=SlotState.RUNNING, slots=Slots.of([2]), demand=Demand())
    (one,) = merged([group, replace(group, slots=Slots.of([0, 1]))])
    assert str(one.slots) == "0-2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"before": SlotState.STOPPING, "after": None}, "is not stopping"),
        ({"version": 7}, "is not running"),
        ({"slot": 9}, "is not running"),
        ({"before": None, "after": SlotState.RUNNING}, "is on n1 already"),
        ({"before": None, "after": SlotState.RUNNING, "version": 2}, "would be alive twice"),
        ({"before": None, "after": SlotState.RUNNING, "slot": 1, "version": 2}, "would hold"),
        ({"node": NodeName("n9"), "before": None, "after": SlotState.STOPPING}, "has no ledger"),
    ],
)
def test_edit_that_does_not_match(changes: dict[str, object], message: str) -> None:
    """An edit must find what it expects, and may not overfill or double anything."""
    snapshot = submitted(ONE, job(memory="3G"))
    with pytest.raises(AssertionError, match=message):
        apply(snapshot, Plan(reason="", edits=(edit(snapshot, **changes),)))


def test_host_port_twice() -> None:
    """A host port has one owner on a node."""
    snapshot = submitted(ONE, job(host_port=80))
    again = edit(snapshot, before=None, after=SlotState.RUNNING, slot=1)
    with pytest.raises(AssertionError, match="host port 80/tcp twice"):
        apply(snapshot, Plan(reason="", edits=(again,)))


def test_node_over_its_limit_may_shrink() -> None:
    """When a node's capacity was lowered, stopping there must still be possible."""
    snapshot = submitted(ONE, job(instances=4))
    there = snapshot.nodes[N1]
    ledger = replace(there.ledger, capacity=Resources(memory_bytes=2**30))
    snapshot = replace(snapshot, nodes={N1: replace(there, ledger=ledger)})
    result = apply(snapshot, planned(plan_stop(snapshot, WEB)))
    assert result.nodes[N1].ledger.promised.resources == Resources()


def test_dead_nodes_must_be_absent() -> None:
    """A node that is alive can't be declared dead; of a dead one the statuses go."""
    snapshot = settled(submitted(ONE, job()))
    plan = Plan(reason="", edits=(edit(snapshot, before=SlotState.RUNNING, after=None),), dead={N1})  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="alive"):
        apply(snapshot, plan)
    result = apply(lost(snapshot, "n1"), plan)
    assert not result.statuses and not result.assignments
    check(result)


def test_claims_of_others_are_not_taken() -> None:
    """A claim is free or ours."""
    snapshot = submitted(ONE, job("other"))
    owned = replace(snapshot, claims={"a/": next(iter(snapshot.jobs))})
    head = snapshot.jobs[next(iter(snapshot.jobs))].head
    change = JobChange(key=WEB, head=head, claim=frozenset({"a/"}))
    with pytest.raises(AssertionError, match="belongs to other"):
        apply(owned, Plan(reason="", job=change))
