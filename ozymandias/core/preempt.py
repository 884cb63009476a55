"""Preemption: what fits nowhere else may displace what is less important.

Only when a place can be had neither now nor soon (what is stopping already will be gone), and
only from strictly lower priorities, do instances have to leave: as few as will do, of those the
lowest, of those the ones that serve nobody, then the smallest (`core/victims.py`). What is placed
never sums up to less priority than before: two of 8000 do not leave for one of 10000. Victims stop
with their grace and the winner waits on that node, in one transaction: the room of victims is held
until they are gone. They are pending then, like everything that has no room.

Nobody is asked to leave who is `protected`, belongs to every node (system jobs), has volumes that
are kept there, is needed for its job's `min_available`, or was displaced within the last minute. A
job that loses an instance displaces nobody in the same decision, and as victims are strictly
lower, a chain of decisions comes to an end.

That an instance was displaced is written into the ledger of the node that it left, in the same
transaction: it costs no other compare, and whoever sees the instance at its next place sees a
ledger at least as new. How long ago it was, each peer measures on its own steady clock from when
it saw that first; wall clocks of hosts may differ by any amount.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ozymandias.core.buckets import (
    Buckets,
    FreeSlots,
    assignments_by_job,
    census,
    is_ready,
    is_system,
    per_node,
    sort_job,
)
from ozymandias.core.budget import budget_of, floor_of, has_floor
from ozymandias.core.contest import CONTESTS_MAX, DISPLACED, DISPLACES, contest_of
from ozymandias.core.drain import WAITS, keeps_volumes
from ozymandias.core.edits import new_instance, stop
from ozymandias.core.placement import Ask, Placement, place
from ozymandias.core.rooms import NOW_OR_SOON, Rooms, rooms_of
from ozymandias.core.rules import Rules, near_to, rules_of
from ozymandias.core.stepwise import Stepwise, at_once
from ozymandias.core.system import keep_places
from ozymandias.core.upkeep import starved_first
from ozymandias.core.victims import Candidate, Offer, Site
from ozymandias.model.contest import Contest
from ozymandias.model.instance import Assigned, InstanceId, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, JobName, JobRecord, Namespace
from ozymandias.model.node import Demand, Displaced, Node, NodeName
from ozymandias.model.plan import Edit, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot

AGAIN_SECONDS = 60.0  # nobody is displaced twice within
WINNERS_MAX = 64  # of one decision that nobody asked for; the next one follows at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """What a decision knows of displacements before it."""

    wall: float = 0.0
    boot: float = 0.0  # of who decides, and so is
    # When it first saw each; None: nobody decides anything (what if?), and wall clocks will do.
    seen: Mapping[Displaced, float] | None = None

    def is_recent(self, record: Displaced) -> bool:
        if self.seen is None:
            return abs(self.wall - record.at) < AGAIN_SECONDS
        return self.boot - self.seen.get(record, self.boot) < AGAIN_SECONDS


UNKNOWN = Lately()


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """A job with instances that fit nowhere else."""

    job: Job
    head: JobHead
    buckets: Buckets
    rules: Rules

    @property
    def ask(self) -> Ask:
        return Ask.of(self.job, self.head, self.rules, per_node(self.buckets.live))

    def place(self, rooms: Rooms, count: int) -> list[Placement]:
        """Where there is room now, or will be soon."""
        return place(rooms, self.ask, count, per_node(self.buckets.current), NOW_OR_SOON)


class Displacing:
    """One decision about who has to leave. It changes the rooms, and sums up the edits."""

    def __init__(self, snapshot: Snapshot, rooms: Rooms, lately: Lately, below: int) -> None:
        """``below``: the highest priority that somebody may leave for."""
        self._snapshot = snapshot
        self._rooms = rooms
        self._lately = lately
        self._spare: dict[JobKey, int] = {}  # healthy ones that may go, of jobs with a floor
        self._kept = {
            name: tuple(r for r in snapshot.nodes[name].ledger.displaced if lately.is_recent(r))
            for name in rooms
        }
        self._candidates = self._find_candidates(below)
        self._awaited: dict[NodeName, dict[JobKey, JobKey]] = {}  # neighbours, and for whom
        self.victims: list[Edit] = []
        self.displaced: dict[NodeName, tuple[Displaced, ...]] = {}
        self.contests: list[Contest] = []  # of the first ones: what they were decided on

    def _find_candidates(self, below: int) -> dict[NodeName, list[Candidate]]:
        snapshot = self._snapshot
        lower = {
            key: record.current.job.priority
            for key, record in snapshot.jobs.items()
            if record.current is not None
            and record.current.job.priority < below
            and is_displaceable(record)
        }
        spared = {
            InstanceId(JobKey(Namespace(r.namespace), JobName(r.job)), r.slot)
            for r in displaced_in(snapshot)
            if self._lately.is_recent(r)
        }
        self._spared = spared
        floored = [key for key in lower if _has_floor(snapshot.jobs[key])]
        for key, found in assignments_by_job(snapshot, floored).items():
            record = snapshot.jobs[key]
            assert record.current is not None
            buckets = sort_job(snapshot, key, found)
            budget = budget_of(record.current.job, record.head.wanted, buckets)
            self._spare[key] = max(0, budget.spare)
        candidates: dict[NodeName, list[Candidate]] = {}
        for (name, key), assignment in snapshot.assignments.items():
            if key in lower and name in self._rooms:
                candidates.setdefault(name, []).extend(
                    Candidate(assigned=a, priority=lower[key], is_ready=_serves(snapshot, a))
                    for a in assignment.instances
                    if a.state is not SlotState.STOPPING and a.instance not in spared
                )
        for found_here in candidates.values():
            found_here.sort(key=lambda c: c.order)
        return candidates

    def has_lost(self, key: JobKey) -> bool:
        """Whether a job loses an instance by this decision."""
        return any(edit.job == key for edit in self.victims)

    def keep_neighbours(self, job: Job, placed: Iterable[Placement]) -> None:
        """Whom these have to be near to stays with them, whoever comes later in this decision."""
        for placement in placed:
            for neighbour in near_to(job):
                self._awaited.setdefault(placement.node, {}).setdefault(neighbour, job.key)

    def make_room(self, winner: Winner, placed: Iterable[Placement], count: int) -> list[Placement]:
        """Up to ``count`` places for instances of a job, each at the cost of others.

        ``placed`` are those that this decision has found for it before.
        """
        job, buckets = winner.job, winner.buckets
        there, current = per_node(buckets.live), per_node(buckets.current)
        for placement in placed:
            there[placement.node] += 1
            current[placement.node] += 1
        offers = self._offers(self._candidates, winner)
        refused: dict[NodeName, tuple[Offer, str]] = {}
        won: list[Placement] = []
        while offers and len(won) < count:
            offer = min(offers.values(), key=lambda o: o.rank)
            room = self._rooms[offer.node]
            for victim in offer.victims:
                room.give(victim.assigned.demand, SlotState.WAITING)
            ask = replace(winner.ask, there=Counter(there))
            # Who leaves may be larger than one of the winner: the others come there as well.
            found = place({offer.node: room}, ask, count - len(won), current, WAITS)
            if not found:  # something else than room is against it
                for victim in offer.victims:
                    room.take(victim.assigned.demand, SlotState.WAITING)
                del offers[offer.node]
                refused[offer.node] = offer, winner.rules.why_not(offer.node, there)
                continue
            if len(self.contests) < CONTESTS_MAX:
                self.contests.append(self._contest(winner, offer, offers, refused))
            won += [self._settle(job, offer, found[0]), *found[1:]]
            there[offer.node] += len(found)
            current[offer.node] += len(found)
            concerned = self._concerned(offer)
            if winner.rules.asked.burst:  # home may have enough by now, and others take the rest
                ask = replace(winner.ask, there=Counter(there))
                more = place(self._rooms, ask, count - len(won), current, NOW_OR_SOON)
                won += more
                there += Counter(p.node for p in more)
                current += Counter(p.node for p in more)
                concerned = set(self._candidates)
            for name in concerned:
                offers.pop(name, None)
            offers |= self._offers(concerned, winner)
        return won

    def _offers(self, nodes: Iterable[NodeName], winner: Winner) -> dict[NodeName, Offer]:
        priority = winner.job.priority
        found = (site.offer(priority) for site in self._sites(nodes, winner))
        return {offer.node: offer for offer in found if offer}

    def _sites(self, nodes: Iterable[NodeName], winner: Winner) -> Iterator[Site]:
        fitting, demand = winner.rules.eligible(self._rooms), winner.ask.demand
        for name in sorted(nodes):
            if room := fitting.get(name):
                yield Site(
                    node=name,
                    candidates=tuple(self._willing(name, winner.job)),
                    lack=(
                        demand.memory_bytes - room.memory_left(SlotState.WAITING),
                        demand.disk_bytes - room.disk_left(SlotState.WAITING),
                        demand.cpu_millis - room.cpu_left(SlotState.WAITING),
                    ),
                    ports=frozenset(room.taken(demand, SlotState.WAITING)),
                    displaced=len(self._kept[name]),
                )

    def _contest(
        self,
        winner: Winner,
        chosen: Offer,
        offers: Mapping[NodeName, Offer],
        refused: Mapping[NodeName, tuple[Offer, str]],
    ) -> Contest:
        """What the choice of these victims is made on."""
        others = self._candidates.keys() - offers.keys() - refused.keys()
        return contest_of(
            winner.job,
            chosen,
            offers.values(),
            [(offer.site, why) for offer, why in refused.values()],
            (site for site in self._sites(others, winner) if site.candidates),
            self._staying(chosen.site, winner.job),
        )

    def _staying(self, site: Site, job: Job) -> Iterator[tuple[Assigned, str]]:
        """Who lives there and can't be asked to leave, and why."""
        willing = {c.assigned.instance for c in site.candidates}
        willing |= {edit.instance for edit in self.victims if edit.node == site.node}
        for a in self._snapshot.instances_on(site.node):
            if a.state is not SlotState.STOPPING and a.instance not in willing:
                yield a, self._why_stays(a, job)

    def _why_stays(self, assigned: Assigned, job: Job) -> str:
        record = self._snapshot.jobs.get(assigned.job)
        if record is None or record.current is None:
            return "its record can't be read"
        other = record.current.job
        if is_system(record):
            return "it belongs to every node, as a system job"
        if other.is_protected:
            return "it is protected"
        if other.priority >= job.priority:
            return f"its priority is {other.priority}"
        if keeps_volumes(other):
            return "its kept volumes are there"
        if assigned.instance in self._spared:
            return "it was displaced within the last minute"
        if other.key == job.key:
            return "it is of the same job"
        if other.key in near_to(job):
            return f"{job.key} is to be near it"
        if awaited_by := self._awaited.get(assigned.node, {}).get(other.key):
            return f"{awaited_by}, which comes in the same decision, is to be near it"
        floor = floor_of(other, record.head.wanted)
        return f"{other.key} needs {floor} healthy" if floor else "it is leaving anyway"

    def _willing(self, name: NodeName, job: Job) -> list[Candidate]:
        """Candidates of lower priority, of each job as many as its floor lets go.

        A job whose new version is more important than its last does not displace itself, nor
        those whom it has to be near to: what it comes for would be gone. Nor those for whom another
        has come before it.
        """
        spared = {job.key, *near_to(job), *self._awaited.get(name, ())}
        taken: Counter[JobKey] = Counter()
        found = []
        for candidate in self._candidates[name]:
            key = candidate.assigned.job
            if candidate.priority >= job.priority:
                break
            if key in spared:
                continue
            if candidate.is_ready and key in self._spare:
                if taken[key] >= self._spare[key]:
                    continue
                taken[key] += 1
            found.append(candidate)
        return found

    def _settle(self, job: Job, offer: Offer, found: Placement) -> Placement:
        """The victims leave; why the winner is there."""
        name = offer.node
        for victim in offer.victims:
            a = victim.assigned
            reason = (
                f"{DISPLACED} {job.key} (priority {job.priority} > {victim.priority}),"
                " which fits nowhere else"
            )
            self.victims.append(stop(a, reason))
            self._candidates[name].remove(victim)
            if victim.is_ready and a.job in self._spare:
                self._spare[a.job] -= 1
            record = Displaced(
                namespace=a.job.namespace,
                job=a.job.name,
                slot=a.slot,
                at=self._lately.wall,
                reason=reason,
            )
            self._kept[name] = (*self._kept[name], record)
        self.displaced[name] = self._kept[name]
        names = ", ".join(f"{v.assigned.instance} ({v.priority})" for v in offer.victims)
        return Placement(
            node=name,
            state=found.state,
            reason=f"{DISPLACES} {names} of lower priority than {job.priority}: {found.reason}",
            score=found.score,
        )

    def _concerned(self, offer: Offer) -> set[NodeName]:
        """The nodes whose offers a settled one changes."""
        floored = {v.assigned.job for v in offer.victims} & self._spare.keys()
        if not floored:
            return {offer.node}
        return {offer.node} | {
            name
            for name, found in self._candidates.items()
            if any(c.assigned.job in floored for c in found)
        }


