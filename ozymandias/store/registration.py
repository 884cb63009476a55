"""The second half of the door: how a node joins, in one transaction.

Record absent, own ledger unchanged -> record, ledger, and an entry for each pod found here but not
assigned here: `running` where it is exactly what its job lacks (`core/reclaim.py`), `stopping`
otherwise. The heads of their jobs are compared, and rewritten as they are: a peer that places the
same instance elsewhere either comes first, and the pod is found to be one too many, or it loses.

While a node was absent nobody could give it anything, so what it still runs fits; counting what is
to stop keeps its room taken until the pods are really gone. Unless another machine had the name
meanwhile, and was given something that is not here: that waits where it does not fit beside them.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ozymandias.core.apply import merged, totals
from ozymandias.core.pods import pod_id
from ozymandias.core.reclaim import make_way, reclaim
from ozymandias.model.instance import Assignment, Group, Slots, SlotState
from ozymandias.model.job import JobKey, JobVersion
from ozymandias.model.node import Demand, Ledger, Node, NodeName, Presence, Resources
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Ambiguous, Compare, Get, Op, Put, Store, Unavailable
from ozymandias.store import codec, keys
from ozymandias.store.mirror import Mirror
from ozymandias.store.sending import Lost, send
from ozymandias.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a joining node brings."""

    node: NodeName
    presence: Presence
    capacity: Resources
    reserve: Resources
    labels: Mapping[str, str]
    found: tuple[PodId, ...]  # every pod that is really there
    running: frozenset[PodId] = frozenset()  # those of them that run and are left alone
    allows_host_network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A registration that was written, and the pods that go on though they had been given up."""

    revision: int
    reclaimed: frozenset[PodId]


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
) -> Registered | None:
    """None when something that it relied on had changed."""
    transaction, reclaimed = _prepare(mirror, offer, lease, commit)
    return await _send(store, transaction, reclaimed, commit)


async def recount(
    store: Store,
    mirror: Mirror,
    offer: Offer,
    lease: int,
    fence: tuple[Compare, ...],
    commit: str,
) -> Registered | None:
    """Do what a registration does, for a node that joined without knowing its pods."""
    transaction, reclaimed = _prepare(mirror, offer, lease, commit)
    _, *ledger = transaction.compare
    transaction = replace(transaction, compare=(*fence, *ledger))
    return await _send(store, transaction, reclaimed, commit)


async def _send(
    store: Store, transaction: Transaction, reclaimed: frozenset[PodId], commit: str
) -> Registered | None:
    outcome = await send(store, transaction, commit)
    if isinstance(outcome, Lost):
        return None
    return Registered(revision=outcome, reclaimed=reclaimed)


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
        machine=offer.presence.machine_id,
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


def _prepare(
    mirror: Mirror, offer: Offer, lease: int, commit: str
) -> tuple[Transaction, frozenset[PodId]]:
    demands = {pod: _demand(mirror.versions(pod.key), pod) for pod in offer.found}
    return prepare_registration(mirror.snapshot(), offer, demands, lease, commit)


def prepare_registration(
    snapshot: Snapshot, offer: Offer, demands: Mapping[PodId, Demand], lease: int, commit: str
) -> tuple[Transaction, frozenset[PodId]]:
    """What is to be written, and which pods are reclaimed by it."""
    assignments = dict(snapshot.on(offer.node))
    assigned = {pod_id(instance) for instance in snapshot.instances_on(offer.node)}
    strangers = sorted(set(offer.found) - assigned)
    joining = _joining(snapshot, offer, assignments.values(), lease, commit)
    reclaimed = reclaim(snapshot, joining, strangers, offer.running)
    entries = _entries(strangers, reclaimed, demands)
    for job, groups in entries.items():
        before = assignments[job].groups if job in assignments else ()
        assignments[job] = Assignment(node=offer.node, job=job, groups=merged((*before, *groups)))
    waiting = make_way(snapshot, joining, assignments, offer.found) if entries else {}
    assignments |= waiting
    then: list[Op] = []
    heads: list[Compare] = []
    for job in {**entries, **waiting}:
        key = keys.assignment(offer.node, job)
        then.append(Put(key, codec.encode(assignments[job].groups, snapshot.unknown.get(key))))
        if known := snapshot.jobs.get(job):
            # As it is: who places, scales or ends the job relies on its head for having seen all
            # that it has. But under our commit's id: who finds its own takes this for its write.
            key = keys.job(job)
            heads.append(Compare(key, "mod", "=", known.head_revision))
            head = replace(known.head, commit=commit)
            then.append(Put(key, codec.encode(head, snapshot.unknown.get(key))))
    ledger = _joining(snapshot, offer, assignments.values(), lease, commit).ledger
    record, ledger_key = keys.node(offer.node), keys.ledger(offer.node)
    then += [
        Put(ledger_key, codec.encode(ledger, snapshot.unknown.get(ledger_key))),
        Put(record, codec.encode(offer.presence), lease),
    ]
    compare = (
        Compare(record, "version", "=", 0),
        Compare(ledger_key, "mod", "=", joining.ledger_revision),
        *heads,
        # What goes on may be here by the pool of its namespace.
        *((Compare(keys.SCHEDULING, "mod", "=", snapshot.settings_revision),) if reclaimed else ()),
    )
    return Transaction(compare=compare, then=tuple(then), marked=(ledger_key,)), reclaimed


def _joining(
    snapshot: Snapshot, offer: Offer, assignments: Iterable[Assignment], lease: int, commit: str
) -> Node:
    """The node as it will have joined, if these are its assignments."""
    node = snapshot.nodes.get(offer.node)
    held, promised = totals(assignments)
    ledger = Ledger(
        capacity=offer.capacity,
        reserve=offer.reserve,
        labels=dict(offer.labels),
        allows_host_network=offer.allows_host_network,
        # What an operator has set stays set, whatever becomes of the machine.
        set_labels=dict(node.ledger.set_labels) if node else {},
        is_cordoned=node.ledger.is_cordoned if node else False,
        drain=node.ledger.drain if node else None,
        displaced=node.ledger.displaced if node else (),
        held=held,
        promised=promised,
        commit=commit,
        machine=offer.presence.machine_id,
        lease=lease,
    )
    revision = node.ledger_revision if node else 0
    return Node(name=offer.node, ledger=ledger, ledger_revision=revision, presence=offer.presence)


def _entries(
    strangers: Iterable[PodId], reclaimed: AbstractSet[PodId], demands: Mapping[PodId, Demand]
) -> dict[JobKey, list[Group]]:
    """Groups by job for pods that are here but not assigned here (any more)."""
    entries: dict[JobKey, list[Group]] = {}
    for pod in strangers:
        entries.setdefault(pod.key, []).append(
            Group(
                uid=pod.uid,
                version=pod.version,
                generation=pod.generation,
                state=SlotState.RUNNING if pod in reclaimed else SlotState.STOPPING,
                slots=Slots.of([pod.slot]),
                demand=demands[pod],
            )
        )
    return entries
