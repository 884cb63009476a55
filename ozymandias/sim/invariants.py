"""What must hold at every revision, checked from ground truth: the raw store, the real processes.

Nothing here asks a daemon what it thinks, and nothing depends on the simulator: chaos runs on real
hosts import the same functions, with a `Truth` fed from etcd and processes read from the host.
Each check returns sentences, one per violation, each with the invariant's name in front.

    S1  capacity   no node holds or is promised beyond what it has; ledgers equal their assignments
    S2  one place  no instance is running or waiting in two places; of a system job no node has two
    S3  fence      who writes anything holds its node's record, before and after; work is given to
                   nodes only that are there and not cordoned
    S6  whole      a new job is placed as a whole in the revision that creates it
    S9  names      a name stands beside a healthy status of the same slot at the same address, under
                   a lease; a node declared dead has neither
    S14 host       what really runs on a host never needs more memory than it may give
    S16 owners     one owner per host port; an ingress claim has a job
    S19 marks      what is compared by its bytes has others whenever it is written

What needs a memory of what came before (S4, S5, S7, S13) is in `sim/witness.py`, what must hold in
the end (L1-L6) in `sim/rest.py`, and what decisions are recorded with (S18) in `sim/recorded.py`.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ozymandias.core.apply import totals
from ozymandias.core.autoscale import steps_of
from ozymandias.model.instance import InstanceId, SlotState
from ozymandias.model.job import JobHead, JobKey, JobKind
from ozymandias.model.node import Ledger, NodeName
from ozymandias.ports import KV, Event
from ozymandias.sim.truth import LIVE, Change, Truth
from ozymandias.store import keys


def check_schedule(kvs: Mapping[bytes, KV]) -> list[str]:
    """Everything about promises, at one revision, from nothing but the keys."""
    truth = Truth.of(kvs)
    jobs = {job for own in truth.assignments.values() for job in own}
    return check_capacity(truth, truth.ledgers) + check_one_place(truth, jobs)


def check_capacity(
    truth: Truth, nodes: Iterable[NodeName], handed: AbstractSet[NodeName] = frozenset()
) -> list[str]:
    """``handed``: to other machines in this revision. What such a one finds on itself counts beside
    what still stops on the other, until it has said that it has none of that."""
    found = []
    for node in sorted(nodes):
        ledger = truth.ledgers.get(node)
        assignments = truth.assignments.get(node, {})
        if ledger is None:
            found += [f"S1 {node} has assignments and no ledger"] if assignments else []
            continue
        held, promised = totals(assignments.values())
        if (held, promised) != (ledger.held, ledger.promised):
            found.append(f"S1 {node}: the ledger's totals are not those of its assignments")
        for what, sums in (("holds", held), ("is promised", promised)):
            if what == "holds" and node in handed:
                continue
            if not sums.resources.fits_in(ledger.allocatable):
                found.append(f"S1 {node} {what} {sums.resources} of {ledger.allocatable}")
            ports = Counter(sums.host_ports)
            if ports and max(ports.values()) > 1:
                port, _ = ports.most_common(1)[0]
                found.append(f"S16 {node} {what} host port {port} twice")
    return found


def check_one_place(truth: Truth, jobs: Iterable[JobKey]) -> list[str]:
    wanted = set(jobs)
    places: dict[InstanceId, NodeName] = {}
    found = []
    for node, own in truth.assignments.items():
        for job in wanted & own.keys():
            for instance in own[job].instances:
                if instance.state not in LIVE:
                    continue
                if instance.instance in places:
                    others = f"{places[instance.instance]} and {node}"
                    found.append(f"S2 {instance.instance} is assigned to {others}")
                places[instance.instance] = node
    return found


def check_one_each(truth: Truth, jobs: Iterable[JobKey]) -> list[str]:
    """Of a system job a node has one, not even another that still stops beside it.

    What is left from before it became a system job, or from an older version, makes way in time.
    """
    found = []
    for job in sorted(jobs):
        head, spec = truth.heads.get(job), truth.spec(job)
        if head is None or spec is None or spec.kind is not JobKind.SYSTEM:
            continue
        live: Counter[NodeName] = Counter()
        running: set[NodeName] = set()
        stopping: set[NodeName] = set()
        for a in truth.assigned(job):
            if (a.uid, a.version) != (head.uid, head.version):
                continue
            if a.state is SlotState.STOPPING:
                stopping.add(a.node)
            else:
                live[a.node] += 1
                if a.state is SlotState.RUNNING:
                    running.add(a.node)
        found += [f"S2 {node} has {count} of {job}" for node, count in live.items() if count > 1]
        beside = sorted(running & stopping)
        found += [f"S2 {node} runs {job} beside one that still stops" for node in beside]
    return found


def _is_as_closed(before: Ledger, after: Ledger) -> bool:
    """Closed by the same word of an operator as before: not opened and closed again in between."""
    return (bool(before.drain), before.is_cordoned) == (bool(after.drain), after.is_cordoned)


def check_given(
    truth: Truth, change: Change, tended: AbstractSet[NodeName] = frozenset()
) -> list[str]:
    """Work is given to nodes that are there and take it; what belongs to nodes is always taken.

    One revision may hold a submit and the cordon that came right after it, or the end of a drain, a
    submit and a cordon. Where the last word is the first one again only ``tended`` tells: operators
    are asking about these nodes now.
    """
    found = []
    for node, job in sorted(change.given):
        if node not in truth.presences:
            found.append(f"S3 {job} was given to {node}, which is not there")
        ledger, spec = truth.ledgers.get(node), truth.spec(job)
        is_service = spec is not None and spec.kind is JobKind.SERVICE
        is_closed = (
            ledger is not None
            and not ledger.takes_work
            and node not in change.were_open | tended
            and _is_as_closed(change.ledgers.get(node, ledger), ledger)
        )
        if is_service and is_closed:
            found.append(f"S3 {job} was given to {node}, which is to get no new work")
    return found


def check_whole(truth: Truth, job: JobKey, before: JobHead | None) -> list[str]:
    """A new job, and one scaled up by somebody, is placed in the revision that says so."""
    after = truth.heads.get(job)
    if after is None or after.deleting:
        return []
    is_scaled_up = before is not None and (
        before.uid == after.uid and before.version == after.version and before.wanted < after.wanted
    )
    is_own_step = before is not None and steps_of(after) > steps_of(before)  # as far as it fits
    if before is not None and (not is_scaled_up or is_own_step):
        return []
    live = len(truth.live(job))
    return [f"S6 {job} wants {after.wanted} and has {live}"] if live < after.wanted else []


def check_names(truth: Truth, jobs: Iterable[JobKey]) -> list[str]:
    found = []
    for job in sorted(jobs):
        by_node = truth.statuses.get(job, {})
        healthy = {
            (slot, status.address)
            for statuses in by_node.values()
            for slot, status in statuses.items()
            if status.healthy
        }
        for key, kv in truth.names.get(job, {}).items():
            slot, address = key.rsplit(b"/", 1)[-1].decode(), address_of(kv.value)
            if not slot.isdigit() or (int(slot), address) not in healthy:
                found.append(f"S9 {key.decode()} names {address}, which no healthy status has")
            if not kv.lease:
                found.append(f"S9 {key.decode()} would outlive its node: it has no lease")
        for node in by_node:
            kv_status = truth.kvs.get(keys.status(node, job))
            if kv_status and not kv_status.lease:
                found.append(f"S9 the status of {job} on {node} has no lease")
    return found


@functools.lru_cache(1024)
def address_of(record: bytes) -> str | None:
    """What a name stands for; all of a job's are looked at whenever one changes."""
    found: str | None = json.loads(record).get("host")
    return found


