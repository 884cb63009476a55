"""The state as a file: the same scheduler over it makes the same plan, byte for byte."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ozymandias.core.arbiter import Leisure, propose
from ozymandias.core.decision import record
from ozymandias.core.preempt import Lately, displaced_in
from ozymandias.core.upcoming import Moment
from ozymandias.model.decision import Decision
from ozymandias.model.job import (
    Autoscale,
    Container,
    LabelRule,
    PendingSource,
    PlacementRules,
)
from ozymandias.model.node import NodeName, Resources
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow, RebalanceMode
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import ProblemError
from ozymandias.store.replay import (
    canonical,
    export,
    export_decision,
    is_same,
    load,
    plan_of,
    replayed,
)
from tests.unit.core.builders import (
    after,
    cluster,
    job,
    lost,
    node,
    planned,
    settled,
    submit,
    submitted,
)

AGAIN = """
import sys
from ozymandias.store.replay import canonical, load, replayed
recorded = load(sys.stdin.buffer.read())
plan = replayed(recorded)
sys.stdout.buffer.write(canonical({"plan": plan, "recorded": recorded.plan}))
"""


def drawn(seed: int) -> Snapshot:
    """A cluster at some moment: jobs of all sizes, nodes lost, closed and drained."""
    dice = random.Random(seed)
    nodes = [
        node(f"n{i}", f"{dice.randint(2, 8)}G", labels={"zone": dice.choice("abc")})
        for i in range(dice.randint(2, 6))
    ]
    snapshot = cluster(*nodes)
    for number in range(dice.randint(1, 5)):
        wanted = job(f"j{number}", dice.randint(1, 6), "1G", priority=dice.randint(0, 2))
        decision = submit(snapshot, wanted)
        if isinstance(decision, Plan):
            snapshot = after(snapshot, decision)
            if dice.random() < 0.5:
                snapshot = settled(snapshot)
    if dice.random() < 0.5:
        snapshot = lost(snapshot, dice.choice(nodes).name)
    elif dice.random() < 0.8:
        added = node("n9", "16G", labels={"zone": dice.choice("abc")})
        snapshot = replace(settled(snapshot), nodes={**snapshot.nodes, added.name: added})
    mode = dice.choice(list(RebalanceMode))
    return replace(snapshot, settings=replace(snapshot.settings, rebalance=mode))


@pytest.mark.parametrize("seed", range(12))
def test_another_process_makes_the_same_plan(seed: int) -> None:
    """Exported at some moment, read by a process with other hashes: the same bytes."""
    snapshot = drawn(seed)
    data = export(snapshot, 1000.0)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1), "PYTHONPATH": os.getcwd()}
    ran = subprocess.run(
        [sys.executable, "-c", AGAIN], input=data, capture_output=True, env=environment
    )
    assert ran.returncode == 0, ran.stderr.decode()
    plan = plan_of(snapshot, 1000.0, Moment())
    assert ran.stdout == canonical({"plan": plan, "recorded": plan})


def test_a_file_holds_all_of_a_snapshot() -> None:
    """What is read back is what was written, but for what nobody outside should see."""
    snapshot = settled(submitted(cluster(n1="4G", n2="4G"), job("web", 3)))
    found = load(export(snapshot, 5.0, with_environment=True))
    assert found.wall == 5.0
    again = export(found.snapshot, 5.0, with_environment=True)
    assert again == export(snapshot, 5.0, with_environment=True)
    assert found.snapshot.jobs == snapshot.jobs and found.snapshot.nodes == snapshot.nodes
    assert dict(found.snapshot.assignments) == dict(snapshot.assignments)
    assert dict(found.snapshot.statuses) == dict(snapshot.statuses)


def test_secrets_are_left_out() -> None:
    """Values of environments stay at home unless asked for, keys of daemons always."""
    wanted = job("web", 1)
    secret = replace(wanted.containers[0], environment=(("PASSWORD", "hunter2"),))
    pool = Autoscale(min=0, max=2, source=PendingSource.URL, target="http://q/?token=hunter2")
    snapshot = submitted(cluster(n1="4G"), replace(wanted, containers=(secret,), autoscale=pool))
    there = snapshot.nodes[NodeName("n1")]
    assert there.presence
    keyed = replace(there, presence=replace(there.presence, peer_key="hunter3"))
    snapshot = replace(snapshot, nodes={there.name: keyed})
    data = export(snapshot, 0.0)
    assert b"hunter" not in data and b"PASSWORD" in data
    data = export(snapshot, 0.0, with_environment=True)
    assert b"hunter2" in data and b"hunter3" not in data


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", b'{"format":"ozymandias-replay","version":1}', b"[" * 100_000],
)
def test_other_files_are_refused(data: bytes) -> None:
    """Whatever is given as a file: replayed or refused, never a traceback."""
    with pytest.raises(ProblemError) as caught:
        load(data)
    assert caught.value.problem.kind.slug == "invalid-replay"


def test_a_newer_format_is_told() -> None:
    """The problem says which format it is and which this version reads."""
    document = json.loads(export(cluster(n1="4G"), 0.0))
    document["version"] = 3
    with pytest.raises(ProblemError, match="of format 3, and this version reads those up to 2"):
        load(canonical(document))


@pytest.mark.parametrize("data", [b"", b"name: web", b"\xff", b'{"format": "ozy'])
def test_what_is_not_json_is_told_in_plain_words(data: bytes) -> None:
    """Another file by mistake, or only a part of ours."""
    with pytest.raises(ProblemError, match="it is not JSON, as `ozy replay --export` writes it"):
        load(data)


def test_a_damaged_file_is_refused() -> None:
    """Whatever part is missing or of another kind, it is told as damage."""
    good = json.loads(export(submitted(cluster(n1="4G"), job("web", 1)), 0.0))
    for part in good["snapshot"]:
        for value in (None, 7, "x", [3]):
            damaged = {**good, "snapshot": {**good["snapshot"], part: value}}
            try:
                load(canonical(damaged))
            except ProblemError as error:
                assert error.problem.kind.slug == "invalid-replay"


def test_containers_without_environment_are_as_they_were() -> None:
    """Leaving values out changes nothing else of a job."""
    snapshot = submitted(cluster(n1="4G"), job("web", 1))
    found = load(export(snapshot, 0.0)).snapshot
    (container,) = next(iter(found.jobs.values())).versions[1].job.containers
    assert isinstance(container, Container) and container.memory_bytes == 2**30


# What can wait -----------------------------------------------------------------------------------

NOW = 10_000.0
ROOMY = Resources(memory_bytes=2**40, disk_bytes=2**40)


def wishing(mode: RebalanceMode = RebalanceMode.SUGGEST, *freezes: FreezeWindow) -> Snapshot:
    """A job that is healthy, and would rather be on a node that came later."""
    wish = LabelRule(label="disk", values=("ssd",), weight=5)
    asked = PlacementRules(prefer=(wish,))
    snapshot = settled(submitted(cluster(n1="4G"), job("db", 1, placement=asked)))
    better = node("n2", labels={"disk": "ssd"})
    chosen = replace(snapshot.settings, rebalance=mode, freezes=freezes)
    snapshot = replace(snapshot, nodes={**snapshot.nodes, better.name: better}, settings=chosen)
    noted = propose(lost(snapshot, "n2"), frozenset(), NOW, leisure=Leisure())
    return settled(after(snapshot, noted.plan)) if noted and noted.what == "drift" else snapshot


def told(snapshot: Snapshot, leisure: Leisure | None = None) -> tuple[str, str] | None:
    recorded = load(export(snapshot, NOW, leisure=leisure))
    assert is_same(recorded, replayed(recorded))
    return (recorded.plan["what"], recorded.plan["when"]) if recorded.plan else None


def test_a_wish_that_can_be_healed_is_in_the_plan() -> None:
    """At once, or when the node has been there for a while; the file holds whether it has."""
    assert told(wishing()) == ("rebalance", "now")
    leisure = Leisure(settled=frozenset({NodeName("n1")}))
    assert told(wishing(), leisure) == ("rebalance", "settled")
    assert told(wishing(RebalanceMode.ON)) == ("rebalance", "now")


def test_what_nobody_does_unasked_is_a_suggestion() -> None:
    """Off: not even wishes are healed. Suggest: crowds stay."""
    assert told(wishing(RebalanceMode.OFF)) == ("rebalance", "asked")
    crowded = settled(submitted(cluster(n1="8G"), job("web", 4)))
    crowded = replace(crowded, nodes={**crowded.nodes, NodeName("n2"): node("n2", "8G")})
    assert told(crowded) == ("rebalance", "asked")
    on = replace(crowded, settings=replace(crowded.settings, rebalance=RebalanceMode.ON))
    assert told(on) == ("rebalance", "now")


def test_a_freeze_is_waited_for() -> None:
    """The plan is the one that follows its end, and says by what it is held back."""
    window = FreezeWindow(name="demo", start=0, end=0, since=1.0, until=NOW + 60)
    snapshot = wishing(RebalanceMode.ON, window)
    assert told(snapshot) == ("rebalance", "thawed")
    plan = load(export(snapshot, NOW)).plan
    assert plan["frozen"].startswith("frozen by demo until ")
    assert plan["plan"]["job"]["head"]["move"]["since"] == NOW + 60


def test_what_is_urgent_comes_before_what_can_wait() -> None:
    """The order is the arbiter's."""
    snapshot = submitted(wishing(RebalanceMode.ON), job("web", 2))
    assert told(lost(snapshot, "n1")) == ("repair n1", "now")


