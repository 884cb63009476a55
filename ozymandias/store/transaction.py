"""The one transaction that a batch of plans becomes: what is compared, what is written.

Compares come from the cluster before, values from the cluster after. What the cluster before holds
may itself be a batch of ours that was committed a moment ago (`Batch.beneath`): what that one wrote
is compared to be of its revision.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ozymandias.core.routes import Names, dns_records
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Compare, Delete, Op, Put, Txn
from ozymandias.store import codec, keys
from ozymandias.store.batch import Batch
from ozymandias.store.names import delete_records

Written = dict[tuple[bytes, bytes], Any]  # what a key's new bytes mean; no bytes: it is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Plans made ready to send. ``marked`` are the keys whose values carry the commit's id."""

    compare: tuple[Compare, ...]
    then: tuple[Op, ...]
    marked: tuple[bytes, ...]
    written: Written = field(default_factory=dict)


def transaction_of(batch: Batch, fence: tuple[Compare, ...], names: Names) -> Transaction:
    """Everything the plans relied on as compares, everything they change as operations."""
    return _Writer(batch, fence, names).transaction()


class _Writer:
    def __init__(self, batch: Batch, fence: tuple[Compare, ...], names: Names) -> None:
        self.batch, self.names = batch, names
        self.before, self.after = batch.before, batch.after
        self.compare: list[Compare] = list(fence)
        self.then: list[Op] = []
        self.marked: list[bytes] = []
        self.written: Written = {}
        self.fenced = {c.key for c in fence}

    def transaction(self) -> Transaction:
        self._nodes()
        self._assignments()
        self._presences()
        self._jobs()
        changes = [plan.job for plan in self.batch.plans if plan.job]
        for change in changes:
            self._versions(change)
        self._claims(changes)
        self._settings()
        return Transaction(
            compare=tuple(self.compare),
            then=tuple(self.then),
            marked=tuple(self.marked),
            written=self.written,
        )

    def _put(self, key: bytes, stored: Any, known: Any, *, keeps_unknown: bool = True) -> None:
        """Write a record, and note what its bytes mean: we need not read them again."""
        unknown = self.before.unknown.get(key) if keeps_unknown else None
        value = codec.encode(stored, unknown)
        self.then.append(Put(key, value))
        if unknown is None:
            self.written[key, value] = known

    def _delete(self, key: bytes) -> None:
        self.then.append(Delete(key))
        self.written[key, b""] = None

    def _nodes(self) -> None:
        for node in sorted(self.batch.reach.nodes):
            key = keys.ledger(node)
            revision = self.batch.revision_of(node, self.before.nodes[node].ledger_revision)
            self.compare.append(Compare(key, "mod", "=", revision))
            ledger = self.after.nodes[node].ledger
            self._put(key, ledger, ledger)
            self.marked.append(key)

    def _assignments(self) -> None:
        for pair in sorted(self.batch.reach.pairs):
            assignment = self.after.assignments.get(pair)
            key = keys.assignment(*pair)
            if assignment:
                self._put(key, assignment.groups, assignment)
            else:
                self._delete(key)

    def _presences(self) -> None:
        for node in sorted(self.batch.reach.gaining):
            if keys.node(node) not in self.fenced:  # the fence compares our own record already
                epoch = self.before.nodes[node].presence_revision
                assert epoch, f"{node} gains an instance but is not there"
                self.compare.append(Compare(keys.node(node), "create", "=", epoch))
        for node in sorted(self.batch.reach.dead):
            self.compare.append(Compare(keys.node(node), "version", "=", 0))
            self.then.extend(_forget(self.before, node, self.names))

    def _jobs(self) -> None:
        for job in sorted(self.batch.reach.jobs):
            record, new = self.before.jobs.get(job), self.after.jobs.get(job)
            key = keys.job(job)
            if record is None and new is None:
                continue  # its slots are stopped because the head is gone, or can't be read
            revision = self.batch.revision_of(job, record.head_revision if record else 0)
            self.compare.append(Compare(key, "mod", "=", revision if record else 0))
            self.marked.append(key)
            if new is None:
                self._delete(key)
                continue
            head = replace(new.head, commit=self.batch.commit)
            is_same = record is not None and record.head.uid == head.uid
            self._put(key, head, head, keeps_unknown=is_same)

    def _versions(self, change: JobChange) -> None:
        if change.version:
            key = keys.version(change.key, change.version.version)
            self.compare.append(Compare(key, "version", "=", 0))
            self._put(key, change.version, change.version, keeps_unknown=False)
        for number in change.drop_versions:
            self._delete(keys.version(change.key, number))

    def _settings(self) -> None:
        """Where something is placed, the pools of namespaces were relied on."""
        key, reach = keys.SCHEDULING, self.batch.reach
        if reach.relies_on_settings:
            revision = self.batch.revision_of(key, self.before.settings_revision)
            self.compare.append(Compare(key, "mod", "=", revision))
        if not reach.settings:
            return
        self._put(key, self.after.settings, self.after.settings)
        self.marked.append(key)

    def _claims(self, changes: list[JobChange]) -> None:
        """One job may take what another gives up in the same transaction: one write each."""
        for claim in sorted({c for change in changes for c in change.claim | change.disclaim}):
            key = keys.claim(claim)
            old, new = self.before.claims.get(claim), self.after.claims.get(claim)
            if new is None:
                self._delete(key)
            elif new != old:
                free = Compare(key, "version", "=", 0)
                self.compare.append(Compare(key, "value", "=", _owner(old)) if old else free)
                self.then.append(Put(key, _owner(new)))
                self.written[key, _owner(new)] = new


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
