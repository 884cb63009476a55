"""What would be: the small language, suppositions played to their end, losses of any nodes."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ozymandias.core.edits import step as step_of
from ozymandias.core.nodes import plan_begin_drain, plan_cordon, plan_end_drain, plan_uncordon
from ozymandias.core.outlook import Fate, Future, fates, suggested, waiting_after
from ozymandias.core.schedule import plan_pending, plan_scale, plan_stop
from ozymandias.core.stepwise import at_once
from ozymandias.core.survival import (
    WORK_MAX,
    Judging,
    Loss,
    judge,
    survival_words,
    ways_to_lose,
)
from ozymandias.core.upkeep import pending_of
from ozymandias.core.whatif import Step, Verb, parse_steps
from ozymandias.model.instance import InstanceState, SlotState
from ozymandias.model.job import (
    Autoscale,
    Burst,
    JobKey,
    LabelRule,
    PendingSource,
    PlacementRules,
)
from ozymandias.model.node import Drain, Ledger, NodeName
from ozymandias.model.plan import Pending, Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow, RebalanceMode
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
    returned,
    settled,
    spread,
    submit,
    submitted,
)
from tests.unit.core.lived import Lived
from tests.unit.core.test_rebalance_properties import layouts

SECONDS = 10_000.0  # on the wall clock


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


def test_a_job_that_is_not_there_is_told_with_those_that_may_be_meant() -> None:
    """The one of that name in another namespace, or one of a name like it."""
    prod = replace(job("web"), namespace=key("web", "prod").namespace)
    future = Future(submitted(cluster(n1="4G"), prod, job("cache")))
    for text, hint in (
        ("scale web 3", "Did you mean prod/web?"),
        ("stop cahce", "Did you mean cache?"),
        ("stop nothing", "`ozy jobs` lists them."),
    ):
        problem = future.suppose(*steps(text))
        assert problem and problem.hint == hint, text


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


def test_who_lacks_what_it_lacked_before_does_not_degrade() -> None:
    """Some are missing before and after: it is worse only when they have become more."""
    snapshot = submitted(cluster(n1="2G"), job("web", 2))
    head = replace(snapshot.jobs[WEB].head, wanted=6)
    before = settled(replace(snapshot, jobs={WEB: replace(snapshot.jobs[WEB], head=head)}))
    told = {
        "add n2 1G": ("lacks", 2, 3, False),
        "cordon n1": ("lacks", 2, 2, False),
        "add n2 4G": ("survives", 2, 6, False),
        "add n2 1G; lose n1": ("degrades", 2, 1, True),
        "lose n1": ("waits", 2, 0, True),
    }
    for text, expected in told.items():
        (fate,) = fates(before, played(before, text).now)
        assert (fate.outcome, fate.before, fate.after, fate.is_worse) == expected
    none = played(before, "lose n1").now
    (fate,) = fates(none, played(none, "cordon n1").now)
    assert (fate.outcome, fate.is_worse) == ("waits", False)


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


def test_a_node_that_is_opened_again_takes_what_waits() -> None:
    """A drain is ended as a cordon is; what is shut by both stays shut until both are over."""
    shut = [node("n1", "4G"), node("n2", "4G", cordoned=True, drain=Drain(since=1.0))]
    snapshot = submitted(cluster(*shut), job("web", 0))
    head = replace(snapshot.jobs[WEB].head, wanted=6)
    snapshot = replace(snapshot, jobs={WEB: replace(snapshot.jobs[WEB], head=head)})
    assert spread(played(snapshot, "undrain n2").now) == [4]
    assert spread(played(snapshot, "undrain n2; uncordon n2").now) == [4, 2]
    future = Future(snapshot).play()
    problem = future.suppose(steps("uncordon n2")[0])
    assert problem and problem.kind.slug == "node-draining"
    compare(snapshot, "undrain n2; uncordon n2; drain n1; undrain n1")


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
        "undrain n9",
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
    shop = replace(job("web", 4), namespace=key("web", "shop").namespace)
    theirs = survival_words(judge(settled(submitted(cluster(n1="4G", n2="2G"), shop))))
    assert theirs == words.replace("web", "shop/web")
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


def hurt_by(start: Future, lost_node: NodeName) -> tuple[Fate, ...]:
    """Who is worse off, as `ozy what-if` tells it of one node."""
    base = start.copy().play()
    future = base.copy()
    assert future.suppose(Step(verb=Verb.LOSE, text="lose", nodes=(lost_node,))) is None
    return tuple(fate for fate in fates(base.now, future.play().now) if fate.is_worse)


def agree(snapshot: Snapshot) -> list[Loss]:
    """Survival and what-if tell the same of every node that could be lost; those that hurt."""
    start = Future(snapshot, SECONDS, at_leisure=True)
    judging = Judging(start, 1, moves_work_max=WORK_MAX)
    survival = at_once(judging.judging())
    told = {loss.nodes: loss.hurt for loss in judging.found}
    for name in (n for n, there in snapshot.nodes.items() if there.is_alive):
        assert told.get((name,), ()) == hurt_by(start, name)
    assert not survival.without_moves
    return judging.found


@st.composite
def troubled(draw: st.DrawFn) -> Snapshot:
    """A cluster at any setting, now and then with a node that is drained, or in a freeze."""
    snapshot, mode = draw(layouts()), draw(st.sampled_from(RebalanceMode))
    drained = draw(st.sampled_from([None, None, *sorted(snapshot.nodes)]))
    if drained is not None:
        drain = Drain(since=SECONDS, deadline=draw(st.sampled_from([0.0, SECONDS + 900])))
        snapshot = after(snapshot, plan_begin_drain(snapshot, drained, drain))
    window = FreezeWindow(name="now", start=0, end=0, since=1.0, until=SECONDS + 3600)
    freezes = draw(st.sampled_from([(), (), (), (window,)]))
    chosen = replace(snapshot.settings, rebalance=mode, freezes=freezes)
    return replace(snapshot, settings=chosen)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(troubled())
def test_survival_is_what_a_what_if_says_of_each_loss(snapshot: Snapshot) -> None:
    """The same jobs degrade and wait, with the same instances: moves are part of both."""
    agree(snapshot)


@pytest.mark.parametrize("seed", [12, 87, 163, 262])
def test_where_moves_decide_survival_is_what_a_what_if_says(seed: int) -> None:
    """These clusters fare another way without moves: who runs hangs on them."""
    snapshot, _ = thrown(seed)
    found = agree(snapshot)
    without = Judging(Future(snapshot, SECONDS, at_leisure=True), 1, moves_work_max=0)
    assert at_once(without.judging()).without_moves
    assert without.found != found


def test_a_place_that_a_move_makes_counts() -> None:
    """n1 came back: when the wish is healed there is room for what n3 has; so it is said."""
    wish = LabelRule(label="role", values=("infra",), weight=5)
    wishing = job("wishing", 1, "1G", placement=PlacementRules(prefer=(wish,)))
    infra = node("n1", "1G", labels={"role": "infra"})
    snapshot = cluster(infra, node("n2", "2G"), node("n3", "2G"))
    snapshot = settled(submitted(lost(snapshot, "n1"), wishing, job("big", 1, "2G")))
    start = returned(snapshot, "n1")
    home = next(a.node for a in start.instances(key("big")))
    assert {home} | {a.node for a in start.instances(key("wishing"))} == {"n2", "n3"}
    assert agree(start) == []
    assert survival_words(judge(start)) == "survives the loss of any one node: yes"
    said = survival_words(judge(start, moves_work_max=0))
    assert said.endswith(f"no: big-0 would wait ({home} lost, moves left out)")


def test_where_nothing_moves_nothing_is_left_out() -> None:
    """Off, or with no wishes to heal: whatever may be spent on moves, the answer is whole."""
    full = settled(submitted(cluster(n1="4G", n2="2G"), job("web", 4)))
    off = replace(full, settings=replace(full.settings, rebalance=RebalanceMode.OFF))
    for snapshot in (full, off):
        assert not judge(snapshot, moves_work_max=0).without_moves
        assert judge(snapshot, moves_work_max=0) == judge(snapshot)
    on = replace(full, settings=replace(full.settings, rebalance=RebalanceMode.ON))
    assert judge(on, moves_work_max=0).without_moves


# What is foreseen is what happens --------------------------------------------------------------


def carried_out(lived: Lived, step: Step) -> None:
    """The event itself, as the world or an operator would bring it about."""
    now = lived.now
    if step.verb is Verb.LOSE:
        lived.become(lost(now, *step.nodes))
    elif step.verb is Verb.START:
        lived.become(returned(now, *step.nodes))
    elif step.verb is Verb.ADD:
        (name,) = step.nodes
        ledger = Ledger(capacity=step.capacity, labels=step.labels)
        added = replace(node(name), ledger=ledger)
        lived.become(replace(now, nodes={**now.nodes, name: added}))
    else:
        plan = decided(lived, step)
        if isinstance(plan, Plan):
            lived.carry_out(plan)


def decided(lived: Lived, step: Step) -> Plan | Problem:
    now = lived.now
    if step.verb is Verb.SCALE and step.job:
        return plan_scale(now, step.job, step.count, lived.lately())
    if step.verb is Verb.STOP and step.job:
        return plan_stop(now, step.job)
    (name,) = step.nodes
    if step.verb is Verb.CORDON:
        return plan_cordon(now, name)
    if step.verb is Verb.UNCORDON:
        return plan_uncordon(now, name)
    if step.verb is Verb.UNDRAIN:
        return plan_end_drain(now, name)
    return plan_begin_drain(now, name, Drain(since=lived.wall))


def done(future: Future) -> list[tuple[str, str, str]]:
    return [(str(c.instance), c.origin, c.to) for c in future.changes]


def compare(snapshot: Snapshot, text: str) -> Future:
    """Foreseen and lived through, step by step: the same in the same order, to the same end."""
    future = Future(snapshot, SECONDS, at_leisure=True).play()
    lived = Lived(snapshot, SECONDS).rest()
    base_foreseen, base_lived = future.now, lived.now
    for step in (None, *steps(text)):
        if step is not None:
            carried_out(lived, step)
            future.suppose(step)
            lived.rest(), future.play()
        assert future.is_at_rest
        check(future.now)
        assert done(future) == lived.done
        assert set(future.now.instances()) == set(lived.now.instances())
        assert fates(base_foreseen, future.now) == fates(base_lived, lived.now)
        assert waiting_after(future) == pending_by_priority(lived.now)
    return future


def pending_by_priority(snapshot: Snapshot) -> tuple[Pending, ...]:
    def rank(pending: Pending) -> tuple[int, JobKey]:
        current = snapshot.jobs[pending.job].current
        return -(current.job.priority if current else 0), pending.job

    return tuple(sorted(pending_of(snapshot), key=rank))


@st.composite
def stories(draw: st.DrawFn) -> tuple[Snapshot, str]:
    """A cluster, and up to three things that happen to it, in the words of `ozy what-if`."""
    snapshot, mode = draw(layouts()), draw(st.sampled_from(RebalanceMode))
    nodes = st.sampled_from(sorted(snapshot.nodes))
    names = st.sampled_from(sorted(key.name for key in snapshot.jobs) or ["a"])
    told = []
    for number in range(draw(st.integers(1, 3))):
        verb = draw(st.sampled_from(["lose", "add", "lose", "add", *Verb]))
        if verb in ("scale", "stop"):
            count = f" {draw(st.integers(0, 6))}" if verb == "scale" else ""
            told.append(f"{verb} {draw(names)}{count}")
        elif verb == "add":
            label = draw(st.sampled_from(["", " role=infra", " zone=b"]))
            told.append(f"add x{number} {draw(st.sampled_from(['1G', '4G']))} 10G{label}")
        else:
            told.append(f"{verb} {draw(nodes)}")
    snapshot = replace(snapshot, settings=replace(snapshot.settings, rebalance=mode))
    return snapshot, "; ".join(told)


def possible(snapshot: Snapshot, text: str) -> str:
    """Without the steps that can't be supposed: of nodes and jobs that are not there."""
    future, kept = Future(snapshot, SECONDS).play(), []
    for step in steps(text):
        problem = future.suppose(step)
        if not (problem and problem.kind.slug == "invalid-what-if"):
            kept.append(step.text)
            future.play()
    return "; ".join(kept)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories())
