"""Plans that are committed together.

Many changes that wait at the same time are decided one after the other, each on what the ones
before it will have made of the cluster, and are written as one transaction (`transaction.py`). It
compares all that any of them relied on, as it was in the snapshot before the first, and writes what
is there after the last. A single plan is a batch of one.

What must stay apart is kept apart: a job's head changes at most once per revision, so that every
change of a job can be told, waited for and traced. And a batch stays below what etcd takes in one
transaction; a lone plan of any size is always let in.

The next batch is decided while this one is on its way, on what it will leave behind. It can't know
yet at which revision that will be, so it remembers which batch wrote what (``beneath``). Once that
one is committed its revision is compared; before, the very bytes that it writes, which no other
transaction can have written: they hold its commit's id.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from ozymandias.core.apply import apply
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange, Places, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Pair, Table
from ozymandias.ports import Compare, Op, Put
from ozymandias.store import codec, keys
from ozymandias.store.changes import Written

PLANS_MAX = 1024
COMPARES_MAX = 7000  # of the 8192 that our own etcds take
COMPARES_ANYWHERE = 96  # an etcd as it comes takes 128, and operations need room beside them
BYTES_MAX = 1_300_000  # etcd takes 1.5 MiB
PLACES_MAX = 1500  # of a plan that may be divided: with a node and a job each, one transaction
# What these add to a transaction, at most, with keys and compares, of names of usual lengths.
_NODE_BYTES = 700
_PAIR_BYTES = 320
_SLOT_BYTES = 3

Rewritten = JobKey | NodeName | bytes  # a head, a ledger, or the key of the settings


class Reach(Struct):
    """What plans change, and whose presence or absence they rely on.

    What there may be thousands of is in the order of the plans, and not sorted time and again.
    """

    nodes: dict[NodeName, None] = {}
    pairs: dict[Pair, None] = {}
    placed: list[Places] = []  # more of those, of a job each
    gaining: dict[NodeName, None] = {}
    dead: set[NodeName] = set()
    jobs: set[JobKey] = set()
    claims: set[str] = set()
    versions: dict[bytes, bytes] = {}  # new ones, as they are written
    settings: bool = False
    heeds_settings: bool = False  # relies on them, and leaves them as they are
    values_bytes: int = 0  # of all but what nodes add

    @classmethod
    def of(cls, plan: Plan) -> "Reach":
        pairs, _, entered, _, _, changing = plan.effect
        change, touched = plan.job, plan.touched
        nodes, is_of_one_job = dict.fromkeys(touched), isinstance(pairs, Places)
        versions: dict[bytes, bytes] = {}
        if change is not None and change.version is not None:
            key = keys.version(change.key, change.version.version)
            versions[key] = codec.encode(change.version)
        return cls(
            nodes=nodes,
            pairs={} if is_of_one_job else dict.fromkeys(pairs),
            placed=[pairs] if isinstance(pairs, Places) else [],
            gaining=nodes if entered is touched else dict.fromkeys(entered),
            dead=set(plan.dead),
            jobs={*changing, change.key} if change else {*changing},
            claims=set(change.claim) if change else set(),
            versions=versions,
            settings=plan.settings is not None,
            heeds_settings=plan.heeds_settings,
            values_bytes=_PAIR_BYTES * len(pairs)
            + _SLOT_BYTES * plan.scattered
            + sum(map(len, versions.values())),
        )

    def add(self, more: "Reach") -> None:
        self.nodes |= more.nodes
        self.pairs |= more.pairs
        self.placed += more.placed
        self.gaining |= more.gaining
        self.dead |= more.dead
        self.jobs |= more.jobs
        self.claims |= more.claims
        self.versions |= more.versions
        self.settings |= more.settings
        self.heeds_settings |= more.heeds_settings
        self.values_bytes += more.values_bytes

    def each_pair(self) -> Iterator[Pair]:
        """What is reassigned, each once."""
        pairs = self.pairs
        if not pairs:
            return chain(*self.placed)
        # Of a job that is placed by one plan others may put in order what it has there.
        return chain(
            pairs, (pair for placed in self.placed for pair in placed if pair not in pairs)
        )

    @property
    def relies_on_settings(self) -> bool:
        """They are changed, or heeded, or something is placed by the pools of namespaces."""
        return bool(self.settings or self.heeds_settings or self.gaining)

    @property
    def size_bytes(self) -> int:
        """About how large a transaction is."""
        return _NODE_BYTES * len(self.nodes) + self.values_bytes

    @property
    def compares(self) -> int:
        """How many there are."""
        places = len(self.nodes) + len(self.gaining) + len(self.dead)
        names = len(self.jobs) + len(self.claims) + len(self.versions)
        return places + names + self.relies_on_settings

    def is_within(self, compares_max: int, more: "Reach") -> bool:
        """Whether this together with another one's is a transaction that etcd takes."""
        size_bytes = self.size_bytes + more.size_bytes
        compares = self.compares + more.compares
        if size_bytes <= BYTES_MAX and compares <= compares_max:
            return True  # whatever they have in common
        twice = _in_both(self.nodes, more.nodes)
        size_bytes -= _NODE_BYTES * twice
        compares -= twice + _in_both(self.gaining, more.gaining) + _in_both(self.dead, more.dead)
        compares -= _in_both(self.jobs, more.jobs) + _in_both(self.claims, more.claims)
        compares -= self.relies_on_settings and more.relies_on_settings
        return size_bytes <= BYTES_MAX and compares <= compares_max


