"""What must hold, checked from ground truth: the raw store and the real (simulated) processes.

Safety is looked at after every revision of the store. Nothing here asks a daemon what it thinks.
Each check returns sentences, one per violation; an empty list means that all is well.

    capacity       no node is promised beyond what it has; ledger totals equal their assignments
    one place      no instance is running or waiting in two places
    names          a DNS record belongs to an instance whose status says healthy at that address
    processes      what really runs on a host never needs more memory than the host may give
    no zombie      a daemon whose record is gone changes no schedule
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from ozymandias.core.apply import LIVE, totals
from ozymandias.model.instance import Assignment, InstanceId, instances_of
from ozymandias.model.job import JobKey
from ozymandias.model.node import Ledger, NodeName
from ozymandias.ports import KV, Event
from ozymandias.store import codec, keys

Assignments = Mapping[tuple[NodeName, JobKey], Assignment]


def read_ledgers(kvs: Mapping[bytes, KV]) -> dict[NodeName, Ledger]:
    return {
        NodeName(key[len(keys.LEDGERS) :].decode()): codec.decode(Ledger, kv.value)
        for key, kv in kvs.items()
        if key.startswith(keys.LEDGERS)
    }


def read_assignments(kvs: Mapping[bytes, KV]) -> dict[tuple[NodeName, JobKey], Assignment]:
    found = {}
    for key, kv in kvs.items():
        if key.startswith(keys.ASSIGNMENTS):
            node, namespace, name = keys.parts(key, keys.ASSIGNMENTS)
            job = keys.job_key(namespace, name)
            found[NodeName(node), job] = Assignment(
                node=NodeName(node), job=job, groups=codec.decode_groups(kv.value)
            )
    return found


def is_schedule(events: Iterable[Event]) -> bool:
    """Whether a revision changed what is promised to whom."""
    return any(e.kv.key.startswith((keys.ASSIGNMENTS, keys.LEDGERS, keys.JOBS)) for e in events)


def check_capacity(ledgers: Mapping[NodeName, Ledger], assignments: Assignments) -> list[str]:
    violations = []
    for node, ledger in ledgers.items():
        held, promised = totals(a for (name, _), a in assignments.items() if name == node)
        if (held, promised) != (ledger.held, ledger.promised):
            violations.append(f"{node}: the ledger's totals are not those of its assignments")
        for what, sums in (("holds", held), ("is promised", promised)):
            if not sums.resources.fits_in(ledger.allocatable):
                violations.append(f"{node} {what} {sums.resources} of {ledger.allocatable}")
            ports = Counter(sums.host_ports)
            if ports and max(ports.values()) > 1:
                violations.append(f"{node} {what} a host port twice: {ports.most_common(1)}")
    return violations


def check_one_place(assignments: Assignments) -> list[str]:
    places: dict[InstanceId, NodeName] = {}
    violations = []
    for assignment in assignments.values():
        for instance in instances_of(assignment):
            if instance.state in LIVE:
                if instance.instance in places:
                    others = f"{places[instance.instance]} and {instance.node}"
                    violations.append(f"{instance.instance} is assigned to {others}")
                places[instance.instance] = instance.node
    return violations


def check_schedule(kvs: Mapping[bytes, KV]) -> list[str]:
    """Everything about promises, at one revision."""
    assignments = read_assignments(kvs)
    return check_capacity(read_ledgers(kvs), assignments) + check_one_place(assignments)


def check_names(kvs: Mapping[bytes, KV]) -> list[str]:
    """Every DNS record stands beside a status that says healthy, at the same address."""
    healthy = {
        status.address
        for key, kv in kvs.items()
        if key.startswith(keys.STATUS)
        for status in codec.decode_statuses(kv.value).values()
        if status.healthy
    }
    return [
        f"{key.decode()} names {kv.value.decode()}, which no healthy status has"
        for key, kv in kvs.items()
        if key.startswith(keys.SKYDNS)
        and not any(f'"{address}"'.encode() in kv.value for address in healthy)
    ]


def check_processes(node: NodeName, memory_bytes: int, ledger: Ledger | None) -> list[str]:
    """What really runs never exceeds what the host may give."""
    if ledger and memory_bytes > ledger.allocatable.memory_bytes:
        return [f"{node} really runs {memory_bytes} of {ledger.allocatable.memory_bytes} bytes"]
    return []


def check_zombie(kvs: Mapping[bytes, KV], node: NodeName, session: str) -> list[str]:
    """Who has just changed a schedule must hold its node's record."""
    record = kvs.get(keys.node(node))
    if record is None or f'"{session}"'.encode() not in record.value:
        return [f"a daemon of {node} changed a schedule without holding its record"]
    return []
