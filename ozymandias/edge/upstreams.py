"""Instances behind routes: kept connections, who is asked next, who is left alone for a moment.

A Pool is one instance's address and is shared by all routes to it. A Backend is one route. A
Table is what one RouteTable came to; the next one takes over the pools and counts of the routes
that stayed, so that a new table costs nothing to requests in flight.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from ozymandias.edge.limits import Limits
from ozymandias.edge.traffic import JobTraffic
from ozymandias.model.job import JobKey
from ozymandias.model.routing import Route, RouteTable, Upstream

if TYPE_CHECKING:
    from ozymandias.edge.responses import UpstreamConnection


class Pool:
    """One instance: its idle connections (the last used is taken first) and requests in flight."""

    __slots__ = (
        "_limits",
        "ejected_until",
        "failures",
        "idle",
        "is_retired",
        "outstanding",
        "routes",
        "upstream",
    )

    def __init__(self, upstream: Upstream, limits: Limits) -> None:
        self.upstream = upstream
        self.routes = 0  # of the present table that lead here
        self.outstanding = 0
        self.idle: list[UpstreamConnection] = []
        self.is_retired = False  # in no table any more: its connections are not kept
        self.ejected_until = 0.0
        self.failures = 0  # refused connections in a row
        self._limits = limits

    def take(self, now: float, replayable: bool) -> "UpstreamConnection | None":
        """An idle connection; only a fresh one for a request that can't be sent twice."""
        idle = self.idle
        if not idle:
            return None
        if not replayable and now - idle[-1].idle_since > self._limits.pool_fresh_seconds:
            return None
        return idle.pop()

    def give_back(self, connection: "UpstreamConnection", now: float) -> bool:
        """False when it is not wanted and must be closed."""
        if self.is_retired or len(self.idle) >= self._limits.pool_idle_max:
            return False
        connection.idle_since = now
        self.idle.append(connection)
        return True

    def forget(self, connection: "UpstreamConnection") -> None:
        if connection in self.idle:
            self.idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long; the list is in order of last use."""
        limit = now - self._limits.pool_idle_seconds
        while self.idle and self.idle[0].idle_since < limit:
            self.idle.pop(0).close()

    def retire(self) -> None:
        self.is_retired = True
        while self.idle:
            self.idle.pop().close()

    def connect_failed(self, now: float) -> None:
        self.failures += 1
        seconds = self._limits.eject_seconds * 2.0 ** min(self.failures - 1, 10)
        self.ejected_until = now + min(seconds, self._limits.eject_seconds_max)
        # What is kept to an instance that refuses others is most likely dead as well.
        while self.idle:
            self.idle.pop().close()

    def vanished(self, now: float) -> None:
        """A connection ended by its host's silence; many do at once, which is one failure."""
        if self.ejected_until <= now:
            self.connect_failed(now)

    def connected(self) -> None:
        self.failures = 0
        self.ejected_until = 0.0


class Backend:
    """One route: chooses the instance with the fewest requests in flight."""

    __slots__ = ("_next", "pools", "prefix", "prefix_slash", "route", "traffic")

    def __init__(self, route: Route, pools: tuple[Pool, ...], traffic: JobTraffic) -> None:
        self.route = route
        self.pools = pools
        self.traffic = traffic
        self.prefix = route.path.rstrip("/").encode()
        self.prefix_slash = self.prefix + b"/"
        self._next = 0

    def choose(self, now: float, tried: tuple[Pool, ...] = ()) -> Pool | None:
        """Fewest outstanding, ties in turn. Ejected ones only when there is no other."""
        pools = self.pools
        count = len(pools)
        if count == 1:
            return None if tried else pools[0]
        self._next = start = (self._next + 1) % count if count else 0
        best: Pool | None = None
        fallback: Pool | None = None
        for offset in range(count):
            pool = pools[(start + offset) % count]
            if pool in tried:
                continue
            if pool.ejected_until > now:
                if fallback is None or pool.ejected_until < fallback.ejected_until:
                    fallback = pool
                continue
            if not pool.outstanding:
                return pool
            if best is None or pool.outstanding < best.outstanding:
                best = pool
        return best or fallback

    def matches(self, path: bytes) -> bool:
        return path == self.prefix or path.startswith(self.prefix_slash)


