"""The simulator's checks, where one of them was wrong before."""

import asyncio
from collections.abc import Callable
from typing import Any

from ozymandias import problems
from ozymandias.core.apply import totals
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
    JobKind,
    JobName,
    JobVersion,
    LabelRule,
    Look,
    Move,
    Namespace,
    Neighbour,
    PendingSource,
    PlacementRules,
)
from ozymandias.model.node import (
    Demand,
    Displaced,
    Drain,
    Ledger,
    Load,
    NodeName,
    Presence,
    Resources,
)
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow, Settings
from ozymandias.ports import KV, Event
from ozymandias.problems import ProblemError
from ozymandias.sim.invariants import check_given
from ozymandias.sim.pools import Pools
from ozymandias.sim.rest import differences, placeable, still_to_do, undrained
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
SHEDDING = Load(taint="memory", shed_to=0)
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


def test_room_that_is_kept_for_a_system_job_is_nobody_elses() -> None:
    """Its last one there still stops, and its next one is larger (told as L3)."""
    for kind, found in ((JobKind.SYSTEM, []), (JobKind.SERVICE, ["1 of web are nowhere"])):
        truth = cluster(PlacementRules(), 1)
        kept = JobKey(Namespace("default"), JobName("kept"))
        containers = (Container(name="app", image="app", memory_bytes=8),)
        job = Job(name=kept.name, kind=kind, instances=0, containers=containers)
        truth.heads[kept] = JobHead(uid="u", version=1, wanted=0)
        truth.versions[kept, 1] = JobVersion(uid="u", version=1, job=job)
        last = Assignment(node=N1, job=kept, groups=(group(0, SlotState.STOPPING),))
        truth.assignments[N1] = {kept: last}
        truth.ledgers[N1] = ledger(*last.groups, memory_bytes=8)
        assert [text.split(",")[0] for text in placeable(truth, {N1})] == found


# One revision may hold several decisions ----------------------------------------------------------


def group(slot: int, state: SlotState, memory_bytes: int = 1, version: int = 1) -> Group:
    demand = Demand(memory_bytes=memory_bytes, disk_bytes=0)
    return Group(uid="u", version=version, state=state, slots=Slots.of([slot]), demand=demand)


def ledger(*groups: Group, memory_bytes: int = 2**32) -> Ledger:
    there = (Assignment(node=N1, job=WEB, groups=groups),)
    held, promised = totals(there)
    capacity = Resources(memory_bytes=memory_bytes, disk_bytes=2**32)
    return Ledger(capacity=capacity, held=held, promised=promised)


def job_events(name: str, wanted: int, memory_bytes: int = 1, priority: int = 0) -> list[Event]:
    key = JobKey(Namespace("default"), JobName(name))
    containers = (Container(name="app", image="app", memory_bytes=memory_bytes),)
    job = Job(name=key.name, instances=wanted, containers=containers, priority=priority)
    return [
        put(keys.version(key, 1), JobVersion(uid="u", version=1, job=job)),
        put(keys.job(key), JobHead(uid="u", version=1, wanted=wanted)),
    ]


def assigned(name: str, *groups: Group) -> Event:
    key = keys.assignment(N1, JobKey(Namespace("default"), JobName(name)))
    value = codec.encode(groups) if groups else b""
    return Event(KV(key, value, 1, 1, 1, 0), deleted=not groups)


def joined(node: NodeName = N1) -> Event:
    presence = Presence(address="", machine_id=node, session="", daemon_version="0", api="")
    return put(keys.node(node), presence)


def told(
    first: list[Event], then: list[Event], *, is_tended: bool = False, sent_at: float = 10.0
) -> list[str]:
    """What is held against the second of two revisions, ten seconds apart."""
    violations: list[str] = []
    now = [0.0]
    witness = Witness(Rules(), lambda: now[0], violations.append)
    witness.is_tended = lambda node: is_tended
    witness.commit(1, first, None)
    violations.clear()
    now[0] = 10.0
    witness.commit(2, then, (N1, ""), sent_at)
    # Records of decisions are not what these are about.
    return [text for text in violations if not text.startswith("S18")]


