"""Local volumes have a real limit and go with their instance; shared ones are seen by all."""

import asyncio
import subprocess
from contextlib import aclosing
from pathlib import Path

import pytest

from ozymandias.model.job import Container, Volume, VolumeKind
from ozymandias.model.pod import ContainerState, ObservedContainer, Pod
from ozymandias.model.record import replace
from ozymandias.ports import RuntimeFailed
from tests.integration.podman.conftest import PodmanKit, attached, leftovers, shell
from tests.runtime_contract import make_pod, state_of, until

SLEEP = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"
MEGABYTE = 2**20


def local(name: str = "data", *, megabytes: int = 4, keep: bool = False) -> Volume:
    return Volume(
        kind=VolumeKind.LOCAL,
        name=name,
        path="/data",
        space_bytes=megabytes * MEGABYTE,
        keep=keep,
    )


def shared(name: str = "common") -> Volume:
    return Volume(kind=VolumeKind.SHARED, name=name, path="/data", space_bytes=MEGABYTE)


async def run(kit: PodmanKit, pod: Pod) -> tuple[ObservedContainer, list[str]]:
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    found = await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
    return found.containers[0], [line.text async for line in kit.runtime.logs(pod.id, "app")]


def using(volume: Volume, script: str, **changes: object) -> Container:
    return replace(shell(script), volumes=(volume,), **changes)  # type: ignore[arg-type]


async def test_a_write_beyond_the_space_fails_inside(kit: PodmanKit) -> None:
    """A volume of 4M takes 3M and no 8M; afterwards neither file, mount nor loop device is left."""
    script = (
        "ls -A /data | wc -l; dd if=/dev/zero of=/data/a bs=1M count=3 2>/dev/null && echo fits;"
        "dd if=/dev/zero of=/data/b bs=1M count=8 2>&1 | grep -o 'No space left on device'"
    )
    pod = make_pod(using(local(), script))
    _, lines = await run(kit, pod)
    assert lines == ["0", "fits", "No space left on device"]
    await kit.runtime.remove_pod(pod.id)
    assert leftovers(kit.site) == []
    assert list((kit.site.directory / "volumes").iterdir()) == []


async def test_a_running_pods_volume_goes_with_it(kit: PodmanKit) -> None:
    """Removing a pod that still runs and writes leaves no mount and no loop device."""
    pod = make_pod(using(local(), "while :; do echo x >> /data/log; done"))
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    assert attached(kit.site) != []  # it is mounted from a file of ours
    await kit.runtime.remove_pod(pod.id)
    assert leftovers(kit.site) == []


async def test_a_user_of_its_own_can_write(kit: PodmanKit) -> None:
    """A container that is not root owns the top of its new volume."""
    _, lines = await run(
        kit, make_pod(using(local(), "echo x > /data/f && cat /data/f", user="1000"))
    )
    assert lines == ["x"]


async def test_kept_volume_is_found_again(kit: PodmanKit) -> None:
    """A kept volume outlives its instance, and the next one in that slot has its data."""
    first = make_pod(using(local(keep=True), "echo kept > /data/f"))
    await run(kit, first)
    await kit.runtime.remove_pod(first.id)
    assert leftovers(kit.site) == []
    second = make_pod(using(local(keep=True), "cat /data/f"), version=2)
    _, lines = await run(kit, second)
    assert lines == ["kept"]
    other = make_pod(using(local(keep=True), "ls -A /data"), slot=1)
    _, lines = await run(kit, other)
    assert lines == []


async def test_volume_survives_a_stop(kit: PodmanKit) -> None:
    """A volume is unmounted while its pod is stopped and has its data after the next start."""
    pod = make_pod(using(local(), "cat /data/f; echo before > /data/f; exec sleep 0"))
    await run(kit, pod)
    await kit.runtime.stop_pod(pod.id)
    assert leftovers(kit.site) == []
    await kit.runtime.start_container(pod.id, "app")
    await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
    lines = [line.text async for line in kit.runtime.logs(pod.id, "app")]
    assert lines[-1] == "before"