def _in_both(many: Collection[Any], few: Collection[Any]) -> int:
    return len([one for one in few if one in many])


NO_REACH = Reach()


class Batch:
    """Plans decided in sequence: ``after`` is the cluster as they will have left it."""

    def __init__(
        self,
        snapshot: Snapshot,
        commit: str,
        *,
        beneath: Mapping[Rewritten, "Batch"] | None = None,
        compares_max: int = COMPARES_ANYWHERE,
    ) -> None:
        self.before = snapshot
        self.after = snapshot
        self.commit = commit
        self.beneath = beneath or {}
        self.seen = snapshot.revision  # what the mirror had when this was begun
        self.others = -1  # the last revision of others that is beneath; -1: not known
        self.links: Sequence[Batch] = ()  # those beneath that the mirror does not show
        self.then: Sequence[Op] = ()  # what it writes, until its own revision is known
        self.written: Written | None = None  # and what that means, once it was sent
        # The commits that were sent before this had its answer; their revisions, if it told them.
        self.on_top: dict[str, int] = {}
        self.until = 0.0  # when it is too late to begin to send it, and who was there by then
        self.members = 0
        self.revision = 0  # at which it was committed; 0: it was not, or nobody knows yet
        self.is_unknown = False  # and nobody may ever
        self.plans: list[Plan] = []
        self.reach = Reach()
        self._asked: tuple[Plan, Reach] | None = None  # the last one that was to be taken
        self._last = NO_REACH  # of the plan that was added last
        self._compares_max = compares_max
        self._values: dict[bytes, bytes] | None = None

    def takes(self, plan: Plan) -> bool:
        """Whether the plan may be part of this transaction; the first one always may."""
        reach, own = Reach.of(plan), self.reach
        self._asked = plan, reach
        if not self.plans:
            return True
        return (
            len(self.plans) < PLANS_MAX
            and own.jobs.isdisjoint(reach.jobs)
            and not (own.settings and reach.settings)
            and own.is_within(self._compares_max, reach)
        )

    def add(self, plan: Plan) -> None:
        """AssertionError, and nothing added, when the plan breaks what must hold."""
        before, self.after = self.after, apply(self.after, plan, self.commit)
        if plan.job is not None:
            self.after = _without_former(before, self.after, [plan.job.key])
        self.plans.append(plan)
        if self._asked is None or self._asked[0] is not plan:
            self._asked = plan, Reach.of(plan)
        self._last = self._asked[1]
        self.reach.add(self._last)

    @property
    def is_full(self) -> bool:
        """Whether one more like the last would be too much: it need not be decided to know."""
        last, own = self._last, self.reach
        more = 2 * len(last.nodes) + len(last.jobs) + len(last.versions)
        return (
            own.size_bytes + last.size_bytes > BYTES_MAX or own.compares + more > self._compares_max
        )

    @property
    def size_ahead_bytes(self) -> int:
        """About how large it is if it leaves ahead: unanswered ledgers are compared whole."""
        beneath, nodes = self.beneath, self.reach.nodes
        whole = [name for name in nodes if name in beneath and not beneath[name].revision]
        return self.reach.size_bytes + _NODE_BYTES * len(whole)

    def job_changes(self) -> list[JobChange]:
        return [plan.job for plan in self.plans if plan.job]

    def as_known(self, what: Rewritten, known: int) -> Compare:
        """That nobody has written it since a batch of ours beneath, or since it was known."""
        key, below = _key(what), self.beneath.get(what)
        if below is None or not below.then:
            return Compare(key, "mod", "=", below.revision if below else known)
        return Compare(key, "value", "=", below.value_of(key))

    def unanswered(self) -> list["Batch"]:
        """Those beneath of which it is not known whether they are committed."""
        return [link for link in self.links if not link.revision]

    def falls_with(self) -> Iterator[Compare]:
        """That they are committed, one compare each: it may touch nothing that they did.

        There is none for one that did no more than delete, or that all is written over of.
        """
        for link in self.unanswered():
            for what in link.wrote():
                if self.beneath.get(what) is link and (value := link.value_of(_key(what))):
                    yield Compare(_key(what), "value", "=", value)
                    break

    def value_of(self, key: bytes) -> bytes:
        """What is written there; nothing if it is deleted."""
        if self._values is None:
            self._values = {op.key: op.value for op in self.then if isinstance(op, Put)}
        return self._values.get(key, b"")

    def committed(self, revision: int) -> None:
        """What lay beneath is not asked for again, and would keep all before it in memory."""
        self.revision, self.beneath, self.links = revision, {}, ()
        if revision not in self.on_top.values():  # else it was there by then: since when is unknown
            self.then, self._values = (), None

    def wrote(self) -> dict[Rewritten, "Batch"]:
        """Everything that is of this batch's revision once it is committed."""
        found: dict[Rewritten, Batch] = dict.fromkeys(self.reach.nodes, self)
        found |= dict.fromkeys(self.reach.jobs, self)
        if self.reach.settings:
            found[keys.SCHEDULING] = self
        return found

    def holds_over(self, snapshot: Snapshot) -> bool:
        """Whether all that this rewrites is there as it was: else it is lost, though unanswered."""
        before, reach = self.before, self.reach
        found: list[tuple[Rewritten, int, int]] = [
            (name, _ledger(snapshot, name), _ledger(before, name)) for name in reach.nodes
        ]
        found += [(job, _head(snapshot, job), _head(before, job)) for job in reach.jobs]
        if reach.relies_on_settings:
            settled = snapshot.settings_revision, before.settings_revision
            found.append((keys.SCHEDULING, *settled))
        return all(self._is_as(snapshot, *entry) for entry in found)

    def _is_as(self, snapshot: Snapshot, what: Rewritten, found: int, known: int) -> bool:
        below = self.beneath.get(what)
        if below is None:
            return found == known
        # Not committed yet, it is asked by itself; not shown yet, it is not what was found.
        return not 0 < below.revision <= snapshot.revision or found == below.revision

    def over(self, snapshot: Snapshot, others: int) -> Snapshot:
        """A snapshot without this batch, as it will be with it.

        ``others``: the last revision at which somebody else changed what it shows. If this was
        decided on no less, all else in there is beneath it, and its table is the one to be.
        """
        if snapshot is self.before:
            return self.after
        after, reach = self.after, self.reach
        assigned = after.assigned
        if others > self.others:
            changed = {pair: after.assignments.get(pair) for pair in reach.each_pair()}
            assigned = snapshot.assigned.changed(changed)
        nodes = {
            name: replace(snapshot.nodes[name], ledger=after.nodes[name].ledger)
            for name in reach.nodes
            if name in snapshot.nodes
        }
        jobs, changes = sorted(reach.jobs), self.job_changes()
        claims = sorted({claim for change in changes for claim in change.claim | change.disclaim})
        gone = {(node, job): None for node in sorted(reach.dead) for job in snapshot.told.on(node)}
        over = replace(
            snapshot,
            nodes=Table.of(snapshot.nodes).changed(nodes, lasts=True),
            assignments=assigned,
            statuses=snapshot.told.changed(gone) if gone else snapshot.statuses,
            jobs=Table.of(snapshot.jobs).changed({job: after.jobs.get(job) for job in jobs}),
            claims=Table.of(snapshot.claims).changed({c: after.claims.get(c) for c in claims}),
            last_versions=Table.of(snapshot.last_versions).changed(
                {job: after.last_versions.get(job) for job in jobs}
            ),
            settings=after.settings if reach.settings else snapshot.settings,
        )
        return _without_former(snapshot, over, jobs)


def _without_former(before: Snapshot, after: Snapshot, jobs: Iterable[JobKey]) -> Snapshot:
    """What a newer daemon wrote into a job's head is not for the next job of that name."""
    if not before.unknown:
        return after
    ended = [job for job in jobs if _uid(before, job) != _uid(after, job)]
    former = {key: None for key in map(keys.job, ended) if key in before.unknown}
    return replace(after, unknown=Table.of(before.unknown).changed(former)) if former else after


def _uid(snapshot: Snapshot, job: JobKey) -> str:
    record = snapshot.jobs.get(job)
    return record.head.uid if record else ""


def _key(what: Rewritten) -> bytes:
    if isinstance(what, bytes):
        return what
    return keys.job(what) if isinstance(what, JobKey) else keys.ledger(what)


def _ledger(snapshot: Snapshot, name: NodeName) -> int:
    node = snapshot.nodes.get(name)
    return node.ledger_revision if node else 0


def _head(snapshot: Snapshot, job: JobKey) -> int:
    record = snapshot.jobs.get(job)
    return record.head_revision if record else 0
