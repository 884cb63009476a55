"""Local volumes with a real size limit, and shared ones.

A local volume is an ext4 file system in a sparse file of exactly its size. podman mounts it (loop)
when a container that uses it starts, and unmounts it after the last has stopped; so nothing of
ours is mounted while nothing runs, and a full volume is full for its own containers alone. It goes
with its instance, unless `keep: true`: then it belongs to job, slot and container on this node, is
found again by the next instance there, and has a journal.

A shared volume is the directory `<shared>/<namespace>/<job>/<name>`, the same for all instances.
It is the job's data: nothing here ever removes it, also when the job is gone.

Containers write inside volumes only. The directories above are root's alone, every part of a path
is a checked name, and directories are opened without following links.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from ozymandias.model.job import Container, Volume, VolumeKind
from ozymandias.model.pod import Pod, PodId
from ozymandias.model.units import format_size
from ozymandias.ports import RuntimeFailed
from ozymandias.runtime.commands import run
from ozymandias.runtime.podman_api import PodmanApi, filters, segment
from ozymandias.runtime.podspec import CLUSTER, OWNER, PREFIX, Mount, Owner, labels_of

VOLUME_OF = PREFIX + "volume-of"  # cluster and pod: what goes with its instance
KEPT = PREFIX + "kept"
SPACE_BYTES_MIN = 2**20  # below that a file system has no room for itself
MKFS_SECONDS_MAX = 60.0
NAME_MAX = 200  # podman makes a directory of a volume's name
KEPT_DIRECTORY = "kept"

_POD = re.compile(r"-\d+-v\d+\.\d+-[^-]+$")  # the end of a pod's name: slot, version, uid
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,250}")


class Volumes:
    def __init__(self, api: PodmanApi, owner: Owner, *, volume_dir: Path, shared_dir: Path) -> None:
        self._api = api
        self._owner = owner
        self._volume_dir = volume_dir
        self._shared_dir = shared_dir

    async def prepare(self, pod: Pod, container: Container) -> tuple[Mount, ...]:
        """Make what this container mounts; what exists already is taken as it is."""
        mounts = []
        for volume in container.volumes:
            if volume.kind is VolumeKind.SHARED:
                directory = self._make_shared(pod.id, volume)
                mounts.append(Mount(path=volume.path, directory=str(directory)))
            else:
                name = await self._make_local(pod.id, container.name, volume)
                mounts.append(Mount(path=volume.path, volume=name))
        return tuple(mounts)

    def pods(self) -> set[str]:
        """Names of this node's pods that have volumes, or had: the directory is the last to go."""
        try:
            names = [entry.name for entry in self._volume_dir.iterdir()]
        except OSError:
            return set()
        return {n for n in names if n.startswith(f"{self._owner.node}-") and _POD.search(n)}

    async def remove(self, pod: str) -> None:
        """Remove the volumes of the pod of that name, less the kept ones. It must be gone."""
        await self._remove_labelled(VOLUME_OF, self._pod_label(pod))
        _remove_tree(self._volume_dir, _checked(pod))

    async def remove_all(self) -> None:
        """Every local volume of this node, the kept ones too: its cluster is being taken down."""
        await self._remove_labelled(OWNER, self._owner.label)
        if self._volume_dir.exists():
            for entry in sorted(self._volume_dir.iterdir()):
                _remove_tree(self._volume_dir, entry.name)

    async def _make_local(self, pod: PodId, container: str, volume: Volume) -> str:
        parts = [_checked(container), _checked(volume.name)]
        labels = {
            key: value
            for key, value in labels_of(self._owner, pod).items()
            if not volume.keep or key in (OWNER, CLUSTER)
        }
        if volume.keep:
            folders = [KEPT_DIRECTORY, pod.node, pod.namespace, pod.job]
            file = f"{pod.slot}.{'.'.join(parts)}.img"
            name = _short(".".join([self._owner.cluster, *folders, str(pod.slot), *parts]))
            labels[KEPT] = "true"
        else:
            folders = [pod.name]
            file = f"{'.'.join(parts)}.img"
            name = _short(".".join([pod.name, *parts]))
            labels[VOLUME_OF] = self._pod_label(pod.name)
        image = self._volume_dir.joinpath(*folders, file)
        try:
            make_directories(self._volume_dir, folders)
            if not image.exists():
                await _make_file_system(image, volume)
        except RuntimeFailed as error:
            if os.strerror(errno.ENOSPC) not in str(error):
                raise
            raise RuntimeFailed(self._no_room(volume)) from error
        status, _ = await self._api.call("GET", f"/volumes/{segment(name)}/json", accept=(404,))
        if status == 404:
            options = {"type": "ext4", "device": str(image), "o": "loop,nosuid,nodev"}
            body = {"Name": name, "Driver": "local", "Options": options}
            await self._api.call(
                "POST", "/volumes/create", body=body | {"Label": labels, "Labels": labels}
            )
        return name

    def _make_shared(self, pod: PodId, volume: Volume) -> Path:
        folders = [pod.namespace, pod.job, volume.name]
        return make_directories(self._shared_dir, folders, last_mode=0o777)

    async def _remove_labelled(self, label: str, value: str) -> None:
        query = {"filters": filters(label=[f"{label}={value}"])}
        _, found = await self._api.call("GET", "/volumes/json", query=query)
        for volume in found or ():
            # A filter that podman did not understand must never widen what is removed.
            if (volume.get("Labels") or {}).get(label) == value:
                path = f"/volumes/{segment(volume['Name'])}"
                await self._api.call("DELETE", path, query={"force": True}, accept=(404,))

    def _no_room(self, volume: Volume) -> str:
        """Where room is to be made, and how much: what mkfs says of it names neither."""
        found = os.statvfs(self._volume_dir)
        free = format_size(found.f_bavail * found.f_frsize)
        return (
            f"No space left on the disk below {self._volume_dir}: "
            f"{format_size(volume.space_bytes)} wanted for volume {volume.name}, {free} free"
        )

    def _pod_label(self, pod: str) -> str:
        return f"{self._owner.cluster}/{pod}"


