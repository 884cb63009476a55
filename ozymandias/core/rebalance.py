"""Moves that make the cluster better laid out: wishes healed, burst home, crowds and heat spread.

`plan_rebalance` is the next move, if one is worth it; `core/moves.py` finishes it. Where to is
asked of placing itself, so room and required rules hold; whether it is worth it, of the sums of
`core/layout.py`, of which the first that changes must fall clearly. That ends, and rests: nothing
is gained by moving back. What may move at all is asked first:

- a service that is calm: as many as wanted, all healthy, none stopping, nothing to be replaced;
- not one that must never run twice, nor one whose kept volumes are where it is, nor one that a
  drain or a host under pressure is moving;
- not an instance that got healthy only a while ago: so none is moved twice in a row.

The setting says how far it goes by itself: `off` not at all, `suggest` for wishes of job files,
`on` for all of it. An operator's `ozy rebalance` is an intent in the settings, worked off move by
move by whichever peer comes first. In a freeze window no move begins, unless that operator said why
it can't wait.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from ozymandias.core.buckets import FreeSlots, assignments_by_job, is_system, sort_job
from ozymandias.core.drain import jobs_on_drained, keeps_volumes
from ozymandias.core.edits import new_instance
from ozymandias.core.layout import HEALING, LEAST, Cost, Layout, is_clear, is_healing
from ozymandias.core.moves import is_at_peace, is_moving, leaving, moving_jobs
from ozymandias.core.placement import Ask, Placement, place
from ozymandias.core.rooms import NOW, RUNNING, Rooms, rooms_of
from ozymandias.core.rules import Rules, had_words
from ozymandias.core.shed import jobs_leaving
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.system import keep_places
from ozymandias.model.instance import Assigned, SlotState
from ozymandias.model.job import JobKey, JobRecord, Move, OnPartition
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Table

STEADY_SECONDS = 60.0  # an instance is healthy for so long before it is moved
AT_ONCE_MAX = 4  # moves under way in the whole cluster
MOVES_MAX = 100  # of one `ozy rebalance`
MOVES_HERE = " moves here from "  # what is said of an instance that takes another's place
TRIES_MAX = 500  # places looked at for one move: in a large cluster the worst come first
LOOKS_AT_ONCE = 5  # of them before others have their turn, who may have much to do

Candidate = tuple[JobKey, NodeName]  # some instance of a job that is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One move: from where, to where, and what falls by how much."""

    instance: Assigned
    placed: Placement
    gain: Cost
    reason: str


def plan_rebalance(
    snapshot: Snapshot,
    now: float,
    *,
    is_frozen: bool = False,
    steady_seconds: float = STEADY_SECONDS,
    settled: frozenset[NodeName] | None = None,
) -> Plan | None:
    """The next move that is worth it, by the cluster's setting or an operator's word.

    ``settled``: the nodes that have been there for a while, None for all. One that comes and goes
    gets nothing of its own accord. ``now`` is the wall clock.
    """
    return at_once(
        planning_rebalance(
            snapshot,
            now,
            is_frozen=is_frozen,
            steady_seconds=steady_seconds,
            settled=settled,
        )
    )


def planning_rebalance(
    snapshot: Snapshot,
    now: float,
    *,
    is_frozen: bool = False,
    steady_seconds: float = STEADY_SECONDS,
    settled: frozenset[NodeName] | None = None,
) -> Stepwise[Plan | None]:
    """The same, some looks at a time."""
    search = search_of(
        snapshot, now, is_frozen=is_frozen, steady_seconds=steady_seconds, settled=settled
    )
    if search is None:
        return None
    step = yield from search.looking(only_healing=only_heals(snapshot.settings))
    if step is not None:
        return begin(snapshot, step, now)
    asked = snapshot.settings.rebalancing
    if asked and not moving_jobs(snapshot) and not _is_vacating(snapshot):
        done = replace(snapshot.settings, rebalancing=None)
        return Plan(reason="the rebalance is over: no move is worth it", settings=done)
    return None