def test_room_that_the_same_revision_made_may_have_come_later() -> None:
    """The higher priority fits only when something else is gone, and that is told beside."""
    stopping, low = group(0, SlotState.STOPPING, 6), group(0, SlotState.RUNNING, 2)
    missing = [*job_events("low", 1, 2), *job_events("high", 1, 8, priority=5)]
    full = [joined(), put(keys.ledger(N1), ledger(stopping, memory_bytes=8))]
    given = [assigned("low", low), put(keys.ledger(N1), ledger(low, memory_bytes=8))]
    first = [*missing, *full, *job_events("other", 0, 6), assigned("other", stopping)]
    assert told(first, [*given, assigned("other")]) == []
    empty = [joined(), put(keys.ledger(N1), ledger(memory_bytes=8))]
    assert told([*missing, *empty], given) == [
        "L3 n1 got low, though high comes first and would have fitted"
    ]


def test_a_drain_that_ends_with_a_rollouts_step_lets_it_pass_in_a_freeze() -> None:
    """The step was decided while the node was drained; the revision of both shows the end only."""
    old, new = group(0, SlotState.RUNNING), group(1, SlotState.RUNNING, version=2)
    window = Settings(freezes=(FreezeWindow(name="calm", start=0, end=0),))
    [version, _] = job_events("web", 1)
    head = put(keys.job(WEB), JobHead(uid="u", version=2, wanted=1))
    spec = codec.decode(JobVersion, version.kv.value)
    versions = [version, put(keys.version(WEB, 2), replace(spec, version=2))]
    first = [*versions, head, put(keys.SCHEDULING, window), joined(), assigned("web", old)]
    after = [assigned("web", old, new), put(keys.ledger(N1), ledger(old, new))]
    wrong = ["F1 web is rolled out in a freeze window"]
    assert told([*first, put(keys.ledger(N1), ledger(old))], after) == wrong
    assert told([*first, put(keys.ledger(N1), ledger(old))], after, is_tended=True) == []
    drained = replace(ledger(old), drain=Drain(since=1.0))
    assert told([*first, put(keys.ledger(N1), drained)], after) == []


def test_who_comes_for_one_that_only_waited_may_run_at_once() -> None:
    """It held nothing; the node itself lets the other run in the revision that lets it wait."""
    for state, wrong in (
        (SlotState.WAITING, []),
        (SlotState.RUNNING, ["S11 low-0 had to leave n1, and nobody came for whom"]),
    ):
        low, high = group(0, state), group(0, SlotState.RUNNING)
        first = [*job_events("low", 1), *job_events("high", 1, priority=5), joined()]
        first += [assigned("low", low), put(keys.ledger(N1), ledger(low))]
        left = () if state is SlotState.WAITING else (group(0, SlotState.STOPPING),)
        then = [assigned("low", *left), assigned("high", high)]
        assert told(first, [*then, put(keys.ledger(N1), ledger(*left, high))]) == wrong


def test_who_comes_where_more_was_promised_than_held_may_run_at_once() -> None:
    """Something else waits there for its turn: its room is promised, and not held yet."""
    for limit, wrong in ((3, []), (4, ["S11 low-0 had to leave n1, and nobody came for whom"])):
        low, stopping = group(0, SlotState.RUNNING), group(0, SlotState.STOPPING)
        other, high = group(0, SlotState.WAITING, 2), group(0, SlotState.RUNNING)
        jobs = [*job_events("low", 1), *job_events("other", 1), *job_events("high", 1, priority=5)]
        there = put(keys.ledger(N1), ledger(low, other, memory_bytes=limit))
        first = [*jobs, joined(), assigned("low", low), assigned("other", other), there]
        after = put(keys.ledger(N1), ledger(stopping, other, high, memory_bytes=limit))
        assert told(first, [assigned("low", stopping), assigned("high", high), after]) == wrong


def test_what_is_compared_by_its_bytes_is_never_written_as_it_was() -> None:
    """Under the id of the write before, that is; a version, or a key that is new, has none."""
    old, new = Ledger(capacity=CAPACITY, commit="c1"), Ledger(capacity=CAPACITY, commit="c2")
    key, there = keys.ledger(N1), [joined(), put(keys.ledger(N1), old)]
    wrong = [f"S19 {key.decode()} is rewritten under the id of the write before"]
    cordoned = Ledger(capacity=CAPACITY, is_cordoned=True, commit="c1")
    for again, expected in ((old, wrong), (cordoned, wrong), (new, [])):
        assert told(there, [put(key, again, 2)]) == expected
    assert told([joined()], there) == []
    settings = put(keys.SCHEDULING, Settings(commit="c1"))
    assert len(told([*there, settings], [settings])) == 1