async def _make_file_system(image: Path, volume: Volume) -> None:
    """Made beside its place and then renamed: what is there under its name is whole.

    Without lost+found, which databases take for somebody else's data. The journal is for those that
    outlive a power cut; the others would only lose room to it.
    """
    draft = image.with_suffix(".draft")
    size = max(volume.space_bytes, SPACE_BYTES_MIN)
    features = [] if volume.keep else ["-O", "^has_journal"]
    try:
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:
            file.truncate(size)
        await run(
            ["mkfs.ext4", "-q", "-F", "-m", "0", *features, "--", str(draft)],
            deadline_seconds=MKFS_SECONDS_MAX,
        )
        await run(
            ["debugfs", "-w", "-R", "rmdir lost+found", str(draft)],
            deadline_seconds=MKFS_SECONDS_MAX,
        )
        draft.rename(image)
    except OSError as error:
        raise RuntimeFailed(f"volume {volume.name} can't be made: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def make_directories(base: Path, names: Iterable[str], *, last_mode: int = 0o700) -> Path:
    """`base/a/b/c`, each a checked name and a real directory: a link in its place is refused."""
    path = base
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        parent = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            parts = [_checked(name) for name in names]
            for number, name in enumerate(parts, 1):
                path = path / name
                above = parent
                parent, is_new = _descend(above, name)
                os.close(above)
                if is_new and number == len(parts):
                    os.fchmod(parent, last_mode)  # the process's umask does not count
        finally:
            os.close(parent)
    except OSError as error:
        raise RuntimeFailed(f"{path}: {error.strerror}") from error
    return path


def _descend(parent: int, name: str) -> tuple[int, bool]:
    """Opens a directory below another, made if need be; tells whether it is new."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        is_new = True
    except FileExistsError:
        is_new = False
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=parent), is_new


def _remove_tree(base: Path, name: str) -> None:
    """shutil.rmtree follows no links; whoever was here first has done the work."""
    try:
        shutil.rmtree(base / name)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RuntimeFailed(f"{base / name} can't be removed: {error.strerror}") from error


def _checked(name: str) -> str:
    """Neither a slash nor `..` can be in it, and a file system takes it."""
    if not _NAME.fullmatch(name):
        raise RuntimeFailed(f"{name[:80]!r} can't be part of a volume's path")
    return name


def _short(name: str) -> str:
    """Readable while it is short enough, and unique in any case."""
    if len(name) <= NAME_MAX:
        return name
    return f"{name[:150]}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
