"""What the operators settle for the whole cluster, without HTTP.

A change is one `plan_*` of `core/settings.py`, committed as any schedule is. `If-Match` takes the
ETag of an answer, or the revision in quotes: the change is made only if nobody has changed the
settings since.
"""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from ozymandias.api import models_settings as models
from ozymandias.api.access import Access, Document, translated
from ozymandias.api.changes import Asked, Condition
from ozymandias.core.freeze import cluster_frozen, holds
from ozymandias.core.settings import (
    SettingsChange,
    describe_freeze,
    plan_freeze,
    plan_settings,
    plan_unfreeze,
)
from ozymandias.jobspec.placement import parse_rule
from ozymandias.jobspec.report import Wrong
from ozymandias.model.job import LabelRule
from ozymandias.model.labels import spelled
from ozymandias.model.plan import Plan
from ozymandias.model.settings import (
    PRIORITY_CLASSES,
    FreezeWindow,
    NodePool,
    RebalanceMode,
    Settings,
)
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.week import (
    format_clock,
    format_weekdays,
    parse_clock,
    parse_start,
    parse_weekdays,
)
from ozymandias.problems import (
    CHANGED_MEANWHILE,
    INVALID_SETTING,
    Problem,
    ProblemError,
)
from ozymandias.store.commit import Committed


class ClusterSettings:
    def __init__(self, access: Access) -> None:
        self._access = access

    def show(self) -> Document:
        return settings_document(self._access.mirror.snapshot())

    async def change(self, change: SettingsChange, asked: Asked | None = None) -> Document:
        asked = asked or Asked()
        committed = await self.commit(
            "settings.changed", lambda s: plan_settings(s, change), asked, _audited
        )
        return {
            "settings": self.show(),
            "changed": asked.changed,
            "reason": committed.plan.reason,
            "revision": committed.revision,
        }

    # Freeze windows -----------------------------------------------------------------------------

    def freezes(self) -> Document:
        return freezes_document(self._access.mirror.snapshot(), self._access.clock.wall())

    async def freeze(
        self, name: str, body: models.FreezeRequest, asked: Asked | None = None
    ) -> Document:
        now = self._access.clock.wall()
        window = window_of(name, body, now)
        return await self._change_freezes(
            "freeze.set", name, lambda s: plan_freeze(s, window, now), asked
        )

    async def unfreeze(self, name: str, asked: Asked | None = None, why: str = "") -> Document:
        now = self._access.clock.wall()
        return await self._change_freezes(
            "freeze.removed", name, lambda s: plan_unfreeze(s, name, now, why), asked, why
        )

    async def _change_freezes(
        self,
        kind: str,
        name: str,
        decide: Callable[[Snapshot], Plan | Problem],
        asked: Asked | None,
        why: str = "",
    ) -> Document:
        asked = asked or Asked()
        asked.subject = {"freeze": name} | ({"reason": why} if why else {})
        committed = await self.commit(
            kind, decide, asked, lambda s: {"freezes": [describe_freeze(w) for w in s.freezes]}
        )
        return {
            "freezes": self.freezes(),
            "changed": asked.changed,
            "reason": committed.plan.reason,
            "revision": committed.revision,
        }

    async def commit(
        self,
        kind: str,
        decide: Callable[[Snapshot], Plan | Problem],
        asked: Asked,
        audited: Callable[[Settings], dict[str, Any]],
    ) -> Committed:
        """One change of the settings' record; ``audited`` is what the audit keeps of it."""

        def guarded(snapshot: Snapshot) -> Plan | Problem:
            asked.before = audited(snapshot.settings)
            return _check(asked.condition, snapshot) or decide(snapshot)

        asked.subject = asked.subject or {"settings": "cluster"}
        with translated():
            committed = await self._access.committer.commit(guarded)
        if isinstance(committed, Problem):
            raise ProblemError(committed)
        plan = committed.plan
        asked.changed = not plan.is_empty
        asked.after = audited(plan.settings) if plan.settings else asked.before
        if asked.changed:
            self._access.emit(kind, plan.reason + (f" (by {asked.by})" if asked.by else ""))
        return committed


