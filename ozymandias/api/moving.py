"""Drift and rebalance, without HTTP: what is given up, what would move, and the word to do it."""

from typing import Any

from ozymandias.api.access import Access, Document
from ozymandias.api.changes import Asked
from ozymandias.api.settling import ClusterSettings
from ozymandias.api.stepwise import step_by_step
from ozymandias.core.drift import Row, finding_rows
from ozymandias.core.freeze import cluster_frozen
from ozymandias.core.layout import Cost, is_healing
from ozymandias.core.looks import Look, looking, plan_ask
from ozymandias.core.moves import moving_jobs
from ozymandias.core.rebalance import MOVES_MAX, Forecast, Step, foreseeing
from ozymandias.model.instance import InstanceId
from ozymandias.model.plan import Plan
from ozymandias.model.settings import RebalanceMode, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted

ROWS_MAX = 1000
LOOKS_MAX = 5  # for a move, each where the one before did not hold any more when it was decided
OUTDATED = Plan(reason="what was found has changed meanwhile")


class Moving:
    def __init__(self, access: Access, settings: ClusterSettings) -> None:
        self._access = access
        self._settings = settings

    async def drift(self) -> Document:
        snapshot, now = self._access.mirror.snapshot(), self._access.clock.wall()
        rows = await step_by_step(finding_rows(snapshot, now))
        return {
            "items": [_drift_row(row) for row in rows[:ROWS_MAX]],
            "left_off": max(0, len(rows) - ROWS_MAX),
            "rebalance": snapshot.settings.rebalance.value,
            "frozen": _frozen(snapshot.settings, now),
            "suggestion": await suggestion(snapshot, now),
            "revision": snapshot.revision,
        }

    async def foresee(self, max_moves: int = MOVES_MAX) -> Document:
        """What a rebalance would do now; nothing is changed."""
        now = self._access.clock.wall()
        return _view(now, *(await self._forecast(now, max_moves)))

    async def _forecast(self, now: float, max_moves: int) -> tuple[Snapshot, Forecast]:
        snapshot = self._access.mirror.snapshot()
        return snapshot, await step_by_step(foreseeing(snapshot, now, moves_max=max_moves))

    async def rebalance(
        self,
        max_moves: int = MOVES_MAX,
        asked: Asked | None = None,
        *,
        override_freeze: str = "",
    ) -> Document:
        """Record that it is wanted; the peers work it off while this has long returned."""
        asked = asked or Asked()
        now = self._access.clock.wall()
        snapshot, forecast = await self._forecast(now, max_moves)
        asked.subject = {"rebalance": "cluster"}
        kind = "rebalance.asked" if max_moves else "rebalance.ended"
        look: Look | None = Look(snapshot=snapshot, step=next(iter(forecast.steps), None))

        def decide(snapshot: Snapshot) -> Plan:
            word = override_freeze
            plan = plan_ask(snapshot, max_moves, now, asked.by, override_freeze=word, look=look)
            return plan or OUTDATED

        looks = 1
        committed = await self._settings.commit(kind, decide, asked, _audited)
        while committed.plan == OUTDATED:
            looks += 1
            # At last it is looked for where it is decided: so it comes to an end.
            look = await self._look(now) if looks <= LOOKS_MAX else None
            committed = await self._settings.commit(kind, decide, asked, _audited)
        begun = committed.plan.settings
        found = _view(now, snapshot, forecast)
        return found | {
            "frozen": _frozen(begun, now) if begun else found["frozen"],
            "moves_left": begun.rebalancing.moves if begun and begun.rebalancing else 0,
            "changed": asked.changed,
            "reason": committed.plan.reason,
            "revision": committed.revision,
        }

    async def _look(self, now: float) -> Look:
        return await step_by_step(looking(self._access.mirror.snapshot(), now))


async def suggestion(snapshot: Snapshot, now: float) -> str:
    """One line on what `ozy rebalance` would do, where the setting is to suggest; "" if nothing."""
    if snapshot.settings.rebalance is not RebalanceMode.SUGGEST:
        return ""
    steps = (await step_by_step(foreseeing(snapshot, now))).steps
    if not steps:
        return ""
    count, healing = len(steps), sum(is_healing(step.gain) for step in steps)
    unasked = "" if not healing else "which" if healing == count else f"of which {healing}"
    also = f", {unasked} come{'s' * (healing == 1)} unasked as well" if unasked else ""
    return f"`ozy rebalance` would make {counted(count, 'move')}{also}"


def _frozen(settings: Settings, now: float) -> str:
    """Why no move begins now, "" if one may: none is held back, or somebody said why not."""
    if settings.rebalancing and settings.rebalancing.override_freeze:
        return ""
    found = cluster_frozen(settings, now)
    return found.words if found else ""


def _audited(settings: Settings) -> dict[str, Any]:
    found = settings.rebalancing
    override = {"override_freeze": found.override_freeze} if found and found.override_freeze else {}
    return {"moves": found.moves if found else 0} | override


def _view(now: float, snapshot: Snapshot, found: Forecast) -> Document:
    asked = snapshot.settings.rebalancing
    return {
        "rebalance": snapshot.settings.rebalance.value,
        "frozen": _frozen(snapshot.settings, now),
        "moves_left": asked.moves if asked else 0,
        "under_way": list(_under_way(snapshot)),
        "moves": [_step_row(step) for step in found.steps],
        "before": _sums(found.before),
        "after": _sums(found.after),
        "nodes": [
            {
                "node": name,
                "percent_before": percent,
                "percent_after": found.percents_after[name],
            }
            for name, percent in found.percents_before.items()
        ],
        "revision": snapshot.revision,
    }


def _under_way(snapshot: Snapshot) -> list[Document]:
    return [
        {
            "instance": str(InstanceId(key, move.slot)),
            "job": key.name,
            "namespace": key.namespace,
            "source": move.node,
            "to": move.to,
            "reason": move.reason,
            "gain": None,
        }
        for key in moving_jobs(snapshot)
        if (move := snapshot.jobs[key].head.move)
    ]


def _step_row(step: Step) -> Document:
    old = step.instance
    return {
        "instance": str(old.instance),
        "job": old.job.name,
        "namespace": old.job.namespace,
        "source": old.node,
        "to": step.placed.node,
        "reason": step.reason,
        "gain": _sums(step.gain),
    }


def _sums(cost: Cost) -> Document:
    return cost._asdict()


def _drift_row(row: Row) -> Document:
    lack = row.lack
    return {
        "job": lack.job.name,
        "namespace": lack.job.namespace,
        "node": lack.node,
        "instances": [str(InstanceId(lack.job, slot)) for slot in lack.slots],
        "kind": lack.given_up.kind,
        "wish": lack.given_up.wish,
        "since": row.since or None,
        "why": row.why,
        "to": row.heal_to or None,
    }