def test_who_was_displaced_lately_is_in_the_file() -> None:
    """By the daemon's own clock, whatever the wall clocks say."""
    snapshot = settled(submitted(cluster(n1="2G"), job("low", 2)))
    snapshot = settled(after(snapshot, submit(snapshot, job("mid", 1, priority=5))))
    (record_,) = displaced_in(snapshot)
    for lately in (Lately(wall=NOW, boot=0.0, seen={record_: 0.0}), Lately(wall=NOW)):
        found = load(export(snapshot, NOW, lately=lately)).moment
        assert found and (record_ in found.displaced) is lately.is_recent(record_)


def test_a_file_of_the_first_format_is_replayed_as_it_was() -> None:
    """Without what can wait, which it does not know."""
    snapshot = wishing(RebalanceMode.ON)
    document = json.loads(export(snapshot, NOW))
    del document["moment"]
    old = load(canonical({**document, "version": 1, "plan": None}))
    assert old.moment is None and replayed(old) is None and is_same(old, None)
    document = json.loads(export(lost(snapshot, "n1"), NOW))
    del document["moment"]
    plan = {part: document["plan"][part] for part in ("what", "plan")}
    old = load(canonical({**document, "version": 1, "plan": plan}))
    assert is_same(old, replayed(old))


# Decisions ---------------------------------------------------------------------------------------


