"""Hosts, claims, the route table and DNS records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ozymandias.core.routes import Names, claims_of, dns_records, hosts_of, route_table
from ozymandias.model.instance import (
    Assignment,
    Group,
    InstanceState,
    InstanceStatus,
    JobStatus,
    Slots,
    SlotState,
)
from ozymandias.model.job import IngressRule, Job, JobHead, JobRecord, JobVersion, Port, Protocol
from ozymandias.model.node import Demand
from ozymandias.model.record import replace
from ozymandias.model.routing import DnsRecord, Upstream
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.node_side import NODE, container, job

NAMES = Names()
TCP = Port(pod=80, container=3000)
UDP = Port(pod=53, container=53, protocol=Protocol.UDP)
WEB = job(container(ports=(UDP, TCP)))


@pytest.mark.parametrize(
    ("ingress", "expected"),
    [
        (None, [("web.localhost", "/", 80), ("web.default.localhost", "/", 80)]),
        ((), []),
        (
            (IngressRule(host="Shop.Example", path="/api/", port=81),),
            [("shop.example", "/api", 81)],
        ),
        (
            (IngressRule(host="", path="/a", port=80), IngressRule(host="x.y", port=80)),
            [("web.localhost", "/a", 80), ("web.default.localhost", "/a", 80), ("x.y", "/", 80)],
        ),
    ],
)
def test_hosts(
    ingress: tuple[IngressRule, ...] | None, expected: list[tuple[str, str, int]]
) -> None:
    """Default hosts for a job that names none, its own where it names them, none if it says so."""
    assert list(hosts_of(replace(WEB, ingress=ingress), "localhost")) == expected


def test_default_hosts_need_a_tcp_port_and_the_short_one_the_default_namespace() -> None:
    """A job without TCP ports is not exposed; other namespaces have the full host only."""
    assert hosts_of(job(container(ports=(UDP,))), "localhost") == ()
    other = job(container(ports=(TCP,)), namespace="team")
    assert hosts_of(other, "localhost") == (("web.team.localhost", "/", 80),)


def test_claims() -> None:
    """A claim is host and path in one string."""
    assert claims_of(WEB, "localhost") == {"web.localhost/", "web.default.localhost/"}


def snapshot(
    *versions: Job,
    state: SlotState = SlotState.RUNNING,
    healthy: bool = True,
    deleting: bool = False,
    placed: int = 1,
) -> Snapshot:
    """One job, its last version current, with an instance of version ``placed`` in slot 0."""
    key = versions[0].key
    group = Group(uid="u", version=placed, state=state, slots=Slots.of([0]), demand=Demand())
    status = InstanceStatus(
        slot=0,
        uid="u",
        version=placed,
        state=InstanceState.HEALTHY if healthy else InstanceState.UNHEALTHY,
        healthy=healthy,
        address="10.0.0.9",
    )
    return Snapshot(
        jobs={
            key: JobRecord(
                key=key,
                head=JobHead(uid="u", version=len(versions), wanted=1, deleting=deleting),
                head_revision=1,
                versions={
                    n: JobVersion(uid="u", version=n, job=spec)
                    for n, spec in enumerate(versions, 1)
                },
            )
        },
        assignments={(NODE, key): Assignment(node=NODE, job=key, groups=(group,))},
        statuses={(NODE, key): JobStatus(node=NODE, job=key, instances={0: status})},
    )


def upstreams(found: Snapshot, host: str = "web.localhost") -> list[tuple[Upstream, ...]]:
    return [route.upstreams for route in route_table(found, NAMES).hosts.get(host, ())]


def test_a_healthy_running_instance_is_routed_to() -> None:
    """Its address and the port of the pod are the upstream of every host of the job."""
    table = route_table(snapshot(WEB), NAMES)
    assert set(table.hosts) == {"web.localhost", "web.default.localhost"}
    assert upstreams(snapshot(WEB)) == [(Upstream(address="10.0.0.9", port=80, instance="web-0"),)]


@pytest.mark.parametrize("state", [SlotState.STOPPING, SlotState.WAITING])
def test_only_running_slots_get_traffic(state: SlotState) -> None:
    """A stopping or waiting slot is left out, and the route stays, without upstreams."""
    assert upstreams(snapshot(WEB, state=state)) == [()]


def test_unhealthy_instances_get_no_traffic_and_deleted_jobs_have_no_route() -> None:
    """Unhealthy: a route without upstreams (503). Deleting: no route (404)."""
    assert upstreams(snapshot(WEB, healthy=False)) == [()]
    assert upstreams(snapshot(WEB, deleting=True)) == []


def test_an_old_instance_is_reached_at_its_own_port() -> None:
    """In a rollout that moves the port, old instances serve on the old one until they go."""
    new = job(container(ports=(Port(pod=8080, container=3000),)))
    assert [u.port for u in upstreams(snapshot(WEB, new, placed=1))[0]] == [80]
    assert [u.port for u in upstreams(snapshot(WEB, new, placed=2))[0]] == [8080]
    elsewhere = replace(new, ingress=(IngressRule(host="", path="/new", port=8080),))
    assert upstreams(snapshot(WEB, elsewhere, placed=1)) == [()]


def test_a_claim_of_another_job_wins() -> None:
    """A host and path that another job owns is not served by this one."""
    found = snapshot(WEB)
    taken = replace(found, claims={"web.localhost/": job(name="other").key})
    assert "web.localhost" not in route_table(taken, NAMES).hosts
    assert "web.default.localhost" in route_table(taken, NAMES).hosts


@given(paths=st.lists(st.sampled_from(["/", "/a", "/a/b", "/abc", "/b"]), unique=True, min_size=1))
def test_longer_paths_come_first(paths: list[str]) -> None:
    """However they are written down, the table tries the longest prefix first."""
    rules = tuple(IngressRule(host="h", path=path, port=80) for path in paths)
    table = route_table(snapshot(replace(WEB, ingress=rules)), NAMES)
    lengths = [len(route.path) for route in table.hosts["h"]]
    assert lengths == sorted(lengths, reverse=True)
    assert {route.path for route in table.hosts["h"]} == set(paths)


def test_dns_records() -> None:
    """One address under the job's name, and a service record per port of the pod."""
    assert dns_records(WEB, 3, "10.0.0.9", NAMES) == (
        DnsRecord(name="3.web.default.ozy.internal", address="10.0.0.9"),
        DnsRecord(name="3._53._udp.web.default.ozy.internal", address="10.0.0.9", port=53),
        DnsRecord(name="3._80._tcp.web.default.ozy.internal", address="10.0.0.9", port=80),
    )