def is_displaceable(record: JobRecord) -> bool:
    """Whether instances of a job may be asked to leave at all."""
    return (
        record.current is not None
        and not record.current.job.is_protected
        and not is_system(record)
        and not record.head.deleting
        and not keeps_volumes(record.current.job)
    )


def lowest_there(snapshot: Snapshot) -> int | None:
    """The lowest priority of a job that may be asked to leave; None: there is none."""
    priorities = (
        record.current.job.priority
        for record in snapshot.jobs.values()
        if record.current is not None and is_displaceable(record)
    )
    return min(priorities, default=None)


def _has_floor(record: JobRecord) -> bool:
    return record.current is not None and has_floor(record.current.job)


def _serves(snapshot: Snapshot, assigned: Assigned) -> bool:
    status = snapshot.status(assigned)
    return is_ready(snapshot, assigned) or bool(status and status.healthy)


# What people ask for: all or nothing -------------------------------------------------------------


def place_displacing(
    snapshot: Snapshot, job: Job, head: JobHead, buckets: Buckets, lately: Lately
) -> Plan | None:
    """Every missing instance placed, as many as must be at the cost of others; None: not all."""
    if not _has_lower(snapshot, job):
        return None
    rooms = rooms_of(snapshot)
    winner = Winner(job=job, head=head, buckets=buckets, rules=rules_of(snapshot, job))
    missing = head.wanted - len(buckets.live)
    placed = winner.place(rooms, missing)
    displacing = Displacing(snapshot, rooms, lately, job.priority)
    won = displacing.make_room(winner, placed, missing - len(placed))
    if len(placed) + len(won) < missing:
        return None
    slots, demand = FreeSlots(buckets.used_slots()), winner.ask.demand
    new = (new_instance(job.key, head, next(slots), demand, p) for p in (*placed, *won))
    return Plan(
        reason="",
        edits=(*displacing.victims, *new),
        displaced=displacing.displaced,
        contests=tuple(displacing.contests),
    )