async def test_shared_volume_is_seen_by_all_instances(kit: PodmanKit) -> None:
    """What one instance writes another one reads, whatever users they run as."""
    await run(kit, make_pod(using(shared(), "echo here > /data/f", user="1000")))
    _, lines = await run(kit, make_pod(using(shared(), "cat /data/f", user="2000"), slot=1))
    assert lines == ["here"]
    assert (kit.site.directory / "shared/default/web/common/f").read_text() == "here\n"


async def test_full_disk_is_a_reason_and_leaves_nothing(kit: PodmanKit, tmp_path: Path) -> None:
    """Where there is no room for a volume the pod is refused, with where and how much it wants."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    runtime = kit.site.runtime(volume_dir=tmp_path)
    try:
        pod = make_pod(using(local(megabytes=100), "true"))
        words = rf"No space left on the disk below {tmp_path}: 100M wanted .* data, \d+K free$"
        with pytest.raises(RuntimeFailed, match=words):
            await runtime.create_pod(pod)
        assert await runtime.list_pods() == ()
        assert list(tmp_path.iterdir()) == []
    finally:
        await runtime.aclose()
        subprocess.run(["umount", tmp_path], check=True)


async def test_volumes_of_a_pod_that_is_gone_are_removed(kit: PodmanKit) -> None:
    """A daemon killed between a pod's removal and its volumes' leaves what the next one removes."""
    gone, stays = make_pod(using(local(), "true")), make_pod(using(local(), "true"), slot=1)
    await kit.runtime.create_pod(gone)
    await kit.runtime.create_pod(stays)
    kit.site.service.podman("pod", "rm", "--force", "--time=0", gone.id.name)
    foreign = kit.site.directory / "volumes" / "lost+found"
    foreign.mkdir()
    try:
        async with aclosing(kit.site.runtime()) as runtime:
            listed = await runtime.list_pods()
        assert [pod.id for pod in listed] == [stays.id]
        assert kit.runtime.volumes.pods() == {stays.id.name}
        volumes = kit.site.service.podman("volume", "ls", "--quiet")
        assert gone.id.name not in volumes
        assert stays.id.name in volumes
        assert foreign.exists()
    finally:
        foreign.rmdir()


async def test_volumes_of_a_pod_in_the_making_are_left_alone(kit: PodmanKit) -> None:
    """Listing all the while, as a daemon does, takes nothing from pods that are being made."""
    pods = [make_pod(using(local(), "true"), slot=slot) for slot in range(4)]
    done = asyncio.Event()

    async def look() -> int:
        looks = 0
        while not done.is_set():
            await kit.runtime.list_pods()
            looks += 1
        return looks

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
        for pod in pods:
            await kit.runtime.create_pod(pod)
            await kit.runtime.create_pod(pod)  # anew, over what there is
        done.set()
    assert looking.result() > len(pods)
    assert kit.runtime.volumes.pods() == {pod.id.name for pod in pods}
    assert all(pod.is_complete for pod in await kit.runtime.list_pods())


async def test_links_made_by_containers_lead_nowhere(kit: PodmanKit) -> None:
    """A link planted where a shared volume's directory belongs is refused, not followed."""
    base = kit.site.directory / "shared" / "default" / "web"
    base.mkdir(parents=True, exist_ok=True)
    outside = kit.site.directory / "outside"
    outside.mkdir(exist_ok=True)
    (base / "trap").symlink_to(outside)
    pod = make_pod(using(shared("trap"), "touch /data/f"))
    with pytest.raises(RuntimeFailed):
        await kit.runtime.create_pod(pod)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", "x" * 300])
async def test_odd_names_never_become_paths(kit: PodmanKit, name: str) -> None:
    """A name that could leave the volume directory is refused before anything is made."""
    for volume in (local(name), shared(name)):
        with pytest.raises(RuntimeFailed):
            await kit.runtime.create_pod(make_pod(using(volume, "true")))
    assert not (Path(kit.site.directory) / "up").exists()
