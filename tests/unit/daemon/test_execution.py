"""The executor with a whole daemon around it, on a simulated host, in virtual time."""

import asyncio
import itertools
import sys
from collections import Counter
from types import FrameType

import pytest

from ozymandias.core.reconcile import reconcile
from ozymandias.core.status import status_of
from ozymandias.daemon.execution import DRAIN_SECONDS, RELIST_SECONDS
from ozymandias.model.instance import InstanceStatus
from ozymandias.model.job import Container, HealthCheck, JobKey
from ozymandias.model.node import Presence
from ozymandias.model.pod import ContainerState, PodId
from ozymandias.ports import ProbeResult
from ozymandias.sim.host import Behaviour
from ozymandias.store import codec, keys
from tests.unit.daemon.one_node import NODE, WEB, WEB_FILE, OneNode, on_one_node

SEEDS = pytest.mark.parametrize("seed", range(5))
OTHER = keys.job_key("default", "other")
OTHER_FILE = WEB_FILE.replace("name: web", "name: other")


@SEEDS
def test_from_submit_to_healthy_there_is_no_idle_wait(seed: int) -> None:
    """Image, create, start, list, probe, write: nothing else takes time on the way."""

    async def scenario(node: OneNode) -> None:
        await node.until(lambda: node.operations is not None)
        node.host.faults.latency_seconds = (0.1, 0.1)
        began = node.time
        await node.submit_healthy()
        # ensure_image 1, create_pod 2 (in the simulation), start 1, list 1, probe 1 calls.
        assert node.time - began < 0.1 * 6 + 0.05

    on_one_node(scenario, seed)


@SEEDS
def test_a_killed_daemon_comes_back_and_nothing_restarts(seed: int) -> None:
    """kill -9 and start: no container is started, no name vanishes, no status changes."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        began, starts, told = node.time, node.host.started_total, node.statuses()
        for _ in range(3):
            await node.world.kill(NODE)
            await asyncio.sleep(1.0)
            node.world.start(NODE)
            await asyncio.sleep(20.0)
        assert node.host.started_total == starts
        assert node.statuses() == told
        written = [e.kv.key for at, e in node.changes if at > began]
        assert not [key for key in written if key.startswith((keys.STATUS, keys.SKYDNS))]

    on_one_node(scenario, seed)


def test_a_crash_while_the_daemon_was_away_is_mended() -> None:
    """A container that ended meanwhile is started by the next daemon, and counted."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        await node.world.kill(NODE)
        node.host.exit_container(node.pod(), "app", exit_code=3)
        await asyncio.sleep(1.0)
        node.world.start(NODE)
        await node.until(lambda: node.starts() == 2 and node.is_healthy())
        status = node.status()
        assert status is not None and status.restarts == 1

    on_one_node(scenario)


def test_a_crash_loop_backs_off_and_delays_nobody() -> None:
    """A job that always fails is tried ever more slowly; another one starts as fast as alone."""

    async def scenario(node: OneNode) -> None:
        def behave(pod: PodId, container: Container, start: int) -> Behaviour:
            is_bad = pod.key == WEB
            return Behaviour(exit_after_seconds=0.1, exit_code=1) if is_bad else Behaviour()

        node.host.behave = behave
        await node.submit(WEB_FILE.replace("containers:", "numInstances: 8\ncontainers:"))
        await node.until(lambda: node.state() == "backoff")
        began = node.time
        await node.submit_healthy(OTHER_FILE, OTHER)
        assert node.time - began < 0.3
        await asyncio.sleep(300.0)
        assert node.starts() <= 13  # 0.5, 1, 2, 4, 8, 16, 32, 60, 60 ... seconds apart
        status = node.status()
        assert status is not None
        assert status.state == "backoff"
        assert status.reason.startswith(f"app: exit code 1; restarted {status.restarts} times")

    on_one_node(scenario)


def test_a_missing_image_is_told_and_tried_again() -> None:
    """The reason is shown, attempts back off, and when the image appears the job runs."""

    async def scenario(node: OneNode) -> None:
        node.host.images = set()
        await node.submit()
        await node.until(lambda: node.state() == "backoff")
        status = node.status()
        assert status is not None
        expected = "image missing: image could not be pulled: manifest unknown; attempt 1,"
        assert status.reason.startswith(expected)
        await asyncio.sleep(5.0)
        node.host.registry.add("image")
        await node.until(node.is_healthy)

    on_one_node(scenario)