def test_what_is_foreseen_is_what_happens(story: tuple[Snapshot, str]) -> None:
    """Whatever comes, at whatever setting: the same instances go the same ways in that order."""
    snapshot, text = story
    if told := possible(snapshot, text):
        compare(snapshot, told)


def thrown(seed: int) -> tuple[Snapshot, str]:
    """A larger cluster, rather full, with priorities and wishes, and what happens to it."""
    dice = random.Random(seed)
    names = [f"n{i}" for i in range(dice.randint(3, 5))]
    snapshot = cluster(
        *(
            node(n, dice.choice(["4G", "6G"]), labels={"role": dice.choice(["infra", "apps"])})
            for n in names
        )
    )
    for number in range(dice.randint(3, 8)):
        wish = LabelRule(label="role", values=(dice.choice(["infra", "apps"]),), weight=5)
        made = job(
            f"j{number}",
            dice.randint(1, 4),
            dice.choice(["512M", "1G", "2G"]),
            priority=dice.choice([0, 100, 200]),
            placement=PlacementRules(prefer=(wish,) if dice.random() < 0.6 else ()),
            min_available=dice.choice([0, 0, 1]),
        )
        if isinstance(plan := submit(snapshot, made), Plan):
            snapshot = settled(after(snapshot, plan))
    mode = dice.choice(list(RebalanceMode))
    lose, other = dice.sample(names, 2)
    text = dice.choice(
        [
            f"lose {lose}; start {lose}",
            f"lose {lose}; add x 6G 10G role=infra",
            f"drain {lose}; lose {other}",
            f"add x 6G 10G role=apps; lose {lose}",
        ]
    )
    return replace(snapshot, settings=replace(snapshot.settings, rebalance=mode)), text


