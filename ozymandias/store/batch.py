"""Plans that are committed together, and the one transaction they become.

Many changes that wait at the same time are decided one after the other, each on what the ones
before it will have made of the cluster, and are written as one transaction. It compares all that
any of them relied on, as it was in the snapshot before the first, and writes what is there after
the last. A single plan is a batch of one.

What must stay apart is kept apart: a job's head changes at most once per revision, so that every
change of a job can be told, waited for and traced. And a batch stays well below what etcd takes in
one transaction; a lone plan of any size is always let in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ozymandias.core.apply import apply, touched
from ozymandias.core.routes import Names, dns_records
from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Compare, Delete, Op, Put, Txn
from ozymandias.store import codec, keys
from ozymandias.store.names import delete_records

PLANS_MAX = 64
COMPARES_MAX = 96  # etcd takes 128 in one transaction, and operations need room beside them
EDITS_MAX = 2000
BYTES_MAX = 512 * 2**10  # etcd takes 1.5 MiB
_EDIT_BYTES = 200  # what one edit adds to assignments, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Plans made ready to send. ``marked`` are the keys whose values carry the commit's id."""

    compare: tuple[Compare, ...]
    then: tuple[Op, ...]
    marked: tuple[bytes, ...]


class Batch:
    """Plans decided in sequence: ``after`` is the cluster as they will have left it."""

    def __init__(self, snapshot: Snapshot, commit: str) -> None:
        self.before = snapshot
        self.after = snapshot
        self.commit = commit
        self.plans: list[Plan] = []
        self._compared: set[bytes] = set()
        self._bytes = 0

    def takes(self, plan: Plan) -> bool:
        """Whether the plan may be part of this transaction; the first one always may."""
        if not self.plans:
            return True
        changing = {keys.job(job) for job in _changing(plan)}
        return (
            len(self.plans) < PLANS_MAX
            and self._compared.isdisjoint(changing)
            and len(self._compared | _compared(plan)) <= COMPARES_MAX
            and sum(len(p.edits) for p in self.plans) + len(plan.edits) <= EDITS_MAX
            and self._bytes + _bytes(plan) <= BYTES_MAX
        )

    def add(self, plan: Plan) -> None:
        """AssertionError, and nothing added, when the plan breaks what must hold."""
        self.after = apply(self.after, plan, self.commit)
        self.plans.append(plan)
        self._compared |= _compared(plan)
        self._bytes += _bytes(plan)

    def transaction(self, fence: tuple[Compare, ...], names: Names) -> Transaction:
        """Everything the plans relied on as compares, everything they change as operations."""
        return _Writer(self.before, self.after, self.plans, fence, names).transaction(self.commit)


def _changing(plan: Plan) -> set[JobKey]:
    """Jobs whose head is compared and rewritten: those that change, gain a slot, or stop one.

    Whoever counts a job's live slots, to scale it, relies on the head for all of them. What a dead
    node held is no longer live by anybody's count.
    """
    found = {
        edit.job
        for edit in plan.edits
        if edit.before is None
        or (_is_live(edit.before) and not _is_live(edit.after) and edit.node not in plan.dead)
    }
    return found | ({plan.job.key} if plan.job else set())


def _is_live(state: SlotState | None) -> bool:
    return state is SlotState.RUNNING or state is SlotState.WAITING


def _gaining(plan: Plan) -> set[NodeName]:
    return {edit.node for edit in plan.edits if edit.before is None}


def _compared(plan: Plan) -> set[bytes]:
    """The keys that a plan's compares name."""
    nodes, _ = touched(plan)
    found = {keys.ledger(node) for node in nodes}
    found |= {keys.node(node) for node in _gaining(plan) | plan.dead}
    found |= {keys.job(job) for job in _changing(plan)}
    if plan.job:
        found |= {keys.claim(claim) for claim in plan.job.claim}
        if plan.job.version:
            found.add(keys.version(plan.job.key, plan.job.version.version))
    return found


def _bytes(plan: Plan) -> int:
    version = plan.job.version if plan.job else None
    return len(plan.edits) * _EDIT_BYTES + (len(codec.encode(version)) if version else 0)


# From plans to a transaction --------------------------------------------------------------------


