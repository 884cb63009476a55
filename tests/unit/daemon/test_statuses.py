"""Statuses and names in the store: written on change, together, and never another's removed."""

import asyncio
from collections.abc import Sequence

import pytest

from ozymandias.daemon.statuses import WRITES_MAX, WRITES_WINDOW_SECONDS
from ozymandias.model.job import Container, HealthCheck
from ozymandias.model.pod import PodId
from ozymandias.ports import ProbeResult, Put
from ozymandias.sim.host import Behaviour
from ozymandias.sim.store import Faults
from ozymandias.store import keys
from tests.unit.daemon.one_node import NODE, WEB, WEB_FILE, OneNode, on_one_node

SEEDS = pytest.mark.parametrize("seed", range(5))
ADDRESS = keys.dns("0.web.default.ozy.internal")


def most_in_a_window(times: Sequence[float], seconds: float) -> int:
    return max((sum(t <= u < t + seconds for u in times) for t in times), default=0)


def test_status_and_names_change_in_one_revision() -> None:
    """A name appears in the very transaction in which its instance becomes healthy."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        status = node.world.etcd.get(keys.status(NODE, WEB))
        name = node.world.etcd.get(ADDRESS)
        assert status is not None and name is not None
        assert status.mod_revision == name.mod_revision
        assert status.lease == name.lease != 0

    on_one_node(scenario)


@pytest.mark.parametrize("seed", range(2))
def test_a_key_is_written_at_most_five_times_a_second(seed: int) -> None:
    """However wildly health flaps, one job's key has its limit, and the end is right."""

    async def scenario(node: OneNode) -> None:
        node.host.behave = lambda pod, container, start: Behaviour()
        quick = WEB_FILE.replace("interval: 2", "interval: 1").replace(
            "containers:", "numInstances: 10\ncontainers:"
        )
        await node.submit_healthy(quick.replace("64M", "8M"))
        is_flapping = True

        def probe(pod: PodId, container: Container, check: HealthCheck) -> ProbeResult | None:
            is_bad = is_flapping and node.world.dice.random() < 0.6
            return ProbeResult(healthy=False, reason=f"HTTP {500 + is_bad}") if is_bad else None

        node.host.probe = probe
        await asyncio.sleep(60.0)
        is_flapping = False
        await node.until(node.is_healthy, 200.0)
        times = node.times_of(keys.status(NODE, WEB), deleted=False)
        assert len(times) > 50
        assert most_in_a_window(times, WRITES_WINDOW_SECONDS - 1e-6) <= WRITES_MAX

    on_one_node(scenario, seed)


def test_the_record_of_a_slot_that_moved_is_left_alone() -> None:
    """A record which has another node's value by now is not deleted by this one."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        other = b'{"host": "10.9.9.9", "ttl": 5}'
        node.world.etcd.txn((), (Put(ADDRESS, other),))
        node.world.violations.clear()  # of our own making: no such status exists
        await node.operations.stop(WEB)
        await node.until(lambda: not node.statuses())
        record = node.world.etcd.get(ADDRESS)
        assert record is not None and record.value == other
        assert node.names() == [ADDRESS.decode()]
        node.world.violations.clear()

    on_one_node(scenario)


def test_what_a_former_session_left_is_cleared() -> None:
    """Statuses and names of instances that were taken away meanwhile go with the next session."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        stale = keys.status(NODE, keys.job_key("default", "gone"))
        name = keys.dns("0.gone.default.ozy.internal")
        lease = node.world.etcd.get(ADDRESS)
        assert lease is not None
        await node.world.kill(NODE)
        node.world.etcd.txn(
            (), (Put(stale, b"{}", lease.lease), Put(name, b'{"host": "10.1.1.1"}', lease.lease))
        )
        node.world.violations.clear()  # of our own making
        node.world.start(NODE)
        await node.until(lambda: not node.world.etcd.get(stale) and not node.world.etcd.get(name))
        assert node.is_healthy()
        node.world.violations.clear()

    on_one_node(scenario)


def test_a_new_lease_gets_everything_rewritten() -> None:
    """When the longer lease is another one, statuses and names move to it."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        before = node.world.etcd.get(ADDRESS)
        assert before is not None
        await node.world.kill(NODE)
        await asyncio.sleep(60.0)  # both leases lapse
        assert node.world.etcd.get(ADDRESS) is None
        node.world.start(NODE)
        await node.until(lambda: node.world.etcd.get(ADDRESS) is not None, 60.0)
        after = node.world.etcd.get(ADDRESS)
        assert after is not None and after.lease != before.lease
        assert node.host.started_total == 1
        assert node.is_healthy()

    on_one_node(scenario)


@SEEDS
def test_lost_answers_do_not_leave_a_lie(seed: int) -> None:
    """With every third write's outcome unknown, the store tells the truth in the end."""

    async def scenario(node: OneNode) -> None:
        await node.until(lambda: node.operations is not None)
        store = node.world.machines[NODE].store
        assert store is not None
        store.faults = Faults(ambiguous=0.33, latency=(0.0, 0.05))
        await node.submit(WEB_FILE.replace("containers:", "numInstances: 4\ncontainers:"))
        await node.until(node.is_healthy, 120.0)
        for _ in range(6):
            node.host.exit_container(node.world.dice.choice(sorted(node.host.pods)), "app")
            await asyncio.sleep(node.world.dice.uniform(0.0, 4.0))
        store.faults = Faults()
        await asyncio.sleep(60.0)
        assert node.is_healthy()
        assert len(node.statuses()) == 4
        addresses = {status.address for status in node.statuses().values()}
        assert addresses == {pod.address for pod in node.host.pods.values()}
        assert len(node.names()) == 8

    on_one_node(scenario, seed)


def test_jobs_that_wait_together_are_written_together() -> None:
    """What a node has to say of many jobs at once takes a few transactions, names included."""

    async def scenario(node: OneNode) -> None:
        jobs = [keys.job_key("default", f"web{number}") for number in range(40)]
        for job in jobs:
            await node.submit(WEB_FILE.replace("name: web", f"name: {job.name}"))
        await node.until(lambda: all(node.is_healthy(job) for job in jobs), 200.0)
        before = node.world.etcd.revision

        def are_written_anew() -> bool:
            found = (node.world.etcd.get(keys.status(NODE, job)) for job in jobs)
            return all(kv is not None and kv.mod_revision > before for kv in found)

        node.world.lose_lease(NODE)  # it joins again, under other leases
        await node.until(are_written_anew, 60.0)
        written = {
            event.kv.mod_revision
            for _, event in node.changes
            if event.kv.key.startswith(keys.STATUS) and event.kv.mod_revision > before
        }
        assert len(written) <= 8
        assert len(node.names()) == 2 * len(jobs)

    on_one_node(scenario)