@pytest.mark.parametrize("seed", range(12))
def test_losses_and_returns_happen_as_foreseen(seed: int) -> None:
    """With priorities, displacements and preferences that are given up and healed."""
    compare(*thrown(seed))


def test_a_number_is_free_as_soon_as_its_instance_stops() -> None:
    """The limit of it: until the pod is gone the cluster takes the next number, on that node."""
    snapshot = settled(submitted(cluster(n1="4G"), job("web", 1)))
    (old,) = snapshot.instances(WEB)
    stops = step_of(old, SlotState.STOPPING, "what a node that returned still had")
    stopping = after(snapshot, Plan(reason="it is no longer wanted here", edits=(stops,)))
    decided_at_once = after(stopping, plan_pending(stopping))
    live = [a for a in decided_at_once.instances(WEB) if a.state is SlotState.RUNNING]
    (here,) = Future(stopping).play().now.instances(WEB)
    assert [(a.node, a.slot) for a in live] == [("n1", 1)]
    assert (here.node, here.slot) == ("n1", 0)


# What the settings let happen --------------------------------------------------------------------


def hot(mode: RebalanceMode, *freezes: FreezeWindow) -> Snapshot:
    """Three nodes that are full, with a job that would rather be where a label is."""
    wish = LabelRule(label="disk", values=("ssd",), weight=5)
    wishing = job("db", 1, placement=PlacementRules(prefer=(wish,)))
    snapshot = submitted(cluster(n1="4G", n2="4G", n3="4G"), job("web", 11), wishing)
    chosen = replace(snapshot.settings, rebalance=mode, freezes=freezes)
    return settled(replace(snapshot, settings=chosen))


