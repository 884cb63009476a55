"""What a job's rules, and those around it, make of every node: the first step of placing.

A job file says where its instances must and would rather be, other jobs say whom they keep away
from, the cluster's settings say which nodes a namespace has. `rules_of` reduces all of it, over one
snapshot, to one value that `core/placement.py` consumes without knowing where it came from:

    against   nodes that are out of the question, each with the reason in words
    wishes    what would be liked, with its weight, and the nodes that have it
    groups    which nodes are alike for `spread`
    limits    so many per node, so many at home before a burst

A plan that places several jobs passes what it has decided so far: those are neighbours already.

`apart` holds both ways, by what each instance was promised: one that runs keeps away others by
the rules of its own version. All of that hangs on what is on a node, which is what a transaction
compares. System jobs come before anything else: nobody's `apart` keeps them from a node.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec import Struct

from ozymandias.core.buckets import assignments_by_job, census
from ozymandias.core.labels import unmet, unmet_words
from ozymandias.core.rooms import Rooms
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Job, JobKey, JobRecord, LabelRule, Neighbour, PlacementRules
from ozymandias.model.labels import contradiction, matches, spelled
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Edit
from ozymandias.model.record import replace
from ozymandias.model.settings import NodePool, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Table
from ozymandias.model.units import counted, is_or_are

POOL_WEIGHT = 100  # a preferred pool counts as much as the heaviest wish of a job file
UNLABELLED = ""  # the value that nodes without the label of `spread` share

NOTHING_ASKED = PlacementRules()

# Which versions of a job are live on which nodes.
Whereabouts = dict[NodeName, set[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Something that a job would like of its node."""

    kind: str  # as in the job file: prefer, near, apart; or pool
    words: str
    weight: int
    nodes: frozenset[NodeName]  # those that have it
    is_theirs: bool = False  # another job would like it of this one, and the words say which


def had_words(wishes: list[Wish]) -> str:
    """``has role == infra, as preferred, and is apart from db, as db prefers``."""
    labels, others, theirs = (
        " and ".join(w.words for w in wishes if part == (w.is_theirs, w.kind == "prefer"))
        for part in ((False, True), (False, False), (True, False))
    )
    own = " and ".join([f"has {labels}"] * bool(labels) + [f"is {others}"] * bool(others))
    said = [f"{own}, as preferred"] * bool(own) + [f"is {theirs}"] * bool(theirs)
    return ", and ".join(said)


class Rules(Struct, frozen=True, kw_only=True):
    """A job's rules as they apply to the nodes of one snapshot."""

    asked: PlacementRules = NOTHING_ASKED
    required: tuple[str, ...] = ()  # what a node must have, in words
    against: Mapping[NodeName, str] = {}
    wishes: tuple[Wish, ...] = ()
    groups: Mapping[NodeName, str] = {}  # empty: no `spread`
    target_percent: int = 70

    def eligible(self, rooms: Rooms) -> Rooms:
        """The same rooms, but those that are out of the question."""
        if not self.against:
            return rooms
        return {name: room for name, room in rooms.items() if name not in self.against}

    @property
    def limits(self) -> Iterator[str]:
        """How many may be where, in words."""
        if self.asked.max_per_node:
            yield f"at most {self.asked.max_per_node} on a node"
        if burst := self.asked.burst:
            yield f"the first {burst.after} not on {' or '.join(burst.nodes)}"

    @property
    def is_particular(self) -> bool:
        """Whether it would rather be on some of the nodes that it may be on."""
        return bool(self.wishes or self.groups)

    def without_wishes(self) -> "Rules":
        return replace(self, wishes=(), groups={})

    def worth(self, node: NodeName) -> int:
        return sum(wish.weight for wish in self.wishes if node in wish.nodes)

    def why_not(
        self,
        node: NodeName,
        there: Mapping[NodeName, int],
        lasting: Mapping[NodeName, int] | None = None,
    ) -> str:
        """What speaks against one more on this node, where ``there`` are; empty if nothing.

        ``lasting``: of those the ones that stay, for the burst; None: all of them.
        """
        if reason := self.against.get(node, ""):
            return reason
        if 0 < self.asked.max_per_node <= there.get(node, 0):
            return f"at the job's limit of {self.asked.max_per_node} per node"
        return self._why_not_by_burst(node, there if lasting is None else lasting)

    def _why_not_by_burst(self, node: NodeName, there: Mapping[NodeName, int]) -> str:
        burst = self.asked.burst
        if burst is None:
            return ""
        if node in burst.nodes:
            live = sum(there.values())
            few = (
                f"used above {counted(burst.after, 'instance')}, and {live} {is_or_are(live)} live"
            )
            return f"for the burst only, {few}" if live < burst.after else ""
        home = at_home(burst.nodes, there)
        stay = "stays" if burst.after == 1 else "stay"
        beyond = (
            f"beyond the {counted(burst.after, 'instance')} that {stay} at home, the rest go to"
        )
        return f"{beyond} {' or '.join(burst.nodes)}" if home >= burst.after else ""


