"""An attempt to place a job: what was asked for, and how many of it would find a place.

It can be asked again with other demands, rooms or rules: that is how the resource to blame is found
(`core/fitting.py`), and what would make it fit (`core/suggest.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ozymandias.core.buckets import Buckets, per_node, sort_job
from ozymandias.core.placement import most_that_fit
from ozymandias.core.rooms import NOW_OR_SOON, Room, Rooms, rooms_of
from ozymandias.core.rules import Rules, rules_of
from ozymandias.model.job import Job, JobKey
from ozymandias.model.node import Demand, Node, NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What was to be placed, and where: ``kept`` instances stay as they are, all are ``wanted``."""

    snapshot: Snapshot
    job: Job
    demand: Demand
    rules: Rules
    rooms: Rooms  # before the attempt
    wanted: int
    kept: int = 0
    there: Mapping[NodeName, int] = field(default_factory=dict)  # of those that are kept
    can_change_job: bool = True  # a new job file is being submitted, so its sizes can be changed

    @property
    def key(self) -> JobKey:
        return self.job.key

    def placeable(
        self,
        demand: Demand | None = None,
        rooms: Rooms | None = None,
        rules: Rules | None = None,
    ) -> int:
        """How many instances there would be, up to all that are wanted."""
        places = self.rooms if rooms is None else rooms
        missing = self.wanted - self.kept
        return self.kept + most_that_fit(
            places,
            demand or self.demand,
            missing,
            NOW_OR_SOON,
            rules=rules or self.rules,
            there=self.there,
        )

    def takes(self, room: Room) -> int:
        """How many of those that are missing could be there, whatever its labels."""
        most, limit = self.wanted - self.kept, self.rules.asked.max_per_node
        if limit:
            most = max(0, min(most, limit - self.there.get(room.node, 0)))
        return room.count(self.demand, NOW_OR_SOON[-1], most)

    def fits(
        self,
        demand: Demand | None = None,
        rooms: Rooms | None = None,
        rules: Rules | None = None,
    ) -> bool:
        return self.placeable(demand, rooms, rules) >= self.wanted


def attempt_of(snapshot: Snapshot, job: Job, wanted: int) -> Attempt:
    """As it is made of a job that is submitted or scaled."""
    record = snapshot.jobs.get(job.key)
    if record is None or (record.current and is_alike(record.current.job, job)):
        buckets, rules = sort_job(snapshot, job.key), rules_of(snapshot, job)
        return beside(snapshot, job, wanted, buckets, rules)
    return instead(snapshot, job, wanted)


def beside(snapshot: Snapshot, job: Job, wanted: int, buckets: Buckets, rules: Rules) -> Attempt:
    """What is live of the job stays, and the others are to come."""
    return Attempt(
        snapshot=snapshot,
        job=job,
        demand=Demand.of(job),
        rules=rules,
        rooms=rooms_of(snapshot),
        wanted=wanted,
        kept=len(buckets.live),
        there=per_node(buckets.live),
        can_change_job=job.key not in snapshot.jobs,
    )


def instead(snapshot: Snapshot, job: Job, wanted: int) -> Attempt:
    """All of it is to come in place of what there is of the job."""
    return Attempt(
        snapshot=snapshot,
        job=job,
        demand=Demand.of(job),
        rules=rules_of(snapshot, job),
        rooms=rooms_without(snapshot, job.key),
        wanted=wanted,
    )


def is_alike(one: Job, other: Job) -> bool:
    """Alike but for the number of instances, which is the head's to say."""
    return replace(one, instances=0) == replace(other, instances=0)


def rooms_without(snapshot: Snapshot, key: JobKey) -> Rooms:
    """All nodes that take work, as if nothing of this job were there."""
    rooms = rooms_of(snapshot)
    buckets = sort_job(snapshot, key)
    for old in (*buckets.live, *buckets.stopping):
        if room := rooms.get(old.node):
            room.give(old.demand, old.state)
    return rooms


def why_closed(node: Node) -> str:
    """Why a node takes no work; empty if it does."""
    if node.presence is None:
        return "not alive"
    if node.presence.degraded:
        return f"degraded: {node.presence.degraded}"
    if node.ledger.drain:
        return "being drained"
    if node.ledger.is_cordoned:
        return "cordoned"
    return f"under {node.load.taint}" if node.load and node.load.taint else ""