ADDED = "add n4 16G disk=ssd"


def foreseen(snapshot: Snapshot, text: str) -> Future:
    future = Future(snapshot, SECONDS, at_leisure=True).play()
    for step in steps(text):
        assert future.suppose(step) is None
        future.play()
    return future


@pytest.mark.parametrize(
    ("mode", "heals", "spreads"),
    [(RebalanceMode.OFF, 0, 0), (RebalanceMode.SUGGEST, 1, 0), (RebalanceMode.ON, 1, 3)],
)
def test_an_added_node_receives_what_the_setting_lets(
    mode: RebalanceMode, heals: int, spreads: int
) -> None:
    """Off nothing moves, suggest heals wishes, on spreads the rest; what is left is suggested."""
    future = foreseen(hot(mode), ADDED)
    there = [a.job.name for a in future.now.instances_on(NodeName("n4"))]
    assert (there.count("db"), there.count("web") >= spreads) == (heals, True)
    assert (there.count("web") > 0) is (mode is RebalanceMode.ON)
    moves = [str(change.instance.job) for change in suggested(future)]
    assert (moves.count("db"), "web" in moves) == (1 - heals, mode is not RebalanceMode.ON)
    assert future.is_at_rest


def test_nothing_moves_in_a_freeze_and_what_comes_after_is_told() -> None:
    """The future rests while it is frozen; thawed, it goes on as if there had been no freeze."""
    window = FreezeWindow(name="now", start=0, end=0, since=1.0, until=SECONDS + 3600)
    future = foreseen(hot(RebalanceMode.ON, window), ADDED)
    assert future.changes == [] and future.frozen and future.frozen.by == "now"
    thawed = future.thawed()
    assert thawed and done(thawed.play()) == done(foreseen(hot(RebalanceMode.ON), ADDED))
    assert foreseen(hot(RebalanceMode.ON), ADDED).thawed() is None