NO_RULES = Rules()


def at_home(burst_nodes: Iterable[str], there: Mapping[NodeName, int]) -> int:
    """How many of a job's instances are on none of its burst nodes."""
    away = set(burst_nodes)
    return sum(count for node, count in there.items() if node not in away)


def rules_of(snapshot: Snapshot, job: Job, decided: Iterable[Edit] = ()) -> Rules:
    """What this job's rules make of the nodes, with what the plan has ``decided`` so far."""
    asked, settings = job.placement, snapshot.settings
    if not (asked.is_about_nodes or settings.pools or _anybody_shuns(snapshot)):
        return Rules(asked=asked, target_percent=settings.target_percent)
    around = _Around(snapshot, job, decided)
    return Rules(
        asked=asked,
        required=tuple(_required(snapshot, job, around)),
        against=_against(snapshot, job, around),
        wishes=tuple(_wishes(snapshot, job, around)),
        groups=_groups(snapshot, asked.spread) if asked.spread else {},
        target_percent=settings.target_percent,
    )


def contradiction_in(snapshot: Snapshot, job: Job) -> str:
    """Why no node at all could ever match this job, in words; "" if one could."""
    asked = job.placement
    if against := contradiction(asked.require):
        return against
    hard = pools_of(snapshot.settings, job.namespace, is_hard=True)
    found = [contradiction((*asked.require, *pool.require)) for pool in hard]
    if found and all(found):
        return f"{found[0]}, which the pool of namespace {job.namespace} asks for"
    for other in asked.near:
        record = snapshot.jobs.get(other.job)
        if other.weight or record is None or record.current is None:
            continue
        theirs = record.current.job.placement
        if any(n.job == job.key and not n.weight for n in theirs.apart):
            return f"it is to be near {other.job}, which is to be apart from it"
        if against := contradiction((*asked.require, *theirs.require)):
            return f"it is to be near {other.job}, and {against}"
    if circle := _circle(snapshot, job):
        near = ", which is to be near ".join((*map(str, circle), "it"))
        return f"it is to be near {near}: none of them could be placed first"
    return ""


def _circle(snapshot: Snapshot, job: Job) -> tuple[JobKey, ...]:
    """Jobs that it has to be near to by way of each other, the last of which has to be near it.

    While they run that is no harm; but once all of them are lost none could ever come back.
    """
    ways: list[tuple[JobKey, ...]] = [(key,) for key in near_to(job)]
    seen: set[JobKey] = set()
    for way in ways:  # it grows meanwhile
        record = snapshot.jobs.get(way[-1])
        if record is None or record.current is None or way[-1] in seen:
            continue
        seen.add(way[-1])
        further = near_to(record.current.job)
        if job.key in further:
            return way
        ways += [(*way, key) for key in further]
    return ()


def near_to(job: Job) -> list[JobKey]:
    """The jobs that it has to be near to."""
    return [other.job for other in job.placement.near if not other.weight]


def unknown_neighbour(snapshot: Snapshot, job: Job) -> JobKey | None:
    """A job that this one has to be near to, and that is not there, or not for long."""
    for other in job.placement.near:
        record = snapshot.jobs.get(other.job)
        if not other.weight and (record is None or record.head.deleting):
            return other.job
    return None


def neighbours_away(snapshot: Snapshot, job: Job) -> list[JobKey]:
    """The jobs that it has to be near to, and that are there but live nowhere."""
    live = census(snapshot).live
    found = ((key, snapshot.jobs.get(key)) for key in near_to(job))
    return [key for key, record in found if record and record.head.wanted and not live.get(key, 0)]


