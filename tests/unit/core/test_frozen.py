"""What waits for the end of a freeze window, what does not, and how windows are set."""

import pytest

from ozymandias.core.arbiter import propose
from ozymandias.core.nodes import plan_begin_drain
from ozymandias.core.schedule import plan_restart, plan_scale, plan_submit
from ozymandias.core.settings import FREEZES_MAX, describe_freeze, plan_freeze, plan_unfreeze
from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobKind, LabelRule, PlacementRules
from ozymandias.model.node import Drain, Load, NodeName
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import FREEZE_NOT_FOUND, INVALID_SETTING
from tests.unit.core.builders import (
    NAMES,
    WEB,
    after,
    cluster,
    job,
    lost,
    planned,
    refused,
    report,
    settled,
    submit,
    submitted,
)

NIGHT = 23 * 3600.0  # 23:00 UTC of a Thursday
NOON = 12 * 3600.0
NIGHTS = FreezeWindow(name="nights", start=22 * 60, end=6 * 60, reason="nobody looks")
NOBODY: frozenset[NodeName] = frozenset()


def frozen(snapshot: Snapshot, *windows: FreezeWindow) -> Snapshot:
    return replace(snapshot, settings=Settings(freezes=windows or (NIGHTS,)))


def web(instances: int = 3, **rest: object) -> Snapshot:
    three = cluster(n1="4G", n2="4G", n3="4G")
    return frozen(settled(submitted(three, job(instances=instances, **rest))))  # type: ignore[arg-type]


def test_a_rollout_waits_for_the_end_of_the_window() -> None:
    """The new version is committed; its first step is due when the window ends, not before."""
    snapshot = after(web(), submit(web(), job(instances=3, image="b")))
    assert snapshot.jobs[WEB].head.version == 2
    assert propose(snapshot, NOBODY, NIGHT) is None
    found = propose(snapshot, NOBODY, NOON)
    assert found and found.what == "rollout"


def test_a_rollout_under_way_stands_still() -> None:
    """A new instance that is healthy replaces its old one after the window; both run till then."""
    snapshot = after(web(), submit(web(), job(instances=3, image="b")))
    first = propose(snapshot, NOBODY, NOON)
    assert first
    snapshot = report(after(snapshot, first.plan))
    assert propose(snapshot, NOBODY, NIGHT) is None
    then = propose(snapshot, NOBODY, NOON)
    assert then and "which is healthy" in then.plan.edits[0].reason


def test_a_reason_lets_a_change_pass() -> None:
    """It is kept with head and version, goes with the next change, and may come after the file."""
    snapshot, changed = web(), job(instances=3, image="b")
    hurried = plan_submit(snapshot, changed, uid="u", names=NAMES, override_freeze="CVE")
    hasty = after(snapshot, hurried)
    record = hasty.jobs[WEB]
    assert record.head.override_freeze == "CVE"
    assert record.current and record.current.override_freeze == "CVE"
    assert propose(hasty, NOBODY, NIGHT)
    calm = after(hasty, plan_restart(hasty, WEB))
    assert not calm.jobs[WEB].head.override_freeze
    assert propose(calm, NOBODY, NIGHT) is None
    assert propose(after(calm, plan_restart(calm, WEB, override_freeze="x")), NOBODY, NIGHT)
    waiting = after(snapshot, submit(snapshot, changed))
    again = plan_submit(waiting, changed, uid="u", names=NAMES, override_freeze="CVE")
    assert "waits for no freeze window: CVE" in planned(again).reason
    assert propose(after(waiting, again), NOBODY, NIGHT)


def test_system_jobs_are_placed_but_not_replaced() -> None:
    """A node that joins in the night gets its own; a change of all waits for the morning."""
    one = cluster(n1="4G")
    agent = replace(job("agent", 0), kind=JobKind.SYSTEM)
    snapshot = frozen(settled(submitted(one, agent)))
    joined = replace(snapshot, nodes={**snapshot.nodes, **cluster(n2="4G").nodes})
    found = propose(joined, NOBODY, NIGHT)
    assert found and found.what == "system"
    changed = after(
        snapshot, submit(snapshot, replace(job("agent", 0, image="b"), kind=JobKind.SYSTEM))
    )
    assert propose(changed, NOBODY, NIGHT) is None
    due = propose(changed, NOBODY, NOON)
    assert due and due.what == "system"


def test_what_must_not_wait_does_not() -> None:
    """Repair, drains (also of old versions), pending work and what people scale."""
    snapshot = after(web(), submit(web(), job(instances=3, image="b")))
    dead = lost(snapshot, "n1")
    repair = propose(dead, frozenset({NodeName("n1")}), NIGHT)
    assert repair and repair.what.startswith("repair")
    drain = Drain(since=0.0)
    drained = after(snapshot, plan_begin_drain(snapshot, NodeName("n1"), drain))
    moving = propose(drained, NOBODY, NIGHT)
    assert moving and moving.what == "rollout"
    assert planned(plan_scale(snapshot, WEB, 2)).edits
    more = after(web(), plan_scale(web(), WEB, 5))
    assert len(list(more.instances(WEB))) == 5


def test_a_service_that_becomes_a_system_job_leaves_nobody_before_the_end() -> None:
    """Where the new version is not to be, the old one goes on as long as the window holds."""
    rules = PlacementRules(require=(LabelRule(label="role", values=("edge",)),))
    later = replace(job(instances=0, placement=rules), kind=JobKind.SYSTEM)
    snapshot = after(web(1), submit(web(1), later))
    assert snapshot.jobs[WEB].head.version == 2
    assert propose(snapshot, NOBODY, NIGHT) is None
    due = propose(snapshot, NOBODY, NOON)
    assert due and [edit.after for edit in due.plan.edits] == [SlotState.STOPPING]