def test_a_freeze_without_an_end_is_not_waited_for() -> None:
    """A window of a zone that nobody knows holds for ever, as far as can be told."""
    window = FreezeWindow(name="far", start=0, end=60, timezone="Mars/Olympus")
    future = foreseen(hot(RebalanceMode.ON, window), ADDED)
    assert future.frozen and future.thawed() is None and future.changes == []


def test_a_drain_that_is_held_up_goes_on_at_its_deadline() -> None:
    """What has no other place stays until then, and stops then; a drain without one waits."""
    snapshot = settled(submitted(cluster(n1="1G", n2="1G"), job("web", 2)))
    there = next(a.node for a in snapshot.instances(WEB))
    for deadline, left in ((0.0, 2), (SECONDS + 60, 1)):
        drain = Drain(since=SECONDS, deadline=deadline)
        draining = settled(after(snapshot, plan_begin_drain(snapshot, there, drain)))
        future = Future(draining, SECONDS, at_leisure=True).play()
        assert future.is_at_rest and len(list(future.now.instances(WEB))) == left
        assert future.wall == max(SECONDS, deadline)


def test_a_burst_comes_home_when_there_is_room() -> None:
    """Two are to be at home, which was full; with another node they are."""
    burst = PlacementRules(burst=Burst(after=2, nodes=("n3",)))
    snapshot = submitted(cluster(n1="2G", n3="4G"), job("web", 3, placement=burst))
    future = foreseen(lost_and_filled(settled(snapshot)), "add n2 4G")
    home = [a.node for a in future.now.instances(WEB) if a.node != "n3"]
    assert len(home) == 2


def lost_and_filled(snapshot: Snapshot) -> Snapshot:
    """One of those at home had to go to the burst's node: something else takes its room."""
    (moved, *_) = [a for a in snapshot.instances(WEB) if a.node == "n1"]
    gone = after(snapshot, Plan(reason="it crashed", edits=(step_of(moved, None, "gone"),)))
    filled = submitted(gone, job("other", 1, priority=5))
    return settled(after(filled, plan_pending(filled)))


def test_what_has_ended_well_is_not_done_again() -> None:
    """A job that is through stays where it is, however hot its node."""
    snapshot = hot(RebalanceMode.ON)
    through = {
        pair: replace(
            status,
            instances={
                slot: replace(one, state=InstanceState.COMPLETED, healthy=False)
                for slot, one in status.instances.items()
            },
        )
        for pair, status in snapshot.statuses.items()
    }
    assert foreseen(replace(snapshot, statuses=through), ADDED).changes == []


