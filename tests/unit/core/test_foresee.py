"""What follows from a changed job: its own steps and those of others, as they will be."""

import random

import pytest

from ozymandias.core.foresee import FROZEN, LONG, Foreseen, foresee
from ozymandias.core.nodes import plan_begin_drain
from ozymandias.core.rollout import plan_rollout
from ozymandias.model.job import Job, JobKey
from ozymandias.model.node import Drain, NodeName
from ozymandias.model.plan import LIVE, Edit, Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow, RebalanceMode, Settings
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.builders import (
    after,
    cluster,
    foretold,
    job,
    key,
    lost,
    node,
    planned,
    settled,
    spread,
    submit,
    submitted,
)
from tests.unit.core.lived import Lived

SECONDS = 10_000.0  # on the wall clock
ROOMY = cluster(n1="4G", n2="4G", n3="4G")
OFF = Settings(rebalance=RebalanceMode.OFF)

Step = tuple[str, str, int, bool]  # an instance, its node and version, and whether it comes


def steps_of(edits: list[Edit], of: JobKey) -> list[Step]:
    return [
        (str(e.instance), e.node, e.version, e.before is None)
        for e in edits
        if e.job == of and (e.before in LIVE) is not (e.after in LIVE)
    ]


class Watched(Lived):
    """With every step that was taken."""

    def __init__(self, snapshot: Snapshot, wall: float) -> None:
        self.edits: list[Edit] = []
        super().__init__(snapshot, wall)

    def carry_out(self, plan: Plan) -> None:
        self.edits += plan.edits
        super().carry_out(plan)


def compare(snapshot: Snapshot, changed: Job) -> Foreseen | None:
    """Foreseen and lived through: the same steps in the same order; None: nothing to compare."""
    lived = Watched(snapshot, SECONDS)
    start, of = lived.now, changed.key
    decision = submit(start, changed)
    if not isinstance(decision, Plan) or decision.is_empty:
        return None
    if of not in start.jobs and not decision.displaced:
        return None  # nothing follows from it
    foreseen = foresee(start, decision, SECONDS)
    lived.carry_out(decision)
    begun = len(lived.done)
    lived.rest()
    assert steps_of(list(foreseen.edits), of) == steps_of(lived.edits, of)
    assert [(str(c.instance), c.origin, c.to) for c in foreseen.others] == [
        one for one in lived.done[begun:] if one[0].rpartition("-")[0] != str(of)
    ]
    own = [a for a in lived.now.instances(of) if a.state in LIVE]
    head = lived.now.jobs[of].head
    assert foreseen.missing == max(0, head.wanted - len(own))
    assert foreseen.outdated == sum(a.version != head.version for a in own)
    assert not foreseen.left_out
    is_felt = foreseen.others or decision.displaced
    without = Lived(start, SECONDS).rest().now if is_felt else lived.now
    fewer = [k for k in without.jobs if k != of and live(lived.now, k) < live(without, k)]
    assert sorted(fate.job for fate in foreseen.hurt) == sorted(fewer)
    return foreseen


def live(snapshot: Snapshot, of: JobKey) -> int:
    return sum(a.state in LIVE for a in snapshot.instances(of))


def thrown(seed: int) -> tuple[Snapshot, Job]:
    """A cluster that is rather full, in which others have something to do as well, and a change."""
    dice = random.Random(seed)
    names = [f"n{i}" for i in range(dice.randint(2, 4))]
    snapshot = replace(cluster(*(node(n, dice.choice(["4G", "6G"])) for n in names)), settings=OFF)
    sizes, there = ["512M", "1G", "2G"], []
    for number in range(dice.randint(2, 6)):
        made = job(
            f"j{number}",
            dice.randint(1, 4),
            dice.choice(sizes),
            priority=dice.choice([0, 100, 200]),
            min_available=dice.choice([0, 0, 1]),
        )
        if isinstance(plan := submit(snapshot, made), Plan):
            snapshot = settled(after(snapshot, plan))
            there.append(made)
    if dice.random() < 0.6:
        snapshot = lost(snapshot, dice.choice(names))
    if dice.random() < 0.5:
        snapshot = Lived(snapshot, SECONDS).rest().now
    if dice.random() < 0.2:
        drained = plan_begin_drain(snapshot, NodeName(dice.choice(names)), Drain(since=SECONDS))
        if isinstance(drained, Plan):
            snapshot = settled(after(snapshot, drained))
    old = dice.choice(there)
    new = job(old.name, old.instances, dice.choice(sizes), image="b").containers
    count = dice.choice([old.instances, dice.randint(1, 4)])
    return snapshot, replace(old, containers=new, instances=count)


@pytest.mark.parametrize("seeds", [range(n, n + 20) for n in range(0, 100, 20)], ids=str)
def test_what_is_foreseen_of_a_change_is_what_happens(seeds: range) -> None:
    """Also while nodes are lost or drained, others wait, and some displace others."""
    found = [compare(*thrown(seed)) for seed in seeds]
    assert sum(bool(one and one.others) for one in found) >= 2


@pytest.mark.parametrize("seeds", [range(n, n + 20) for n in range(0, 100, 20)], ids=str)
def test_what_is_foreseen_of_those_whom_a_new_job_displaces_is_what_happens(seeds: range) -> None:
    """Some find another place, some wait, some displace others in their turn."""
    found = [compare(*thrown_new(seed)) for seed in seeds]
    assert sum(bool(one and one.others) for one in found) >= 2
    assert sum(bool(one and one.hurt) for one in found) >= 2