class Table:
    """Backends by host, longest path first.

    Made from the one before: hosts whose routes are the very same objects cost next to nothing, so
    that a change among thousands of routes does not hold up requests.
    """

    def __init__(self, routes: RouteTable, limits: Limits, old: "Table | None" = None) -> None:
        self.pools: dict[Upstream, Pool] = dict(old.pools) if old else {}
        self.jobs: dict[JobKey, JobTraffic] = dict(old.jobs) if old else {}
        self.left: list[Pool] = []  # in no route any more
        self._limits = limits
        self._hosts: dict[bytes, tuple[Backend, ...]] = {}
        self._taken: dict[str, tuple[tuple[Route, ...], bytes, tuple[Backend, ...]]] = {}
        before = old._taken if old else {}
        replaced: list[Backend] = []
        for host, entries in routes.hosts.items():
            known = before.get(host)
            if known is None or known[0] is not entries:
                name = host.lower().rstrip(".").encode()
                replaced += known[2] if known is not None else ()
                known = (entries, name, self._make(entries))
            self._taken[host] = known
            self._hosts[known[1]] = known[2]
        for host in before.keys() - routes.hosts.keys():
            replaced += before[host][2]
        self._let_go(replaced)

    def _make(self, entries: tuple[Route, ...]) -> tuple[Backend, ...]:
        backends = []
        for route in sorted(entries, key=lambda r: len(r.path), reverse=True):
            pools = []
            for upstream in route.upstreams:
                pool = self.pools.get(upstream)
                if pool is None:
                    self.pools[upstream] = pool = Pool(upstream, self._limits)
                pool.routes += 1
                pools.append(pool)
            traffic = self.jobs.get(route.job)
            if traffic is None:
                self.jobs[route.job] = traffic = JobTraffic()
            traffic.routes += 1
            backends.append(Backend(route, tuple(pools), traffic))
        return tuple(backends)

    def _let_go(self, replaced: list[Backend]) -> None:
        """After the new ones were made, so that what stays has kept its connections and counts."""
        for backend in replaced:
            for pool in backend.pools:
                pool.routes -= 1
                if not pool.routes:
                    del self.pools[pool.upstream]
                    self.left.append(pool)
            backend.traffic.routes -= 1
            if not backend.traffic.routes:
                del self.jobs[backend.route.job]

    def backends(self) -> Iterator[Backend]:
        for entries in self._hosts.values():
            yield from entries

    def in_flight(self) -> dict[JobKey, int]:
        """Requests with an instance right now, by job."""
        pools: dict[JobKey, set[Pool]] = {}
        for backend in self.backends():
            pools.setdefault(backend.route.job, set()).update(backend.pools)
        return {job: sum(pool.outstanding for pool in found) for job, found in pools.items()}

    def find(self, host: bytes, target: bytes) -> Backend | None:
        """``target``: of the request, in origin form, or `*`."""
        entries = self._hosts.get(host)
        if entries is None:
            return None
        if len(entries) == 1 and not entries[0].prefix:
            return entries[0]
        path = target.partition(b"?")[0] if target != b"*" else b"/"
        if b"%" in path or b"/." in path or b"//" in path:
            path = normal_path(path)
        for backend in entries:
            if backend.matches(path):
                return backend
        return None


def normal_path(path: bytes) -> bytes:
    """The path that an instance will most likely see: decoded, without dots and empty segments.

    Only for choosing the route: `/shop/../admin` must not come to the job of `/shop`.
    """
    segments: list[bytes] = []
    decoded = unquote_to_bytes(path)
    for segment in decoded.split(b"/"):
        if segment == b"..":
            if segments:
                segments.pop()
        elif segment not in (b"", b"."):
            segments.append(segment)
    tail = b"/" if decoded.endswith(b"/") and segments else b""
    return b"/" + b"/".join(segments) + tail