def test_a_node_may_be_opened_and_closed_again_within_a_revision() -> None:
    """Somebody is asking about it, so nobody can tell; of other nodes the ledgers tell."""
    truth = cluster(PlacementRules(require=(LabelRule(label="role", values=("a",)),)), 1, N1)
    truth.ledgers[N1] = Ledger(capacity=CAPACITY, is_cordoned=True)
    change = Change(given={(N1, WEB)}, placed={(N1, WEB): {1}})
    assert check_given(truth, change) == ["S3 web was given to n1, which is to get no new work"]
    assert check_given(truth, change, {N1}) == []
    [wrong] = check_rules(truth, change)
    assert wrong.endswith("which lacks a label that it requires")
    assert check_rules(truth, change, {N1}) == []


def test_a_drain_of_the_same_revision_may_have_come_before_or_after() -> None:
    """What stops beside its beginning was not stopped by it, and beside its end perhaps was."""
    low, high = group(0, SlotState.RUNNING), group(0, SlotState.WAITING)
    stopping, drain = group(0, SlotState.STOPPING), Drain(since=1.0)
    first = [*job_events("low", 1), *job_events("high", 1, priority=5), joined()]
    first += [assigned("low", low)]
    then = [assigned("low", stopping), assigned("high", high)]
    status = InstanceStatus(slot=0, uid="u", version=1, state=InstanceState.HEALTHY, healthy=True)
    healthy = put(keys.status(N1, JobKey(Namespace("default"), JobName("low"))), {0: status})
    open_before, open_after = ledger(low), ledger(stopping, high)
    closed_before, closed_after = (replace(one, drain=drain) for one in (open_before, open_after))
    begins = told(
        [*first, healthy, put(keys.ledger(N1), open_before)],
        [*then, put(keys.ledger(N1), closed_after)],
    )
    assert not any(text.startswith("S10") for text in begins)
    alone = [assigned("low", stopping), put(keys.ledger(N1), ledger(stopping))]
    ends = told([*first, put(keys.ledger(N1), closed_before)], alone)
    assert ends == []
    assert told([*first, put(keys.ledger(N1), open_before)], alone) == [
        "S11 low-0 had to leave n1, and nobody came for whom"
    ]


def test_who_was_shed_on_an_older_view_was_not_displaced() -> None:
    """The host is relieved by now; what was asked for before that is asked for again as it was."""
    low, stopping = group(0, SlotState.RUNNING), group(0, SlotState.STOPPING)
    first = [*job_events("low", 1), joined(), assigned("low", low)]
    first += [put(keys.ledger(N1), ledger(low)), put(keys.load(N1), SHEDDING)]
    then = [assigned("low", stopping), put(keys.ledger(N1), ledger(stopping))]
    relieved = put(keys.load(N1), replace(SHEDDING, taint="", shed_to=-1))
    assert told(first, [relieved, *then], sent_at=1.0) == []
    wrong = "S11 low-0 had to leave n1, and nobody came for whom"
    assert wrong in told(first, [relieved, *then])


def test_a_system_job_of_the_same_revision_may_have_come_later() -> None:
    """It asks nobody who would be apart from it; where it was before, that is kept."""
    other = JobKey(Namespace("default"), JobName("other"))
    truth = cluster(PlacementRules(apart=(Neighbour(job=other),)), 1, N1)
    job = Job(name=other.name, kind=JobKind.SYSTEM, instances=0, containers=())
    truth.versions[other, 1] = JobVersion(uid="u", version=1, job=job)
    there = Assignment(node=N1, job=other, groups=(group(0, SlotState.RUNNING),))
    truth.assignments[N1][other] = there
    wrong = ["S8 web was placed on n1, where other is to be apart from"]
    assert check_rules(truth, Change(placed={(N1, WEB): {1}})) == wrong
    assert check_rules(truth, Change(placed={(N1, WEB): {1}, (N1, other): {1}})) == []


def test_a_loss_is_judged_in_the_session_that_asked_for_it() -> None:
    """A record is written twice for want of an answer, which begins no session; who goes on with
    a lease begins one, and what was asked for before and comes late is not of it (seed 3802170).
    """
    for adopted_at, sent_at, is_wrong in ((0.0, 7.0, False), (5.5, 7.0, True), (5.5, 5.2, False)):
        violations: list[str] = []
        now = [0.0]
        witness = Witness(Rules(), lambda: now[0], violations.append)  # noqa: B023
        witness.adopted_at = lambda node: adopted_at  # noqa: B023
        low = group(0, SlotState.RUNNING)
        there = put(keys.assignment(N2, WEB), (low,))
        ledgers = [put(keys.ledger(N1), ledger()), put(keys.ledger(N2), ledger(low))]
        gone = [Event(put(key, "").kv, deleted=True) for key in (keys.node(N2), there.kv.key)]
        for at, events, actor in (
            (0.0, [joined(N1), joined(N2), *ledgers, *job_events("web", 1), there], None),
            (5.0, [gone[0]], None),
            (6.0, [joined(N1)], (N1, "")),
            (7.0, [gone[1], put(keys.ledger(N2), ledger())], (N1, "")),
        ):
            now[0] = at
            witness.commit(int(at) + 1, events, actor, min(at, sent_at))
        wrong = "S13 n1 declared n2 dead, which it never saw alive"
        assert (wrong in violations) == is_wrong


