"""The simulator's checks, where one of them was wrong before."""

import asyncio
from collections.abc import Callable
from typing import Any

from ozymandias import problems
from ozymandias.core.arbiter import propose
from ozymandias.core.schedule import plan_repair
from ozymandias.model.instance import (
    Assignment,
    Group,
    InstanceState,
    InstanceStatus,
    Slots,
    SlotState,
)
from ozymandias.model.job import (
    Autoscale,
    Burst,
    Container,
    Job,
    JobHead,
    JobKey,
    JobName,
    JobVersion,
    Look,
    Move,
    Namespace,
    PendingSource,
    PlacementRules,
)
from ozymandias.model.node import Demand, Displaced, Drain, Ledger, NodeName, Presence, Resources
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow, Settings
from ozymandias.ports import KV, Event
from ozymandias.problems import ProblemError
from ozymandias.sim.pools import Pools
from ozymandias.sim.rest import differences, still_to_do, undrained
from ozymandias.sim.returns import could_go_on
from ozymandias.sim.rules import check_rules
from ozymandias.sim.truth import Change, Truth, live_of
from ozymandias.sim.users import Call, Users
from ozymandias.sim.witness import Rules, Witness
from ozymandias.store import codec, keys
from tests.unit.core import builders

WEB = JobKey(Namespace("default"), JobName("web"))
N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
DEMAND = Demand(memory_bytes=1, disk_bytes=0)
CAPACITY = Resources(memory_bytes=2**32, disk_bytes=2**32)


def cluster(rules: PlacementRules, wanted: int, *there: NodeName) -> Truth:
    """Three nodes that take work; one instance of a job runs, healthy, on each of ``there``."""
    truth = Truth()
    containers = (Container(name="app", image="app", memory_bytes=1),)
    job = Job(name=WEB.name, instances=wanted, containers=containers, placement=rules)
    truth.heads[WEB] = JobHead(uid="u", version=1, wanted=wanted)
    truth.versions[WEB, 1] = JobVersion(uid="u", version=1, job=job)
    for node in (N1, N2, N3):
        truth.presences[node] = Presence(
            address="", machine_id=node, session="", daemon_version="0", api=""
        )
        truth.ledgers[node] = Ledger(capacity=CAPACITY)
    for slot, node in enumerate(there):
        running, slots = SlotState.RUNNING, Slots.of([slot])
        group = Group(uid="u", version=1, state=running, slots=slots, demand=DEMAND)
        truth.assignments[node] = {WEB: Assignment(node=node, job=WEB, groups=(group,))}
        healthy = InstanceStatus(
            slot=slot, uid="u", version=1, state=InstanceState.HEALTHY, healthy=True
        )
        truth.statuses.setdefault(WEB, {})[node] = {slot: healthy}
    return truth


def put(key: bytes, value: object, revision: int = 1) -> Event:
    return Event(KV(key, codec.encode(value), 1, revision, 1, 0), deleted=False)


def answers(users: Users, call: Call, during: Callable[[], None], *, problem: Any = None) -> None:
    """A call during which something happens, and which is answered with this."""

    async def request() -> dict[str, Any]:
        during()
        if problem:
            raise ProblemError(problem("for a test"))
        return {"changed": True}

    asyncio.run(users.ask(call, request))


def scaled(users: Users) -> None:
    before = JobHead(uid="u", version=1, wanted=4)
    users.head_changed(WEB, before, JobHead(uid="u", version=1, wanted=1), 2)


def nothing() -> None:
    pass


def test_an_answer_tells_which_of_two_like_calls_made_a_change() -> None:
    """A submit without an answer might have scaled to one as well; the scale says it did."""
    violations: list[str] = []
    users = Users(Truth(), lambda text: None, violations.append)
    unknown = Call(kind="submit", key=WEB, wanted=1)
    answers(users, unknown, nothing, problem=problems.OUTCOME_UNKNOWN)
    answers(users, Call(kind="scale", key=WEB, wanted=1), lambda: scaled(users))
    assert violations == []
    assert unknown.applied == 0
    answers(users, Call(kind="scale", key=WEB, wanted=1), nothing)
    assert violations == ["S5 scale web to 1 was acknowledged and never happened"]


