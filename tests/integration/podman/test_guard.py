"""The guard: an exclusive pod ends at its node's deadline, whatever became of the daemon."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ozymandias.model.pod import ContainerState
from ozymandias.ports import RuntimeFailed
from ozymandias.runtime import cgroups
from ozymandias.runtime.guard import GuardFiles, PodGuard
from tests.integration.podman.conftest import PodmanKit
from tests.runtime_contract import make_pod, state_of, until

NODE = "n1"


def boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextmanager
def guarding(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A real guard process, from when it answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ozymandias.daemon.guard"],
        env={**os.environ, "OZY_NODE_RUN_DIR": str(run_dir)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        socket = GuardFiles(run_dir).socket
        deadline = time.monotonic() + 10
        while not socket.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=10)


def guard_of(kit: PodmanKit, run_dir: Path) -> PodGuard:
    return PodGuard(run_dir, NODE, kit.runtime.group_of)


async def test_a_covered_pod_ends_at_the_deadline(kit: PodmanKit, tmp_path: Path) -> None:
    """Neither podman nor the daemon is asked; podman learns of the end and its exit code."""
    pod = make_pod(kit.stubborn())
    guard = guard_of(kit, tmp_path)
    with guarding(tmp_path):
        guard.extend(boot() + 60.0)
        await kit.runtime.create_pod(pod)
        await guard.cover(pod.id)
        await kit.runtime.start_container(pod.id, "app")
        began = boot()
        guard.extend(began + 1.0)
        await guard.cover(pod.id)  # it reads the files anew
        ended = await until(kit.runtime, pod, lambda p: state_of(p, "app") is ContainerState.EXITED)
        container = ended.container("app")
        assert container is not None and container.exit_code == 137
        assert boot() - began > 1.0


async def test_a_deadline_that_moves_on_ends_nothing(kit: PodmanKit, tmp_path: Path) -> None:
    """Each answered keep-alive gives the pod more time; a pod that is not covered has no end."""
    exclusive, ordinary = make_pod(kit.serving()), make_pod(kit.serving(), slot=1)
    guard = guard_of(kit, tmp_path)
    with guarding(tmp_path):
        guard.extend(boot() + 60.0)
        for pod in (exclusive, ordinary):
            await kit.runtime.create_pod(pod)
        await guard.cover(exclusive.id)
        for pod in (exclusive, ordinary):
            await kit.runtime.start_container(pod.id, "app")
        until_then = boot() + 3.0
        while boot() < until_then:
            guard.extend(boot() + 2.0)
            await guard.cover(exclusive.id)
            await asyncio.sleep(0.3)
        running = {p.id for p in await kit.runtime.list_pods() if state_of(p, "app") == "running"}
        assert running == {exclusive.id, ordinary.id}
        await until(kit.runtime, exclusive, lambda p: state_of(p, "app") is ContainerState.EXITED)
        left = {p.id for p in await kit.runtime.list_pods() if state_of(p, "app") == "running"}
        assert left == {ordinary.id}


async def test_what_a_frozen_daemon_starts_late_ends_as_well(
    kit: PodmanKit, tmp_path: Path
) -> None:
    """Covered in time and started past the deadline, it ends, if not in the middle of its start."""
    pod = make_pod(kit.serving())
    guard = guard_of(kit, tmp_path)
    with guarding(tmp_path):
        guard.extend(boot() + 60.0)
        await kit.runtime.create_pod(pod)
        await guard.cover(pod.id)
        guard.extend(boot() + 0.5)
        await guard.cover(pod.id)
        while boot() < GuardFiles(tmp_path).read(NODE).deadline + 0.1:
            await asyncio.sleep(0.05)
        with contextlib.suppress(RuntimeFailed):
            await kit.runtime.start_container(pod.id, "app")
        group = await kit.runtime.group_of(pod.id)
        await until(kit.runtime, pod, lambda p: not cgroups.is_running(group))
        assert state_of((await kit.runtime.list_pods())[0], "app") is not ContainerState.RUNNING


async def test_no_guard_no_cover(kit: PodmanKit, tmp_path: Path) -> None:
    """Without a guard, with one that was stopped, or past the deadline, the answer is no."""
    pod = make_pod(kit.serving())
    await kit.runtime.create_pod(pod)
    guard = guard_of(kit, tmp_path)
    guard.extend(boot() + 60)
    with pytest.raises(RuntimeFailed, match="no guard on this node"):
        await guard.cover(pod.id)
    with guarding(tmp_path) as process:
        await guard.cover(pod.id)
        process.send_signal(19)  # SIGSTOP: it is there, and would do nothing
        with pytest.raises(RuntimeFailed, match="no guard on this node"):
            await guard.cover(pod.id)
        process.send_signal(18)
        guard.extend(boot() - 1)
        with pytest.raises(RuntimeFailed, match="ran out"):
            await guard.cover(pod.id)


async def test_a_guard_that_comes_back_knows_what_the_last_one_knew(
    kit: PodmanKit, tmp_path: Path
) -> None:
    """Its memory is the directory: killed before the deadline and started after it, it ends."""
    pod = make_pod(kit.serving())
    guard = guard_of(kit, tmp_path)
    with guarding(tmp_path) as first:
        guard.extend(boot() + 60.0)
        await kit.runtime.create_pod(pod)
        await guard.cover(pod.id)
        await kit.runtime.start_container(pod.id, "app")
        first.kill()
        first.wait()
        guard.extend(boot() + 0.1)
    with guarding(tmp_path):
        await until(kit.runtime, pod, lambda p: state_of(p, "app") is ContainerState.EXITED)
    await guard.forget(pod.id)
    assert GuardFiles(tmp_path).read(NODE).pods == {}


def test_there_is_one_guard_per_directory(tmp_path: Path) -> None:
    """A second one says so and leaves."""
    with guarding(tmp_path):
        second = subprocess.run(
            [sys.executable, "-m", "ozymandias.daemon.guard"],
            env={**os.environ, "OZY_NODE_RUN_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert second.returncode != 0 and "running already" in second.stderr