def _check(condition: Condition, snapshot: Snapshot) -> Problem | None:
    now = snapshot.settings_revision
    if not condition.tags or {"*", str(now)} & set(condition.tags):
        return None
    return CHANGED_MEANWHILE(
        f"The settings are at revision {now}; the change was meant for another state of them.",
        hint="Look again, and decide anew.",
        revision=now,
    )


def etag(snapshot: Snapshot) -> str:
    return f'"{snapshot.settings_revision}"'


def settings_document(snapshot: Snapshot) -> Document:
    return {
        **_audited(snapshot.settings),
        "predefined_classes": dict(PRIORITY_CLASSES),
        "revision": snapshot.settings_revision,
        "etag": etag(snapshot),
    }


def _audited(settings: Settings) -> dict[str, Any]:
    return {
        "target_percent": settings.target_percent,
        "rebalance": settings.rebalance.value,
        "priority_classes": dict(settings.priority_classes),
        "pools": {
            pool.namespace: {"require": [spelled(r) for r in pool.require], "hard": pool.is_hard}
            for pool in settings.pools
        },
    }


def change_of(body: models.SettingsRequest) -> SettingsChange:
    pools = {
        namespace: None if pool is None else _pool(namespace, pool)
        for namespace, pool in body.pools.items()
    }
    target, mode = body.target_percent, body.rebalance
    return SettingsChange(
        target_percent=None if target is UNSET else target,
        rebalance=None if mode is UNSET else RebalanceMode(mode),
        priority_classes=body.priority_classes,
        pools=pools,
    )


def _pool(namespace: str, pool: models.NodePoolRequest) -> NodePool:
    rules = tuple(_rule(namespace, text) for text in pool.require)
    return NodePool(namespace=namespace, require=rules, is_hard=pool.hard)


def _rule(namespace: str, text: str) -> LabelRule:
    try:
        return parse_rule(text)
    except Wrong as wrong:
        raise ProblemError(
            INVALID_SETTING(
                f"A rule of the node pool of {namespace[:63]}: {wrong.detail}.",
                hint=wrong.hint,
                setting=f"pools.{namespace[:63]}",
            )
        ) from None


def freezes_document(snapshot: Snapshot, now: float) -> Document:
    frozen = cluster_frozen(snapshot.settings, now)
    return {
        "items": [_freeze_row(window, now) for window in snapshot.settings.freezes],
        "frozen": frozen.words if frozen else None,
        "revision": snapshot.settings_revision,
        "etag": etag(snapshot),
    }


def _freeze_row(window: FreezeWindow, now: float) -> Document:
    is_weekly = not window.until
    return {
        "name": window.name,
        "from": format_clock(window.start) if is_weekly else None,
        "to": format_clock(window.end) if is_weekly else None,
        "weekdays": format_weekdays(window.weekdays) if is_weekly else None,
        "timezone": window.timezone,
        "reason": window.reason,
        "since": None if is_weekly else window.since,
        "until": None if is_weekly else window.until,
        "frozen": holds(window, now),
        "about": describe_freeze(window),
    }


def window_of(name: str, body: models.FreezeRequest, now: float) -> FreezeWindow:
    """What is asked for, read; whether it makes sense, `plan_freeze` says."""
    if body.for_seconds and (body.start or body.end):
        raise _unclear(name, "A freeze window has a time of the week, or a length from now on.")
    if body.for_seconds:
        return FreezeWindow(
            name=name,
            start=0,
            end=0,
            timezone=body.timezone,
            reason=body.reason,
            since=now,
            until=now + body.for_seconds,
        )
    if not (body.start and body.end):
        raise _unclear(name, "A freeze window begins and ends: from and to, such as 22:00, 06:00.")
    try:
        return FreezeWindow(
            name=name,
            start=parse_start(body.start),
            end=parse_clock(body.end),
            weekdays=parse_weekdays(body.weekdays),
            timezone=body.timezone,
            reason=body.reason,
        )
    except ValueError as error:
        raise _unclear(name, f"{error}.") from None


def _unclear(name: str, detail: str) -> ProblemError:
    return ProblemError(INVALID_SETTING(detail, setting=f"freezes.{name[:63]}"))