def test_a_refusal_tells_that_another_call_made_a_change() -> None:
    """The change is put down to the call without an answer; with none such it is a violation."""
    for others in ([Call(kind="scale", key=WEB, wanted=1)], []):
        violations: list[str] = []
        users = Users(Truth(), lambda text: None, violations.append)
        refused = Call(kind="submit", key=WEB, wanted=1)
        users.calls.append(refused)  # it is the first that a change is put down to
        for other in others:
            answers(users, other, nothing, problem=problems.OUTCOME_UNKNOWN)
        answers(users, refused, lambda: scaled(users), problem=problems.NO_NODES)  # noqa: B023
        assert [other.applied for other in others] == [1] * len(others)
        assert len(violations) == 1 - len(others)


def test_what_waits_for_a_node_that_never_answers_may_wait() -> None:
    """Its predecessor stops where podman hangs for ever; where it works that is not rest."""
    truth = Truth()
    for node, state in ((N1, SlotState.STOPPING), (N2, SlotState.WAITING)):
        group = Group(uid="u", version=1, state=state, slots=Slots.of([0]), demand=DEMAND)
        truth.assignments[node] = {WEB: Assignment(node=node, job=WEB, groups=(group,))}
        truth.presences[node] = None  # type: ignore[assignment]
    assert differences(truth, {}, {N2}) == []
    assert differences(truth, {}, {N1, N2}) == [
        "web-0 is still stopping on n1",
        "web-0 is still waiting on n2",
    ]


def test_a_drain_does_not_send_to_a_bursts_node_what_belongs_at_home() -> None:
    """The only room is on the burst's node: it is for what is wanted above, not for the first."""
    for wanted, found in ((3, ["web-0 could leave n1 for n2"]), (2, [])):
        rules = PlacementRules(burst=Burst(after=2, nodes=(N2,)))
        truth = cluster(rules, wanted, *(N1, N3, N2)[:wanted])
        truth.ledgers[N1] = Ledger(capacity=CAPACITY, drain=Drain(since=0.0))
        truth.ledgers[N3] = Ledger(capacity=CAPACITY, is_cordoned=True)
        assert undrained(truth, {N1, N2, N3}) == found


def test_a_node_that_sees_its_own_part_alone_may_stop_what_its_job_lacks() -> None:
    """Whether it lacks that is for those to say who see all of its instances."""
    truth = cluster(PlacementRules(), 2, N1)
    pod = PodId(
        node=N2, namespace=WEB.namespace, job=WEB.name, slot=1, uid="u", version=1, generation=0
    )
    assert could_go_on(truth, pod)
    truth.presences[N2] = replace(truth.presences[N2], schedules=False)
    assert not could_go_on(truth, pod)


def test_what_is_asked_for_again_was_decided_on_an_older_view() -> None:
    """One that serves is stopped: decided just now that is wrong, asked for again it may not be."""
    for sent_at, is_wrong in ((9.9, True), (8.0, False)):
        violations: list[str] = []
        now = [0.0]
        witness = Witness(Rules(), lambda: now[0], violations.append)  # noqa: B023
        truth = cluster(PlacementRules(), 2, N1, N2)
        job = replace(truth.versions[WEB, 1].job, min_available=2)
        groups = truth.assignments[N1][WEB].groups
        stopping = tuple(replace(group, state=SlotState.STOPPING) for group in groups)
        witness.commit(
            1,
            [
                put(keys.version(WEB, 1), replace(truth.versions[WEB, 1], job=job)),
                put(keys.job(WEB), truth.heads[WEB]),
                *(put(keys.node(n), truth.presences[n]) for n in (N1, N2)),
                *(put(keys.ledger(n), truth.ledgers[n]) for n in (N1, N2)),
                *(put(keys.assignment(n, WEB), truth.assignments[n][WEB].groups) for n in (N1, N2)),
                *(put(keys.status(n, WEB), truth.statuses[WEB][n]) for n in (N1, N2)),
            ],
            None,
        )
        now[0] = 10.0
        witness.commit(2, [put(keys.assignment(N1, WEB), stopping)], (N2, ""), sent_at)
        assert any(text.startswith("S10") for text in violations) == is_wrong


def test_a_step_in_the_revision_that_sets_a_freeze_came_before_it() -> None:
    """Both were decided by one peer and went in one transaction; the next step is too late."""
    window = FreezeWindow(name="calm", start=0, end=0)
    for revision, is_wrong in ((5, False), (6, True)):
        violations: list[str] = []
        truth = cluster(PlacementRules(), 0)
        rules = Autoscale(min=0, max=5, source=PendingSource.URL, target="http://queues/web")
        version = truth.versions[WEB, 1]
        truth.versions[WEB, 1] = replace(version, job=replace(version.job, autoscale=rules))
        truth.take_in([put(keys.SCHEDULING, Settings(freezes=(window,)), 5)])
        pools = Pools(
            truth=truth,
            queues={},
            now=lambda: 0.0,
            say=lambda text: None,
            violate=violations.append,
        )
        before = truth.heads[WEB]
        look = Look(pending=3, reason="", at=0.0, by="n1", steps=1)
        pools.head_changed(WEB, before, replace(before, wanted=1, look=look), revision)
        assert violations == ["P3 web made a step in a freeze window"] * is_wrong


