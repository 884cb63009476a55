"""podman's bad moments: gone, hung, restarted; and what is not ours."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ozymandias.model.job import HealthCheck, HealthKind, PullPolicy
from ozymandias.model.pod import ContainerState
from ozymandias.ports import RuntimeFailed, RuntimeHung
from ozymandias.runtime.podman import PodmanRuntime
from ozymandias.runtime.podman_api import PodmanApi
from ozymandias.runtime.podspec import infra_name
from tests.integration.podman.conftest import BUSYBOX, PodmanKit, Site, shell
from tests.podman_service import PodmanService, running_service
from tests.runtime_contract import make_pod, observed, state_of, until

SLEEP = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"
DEADLINE_SECONDS = 1.0


@pytest.fixture
def own_service(images: None) -> Iterator[PodmanService]:
    """A service that a test may kill or stop."""
    with running_service() as service:
        yield service


async def test_killed_service_restarts_nothing(kit: PodmanKit, own_service: PodmanService) -> None:
    """kill -9 of the podman service ends no container; a new one finds them as they were."""
    pod = make_pod(shell(SLEEP))
    runtime = kit.site.runtime(socket=own_service.socket)
    await runtime.create_pod(pod)
    await runtime.start_container(pod.id, "app")
    before = await observed(runtime, pod)
    own_service.kill()
    with pytest.raises(RuntimeFailed, match="does not answer"):
        await runtime.list_pods()
    own_service.start()
    after = await observed(runtime, pod)
    await runtime.aclose()
    assert before is not None and after == before
    assert state_of(after) is ContainerState.RUNNING


async def test_new_daemon_restarts_nothing(kit: PodmanKit) -> None:
    """A second runtime object, as after a daemon's restart, sees the very same running pod."""
    pod = make_pod(shell(SLEEP))
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    again = kit.site.runtime()
    assert await again.list_pods() == await kit.runtime.list_pods()
    await again.aclose()


async def test_hung_service_ends_every_call_in_time(site: Site, own_service: PodmanService) -> None:
    """With the service stopped, each call raises RuntimeHung within its deadline."""
    runtime = site.runtime(socket=own_service.socket, deadline_seconds=DEADLINE_SECONDS)
    pod = make_pod(shell(SLEEP))
    own_service.signal(signal.SIGSTOP)
    begin = time.monotonic()

    async def hangs(call: object) -> None:
        with pytest.raises(RuntimeHung):
            await call  # type: ignore[misc]

    async def listen() -> None:
        async for _ in runtime.logs(pod.id, "app"):
            pass

    async with asyncio.TaskGroup() as group:
        for call in (
            runtime.info(),
            runtime.list_pods(),
            runtime.ensure_image(BUSYBOX, PullPolicy.MISSING),
            runtime.create_pod(pod),
            runtime.start_container(pod.id, "app"),
            runtime.stop_pod(pod.id),
            runtime.remove_pod(pod.id),
            runtime.exec(pod.id, "app", ["true"]),
            listen(),
        ):
            group.create_task(hangs(call))
    check = HealthCheck(kind=HealthKind.EXEC, command=("true",), timeout_seconds=1)
    assert not (await runtime.probe(pod.id, "", "app", check)).healthy
    assert time.monotonic() - begin < 5 * DEADLINE_SECONDS
    own_service.signal(signal.SIGCONT)
    await runtime.aclose()


async def test_absent_podman_is_said_to_be_absent(site: Site) -> None:
    """Without a socket every call fails at once with the socket's name."""
    runtime = site.runtime(socket=Path("/nonexistent/podman.sock"))
    with pytest.raises(RuntimeFailed, match=r"/nonexistent/podman\.sock"):
        await runtime.list_pods()
    await runtime.aclose()


async def test_changes_come_back_after_the_service(
    kit: PodmanKit, own_service: PodmanService
) -> None:
    """The stream of changes reconnects, and yields then, since something may have been missed."""
    runtime = kit.site.runtime(socket=own_service.socket)
    yields = 0

    async def count() -> None:
        nonlocal yields
        async for _ in runtime.changes():
            yields += 1

    async def until_more_than(number: int) -> None:
        async with asyncio.timeout(15):
            while yields <= number:
                await asyncio.sleep(0.02)

    listener = asyncio.ensure_future(count())
    try:
        await until_more_than(0)
        before = yields
        own_service.kill()
        own_service.start()
        await until_more_than(before)
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        await runtime.aclose()