def test_a_taken_port_is_told_and_tried_again() -> None:
    """A host port held by somebody else is named; when it is free the job runs."""

    async def scenario(node: OneNode) -> None:
        node.host.foreign_ports.add(8080)
        await node.submit(WEB_FILE.replace('["80:8000"]', "[{host: 8080, container: 8000}]"))
        await node.until(lambda: node.state() == "backoff")
        status = node.status()
        assert status is not None and "port taken: host port 8080 is in use" in status.reason
        node.host.foreign_ports.clear()
        await node.until(node.is_healthy)

    on_one_node(scenario)


def presence(node: OneNode) -> Presence:
    record = node.world.etcd.get(keys.node(NODE))
    assert record is not None
    return codec.decode(Presence, record.value)


def test_a_hung_runtime_degrades_the_node_and_harms_nothing() -> None:
    """The node says why it takes no work, its statuses stay, and it recovers by itself."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        starts, told = node.host.started_total, node.statuses()
        node.host.faults.is_hung = True
        await node.until(lambda: presence(node).degraded != "", 120.0)
        assert "does not answer" in presence(node).degraded
        await asyncio.sleep(60.0)
        assert node.statuses() == told
        node.host.faults.is_hung = False
        await node.until(lambda: presence(node).degraded == "", 60.0)
        assert (node.host.started_total, node.statuses()) == (starts, told)

    on_one_node(scenario)


def test_a_call_that_hangs_holds_up_its_own_pod_only() -> None:
    """While the creation of one pod never answers, other jobs start and stop as usual."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy(OTHER_FILE, OTHER)
        node.host.faults.hang_rate = 1.0
        await node.submit()
        await asyncio.sleep(0.0)
        node.host.faults.hang_rate = 0.0
        third = keys.job_key("default", "third")
        began = node.time
        await node.submit_healthy(WEB_FILE.replace("name: web", "name: third"), third)
        await node.operations.stop(OTHER)
        await node.until(lambda: not node.statuses(OTHER))
        assert node.time - began < 5.0
        await node.until(node.is_healthy, 120.0)

    on_one_node(scenario)


@SEEDS
def test_without_the_store_crashes_are_mended_and_nothing_else_happens(seed: int) -> None:
    """A minute without etcd: no pod is stopped, a crash is mended, afterwards nothing restarts."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        await node.submit_healthy(OTHER_FILE, OTHER)
        pods = set(node.host.pods)
        node.world.etcd.pause()
        await asyncio.sleep(30.0)
        node.host.exit_container(node.pod(), "app")
        await node.until(lambda: node.starts() == 2)
        await asyncio.sleep(60.0)
        node.world.etcd.resume()
        await node.until(lambda: node.is_healthy() and node.is_healthy(OTHER))
        await asyncio.sleep(30.0)
        assert set(node.host.pods) == pods
        assert node.host.started_total == 3

    on_one_node(scenario, seed)


def test_a_revoked_lease_moves_nothing_on_a_lonely_node() -> None:
    """The lease goes though the node is well: it joins again and keeps what it runs."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        node.world.lose_lease(NODE)
        await asyncio.sleep(30.0)
        assert node.is_healthy()
        assert node.host.started_total == 1

    on_one_node(scenario)