def test_whoever_was_displaced_may_be_again_after_a_minute() -> None:
    """A future in which one is displaced twice goes on to its end, as the cluster does."""
    snapshot = settled(submitted(cluster(n1="2G", n2="2G"), job("low", 2, "1G")))
    snapshot = settled(submitted(snapshot, job("mid", 2, "1G", priority=5)))
    compare(snapshot, "lose n2; add x 1G 10G; lose n1")
    jobs = job("low", 1, "1G"), job("shop", 0, "1G", priority=9)
    snapshot = settled(submitted(cluster(n1="1G"), *jobs))
    future = compare(snapshot, "scale shop 1; add n2 1G; scale shop 2; add n3 1G; scale shop 3")
    assert len(list(future.now.instances(key("shop")))) == 3


def test_whom_a_future_displaces_is_not_displaced_again_at_once() -> None:
    """Only after a minute: also when the same job would displace the same instance once more."""
    jobs = job("low", 1, "1G"), job("shop", 0, "1G", priority=9)
    future = Future(settled(submitted(cluster(n1="1G"), *jobs)), SECONDS).play()
    for number in range(1, 4):
        (scale, add) = steps(f"scale shop {number}; add n{number + 1} 1G")
        assert future.suppose(scale) is None
        assert future.suppose(add) is None
        assert at_once(future.advancing())  # who was displaced comes to the new node
        (again,) = steps(f"scale shop {number + 1}")
        problem = future.suppose(again)
        assert problem and problem.kind.slug == "insufficient-memory", number
        future.play()


def test_a_rollout_under_way_goes_on_as_foreseen() -> None:
    """It is finished before the first step, instance by instance; in a freeze it stands still."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G", n3="4G"), job("web", 3)))
    changed = settled(submitted(snapshot, job("web", 3, image="image:2")))
    future = compare(changed, "lose n2")
    assert {a.version for a in future.now.instances(WEB)} == {2}
    window = FreezeWindow(name="now", start=0, end=0, since=1.0, until=SECONDS + 3600)
    frozen = replace(changed, settings=replace(changed.settings, freezes=(window,)))
    future = Future(frozen, SECONDS, at_leisure=True).play()
    assert future.is_at_rest and {a.version for a in future.now.instances(WEB)} == {1}
    thawed = future.thawed()
    assert thawed and {a.version for a in thawed.play().now.instances(WEB)} == {2}


@pytest.mark.parametrize("deadline", [0.0, SECONDS + 900])
def test_a_drain_in_progress_goes_on_as_foreseen(deadline: float) -> None:
    """What has room elsewhere moves, within its budget; the rest stays, or until the deadline."""
    snapshot = submitted(cluster(n1="4G", n2="4G"), job("web", 4, min_available=3), job("db", 3))
    drain = Drain(since=SECONDS, deadline=deadline)
    draining = after(settled(snapshot), plan_begin_drain(snapshot, NodeName("n1"), drain))
    lived = Lived(draining, SECONDS).rest()
    if deadline:
        lived.wall = deadline
        lived.rest()
    future = Future(draining, SECONDS, at_leisure=True).play()
    assert future.is_at_rest and done(future) == lived.done
    assert set(future.now.instances()) == set(lived.now.instances())


def test_a_pool_keeps_the_number_that_it_wants() -> None:
    """What its source will say nobody knows: nothing is added, and by hand it is refused."""
    pool = Autoscale(min=0, max=9, source=PendingSource.KEY, target="/q", step=3)
    snapshot = submitted(cluster(n1="4G", n2="4G"), job("web", 0, autoscale=pool))
    known = snapshot.jobs[WEB]
    grown = replace(known, head=replace(known.head, wanted=3))
    future = compare(replace(snapshot, jobs={WEB: grown}), "lose n2; scale web 5")
    assert future.now.jobs[WEB].head.wanted == 3 and spread(future.now) == [3]
    problem = future.suppose(steps("scale web 5")[0])
    assert problem and problem.kind.slug != "invalid-what-if"
