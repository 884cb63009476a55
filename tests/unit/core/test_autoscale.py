"""Pools: what an answer means, what follows from it, and that two peers never both make a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ozymandias.api.documents import pool_lines, pool_rows
from ozymandias.cli.pools import _draw
from ozymandias.core.autoscale import (
    PENDING_MAX,
    Answer,
    Asked,
    plan_look,
    read_pending,
    scale,
    steps_of,
)
from ozymandias.core.freeze import Frozen
from ozymandias.core.pods import pod_of
from ozymandias.core.schedule import pending_of, plan_pending, plan_scale
from ozymandias.model.job import Autoscale, Freeze, Job, PendingSource
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import AUTOSCALED
from tests.unit.core.builders import (
    WEB,
    after,
    cluster,
    job,
    planned,
    refused,
    settled,
    submit,
    submitted,
)
from tests.unit.core.following import changed_job

NOON = 12 * 3600.0
RULES = Autoscale(min=0, max=5, source=PendingSource.KEY, target="/queue", step=2)


def pool(instances: int = 0, rules: Autoscale = RULES, **rest: object) -> Job:
    return job(instances=instances, autoscale=rules, **rest)  # type: ignore[arg-type]


def look(snapshot: Snapshot, pending: int | None, now: float = NOON) -> Plan | None:
    head = snapshot.jobs[WEB].head
    asked = Asked(uid=head.uid, version=head.version, steps=steps_of(head), by="n1", now=now)
    problem = "" if pending is not None else "HTTP 500"
    return plan_look(snapshot, WEB, Answer(pending=pending, problem=problem), asked)


def looked(snapshot: Snapshot, pending: int | None, now: float = NOON) -> Snapshot:
    return after(snapshot, look(snapshot, pending, now))


ROOMY = cluster(n1="8G", n2="8G")


@pytest.mark.parametrize(
    ("data", "path", "pending"),
    [
        (b"0", "", 0),
        (b" 17\n", "", 17),
        (b"3.0", "", 3),
        (b'{"a": {"b": [1, {"c": 5}]}}', "a.b.1.c", 5),
        (b"1000000000", "", PENDING_MAX),
    ],
)
def test_numbers_are_read(data: bytes, path: str, pending: int) -> None:
    """A whole number, or one at the end of a path."""
    assert read_pending(data, path) == Answer(pending=pending)


@pytest.mark.parametrize(
    ("data", "path", "problem"),
    [
        (b"", "", "not JSON"),
        (b"<html>", "", "not JSON"),
        (b"\xff\xfe\x00", "", "not JSON"),
        (b"[" * 100_000, "", "not JSON"),
        (b"9" * 5000, "", "not JSON"),
        (b"NaN", "", "not a number"),
        (b"Infinity", "", "not a number"),
        (b"-Infinity", "", "not a number"),
        (b"1e999", "", "not a whole number"),
        (b"2.5", "", "not a whole number"),
        (b"-1", "", "below 0"),
        (b"1000000001", "", "above 1000000000"),
        (b"1e300", "", "above 1000000000"),
        (b'"12"', "", "not a number"),
        (b"true", "", "not a number"),
        (b"null", "", "not a number"),
        (b'{"a": 1}', "", "not a number"),
        (b'{"a": 1}', "b", "nothing at b"),
        (b"[1]", "1", "nothing at 1"),
        (b"[1]", "99999999999999999999", "nothing at"),
        (b'{"a": "s3cret"}', "a", "not a number at a"),
    ],
)
def test_lies_are_told_without_their_words(data: bytes, path: str, problem: str) -> None:
    """Why there is no number, in our words: nothing of the answer leaks through a job."""
    answer = read_pending(data, path)
    assert answer.pending is None
    assert problem in answer.problem and "s3cret" not in answer.problem


@given(st.binary(max_size=200), st.sampled_from(["", "a", "a.b", "0.1"]))
def test_any_bytes_are_a_number_or_a_reason(data: bytes, path: str) -> None:
    """Nothing that a source can say is an exception, or a number out of bounds."""
    answer = read_pending(data, path)
    assert (answer.pending is None) is bool(answer.problem)
    assert answer.pending is None or 0 <= answer.pending <= PENDING_MAX


@given(
    bounds=st.tuples(st.integers(0, 20), st.integers(1, 20)).filter(lambda b: b[0] <= b[1]),
    step=st.integers(1, 30),
    wanted=st.integers(0, 40),
    missing=st.integers(-3, 5),
    pending=st.none() | st.integers(0, 10**9),
    is_frozen=st.booleans(),
)
def test_what_follows_stays_within_bounds(
    bounds: tuple[int, int],
    step: int,
    wanted: int,
    missing: int,
    pending: int | None,
    is_frozen: bool,
) -> None:
    """Within min and max, up by a step at most, unchanged by a lie or in a freeze."""
    rules = replace(RULES, min=bounds[0], max=bounds[1], step=step)
    frozen = Frozen(by="w", until=1.0) if is_frozen else None
    answer = Answer(pending=pending, problem="" if pending is not None else "x")
    found = scale(rules, answer, wanted=wanted, missing=missing, frozen=frozen)
    if pending is None or is_frozen:
        assert found.wanted == wanted
        return
    assert rules.min <= found.wanted <= rules.max
    within = min(max(wanted, rules.min), rules.max)
    assert found.wanted == rules.min if pending == 0 else within <= found.wanted <= within + step
    assert not (missing > 0 and pending and found.wanted > within)


def test_up_by_a_step_while_something_is_pending_and_down_to_the_least() -> None:
    """Placed by the planner of pending work, as far as there is room; stopped at once."""
    snapshot = settled(submitted(ROOMY, pool()))
    for wanted in (2, 4, 5):
        plan = planned(look(snapshot, 7))
        assert not plan.edits and plan.job and plan.job.head and plan.job.head.wanted == wanted
        snapshot = settled(after(after(snapshot, plan), plan_pending(after(snapshot, plan))))
    most = planned(look(snapshot, 7))
    assert "5, the most" in most.reason
    snapshot = after(snapshot, most)
    assert look(snapshot, 7) is None, "nothing new, nothing written"
    down = planned(look(snapshot, 0))
    assert len(down.edits) == 5 and "nothing is pending: 0, the least" in down.reason
    snapshot = settled(after(snapshot, down))
    assert look(snapshot, 0) is None
    assert not list(snapshot.instances(WEB))


def test_no_more_are_asked_for_while_some_have_no_place() -> None:
    """As many as fit are placed; the rest waits with its reason, and the pool waits with it."""
    tight = cluster(n1="1G")
    snapshot = looked(submitted(tight, pool()), 9)
    snapshot = settled(after(snapshot, plan_pending(snapshot)))
    assert len(list(snapshot.instances(WEB))) == 1
    assert sum(pending.count for pending in pending_of(snapshot)) == 1
    snapshot = looked(snapshot, 9)
    head = snapshot.jobs[WEB].head
    assert head.wanted == 2 and head.look
    assert head.look.reason == "9 pending, and 1 more have no place yet"


def test_an_answer_that_makes_no_sense_changes_nothing_and_is_told() -> None:
    """The pool stays as it is, and its head says why."""
    snapshot = settled(submitted(ROOMY, pool(3)))
    snapshot = looked(snapshot, None)
    head = snapshot.jobs[WEB].head
    assert head.wanted == 3 and head.look and head.look.pending is None
    assert head.look.reason == "it stays as it is: HTTP 500"
    assert look(snapshot, None) is None


def test_two_peers_never_both_make_a_step() -> None:
    """The second one's was meant for the pool before the first one's."""
    snapshot = settled(submitted(ROOMY, pool()))
    head = snapshot.jobs[WEB].head
    asked = Asked(uid=head.uid, version=1, steps=0, by="n2", now=NOON)
    stepped = looked(snapshot, 3)
    assert plan_look(stepped, WEB, Answer(pending=3), asked) is None
    assert plan_look(stepped, WEB, Answer(pending=3), replace(asked, steps=1)) is not None
    assert plan_look(stepped, WEB, Answer(pending=3), replace(asked, steps=1, uid="x")) is None
    assert plan_look(stepped, WEB, Answer(pending=3), replace(asked, steps=1, version=2)) is None


@pytest.mark.parametrize("is_own", [True, False])
def test_nothing_is_scaled_in_a_freeze(is_own: bool) -> None:
    """By a window of the job's own or of the cluster's; the reason says which and until when."""
    rules = replace(RULES, freeze=(Freeze(start=0, end=780),) if is_own else ())
    snapshot = settled(submitted(ROOMY, pool(1, rules)))
    if not is_own:
        window = FreezeWindow(name="mornings", start=0, end=780)
        snapshot = replace(snapshot, settings=Settings(freezes=(window,)))
    for pending in (3, 0):
        head = looked(snapshot, pending).jobs[WEB].head
        by = "the job's own window" if is_own else "mornings"
        assert head.wanted == 1 and head.look and steps_of(head) == 0
        assert f"but frozen by {by} until Thu 1970-01-01 13:00 UTC" in head.look.reason
    assert looked(snapshot, 3, now=13 * 3600.0).jobs[WEB].head.wanted == 3


def test_that_a_pool_is_frozen_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """By `ozy why` and `ozy pools`, whether or not it would have made a step."""
    rules = replace(RULES, freeze=(Freeze(start=0, end=780),))
    snapshot = settled(submitted(ROOMY, pool(1, rules)))
    for pending, last in ((None, "it stays as it is: HTTP 500"), (3, "3 pending, but frozen by")):
        held = looked(snapshot, pending)
        lines = pool_lines(held, held.jobs[WEB], NOON)
        assert " ".join(lines).count("frozen by the job's own window until") == 1
        _draw(pool_rows(held, NOON))
        shown = capsys.readouterr().out
        assert last in lines[0] and last in shown
        assert shown.count("frozen by the job's own window until") == 1


def test_the_number_is_the_pools_own() -> None:
    """Nobody scales it by hand; a changed file keeps the number, within its bounds."""
    snapshot = settled(submitted(ROOMY, pool(4)))
    problem = refused(plan_scale(snapshot, WEB, 2))
    assert problem.kind is AUTOSCALED and "0 to 5 instances" in problem.detail
    assert planned(submit(snapshot, pool(1))).is_empty
    changed = after(snapshot, submit(snapshot, pool(1, image="b")))
    assert changed.jobs[WEB].head.wanted == 4
    lower = after(snapshot, submit(snapshot, pool(1, replace(RULES, max=3))))
    assert lower.jobs[WEB].head.wanted == 3
    fixed = after(snapshot, submit(snapshot, job(instances=2)))
    assert fixed.jobs[WEB].head.wanted == 2


def test_a_pool_that_waits_for_room_can_be_changed() -> None:
    """It asked for more than there is room for by itself, and what waits may wait on."""
    snapshot = submitted(cluster(n1="3G"), pool())
    for _ in range(2):
        snapshot = looked(snapshot, 9)
        snapshot = settled(after(snapshot, plan_pending(snapshot)))
    assert snapshot.jobs[WEB].head.wanted == 4 and len(list(snapshot.instances(WEB))) == 3
    changed = after(snapshot, submit(snapshot, pool(image="b")))
    assert (changed.jobs[WEB].head.version, changed.jobs[WEB].head.wanted) == (2, 4)
    larger = refused(submit(snapshot, pool(memory="2G")))
    assert "requires 6G of memory but only 2G" in larger.detail
    most = refused(submit(snapshot, pool(0, replace(RULES, min=4), image="b")))
    assert "requires 4G of memory but only 3G" in most.detail


@given(
    least=st.integers(0, 6),
    begins=st.integers(0, 6),
    memory=st.sampled_from(["1G", "2G"]),
    has=st.none() | st.integers(0, 4),
)
def test_whoever_makes_a_pool_smaller_as_suggested_is_served(
    least: int, begins: int, memory: str, has: int | None
) -> None:
    """Within its bounds where it is new, by its bounds where it is there."""
    rules = replace(RULES, min=least, max=8)
    wanted, snapshot = pool(max(least, begins), rules, memory=memory), cluster(n1="2G", n2="2G")
    if has is not None:
        snapshot = settled(submitted(snapshot, pool(has)))
    problem = submit(snapshot, wanted)
    if isinstance(problem, Plan):
        return
    assert problem
    for suggestion in problem.fields["suggestions"]:
        if set(suggestion["change"]) <= {"numInstances", "autoscale.min", "autoscale.max"}:
            smaller = changed_job(wanted, suggestion["change"])
            assert smaller.autoscale
            assert smaller.autoscale.min <= smaller.instances <= max(1, smaller.autoscale.max)
            assert isinstance(submit(snapshot, smaller), Plan), suggestion


def test_instances_find_their_pool_in_the_environment() -> None:
    """POOL_*, API_ENDPOINT and a name of their own, which the file may shape."""
    rules = replace(RULES, kind="build", agent_name="{pool}.{node}.{slot}")
    snapshot = submitted(cluster(n1="8G"), pool(1, rules))
    (assigned,) = snapshot.instances(WEB)
    version = snapshot.jobs[WEB].current
    assert version
    made = dict(pod_of(assigned, version, host_ip="10.0.0.1", api="http://api").environment)
    assert made["POOL_ID"] == assigned.uid
    assert (made["POOL_NAME"], made["POOL_TYPE"]) == ("web", "build")
    assert (made["API_ENDPOINT"], made["AGENT_NAME"]) == ("http://api", "web.n1.0")
    plain = submitted(cluster(n1="8G"), job())
    (other,) = plain.instances(WEB)
    assert plain.jobs[WEB].current
    bare = pod_of(other, plain.jobs[WEB].current, host_ip="", api="")
    assert not any(name.startswith("POOL") for name, _ in bare.environment)