def search_of(
    snapshot: Snapshot,
    now: float,
    *,
    is_frozen: bool,
    steady_seconds: float,
    settled: frozenset[NodeName] | None,
    jobs: Set[JobKey] | None = None,
) -> "Search | None":
    """Where the next move is looked for, as `plan_rebalance` does; None: none may begin."""
    asked = snapshot.settings.rebalancing
    if is_frozen and not (asked and asked.override_freeze):
        return None
    if not may_move(snapshot) or len(moving_jobs(snapshot)) >= AT_ONCE_MAX:
        return None
    return Search(
        snapshot,
        now=now,
        steady_seconds=0.0 if asked else steady_seconds,
        settled=None if asked else settled,
        jobs=jobs,
    )


def only_heals(settings: Settings) -> bool:
    return settings.rebalance is RebalanceMode.SUGGEST and not settings.rebalancing


def may_move(snapshot: Snapshot) -> bool:
    """Whether anything could move by the setting or an operator's word, if it were worth it."""
    settings = snapshot.settings
    if settings.rebalancing or settings.rebalance is RebalanceMode.ON:
        return True
    return settings.rebalance is RebalanceMode.SUGGEST and bool(particular_jobs(snapshot))


def _is_vacating(snapshot: Snapshot) -> bool:
    """Whether something still stops: its room may be what the next move waits for."""
    return any(
        group.state is SlotState.STOPPING
        for (name, _), assignment in snapshot.assignments.items()
        if name in snapshot.nodes and snapshot.nodes[name].is_alive
        for group in assignment.groups
    )


def begin(snapshot: Snapshot, step: Step, now: float) -> Plan:
    """Start it elsewhere, and note in the head whom it replaces."""
    old, placed, record = step.instance, step.placed, snapshot.jobs[step.instance.job]
    used = sort_job(snapshot, old.job).used_slots()
    slot = next(FreeSlots(used))
    move = Move(
        slot=old.slot, node=old.node, to_slot=slot, to=placed.node, since=now, reason=step.reason
    )
    why = f"{old.instance}{MOVES_HERE}{old.node}: {step.reason}; "
    settings, asked = None, snapshot.settings.rebalancing
    if asked is not None:
        left = replace(asked, moves=asked.moves - 1) if asked.moves > 1 else None
        settings = replace(snapshot.settings, rebalancing=left)
    return Plan(
        reason=f"{old.instance} moves from {old.node} to {placed.node}: {step.reason}",
        edits=(new_instance(old.job, record.head, slot, old.demand, placed, why),),
        job=JobChange(key=old.job, head=replace(record.head, move=move)),
        settings=settings,
    )


def particular_jobs(snapshot: Snapshot) -> tuple[JobKey, ...]:
    """The jobs whose instances can be better or worse off, in order."""
    pooled = frozenset(pool.namespace for pool in snapshot.settings.pools)

    def look(jobs: Mapping[JobKey, JobRecord]) -> tuple[JobKey, ...]:
        return tuple(sorted(key for key, record in jobs.items() if is_particular(record, pooled)))

    return Table.of(snapshot.jobs).find(("particular", pooled), look)


def is_particular(record: JobRecord, pooled: Set[str]) -> bool:
    """Whether its instances can be better or worse off at all; ``pooled``: namespaces with pools.

    What is to be on every node is where it is to be.
    """
    if record.current is None or record.head.deleting or is_system(record):
        return False
    asked = record.current.job.placement
    return record.key.namespace in pooled or bool(
        asked.require or asked.prefer or asked.near or asked.apart or asked.spread or asked.burst
    )


# Beforehand ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a rebalance would do if nothing else changed."""

    steps: tuple[Step, ...]
    before: Cost
    after: Cost
    percents_before: dict[NodeName, int]
    percents_after: dict[NodeName, int]


