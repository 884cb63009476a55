"""Names and routes of healthy instances, as the edge serves them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ozymandias.model.job import JobKey


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Upstream:
    """One healthy instance behind a route."""

    address: str
    port: int
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Requests for a host and path prefix, and who answers them. Upstreams may be none (503)."""

    host: str
    path: str  # "/" or "/api"; matches whole segments
    job: JobKey
    upstreams: tuple[Upstream, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """Routes by host, longest path first."""

    hosts: Mapping[str, tuple[Route, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DnsRecord:
    """One address record, with a port where it is a service record.

    ``name`` is a domain name in its usual order, e.g. ``0.web.default.ozy.internal``.
    """

    name: str
    address: str
    port: int = 0
    ttl_seconds: int = 5
