"""The one transaction that a batch of plans becomes: what is compared, what is written.

Compares come from the cluster before, values from the cluster after. What the cluster before holds
may itself be a batch of ours that was committed a moment ago (`Batch.beneath`): what that one wrote
is compared to be of its revision, or to be what it writes where that is not known yet. Values do
not wait for it: they are made while it is on its way (`drafted`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ozymandias.core.routes import Names, dns_records
from ozymandias.model.assignments import NO_JOB
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Pair, Table
from ozymandias.ports import Compare, Delete, Op, Put, Txn
from ozymandias.store import codec, keys
from ozymandias.store.batch import Batch
from ozymandias.store.changes import Written
from ozymandias.store.names import delete_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What plans write. ``marked`` are the keys whose values carry the commit's id."""

    then: Sequence[Op]
    marked: tuple[bytes, ...]
    written: Written = field(default_factory=Written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction(Draft):
    """Plans made ready to send."""

    compare: tuple[Compare, ...]


def drafted(batch: Batch, names: Names, record: Put | None = None) -> Draft:
    """What a batch writes, which does not wait for what lies beneath it to be committed.

    ``record``: one more, of what it was decided on.
    """
    return _Writer(batch, names).draft(record)


def completed(draft: Draft, batch: Batch, fence: tuple[Compare, ...]) -> Transaction:
    """With what is compared: if something beneath is not committed, this can't be either."""
    compare = (*fence, *_compares(batch, frozenset(c.key for c in fence)))
    return Transaction(compare=compare, then=draft.then, marked=draft.marked, written=draft.written)


def _compares(batch: Batch, fenced: frozenset[bytes]) -> Iterator[Compare]:
    before, reach, nodes = batch.before, batch.reach, Table.of(batch.before.nodes)
    beneath, as_known = batch.beneath, batch.as_known
    for name, node in zip(reach.nodes, nodes.of_each(reach.nodes), strict=True):
        assert node is not None, f"{name} has no ledger"
        if name in beneath:
            yield as_known(name, node.ledger_revision)
        else:
            yield Compare(keys.ledger(name), "mod", "=", node.ledger_revision)
    for name, seen in zip(reach.gaining, nodes.of_each(reach.gaining), strict=True):
        key = keys.node(name)
        if key not in fenced:  # the fence compares our own record already
            epoch = seen.presence_revision if seen is not None else 0
            assert epoch, f"{name} gains an instance but is not there"
            yield Compare(key, "create", "=", epoch)
    for name in sorted(reach.dead):
        yield Compare(keys.node(name), "version", "=", 0)
    for job in sorted(reach.jobs):
        record = before.jobs.get(job)
        if record is None and job not in batch.after.jobs:
            continue  # its slots are stopped because the head is gone, or can't be read
        absent = Compare(keys.job(job), "mod", "=", 0)
        yield as_known(job, record.head_revision) if record else absent
    changes = batch.job_changes()
    for change in changes:
        if change.version:
            yield Compare(keys.version(change.key, change.version.version), "version", "=", 0)
    yield from _claim_compares(batch, changes)
    if reach.relies_on_settings:
        yield as_known(keys.SCHEDULING, before.settings_revision)
    yield from batch.falls_with()


def _claim_compares(batch: Batch, changes: list[JobChange]) -> Iterator[Compare]:
    for claim in _claims_in(changes):
        old, new = batch.before.claims.get(claim), batch.after.claims.get(claim)
        if new is not None and new != old:
            free = Compare(keys.claim(claim), "version", "=", 0)
            yield Compare(keys.claim(claim), "value", "=", _owner(old)) if old else free


class _Writer:
    def __init__(self, batch: Batch, names: Names) -> None:
        self.batch, self.names = batch, names
        self.before, self.after = batch.before, batch.after
        self.then: list[Op] = []
        self.marked: list[bytes] = []
        self.written = Written(assigned=batch.after.assigned, others=batch.others)

    def draft(self, record: Put | None) -> Draft:
        self._nodes()
        self._assignments()
        for node in sorted(self.batch.reach.dead):
            self.then.extend(_forget(self.before, node, self.names))
        self._jobs()
        changes = self.batch.job_changes()
        for change in changes:
            self._versions(change)
        self._claims(changes)
        self._settings()
        if record is not None:
            self._write(record, record.value)
        self.written.is_all = len(self.written.ops) == len(self.then)
        return Draft(then=tuple(self.then), marked=tuple(self.marked), written=self.written)

    def _write(self, op: Put | Delete, known: Any) -> None:
        """Note what the bytes mean as well: we need not read them again."""
        self.then.append(op)
        self.written.add(op, known)

    def _write_all(self, puts: list[Put], known: Iterable[Any]) -> None:
        """Ledgers, or assignments: there are many."""
        self.then += puts
        self.written.ops += puts
        self.written.known += known

    def _put(self, key: bytes, stored: Any, *, keeps_unknown: bool = True) -> None:
        unknown = self.before.unknown.get(key) if keeps_unknown else None
        put = Put(key, codec.encode(stored, unknown))
        if unknown is None:
            self._write(put, stored)
        else:
            self.then.append(put)

    def _delete(self, key: bytes) -> None:
        self._write(Delete(key), None)

    def _nodes(self) -> None:
        names, unknown = self.batch.reach.nodes, self.before.unknown
        found = Table.of(self.after.nodes).of_each(names)
        ledgers = {name: node.ledger for name, node in zip(names, found, strict=True) if node}
        assert len(ledgers) == len(names), "every node that is rewritten has a ledger"
        marked = list(map(keys.ledger, ledgers))
        self.marked += marked
        if unknown:
            for key, ledger in zip(marked, ledgers.values(), strict=True):
                self._put(key, ledger)
            return
        self.written.ledgers = ledgers
        puts = list(map(Put, marked, map(codec.encode_known, ledgers.values())))
        self._write_all(puts, ledgers.values())

    def _assignments(self) -> None:
        reach = self.batch.reach
        if self.before.unknown or reach.pairs:
            self._reassigned(reach.each_pair())
            return
        encode = codec.GroupsEncoder().encode
        for places in reach.placed:
            there, path = self.after.assigned.of_job(places.job), keys.of_job(places.job)
            assigned = [there[node] for node in places.nodes]
            at = [keys.assignments(node) + path for node in places.nodes]
            puts = list(map(Put, at, [encode(one.groups) for one in assigned]))
            self._write_all(puts, assigned)
            self.written.jobs.add(places.job)

    def _reassigned(self, pairs: Iterable[Pair]) -> None:
        """What may be gone then, or hold what only a newer daemon knows."""
        after, unknown = self.after.assigned, self.before.unknown
        encode = codec.GroupsEncoder().encode
        last, there, path = None, NO_JOB, b""  # a job, and where it is
        for node, job in pairs:
            if job is not last:
                last, there, path = job, after.of_job(job), keys.of_job(job)
                self.written.jobs.add(job)
            assignment, key = there.get(node), keys.assignments(node) + path
            if assignment is None:
                self._delete(key)
            elif key in unknown:
                self.then.append(Put(key, codec.encode(assignment.groups, unknown[key])))
            else:
                self._write_all([Put(key, encode(assignment.groups))], [assignment])

    def _jobs(self) -> None:
        for job in sorted(self.batch.reach.jobs):
            record, new = self.before.jobs.get(job), self.after.jobs.get(job)
            key = keys.job(job)
            if record is None and new is None:
                continue
            self.marked.append(key)
            if new is None:
                self._delete(key)
                continue
            head = replace(new.head, commit=self.batch.commit)
            is_same = record is not None and record.head.uid == head.uid
            self._put(key, head, keeps_unknown=is_same)

    def _versions(self, change: JobChange) -> None:
        if change.version:
            key = keys.version(change.key, change.version.version)
            self._write(Put(key, self.batch.reach.versions[key]), change.version)
        for number in change.drop_versions:
            self._delete(keys.version(change.key, number))

    def _settings(self) -> None:
        if self.batch.reach.settings:
            self._put(keys.SCHEDULING, self.after.settings)
            self.marked.append(keys.SCHEDULING)

    def _claims(self, changes: list[JobChange]) -> None:
        """One job may take what another gives up in the same transaction: one write each."""
        for claim in _claims_in(changes):
            key = keys.claim(claim)
            old, new = self.before.claims.get(claim), self.after.claims.get(claim)
            if new is None:
                self._delete(key)
            elif new != old:
                self._write(Put(key, _owner(new)), new)


def _claims_in(changes: list[JobChange]) -> list[str]:
    return sorted({c for change in changes for c in change.claim | change.disclaim})


def _owner(job: JobKey) -> bytes:
    return codec.encode(f"{job.namespace}/{job.name}")


def _forget(snapshot: Snapshot, node: NodeName, names: Names) -> Iterator[Op]:
    """Delete a dead node's statuses and the names of its healthy instances."""
    prefix = keys.statuses(node)
    yield Delete(prefix, keys.prefix_end(prefix))
    for job, status in sorted(snapshot.told.on(node).items()):
        record = snapshot.jobs.get(job)
        if record is None:
            # The job is gone, and with it what it is called; a new one's names are not ours.
            zone = keys.dns(f"{job.name}.{job.namespace}.{names.domain}") + b"/"
            no_job = (Compare(keys.job(job), "version", "=", 0),)
            yield Txn(no_job, (Delete(zone, keys.prefix_end(zone)),))
            continue
        for slot, instance in sorted(status.instances.items()):
            version = record.versions.get(instance.version)
            if instance.healthy and instance.address and version:
                yield from delete_records(dns_records(version.job, slot, instance.address, names))
