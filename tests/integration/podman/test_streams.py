"""Logs, exec and probes."""

import asyncio
import time

import pytest

from ozymandias.model.job import HealthCheck, HealthKind, Port
from ozymandias.model.pod import ContainerState, Pod
from ozymandias.model.record import replace
from ozymandias.ports import LogLine, RuntimeFailed
from ozymandias.runtime import streams
from ozymandias.runtime.containers_conf import EXEC_LINGER_SECONDS
from ozymandias.runtime.podman_api import PodmanApi
from ozymandias.runtime.podspec import container_name
from tests.integration.podman.conftest import PodmanKit, demo, shell
from tests.runtime_contract import make_pod, observed, state_of, until

SLEEP = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"


async def started(kit: PodmanKit, pod: Pod) -> str:
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    found = await observed(kit.runtime, pod)
    assert found is not None
    return found.address


async def test_log_lines_have_stream_time_and_text(kit: PodmanKit) -> None:
    """Lines come in order with their stream and time; tail takes the last ones."""
    pod = make_pod(shell("echo one; echo two >&2; echo; echo 'three  spaced'"))
    await started(kit, pod)
    await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
    lines = [line async for line in kit.runtime.logs(pod.id, "app")]
    texts = [(line.stream, line.text) for line in lines]
    assert sorted(texts) == sorted(
        [("stdout", "one"), ("stderr", "two"), ("stdout", ""), ("stdout", "three  spaced")]
    )
    assert all(abs(line.time - time.time()) < 60 for line in lines)
    tail = [line.text async for line in kit.runtime.logs(pod.id, "app", tail=1)]
    assert len(tail) == 1


async def test_followed_log_survives_a_restart_and_ends_with_the_container(
    kit: PodmanKit,
) -> None:
    """Following goes on after the container was started again, and ends when it is removed."""
    pod = make_pod(shell("echo tick; sleep 0.2"))
    await started(kit, pod)
    seen: list[LogLine] = []

    async def follow() -> None:
        async for line in kit.runtime.logs(pod.id, "app", follow=True):
            seen.append(line)  # noqa: PERF401 - it is read while it grows

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(follow())
        while len(seen) < 1:
            await asyncio.sleep(0.02)
        await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
        await kit.runtime.start_container(pod.id, "app")
        while len(seen) < 2:
            await asyncio.sleep(0.02)
        await kit.runtime.remove_pod(pod.id)
    assert [line.text for line in seen] == ["tick", "tick"]


async def test_exec(kit: PodmanKit) -> None:
    """exec keeps stdout, stderr and the exit code apart, and a slow command is killed."""
    pod = make_pod(shell(SLEEP))
    await started(kit, pod)
    done = await kit.runtime.exec(
        pod.id, "app", ["sh", "-c", "printf 'a\\0b'; echo oops >&2; exit 3"]
    )
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"a\0b", b"oops\n")
    with pytest.raises(RuntimeFailed, match="was killed"):
        await kit.runtime.exec(pod.id, "app", ["sleep", "1234"], timeout=0.5)
    listed = await kit.runtime.exec(pod.id, "app", ["ps", "-o", "args"])
    assert b"sleep 1234" not in listed.stdout
    missing = await _failure(kit, pod, ["/no/such/program"])
    assert "no such file" in missing.lower()


async def _failure(kit: PodmanKit, pod: Pod, command: list[str]) -> str:
    try:
        done = await kit.runtime.exec(pod.id, "app", command)
    except RuntimeFailed as error:
        return str(error)
    assert done.exit_code in (126, 127)
    return (done.stdout + done.stderr).decode()


async def test_the_exit_code_of_a_command_that_podman_has_forgotten(kit: PodmanKit) -> None:
    """On a busy host podman's answer may be asked for after its monitor has left."""
    pod = make_pod(shell(SLEEP))
    await started(kit, pod)
    name, api = container_name(pod.id, "app"), PodmanApi(kit.site.service.socket)
    asked: list[tuple[str, float]] = []
    for code in (3, 3, 4):
        session = await streams.exec_create(api, name, ["sh", "-c", f"exit {code}"])
        asked.append((session, time.time()))
        await streams.exec_run(api, name, session)
        while await streams.exec_session(api, session):
            await asyncio.sleep(0.05)
        if code == 3:
            assert await streams.exit_code(api, name, *asked[0]) == 3
    assert await streams.exit_code(api, name, *asked[2]) == 4
    with pytest.raises(RuntimeFailed, match="forgotten"):  # of those since then not all ended alike
        await streams.exit_code(api, name, *asked[0])
    await api.aclose()


async def test_remove_after_exec_is_quick(kit: PodmanKit) -> None:
    """The monitor of an exec does not hold up the removal of its pod for long."""
    pod = make_pod(shell(SLEEP))
    await started(kit, pod)
    await kit.runtime.exec(pod.id, "app", ["true"])
    begin = time.monotonic()
    await kit.runtime.remove_pod(pod.id)
    assert time.monotonic() - begin < EXEC_LINGER_SECONDS


async def test_probes(kit: PodmanKit) -> None:
    """http is healthy on 200 only, tcp on a connection, exec on exit code 0."""
    pod = make_pod(replace(demo(), ports=(Port(pod=80, container=8000),)))
    address = await started(kit, pod)

    async def probe(kind: HealthKind, **fields: object) -> tuple[bool, str]:
        check = HealthCheck(kind=kind, **{"port": 8000, "timeout_seconds": 3.0, **fields})  # type: ignore[arg-type]
        result = await kit.runtime.probe(pod.id, address, "app", check)
        return result.healthy, result.reason

    async with asyncio.timeout(10):
        while not (await probe(HealthKind.TCP))[0]:
            await asyncio.sleep(0.02)
    assert await probe(HealthKind.HTTP, path="/healthz") == (True, "HTTP 200")
    assert await probe(HealthKind.HTTP, path="/absent") == (False, "HTTP 404")
    assert await probe(HealthKind.TCP, port=8001) == (False, "connection refused")
    assert await probe(HealthKind.HTTP, port=8001) == (False, "connection refused")
    assert await probe(HealthKind.EXEC, command=("true",)) == (True, "exit code 0")
    assert await probe(HealthKind.EXEC, command=("sh", "-c", "exit 2")) == (False, "exit code 2")
    await kit.runtime.exec(pod.id, "app", ["ozy-demo", "unhealthy"])
    assert await probe(HealthKind.HTTP, path="/healthz") == (False, "HTTP 404")
    healthy, reason = await probe(HealthKind.EXEC, command=("sleep", "100"), timeout_seconds=0.3)
    assert not healthy and "0.3s" in reason