def thrown_new(seed: int) -> tuple[Snapshot, Job]:
    """A job that is more important than all others there."""
    snapshot, _ = thrown(seed)
    dice = random.Random(-seed - 1)
    size, count = dice.choice(["1G", "2G", "3G"]), dice.randint(1, 2)
    return snapshot, job("new", count, size, priority=300)


def test_whom_a_new_job_displaces_finds_another_place_or_waits_and_that_is_told() -> None:
    """Smaller than who came, it fits where that one did not; where others are already it waits."""
    for other, others, hurt in (
        ("2G", [("low-0", "", "n1")], []),
        ("3G", [], [("low", ("low-0",))]),
    ):
        snapshot = replace(cluster(n1="4G", n2="4G"), settings=OFF)
        jobs = job("low", 1, "2G"), job("high", 1, other, priority=900)
        snapshot = settled(submitted(snapshot, *jobs))
        plan = planned(submit(snapshot, job("new", 1, "3G", priority=500)))
        found = foresee(snapshot, plan, SECONDS)
        assert [(str(c.instance), c.origin, c.to) for c in found.others] == others
        assert [(fate.job.name, tuple(map(str, fate.waiting))) for fate in found.hurt] == hurt


def test_others_take_the_room_that_an_old_instance_leaves() -> None:
    """A smaller version of what fills a node is a place for who waits, and that is told."""
    snapshot = replace(cluster(n1="4G", n2="1G"), settings=OFF)
    snapshot = settled(submitted(snapshot, job("web", 2, "2G"), job("db", 1, "1G")))
    snapshot = lost(snapshot, "n2")
    found = compare(snapshot, job("web", 2, "1G", image="b"))
    assert found and [(str(c.instance), c.origin, c.to) for c in found.others] == [
        ("db-0", "n2", ""),
        ("db-0", "", "n1"),
    ]


def test_a_change_that_waits_for_the_end_of_a_freeze_is_foreseen_beyond_it() -> None:
    """All steps of the job are told; if there is no end of the freeze, others are left out."""
    snapshot = settled(submitted(ROOMY, job(instances=3)))
    plan = planned(submit(snapshot, job(instances=3, image="b")))
    for until, left_out in ((SECONDS + 60, ""), (0.0, FROZEN)):
        window = FreezeWindow(name="demo", start=0, end=0, since=SECONDS - 60, until=until)
        if not until:
            window = FreezeWindow(name="demo", start=0, end=24 * 60)
        frozen = replace(snapshot, settings=replace(OFF, freezes=(window,)))
        found = foresee(frozen, plan, SECONDS)
        assert len(steps_of(list(found.edits), key("web"))) == 6
        assert found.left_out == left_out and not found.outdated


# One job alone ------------------------------------------------------------------------------------


def really(snapshot: Snapshot) -> list[tuple[str, int, int, bool]]:
    steps = []
    while plan := plan_rollout(snapshot):
        steps += [(e.node, e.slot, e.version, e.before is None) for e in plan.edits]
        snapshot = settled(after(snapshot, plan))
    return steps


@pytest.mark.parametrize("plans_max", [500, 3, 0])
def test_foresight_is_what_then_happens(plans_max: int) -> None:
    """The steps shown are those that the rollout takes, however many are played with all others."""
    for nodes, memory in ((ROOMY, "1G"), (cluster(n1="2G", n2="2G", n3="2G"), "2G")):
        snapshot = settled(submitted(nodes, job(instances=3, memory=memory)))
        plan = planned(submit(snapshot, job(instances=3, memory=memory, image="b")))
        found = foresee(snapshot, plan, plans_max=plans_max)
        seen = [(e.node, e.slot, e.version, e.before is None) for e in found.edits]
        assert seen == really(after(snapshot, plan))
        assert found.left_out == ("" if plans_max > 6 else LONG)


def test_plan_of_a_change_shows_all_that_will_happen() -> None:
    """Each old instance is in `stop`, each new one in `place`, with node and reason."""
    snapshot = settled(submitted(ROOMY, job(instances=3)))
    document = foretold(snapshot, submit(snapshot, job(instances=3, image="b")))
    assert document["fits"] and document["problem"] is None and document["move"] == []
    assert len(document["place"]) == len(document["stop"]) == 3
    assert {p["node"] for p in document["place"]} == {"n1", "n2", "n3"}


def test_foresight_of_a_long_rollout_is_complete() -> None:
    """Beyond the steps that are played, alone or with all others, the rest is still listed."""
    big = cluster(n1="400G", n2="400G", n3="400G")
    snapshot = settled(submitted(big, job("big", 300)))
    plan = planned(submit(snapshot, job("big", 300, image="b")))
    for plans_max in (500, 0):
        found = foresee(snapshot, plan, plans_max=plans_max)
        steps = steps_of(list(found.edits), key("big"))
        assert sum(comes for *_, comes in steps) == 300 and len(steps) == 600
        assert found.left_out == LONG
    assert sorted(spread(snapshot, key("big"))) == [90, 90, 120]  # by tenths of the job
