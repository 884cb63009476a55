"""Settings of the cluster: what is taken, what is refused, and how a change is told."""

import pytest

from ozymandias.core.settings import CLASSES_MAX, SettingsChange, plan_freeze, plan_settings
from ozymandias.jobspec.placement import parse_rule
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import FreezeWindow, NodePool, RebalanceMode, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import INVALID_SETTING, Problem
from tests.unit.core.builders import cluster


def pool(*rules: str, namespace: str = "prod", is_hard: bool = True) -> NodePool:
    require = tuple(parse_rule(rule) for rule in rules)
    return NodePool(namespace=namespace, require=require, is_hard=is_hard)


def changed(settings: Settings, change: SettingsChange) -> Plan:
    plan = plan_settings(replace(cluster(n1="4G"), settings=settings), change)
    assert isinstance(plan, Plan), plan
    return plan


def test_what_is_not_named_stays() -> None:
    """A change touches its own values and nothing else, and a second time nothing at all."""
    before = Settings(priority_classes={"batch": 100}, pools=(pool("role == prod"),))
    change = SettingsChange(target_percent=80, priority_classes={"nightly": 50})
    plan = changed(before, change)
    assert plan.settings == Settings(
        target_percent=80,
        priority_classes={"batch": 100, "nightly": 50},
        pools=before.pools,
    )
    assert plan.reason == (
        "nodes are packed to 80 % of their memory, no longer to 70 %; priority class nightly is 50"
    )
    again = changed(plan.settings, change)
    assert again.is_empty and "so already" in again.reason


def test_what_is_null_goes() -> None:
    """Classes and pools are taken away by name; one that is not there is no mistake."""
    before = Settings(priority_classes={"batch": 100}, pools=(pool("role == prod"),))
    gone = SettingsChange(priority_classes={"batch": None, "x": None}, pools={"prod": None})
    plan = changed(before, gone)
    assert plan.settings == Settings()
    assert "priority class batch is gone; jobs keep its number, 100" in plan.reason
    assert "jobs of prod may run on any node" in plan.reason


def test_pools_are_told_with_their_rules() -> None:
    """Hard and preferred pools read differently."""
    change = SettingsChange(
        rebalance=RebalanceMode.ON,
        pools={
            "prod": pool("role == prod", "zone in [a, b]"),
            "dev": pool("role == dev", namespace="dev", is_hard=False),
        },
    )
    plan = changed(Settings(), change)
    assert plan.reason == (
        "rebalance is on, no longer suggest; jobs of dev would rather run where role == dev;"
        " jobs of prod run only where role == prod and zone in [a, b]"
    )
    assert plan.settings is not None
    assert [p.namespace for p in plan.settings.pools] == ["dev", "prod"]


@pytest.mark.parametrize(
    ("change", "setting", "words"),
    [
        (SettingsChange(target_percent=9), "target", "The target is 9 %"),
        (SettingsChange(target_percent=0), "target", "The target is 0 %"),
        (SettingsChange(target_percent=101), "target", "10 to 100 %"),
        (
            SettingsChange(priority_classes={"platform-low": 1}),
            "priority_classes.platform-low",
            "5000 in every cluster",
        ),
        (
            SettingsChange(priority_classes={"platform-low": None}),
            "priority_classes.platform-low",
            "can't be changed",
        ),
        (SettingsChange(priority_classes={"No": 1}), "priority_classes.No", "small letters"),
        (SettingsChange(priority_classes={"12": 1}), "priority_classes.12", "not a number"),
        (SettingsChange(priority_classes={"a": -1}), "priority_classes.a", "0 to 10000"),
        (SettingsChange(priority_classes={"a": 10_001}), "priority_classes.a", "0 to 10000"),
        (SettingsChange(pools={"Prod": pool("a exists")}), "pools.Prod", "namespace"),
        (SettingsChange(pools={"prod": pool()}), "pools.prod", "has 0 rules"),
        (
            SettingsChange(pools={"prod": pool("role == a", "role == b")}),
            "pools.prod",
            "role == a and role == b can't both hold",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(change: SettingsChange, setting: str, words: str) -> None:
    """A clear problem that names the setting; nothing of the change is made."""
    problem = plan_settings(Snapshot(), change)
    assert isinstance(problem, Problem) and problem.kind is INVALID_SETTING
    assert problem.fields["setting"] == setting
    assert words in problem.detail


def test_there_is_a_limit_on_classes() -> None:
    """The record stays small, however many changes add to it."""
    many = {f"c{n}": n for n in range(CLASSES_MAX + 1)}
    problem = plan_settings(Snapshot(), SettingsChange(priority_classes=many))
    assert isinstance(problem, Problem) and str(CLASSES_MAX) in problem.detail


def frozen_from(now: float, days: int) -> FreezeWindow:
    return FreezeWindow(name="now", start=0, end=0, since=now, until=now + days * 86_400)


@pytest.mark.parametrize("days", [1, 7, 9, 31])
def test_a_freeze_from_now_on_is_taken_and_hinders_no_other(days: int) -> None:
    """Up to a month, also where a window's zone is not known on this host."""
    now = 1_795_000_000.0
    unknown = FreezeWindow(name="abroad", start=0, end=60, timezone="Mars/Olympus")
    before = replace(cluster(n1="4G"), settings=Settings(freezes=(unknown,)))
    plan = plan_freeze(before, frozen_from(now, days), now)
    assert isinstance(plan, Plan) and plan.settings
    held = replace(cluster(n1="4G"), settings=Settings(freezes=(frozen_from(now, days),)))
    nights = FreezeWindow(name="nights", start=1320, end=360)
    assert isinstance(plan_freeze(held, nights, now), Plan)


def test_windows_that_leave_nothing_free_are_named() -> None:
    """Those of every week; one that is for once has no part in it."""
    now = 1_795_000_000.0
    mornings = FreezeWindow(name="mornings", start=0, end=720)
    settings = Settings(freezes=(mornings, frozen_from(now, 31)))
    rest = FreezeWindow(name="rest", start=720, end=0)
    problem = plan_freeze(replace(cluster(n1="4G"), settings=settings), rest, now)
    assert isinstance(problem, Problem) and problem.kind is INVALID_SETTING
    assert "rest would leave no minute of the week free, together with mornings:" in problem.detail