@SEEDS
def test_names_go_before_the_pod_does(seed: int) -> None:
    """A stop withdraws status and names, waits for the drain, and only then stops the pod."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        assert node.names() == [
            "/skydns/internal/ozy/default/web/0",
            "/skydns/internal/ozy/default/web/_tcp/_80/0",
        ]
        await node.operations.stop(WEB)
        await node.until(lambda: not node.host.running())
        stopped = node.time
        withdrawn = node.times_of(keys.SKYDNS, deleted=True)
        assert len(withdrawn) == 2
        assert stopped - max(withdrawn) >= DRAIN_SECONDS
        assert stopped - max(withdrawn) < DRAIN_SECONDS + 0.5
        await node.until(lambda: not node.statuses() and not node.host.pods)
        await node.until(lambda: node.world.etcd.get(keys.job(WEB)) is None)

    on_one_node(scenario, seed)


def test_an_unhealthy_container_loses_its_name_and_is_restarted_alone() -> None:
    """Failing probes withdraw the name; that container is restarted, its neighbour is not."""

    async def scenario(node: OneNode) -> None:
        text = WEB_FILE + "  db: {image: image, memory: 64M}\n"
        await node.submit_healthy(text)
        is_bad = True

        def probe(pod: PodId, container: Container, check: HealthCheck) -> ProbeResult | None:
            return ProbeResult(healthy=False, reason="HTTP 500") if is_bad else None

        node.host.probe = probe
        await node.until(lambda: not node.names())
        status = node.status()
        assert status is not None and not status.healthy
        await node.until(lambda: node.starts("app") == 2)
        is_bad = False
        await node.until(node.is_healthy)
        assert len(node.names()) == 2
        assert node.starts("db") == 1

    on_one_node(scenario)


def test_containers_start_in_the_order_of_their_needs() -> None:
    """With `condition: healthy` the dependant starts as soon as, and not before, the other is."""

    async def scenario(node: OneNode) -> None:
        ready_at = 3.0
        started: dict[str, float] = {}

        def behave(pod: PodId, container: Container, start: int) -> Behaviour:
            started[container.name] = node.time
            return Behaviour()

        def probe(pod: PodId, container: Container, check: HealthCheck) -> ProbeResult | None:
            is_ready = node.time >= started["db"] + ready_at
            return None if is_ready else ProbeResult(healthy=False, reason="connection refused")

        node.host.behave, node.host.probe = behave, probe
        await node.submit_healthy(
            "name: web\ncontainers:\n"
            "  app: {image: i, memory: 64M, depends_on: {db: {condition: service_healthy}}}\n"
            "  db: {image: i, memory: 64M, healthcheck: {type: tcp, port: 5432, interval: 30}}\n"
        )
        waited = started["app"] - started["db"]
        assert ready_at <= waited < ready_at * 1.5 + 0.2

    on_one_node(scenario)


def test_without_a_healthcheck_a_second_makes_healthy() -> None:
    """A container without healthcheck is healthy one second after its start, and promptly."""

    async def scenario(node: OneNode) -> None:
        await node.submit("name: web\ncontainers:\n  app: {image: i, memory: 64M}\n")
        await node.until(lambda: node.host.running())
        began = node.time
        await node.until(node.is_healthy)
        assert 0.9 <= node.time - began < 1.2

    on_one_node(scenario)


def test_a_power_cut_is_survived() -> None:
    """After the machine boots its pods are started again, in place."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        await node.world.power_cut(NODE)
        await asyncio.sleep(2.0)
        node.world.boot(NODE)
        await node.until(lambda: node.host.running() and node.is_healthy(), 60.0)
        await asyncio.sleep(5.0)
        assert node.is_healthy()

    on_one_node(scenario)


