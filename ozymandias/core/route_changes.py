"""The route table kept up to date: only jobs that changed since the last snapshot are looked at.

`route_table` looks at every job, which for a thousand of them takes longer than a request may wait.
The parts of a snapshot are never changed in place, so a part that is the very same object as before
has not changed. What comes out is always equal to `route_table` of the same snapshot, and routes
that did not change are the same objects as before, which spares whoever takes the table as well.
"""

from collections.abc import Mapping
from typing import Any

from ozymandias.core.routes import Names, healthy_of, hosts_of, in_order, routes_of
from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.routing import Route, RouteTable
from ozymandias.model.snapshot import Snapshot


class RouteChanges:
    """Ask `table` with one snapshot after the other."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._seen = Snapshot()
        self._nodes: dict[JobKey, set[NodeName]] = {}  # that have an assignment of the job
        self._wanting: dict[str, set[JobKey]] = {}  # who names a host and path, owner or not
        self._wanted: dict[JobKey, frozenset[str]] = {}
        self._routes: dict[JobKey, tuple[Route, ...]] = {}
        self._jobs_of: dict[str, set[JobKey]] = {}  # by host
        self._table = RouteTable()

    def table(self, snapshot: Snapshot) -> RouteTable:
        changed = self._changed_jobs(snapshot)
        self._seen = snapshot
        hosts: set[str] = set()
        for key in changed:
            hosts |= self._look_at(key, snapshot)
        if hosts:
            table = dict(self._table.hosts)
            for host in hosts:
                routes = [
                    route
                    for key in sorted(self._jobs_of.get(host, ()))
                    for route in self._routes[key]
                    if route.host == host
                ]
                if routes:
                    table[host] = in_order(routes)
                else:
                    table.pop(host, None)
            self._table = RouteTable(hosts=table)
        return self._table

    def _changed_jobs(self, snapshot: Snapshot) -> set[JobKey]:
        seen = self._seen
        changed = _difference(seen.jobs, snapshot.jobs)
        for node, key in seen.assigned.difference(snapshot.assigned):
            changed.add(key)
            if (node, key) in snapshot.assignments:
                self._nodes.setdefault(key, set()).add(node)
            else:
                self._nodes[key].discard(node)
        changed |= {key for _, key in seen.told.difference(snapshot.told)}
        for claim in _difference(seen.claims, snapshot.claims):
            changed |= self._wanting.get(claim, set())
        return changed

    def _look_at(self, key: JobKey, snapshot: Snapshot) -> set[str]:
        """Takes in one job as it is now; the hosts whose routes are others now."""
        before = self._routes.pop(key, ())
        record = snapshot.jobs.get(key)
        routes: tuple[Route, ...] = ()
        wanted: frozenset[str] = frozenset()
        if record is not None and record.current is not None:
            job = record.current.job
            wanted = frozenset(h + p for h, p, _ in hosts_of(job, self._names.ingress_domain))
            healthy = [
                found
                for node in sorted(self._nodes.get(key, ()))
                for found in healthy_of(snapshot.assignments[(node, key)], snapshot)
            ]
            routes = routes_of(record, healthy, snapshot.claims, self._names)
        if not self._nodes.get(key):
            self._nodes.pop(key, None)
        self._want(key, wanted)
        if routes:
            self._routes[key] = routes
        if routes == before:
            if before:
                self._routes[key] = before
            return set()
        hosts = {route.host for route in (*before, *routes)}
        for host in hosts:
            self._jobs_of.setdefault(host, set()).discard(key)
        for route in routes:
            self._jobs_of[route.host].add(key)
        for host in hosts:
            if not self._jobs_of[host]:
                del self._jobs_of[host]
        return hosts

    def _want(self, key: JobKey, claims: frozenset[str]) -> None:
        before = self._wanted.pop(key, frozenset())
        if claims:
            self._wanted[key] = claims
        for claim in before - claims:
            self._wanting[claim].discard(key)
            if not self._wanting[claim]:
                del self._wanting[claim]
        for claim in claims - before:
            self._wanting.setdefault(claim, set()).add(key)


def _difference(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> set[Any]:
    """The keys whose values are not the same objects in both."""
    if before is after:
        return set()
    get = before.get
    changed = {key for key, value in after.items() if get(key) is not value}
    return changed | (before.keys() - after.keys())
