"""The second half of the door: how a node joins, in one transaction.

Record absent, own ledger unchanged -> record, ledger, and a `stopping` entry for each pod found
running but not assigned here; the head of its job is rewritten as it is. While a node was absent
nobody could give it anything, so what it still runs fits; counting it as stopping keeps its room
taken until the pods are really gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ozymandias.core.apply import merged, totals
from ozymandias.core.pods import pod_id
from ozymandias.model.instance import Assignment, Group, Slots, SlotState
from ozymandias.model.job import JobKey, JobVersion
from ozymandias.model.node import Demand, Ledger, NodeName, Presence, Resources
from ozymandias.model.pod import PodId
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Ambiguous, Compare, Get, Op, Put, Store, Unavailable
from ozymandias.store import codec, keys
from ozymandias.store.batch import Transaction
from ozymandias.store.commit import Lost, send
from ozymandias.store.mirror import Mirror


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a joining node brings."""

    node: NodeName
    presence: Presence
    capacity: Resources
    reserve: Resources
    labels: Mapping[str, str]
    found: tuple[PodId, ...]  # every pod that is really there
    allows_host_network: bool = False


async def ensure_format(store: Store, cluster: str) -> codec.Format:
    """The cluster's format record, written once by whoever comes first."""
    new = codec.Format(version=codec.FORMAT_VERSION, cluster=cluster)
    try:
        result = await store.txn(
            [Compare(keys.FORMAT, "version", "=", 0)],
            [Put(keys.FORMAT, codec.encode(new))],
            [Get(keys.FORMAT)],
        )
    except Ambiguous as error:
        raise Unavailable(str(error)) from error  # asking again is safe
    if result.succeeded:
        return new
    found = codec.decode(codec.Format, result.results[0][0].value)
    if found.version > codec.FORMAT_VERSION:
        raise Unavailable(f"the store has format {found.version}, newer than this daemon's")
    return found


async def register(
    store: Store, mirror: Mirror, offer: Offer, lease: int, commit: str
) -> int | None:
    """The revision of the registration, or None when something it relied on had changed."""
    demands = {pod: _demand(mirror.versions(pod.key), pod) for pod in offer.found}
    transaction = prepare_registration(mirror.snapshot(), offer, demands, lease, commit)
    outcome = await send(store, transaction, commit)
    return None if isinstance(outcome, Lost) else outcome


async def recount(
    store: Store,
    mirror: Mirror,
    offer: Offer,
    lease: int,
    fence: tuple[Compare, ...],
    commit: str,
) -> int | None:
    """Do what a registration does, for a node that joined without knowing its pods."""
    demands = {pod: _demand(mirror.versions(pod.key), pod) for pod in offer.found}
    snapshot = mirror.snapshot()
    transaction = prepare_registration(snapshot, offer, demands, lease, commit)
    _, *ledger = transaction.compare
    transaction = replace(transaction, compare=(*fence, *ledger))
    outcome = await send(store, transaction, commit)
    return None if isinstance(outcome, Lost) else outcome


async def renew_offer(
    store: Store, mirror: Mirror, offer: Offer, fence: tuple[Compare, ...], commit: str
) -> int | None:
    """Write what the node offers now into its ledger, if that has changed; None: a race was lost.

    A restart of the daemon is when a changed configuration takes effect.
    """
    snapshot = mirror.snapshot()
    node = snapshot.nodes.get(offer.node)
    if node is None:
        return snapshot.revision  # a ledger that can't be read is not ours to overwrite
    ledger = replace(
        node.ledger,
        capacity=offer.capacity,
        reserve=offer.reserve,
        labels=dict(offer.labels),
        allows_host_network=offer.allows_host_network,
    )
    if ledger == node.ledger:
        return snapshot.revision
    key = keys.ledger(offer.node)
    transaction = Transaction(
        compare=(*fence, Compare(key, "mod", "=", node.ledger_revision)),
        then=(Put(key, codec.encode(replace(ledger, commit=commit), snapshot.unknown.get(key))),),
        marked=(key,),
    )
    outcome = await send(store, transaction, commit)
    return None if isinstance(outcome, Lost) else outcome


def _demand(versions: tuple[JobVersion, ...], pod: PodId) -> Demand:
    """What a pod takes, by the version it was made from; versions outlive their job."""
    for version in versions:
        if (version.version, version.uid) == (pod.version, pod.uid):
            return Demand.of(version.job)
    return Demand()


def prepare_registration(
    snapshot: Snapshot, offer: Offer, demands: Mapping[PodId, Demand], lease: int, commit: str
) -> Transaction:
    node = snapshot.nodes.get(offer.node)
    assignments = {
        job: assignment
        for (name, job), assignment in snapshot.assignments.items()
        if name == offer.node
    }
    then: list[Op] = []
    heads: list[Compare] = []
    for job, groups in _strangers(snapshot, offer, demands).items():
        before = assignments[job].groups if job in assignments else ()
        found = Assignment(node=offer.node, job=job, groups=merged((*before, *groups)))
        assignments[job] = found
        key = keys.assignment(offer.node, job)
        then.append(Put(key, codec.encode(found.groups, snapshot.unknown.get(key))))
        if known := snapshot.jobs.get(job):
            # As it is: who ends a stopped job relies on its head for having seen all it has.
            key = keys.job(job)
            heads.append(Compare(key, "mod", "=", known.head_revision))
            then.append(Put(key, codec.encode(known.head, snapshot.unknown.get(key))))
    held, promised = totals(assignments.values())
    ledger = Ledger(
        capacity=offer.capacity,
        reserve=offer.reserve,
        labels=dict(offer.labels),
        allows_host_network=offer.allows_host_network,
        # What an operator has set stays set, whatever becomes of the machine.
        set_labels=dict(node.ledger.set_labels) if node else {},
        is_cordoned=node.ledger.is_cordoned if node else False,
        drain=node.ledger.drain if node else None,
        held=held,
        promised=promised,
        commit=commit,
    )
    record, ledger_key = keys.node(offer.node), keys.ledger(offer.node)
    then += [
        Put(ledger_key, codec.encode(ledger, snapshot.unknown.get(ledger_key))),
        Put(record, codec.encode(offer.presence), lease),
    ]
    compare = (
        Compare(record, "version", "=", 0),
        Compare(ledger_key, "mod", "=", node.ledger_revision if node else 0),
        *heads,
    )
    return Transaction(compare=compare, then=tuple(then), marked=(ledger_key,))


def _strangers(
    snapshot: Snapshot, offer: Offer, demands: Mapping[PodId, Demand]
) -> dict[JobKey, list[Group]]:
    """Pods that are there but not assigned here (any more), as stopping groups by job."""
    assigned = {pod_id(instance) for instance in snapshot.instances_on(offer.node)}
    strangers: dict[JobKey, list[Group]] = {}
    for pod in sorted(set(offer.found) - assigned):
        strangers.setdefault(pod.key, []).append(
            Group(
                uid=pod.uid,
                version=pod.version,
                generation=pod.generation,
                state=SlotState.STOPPING,
                slots=Slots.of([pod.slot]),
                demand=demands[pod],
            )
        )
    return strangers