def test_a_lost_pod_network_is_mended() -> None:
    """A pod whose network goes down loses its name, and gets a new network and its name back."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy(WEB_FILE + "  db: {image: image, memory: 64M}\n")
        node.host.stop_infra(node.pod())
        await node.until(lambda: not node.names())
        await node.until(lambda: node.is_healthy() and node.names())
        assert (node.starts("app"), node.starts("db")) == (2, 2)
        await asyncio.sleep(30.0)
        assert (node.starts("app"), node.starts("db")) == (2, 2)

    on_one_node(scenario)


def test_completed_and_failed_jobs_rest() -> None:
    """`restart: no`: ending with 0 is completed, otherwise failed; neither is tried again."""

    async def scenario(node: OneNode) -> None:
        codes = {"web": 0, "other": 7}

        def behave(pod: PodId, container: Container, start: int) -> Behaviour:
            return Behaviour(exit_after_seconds=2.0, exit_code=codes[pod.job])

        node.host.behave = behave
        for name in codes:
            await node.submit(
                f"name: {name}\ncontainers:\n  app: {{image: i, memory: 64M, restart: 'no'}}\n"
            )
        await asyncio.sleep(60.0)
        assert (node.state(WEB), node.state(OTHER)) == ("completed", "failed")
        assert (node.starts(job=WEB), node.starts(job=OTHER)) == (1, 1)

    on_one_node(scenario)


def test_a_pull_is_not_waited_for_by_a_stop() -> None:
    """A job stopped while its image is being pulled is gone at once."""

    async def scenario(node: OneNode) -> None:
        await node.until(lambda: node.operations is not None)
        node.host.faults.is_hung = True
        await node.submit()
        await node.until(lambda: node.state() == "pulling")
        await node.operations.stop(WEB)
        node.host.faults.is_hung = False
        began = node.time
        await node.until(lambda: node.world.etcd.get(keys.job(WEB)) is None)
        assert node.time - began < 2.0

    on_one_node(scenario)


def test_half_a_pod_holds_its_room_until_it_is_gone() -> None:
    """Making it failed, and nobody has looked yet what is there of it (seed 1000450)."""

    async def scenario(node: OneNode) -> None:
        node.host.faults.latency_seconds = (0.1, 0.2)
        node.host.faults.fail_next["complete_pod"] = 1
        await node.submit()
        await node.until(lambda: node.host.pods)
        await node.operations.stop(WEB)
        await node.until(lambda: not node.world.etcd.get(keys.assignment(NODE, WEB)))
        assert not node.host.pods

    on_one_node(scenario)


def test_a_slot_whose_stop_was_not_heard_of_yet_is_not_given_back() -> None:
    """It is decided on top of a stop that the watch has not told yet: the pod may be made now."""

    async def scenario(node: OneNode) -> None:
        node.host.images = {"image"}
        await node.submit_healthy()
        await node.submit(OTHER_FILE.replace("image: image", "image: late"))
        await node.until(lambda: node.state(OTHER) == "backoff")
        await node.operations.stop(WEB)
        store = node.world.machines[NODE].store
        assert store is not None
        store.stick()
        stop = asyncio.create_task(node.operations.stop(OTHER))
        await node.until(lambda: not node.world.etcd.get(keys.assignment(NODE, WEB)))
        node.host.registry.add("late")
        await node.until(lambda: node.host.pods)  # by what was last heard it is to run
        assert node.pod(OTHER) in node.world.truth.pods_of(NODE)
        store.stick(False)
        await stop
        await node.until(lambda: not node.world.etcd.get(keys.assignment(NODE, OTHER)))
        assert not node.host.pods

    on_one_node(scenario)


def test_an_idle_node_is_idle() -> None:
    """With nothing going on nothing is written, and hardly anything is done."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        await asyncio.sleep(5.0)
        revision = node.world.etcd.revision
        loop = node.world.loop
        before = loop.callbacks  # type: ignore[attr-defined]
        await asyncio.sleep(600.0)
        assert node.world.etcd.revision == revision
        per_second = (loop.callbacks - before) / 600.0  # type: ignore[attr-defined]
        assert per_second < 20.0

    on_one_node(scenario)


def statuses_seen(node: OneNode, job: JobKey) -> list[InstanceStatus]:
    return [
        codec.decode_statuses(event.kv.value)[0]
        for _, event in node.changes
        if event.kv.key == keys.status(NODE, job) and not event.deleted
    ]


def test_each_step_is_written_once_and_in_order() -> None:
    """The store sees the way to healthy without repetition: no write is without a change."""

    async def scenario(node: OneNode) -> None:
        await node.submit_healthy()
        await asyncio.sleep(30.0)
        seen = statuses_seen(node, WEB)
        assert all(a != b for a, b in itertools.pairwise(seen))
        assert [s.state for s in seen] == sorted(
            (s.state for s in seen), key=["starting", "healthy"].index
        )
        assert len(seen) <= 3
        container = node.host.pods[node.pod()].containers["app"]
        assert container.state is ContainerState.RUNNING

    on_one_node(scenario)


def test_one_restless_pod_costs_the_others_nothing() -> None:
    """Beside forty pods at rest, one that crashes again and again is the one that is looked at."""

    async def scenario(node: OneNode) -> None:
        many = OTHER_FILE.replace("containers:", "numInstances: 40\ncontainers:")
        many = many.replace("interval: 2", "interval: 600").replace("64M", "8M")
        await node.submit_healthy(many, OTHER)
        await node.submit_healthy()
        told: Counter[JobKey] = Counter()
        reconciled: Counter[JobKey] = Counter()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code is status_of.__code__:
                told[frame.f_locals["assigned"].job] += 1
            if event == "call" and frame.f_code is reconcile.__code__:
                reconciled.update({want.id.key for want in frame.f_locals["wanted"]})

        began, starts = node.time, node.starts()
        sys.setprofile(note)
        try:
            while node.starts() < starts + 4:
                if node.is_healthy():
                    node.host.exit_container(node.pod(), "app", exit_code=1)
                await asyncio.sleep(0.05)
        finally:
            sys.setprofile(None)
        assert told[WEB] >= 8
        assert told[OTHER] == 0
        in_any_case = 40 * (2 + (node.time - began) / RELIST_SECONDS)  # of each, now and then
        assert reconciled[OTHER] <= in_any_case
        assert reconciled[WEB] >= 8

    on_one_node(scenario)