def check_forgotten(truth: Truth, node: NodeName) -> list[str]:
    """A node was declared dead: its statuses went in the same revision."""
    left = [str(job) for job, by_node in truth.statuses.items() if node in by_node]
    return [f"S9 {node} was declared dead, and still tells of {', '.join(left)}"] if left else []


def check_claims(truth: Truth) -> list[str]:
    return [
        f"S16 {claim} is claimed by {job}, which does not exist"
        for claim, job in sorted(truth.claims.items())
        if job not in truth.heads and keys.job(job) not in truth.unreadable
    ]


def check_marks(truth: Truth, events: Sequence[Event]) -> list[str]:
    """Whoever rewrites a ledger, a head or the settings puts the id of a commit of its own there.

    A transaction that leaves before the one beneath is answered tells by these bytes that nobody
    has been there since. ``truth`` is as it was before.
    """
    found = []
    for key, value in ((e.kv.key, e.kv.value) for e in events if not e.deleted):
        if key.startswith((keys.LEDGERS, keys.JOBS)) or key == keys.SCHEDULING:
            before, mark = truth.kvs.get(key), value.partition(b'"commit":"')[2].partition(b'"')[0]
            if before and mark and mark in before.value:
                found.append(f"S19 {key.decode()} is rewritten under the id of the write before")
    return found


def check_processes(node: NodeName, memory_bytes: int, ledger: Ledger | None) -> list[str]:
    if ledger and memory_bytes > ledger.allocatable.memory_bytes:
        limit = ledger.allocatable.memory_bytes
        return [f"S14 {node} really runs {memory_bytes} of {limit} bytes"]
    return []


def check_fence(truth: Truth, node: NodeName, session: str, epoch: int = 0) -> list[str]:
    """Who has just written must hold its node's record.

    Or have held it: a write of a process that was followed by another on the same lease may
    arrive late (``epoch`` is the create revision of the record it held). It is the same node in
    the same stretch of membership, and whatever else it relied on is compared beside the fence.
    """
    presence, record = truth.presences.get(node), truth.kvs.get(keys.node(node))
    if presence and record and (presence.session == session or record.create_revision == epoch):
        return []
    return [f"S3 a daemon of {node} wrote without holding its record"]
