"""Plans larger than a transaction: a part of them is done, and the rest is decided again."""

from collections.abc import Callable

import pytest

from ozymandias.core import drain, rollout
from ozymandias.core.arbiter import propose
from ozymandias.core.autoscale import Answer, Asked, plan_look
from ozymandias.core.nodes import plan_begin_drain
from ozymandias.core.schedule import plan_restart, plan_scale, plan_stop, plan_submit
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Autoscale, PendingSource, PlacementRules
from ozymandias.model.node import Drain, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from tests.unit.core.builders import (
    NAMES,
    WEB,
    after,
    cluster,
    job,
    key,
    planned,
    settled,
    submitted,
)

NOW = 1_000_000.0
NODES = {f"n{number}": "4G" for number in range(8)}
APART = PlacementRules(max_per_node=1)
STEPS_MAX = 100


def at_rest(snapshot: Snapshot, most: int) -> Snapshot:
    """All that peers would do, of which so many places go into one transaction."""
    for _ in range(STEPS_MAX):
        proposal = propose(snapshot, frozenset(), NOW)
        if proposal is None:
            return snapshot
        snapshot = settled(after(snapshot, proposal.plan.first(most)))
    raise AssertionError("they did not come to rest")


def live(snapshot: Snapshot) -> list[tuple[str, int]]:
    return [
        (a.node, a.version) for a in snapshot.instances(WEB) if a.state is not SlotState.STOPPING
    ]


def test_a_stop_is_as_large_as_it_is() -> None:
    """The job goes with the first part, and its last instance with the last."""
    snapshot = settled(submitted(cluster(**NODES), job(instances=8, placement=APART)))
    stopped = planned(plan_stop(snapshot, WEB))
    snapshot = after(snapshot, stopped.first(3))
    assert snapshot.jobs[WEB].head.deleting and len(live(snapshot)) == 5
    proposal = propose(snapshot, frozenset(), NOW)
    assert proposal is not None and proposal.what == "stop"
    assert proposal.plan.reason == "web: stopped"
    assert {edit.reason for edit in proposal.plan.edits} == {"web is stopped"}
    snapshot = after(snapshot, proposal.plan.first(3))
    assert len(live(snapshot)) == 2
    assert WEB not in at_rest(settled(snapshot), 3).jobs


def test_what_could_not_be_reached_when_a_job_was_stopped_ends_later() -> None:
    """A ledger that can't be read comes back: what lives there is of nobody."""
    whole = settled(submitted(cluster(**NODES), job(instances=8, placement=APART)))
    away = whole.nodes[NodeName("n3")]
    snapshot = replace(whole, nodes={n: there for n, there in whole.nodes.items() if n != "n3"})
    snapshot = settled(after(snapshot, plan_stop(snapshot, WEB)))
    assert live(snapshot) == [("n3", 1)] and propose(snapshot, frozenset(), NOW) is None
    snapshot = replace(snapshot, nodes={**snapshot.nodes, away.name: away})
    assert WEB not in at_rest(snapshot, 3).jobs


def test_of_many_surplus_instances_some_stop_at_a_time() -> None:
    """As many as go into one transaction; the rest at the next step."""
    many = rollout.EDITS_MAX + 250
    snapshot = settled(submitted(cluster(n1="64G", n2="64G"), job(instances=many, memory="64M")))
    head = replace(snapshot.jobs[WEB].head, wanted=10)
    snapshot = replace(snapshot, jobs={WEB: replace(snapshot.jobs[WEB], head=head)})
    first = planned(rollout.plan_rollout(snapshot))
    assert len(first.edits) == rollout.EDITS_MAX
    second = planned(rollout.plan_rollout(settled(after(snapshot, first))))
    assert len(second.edits) == many - 10 - rollout.EDITS_MAX


def test_a_pool_that_is_idle_is_as_large_as_it_is() -> None:
    """Its number goes down with the first part, and its last instance with the last."""
    rules = Autoscale(min=0, max=8, source=PendingSource.KEY, target="/queue")
    wanted = job(instances=8, placement=APART, autoscale=rules)
    snapshot = settled(submitted(cluster(**NODES), wanted))
    asked = Asked(uid="u", version=1, steps=0, by="n1", now=NOW)
    idle = planned(plan_look(snapshot, WEB, Answer(pending=0), asked))
    snapshot = settled(after(snapshot, idle.first(3)))
    assert snapshot.jobs[WEB].head.wanted == 0 and len(live(snapshot)) == 5
    assert not live(at_rest(snapshot, 3))


def restarted(snapshot: Snapshot) -> Plan | Problem:
    return plan_restart(snapshot, WEB)


def fewer(snapshot: Snapshot) -> Plan | Problem:
    return plan_scale(snapshot, WEB, 2)


def changed(snapshot: Snapshot) -> Plan | Problem:
    wanted = job(instances=6, memory="2G")
    return plan_submit(snapshot, wanted, uid="u", names=NAMES)


def emptied(snapshot: Snapshot) -> Plan | Problem:
    asked = Drain(since=NOW, deadline=NOW + 60)
    return plan_begin_drain(snapshot, NodeName("n0"), asked)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("ask", [restarted, fewer, changed, emptied])
def test_what_is_done_in_parts_comes_to_the_same_end(
    most: int, ask: Callable[[Snapshot], Plan | Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fits into one transaction, and whatever it is that is done."""
    snapshot = submitted(cluster(**NODES), job(instances=6), job("other", 5, "2G"))
    snapshot = settled(snapshot)
    asked = planned(ask(snapshot))
    whole = at_rest(settled(after(snapshot, asked)), 1000)
    monkeypatch.setattr(rollout, "EDITS_MAX", most)
    monkeypatch.setattr(drain, "EDITS_MAX", most)
    parts = at_rest(settled(after(snapshot, asked.first(most))), most)
    for wanted in (WEB, key("other")):
        found = [sorted(a.version for a in s.instances(wanted)) for s in (whole, parts)]
        assert found[0] == found[1] and len(found[0]) == whole.jobs[wanted].head.wanted
    for name in NODES:
        is_empty = whole.nodes[NodeName(name)].ledger.drain is not None
        assert not (is_empty and (whole.on(NodeName(name)) or parts.on(NodeName(name))))