def foreseeing(snapshot: Snapshot, now: float, *, moves_max: int = MOVES_MAX) -> Stepwise[Forecast]:
    """All moves in their order, at most so many, and what they gain together.

    Each is a search of its own through the whole cluster, until there is no better place for
    anybody.
    """
    search = Search(snapshot, now=now, steady_seconds=0.0)
    moves: list[Step] = []
    layout = search.layout
    yield
    before, percents = layout.total(), _percents(layout)
    yield
    while len(moves) < moves_max and (step := (yield from search.looking())):
        moves.append(step)
        search.carry_out(step)
    return Forecast(
        steps=tuple(moves),
        before=before,
        after=layout.total(),
        percents_before=percents,
        percents_after=_percents(layout),
    )


def foresee_rebalance(snapshot: Snapshot, now: float, *, moves_max: int = MOVES_MAX) -> Forecast:
    return at_once(foreseeing(snapshot, now, moves_max=moves_max))


def _percents(layout: Layout) -> dict[NodeName, int]:
    return {node: layout.percent(node) for node in sorted(layout.limits)}


# Search -------------------------------------------------------------------------------------------


class Search:
    """Looks for the best move over a working copy of the cluster."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        now: float,
        steady_seconds: float = STEADY_SECONDS,
        settled: frozenset[NodeName] | None = None,
        jobs: Set[JobKey] | None = None,
        tries_max: int = TRIES_MAX,
    ) -> None:
        """``jobs``: what is looked at, None for all of them."""
        self.snapshot = snapshot
        self.layout = Layout(snapshot, leaving(snapshot))
        self.rooms: Rooms = rooms_of(snapshot)
        keep_places(snapshot, self.rooms)
        if settled is not None:
            self.rooms = {name: room for name, room in self.rooms.items() if name in settled}
        for name in _failing(snapshot, now):
            self.rooms.pop(name, None)
        self._movable = _movable(snapshot, now, steady_seconds, jobs)
        self._pooled = {pool.namespace for pool in snapshot.settings.pools}
        self._tries, self._tries_max = 0, tries_max

    def best(self, *, only_healing: bool = False) -> Step | None:
        return at_once(self.looking(only_healing=only_healing))

    def looking(self, *, only_healing: bool = False) -> Stepwise[Step | None]:
        """Wishes before crowds before heat; of each kind the one that gains most.

        Who is looked at for a wish may find a place that is better for less only: that one waits
        for what it is better for.
        """
        self._tries = 0
        kinds: list[tuple[str, Iterator[Candidate | None]]] = [(HEALING[-1], self._unhealed())]
        if not only_healing:
            kinds += [("crowd", self._crowded()), ("heat", self._hot())]
        found: list[Step] = []
        for last, candidates in kinds:
            for number, candidate in enumerate(candidates):
                if step := self._try(*candidate) if candidate else None:
                    found.append(step)
                if self._tries >= self._tries_max:
                    break
                if number % LOOKS_AT_ONCE == 0:
                    yield
            best = min(found, key=self._rank, default=None)
            if best and any(best.gain[: Cost._fields.index(last) + 1]):
                return best
        return None

    def _rank(self, step: Step) -> tuple[object, ...]:
        job, gain = step.instance.job, tuple(-one for one in step.gain)
        current = self.snapshot.jobs[job].current
        return gain, -(current.job.priority if current else 0), job, step.instance.node

    def carry_out(self, step: Step) -> None:
        """Go on as if the move were through."""
        old = step.instance
        self.layout.move(old.job, old.node, step.placed.node)
        self.rooms[step.placed.node].take(old.demand, RUNNING)
        if room := self.rooms.get(old.node):
            room.give(old.demand, RUNNING)
        self._movable[old.job][old.node].remove(old)
        there = self._movable[old.job].setdefault(step.placed.node, [])
        there.insert(0, replace(old, node=step.placed.node))

    def healing(self, key: JobKey, node: NodeName) -> Step | None:
        """The move that heals something of this job on this node, if one is made for that now."""
        if key not in self._movable or not _could_be_healed(
            self.layout.rules(key), node, self._best_worth(key)
        ):
            return None
        step = self._try(key, node)
        return step if step and is_healing(step.gain) else None

    def again(self, job: JobKey, node: NodeName, to: NodeName) -> Step | None:
        """A move that was found elsewhere, as it is here; None if it is not to be made here."""
        found = self._try(job, node) if job in self._movable else None
        return found if found and found.placed.node == to else None

    def why_not_movable(self, key: JobKey) -> str:
        """Why nothing of a job is moved now; "" if it may be."""
        if key in self._movable:
            return ""
        head = self.snapshot.jobs[key].head
        if head.move is not None and head.move.given_up:
            return f"a move to {head.move.to} was given up lately, and is tried again later"
        return "all of its instances have to be healthy before one moves"

    def why_not_worth(self, key: JobKey, node: NodeName, nodes: Iterable[NodeName]) -> str:
        """Why one is not moved to these nodes though one of them has room; "" if none has."""
        there, movable = self.layout.counts[key].copy(), self._movable[key].get(node)
        there[node] -= 1
        rules, shut = self.layout.rules(key), self.layout.rules_meanwhile(key).against
        for name in nodes:
            room = self.rooms.get(name) if name not in shut else None
            fits = room and movable and room.fits(movable[-1].demand, RUNNING)
            if fits and not rules.why_not(name, there):
                return "for that it is not moved: as much would be given up"
        return ""

    # Candidates: what is worst off, by job and node ----------------------------------------------

    def _best_worth(self, key: JobKey) -> int:
        """What the best node is worth to a job."""
        rules = self.layout.rules(key)
        return max(map(rules.worth, rules.eligible(self.rooms)), default=0)

    def _unhealed(self) -> Iterator[Candidate | None]:
        for key in sorted(self._movable):
            if is_particular(self.snapshot.jobs[key], self._pooled):
                yield None  # to look at a job takes a while, though none of its nodes come of it
                rules, best = self.layout.rules(key), self._best_worth(key)
                for node in sorted(self._movable[key]):
                    if _could_be_healed(rules, node, best):
                        yield key, node

    def _crowded(self) -> Iterator[Candidate]:
        """The node with the most of a job, if there is one with two fewer.

        At home and among a burst's nodes each: who leaves the one does not go to the other.
        """
        for key in sorted(self._movable):
            counts, away = self.layout.counts[key], self._away(key)
            for is_away in (False, True) if away else (False,):
                part = [name for name in self.rooms if (name in away) is is_away]
                least = min((counts[name] for name in part), default=0)
                held = [name for name in self._movable[key] if (name in away) is is_away]
                for node in sorted(held, key=lambda name: (-counts[name], name))[:1]:
                    if counts[node] - least >= 2:
                        yield key, node

    def _away(self, key: JobKey) -> tuple[str, ...]:
        current = self.snapshot.jobs[key].current
        return current.job.placement.burst.nodes if current and current.job.placement.burst else ()

    def _hot(self) -> Iterator[Candidate]:
        """Everything on nodes that are clearly above the target, from the hottest on."""
        layout, target = self.layout, self.snapshot.settings.target_percent
        hot = [n for n in layout.limits if (layout.percent(n) - target) > 0]
        keys = sorted(self._movable)
        for node in sorted(hot, key=lambda name: (-layout.percent(name), name)):
            if (layout.percent(node) - target) ** 2 >= LEAST.heat:
                yield from ((key, node) for key in keys if self._movable[key].get(node))

    def _try(self, key: JobKey, node: NodeName) -> Step | None:
        """Where placing would put one of these instances now, and what that would gain."""
        instances = self._movable[key].get(node)
        if not instances:
            return None
        self._tries += 1
        old, record = instances[-1], self.snapshot.jobs[key]
        there = self.layout.counts[key].copy()
        there[node] -= 1
        there += type(there)()  # without those that have none
        ask = Ask(
            job=key,
            version=record.head.version,
            demand=old.demand,
            rules=self.layout.rules(key),
            there=there,
        )
        shut = {node, *self.layout.rules_meanwhile(key).against}
        others = {name: room for name, room in self.rooms.items() if name not in shut}
        for placed in place(others, ask, 1, there, NOW):
            others[placed.node].give(old.demand, RUNNING)
            gain = self.layout.gain(key, node, placed.node)
            if is_clear(gain):
                words = self._words(key, node, placed.node, gain)
                return Step(instance=old, placed=placed, gain=gain, reason=words)
        return None

    def _words(self, key: JobKey, node: NodeName, to: NodeName, gain: Cost) -> str:
        """What the move is for, by the first sum that falls."""
        layout, rules = self.layout, self.layout.rules(key)
        counts = layout.counts[key]
        if gain.breach:
            return f"{node} is no longer allowed: {rules.against.get(node, 'others need it')}"
        if gain.away and rules.asked.burst:
            return f"there is room at home for {rules.asked.burst.after} of {key}"
        if gain.unmet:
            had = [w for w in rules.wishes if to in w.nodes and node not in w.nodes]
            return f"{to} {had_words(had)}" if had else "others prefer it"
        if gain.alike:
            return f"fewer of {key} share {rules.asked.spread} {rules.groups.get(to) or 'none'}"
        if gain.crowd:
            return f"{node} has {counts[node]} of {key}, and {to} {counts[to]}"
        return f"{node} is {layout.percent(node)} % full, and {to} {layout.percent(to)} %"


def _failing(snapshot: Snapshot, now: float) -> Iterator[NodeName]:
    """The nodes to which a move was given up lately: another job would hardly do better there."""
    for record in snapshot.jobs.values():
        if record.head.move is not None and is_at_peace(record.head, now):
            yield NodeName(record.head.move.to)


def _could_be_healed(rules: Rules, node: NodeName, best: int) -> bool:
    """Whether it is worth a look; ``best`` is what the best node is worth to the job."""
    burst = rules.asked.burst
    is_away = burst is not None and node in burst.nodes
    return is_away or node in rules.against or bool(rules.groups) or rules.worth(node) < best


def _movable(
    snapshot: Snapshot, now: float, steady_seconds: float, jobs: Set[JobKey] | None
) -> dict[JobKey, dict[NodeName, list[Assigned]]]:
    """By job and node what may be moved now, the one that goes first last."""
    elsewhere = jobs_on_drained(snapshot) | jobs_leaving(snapshot)  # others move them already
    keys = [
        key
        for key, record in snapshot.jobs.items()
        if key not in elsewhere and (jobs is None or key in jobs) and _may_move(record, now)
    ]
    assignments = assignments_by_job(snapshot, keys)
    found: dict[JobKey, dict[NodeName, list[Assigned]]] = {}
    for key in keys:
        buckets = sort_job(snapshot, key, assignments[key])
        is_calm = len(buckets.ready) == len(buckets.live) == snapshot.jobs[key].head.wanted
        if buckets.stopping or not is_calm:
            continue
        here: dict[NodeName, list[Assigned]] = {}
        for assigned in sorted(buckets.ready, key=lambda a: a.slot):
            status = snapshot.status(assigned)
            if not (status and status.healthy):
                break  # one that has ended well would be done all over again
            if not 0 <= now - status.since < steady_seconds:  # a clock that is ahead tells nothing
                here.setdefault(assigned.node, []).append(assigned)
        else:
            if here:
                found[key] = here
    return found


def _may_move(record: JobRecord, now: float) -> bool:
    if record.current is None or record.head.deleting or is_system(record):
        return False
    job = record.current.job
    return not (
        job.on_partition is OnPartition.STOP
        or keeps_volumes(job)
        or is_moving(record.head)
        or is_at_peace(record.head, now)
    )
