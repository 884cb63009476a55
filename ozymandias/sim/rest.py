"""What must be so once a cluster has come to rest: liveness, from ground truth (L2, L3, L5, L6).

Only the nodes of the core are asked for: those that work. What is wanted and fits there runs there
and is healthy, named and told of; nothing else runs; nothing waits that could go on. Placement is
judged by plain arithmetic on the ledgers, not by the scheduler's own functions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import ceil, inf

from ozymandias.core.arbiter import Leisure, Proposal, propose
from ozymandias.core.moves import is_moving
from ozymandias.core.preempt import Lately
from ozymandias.core.routes import claims_of
from ozymandias.model.instance import Assigned, InstanceId, SlotState
from ozymandias.model.job import Job, JobHead, JobKey, JobKind, OnPartition
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Listing
from ozymandias.sim.invariants import address_of
from ozymandias.sim.rules import allows
from ozymandias.sim.truth import LIVE, Truth
from ozymandias.store import keys
from ozymandias.store.mirror import Mirror

UNHURRIED = Leisure(steady_seconds=0.0)  # what would be moved, sooner or later
LONG_AGO = Lately(wall=inf)  # whoever is spared for having been displaced is so for a minute only
Pods = Mapping[NodeName, AbstractSet[PodId]]  # that run on each host; also those half made


def differences(truth: Truth, pods: Pods, core: AbstractSet[NodeName]) -> list[str]:
    """Everything that is not as it should be at rest, in words."""
    found: list[str] = []
    for node, own in sorted(truth.assignments.items()):
        if own and node not in truth.presences:
            found.append(f"{node} is gone and still holds {', '.join(map(str, sorted(own)))}")
    broken = {
        a.job for a in truth.assigned() if a.node not in core
    }  # jobs that wait for a node which never comes back
    for job, head in sorted(truth.heads.items()):
        found += _job(truth, job, head, job in broken)
    found += placeable(truth, core)
    found += undrained(truth, core)
    found += [
        f"{node} is still under {load.taint}"
        for node, load in sorted(truth.loads.items())
        if node in core and load.taint
    ]
    held = {
        a.instance for a in truth.assigned() if a.node not in core and a.state is SlotState.STOPPING
    }  # their successors wait for nodes that never say whether they are gone
    for assigned in truth.assigned():
        if assigned.node in core and not (
            assigned.state is SlotState.WAITING and assigned.instance in held
        ):
            found += _instance(truth, assigned)
    found += _hosts(truth, pods, core)
    return found + _strays(truth, core)


def still_to_do(snapshot: Snapshot, wall: float) -> Proposal | None:
    """What the scheduler would do of its own accord, now or once it has waited for long enough."""
    return propose(snapshot, frozenset(), wall, lately=LONG_AGO, leisure=UNHURRIED)


def _job(truth: Truth, job: JobKey, head: JobHead, is_broken: bool) -> list[str]:
    if is_broken:
        return []
    found = []
    instances = list(truth.assigned(job))
    live = [a for a in instances if a.state in LIVE]
    if head.deleting:
        found.append(f"{job} is still there though it was stopped")
    spec = truth.spec(job)
    is_system = spec is not None and spec.kind is JobKind.SYSTEM
    wanted = len(homes(truth, spec) | _not_empty(truth)) if spec and is_system else head.wanted
    if len(live) > wanted:
        found.append(f"{job} has {len(live)} instances of {wanted}")
    old = [a for a in live if not is_current(a, head)]
    if old and spec and not head.deleting and could_replace(truth, old, spec):
        found.append(f"{job} has {len(old)} outdated instances that could be replaced")
    version = truth.versions.get((job, head.version))
    claims = claims_of(version.job, "localhost") if version and not head.deleting else ()
    missing = [claim for claim in sorted(claims) if truth.claims.get(claim) != job]
    return found + [f"{job} does not own {claim}" for claim in missing]


def is_current(instance: Assigned | PodId, head: JobHead) -> bool:
    return (instance.uid, instance.version, instance.generation) == (
        head.uid,
        head.version,
        head.restart,
    )


def being_moved(truth: Truth) -> list[str]:
    """Moves under way: each of them ends, one way or the other."""
    heads = sorted(truth.heads.items())
    return [f"{job} is still being moved" for job, head in heads if is_moving(head)]


def placeable(truth: Truth, core: AbstractSet[NodeName]) -> list[str]:
    """Instances that are wanted, are nowhere, and would fit on a node that takes work (L3)."""
    found = []
    for job, head in sorted(truth.heads.items()):
        spec = truth.spec(job)
        if head.deleting or spec is None:
            continue
        there = Counter(truth.live(job).values())
        if spec.kind is JobKind.SYSTEM:
            here = {a.node for a in truth.assigned(job)}  # one that still stops is one
            found += [
                f"{job} is not on {node}, where it would fit"
                for node in sorted(homes(truth, spec) & core - here)
                if not truth.presences[node].degraded and fits(truth, node, Demand.of(spec))
            ]
            continue
        missing = head.wanted - there.total()
        if missing > 0:
            for node in sorted(core):
                if may_have(truth, node, spec, there) and fits_beside(truth, node, Demand.of(spec)):
                    found.append(f"{missing} of {job} are nowhere, and one would fit on {node}")
                    break
    return found


def undrained(truth: Truth, core: AbstractSet[NodeName]) -> list[str]:
    """Instances on nodes that are drained and that could move to one that takes work.

    What is being replaced anyway is left to that, and volumes that are kept keep their instance;
    what must stop first may be needed too much. Rules are asked with those that stay: where too few
    of them are at home, a burst's nodes are not for what leaves.
    """
    found = []
    for job, head in sorted(truth.heads.items()):
        spec = truth.spec(job)
        if head.deleting or spec is None or spec.kind is JobKind.SYSTEM:
            continue
        live = [a for a in truth.assigned(job) if a.state in LIVE]
        left = [a for a in live if a.node in core and is_drained(truth, a.node)]
        is_kept = any(volume.keep for c in spec.containers for volume in c.volumes)
        if not left or is_kept or not all(is_current(a, head) for a in live):
            continue
        if spec.on_partition is OnPartition.STOP:
            healthy = sum(instance.job == job for instance in truth.healthy())
            is_under_way = any(a.state is SlotState.WAITING for a in live)  # one at a time
            if is_under_way or healthy - 1 < floor_of(spec, head.wanted):
                continue
        healthy_now = truth.healthy()
        if any(a not in left and a.instance not in healthy_now for a in live):
            continue  # nobody leaves before the others serve, and these never will
        there = Counter(a.node for a in live if not is_drained(truth, a.node))
        free = [
            node
            for node in sorted(core)
            if may_have(truth, node, spec, there) and fits(truth, node, Demand.of(spec))
        ]
        found += [f"{a.instance} could leave {a.node} for {free[0]}" for a in left if free]
    return found


def is_drained(truth: Truth, node: NodeName) -> bool:
    ledger = truth.ledgers.get(node)
    return ledger is not None and ledger.drain is not None


def takes_work(truth: Truth, node: NodeName) -> bool:
    presence, ledger = truth.presences.get(node), truth.ledgers.get(node)
    if presence is None or ledger is None:
        return False
    load = truth.loads.get(node)
    return not presence.degraded and ledger.takes_work and not (load and load.taint)


def may_have(truth: Truth, node: NodeName, spec: Job, there: Counter[NodeName]) -> bool:
    """Whether a node takes work and the rules allow one more of a job on it."""
    return takes_work(truth, node) and allows(truth, node, spec, there)


def homes(truth: Truth, spec: Job) -> set[NodeName]:
    """The nodes that a system job is for."""
    return {
        node
        for node in truth.presences
        if node in truth.ledgers
        and not truth.ledgers[node].drain
        and allows(truth, node, spec, Counter())
    }


def _not_empty(truth: Truth) -> set[NodeName]:
    """Nodes that are drained and not yet rid of other jobs: what belongs to nodes goes last."""
    return {
        node
        for node, own in truth.assignments.items()
        if node in truth.ledgers
        and truth.ledgers[node].drain
        and any((spec := truth.spec(job)) is None or spec.kind is not JobKind.SYSTEM for job in own)
    }


def fits_beside(truth: Truth, node: NodeName, demand: Demand, given: Iterable[Demand] = ()) -> bool:
    """The same, where the room of system jobs is kept: their last one there still stops."""
    due: list[tuple[int, JobKey, Demand]] = []
    for job, head in truth.heads.items():
        spec = truth.spec(job)
        if spec is None or spec.kind is not JobKind.SYSTEM or head.deleting:
            continue
        here = [a for a in truth.assigned(job) if a.node == node]
        if here and all(a.state is SlotState.STOPPING for a in here) and node in homes(truth, spec):
            due.append((-spec.priority, job, Demand.of(spec)))
    return fits(truth, node, demand, given, [kept for _, _, kept in sorted(due)])


def fits(
    truth: Truth,
    node: NodeName,
    demand: Demand,
    given: Iterable[Demand] = (),
    kept: Iterable[Demand] = (),
) -> bool:
    """Whether one more fits, beside what the node holds and promises, less what is given up.

    What is ``kept`` is as good as promised, as far as it would fit itself.
    """
    ledger = truth.ledgers[node]
    gone = list(given)
    promised, taken = ledger.promised.resources, {*ledger.promised.host_ports}
    for one in kept:
        if (promised + one.resources).fits_in(ledger.allocatable) and taken.isdisjoint(
            one.host_ports
        ):
            promised, taken = promised + one.resources, taken.union(one.host_ports)
    memory = max(ledger.held.resources.memory_bytes, promised.memory_bytes)
    disk = max(ledger.held.resources.disk_bytes, promised.disk_bytes)
    cpu = max(ledger.held.resources.cpu_millis, promised.cpu_millis)
    ports = {*ledger.held.host_ports, *taken}
    ports -= {port for other in gone for port in other.host_ports}
    limit = ledger.allocatable
    return (
        memory - sum(d.memory_bytes for d in gone) + demand.memory_bytes <= limit.memory_bytes
        and disk - sum(d.disk_bytes for d in gone) + demand.disk_bytes <= limit.disk_bytes
        and (
            not limit.cpu_millis
            or cpu - sum(d.cpu_millis for d in gone) + demand.cpu_millis <= limit.cpu_millis
        )
        and ports.isdisjoint(demand.host_ports)
    )


def floor_of(spec: Job, wanted: int) -> int:
    """How many must stay healthy; a percentage is rounded up. Not asked of system jobs."""
    return max(min(spec.min_available, wanted), ceil(wanted * spec.min_available_percent / 100))


def could_replace(truth: Truth, old: Iterable[Assigned], spec: Job) -> bool:
    """Where a job needs many of its instances, nothing may be stopped to make way: not judged.

    What must never run twice is replaced one for one: several do not make way for a larger one.
    """
    if floor_of(spec, 1):
        return False
    is_system = spec.kind is JobKind.SYSTEM
    by_node: dict[NodeName, list[Demand]] = {}
    for assigned in old:
        by_node.setdefault(assigned.node, []).append(assigned.demand)
    head = truth.heads[spec.key]
    new = Counter(
        a.node for a in truth.assigned(spec.key) if a.state in LIVE and is_current(a, head)
    )
    return any(
        (node in homes(truth, spec) if is_system else takes_work(truth, node))
        and allows(truth, node, spec, new)
        and any(fits(truth, node, Demand.of(spec), gone) for gone in _going(spec, given))
        for node, given in by_node.items()
    )


def _going(spec: Job, old: list[Demand]) -> list[list[Demand]]:
    """What may leave a node at once for a new instance."""
    return [[one] for one in old] if spec.on_partition is OnPartition.STOP else [old]


def _instance(truth: Truth, assigned: Assigned) -> list[str]:
    name, node = assigned.instance, assigned.node
    if assigned.state is not SlotState.RUNNING:
        return [f"{name} is still {assigned.state} on {node}"]
    status = truth.statuses.get(assigned.job, {}).get(node, {}).get(assigned.slot)
    if status is None or not status.healthy:
        why = f"{status.state}: {status.reason}" if status else "no status"
        return [f"{name} is not healthy on {node} ({why})"]
    version = truth.versions.get((assigned.job, assigned.version))
    if version is None or not any(c.ports for c in version.job.containers):
        return []
    records = truth.names.get(assigned.job, {})
    slot = b"/" + str(assigned.slot).encode()
    named = {
        address_of(kv.value)
        for key, kv in records.items()
        if key.endswith(slot) and b"/_tcp/" not in key
    }
    return [] if status.address in named else [f"{name} is healthy and has no name"]


def _hosts(truth: Truth, pods: Pods, core: AbstractSet[NodeName]) -> list[str]:
    wanted = {
        (node, pod)
        for node in core
        for pod, state in truth.pods_of(node).items()
        if state is SlotState.RUNNING
    }
    really = {(node, pod) for node in core for pod in pods.get(node, ())}
    found = [f"{pod.name} is not there" for _, pod in sorted(wanted - really)]
    return found + [f"{pod.name} should not be there (L6)" for _, pod in sorted(really - wanted)]


def _strays(truth: Truth, core: AbstractSet[NodeName]) -> list[str]:
    """Statuses of what is not assigned (L6)."""
    assigned = {(a.node, a.instance) for a in truth.assigned()}
    return [
        f"{InstanceId(job, slot)} is told of by {node} and not assigned there (L6)"
        for job, by_node in sorted(truth.statuses.items())
        for node, statuses in sorted(by_node.items())
        for slot in statuses
        if node in core and (node, InstanceId(job, slot)) not in assigned
    ]


def check_mirror(mirror: Mirror, listing: Listing, node: NodeName | None = None) -> list[str]:
    """A daemon's copy is the store at the copy's revision (S12), or the part of a ``node``."""
    fresh = Mirror(None)  # type: ignore[arg-type]
    for kv in listing.kvs:
        if kv.key.startswith(keys.ROOT):
            fresh._apply(kv, deleted=False)
    fresh._publish(listing.revision)
    one, other = mirror.snapshot(), fresh.snapshot()
    if node is not None:
        return _check_part(one, other, node)
    return [
        f"S12 a mirror's {part} at revision {listing.revision} are not the store's"
        for part in ("nodes", "jobs", "assignments", "statuses", "claims")
        if getattr(one, part) != getattr(other, part)
    ]


def _check_part(one: Snapshot, other: Snapshot, node: NodeName) -> list[str]:
    """What a daemon that does not schedule knows: its own node, and what is assigned there."""
    found = dict(one.assignments)
    wanted = {pair: entry for pair, entry in other.assignments.items() if pair[0] == node}
    # A load is a hint, and its change wakes nobody who does not schedule.
    mine, known = (
        {name: replace(entry, load=None) for name, entry in snapshot.nodes.items() if name == node}
        for snapshot in (other, one)
    )
    return [
        f"S12 {node}'s own {part} at revision {one.revision} are not the store's"
        for part, is_right in (
            ("record", known == mine and len(one.nodes) <= 1),
            ("assignments", found == wanted),
        )
        if not is_right
    ]
