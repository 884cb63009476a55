"""podman storage that holds the images made by `make setup`, to begin every host's disk with.

A storage is a directory: made once, it is copied to each host in some hundredths of a second, where
`podman load` or a pull from a registry would take a second each. It lies in the cache directory,
keyed by the images' ids, and is never mounted itself.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

IMAGES = ("localhost/ozy-busybox:1", "localhost/ozy-demo:1")
PAUSE = "localhost/podman-pause"  # of a pod's infra container; its tag is podman's version
LOAD_SECONDS_MAX = 120.0


def storage() -> Path:
    """The directory to copy."""
    names = (*IMAGES, _pause())
    ids = [_podman("image", "inspect", "--format", "{{.Id}}", name) for name in names]
    key = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(base) / "ozymandias"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"test-images-{key}"
    if not target.exists():
        with (cache / "test-images.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _make(target, names)
    return target


def _make(target: Path, names: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="ozy-images-", dir=target.parent) as name:
        directory = Path(name)
        archive, made, run = directory / "images.tar", directory / "storage", directory / "run"
        _podman("save", "--quiet", "--multi-image-archive", "--output", str(archive), *names)
        own = ("--root", str(made), "--runroot", str(run), "--storage-driver", "overlay")
        try:
            _podman(*own, "load", "--quiet", "--input", str(archive))
        finally:
            subprocess.run(["umount", "--quiet", str(made / "overlay")], check=False)
        # podman's own data base names this very directory; a host's podman begins a new one.
        shutil.rmtree(made / "libpod", ignore_errors=True)
        made.rename(target)


def _pause() -> str:
    listed = _podman("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines()
    found = [name for name in listed if name.startswith(f"{PAUSE}:")]
    assert found, "podman's infra image is missing: run `make setup`"
    return found[0]


def _podman(*arguments: str) -> str:
    done = subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, timeout=LOAD_SECONDS_MAX
    )
    assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()