def decided() -> Decision:
    snapshot = cluster(node("n1", "2G"), node("n2", "4G"), node("n3", cordoned=True))
    plan = planned(submit(snapshot, job("web", 2)))
    return record(snapshot, [plan], number=3, by=NodeName("n1"), time=5.0)


def again(decision: Decision) -> tuple[bool, list[tuple[bool | None, str]]]:
    recorded = load(export_decision(decision))
    plan = replayed(recorded)
    steps = (*plan["placements"], *plan["stops"])
    return is_same(recorded, plan), [(step["same"], step["why"]) for step in steps]


def test_a_decision_is_held_against_what_was_decided() -> None:
    """Another node, other terms, a node that could not have taken it: each is told."""
    decision = decided()
    assert again(decision) == (True, [(True, ""), (True, "")])
    first, second = decision.steps[0], decision.steps[1:]
    elsewhere = {"n1": "n2", "n2": "n1"}[first.node]
    same, steps = again(
        replace(decision, steps=(replace(first, node=NodeName(elsewhere)), *second))
    )
    assert not same and steps[0][0] is False
    assert steps[0][1].startswith(f"the best is {first.node} now: memory_after is ")
    score = tuple((name, 7.0 if name == "same_job" else x) for name, x in first.score)
    same, steps = again(replace(decision, steps=(replace(first, score=score), *second)))
    assert (same, steps[0]) == (False, (False, "same_job is 0 now, and was 7"))
    same, steps = again(replace(decision, steps=(replace(first, node=NodeName("n3")), *second)))
    assert (same, steps[0]) == (False, (False, "n3 could not have taken it: it is cordoned"))


def test_what_a_cut_record_cant_tell_is_said() -> None:
    """No verdict where the node, the rules or some of the nodes are not on record."""
    decision = decided()
    node_ = decision.steps[0].node
    without = {name: seen for name, seen in decision.nodes.items() if name != node_}
    same, steps = again(replace(decision, nodes=without))
    assert same and steps[0] == (None, f"the record was cut: {node_} is not in it")
    wrong = tuple(replace(step, score=(("same_job", 7.0),)) for step in decision.steps)
    same, steps = again(replace(decision, steps=wrong, nodes_total=90))
    assert same and steps[0] == (None, "the record was cut: 87 of 90 nodes are not in it")
    same, steps = again(replace(decision, steps=wrong, jobs=()))
    assert same and steps[0] == (None, "the record was cut: the rules of web are not in it")


