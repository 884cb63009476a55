"""What the operators settle for the whole cluster: every value checked, every change in words.

A change names what it changes and nothing else; what it does not name stays. It is one plan that
rewrites one record, so two operators who change different things at once both get theirs. Asked
for again it changes nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ozymandias import problems
from ozymandias.core.freeze import frozen_by, never_ends
from ozymandias.model.labels import contradiction, spelled
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import (
    PRIORITY_CLASSES,
    PRIORITY_MAX,
    FreezeWindow,
    NodePool,
    RebalanceMode,
    Settings,
)
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.week import format_clock, format_moment, format_weekdays, zone_of
from ozymandias.problems import Problem

TARGET_PERCENT_MIN, TARGET_PERCENT_MAX = 10, 100
CLASSES_MAX = 100  # beside the predefined ones
POOLS_MAX = 100
POOL_RULES_MAX = 20
FREEZES_MAX = 50
ONCE_SECONDS_MAX = 31 * 86_400  # of a freeze from one moment to another
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """What shall be different: None leaves a value as it is, and takes a named thing away."""

    target_percent: int | None = None
    rebalance: RebalanceMode | None = None
    priority_classes: Mapping[str, int | None] = field(default_factory=dict)
    pools: Mapping[str, NodePool | None] = field(default_factory=dict)  # by namespace


def plan_settings(snapshot: Snapshot, change: SettingsChange) -> Plan | Problem:
    before = snapshot.settings
    for problem in _complaints(change):
        return problem
    after = _changed(before, change)
    if len(after.priority_classes) > CLASSES_MAX or len(after.pools) > POOLS_MAX:
        return problems.INVALID_SETTING(
            f"A cluster has at most {CLASSES_MAX} priority classes of its own"
            f" and {POOLS_MAX} node pools."
        )
    words = "; ".join(_differences(before, after))
    if not words:
        return Plan(reason="the settings are so already: nothing to change")
    return Plan(reason=words, settings=after)


def _changed(before: Settings, change: SettingsChange) -> Settings:
    classes = {**before.priority_classes, **change.priority_classes}
    pools = {**{pool.namespace: pool for pool in before.pools}, **change.pools}
    return replace(
        before,
        target_percent=change.target_percent or before.target_percent,
        rebalance=change.rebalance or before.rebalance,
        priority_classes={k: v for k, v in sorted(classes.items()) if v is not None},
        pools=tuple(pool for _, pool in sorted(pools.items()) if pool is not None),
    )


# Freeze windows -----------------------------------------------------------------------------------


def plan_freeze(snapshot: Snapshot, window: FreezeWindow, now: float) -> Plan | Problem:
    """A window is added, or takes the place of the one of its name; ``now`` is the wall clock.

    Who ends one that holds, or shortens it, lets go all that waits for it: that needs a reason.
    """
    if problem := _wrong_freeze(window, now):
        return problem
    until = _until((window,), now)
    if problem := _unexplained(snapshot, window.name, now, until, window.reason):
        return problem
    before = snapshot.settings
    if window in before.freezes:
        return Plan(reason=f"freeze window {window.name} is so already: nothing to change")
    others = tuple(w for w in _not_over(before, now) if w.name != window.name)
    after = tuple(sorted((*others, window), key=lambda w: w.name))
    if len(after) > FREEZES_MAX:
        return _wrong("freezes", f"A cluster has at most {FREEZES_MAX} freeze windows.")
    if not window.until and never_ends(after, now):
        alone = never_ends((window,), now)
        names = ", ".join(w.name for w in others if not w.until)
        together = "" if alone else f", together with {names}"
        return _wrong(
            f"freezes.{window.name}",
            f"{window.name} would leave no minute of the week free{together}: nothing could be"
            " changed.",
            "Freeze from now on for a while (`ozy freeze now`), or leave some time free.",
        )
    return Plan(reason=describe_freeze(window), settings=replace(before, freezes=after))


def plan_unfreeze(snapshot: Snapshot, name: str, now: float, why: str = "") -> Plan | Problem:
    """A window goes; while it holds, only with a reason."""
    before = snapshot.settings
    if all(window.name != name for window in before.freezes):
        known = ", ".join(window.name for window in before.freezes)
        return problems.FREEZE_NOT_FOUND(
            f"There is no freeze window {name[:63]!r}.",
            hint=f"There are: {known}." if known else "There are none.",
            freeze=name[:63],
        )
    if problem := _unexplained(snapshot, name, now, now, why):
        return problem
    after = tuple(window for window in _not_over(before, now) if window.name != name)
    reason = f"freeze window {name} is gone" + (f": {why}" if why else "")
    return Plan(reason=reason, settings=replace(before, freezes=after))


def _unexplained(
    snapshot: Snapshot, name: str, now: float, until: float, why: str
) -> Problem | None:
    """A window of this name holds now and would end sooner, and nobody says why it shall."""
    held = _until([w for w in snapshot.settings.freezes if w.name == name], now)
    if why or held <= until:
        return None
    return _wrong(
        f"freezes.{name}",
        f"The window {name} holds at present: what waits for its end would go on sooner.",
        "Say why, with --reason: it is kept in the events and in the audit.",
    )


def _until(windows: Iterable[FreezeWindow], now: float) -> float:
    """When they hold no longer: now, if they do not."""
    found = frozen_by(windows, now)
    if found is None:
        return now
    return float("inf") if found.until is None else found.until


def _not_over(settings: Settings, now: float) -> tuple[FreezeWindow, ...]:
    """Those that were for once and are past go with the next change."""
    return tuple(w for w in settings.freezes if not 0 < w.until <= now)


def _wrong_freeze(window: FreezeWindow, now: float) -> Problem | None:
    setting = f"freezes.{window.name[:63]}"
    if not NAME.fullmatch(window.name):
        detail = f"{window.name[:63]!r} can't be the name of a freeze window."
        return _wrong(setting, detail, "Small letters, digits and hyphens, up to 63.")
    if window.until:
        length = window.until - max(now, window.since)
        if window.until <= window.since or not 0 < length <= ONCE_SECONDS_MAX:
            days = ONCE_SECONDS_MAX // 86_400
            return _wrong(setting, f"{window.name} must end after it begins, within {days} days.")
    if not window.weekdays:
        return _wrong(setting, f"{window.name} is on no weekday at all.")
    if zone_of(window.timezone) is None:
        return _wrong(
            setting,
            f"There is no time zone {window.timezone[:63]!r} here.",
            "A name such as Europe/Berlin, or UTC. The hosts need Debian's tzdata.",
        )
    return None


def describe_freeze(window: FreezeWindow) -> str:
    """As an event and `ozy freeze` tell it."""
    if window.until:
        when = f"until {format_moment(window.until, window.timezone)}"
    else:
        clock = f"{format_clock(window.start)} to {format_clock(window.end)}"
        when = f"{clock} {window.timezone}, {format_weekdays(window.weekdays)}"
    why = f": {window.reason}" if window.reason else ""
    return f"freeze window {window.name}, {when}{why}"


# What can be wrong --------------------------------------------------------------------------------


def _complaints(change: SettingsChange) -> Iterator[Problem]:
    percent = change.target_percent
    if percent is not None and not TARGET_PERCENT_MIN <= percent <= TARGET_PERCENT_MAX:
        yield _wrong(
            "target",
            f"The target is {percent} %, and must be {TARGET_PERCENT_MIN} to"
            f" {TARGET_PERCENT_MAX} % of a node's memory.",
        )
    for name, number in change.priority_classes.items():
        yield from _wrong_class(name, number)
    for namespace, pool in change.pools.items():
        yield from _wrong_pool(namespace, pool)


def _wrong_class(name: str, number: int | None) -> Iterator[Problem]:
    setting = f"priority_classes.{name}"
    if name in PRIORITY_CLASSES:
        yield _wrong(
            setting,
            f"{name} is {PRIORITY_CLASSES[name]} in every cluster, and can't be changed.",
            "Give your class a name of its own.",
        )
    elif not NAME.fullmatch(name) or name.isdigit():
        yield _wrong(
            setting,
            f"{name[:63]!r} can't be the name of a class: small letters, digits and hyphens,"
            " up to 63, and not a number.",
        )
    elif number is not None and not 0 <= number <= PRIORITY_MAX:
        yield _wrong(setting, f"Class {name} is {number}, and a priority is 0 to {PRIORITY_MAX}.")


def _wrong_pool(namespace: str, pool: NodePool | None) -> Iterator[Problem]:
    setting = f"pools.{namespace}"
    if not NAME.fullmatch(namespace):
        yield _wrong(setting, f"{namespace[:63]!r} can't be the name of a namespace.")
    elif pool is None:
        return
    elif not 1 <= len(pool.require) <= POOL_RULES_MAX:
        yield _wrong(
            setting,
            f"The node pool of {namespace} has {len(pool.require)} rules,"
            f" and must have 1 to {POOL_RULES_MAX}.",
            "Take the pool away if its jobs may run anywhere.",
        )
    elif against := contradiction(pool.require):
        yield _wrong(setting, f"No node can be in the pool of {namespace}: {against}.")


def _wrong(setting: str, detail: str, hint: str = "") -> Problem:
    return problems.INVALID_SETTING(detail, hint=hint, setting=setting)


# What was changed, in words -----------------------------------------------------------------------


def _differences(before: Settings, after: Settings) -> Iterator[str]:
    if after.target_percent != before.target_percent:
        yield (
            f"nodes are packed to {after.target_percent} % of their memory,"
            f" no longer to {before.target_percent} %"
        )
    if after.rebalance is not before.rebalance:
        yield f"rebalance is {after.rebalance}, no longer {before.rebalance}"
    old, new = before.priority_classes, after.priority_classes
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield f"priority class {name} is gone; jobs keep its number, {old[name]}"
        elif name not in old:
            yield f"priority class {name} is {new[name]}"
        elif old[name] != new[name]:
            yield f"priority class {name} is {new[name]}, no longer {old[name]}"
    had = {pool.namespace: pool for pool in before.pools}
    has = {pool.namespace: pool for pool in after.pools}
    for namespace in sorted(had.keys() | has.keys()):
        if namespace not in has:
            yield f"jobs of {namespace} may run on any node"
        elif has[namespace] != had.get(namespace):
            yield describe_pool(has[namespace])


def describe_pool(pool: NodePool) -> str:
    rules = " and ".join(map(spelled, pool.require))
    verb = "run only" if pool.is_hard else "would rather run"
    return f"jobs of {pool.namespace} {verb} where {rules}"
