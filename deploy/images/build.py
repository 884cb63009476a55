"""Makes the images for demonstration and tests on this machine, without an image registry.

The file system is Debian's static busybox; `podman import` turns it into an image. Nothing is
built when an image with the same content is there already. Run as root, by `make setup`.

    localhost/ozy-busybox:1   busybox and a shell
    localhost/ozy-demo:1      a small web server on port 8000; see ozy-demo.sh
"""

# ruff: noqa: T201
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ozymandias.runtime import containers_conf

HERE = Path(__file__).resolve().parent
CONTENT_LABEL = "ozymandias.content"
PODMAN_SECONDS_MAX = 120

PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"
DIRECTORIES = {"bin": 0o755, "etc": 0o755, "root": 0o700, "tmp": 0o1777, "var": 0o755}
MOUNT_POINTS = ("dev", "proc", "sys", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    name: str
    changes: tuple[str, ...]
    scripts: tuple[tuple[str, Path], ...] = ()  # path in the image, file here


IMAGES = (
    Image(name="localhost/ozy-busybox:1", changes=('CMD ["/bin/sh"]', "ENV PATH=/bin")),
    Image(
        name="localhost/ozy-demo:1",
        changes=('CMD ["/bin/ozy-demo"]', "ENV PATH=/bin", "EXPOSE 8000"),
        scripts=(("bin/ozy-demo", HERE / "ozy-demo.sh"),),
    ),
)


def main() -> int:
    busybox = shutil.which("busybox", path="/bin:/usr/bin")
    if busybox is None or os.geteuid() != 0:
        print("This needs root and Debian's busybox-static (`make setup`).", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="ozy-images-") as directory:
        conf = containers_conf.write(Path(directory) / "containers.conf")
        environment = containers_conf.service_environment(conf)
        for image in IMAGES:
            archive = make_archive(Path(busybox), image)
            content = content_of(archive, image)
            if is_built(image, content, environment):
                print(f"{image.name}: there already")
            else:
                build(image, archive, content, environment)
                print(f"{image.name}: made from {busybox}")
        make_infra_image(environment)
    return 0


def make_archive(busybox: Path, image: Image) -> bytes:
    """The image's files as a tar archive: the same input gives the same bytes."""
    applets = subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, mode in DIRECTORIES.items():
            _add_directory(tar, name, mode)
        for name in MOUNT_POINTS:
            _add_directory(tar, name, 0o755)
        _add_file(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in sorted(set(applets) - {"busybox"}):  # or it would link to itself
            _add_link(tar, f"bin/{applet}", "busybox")
        _add_file(tar, "etc/passwd", PASSWD.encode(), 0o644)
        _add_file(tar, "etc/group", GROUP.encode(), 0o644)
        for name, file in image.scripts:
            _add_file(tar, name, file.read_bytes(), 0o755)
    return buffer.getvalue()


def content_of(archive: bytes, image: Image) -> str:
    digest = hashlib.sha256(archive)
    digest.update("\0".join(image.changes).encode())
    return digest.hexdigest()


def is_built(image: Image, content: str, environment: dict[str, str]) -> bool:
    template = f'{{{{index .Labels "{CONTENT_LABEL}"}}}}'
    found = subprocess.run(
        ["podman", "image", "inspect", "--format", template, image.name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PODMAN_SECONDS_MAX,
    )
    return found.returncode == 0 and found.stdout.strip() == content


def build(image: Image, archive: bytes, content: str, environment: dict[str, str]) -> None:
    changes = (*image.changes, f"LABEL {CONTENT_LABEL}={content}")
    flags = [part for change in changes for part in ("--change", change)]
    podman(environment, "import", "--quiet", *flags, "-", image.name, stdin=archive)


def make_infra_image(environment: dict[str, str]) -> None:
    """podman makes the image of its infra containers with the first pod: let that be now."""
    name = f"ozy-setup-{os.getpid()}"
    listed = podman(environment, "images", "--format", "{{.Repository}}")
    if "localhost/podman-pause" in listed.splitlines():
        return
    try:
        podman(environment, "pod", "create", "--network", "none", "--name", name)
    finally:
        podman(environment, "pod", "rm", "--force", "--ignore", name)
    print("podman's infra image: made")


def podman(environment: dict[str, str], *arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        ["podman", *arguments],
        env=environment,
        input=stdin,
        capture_output=True,
        timeout=PODMAN_SECONDS_MAX,
    )
    if done.returncode != 0:
        raise SystemExit(f"podman {arguments[0]} failed: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


def _add_directory(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
    tar.addfile(entry)


if __name__ == "__main__":
    sys.exit(main())
