"""Healthy instances -> the routes of the ingress and the records of DNS.

Everything that names an instance to the outside is derived here, and only here: the hosts a job
answers for, the claims that keep two jobs from answering for the same one, the table the ingress
serves, and the DNS records a node writes beside its statuses. It must not know how traffic is
moved or how records are stored.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ozymandias.model.instance import Assigned, Assignment, SlotState
from ozymandias.model.job import DEFAULT_NAMESPACE, Job, JobKey, JobRecord, Protocol
from ozymandias.model.routing import DnsRecord, Route, RouteTable, Upstream
from ozymandias.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The two domains under which a cluster's jobs are found."""

    domain: str = "ozy.internal"  # of instances, in DNS
    ingress_domain: str = "localhost"  # of default hosts at the ingress


def default_hosts(key: JobKey, ingress_domain: str) -> tuple[str, ...]:
    """The hosts of a job that names none; the short one is for namespace default alone."""
    full = f"{key.name}.{key.namespace}.{ingress_domain}"
    if key.namespace == DEFAULT_NAMESPACE:
        return (f"{key.name}.{ingress_domain}", full)
    return (full,)


def hosts_of(job: Job, ingress_domain: str) -> tuple[tuple[str, str, int], ...]:
    """Every (host, path, port of the pod) that a job answers for, in the order it names them."""
    if job.ingress is None:
        port = _first_tcp_port(job)
        if port is None:
            return ()
        return tuple((host, "/", port) for host in default_hosts(job.key, ingress_domain))
    defaults = default_hosts(job.key, ingress_domain)
    found: dict[tuple[str, str], int] = {}
    for rule in job.ingress:
        path = "/" + rule.path.strip("/")
        for host in (rule.host.lower(),) if rule.host else defaults:
            found.setdefault((host, path), rule.port)
    return tuple((host, path, port) for (host, path), port in found.items())


def claims_of(job: Job, ingress_domain: str) -> frozenset[str]:
    """What the job must own at the ingress: ``host/path``, e.g. ``web.localhost/``."""
    return frozenset(host + path for host, path, _ in hosts_of(job, ingress_domain))


def route_table(snapshot: Snapshot, names: Names) -> RouteTable:
    """Routes of every job that is not being deleted, also of those without a healthy instance.

    The current version says which hosts and paths there are; an instance of another version is
    reached at the port which its own version names for that host and path. A host and path claimed
    by another job is left out, so that at no revision two jobs answer for it.
    """
    healthy = _healthy(snapshot)
    hosts: dict[str, list[Route]] = defaultdict(list)
    for key, record in sorted(snapshot.jobs.items()):
        for route in routes_of(record, healthy.get(key, ()), snapshot.claims, names):
            hosts[route.host].append(route)
    return RouteTable(hosts={host: in_order(routes) for host, routes in sorted(hosts.items())})


def routes_of(
    record: JobRecord,
    healthy: Iterable[tuple[Assigned, str]],
    claims: Mapping[str, JobKey],
    names: Names,
) -> tuple[Route, ...]:
    """The routes of one job, given its instances that may get traffic and their addresses."""
    current = record.current
    if record.head.deleting or current is None:
        return ()
    key = current.job.key
    routes = []
    for host, path, port in hosts_of(current.job, names.ingress_domain):
        if claims.get(host + path, key) != key:
            continue
        found = (
            Upstream(address=address, port=reached, instance=str(assigned.instance))
            for assigned, address in healthy
            if (reached := _port_of(record, assigned, host, path, port, names))
        )
        routes.append(Route(host=host, path=path, job=key, upstreams=tuple(sorted(found))))
    return tuple(routes)


def in_order(routes: Iterable[Route]) -> tuple[Route, ...]:
    """The routes of one host, longest path first; of two for one path the first counts."""
    by_path: dict[str, Route] = {}
    for route in routes:
        by_path.setdefault(route.path, route)
    return tuple(sorted(by_path.values(), key=lambda r: (-len(r.path), r.path)))


def dns_records(job: Job, slot: int, address: str, names: Names) -> tuple[DnsRecord, ...]:
    """One address record of a healthy instance, and a service record for each port of its pod.

    All of a job's addresses are found under ``<job>.<namespace>.<domain>``, all of a port's under
    ``_<port>._tcp.<job>.<namespace>.<domain>``: the slot is the label that tells them apart.
    """
    base = f"{job.name}.{job.namespace}.{names.domain}"
    ports = {(port.pod, port.protocol) for c in job.containers for port in c.ports}
    return (
        DnsRecord(name=f"{slot}.{base}", address=address),
        *(
            DnsRecord(name=f"{slot}._{port}._{protocol}.{base}", address=address, port=port)
            for port, protocol in sorted(ports)
        ),
    )


def _first_tcp_port(job: Job) -> int | None:
    return next(_pod_ports(job), None)


def _healthy(snapshot: Snapshot) -> dict[JobKey, list[tuple[Assigned, str]]]:
    """Per job its instances that may get traffic, with their addresses."""
    found: dict[JobKey, list[tuple[Assigned, str]]] = defaultdict(list)
    for _, row in sorted(snapshot.assigned.by_node.items()):
        for key, assignment in sorted(row.items()):
            found[key] += healthy_of(assignment, snapshot)
    return found


def healthy_of(assignment: Assignment, snapshot: Snapshot) -> Iterator[tuple[Assigned, str]]:
    """The instances of an assignment that may get traffic: running, healthy, with an address."""
    for assigned in assignment.instances:
        if assigned.state is SlotState.RUNNING:
            status = snapshot.status(assigned)
            if status is not None and status.healthy and status.address:
                yield assigned, status.address


def _port_of(
    record: JobRecord, assigned: Assigned, host: str, path: str, port: int, names: Names
) -> int | None:
    """Where this instance answers for that host and path; None if it has no such port."""
    if assigned.version == record.head.version:
        return port
    version = record.versions.get(assigned.version)
    if version is None:
        return port
    for own_host, own_path, own_port in hosts_of(version.job, names.ingress_domain):
        if (own_host, own_path) == (host, path):
            return own_port
    return port if port in _pod_ports(version.job) else None


def _pod_ports(job: Job) -> Iterator[int]:
    return (p.pod for c in job.containers for p in c.ports if p.protocol is Protocol.TCP)