def could_displace(
    snapshot: Snapshot, job: Job, head: JobHead, rooms: Rooms, lately: Lately
) -> bool:
    """Whether all of a job would fit into these rooms at the cost of others; changes the rooms.

    Its own instances have left the rooms already.
    """
    if not _has_lower(snapshot, job):
        return False
    winner = Winner(job=job, head=head, buckets=Buckets(), rules=rules_of(snapshot, job))
    placed = winner.place(rooms, head.wanted)
    missing = head.wanted - len(placed)
    displacing = Displacing(snapshot, rooms, lately, job.priority)
    return len(displacing.make_room(winner, placed, missing)) == missing


def displaced_in(snapshot: Snapshot) -> list[Displaced]:
    """What ledgers say of instances that had to leave."""
    return [
        r for node in snapshot.nodes_where(_has_displaced).values() for r in node.ledger.displaced
    ]


def _has_displaced(node: Node) -> bool:
    return bool(node.ledger.displaced)


def _fits_somewhere(snapshot: Snapshot, job: Job) -> bool:
    """Whether a node would do with nothing else on it: otherwise nobody need be looked for."""
    needed = Demand.of(job).resources
    return any(
        node.is_schedulable and needed.fits_in(node.ledger.allocatable)
        for node in snapshot.nodes.values()
    )


