"""Whether a pod that a returning node is to stop could have gone on (S7).

By plain arithmetic on the raw store at the revision in which the node entered what it found, not
by the decision's own functions: what its job lacks is counted, what the node promises is summed.
"""

from collections import Counter

from ozymandias.core.pods import pod_id
from ozymandias.model.job import Job, JobHead, JobKind, NetworkMode
from ozymandias.model.node import Demand, Ledger, NodeName
from ozymandias.model.pod import PodId
from ozymandias.sim.rules import allows
from ozymandias.sim.truth import LIVE, Truth


def could_go_on(truth: Truth, pod: PodId) -> bool:
    """It is exactly what its job lacks, its slot is nowhere else, and its node may have it."""
    head, spec = truth.heads.get(pod.key), truth.spec(pod.key)
    ledger, presence = truth.ledgers.get(pod.node), truth.presences.get(pod.node)
    if head is None or spec is None or ledger is None or head.deleting:
        return False
    if presence is not None and not presence.schedules:
        return False  # it sees its own part alone, and can't know what its job lacks
    if (pod.uid, pod.version, pod.generation) != (head.uid, head.version, head.restart):
        return False
    others = [a for a in truth.assigned(pod.key) if pod_id(a) != pod]
    if any(a.slot == pod.slot for a in others):
        return False
    there = Counter(a.node for a in others if a.state in LIVE)
    if not _lacks(head, spec, pod.node, there) or _is_outranked(truth, spec, pod.node):
        return False
    return allows(truth, pod.node, spec, there) and _has_room(ledger, spec)


def _is_outranked(truth: Truth, spec: Job, node: NodeName) -> bool:
    """Whether something that comes first lacks instances: then the room may be for that."""
    if spec.kind is not JobKind.SERVICE:
        return False
    for job, head in truth.heads.items():
        other = truth.spec(job)
        if other is None or head.deleting:
            continue
        live = truth.live(job)
        if other.kind is JobKind.SYSTEM and node not in live.values():
            return True
        if other.priority > spec.priority and len(live) < head.wanted:
            return True
    return False


def _lacks(head: JobHead, spec: Job, node: NodeName, there: Counter[NodeName]) -> bool:
    if spec.kind is JobKind.SYSTEM:
        return not there[node]
    return there.total() < head.wanted


def _has_room(ledger: Ledger, spec: Job) -> bool:
    """What it needs is held by it already; it must fit among what is promised."""
    if ledger.drain or (ledger.is_cordoned and spec.kind is JobKind.SERVICE):
        return False
    if spec.network is NetworkMode.HOST and not ledger.allows_host_network:
        return False
    demand, promised = Demand.of(spec), ledger.promised
    both = promised.resources + demand.resources
    is_free = set(demand.host_ports).isdisjoint(promised.host_ports)
    return both.fits_in(ledger.allocatable) and is_free
