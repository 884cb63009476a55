"""People using the API while things break, and the promise made to them (S5).

Acknowledged is durable, and happened once: every change of a job's head is traced to exactly one
call that asked for it. A call that was acknowledged with a change has made it; one that was
refused has made none; one without an answer has made it all or not at all, and asking again is a
no-op when it had. What nobody asked for does not happen.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ozymandias.core.autoscale import steps_of
from ozymandias.model.job import JobHead, JobKey
from ozymandias.model.record import replace
from ozymandias.problems import ProblemError
from ozymandias.sim.truth import Truth

PATIENCE_SECONDS = 20.0
MARK = "MARK"  # an environment variable that tells submitted versions apart
# Answers after which the change may have been made all the same.
UNCERTAIN = frozenset({"outcome-unknown", "store-unavailable"})


@dataclass(slots=True, kw_only=True, eq=False)  # two that ask for the same are still two
class Call:
    kind: str  # submit, scale, stop, restart
    key: JobKey
    wanted: int = 0
    mark: str = ""
    state: str = "under way"  # then: done, refused, unknown
    asked: int = 0  # how often; again only when the outcome was unknown
    applied: int = 0
    text: bytes = b""

    def __str__(self) -> str:
        what = f" to {self.wanted}" if self.kind in ("scale", "submit") else ""
        return f"{self.kind} {self.key}{what}"


@dataclass(slots=True, kw_only=True)
class Deed:
    """A change of a job, and the call that it is put down to; others may have made it as well."""

    owner: Call
    others: list[Call]


class Users:
    def __init__(
        self, truth: Truth, say: Callable[[str], None], violate: Callable[[str], None]
    ) -> None:
        self._truth = truth
        self._say = say
        self._violate = violate
        self.calls: list[Call] = []
        self._deeds: list[Deed] = []

    def is_asked(self, kind: str, key: JobKey, but: Call | None = None) -> bool:
        """Whether such a call is under way, or its outcome is unknown; ``but`` is not asked for."""
        return any(
            c.kind == kind
            and c.key == key
            and c is not but
            and c.applied < c.asked
            and c.state in ("under way", "unknown")
            for c in self.calls
        )

    async def ask(self, call: Call, request: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Ask once; any problem will do as an answer, a bug will not."""
        if call not in self.calls:
            self.calls.append(call)
        was_unknown = call.state == "unknown"
        call.state = "under way"
        call.asked += 1
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                document = await request()
        except ProblemError as error:
            slug = error.problem.kind.slug
            self._say(f"{call}: {slug}")
            call.state = "unknown" if slug in UNCERTAIN or was_unknown else "refused"
            if call.state == "refused" and call.applied and not self._disown(call):
                self._violate(f"S5 {call} was refused ({slug}) and happened all the same")
        except AssertionError as error:
            call.state = "unknown"
            self._violate(f"S0 {call} hit a bug: {error}")
        except TimeoutError:
            call.state = "unknown"
            self._say(f"{call}: gave up waiting")
        else:
            call.state = "done"
            self._say(f"{call}: done")
            if document["changed"] and not call.applied and not self._own(call):
                self._violate(f"S5 {call} was acknowledged and never happened")

    def head_changed(
        self, job: JobKey, before: JobHead | None, after: JobHead | None, revision: int
    ) -> None:
        """A revision wrote a job's head: somebody must have asked for that."""
        if _essence(before) == _essence(after) or is_step(before, after):
            return
        if after is None and before is not None and before.deleting:
            left = [str(a.instance) for a in self._truth.assigned(job)]
            if left:
                self._violate(f"S5 {job} was forgotten while {left} are still assigned")
            return
        if before is not None and before.deleting and after and after.uid == before.uid:
            self._violate(f"S5 {job} was stopped and came back")
        matching = [c for c in self.calls if c.key == job and self._asks_for(c, before, after)]
        if fresh := self._fresh(matching):
            fresh[0].applied += 1
            self._deeds.append(Deed(owner=fresh[0], others=fresh[1:]))
        elif matching:
            self._violate(f"S5 {matching[-1]} happened twice, or after it was refused")
        else:
            self._violate(f"S5 {job} changed to {_essence(after)}, which nobody asked for")

    def _fresh(self, calls: list[Call]) -> list[Call]:
        """Asked twice it may happen twice, if something else happened in between."""
        return [c for c in calls if c.applied < c.asked and c.state in ("under way", "unknown")]

    def _own(self, call: Call) -> bool:
        """An answer shows that a change was this call's, not that of one without an answer."""
        for deed in self._deeds:
            if call in deed.others and deed.owner.state in ("under way", "unknown"):
                self._hand_over(deed, call)
                return True
        return False

    def _disown(self, call: Call) -> bool:
        """An answer shows that a change was not this call's; another may have made it."""
        for deed in self._deeds:
            if deed.owner is call and (heirs := self._fresh(deed.others)):
                self._hand_over(deed, heirs[0])
        return not call.applied

    def _hand_over(self, deed: Deed, heir: Call) -> None:
        deed.others.remove(heir)
        deed.others.append(deed.owner)
        deed.owner.applied -= 1
        heir.applied += 1
        deed.owner = heir

    def _asks_for(self, call: Call, before: JobHead | None, after: JobHead | None) -> bool:
        if after is None or after.deleting:
            return call.kind == "stop"
        if before is None or before.version != after.version:
            return call.kind == "submit" and self._mark_of(call.key, after.version) == call.mark
        if before.restart != after.restart:
            return call.kind == "restart"
        is_same = call.kind == "submit" and self._mark_of(call.key, after.version) == call.mark
        return (call.kind == "scale" or is_same) and call.wanted == after.wanted

    def _mark_of(self, job: JobKey, number: int) -> str:
        version = self._truth.versions.get((job, number))
        environment = version.job.containers[0].environment if version else ()
        return dict(environment).get(MARK, "")


def is_step(before: JobHead | None, after: JobHead | None) -> bool:
    """Whether a pool has changed its own number; `sim/pools.py` says whether it may."""
    if before is None or after is None:
        return False
    same = replace(after, wanted=before.wanted)
    return _essence(same) == _essence(before) and steps_of(after) == steps_of(before) + 1


def _essence(head: JobHead | None) -> tuple[str, int, int, int, bool] | None:
    """What a user can tell of a head."""
    if head is None:
        return None
    return head.uid, head.version, head.wanted, head.restart, head.deleting