def test_a_stop_is_judged_by_when_podman_was_asked_for_it() -> None:
    """Nobody can call it back when the slot comes to run there again meanwhile (seed 3217700)."""
    running = put(keys.assignment(N1, WEB), (group(0, SlotState.RUNNING),))
    gone = Event(running.kv, deleted=True)
    pod = PodId(
        node=N1,
        namespace=WEB.namespace,
        job=WEB.name,
        slot=0,
        uid="u",
        version=1,
        generation=0,
    )
    for is_asked_after, is_wrong in ((False, False), (True, True)):
        violations: list[str] = []
        witness = Witness(Rules(), lambda: 0.0, violations.append)
        book = put(keys.ledger(N1), ledger(group(0, SlotState.RUNNING)))
        witness.commit(1, [joined(N1), book, *job_events("web", 1), running], None, 0.0)
        witness.commit(2, [gone, put(keys.ledger(N1), ledger())], None, 0.0)
        if not is_asked_after:
            witness.pod_event(pod, "asked to stop")
        witness.commit(3, [book, running], None, 0.0)
        if is_asked_after:
            witness.pod_event(pod, "asked to stop")
        witness.pod_event(pod, "stop")
        assert any("was stopped though" in words for words in violations) == is_wrong


def on(node: NodeName, *groups: Group) -> list[Event]:
    """What a node has of the job, and its books of that."""
    there = put(keys.assignment(node, WEB), groups)
    return [there, put(keys.ledger(node), ledger(*groups))]


def healthy_on(node: NodeName, *slots: int) -> Event:
    fine = InstanceStatus(slot=0, uid="u", version=1, state=InstanceState.HEALTHY, healthy=True)
    return put(keys.status(node, WEB), {slot: replace(fine, slot=slot) for slot in slots})


def test_a_drain_past_its_deadline_may_take_what_another_drain_counted_on() -> None:
    """Both are in one plan: the one stops what is replaced, the other what is left (3604796)."""
    running, stopping = SlotState.RUNNING, SlotState.STOPPING
    for deadline, is_wrong in ((0.0, True), (5.0, False)):
        drains = {N1: Drain(since=1.0), N2: Drain(since=1.0, deadline=deadline)}
        first = [*job_events("web", 2), *map(joined, (N1, N2, N3))]
        then: list[Event] = []
        for slot, node in enumerate((N1, N2, N3)):
            before, there = group(slot, running), [group(slot, running)]
            after = [group(slot, stopping)] if node in drains else [*there, group(3, running)]
            for events, groups in ((first, [before]), (then, after)):
                book = replace(ledger(*groups), drain=drains.get(node))
                events += [on(node, *groups)[0], put(keys.ledger(node), book)]
            first.append(healthy_on(node, slot))
        found = [text for text in told(first, then) if text.startswith("S10")]
        assert bool(found) == is_wrong, found
        assert all("was drained: 1 of web are healthy, 2 are wanted" in text for text in found)


def test_what_another_machine_of_that_name_ran_is_not_stopped_by_who_takes_it_over() -> None:
    """Its own pods are in the way of some, which wait for them to be gone (seed 3602431)."""
    job = Job(name=WEB.name, instances=1, containers=(), min_available=1)
    version = put(keys.version(WEB, 1), JobVersion(uid="u", version=1, job=job))
    head = put(keys.job(WEB), JobHead(uid="u", version=1, wanted=1))
    first = [version, head, joined(N1), *on(N1, group(0, SlotState.RUNNING)), healthy_on(N1, 0)]
    waits = on(N1, group(0, SlotState.WAITING))
    other = Presence(address="", machine_id="other", session="", daemon_version="0", api="")
    wrong = "was stopped: 0 of web are healthy, 1 must be"
    assert any(wrong in text for text in told(first, waits))
    assert not any(wrong in text for text in told(first, [put(keys.node(N1), other), *waits]))