async def test_others_are_neither_seen_nor_touched(kit: PodmanKit) -> None:
    """Pods of another node, another cluster or nobody's are not listed, stopped or removed."""
    other = kit.site.runtime("n2")
    theirs = make_pod(shell(SLEEP), node="n2")
    await other.create_pod(theirs)
    foreign = kit.site.service.podman(
        "run", "--detach", "--network=none", f"--label=ozymandias.cluster={kit.site.cluster}",
        "--label=ozymandias.node=n1", BUSYBOX, "sleep", "1000",
    )  # fmt: skip
    try:
        assert await kit.runtime.list_pods() == ()
        assert [p.id for p in await other.list_pods()] == [theirs.id]
        state = kit.site.service.podman("inspect", "--format", "{{.State.Status}}", foreign)
        assert state == "running"
    finally:
        kit.site.service.podman("rm", "--force", "--time=0", foreign)
        await other.remove_pod(theirs.id)
        await other.aclose()


async def test_cancelled_create_leaves_nothing(kit: PodmanKit) -> None:
    """Whoever is interrupted while creating leaves no pod, wherever it was."""
    for delay in (0.0, 0.03, 0.15):
        pod = make_pod(shell(SLEEP))
        task = asyncio.ensure_future(kit.runtime.create_pod(pod))
        await asyncio.wait([task], timeout=delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = await observed(kit.runtime, pod)
        assert found is None or (task.done() and not task.cancelled())


async def test_what_vanishes_under_a_look_is_gone_and_no_failure(kit: PodmanKit) -> None:
    """A container removed while podman looks at it is absent; podman says 500 of it."""
    api = PodmanApi(kit.site.service.socket)

    async def look(container: str) -> None:
        status = 200
        while status != 404:
            status, _ = await api.call("GET", f"/containers/{container}/json", accept=(404,))

    async with aclosing(api):
        for slot in range(10):  # one in two is caught in the act
            pod = make_pod(kit.serving(), slot=slot)
            await kit.runtime.create_pod(pod)
            async with asyncio.TaskGroup() as group:
                for _ in range(4):
                    group.create_task(look(infra_name(pod.id)))
                await kit.runtime.remove_pod(pod.id)


@asynccontextmanager
async def once_in_its_way(
    service: Path, directory: Path, failure: dict[str, Any]
) -> AsyncIterator[tuple[Path, list[str]]]:
    """podman behind a socket that answers the first look at a container with a failure instead."""
    looked: list[str] = []
    connector = aiohttp.UnixConnector(path=str(service))

    async def pass_on(request: web.BaseRequest) -> web.Response:
        if re.search("/containers/[0-9a-f]{64}/json$", request.path):
            looked.append(request.path)
            if len(looked) == 1:
                return web.json_response(failure, status=500)
        body = await request.read()
        url = f"http://podman{request.raw_path}"
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with client.request(request.method, url, data=body, headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read())

    socket = directory / "in-its-way.sock"
    async with aiohttp.ClientSession(connector=connector) as client:
        runner = web.ServerRunner(web.Server(pass_on))
        await runner.setup()
        try:
            await web.UnixSite(runner, str(socket)).start()
            yield socket, looked
        finally:
            await runner.cleanup()


@pytest.mark.parametrize("why", ["no such process", "no such file or directory"])
async def test_what_ends_under_a_look_has_ended_and_is_no_failure(
    kit: PodmanKit, tmp_path: Path, why: str
) -> None:
    """podman 4.3 reads the control group of a process that is gone by then, and answers 500."""
    pod = make_pod(shell("exit 3"))
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
    words = {"cause": why, "message": f"read /proc/24507/cgroup: {why}", "response": 500}
    async with (
        once_in_its_way(kit.site.service.socket, tmp_path, words) as (socket, looked),
        aclosing(kit.site.runtime(socket=socket)) as runtime,
    ):
        found = await observed(runtime, pod)
    assert found is not None and found == await observed(kit.runtime, pod)
    assert state_of(found) is ContainerState.EXITED
    assert looked[0] in looked[1:]


async def test_any_other_failure_of_a_look_is_one(kit: PodmanKit, tmp_path: Path) -> None:
    """It is not asked again, and nothing is made up."""
    pod = make_pod(shell(SLEEP))
    await kit.runtime.create_pod(pod)
    words = {"cause": "disk", "message": "database is locked", "response": 500}
    async with once_in_its_way(kit.site.service.socket, tmp_path, words) as (socket, looked):
        await kit.runtime.start_container(pod.id, "app")
        async with aclosing(kit.site.runtime(socket=socket)) as runtime:
            with pytest.raises(RuntimeFailed, match="database is locked"):
                await runtime.list_pods()
    assert len(looked) == 1


async def test_unknown_network_leaves_the_name_free(kit: PodmanKit) -> None:
    """A pod whose creation fails within podman can be created again under its name."""
    broken = PodmanRuntime(
        socket=kit.site.service.socket,
        cluster=kit.site.cluster,
        node="n1",
        network="ozy-no-such-network",
        volume_dir=kit.site.directory / "volumes",
        shared_dir=kit.site.directory / "shared",
    )
    pod = make_pod(shell(SLEEP))
    with pytest.raises(RuntimeFailed, match="network"):
        await broken.create_pod(pod)
    await broken.aclose()
    await kit.runtime.create_pod(pod)