def test_victims_and_what_was_lost_are_shown() -> None:
    """Without the victim there would be no room; what a lost node had is gone with it."""
    full = settled(submitted(cluster(n1="2G"), job("low", 2)))
    plan = planned(submit(full, job("high", 1, priority=5)))
    decision = record(full, [plan], number=0, by=NodeName("n1"), time=1.0)
    same, (_, victim) = again(decision)
    assert same and victim == (True, "of all who could have left for high, this costs least")
    decision = replace(decision, contests=())  # as one of an older daemon
    same, (_, victim) = again(decision)
    assert same and victim == (True, "without that not everything would fit on n1")
    roomy = {NodeName("n1"): replace(decision.nodes[NodeName("n1")], allocatable=ROOMY)}
    _, (_, victim) = again(replace(decision, nodes=roomy))
    assert victim == (None, "who else could have stopped is not on record")
    gone = lost(settled(submitted(cluster(n1="4G", n2="4G"), job("web", 4))), "n2")
    dead = frozenset({NodeName("n2")})
    repair = propose(gone, dead, NOW, dead)
    assert repair
    same, steps = again(record(gone, [repair.plan], number=0, by=NodeName("n1"), time=1.0))
    assert same and (True, "n2 was not alive") in steps


def test_an_older_file_of_a_decision_is_held_against_it_too() -> None:
    """The first format has the decision; how it explained that is not compared."""
    document = json.loads(export_decision(decided()))
    old = load(canonical({**document, "version": 1, "plan": []}))
    assert is_same(old, replayed(old))


def test_the_command_tells_a_decision_that_came_out_otherwise(tmp_path: Path) -> None:
    """Nodes that were not fit have no rank; exit code 1, and which node and terms differ."""
    path = tmp_path / "decision.json"
    path.write_bytes(export_decision(decided()))
    ran = ozy(path)
    assert ran.returncode == 0 and "The same as was decided." in ran.stdout
    assert "n3    -     cordoned" in ran.stdout
    score = (("same_job", 7.0),)
    wrong = tuple(replace(step, score=score) for step in decided().steps)
    path.write_bytes(export_decision(replace(decided(), steps=wrong)))
    ran = ozy(path)
    assert (
        ran.returncode == 1 and "This is not what was decided (by the same version)" in ran.stderr
    )
    assert "Decided otherwise: same_job is 0 now, and was 7" in ran.stdout


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (RebalanceMode.ON, "rebalance: db-0 moves from n1 to n2"),
        (RebalanceMode.OFF, "Only suggested, for the setting `rebalance` is off"),
    ],
)
def test_the_command_tells_what_can_wait(tmp_path: Path, mode: RebalanceMode, words: str) -> None:
    """A move by itself, or clearly as a suggestion."""
    path = tmp_path / "state.json"
    path.write_bytes(export(wishing(mode), NOW))
    ran = ozy(path)
    assert ran.returncode == 0 and words in ran.stdout, ran.stderr


def ozy(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ozymandias.cli", "replay", str(path), *arguments]
    environment = {**os.environ, "OZY_CONTEXT_FILE": str(path.parent / "none")}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_command_needs_no_cluster(tmp_path: Path) -> None:
    """`ozy replay FILE`: the plan for people and for scripts, and exit code 1 when it differs."""
    snapshot = lost(settled(submitted(cluster(n1="4G", n2="4G"), job("web", 4))), "n2")
    path = tmp_path / "state.json"
    path.write_bytes(export(snapshot, 0.0))

    ran = ozy(path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("repair n2: n2 was lost\n")
    assert "The same plan as where the file was written." in ran.stdout
    document = json.loads(ozy(path, "-o", "json").stdout)
    assert document["same"] and document["plan"]["what"] == "repair n2"
    changed = json.loads(path.read_bytes())
    changed["plan"] = None
    path.write_bytes(canonical(changed))
    ran = ozy(path)
    assert ran.returncode == 1 and "not the plan that was made" in ran.stderr
    path.write_text("something else")
    assert ozy(path).returncode == 2
