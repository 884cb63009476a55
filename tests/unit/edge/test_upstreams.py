"""Which instance is asked, and what a new table keeps of the old one."""

import pytest

from ozymandias.edge.limits import Limits
from ozymandias.edge.upstreams import Table, normal_path
from ozymandias.model.job import JobKey, JobName, Namespace
from ozymandias.model.routing import Route, RouteTable, Upstream

LIMITS = Limits(eject_seconds=1.0, eject_seconds_max=4.0)


def routes(*ports: int, host: str = "a") -> RouteTable:
    upstreams = tuple(Upstream(address="127.0.0.1", port=p, instance=f"a-{p}") for p in ports)
    job = JobKey(Namespace("default"), JobName("a"))
    return RouteTable(hosts={host: (Route(host=host, path="/", job=job, upstreams=upstreams),)})


def chosen(table: Table, times: int, now: float = 10.0) -> list[int]:
    backend = table.find(b"a", b"/")
    assert backend is not None
    found = []
    for _ in range(times):
        pool = backend.choose(now)
        assert pool is not None
        pool.outstanding += 1
        found.append(pool.upstream.port)
    return found


def test_fewest_outstanding_in_turn():
    """Requests spread evenly, and an instance with more in flight waits."""
    table = Table(routes(1, 2, 3), LIMITS)
    assert sorted(chosen(table, 9)) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    for upstream, pool in table.pools.items():
        pool.outstanding = 5 if upstream.port == 2 else 0
    assert 2 not in chosen(table, 8)


def test_ejected_ones_are_the_last_resort():
    """Who refuses connections is left alone, longer each time; but somebody is always asked."""
    table = Table(routes(1, 2), LIMITS)
    one, two = table.pools.values()
    one.connect_failed(10.0)
    assert set(chosen(table, 4, now=10.5)) == {2}
    assert 1 in chosen(table, 4, now=11.1)
    one.connect_failed(20.0)
    one.connect_failed(20.0)
    assert one.ejected_until == 24.0
    two.connect_failed(20.0)
    assert chosen(table, 1, now=20.5) == [2]
    one.connected()
    assert one.ejected_until == 0.0


def test_a_new_table_keeps_what_stayed():
    """Pools of instances that stay go over with their counts; a job's statistics too."""
    old = Table(routes(1, 2), LIMITS)
    chosen(old, 2)
    backend = old.find(b"a", b"/")
    assert backend is not None
    backend.traffic.by_class[2] = 7
    new = Table(routes(2, 3), LIMITS, old)
    assert [(u.port, p.outstanding) for u, p in new.pools.items()] == [(2, 1), (3, 0)]
    kept = new.find(b"a", b"/")
    assert kept is not None and kept.traffic.by_class[2] == 7


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/a/../b", b"/b"),
        (b"/a/./b//c/", b"/a/b/c/"),
        (b"/../../x", b"/x"),
        (b"/%2e%2e/x", b"/x"),
        (b"/a%2fb", b"/a/b"),
        (b"/", b"/"),
        (b"//", b"/"),
        (b"/%zz", b"/%zz"),
    ],
)
def test_paths_for_routing(path: bytes, expected: bytes):
    """Dots, doubled slashes and escapes can't reach a route by another name."""
    assert normal_path(path) == expected