def test_what_a_system_job_has_left_of_older_versions_stays_until_the_end() -> None:
    """The new one is there and healthy; that the others go is the last step of the rollout."""
    one = replace(job(instances=0), kind=JobKind.SYSTEM)
    before = settled(submitted(cluster(n1="8G"), job(instances=3)))
    snapshot = after(before, submit(before, one))
    step = propose(snapshot, NOBODY, NOON)
    assert step is not None
    snapshot = frozen(settled(after(snapshot, step.plan)), NIGHTS)
    assert propose(snapshot, NOBODY, NIGHT) is None
    due = propose(snapshot, NOBODY, NOON)
    assert due and {edit.after for edit in due.plan.edits} == {SlotState.STOPPING}


def test_pressure_on_a_host_lets_no_rollout_pass() -> None:
    """What it sheds is stopped as it is; a drain is an operator's word, pressure is nobody's."""
    snapshot = after(web(), submit(web(), job(instances=3, image="b")))
    n1 = snapshot.nodes[NodeName("n1")]
    for keep, what in ((1, None), (0, "shed")):
        load = Load(taint="memory pressure: for a test", shed_to=keep)
        pressed = replace(snapshot, nodes={**snapshot.nodes, n1.name: replace(n1, load=load)})
        found = propose(pressed, NOBODY, NIGHT)
        assert (found.what if found else None) == what
        assert not found or [edit.after for edit in found.plan.edits] == [SlotState.STOPPING]
        due = propose(pressed, NOBODY, NOON)
        assert due and due.what == (what or "rollout")


def test_windows_are_added_replaced_and_removed() -> None:
    """By name; the same one again changes nothing; one that is past goes with the next change."""
    over = FreezeWindow(name="demo", start=0, end=0, since=1.0, until=2.0)
    snapshot = frozen(cluster(n1="4G"), NIGHTS, over)
    assert planned(plan_freeze(snapshot, NIGHTS, NOON)).is_empty
    later = replace(NIGHTS, end=7 * 60)
    plan = planned(plan_freeze(snapshot, later, NOON))
    assert plan.reason == "freeze window nights, 22:00 to 07:00 UTC, daily: nobody looks"
    assert plan.settings and plan.settings.freezes == (later,)
    gone = planned(plan_unfreeze(snapshot, "nights", NOON))
    assert gone.settings and gone.settings.freezes == ()
    missing = refused(plan_unfreeze(snapshot, "x", NOON))
    assert missing.kind is FREEZE_NOT_FOUND and "nights" in missing.hint


def test_a_window_that_holds_ends_sooner_only_with_a_reason() -> None:
    """Removed, shortened or put elsewhere: all that waits for its end goes on with it."""
    snapshot = frozen(cluster(n1="4G"), NIGHTS)
    shorter = replace(NIGHTS, end=NIGHTS.end - 60, reason="")
    elsewhere = replace(NIGHTS, start=8 * 60, end=9 * 60, reason="")
    longer = replace(NIGHTS, end=NIGHTS.end + 60, reason="")
    for unexplained in (
        plan_unfreeze(snapshot, "nights", NIGHT),
        plan_freeze(snapshot, shorter, NIGHT),
        plan_freeze(snapshot, elsewhere, NIGHT),
    ):
        problem = refused(unexplained)
        assert "window nights holds" in problem.detail and "--reason" in problem.hint
    gone = planned(plan_unfreeze(snapshot, "nights", NIGHT, "CVE-1"))
    assert gone.reason == "freeze window nights is gone: CVE-1"
    for allowed in (
        plan_freeze(snapshot, replace(shorter, reason="CVE-1"), NIGHT),
        plan_freeze(snapshot, longer, NIGHT),
        plan_freeze(snapshot, shorter, NOON),
    ):
        assert not planned(allowed).is_empty


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (replace(NIGHTS, name="No"), "can't be the name"),
        (replace(NIGHTS, weekdays=()), "on no weekday"),
        (replace(NIGHTS, timezone="Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (replace(NIGHTS, end=22 * 60), "leave no minute of the week free: nothing"),
        (
            replace(NIGHTS, name="days", start=6 * 60, end=22 * 60),
            "leave no minute of the week free, together with nights",
        ),
        (replace(NIGHTS, since=NOON, until=NOON), "must end after it begins"),
        (replace(NIGHTS, since=1.0, until=NOON - 1), "must end after it begins"),
        (replace(NIGHTS, since=NOON, until=NOON + 32 * 86_400), "within 31 days"),
    ],
)
def test_windows_that_make_no_sense_are_refused(window: FreezeWindow, words: str) -> None:
    """Nothing is changed, and the problem names the window."""
    problem = refused(plan_freeze(frozen(cluster(n1="4G")), window, NOON))
    assert problem.kind is INVALID_SETTING
    assert words in problem.detail
    assert problem.fields["setting"] == f"freezes.{window.name}"


def test_there_is_a_limit_on_windows() -> None:
    """Every decision looks at all of them."""
    many = tuple(replace(NIGHTS, name=f"w{n}") for n in range(FREEZES_MAX))
    assert "at most" in refused(plan_freeze(frozen(cluster(n1="4G"), *many), NIGHTS, NOON)).detail
    once = replace(NIGHTS, since=NOON, until=NOON + 60)
    assert describe_freeze(once) == (
        "freeze window nights, until Thu 1970-01-01 12:01 UTC: nobody looks"
    )