class _Writer:
    """Compares come from the cluster before, values from the cluster after."""

    def __init__(
        self,
        before: Snapshot,
        after: Snapshot,
        plans: list[Plan],
        fence: tuple[Compare, ...],
        names: Names,
    ) -> None:
        self.before, self.after, self.plans, self.names = before, after, plans, names
        self.compare: list[Compare] = list(fence)
        self.then: list[Op] = []
        self.marked: list[bytes] = []
        self.fenced = {c.key for c in fence}

    def transaction(self, commit: str) -> Transaction:
        self._nodes()
        self._jobs(commit)
        changes = [plan.job for plan in self.plans if plan.job]
        for change in changes:
            self._versions(change)
        self._claims(changes)
        return Transaction(
            compare=tuple(self.compare), then=tuple(self.then), marked=tuple(self.marked)
        )

    def _nodes(self) -> None:
        found = [touched(plan) for plan in self.plans]
        for node in sorted({node for nodes, _ in found for node in nodes}):
            key = keys.ledger(node)
            revision = self.before.nodes[node].ledger_revision
            self.compare.append(Compare(key, "mod", "=", revision))
            ledger = self.after.nodes[node].ledger
            self.then.append(Put(key, codec.encode(ledger, self.before.unknown.get(key))))
            self.marked.append(key)
        for pair in sorted({pair for _, pairs in found for pair in pairs}):
            assignment = self.after.assignments.get(pair)
            key = keys.assignment(*pair)
            unknown = self.before.unknown.get(key)
            put = Put(key, codec.encode(assignment.groups, unknown)) if assignment else None
            self.then.append(put or Delete(key))
        for node in sorted({node for plan in self.plans for node in _gaining(plan)}):
            if keys.node(node) not in self.fenced:  # the fence compares our own record already
                epoch = self.before.nodes[node].presence_revision
                assert epoch, f"{node} gains an instance but is not there"
                self.compare.append(Compare(keys.node(node), "create", "=", epoch))
        for node in sorted({node for plan in self.plans for node in plan.dead}):
            self.compare.append(Compare(keys.node(node), "version", "=", 0))
            self.then.extend(_forget(self.before, node, self.names))

    def _jobs(self, commit: str) -> None:
        for job in sorted({job for plan in self.plans for job in _changing(plan)}):
            record, new = self.before.jobs.get(job), self.after.jobs.get(job)
            key = keys.job(job)
            if record is None and new is None:
                continue  # its slots are stopped because the head is gone, or can't be read
            self.compare.append(Compare(key, "mod", "=", record.head_revision if record else 0))
            head = replace(new.head, commit=commit) if new else None
            is_same = record is not None and head is not None and record.head.uid == head.uid
            unknown = self.before.unknown.get(key) if is_same else None
            self.then.append(Put(key, codec.encode(head, unknown)) if head else Delete(key))
            self.marked.append(key)

    def _versions(self, change: JobChange) -> None:
        if change.version:
            key = keys.version(change.key, change.version.version)
            self.compare.append(Compare(key, "version", "=", 0))
            self.then.append(Put(key, codec.encode(change.version)))
        self.then.extend(
            Delete(keys.version(change.key, number)) for number in change.drop_versions
        )

    def _claims(self, changes: list[JobChange]) -> None:
        """One job may take what another gives up in the same transaction: one write each."""
        for claim in sorted({c for change in changes for c in change.claim | change.disclaim}):
            key = keys.claim(claim)
            old, new = self.before.claims.get(claim), self.after.claims.get(claim)
            if new is None:
                self.then.append(Delete(key))
            elif new != old:
                free = Compare(key, "version", "=", 0)
                self.compare.append(Compare(key, "value", "=", _owner(old)) if old else free)
                self.then.append(Put(key, _owner(new)))


def _owner(job: JobKey) -> bytes:
    return codec.encode(f"{job.namespace}/{job.name}")


def _forget(snapshot: Snapshot, node: NodeName, names: Names) -> Iterator[Op]:
    """Delete a dead node's statuses and the names of its healthy instances."""
    prefix = keys.statuses(node)
    yield Delete(prefix, keys.prefix_end(prefix))
    for (name, job), status in sorted(snapshot.statuses.items()):
        record = snapshot.jobs.get(job)
        if name != node:
            continue
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