def unknown_burst_nodes(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    """The nodes for its burst that never joined; one that is only away has its ledger still."""
    burst = job.placement.burst
    return tuple(name for name in burst.nodes if name not in snapshot.nodes) if burst else ()


# Neighbours ---------------------------------------------------------------------------------------


class _Around:
    """Where the jobs are that a job is near to or apart from, and those that are apart from it."""

    def __init__(self, snapshot: Snapshot, job: Job, decided: Iterable[Edit]) -> None:
        self.jobs = snapshot.jobs
        self.key = job.key
        named = {n.job for n in (*job.placement.near, *job.placement.apart)}
        self.wary = wary_of(snapshot, job.key)
        self.where = _whereabouts(snapshot, named.union(self.wary), decided)

    def nodes_of(self, key: JobKey) -> Whereabouts:
        return self.where.get(key, {})

    def keeping_away(self) -> Iterator[tuple[Neighbour, Whereabouts]]:
        """The rules of others against this job, each where an instance with that rule lives.

        In each `Neighbour` the job is the other one, which would be apart from this.
        """
        for other in self.wary:
            found: dict[int, Whereabouts] = {}
            for node, versions in self.nodes_of(other).items():
                for number in versions:
                    if (weight := self._weight(other, number)) is not None:
                        found.setdefault(weight, {})[node] = versions
            for weight, nodes in sorted(found.items()):
                yield Neighbour(job=other, weight=weight), nodes

    def _weight(self, other: JobKey, number: int) -> int | None:
        """How much a version of another job wants to be apart from this one; None: it does not."""
        version = self.jobs[other].versions.get(number)
        weights = (
            [n.weight for n in version.job.placement.apart if n.job == self.key] if version else []
        )
        return min(weights, default=None)


def wary_of(snapshot: Snapshot, key: JobKey) -> list[JobKey]:
    """The jobs of which some version would be apart from this one.

    Found once for all the records that tables of jobs share, so that a change costs a look at what
    has changed since.
    """
    if not _anybody_shuns(snapshot):
        return []  # as in nearly every cluster
    jobs = Table.of(snapshot.jobs)
    if "wary" not in jobs.facts:
        found: dict[JobKey, set[JobKey]] = {}
        for other, record in jobs.shared.items():
            for shunned in record.shuns:
                found.setdefault(shunned, set()).add(other)
        jobs.facts["wary"] = found
    known: dict[JobKey, set[JobKey]] = jobs.facts["wary"]
    others = known.get(key, set()) - jobs.recent.keys()
    others |= {k for k, record in jobs.recent.items() if record and key in record.shuns}
    return sorted(others)


def _anybody_shuns(snapshot: Snapshot) -> bool:
    return bool(Table.of(snapshot.jobs).where(_shuns_somebody))


def _shuns_somebody(record: JobRecord) -> bool:
    """Whether it has ``shuns``: asked of every job that changes, and nearly always in vain."""
    return any(version.job.placement.apart for version in record.versions.values())


def _whereabouts(
    snapshot: Snapshot, keys: set[JobKey], decided: Iterable[Edit]
) -> dict[JobKey, Whereabouts]:
    """Where these jobs live; what is stopping lives no more."""
    if not keys:
        return {}
    found: dict[JobKey, dict[NodeName, list[int]]] = {key: {} for key in keys}
    for key, assignments in assignments_by_job(snapshot, keys).items():
        for assignment in assignments:
            live = [g for g in assignment.groups if g.state is not SlotState.STOPPING]
            if live:
                found[key][assignment.node] = [g.version for g in live for _ in g.slots]
    for edit in decided:
        if edit.job in found:
            here = found[edit.job].setdefault(edit.node, [])
            if _is_live(edit.before) and edit.version in here:
                here.remove(edit.version)
            if _is_live(edit.after):
                here.append(edit.version)
    return {
        key: {node: set(versions) for node, versions in nodes.items() if versions}
        for key, nodes in found.items()
    }


def _is_live(state: SlotState | None) -> bool:
    return state is SlotState.RUNNING or state is SlotState.WAITING


# Against ------------------------------------------------------------------------------------------


def _required(snapshot: Snapshot, job: Job, around: _Around) -> Iterator[str]:
    yield from map(spelled, job.placement.require)
    if hard := pools_of(snapshot.settings, job.namespace, is_hard=True):
        yield f"the pool of namespace {job.namespace} ({_pool_words(hard)})"
    yield from (f"{n.job} on the same node" for n in job.placement.near if not n.weight)
    yield from (f"no {n.job} on the same node" for n in job.placement.apart if not n.weight)
    for other, _ in around.keeping_away():
        if not other.weight:
            yield f"no {other.job} on the same node (as {other.job} requires)"


def _against(snapshot: Snapshot, job: Job, around: _Around) -> dict[NodeName, str]:
    """The first reason against each node that is out of the question."""
    found: dict[NodeName, str] = {}
    asked, hard = job.placement, pools_of(snapshot.settings, job.namespace, is_hard=True)
    if asked.require or hard:
        for name, node in snapshot.nodes.items():
            labels = node.ledger.all_labels
            if rule := unmet(asked.require, labels):
                found[name] = unmet_words(rule)
            elif reason := outside(hard, labels):
                found[name] = reason
    for other in asked.near:
        if not other.weight:
            there = around.nodes_of(other.job)
            for name in snapshot.nodes:
                if name not in there:
                    found.setdefault(name, f"without {other.job}, which {job.key} is to be near to")
    for other in asked.apart:
        if not other.weight:
            for name in around.nodes_of(other.job):
                words = f"where {other.job} is, which {job.key} is to be apart from"
                found.setdefault(name, words)
    for other, nodes in around.keeping_away():
        if not other.weight:
            for name in nodes:
                found.setdefault(name, f"where {other.job} is, which is to be apart from {job.key}")
    return found


def pools_of(settings: Settings, namespace: str, *, is_hard: bool) -> list[NodePool]:
    return [p for p in settings.pools if p.namespace == namespace and p.is_hard is is_hard]


def label_demands(settings: Settings, job: Job) -> list[tuple[LabelRule, ...]]:
    """What has to hold of a node's labels: the job's own rules, with those of one of its pools."""
    pools = pools_of(settings, job.namespace, is_hard=True)
    return [(*job.placement.require, *pool.require) for pool in pools] or [job.placement.require]


def outside(pools: list[NodePool], labels: Mapping[str, str]) -> str:
    """Why nodes with these labels are in none of the pools; empty if they are, or there is none."""
    if not pools or any(unmet(pool.require, labels) is None for pool in pools):
        return ""
    return f"not in the pool of namespace {pools[0].namespace} ({_pool_words(pools)})"


def _pool_words(pools: list[NodePool]) -> str:
    return " or ".join(" and ".join(map(spelled, pool.require)) for pool in pools)


# Wishes -------------------------------------------------------------------------------------------


def _wishes(snapshot: Snapshot, job: Job, around: _Around) -> Iterator[Wish]:
    asked, soft = job.placement, pools_of(snapshot.settings, job.namespace, is_hard=False)
    if asked.prefer or soft:
        labels = {name: node.ledger.all_labels for name, node in snapshot.nodes.items()}
        for rule in asked.prefer:
            nodes = frozenset(name for name, found in labels.items() if matches(rule, found))
            yield Wish(kind="prefer", words=spelled(rule), weight=rule.weight or 1, nodes=nodes)
        if soft:
            nodes = frozenset(name for name, found in labels.items() if not outside(soft, found))
            words = f"in the pool of namespace {job.namespace} ({_pool_words(soft)})"
            yield Wish(kind="pool", words=words, weight=POOL_WEIGHT, nodes=nodes)
    for other in asked.near:
        if other.weight:
            nodes = frozenset(around.nodes_of(other.job))
            yield Wish(kind="near", words=f"near {other.job}", weight=other.weight, nodes=nodes)
    for other in asked.apart:
        if other.weight:
            nodes = frozenset(snapshot.nodes).difference(around.nodes_of(other.job))
            words = f"apart from {other.job}"
            yield Wish(kind="apart", words=words, weight=other.weight, nodes=nodes)
    for other, there in around.keeping_away():
        if other.weight:
            words = f"apart from {other.job}, as {other.job} prefers"
            nodes = frozenset(snapshot.nodes).difference(there)
            yield Wish(kind="apart", words=words, weight=other.weight, nodes=nodes, is_theirs=True)


def _groups(snapshot: Snapshot, label: str) -> dict[NodeName, str]:
    return {
        name: node.ledger.all_labels.get(label, UNLABELLED) for name, node in snapshot.nodes.items()
    }