def test_those_that_wait_and_those_that_run_of_one_version_both_count() -> None:
    """One that waited and runs now is no new one (seed 311950)."""
    groups = tuple(
        Group(uid="u", version=1, state=state, slots=Slots.of(slots), demand=Demand())
        for state, slots in (
            (SlotState.RUNNING, (1, 2)),
            (SlotState.WAITING, (0,)),
            (SlotState.STOPPING, (3,)),
        )
    )
    there = Assignment(node=NodeName("n1"), job=WEB, groups=groups)
    assert live_of(there) == {1: 3}
    assert not live_of(None)


def test_what_waits_for_somebody_to_be_displaced_again_is_still_to_come() -> None:
    """Daemons wait for a minute, so it is quiet, but not at rest (seeds 603530, 604701)."""
    snapshot = builders.submitted(
        builders.cluster(n1="1G", n2="1G"), builders.job("low"), builders.job("high", priority=9)
    )
    snapshot = builders.settled(snapshot)
    [home] = [name for name, job in snapshot.assignments if job.name == "high"]
    snapshot = builders.lost(snapshot, home)
    snapshot = builders.after(snapshot, plan_repair(snapshot, frozenset([home])))
    [there] = snapshot.nodes.keys() - {home}
    record = Displaced(namespace="default", job="low", slot=0, at=7.0, reason="")
    node = snapshot.nodes[there]
    node = replace(node, ledger=replace(node.ledger, displaced=(record,)))
    snapshot = replace(snapshot, nodes={**snapshot.nodes, there: node})
    assert propose(snapshot, frozenset(), 8.0) is None
    proposal = still_to_do(snapshot, 8.0)
    assert proposal is not None and proposal.what == "preempt"


def placed(truth: Truth, node: NodeName) -> list[str]:
    return check_rules(truth, Change(placed={(node, WEB): {1}}))


def test_a_nodes_limit_counts_those_alike_that_live() -> None:
    """One too many is found; what stops, and what a rollout or a restart replaces, is not meant."""
    truth = cluster(PlacementRules(max_per_node=1), 2, N1)
    (group,) = truth.assignments[N1][WEB].groups
    assert placed(truth, N1) == []
    for other, is_wrong in (
        (replace(group, slots=Slots.of([1])), True),
        (replace(group, slots=Slots.of([1]), state=SlotState.WAITING), True),
        (replace(group, slots=Slots.of([1]), state=SlotState.STOPPING), False),
        (replace(group, slots=Slots.of([1]), version=2), False),
        (replace(group, slots=Slots.of([1]), generation=1), False),
    ):
        truth.assignments[N1] = {WEB: Assignment(node=N1, job=WEB, groups=(group, other))}
        told = ["S8 web was placed on n1, which has 2 of it, and 1 are the most"]
        assert placed(truth, N1) == (told if is_wrong else [])


def test_a_burst_leaves_no_more_at_home_than_it_says() -> None:
    """Unless one of them is about to leave: drained, moved, or gone with its node."""
    truth = cluster(PlacementRules(burst=Burst(after=1, nodes=(N3,))), 2, N1, N2)
    told = ["S8 web was placed on n1, though 2 are at home and only 1 of them stay there"]
    assert placed(truth, N1) == told
    ledger, head, presence = truth.ledgers[N2], truth.heads[WEB], truth.presences[N2]
    truth.ledgers[N2] = replace(ledger, drain=Drain(since=1.0, by="", reason=""))
    assert placed(truth, N1) == []
    truth.ledgers[N2] = ledger
    move = Move(slot=1, node=N2, to_slot=0, to=N1, since=1.0)
    truth.heads[WEB] = replace(head, move=move)
    assert placed(truth, N1) == []
    truth.heads[WEB] = replace(head, move=replace(move, given_up=2.0))
    assert placed(truth, N1) == told
    del truth.presences[N2]
    assert placed(truth, N1) == []
    truth.presences[N2] = presence
    assert placed(cluster(PlacementRules(burst=Burst(after=1, nodes=(N3,))), 2, N1, N3), N1) == []