def _has_lower(snapshot: Snapshot, job: Job) -> bool:
    lowest = lowest_there(snapshot)
    return job.may_preempt and lowest is not None and lowest < job.priority


# What is pending: as far as it goes --------------------------------------------------------------


def plan_preempt(snapshot: Snapshot, lately: Lately = UNKNOWN) -> Plan | None:
    """Room for what is pending and important; asked only when nothing can be placed without."""
    return at_once(planning_preempt(snapshot, lately))


def planning_preempt(snapshot: Snapshot, lately: Lately) -> Stepwise[Plan | None]:
    """The same, job by job."""
    live = census(snapshot).live
    keys = starved_first(snapshot, live)
    if not keys:
        return None
    lowest = lowest_there(snapshot)
    jobs = {key: version.job for key in keys if (version := snapshot.jobs[key].current)}
    eager = [j.priority for j in jobs.values() if j.may_preempt and _fits_somewhere(snapshot, j)]
    if lowest is None or not eager or max(eager) <= lowest:
        return None
    rooms = rooms_of(snapshot)
    keep_places(snapshot, rooms)
    displacing = Displacing(snapshot, rooms, lately, max(eager))
    assignments = assignments_by_job(snapshot, keys)
    new: list[Edit] = []
    for key, job in jobs.items():
        yield
        head, buckets = snapshot.jobs[key].head, sort_job(snapshot, key, assignments[key])
        rules = rules_of(snapshot, job, [*displacing.victims, *new])
        winner = Winner(job=job, head=head, buckets=buckets, rules=rules)
        missing = head.wanted - live.get(key, 0)
        # What will be free soon is theirs by priority; it is given to them when it is.
        soon = winner.place(rooms, missing)
        displacing.keep_neighbours(job, soon)
        missing = min(missing - len(soon), WINNERS_MAX - len(new))
        if not job.may_preempt or missing <= 0 or displacing.has_lost(key):
            continue
        won = displacing.make_room(winner, soon, missing)
        displacing.keep_neighbours(job, won)
        burst = rules.asked.burst
        if burst and any(placed.node in burst.nodes for placed in won):
            won = [*soon, *won]  # only with these has home enough for others to go further
        slots, demand = FreeSlots(buckets.used_slots()), winner.ask.demand
        new += [new_instance(key, head, next(slots), demand, p) for p in won]
    if not new:
        return None
    names = ", ".join(sorted({str(edit.job) for edit in new}))
    return Plan(
        reason=f"room for {names}, which fits nowhere else",
        edits=(*displacing.victims, *new),
        displaced=displacing.displaced,
        contests=tuple(displacing.contests),
    )
